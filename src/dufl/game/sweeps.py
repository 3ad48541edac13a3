"""The compiled sweeps behind best responses; `client` explains the problem that they solve.

**Prices per sample.** With the volume law, the linear cost Σ_t [a·Δ(t) + b·D(t)] is linear in the volumes
alone. It therefore only lowers the price at which a client sells:

    p(t) − b − (1−θ)·a    in a round t from 1 to T−2;    p(T−1) − b − a  in the last round;
    p(0) − b + θ·a        in round 0, whose samples need not be collected,

where λ(t) − a, the worth of a sample after it was paid for, takes the place of λ(t).

**Capacity.** A client whose best response without a limit fits into its buffer is done. The others are solved
again, in blocks of their own. In a set of full rounds, D(t) = C. Then Δ(t−1) = C − θ·D(t−1), which is a free
round with a' = ∞ and b'/a' = C: a(t−1) = 2β + 2α·θ² and b(t−1) = p(t−1) + 2α·θ·C. The first full set consists
of all rounds above C. With the blocked rounds solved as without capacity, a full round is released if its
multiplier

    μ(t) = b(t) − a(t)·C − 2α·Δ(t−1)

is negative, and the rest is solved again. A released round never has to be full again, so this ends after T
steps at most, and two or three in practice. The reason: the client's cost is submodular in D (its only mixed
derivatives are −2α·θ ≤ 0), and D(t+1) ≥ θ·D(t) describes a sublattice. Hence the optimum for given volumes in
the full rounds rises with these volumes, and the derivative of its cost with respect to one of them falls in
the others (Topkis 1978). All iterates lie above the optimum, so a round that is full at the optimum has at
least the multiplier that it has there, which is not negative: it is never released.
"""

import numba
import numpy as np
import numpy.typing as npt

from dufl.game.dynamics import Array

Positions = npt.NDArray[np.int64]

LANES = 16  # clients per block: the innermost loops run over them, as vector instructions
NEGLIGIBLE = 1e-7  # the relative sensitivity below which more distant rounds are neglected


@numba.njit(cache=True, nogil=True)
def respond(
    price: Array,
    slope: Array,
    theta: float,
    trim: bool,
    limited: bool,
    columns: Array,
    first: int,
    total: Array,
    held: Array,
    collected: Array,
    sensitivity: Array,
) -> None:
    """The best responses of some clients, block by block; adds up `total` = Σ_k w_k·D_k(t).

    `columns` has one row per quantity: D_k(0), α_k, β_k, C_k, a_k, b_k and the weight w_k. `held` and
    `collected`, if not empty, receive the trajectories from column `first` on. Unless `limited`, capacities
    are not looked at.
    """
    num_clients = columns.shape[1]
    which, over = np.arange(num_clients, dtype=np.int64), np.empty(num_clients, np.int64)
    rest = _respond_blocks(
        price, slope, theta, trim, limited, False, columns, which, num_clients, first, total, held,
        collected, sensitivity, over,
    )  # fmt: skip
    if rest > 0:
        _respond_blocks(
            price, slope, theta, trim, limited, True, columns, over, rest, first, total, held,
            collected, sensitivity, which,
        )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _respond_blocks(
    price: Array,
    slope: Array,
    theta: float,
    trim: bool,
    limited: bool,
    capped: bool,
    columns: Array,
    which: Positions,
    count: int,
    first: int,
    total: Array,
    held: Array,
    collected: Array,
    sensitivity: Array,
    over: Positions,
) -> int:
    """The best responses of `count` clients, with or without capacity.

    Without it, clients that would hold more than fits are left out and written to `over`; returns how many.
    """
    num_rounds = price.size
    two_alpha, two_beta, share = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    owned, limit = np.empty(LANES), np.empty(LANES)
    paid, charge, last_charge = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    a, b = np.empty((num_rounds, LANES)), np.empty((num_rounds, LANES))
    gain, free = np.empty((num_rounds, LANES)), np.empty((num_rounds, LANES))
    volume, summed = np.empty((num_rounds, LANES)), np.zeros((num_rounds, LANES))
    full = np.zeros((num_rounds, LANES)) if capped else np.empty((0, LANES))
    left_out = 0
    for start in range(0, count, LANES):
        for lane in range(LANES):
            k = which[min(start + lane, count - 1)]  # spare lanes repeat the last client, unweighted
            initial, capacity = columns[0, k], columns[3, k]
            two_alpha[lane], two_beta[lane] = 2 * columns[1, k], 2 * columns[2, k]
            limit[lane] = capacity if trim else max(capacity, initial)  # what cannot be chosen must fit
            owned[lane] = volume[0, lane] = min(initial, limit[lane])
            paid[lane] = columns[4, k]
            charge[lane] = columns[5, k] + (1.0 - theta) * columns[4, k]
            last_charge[lane] = columns[5, k] + columns[4, k]
            share[lane] = columns[6, k] if start + lane < count else 0.0
        if capped:
            _solve_capped(
                price, slope, theta, trim, two_alpha, two_beta, owned, limit, paid, charge, last_charge,
                full, a, b, gain, free, volume,
            )  # fmt: skip
        else:
            free[:] = 1.0
            blocked = 1.0
            while blocked > 0:
                _sweep_backward(
                    price, slope, theta, two_alpha, two_beta, charge, last_charge, free, a, b, gain
                )
                if trim:
                    _trim(a[0], b[0], paid, owned, volume[0])
                blocked = _sweep_forward(theta, a, b, gain, free, volume)
            if limited:
                for lane in range(min(LANES, count - start)):
                    if volume[:, lane].max() > limit[lane]:
                        over[left_out] = which[start + lane]
                        left_out += 1
                        share[lane] = 0.0
        for t in range(num_rounds):
            for lane in range(LANES):
                summed[t, lane] += share[lane] * volume[t, lane]
        if held.size > 0:
            for lane in range(min(LANES, count - start)):
                k = first + which[start + lane]
                held[:, k] = volume[:, lane]
                kept = theta * volume[:-1, lane]
                collected[:-1, k] = (b[1:, lane] - a[1:, lane] * kept) * gain[:-1, lane] + 0.0  # no -0
                if capped:
                    for t in range(1, num_rounds):
                        if full[t, lane] > 0:
                            collected[t - 1, k] = limit[lane] - kept[t - 1]
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
    return left_out


@numba.njit(cache=True, nogil=True)
def _sweep_backward(
    price: Array,
    slope: Array,
    theta: float,
    two_alpha: Array,
    two_beta: Array,
    charge: Array,
    last_charge: Array,
    free: Array,
    a: Array,
    b: Array,
    gain: Array,
) -> None:
    """λ(t) = b(t) − a(t)·D(t) for the current free rounds, less the price of collecting a sample."""
    last = price.size - 1
    for lane in range(LANES):
        a[last, lane] = two_beta[lane] + slope[last]
        b[last, lane] = price[last] - last_charge[lane]
    for t in range(last - 1, -1, -1):
        for lane in range(LANES):
            part = free[t, lane] / (two_alpha[lane] + a[t + 1, lane])
            kept = theta * (1.0 - free[t, lane] + two_alpha[lane] * part)
            gain[t, lane] = part
            a[t, lane] = two_beta[lane] + slope[t] + theta * kept * a[t + 1, lane]
            b[t, lane] = price[t] - charge[lane] + kept * b[t + 1, lane]


@numba.njit(cache=True, nogil=True)
def _trim(a: Array, b: Array, paid: Array, owned: Array, first: Array) -> None:
    """D(0), where λ(0) = b + `paid` − a·D(0) is 0; all that is owned if λ(0) is not negative there.

    The worth in b is less the price of collecting a sample, which those of round 0 do not cost.
    """
    for lane in range(LANES):
        worth = b[lane] + paid[lane]
        if worth >= a[lane] * owned[lane]:
            first[lane] = owned[lane]
        else:
            first[lane] = worth / a[lane] if worth > 0.0 else 0.0


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


@numba.njit(cache=True, nogil=True)
def _solve_capped(
    price: Array,
    slope: Array,
    theta: float,
    trim: bool,
    two_alpha: Array,
    two_beta: Array,
    owned: Array,
    limit: Array,
    paid: Array,
    charge: Array,
    last_charge: Array,
    full: Array,
    a: Array,
    b: Array,
    gain: Array,
    free: Array,
    volume: Array,
) -> None:
    """The best responses of a block of clients with capacity: full rounds outside, blocked rounds inside."""
    num_rounds = price.size
    full[:] = 0.0
    changed, first = 1.0, True
    while changed > 0:
        free[:] = 1.0
        blocked = 1.0
        while blocked > 0:
            _sweep_backward_capped(
                price, slope, theta, two_alpha, two_beta, charge, last_charge, limit, full, free, a, b, gain
            )
            if trim:
                _trim(a[0], b[0], paid, owned, volume[0])
            blocked = _sweep_forward_capped(theta, a, b, gain, limit, full, free, volume)
        changed = 0.0
        for t in range(1, num_rounds):
            for lane in range(LANES):
                if first:
                    if volume[t, lane] > limit[lane]:
                        full[t, lane] = 1.0
                        changed += 1.0
                elif full[t, lane] > 0:
                    added = limit[lane] - theta * volume[t - 1, lane]
                    if b[t, lane] - a[t, lane] * limit[lane] < two_alpha[lane] * added:
                        full[t, lane] = 0.0
                        changed += 1.0
        first = False
    for t in range(1, num_rounds):
        for lane in range(LANES):
            volume[t, lane] = min(volume[t, lane], limit[lane])  # rounding in a released round


@numba.njit(cache=True, nogil=True)
def _sweep_backward_capped(
    price: Array,
    slope: Array,
    theta: float,
    two_alpha: Array,
    two_beta: Array,
    charge: Array,
    last_charge: Array,
    limit: Array,
    full: Array,
    free: Array,
    a: Array,
    b: Array,
    gain: Array,
) -> None:
    """The same as `_sweep_backward`, with D = C in full rounds; their own a and b are those of a free D."""
    last = price.size - 1
    for lane in range(LANES):
        a[last, lane] = two_beta[lane] + slope[last]
        b[last, lane] = price[last] - last_charge[lane]
    for t in range(last - 1, -1, -1):
        for lane in range(LANES):
            here, to_full = price[t] - charge[lane], full[t + 1, lane] > 0
            part = 0.0 if to_full else free[t, lane] / (two_alpha[lane] + a[t + 1, lane])
            kept = 0.0 if to_full else theta * (1.0 - free[t, lane] + two_alpha[lane] * part)
            aim = theta * two_alpha[lane] if to_full else 0.0
            gain[t, lane] = part
            a[t, lane] = two_beta[lane] + slope[t] + theta * kept * a[t + 1, lane] + theta * aim
            b[t, lane] = here + kept * b[t + 1, lane] + (aim * limit[lane] if to_full else 0.0)


@numba.njit(cache=True, nogil=True)
def _sweep_forward_capped(
    theta: float,
    a: Array,
    b: Array,
    gain: Array,
    limit: Array,
    full: Array,
    free: Array,
    volume: Array,
) -> float:
    """The same as `_sweep_forward`, with D = C in full rounds."""
    negative = np.zeros(LANES)
    for t in range(volume.shape[0] - 1):
        for lane in range(LANES):
            kept = theta * volume[t, lane]
            delta = (b[t + 1, lane] - a[t + 1, lane] * kept) * gain[t, lane]
            wrong = 1.0 if delta < 0.0 else 0.0
            free[t, lane] -= wrong
            negative[lane] += wrong
            volume[t + 1, lane] = limit[lane] if full[t + 1, lane] > 0 else kept + delta
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
