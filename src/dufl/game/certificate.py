"""Measures how far any profile is from equilibrium, independently of the solvers.

For every client: by how much it violates the conditions of optimality (KKT), and the largest utility it
could still gain by deviating alone, found by dynamic programming (`deviation`). Two deviations:

    with φ held fixed      the client takes the price R/φ(t) as given: the paper's mean-field game
    knowing its influence  the client knows that its own volume moves φ: the exact game

In the second, the payment R·D/(F+D) against the others' volume F is concave but not quadratic.
Replaced by its tangent it gives an upper bound of the gain, by its second-order expansion a better
deviation; a few iterations of both close the gap. The upper bound is reported.

If clients may begin with less than they have, D(0) is part of a deviation. It is optimal if a sample more or
less is worth nothing, λ(0) = 0, or if λ(0) ≥ 0 and the client keeps all that it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from dufl.errors import InputError
from dufl.game.deviation import best_deviation
from dufl.game.dynamics import Array
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients

CERTIFIED = 1e-6  # the relative error up to which a profile counts as an equilibrium


@dataclass(frozen=True)
class Certificate:
    """The residuals of a profile of volumes and collections; at an equilibrium all are near 0.

    Attributes:
        competition: the game that was played; it determines which gain counts.
        law_residual: by how much D_k(t+1) differs from θ·D_k(t) + Δ_k(t), D_k(0) from what the client has (if
            it may begin with less: exceeds it), or Δ_k(t) is negative, per client, relative to its largest
            volume.
        kkt_residual: the largest violation of Δ = [λ]^+/(2α), and of the optimality of a chosen D(0),
            per client, in money per sample relative to the largest price or marginal cost.
        fixed_gain: what each client can gain with φ held fixed, in money.
        influence_gain: what each client can gain if it knows its influence on φ (an upper bound).
        turnover: what each client is paid plus what it spends: the scale of the gains.
        utility: what each client is paid less what it spends. A client with negative utility would rather not
            take part. That is no deviation inside the game, so it does not affect `holds`.
        equilibrium_residual: max_t |Σ_k D*_k(t)/φ(t) − 1| for the clients' best deviations D*.
    """

    competition: Competition
    law_residual: Array
    kkt_residual: Array
    fixed_gain: Array
    influence_gain: Array
    turnover: Array
    utility: Array
    equilibrium_residual: float

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
        return max(residuals, self.equilibrium_residual, self.deviation_gain)

    def holds(self, tolerance: float = CERTIFIED) -> bool:
        """Whether the profile is an equilibrium to within a relative tolerance."""
        return self.worst <= tolerance


@dataclass(frozen=True)
class Findings:
    """The residuals of some of the clients."""

    columns: Array  # law, kkt, fixed gain, influence gain, turnover, utility; one row per client
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
    columns = np.zeros((clients.size, 6))
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
    law, kkt, fixed, influence, turnover, utility = np.concatenate([f.columns for f in findings]).T
    best = np.sum([f.best_total for f in findings], axis=0)
    apart = np.abs(best - total_volume)
    relative = np.divide(apart, total_volume, out=np.zeros_like(apart), where=total_volume > 0)
    return Certificate(competition, law, kkt, fixed, influence, turnover, utility, float(relative.max()))


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
        held, gathered = volume[:, k].copy(), collection[:, k].copy()
        others = np.maximum(total - held, 0.0)
        if payment > 0:
            price[:] = payment * (others / total) / total if exact else payment / total
        curvature[:] = 2 * beta[k]
        spent = alpha[k] * (gathered**2).sum() + beta[k] * (held**2).sum()
        paid = payment * (held / total).sum() if payment > 0 else 0.0
        turnover = spent + paid
        columns[k, 0] = _law(theta, initial[k], trim, held, gathered)
        columns[k, 1] = _kkt(price, theta, alpha[k], beta[k], initial[k], trim, held, gathered)
        columns[k, 4] = turnover
        columns[k, 5] = paid - spent
        if payment > 0:
            price[:] = payment / total
        best_deviation(price, curvature, theta, alpha[k], initial[k], trim, better, collected)
        columns[k, 2] = _gain(price, beta[k], alpha[k], held, gathered, better, collected)
        if not exact:
            best_total += weight[k] * better
        columns[k, 3] = _influence(
            payment, theta, alpha[k], beta[k], initial[k], trim, others, held, gathered, turnover, better
        )
        if exact:
            best_total += weight[k] * better


@numba.njit(cache=True, nogil=True)
def _law(
    theta: float,
    initial: float,
    trim: bool,
    held: Array,
    gathered: Array,
) -> float:
    """The volume law, D(0) and Δ >= 0, relative to the largest volume."""
    wrong = max(0.0, held[0] - initial, -held[0]) if trim else abs(held[0] - initial)
    for t in range(held.size - 1):
        wrong = max(wrong, abs(held[t + 1] - theta * held[t] - gathered[t]), -gathered[t])
    return float(wrong / max(held.max(), 1e-300))


@numba.njit(cache=True, nogil=True)
def _kkt(
    price: Array,
    theta: float,
    alpha: float,
    beta: float,
    initial: float,
    trim: bool,
    held: Array,
    gathered: Array,
) -> float:
    """max_t |2α·Δ(t) − [λ(t+1)]^+| with λ(t) = p(t) − 2β·D(t) + θ·λ(t+1), relative.

    If D(0) is a choice, also |λ(0)|, unless λ(0) > 0 where nothing is left to add, D(0) = D⁰, or λ(0) < 0
    where nothing is left to remove. Near these ends, 2·(α+β) times the distance counts if it is less.
    """
    worth, wrong, scale = 0.0, 0.0, 0.0
    for t in range(held.size - 1, -1, -1):
        wrong = max(wrong, abs(2 * alpha * gathered[t] - max(worth, 0.0)))
        scale = max(scale, abs(price[t]), 2 * beta * held[t], 2 * alpha * abs(gathered[t]))
        worth = price[t] - 2 * beta * held[t] + theta * worth
    if trim:
        room = initial - held[0] if worth > 0 else held[0]
        wrong = max(wrong, min(abs(worth), 2 * (alpha + beta) * max(room, 0.0)))
    return wrong / scale if scale > 0 else 0.0


@numba.njit(cache=True, nogil=True)
def _gain(
    price: Array,
    beta: float,
    alpha: float,
    held: Array,
    gathered: Array,
    better: Array,
    collected: Array,
) -> float:
    """What `better` earns above `held` at fixed prices; a difference of products, not of sums."""
    gain = 0.0
    for t in range(held.size):
        gain += (better[t] - held[t]) * (price[t] - beta * (better[t] + held[t]))
        gain -= alpha * (collected[t] - gathered[t]) * (collected[t] + gathered[t])
    return max(gain, 0.0)


@numba.njit(cache=True, nogil=True)
def _influence(
    payment: float,
    theta: float,
    alpha: float,
    beta: float,
    initial: float,
    trim: bool,
    others: Array,
    held: Array,
    gathered: Array,
    turnover: float,
    better: Array,
) -> float:
    """An upper bound on the gain of a client that knows its influence; writes its deviation to `better`."""
    num_rounds = held.size
    price, curvature = np.zeros(num_rounds), np.zeros(num_rounds)
    now, collected_now = held.copy(), gathered.copy()
    trial, collected = np.empty(num_rounds), np.empty(num_rounds)
    gained, bound = 0.0, 0.0
    for _ in range(50):
        for t in range(num_rounds):
            total = others[t] + now[t]
            price[t] = payment * (others[t] / total) / total if total > 0 else 0.0
            curvature[t] = 2 * beta
        best_deviation(price, curvature, theta, alpha, initial, trim, trial, collected)
        bound = _gain(price, beta, alpha, now, collected_now, trial, collected)
        if bound <= 1e-12 * turnover:
            break
        for t in range(num_rounds):
            total = others[t] + now[t]
            bend = 2 * price[t] / total if total > 0 else 0.0
            price[t] += bend * now[t]
            curvature[t] += bend
        best_deviation(price, curvature, theta, alpha, initial, trim, trial, collected)
        step, rise = 1.0, -1.0
        while rise <= 0 and step > 1e-3:  # the gain rises at first towards the optimum of the expansion
            aim = now + step * (trial - now)
            collected_aim = collected_now + step * (collected - collected_now)
            rise = _true_gain(payment, beta, alpha, others, now, collected_now, aim, collected_aim)
            step /= 2
        if rise <= 0:
            break
        gained += rise
        now, collected_now = aim, collected_aim
    better[:] = now
    return gained + bound


@numba.njit(cache=True, nogil=True)
def _true_gain(
    payment: float,
    beta: float,
    alpha: float,
    others: Array,
    held: Array,
    gathered: Array,
    better: Array,
    collected: Array,
) -> float:
    """What `better` earns above `held` when the total moves with it."""
    gain = 0.0
    for t in range(held.size):
        before, after = others[t] + held[t], others[t] + better[t]
        if before > 0 and after > 0:
            gain += payment * (others[t] / before) * ((better[t] - held[t]) / after)
        gain -= beta * (better[t] - held[t]) * (better[t] + held[t])
        gain -= alpha * (collected[t] - gathered[t]) * (collected[t] + gathered[t])
    return gain
