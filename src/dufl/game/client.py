"""A client's exact best response to a price, and two simpler strategies for comparison.

Proposition 1. Paid p(t) for every sample it holds in round t, a client maximizes the concave

    Σ_t [ p(t)·D(t) − α·Δ(t)² − β·D(t)² ],    D(t+1) = θ·D(t) + Δ(t),  Δ(t) ≥ 0,

whose optimum is Δ(t) = [λ(t+1)]^+ / (2α), where λ(t) = p(t) − 2β·D(t) + θ·λ(t+1) is what one more
sample is worth in round t, and Δ(T−1) = 0. That formula is implicit: λ depends on later volumes.

It is solved by sweeps. For a set of blocked rounds (Δ = 0), λ(t) = b(t) − a(t)·D(t) with

    f = 2α/(2α + a')  in a free round,  1 in a blocked one;    a', b' of round t+1
    a(t) = 2β + θ²·f·a',    b(t) = p(t) + θ·f·b',    Δ(t) = (b' − a'·θ·D(t))/(2α + a') if free,

backwards for a and b, forwards for D. Start with every round free, block the rounds with a negative
Δ, and repeat. A blocked round never has to be freed again: as a linear complementarity
problem in the multipliers of Δ ≥ 0, this one has the matrix Q⁻¹ = (I − (I + (α/β)·B)⁻¹)/(2α) with B
tridiagonal and its off-diagonal −θ, so Q⁻¹ is an M-matrix, for which the multipliers only ever rise
from one such step to the next (Howard's monotone policy iteration). Hence no cycle, at most T
sweeps, and two or three in practice.

If a client may begin with less than it has, D(0) ≤ D⁰ is one more variable, whose worth is
λ(0) = b(0) − a(0)·D(0). Hence D(0) = min(D⁰, b(0)/a(0)) in every sweep, or 0 if b(0) < 0. Blocking a round
lowers b(0)/a(0), so D(0) only ever falls from one sweep to the next, and a blocked round still never has to
be freed: in that problem D(0) is a collection without a cost, whose matrix Q⁻¹ is an M-matrix too.

If a client sees its own influence on the total, its marginal price falls with its own volume,
p(t) − slope(t)·D(t): the same problem with 2β + slope(t) in place of 2β.
"""

import numba
import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.game.dynamics import Array, volume
from dufl.game.population import Clients, Values
from dufl.game.threads import in_order

LANES = 16  # clients per block: the innermost loops run over them, as vector instructions
NEGLIGIBLE = 1e-7  # the relative sensitivity below which more distant rounds are neglected
NOTHING = np.empty((0, 0))


def best_response(
    price: npt.ArrayLike,
    initial_volume: Values,
    collection_cost: Values,
    training_cost: Values,
    conservation_rate: float,
    trim_start: bool = False,
) -> tuple[Array, Array]:
    """Each client's optimal volume D_k(t) and collection Δ_k(t) at a given price per sample.

    Args:
        price: p(t) = R/φ(t), one per round.
        initial_volume: D_k(0), one per client or one for all; likewise the costs.
        collection_cost: α_k > 0.
        training_cost: β_k >= 0.
        conservation_rate: θ in [0, 1].
        trim_start: whether a client may begin with less than `initial_volume`.

    Returns:
        `volume` and `collection`, each of shape (rounds, clients).

    >>> volume, collection = best_response([0.0, 1.0], 0.0, 0.5, 0.5, conservation_rate=1.0)
    >>> volume.ravel().tolist(), collection.ravel().tolist()
    ([0.0, 0.5], [0.5, 0.0])
    >>> best_response([1.0, 1.0], 9.0, 0.5, 0.5, conservation_rate=0.0, trim_start=True)[0].ravel().tolist()
    [1.0, 0.5]
    """
    prices = np.ascontiguousarray(price, dtype=np.float64)
    if prices.ndim != 1 or prices.size < 2 or not np.isfinite(prices).all():
        raise InputError.of("price", "two or more finite numbers, one per round", f"{price!r:.80}")
    if not 0 <= conservation_rate <= 1:
        raise InputError.of("conservation_rate", "in [0, 1]", conservation_rate)
    clients = Clients(initial_volume, collection_cost, training_cost, allow_empty=True)
    return trajectories(clients, prices, np.zeros_like(prices), conservation_rate, trim_start)


def trajectories(
    clients: Clients, price: Array, slope: Array, conservation_rate: float, trim_start: bool = False
) -> tuple[Array, Array]:
    """`volume` and `collection` of every client, each as one array in memory."""
    shape = (price.size, clients.size)
    held, collected = np.empty(shape), np.empty(shape)

    def answer(part: slice) -> None:
        _answer(clients, part, price, slope, conservation_rate, trim_start, held, collected)

    in_order(answer, clients.size)
    return held, collected


def total_response(
    clients: Clients,
    price: Array,
    slope: Array,
    conservation_rate: float,
    sensitivity: Array = NOTHING,
    trim_start: bool = False,
) -> Array:
    """Σ_k D_k(t), with every client weighted by its multiplicity; one best-response pass.

    Args:
        clients: the clients that respond.
        price: p(t).
        slope: by how much a client's own volume lowers its price.
        conservation_rate: θ.
        sensitivity: if of shape (rounds, rounds), receives ∂Σ_k D_k(t)/∂log φ(s), for a price
            that is proportional to 1/φ and a slope proportional to 1/φ².
        trim_start: whether a client may begin with less than its initial volume.
    """

    def answer(part: slice) -> tuple[Array, Array]:
        change = np.zeros_like(sensitivity)
        held = _answer(clients, part, price, slope, conservation_rate, trim_start, sensitivity=change)
        return held, change

    total = np.zeros_like(price)
    for held, change in in_order(answer, clients.size):
        total += held
        sensitivity += change
    return total


def zero_strategy(initial_volume: Array, num_rounds: int, conservation_rate: float) -> tuple[Array, Array]:
    """Collect nothing: `volume` and `collection`."""
    nothing = np.zeros((num_rounds, initial_volume.size))
    return volume(initial_volume, nothing, conservation_rate), nothing


def random_strategy(
    initial_volume: Array, collection: Array, conservation_rate: float, seed: int = 0
) -> tuple[Array, Array]:
    """Collect at random, with the same expected total as `collection`: `volume` and `collection`.

    In every round but the last, a client collects an independent uniform draw from [0, 2·mean].
    """
    num_rounds = len(collection)
    mean = collection.sum(axis=0) / (num_rounds - 1)
    drawn = np.random.default_rng(seed).uniform(0.0, 2.0, (num_rounds, collection.shape[1])) * mean
    drawn[-1] = 0.0
    return volume(initial_volume, drawn, conservation_rate), drawn


def _answer(
    clients: Clients,
    part: slice,
    price: Array,
    slope: Array,
    conservation_rate: float,
    trim_start: bool,
    held: Array = NOTHING,
    collected: Array = NOTHING,
    sensitivity: Array = NOTHING,
) -> Array:
    total = np.zeros_like(price)
    _respond(
        price,
        slope,
        float(conservation_rate),
        bool(trim_start),
        clients.initial_volume[part],
        clients.collection_cost[part],
        clients.training_cost[part],
        clients.multiplicity[part],
        part.start,
        total,
        held,
        collected,
        sensitivity,
    )
    return total


@numba.njit(cache=True, nogil=True)
def _respond(
    price: Array,
    slope: Array,
    theta: float,
    trim: bool,
    initial: Array,
    alpha: Array,
    beta: Array,
    weight: Array,
    first: int,
    total: Array,
    held: Array,
    collected: Array,
    sensitivity: Array,
) -> None:
    """The best responses of some clients, block by block; adds up `total` = Σ_k w_k·D_k(t).

    `held` and `collected`, if not empty, receive the trajectories from column `first` on.
    """
    num_rounds, num_clients = price.size, initial.size
    two_alpha, two_beta, share = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    owned = np.empty(LANES)
    a, b = np.empty((num_rounds, LANES)), np.empty((num_rounds, LANES))
    gain, free = np.empty((num_rounds, LANES)), np.empty((num_rounds, LANES))
    volume, summed = np.empty((num_rounds, LANES)), np.zeros((num_rounds, LANES))
    for start in range(0, num_clients, LANES):
        for lane in range(LANES):
            k = min(start + lane, num_clients - 1)  # spare lanes repeat the last client, unweighted
            two_alpha[lane], two_beta[lane], volume[0, lane] = 2 * alpha[k], 2 * beta[k], initial[k]
            owned[lane] = initial[k]
            share[lane] = weight[k] if start + lane < num_clients else 0.0
        free[:] = 1.0
        blocked = 1.0
        while blocked > 0:
            _sweep_backward(price, slope, theta, two_alpha, two_beta, free, a, b, gain)
            if trim:
                _trim(a[0], b[0], owned, volume[0])
            blocked = _sweep_forward(theta, a, b, gain, free, volume)
        for t in range(num_rounds):
            for lane in range(LANES):
                summed[t, lane] += share[lane] * volume[t, lane]
        if held.size > 0:
            for lane in range(min(LANES, num_clients - start)):
                k = first + start + lane
                held[:, k] = volume[:, lane]
                kept = theta * volume[:-1, lane]
                collected[:-1, k] = (b[1:, lane] - a[1:, lane] * kept) * gain[:-1, lane] + 0.0  # no -0
                collected[-1, k] = 0.0
        if sensitivity.size > 0:
            factor = 1.0 - free + two_alpha * gain
            green = np.zeros(LANES)
            if trim:
                _free_starts(a[0], owned, volume[0], green)
                _add_start_sensitivity(price, slope, theta, share, factor, green, volume, sensitivity)
            _add_sensitivity(price, slope, theta, share, factor, gain, volume, green, sensitivity)
    for t in range(num_rounds):
        total[t] += summed[t].sum()


@numba.njit(cache=True, nogil=True)
def _sweep_backward(
    price: Array,
    slope: Array,
    theta: float,
    two_alpha: Array,
    two_beta: Array,
    free: Array,
    a: Array,
    b: Array,
    gain: Array,
) -> None:
    """λ(t) = b(t) − a(t)·D(t) for the current free rounds."""
    last = price.size - 1
    for lane in range(LANES):
        a[last, lane] = two_beta[lane] + slope[last]
        b[last, lane] = price[last]
    for t in range(last - 1, -1, -1):
        for lane in range(LANES):
            part = free[t, lane] / (two_alpha[lane] + a[t + 1, lane])
            kept = theta * (1.0 - free[t, lane] + two_alpha[lane] * part)
            gain[t, lane] = part
            a[t, lane] = two_beta[lane] + slope[t] + theta * kept * a[t + 1, lane]
            b[t, lane] = price[t] + kept * b[t + 1, lane]


@numba.njit(cache=True, nogil=True)
def _trim(a: Array, b: Array, owned: Array, first: Array) -> None:
    """D(0), where λ(0) = b − a·D(0) is 0; all that is owned if λ(0) is not negative there."""
    for lane in range(LANES):
        if b[lane] >= a[lane] * owned[lane]:
            first[lane] = owned[lane]
        else:
            first[lane] = b[lane] / a[lane] if b[lane] > 0.0 else 0.0


@numba.njit(cache=True, nogil=True)
def _free_starts(a: Array, owned: Array, first: Array, green: Array) -> None:
    """∂D(0)/∂p(0) = 1/a where D(0) is trimmed; 0 elsewhere."""
    for lane in range(LANES):
        if 0.0 < first[lane] < owned[lane]:
            green[lane] = 1.0 / a[lane]


@numba.njit(cache=True, nogil=True)
def _sweep_forward(
    theta: float,
    a: Array,
    b: Array,
    gain: Array,
    free: Array,
    volume: Array,
) -> float:
    """Compute D, block the rounds whose Δ is negative, and return their number."""
    negative = np.zeros(LANES)
    for t in range(volume.shape[0] - 1):
        for lane in range(LANES):
            kept = theta * volume[t, lane]
            delta = (b[t + 1, lane] - a[t + 1, lane] * kept) * gain[t, lane]
            wrong = 1.0 if delta < 0.0 else 0.0
            free[t, lane] -= wrong
            negative[lane] += wrong
            volume[t + 1, lane] = kept + delta
    return float(negative.sum())


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})  # sums over lanes as vectors
def _add_sensitivity(
    price: Array,
    slope: Array,
    theta: float,
    share: Array,
    factor: Array,
    gain: Array,
    volume: Array,
    green: Array,
    sensitivity: Array,
) -> None:
    """Add Σ_k w_k·∂D_k(t)/∂log φ(s) of one block, for t and s after round 0; `green` is G(0, 0).

    With the blocked rounds held, a price higher by dp(s) moves D(t) by G(min, min)·Π θ·f between
    the two rounds, where G(t, t) = (θ·f)²·G(t−1, t−1) + 1/(2α + a'). A total higher by dlog φ
    moves the marginal price by (2·slope·D − p)·dlog φ.
    """
    num_rounds = price.size
    moved = np.empty(LANES)
    kept = theta * factor
    push = np.empty((num_rounds, LANES))
    for t in range(num_rounds):
        for lane in range(LANES):
            push[t, lane] = 2 * slope[t] * volume[t, lane] - price[t]
    for t in range(1, num_rounds):
        here = 0.0
        for lane in range(LANES):
            green[lane] = kept[t - 1, lane] ** 2 * green[lane] + gain[t - 1, lane]
            moved[lane] = share[lane] * green[lane]
            here += moved[lane] * push[t, lane]
        sensitivity[t, t] += here
        least = NEGLIGIBLE * moved.sum()
        for s in range(t + 1, num_rounds):
            there, back, left = 0.0, 0.0, 0.0
            for lane in range(LANES):
                moved[lane] *= kept[s - 1, lane]
                there += moved[lane] * push[s, lane]
                back += moved[lane] * push[t, lane]
                left += moved[lane]
            sensitivity[t, s] += there
            sensitivity[s, t] += back
            if left < least:
                break


@numba.njit(cache=True, nogil=True)
def _add_start_sensitivity(
    price: Array,
    slope: Array,
    theta: float,
    share: Array,
    factor: Array,
    green: Array,
    volume: Array,
    sensitivity: Array,
) -> None:
    """The row and the column of round 0, where some D(0) are trimmed: G(0, s) = G(0, 0)·Π θ·f."""
    moved = share * green
    least = NEGLIGIBLE * moved.sum()
    first = 2 * slope[0] * volume[0] - price[0]
    sensitivity[0, 0] += (moved * first).sum()
    for s in range(1, price.size):
        moved *= theta * factor[s - 1]
        sensitivity[0, s] += (moved * (2 * slope[s] * volume[s] - price[s])).sum()
        sensitivity[s, 0] += (moved * first).sum()
        if moved.sum() <= least:
            break
