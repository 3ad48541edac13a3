"""The clients' equilibrium if the payment rises with the age of the data.

The server announces a payment for every round that is proportional to the mean staleness of the samples that
are held in it, before those that are collected in the round have joined:

    R(t) = T·R̄·S(t) / Σ_s S(s),    so that Σ_t R(t) = T·R̄

S(t) follows from the total volume φ alone (Lemma 1, for the sums over clients). Clients respond to the
announced price path p(t) = R(t)/φ(t), and at equilibrium their responses add up to φ:

    φ(t) = Σ_k D_k(t; p)        for every round t.

For a fixed R the halfway step log φ ← (log φ + log Σ_k D_k)/2 converges from anywhere (see `mean_field`).
Here R moves with φ. Whenever the residual grows, steps are made shorter. There is no proof that this
converges, so a residual that is too large is an error.
"""

from dataclasses import dataclass

import numpy as np

from dufl.errors import DuflError
from dufl.game.client import check_capacity, total_response, trajectories
from dufl.game.dynamics import Array, staleness
from dufl.game.mean_field import LONGEST_STEP, SMALLEST, TOLERANCE
from dufl.game.parameters import Competition, Game
from dufl.game.stationary import total_volume
from dufl.game.threads import one_thread

MAX_PASSES = 2000
SHORTER = 0.8  # factor of the step when the residual grows
SHORTEST = 1 / 64
LEAST = 1e-100  # of a total volume; less counts as nothing


@dataclass(frozen=True, eq=False)
class PricePath:
    """The clients' joint response to payments that rise with age.

    Attributes:
        game: whose clients respond.
        payment: R(t), one per round.
        conservation_rate: θ.
        competition: `mean-field` or `nash`.
        announced_volume: φ(t), the total to which the clients respond.
        total_volume: Σ_k D_k(t), the sum of their responses.
        mean_staleness: S(t) of φ.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
        passes: the number of best-response passes over all clients.
    """

    game: Game
    payment: Array
    conservation_rate: float
    competition: Competition
    announced_volume: Array
    total_volume: Array
    mean_staleness: Array
    residual: float
    passes: int

    def volume(self) -> Array:
        """D_k(t), of shape (rounds, clients)."""
        price, slope = _price(self.payment, self.announced_volume, self.competition)
        return trajectories(self.game.clients, price, slope, self.conservation_rate, self.game.trims)[0]


def age_price(
    game: Game, mean_payment: float, conservation_rate: float, competition: Competition = "mean-field"
) -> PricePath:
    """Payments that are proportional to the mean staleness, and the clients' equilibrium.

    Args:
        game: the clients and the number of rounds.
        mean_payment: R̄, the mean of the payments over the rounds.
        conservation_rate: θ.
        competition: `mean-field` or `nash`.

    Raises:
        DuflError: if the residual does not become small.
        CapacityError: if the initial volume of a client exceeds its capacity.
    """
    clients, rate = game.clients, conservation_rate
    if not game.trims:
        check_capacity(clients)
    if mean_payment < SMALLEST:
        return _unpaid(game, rate, competition)
    announced = np.full(game.num_rounds, clients.initial_total)
    announced[1:] = total_volume(clients, mean_payment, min(rate, 1 - 1 / game.num_rounds))
    start, step, previous = clients.initial_mean_staleness, 0.5, np.inf
    with one_thread():
        for passes in range(1, MAX_PASSES + 1):
            path, after = _respond(game, mean_payment, rate, competition, announced, start, passes)
            if path.residual <= TOLERANCE:
                return path
            step = max(step * SHORTER, SHORTEST) if path.residual > previous else step
            change = np.log(np.maximum(path.total_volume, LEAST) / announced)
            announced = announced * np.exp(step * np.clip(change, -LONGEST_STEP, LONGEST_STEP))
            start, previous = start + step * (after - start), path.residual
    raise DuflError(
        f"no equilibrium was found for payments that rise with age: after {MAX_PASSES:,} passes the volumes "
        f"still differ by {previous:.1e} of the announced ones, allowed is {TOLERANCE:.0e}"
    )


def _respond(
    game: Game,
    mean_payment: float,
    rate: float,
    competition: Competition,
    announced: Array,
    start: float,
    passes: int,
) -> tuple[PricePath, float]:
    """The clients' response to an announced total and to S(0), and the S(0) of their first buffers."""
    aged = staleness(announced, rate, start)
    payment = mean_payment * len(aged) * (aged / aged.sum())
    price, slope = _price(payment, announced, competition)
    held = total_response(game.clients, price, slope, rate, trim_start=game.trims)
    after = _starting_staleness(game, price, slope, rate, float(held[0]))
    residual = max(float(np.abs(held / announced - 1).max()), abs(after / start - 1))
    return PricePath(game, payment, rate, competition, announced, held, aged, residual, passes), after


def _unpaid(game: Game, rate: float, competition: Competition) -> PricePath:
    """The response to no payment, which does not depend on what is announced."""
    nothing = np.zeros(game.num_rounds)
    held = total_response(game.clients, nothing, nothing, rate, trim_start=game.trims)
    aged = staleness(held, rate, game.clients.initial_mean_staleness)
    return PricePath(game, nothing, rate, competition, held, held, aged, 0.0, 1)


def _price(payment: Array, announced: Array, competition: Competition) -> tuple[Array, Array]:
    """p(t) = R(t)/φ(t), and by how much a client's own volume lowers it."""
    price = np.divide(payment, announced, out=np.zeros_like(payment), where=payment > 0)
    slope = np.divide(price, announced, out=np.zeros_like(payment), where=payment > 0)
    return price, slope if competition == "nash" else np.zeros_like(price)


def _starting_staleness(game: Game, price: Array, slope: Array, rate: float, held: float) -> float:
    """S(0) = Σ_k D_k(0)·S_k(0)/φ(0), as in `mean_field`, for a price path."""
    clients, age = game.clients, game.clients.initial_staleness
    if not game.trims or (age == age[0]).all() or held <= 0:
        return clients.initial_mean_staleness
    weighted = clients.weighted(clients.multiplicity * age)
    return float(total_response(weighted, price, slope, rate, trim_start=True)[0] / held)
