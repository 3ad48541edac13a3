"""Measures how far any profile is from equilibrium, independently of the solvers.

For every client: by how much it violates the conditions of optimality (KKT), and the largest utility it
could still gain by deviating alone, found by dynamic programming (`deviation`). Two deviations:

    with φ held fixed      the client takes the price R/φ(t) as given: the paper's mean-field game
    knowing its influence  the client knows that its own volume moves φ: the exact game

With the costs a·Δ + α·Δ² + b·D + β·D² and the capacity C, a strategy is optimal if and only if

    λ(t) = p(t) − b − 2β·D(t) + θ·λ(t+1) − μ(t),    λ(T) = 0,    Δ(t) = [λ(t+1) − a]^+/(2α)

with multipliers μ(t) ≥ 0 that are 0 wherever D(t) < C. μ(t) is what room for one more sample in round t would
earn; the sum over all rounds is the shadow price of storage.

If clients may begin with less than they have, D(0) is part of a deviation. It is optimal if a sample more or
less is worth nothing, λ(0) = 0, or if λ(0) ≥ 0 and the client keeps all that it has and that fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numba
import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.game.deviation import Client, best_deviation, gain_at_prices, gain_with_influence
from dufl.game.dynamics import Array
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients

CERTIFIED = 1e-6  # the relative error up to which a profile counts as an equilibrium
FULL = 1e-9  # the relative distance to its capacity at which a buffer counts as full


@dataclass(frozen=True)
class Certificate:
    """The residuals of a profile of volumes and collections; at an equilibrium all are near 0.

    Attributes:
        competition: the game that was played; it determines which gain counts.
        law_residual: by how much D_k(t+1) differs from θ·D_k(t) + Δ_k(t), D_k(0) from what the client has (if
            it may begin with less: exceeds it), D_k(t) exceeds its capacity, or Δ_k(t) is negative, per
            client, relative to its largest volume.
        kkt_residual: the largest violation of Δ = [λ − a]^+/(2α), and of the optimality of a chosen D(0),
            per client, in money per sample relative to the largest price or marginal cost.
        fixed_gain: what each client can gain with φ held fixed, in money.
        influence_gain: what each client can gain if it knows its influence on φ (an upper bound).
        turnover: what each client is paid plus what it spends: the scale of the gains.
        utility: what each client is paid less what it spends. A client with negative utility would rather not
            take part. That is no deviation inside the game, so it does not affect `holds`.
        equilibrium_residual: max_t |Σ_k D*_k(t)/φ(t) − 1| for the clients' best deviations D*.
        shadow_price: what room for one more sample would earn each client over all rounds, Σ_t μ_k(t), in
            money per sample; 0 if its buffer is never full. Empty for a service without a last round.
        full_rounds: the number of rounds in which the client's buffer is full, to a relative 1e-9. Empty for
            a service without a last round.
        participation_gain: the largest gain of a client from leaving or entering if participation is
            voluntary, relative to its turnover (an upper bound); 0 if it is mandatory.
    """

    competition: Competition
    law_residual: Array
    kkt_residual: Array
    fixed_gain: Array
    influence_gain: Array
    turnover: Array
    utility: Array
    equilibrium_residual: float
    shadow_price: Array = field(default_factory=lambda: np.zeros(0))
    full_rounds: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    participation_gain: float = 0.0

    @property
    def losing_clients(self) -> int:
        """How many clients have negative utility."""
        return int((self.utility < 0).sum())

    @property
    def deviation_gain(self) -> float:
        """The largest gain of a client in the game that was played, relative to its turnover."""
        exact = self.competition == "nash"
        return _largest(self.influence_gain if exact else self.fixed_gain, self.turnover)

    @property
    def influence(self) -> float:
        """The largest relative gain of a client that knows its influence, which the mean field neglects."""
        return _largest(self.influence_gain, self.turnover)

    @property
    def worst(self) -> float:
        """The largest of all residuals and of the relative gain in the game that was played."""
        residuals = float(max(self.law_residual.max(), self.kkt_residual.max()))
        return max(residuals, self.equilibrium_residual, self.deviation_gain, self.participation_gain)

    def holds(self, tolerance: float = CERTIFIED) -> bool:
        """Whether the profile is an equilibrium to within a relative tolerance."""
        return self.worst <= tolerance


@dataclass(frozen=True)
class Findings:
    """The residuals of some of the clients."""

    columns: Array  # the fields of a certificate that are arrays, in their order; one row per client
    best_total: Array


def certify_profile(
    game: Game,
    payment: float,
    conservation_rate: float,
    volume: Array,
    collection: Array,
    competition: Competition = "mean-field",
) -> Certificate:
    """Certify any profile: `volume` and `collection` of shape (rounds, clients).

    >>> game = Game(num_rounds=3)
    >>> idle = np.full((3, 15), 1000.0)
    >>> certificate = certify_profile(game, 100.0, 1.0, idle, np.zeros((3, 15)))
    >>> bool(certificate.law_residual.max() == 0), certificate.holds()
    (True, True)
    >>> certify_profile(game, 1000.0, 1.0, idle, np.zeros((3, 15))).holds()
    False
    """
    shape = (game.num_rounds, game.clients.size)
    for name, values in (("volume", volume), ("collection", collection)):
        if values.shape != shape:
            raise InputError.of(name, f"of shape {shape}, rounds and clients", values.shape)
    total = np.asarray((volume * game.clients.multiplicity).sum(axis=1))
    findings = examine(
        game.clients, payment, conservation_rate, total, volume, collection, competition, game.trims
    )
    return conclude([findings], total, competition)


def examine(
    clients: Clients,
    payment: float,
    conservation_rate: float,
    total_volume: Array,
    volume: Array,
    collection: Array,
    competition: Competition,
    trim_start: bool = False,
) -> Findings:
    """Examine some of the clients, given the total volume of all."""
    columns = np.zeros((clients.size, 8))
    best_total = np.zeros_like(total_volume)
    if payment > 0 and not (total_volume > 0).all():
        columns[:, 2:4] = np.inf  # a client that holds a single sample is paid everything
        return Findings(columns, best_total)
    _examine(
        float(payment),
        float(conservation_rate),
        clients.initial_volume,
        clients.collection_cost,
        clients.training_cost,
        clients.capacity,
        clients.collection_price,
        clients.training_price,
        clients.multiplicity,
        total_volume,
        volume,
        collection,
        competition == "nash",
        bool(trim_start),
        columns,
        best_total,
    )
    return Findings(columns, best_total)


def conclude(findings: Sequence[Findings], total_volume: Array, competition: Competition) -> Certificate:
    """The certificate from the findings about all parts of the population."""
    columns = np.concatenate([f.columns for f in findings]).T
    law, kkt, fixed, influence, turnover, utility, shadow_price, full_rounds = columns
    best = np.sum([f.best_total for f in findings], axis=0)
    apart = np.abs(best - total_volume)
    relative = np.divide(apart, total_volume, out=np.zeros_like(apart), where=total_volume > 0)
    residual = float(relative.max())
    gains = (fixed, influence, turnover, utility)
    return Certificate(competition, law, kkt, *gains, residual, shadow_price, full_rounds.astype(np.int64))


def _largest(gain: Array, turnover: Array) -> float:
    relative = np.divide(gain, turnover, out=np.zeros_like(gain), where=turnover > 0)
    return float(np.where(np.isinf(gain), np.inf, relative).max())


@numba.njit(cache=True, nogil=True)
def _examine(
    payment: float,
    theta: float,
    initial: Array,
    alpha: Array,
    beta: Array,
    capacity: Array,
    collection_price: Array,
    training_price: Array,
    weight: Array,
    total: Array,
    volume: Array,
    collection: Array,
    exact: bool,
    trim: bool,
    columns: Array,
    best_total: Array,
) -> None:
    num_rounds, num_clients = volume.shape
    price, curvature = np.zeros(num_rounds), np.zeros(num_rounds)
    better, collected = np.empty(num_rounds), np.empty(num_rounds)
    for k in range(num_clients):
        client = Client(
            initial[k], alpha[k], beta[k], capacity[k], collection_price[k], training_price[k], trim
        )
        held, gathered = volume[:, k].copy(), collection[:, k].copy()
        others = np.maximum(total - held, 0.0)
        if payment > 0:
            price[:] = payment * (others / total) / total if exact else payment / total
        curvature[:] = 2 * beta[k]
        spent = alpha[k] * (gathered**2).sum() + beta[k] * (held**2).sum()
        spent += collection_price[k] * gathered.sum() + training_price[k] * held.sum()
        paid = payment * (held / total).sum() if payment > 0 else 0.0
        turnover = spent + paid
        columns[k, 0] = _law(theta, client, held, gathered)
        columns[k, 1], columns[k, 6] = _kkt(price, theta, client, held, gathered)
        columns[k, 4] = turnover
        columns[k, 5] = paid - spent
        columns[k, 7] = (held >= capacity[k] * (1 - FULL)).sum()
        if payment > 0:
            price[:] = payment / total
        best_deviation(
            price, curvature, theta, alpha[k], initial[k], trim, better, collected,
            capacity[k], collection_price[k], training_price[k],
        )  # fmt: skip
        columns[k, 2] = gain_at_prices(price, client, held, gathered, better, collected)
        if not exact:
            best_total += weight[k] * better
        columns[k, 3] = gain_with_influence(payment, theta, client, others, held, gathered, turnover, better)
        if exact:
            best_total += weight[k] * better


@numba.njit(cache=True, nogil=True)
def _law(
    theta: float,
    client: Client,
    held: Array,
    gathered: Array,
) -> float:
    """The volume law, D(0), D <= C and Δ >= 0, relative to the largest volume."""
    apart = held[0] - client.initial
    wrong = max(0.0, apart, -held[0]) if client.trim else abs(apart)
    wrong = max(wrong, held.max() - client.capacity)
    for t in range(held.size - 1):
        wrong = max(wrong, abs(held[t + 1] - theta * held[t] - gathered[t]), -gathered[t])
    return float(wrong / max(held.max(), 1e-300))


@numba.njit(cache=True, nogil=True)
def _kkt(
    price: Array,
    theta: float,
    client: Client,
    held: Array,
    gathered: Array,
) -> tuple[float, float]:
    """max_t |2α·Δ(t) − [λ(t+1) − a]^+|, relative, and the sum of the multipliers μ(t) of full buffers.

    If λ(t) is too large for Δ(t−1), a multiplier μ(t) lowers it to a + 2α·Δ(t−1), and (C − D(t))/D(t) counts,
    the share by which the buffer is not full; or the excess itself, if that is less. No other λ(t) suits
    earlier rounds better: if Δ(t−1) > 0, no other is right. If Δ(t−1) = 0, the buffer was as full in round
    t−1 (θ = 1), where every λ(t−1) up to a bound is right that rises with λ(t). For the same reason the sum
    of the multipliers is the least of all: what more room earns, and not what less room would cost.

    If D(0) is a choice, also |λ(0)|, unless λ(0) > 0 where nothing is left to add, D(0) = min(D⁰, C), or
    λ(0) < 0 where nothing is left to remove. Near these ends, 2·(α+β) times the distance counts if it is
    less. Only where C < D⁰ is λ(0) > 0 a price of room.
    """
    alpha, beta = client.alpha, client.beta
    scale = 0.0
    for t in range(held.size):
        scale = max(scale, abs(price[t]), client.training_price + 2 * beta * held[t])
        scale = max(scale, 2 * alpha * abs(gathered[t]))
    if scale == 0:
        return 0.0, 0.0
    worth, wrong, shadow, full = 0.0, 0.0, 0.0, client.capacity * (1 - FULL)
    for t in range(held.size - 1, -1, -1):
        excess = max(worth - client.collection_price, 0.0) - 2 * alpha * gathered[t]
        if excess > 0 and t + 1 < held.size:
            room = max(client.capacity - held[t + 1], 0.0) / max(held[t + 1], 1e-300) * scale
            if room < excess:
                shadow += excess if held[t + 1] >= full else 0.0
                worth -= excess
                excess = room
        wrong = max(wrong, abs(excess))
        worth = price[t] - client.training_price - 2 * beta * held[t] + theta * worth
    if client.trim:
        room = min(client.initial, client.capacity) - held[0] if worth > 0 else held[0]
        wrong = max(wrong, min(abs(worth), 2 * (alpha + beta) * max(room, 0.0)))
        if worth > 0 and held[0] >= full and client.capacity < client.initial:
            shadow += worth
    return wrong / scale, shadow
