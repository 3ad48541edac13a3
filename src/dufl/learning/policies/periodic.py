"""`periodic-M`: every M rounds the buffer is replaced by fresh samples, and nothing changes in between.

Retraining on a schedule is what most services do that do nothing better. Ages are 1 … M in turn. When an
update is worth its cost is the question of I. Žliobaitė, M. Budka, F. Stahl, "Towards cost-sensitive
adaptation: When is it worth updating your predictive model?", Neurocomputing 150, 2015.

It has no price of its own, so it buys what its own discipline yields for a payment R per round. A client that
replaces D samples every M rounds, at the price p = R/φ per sample and round, chooses D for a period:

    max  M·p·D − a·D − α·D² − M·(b·D + β·D²),    0 ≤ D ≤ C

with its prices a of collection and b of training, 0 in the paper. Hence

    D_k = (p − c_k)/(2·g_k),    g_k = α_k/M + β_k,    c_k = a_k/M + b_k,    within [0, C_k]

In the Nash game the marginal price is R·(φ − D_k)/φ². Both are D_k/φ = (R − c_k·φ)/(2·g_k·φ² + n), with n = 0
in the mean field and n = R in the Nash game. These shares of φ fall with φ and add up to 1 at equilibrium, so
there is exactly one. Without prices and capacities it is φ = sqrt(R/2·Σ_k 1/g_k) in the mean field.

The first buffers are as they are. If the game lets clients begin with less (`trim_start`), they hold what
pays over the first M rounds: the same problem without a cost of collection, and with D_k(0) in place of C_k.
"""

import numpy as np

from dufl.data.replay import Replay
from dufl.errors import InputError
from dufl.game.dynamics import Array
from dufl.game.mean_field import SMALLEST
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients
from dufl.learning.policies.window import first_size

HALVINGS = 60  # of an interval [φ, 2φ]: down to the precision of a number
LEAST = 1e-100  # of a total volume


class Periodic:
    """Replaces every buffer by fresh samples every so many rounds.

    Args:
        game: its clients, who start with their initial volume.
        length: M >= 1, the number of rounds from one refresh to the next.
        payment: R per round; None to take everything that is recorded in the period, for nothing.
        competition: of the clients.
        data: recorded data; needed without a payment.
    """

    def __init__(
        self,
        game: Game,
        length: int,
        payment: float | None,
        competition: Competition = "mean-field",
        data: Replay | None = None,
    ) -> None:
        if game.participation == "voluntary":
            raise InputError.of("participation", "'mandatory' with policy periodic-M", game.participation)
        self._clients, self._length, self._payment = game.clients, length, payment or 0.0
        self._there = data.available()[1:-1] if payment is None and data is not None else None
        self._held = held(game.clients, length, self._payment, competition)
        self._first = game.clients.initial_volume
        if game.trims and payment is not None:
            self._first = first_volume(game.clients, self._payment, competition)

    def __repr__(self) -> str:
        return f"Periodic({self._length}, payment={self._payment:g})"

    def payment(self, round: int) -> float:
        """R, the same in every round."""
        return self._payment

    def size(self, client: int) -> int:
        """D_k(0), rounded to an integer."""
        return first_size(self._clients, client, self._first[client])[0]

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """Keep everything, or replace it after every M-th round."""
        if (round + 1) % self._length:
            return size, 0
        volume = self._held[client] if self._there is None else self._there[round, client]
        return 0, first_size(self._clients, client, volume)[0]

    def planned_staleness(self, round: int) -> float:
        """The rounds since the last refresh, and one."""
        start = 1.0 if round >= self._length else self._starting_staleness
        return start + round % self._length

    @property
    def _starting_staleness(self) -> float:
        total = float(self._first.sum())
        return float((self._first * self._clients.initial_staleness).sum() / total) if total else 1.0


def held(clients: Clients, length: int, payment: float, competition: Competition = "mean-field") -> Array:
    """D_k, what a client holds from one refresh to the next.

    >>> pair = Clients(1.0, [0.5, 0.25], 0.0, count=2)
    >>> held(pair, length=2, payment=6.0).tolist()  # φ = 6, p = 1
    [2.0, 4.0]
    """
    quadratic = clients.collection_cost / length + clients.training_cost
    linear = clients.collection_price / length + clients.training_price
    return _volumes(clients, quadratic, linear, clients.capacity, payment, competition)


def first_volume(clients: Clients, payment: float, competition: Competition = "mean-field") -> Array:
    """D_k(0) of clients that may begin with less than they have."""
    owned = np.minimum(clients.initial_volume, clients.capacity)
    costs = clients.training_cost, clients.training_price
    return _volumes(clients, *costs, owned, payment, competition)


def _volumes(
    clients: Clients,
    quadratic: Array,
    linear: Array,
    most: Array,
    payment: float,
    competition: Competition,
) -> Array:
    """The D_k that add up to the φ to which they respond."""
    if payment < SMALLEST:
        return np.zeros(clients.size)
    if competition == "nash" and clients.num_clients < 2:
        raise InputError.of("competition", "'mean-field' with a single client", competition)
    own, weight = payment if competition == "nash" else 0.0, clients.multiplicity

    def shares(total: float) -> Array:
        with np.errstate(divide="ignore"):
            free = np.maximum(payment - linear * total, 0.0) / (2 * quadratic * total**2 + own)
        return np.minimum(free, most / total)

    with np.errstate(divide="ignore"):
        high = min(float(np.sqrt(payment / 2 * (weight / quadratic).sum())), float((weight * most).sum()))
    low = high
    while low > LEAST and (weight * shares(low)).sum() < 1:
        low, high = low / 2, low
    for _ in range(HALVINGS if low < high else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if (weight * shares(middle)).sum() < 1 else (middle, high)
    return np.minimum(shares(low) * low, most)
