"""The best deviation of a single client, by dynamic programming; the certificate uses it.

It shares no formula with the solver. Let V_t(D) be what a client can still earn from round t on with D ≤ C
samples in its buffer, and λ_t = V_t' the value of one more. With price p(t), less the price b of holding a
sample, curvature c(t), and the price a of collecting one,

    V_t(D) = p(t)·D − c(t)/2·D² + max_{Δ ≥ 0, θ·D + Δ ≤ C} [ V_{t+1}(θ·D + Δ) − a·Δ − α·Δ² ].

λ_t is a decreasing, continuous and piecewise linear function, stored as its knots. One round back, a
knot with λ > a at y is reached by collecting from x = y − (λ−a)/(2α), where the value is λ too; where λ ≤ a
nothing is collected. From the x on that reaches C, the client fills its buffer: each sample kept is one less
to collect, which is worth a + 2α·(C − x). Then x = θ·D is substituted and p(t) − c(t)·D added. There is no
iteration, no active set and no tolerance.

A client that may begin with less than it has chooses the largest D(0) ≤ min(D⁰, C) with λ_0(D(0)) ≥ 0.
A client that must begin with more than C collects nothing until what it keeps fits; its profile obeys no law.
"""

from typing import NamedTuple

import numba
import numpy as np

from dufl.game.dynamics import Array


class Client(NamedTuple):
    """D⁰, α, β, C, a and b of one client, and whether it may begin with less than D⁰."""

    initial: float
    alpha: float
    beta: float
    capacity: float
    collection_price: float
    training_price: float
    trim: bool


@numba.njit(cache=True, nogil=True)
def best_deviation(
    price: Array,
    curvature: Array,
    theta: float,
    alpha: float,
    initial: float,
    trim: bool,
    volume: Array,
    collection: Array,
    capacity: float = np.inf,
    collection_price: float = 0.0,
    training_price: float = 0.0,
) -> None:
    """The optimal `volume` and `collection` of one client, written into the given arrays."""
    num_rounds = price.size
    price = price - training_price
    floor, ceiling = _reach(price, theta, alpha, initial, trim, capacity, collection_price)
    first = np.zeros(num_rounds + 1, np.int64)  # where a round's knots begin, last round first
    knots = np.empty((4 * num_rounds + 16, 3))  # position, λ, slope to the right
    knots[0, 0] = 0.0
    knots[0, 1] = price[num_rounds - 1]
    knots[0, 2] = -curvature[num_rounds - 1]
    first[1] = 1
    for back in range(1, num_rounds):
        t = num_rounds - 1 - back
        start, stop = first[back - 1], first[back]
        most = stop + 2 * (stop - start) + 1  # a knot gives two at most, and the full buffer one
        if most > knots.shape[0]:
            more = np.empty((2 * most, 3))
            more[:stop] = knots[:stop]
            knots = more
        first[back + 1] = _one_round_back(
            knots, start, stop, price[t], curvature[t], theta, alpha, floor[t], ceiling[t],
            capacity, collection_price,
        )  # fmt: skip
    volume[0] = initial
    if trim:
        volume[0] = _begin(knots, first[num_rounds - 1], first[num_rounds], min(initial, capacity))
    for t in range(num_rounds - 1):
        back = num_rounds - 2 - t
        kept = theta * volume[t]
        reached = _collect(knots, first[back], first[back + 1], alpha, kept, capacity, collection_price)
        collection[t] = reached - kept
        volume[t + 1] = reached
    collection[num_rounds - 1] = 0.0


@numba.njit(cache=True, nogil=True)
def _reach(
    price: Array,
    theta: float,
    alpha: float,
    initial: float,
    trim: bool,
    capacity: float,
    collection_price: float,
) -> tuple[Array, Array]:
    """Bounds on the volume in every round: if nothing is collected, and if nothing but the price limited it.

    The upper bound is the buffer that fits, or what is collected if β = 0.
    """
    num_rounds = price.size
    worth = np.empty(num_rounds)
    worth[num_rounds - 1] = max(price[num_rounds - 1], 0.0)
    for t in range(num_rounds - 2, -1, -1):
        worth[t] = max(price[t], 0.0) + theta * worth[t + 1]
    floor, ceiling = np.empty(num_rounds), np.empty(num_rounds)
    floor[0] = 0.0 if trim else initial
    ceiling[0] = max(floor[0], min(initial, capacity))
    for t in range(1, num_rounds):
        floor[t] = theta * floor[t - 1]
        most = theta * ceiling[t - 1] + max(worth[t] - collection_price, 0.0) / (2 * alpha)
        ceiling[t] = max(floor[t], min(most, capacity))
    return floor, ceiling


@numba.njit(cache=True, nogil=True)
def _one_round_back(
    knots: Array,
    start: int,
    stop: int,
    price: float,
    curvature: float,
    theta: float,
    alpha: float,
    floor: float,
    ceiling: float,
    capacity: float,
    collection_price: float,
) -> int:
    """Append the knots of λ_t, computed from those of λ_{t+1} in start..stop; returns their end."""
    end = stop
    if theta == 0.0:
        _put(knots, end, floor, price - curvature * floor, -curvature)
        return end + 1
    brim = -np.inf  # λ_{t+1}(C)
    if capacity < np.inf:
        brim = knots[stop - 1, 1] + knots[stop - 1, 2] * (capacity - knots[stop - 1, 0])
    for i in range(start, stop):
        y, worth, slope = knots[i, 0], knots[i, 1], knots[i, 2]
        if worth > collection_price:
            flatter = slope * 2 * alpha / (2 * alpha - slope)
            end = _pull(
                knots, stop, end, y - (worth - collection_price) / (2 * alpha), worth, flatter,
                price, curvature, theta, floor, ceiling,
            )  # fmt: skip
            falls_to = knots[i + 1, 1] if i + 1 < stop else brim
            if falls_to < collection_price and slope < 0:  # crosses it on the way to the next knot
                end = _pull(
                    knots, stop, end, y - (worth - collection_price) / slope, collection_price, slope,
                    price, curvature, theta, floor, ceiling,
                )  # fmt: skip
        else:
            end = _pull(knots, stop, end, y, worth, slope, price, curvature, theta, floor, ceiling)
    if brim <= collection_price:
        return end
    fills = capacity - (brim - collection_price) / (2 * alpha)  # from here on the buffer is filled
    if fills <= theta * floor:  # from everywhere
        saved = collection_price + 2 * alpha * (capacity - theta * floor)
        slope_here = -theta * theta * 2 * alpha - curvature
        _put(knots, stop, floor, price - curvature * floor + theta * saved, slope_here)
        return stop + 1
    return _pull(knots, stop, end, fills, brim, -2 * alpha, price, curvature, theta, floor, ceiling)


@numba.njit(cache=True, nogil=True)
def _pull(
    knots: Array,
    begin: int,
    end: int,
    x: float,
    worth: float,
    slope: float,
    price: float,
    curvature: float,
    theta: float,
    floor: float,
    ceiling: float,
) -> int:
    """Append the knot at D = x/θ, unless no reachable volume needs it."""
    held = x / theta
    if held > ceiling and end > begin:
        return end
    slope_here = theta * theta * slope - curvature
    if held <= floor:  # only the last knot below the floor counts: move it there, however far away it is
        worth_there = worth + slope * (theta * floor - x)
        _put(knots, begin, floor, price - curvature * floor + theta * worth_there, slope_here)
        return begin + 1
    _put(knots, end, held, price - curvature * held + theta * worth, slope_here)
    return end + 1


@numba.njit(cache=True, nogil=True)
def _put(
    knots: Array,
    at: int,
    position: float,
    worth: float,
    slope: float,
) -> None:
    knots[at, 0] = position
    knots[at, 1] = worth
    knots[at, 2] = slope


@numba.njit(cache=True, nogil=True)
def _begin(
    knots: Array,
    start: int,
    stop: int,
    initial: float,
) -> float:
    """The largest D(0) up to `initial` at which one more sample is not worth less than nothing."""
    for i in range(start, stop):
        y, worth, slope = knots[i, 0], knots[i, 1], knots[i, 2]
        if worth < 0:
            return float(min(y, initial))
        end = knots[i + 1, 0] if i + 1 < stop else np.inf
        if worth + slope * (min(end, initial) - y) < 0:
            return float(min(y - worth / slope, initial))
    return initial


@numba.njit(cache=True, nogil=True)
def _collect(
    knots: Array,
    start: int,
    stop: int,
    alpha: float,
    kept: float,
    capacity: float,
    collection_price: float,
) -> float:
    """The volume y from `kept` to C at which the marginal cost of collecting equals the value of a sample."""
    reached = kept
    for i in range(start, stop):
        y, worth, slope = knots[i, 0], knots[i, 1], knots[i, 2]
        if i > start and y - max(worth - collection_price, 0.0) / (2 * alpha) > kept:
            break
        # a + 2α·(y' − kept) = λ(y') on this piece
        reached = kept + (worth + slope * (kept - y) - collection_price) / (2 * alpha - slope)
    return max(min(reached, capacity), kept)


@numba.njit(cache=True, nogil=True)
def gain_at_prices(
    price: Array,
    client: Client,
    held: Array,
    gathered: Array,
    better: Array,
    collected: Array,
) -> float:
    """What `better` earns above `held` at fixed prices; a difference of products, not of sums."""
    gain = 0.0
    for t in range(held.size):
        net = price[t] - client.training_price
        gain += (better[t] - held[t]) * (net - client.beta * (better[t] + held[t]))
        gain -= _cost_of_collecting_more(client, gathered[t], collected[t])
    return max(gain, 0.0)


@numba.njit(cache=True, nogil=True)
def _cost_of_collecting_more(client: Client, gathered: float, collected: float) -> float:
    more = collected - gathered
    return client.alpha * more * (collected + gathered) + client.collection_price * more


@numba.njit(cache=True, nogil=True)
def gain_with_influence(
    payment: float,
    theta: float,
    client: Client,
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
            curvature[t] = 2 * client.beta
        _respond(price, curvature, theta, client, trial, collected)
        bound = gain_at_prices(price, client, now, collected_now, trial, collected)
        if bound <= 1e-12 * turnover:
            break
        for t in range(num_rounds):
            total = others[t] + now[t]
            bend = 2 * price[t] / total if total > 0 else 0.0
            price[t] += bend * now[t]
            curvature[t] += bend
        _respond(price, curvature, theta, client, trial, collected)
        step, rise = 1.0, -1.0
        while rise <= 0 and step > 1e-3:  # the gain rises at first towards the optimum of the expansion
            aim = now + step * (trial - now)
            collected_aim = collected_now + step * (collected - collected_now)
            rise = _true_gain(payment, client, others, now, collected_now, aim, collected_aim)
            step /= 2
        if rise <= 0:
            break
        gained += rise
        now, collected_now = aim, collected_aim
    better[:] = now
    return gained + bound


@numba.njit(cache=True, nogil=True)
def _respond(
    price: Array,
    curvature: Array,
    theta: float,
    client: Client,
    volume: Array,
    collection: Array,
) -> None:
    best_deviation(
        price, curvature, theta, client.alpha, client.initial, client.trim, volume, collection,
        client.capacity, client.collection_price, client.training_price,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _true_gain(
    payment: float,
    client: Client,
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
        gain -= client.beta * (better[t] - held[t]) * (better[t] + held[t])
        gain -= client.training_price * (better[t] - held[t])
        gain -= _cost_of_collecting_more(client, gathered[t], collected[t])
    return gain
