"""The price of a sample in the stationary state of clients with prices per sample and capacities.

In every round a client spends a·Δ + α·Δ² + b·D + β·D², with D ≤ C and Δ = (1−θ)·D. A sample is worth λ to it
with λ·(1−θ) = p − b − 2β·D and Δ = (λ − a)/(2α), so with g = α·(1−θ)² + β and h = b + (1−θ)·a

    D_k = min(C_k, [p − h_k]^+ / (2·g_k))              if it takes the price p = R/φ as given,
    D_k = min(C_k, [p − h_k]^+ / (2·g_k + p/φ))        in the Nash game, from 2g·D + h = R·(φ−D)/φ².

The shares s_k = D_k/φ = D_k·p/R rise with p in both games. There is exactly one price at which they add up to
1, and it is positive if R is. It is the root of

    log Σ_k w_k·s_k                                    in the mean field,
    log (Σ_k w_k·s_k − s_1) − log (1 − s_1)            in the Nash game, where s_1 is the largest share.

The second form avoids the cancellation in Σ s − 1 if one client holds nearly everything: 1 − s_1 is computed
as (h_1/p + q_1)/(1 + q_1) with q = 2g·φ/p, and no difference is taken. Newton's method in the logarithm finds
the root. It starts above it: a price at which one client alone (in the Nash game: two with a share of a half)
would hold everything is too high. Just above a price at which clients begin to collect, the step is that of
the shares themselves. A step that leaves the bracket, or that does not halve the error, is replaced by
bisection.

p may exceed a client's h by far less than a rounding error of p, and its volume is proportional to p − h. So
a price is represented as a base plus x, where the base is the largest h below it: p − h_k = (base − h_k) + x.
"""

import numba
import numpy as np
import numpy.typing as npt

from dufl.game.population import Clients
from dufl.game.threads import in_order

Array = npt.NDArray[np.float64]
STEPS = 300  # at most; about seven in practice
ROUNDING = 2.3e-16


def total_volumes(clients: Clients, payments: Array, conservation_rates: Array, nash: bool) -> Array:
    """φ for arrays of offers, which are broadcast against each other; θ < 1."""
    paid, rates = np.broadcast_arrays(payments, conservation_rates)
    paid, fresh = paid.ravel().astype(np.float64), 1 - rates.ravel()
    columns = _columns(clients)
    totals = np.zeros(paid.size)

    def solve(part: slice) -> None:
        _totals(paid[part], fresh[part], *columns, nash, totals[part])

    in_order(solve, paid.size)
    return totals.reshape(rates.shape)


def volumes(
    clients: Clients, payment: float, conservation_rate: float, nash: bool
) -> tuple[float, Array, Array]:
    """φ, the volumes D_k, and by how much the marginal price of each client exceeds its marginal cost."""
    held, excess = np.zeros((2, clients.size))
    total = _hold(float(payment), 1 - conservation_rate, *_columns(clients), nash, held, excess)
    return float(total), held, excess


def _columns(clients: Clients) -> tuple[Array, Array, Array, Array, Array, Array]:
    quadratic = clients.collection_cost, clients.training_cost
    linear = clients.collection_price, clients.training_price
    return *quadratic, *linear, clients.capacity, clients.multiplicity


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _totals(
    payments: Array,
    fresh: Array,
    alpha: Array,
    beta: Array,
    a: Array,
    b: Array,
    capacity: Array,
    weight: Array,
    nash: bool,
    totals: Array,
) -> None:
    g, h = np.empty_like(alpha), np.empty_like(alpha)
    for i in range(payments.size):
        if i == 0 or fresh[i] != fresh[i - 1]:
            g[:] = alpha * fresh[i] ** 2 + beta
            h[:] = b + fresh[i] * a
        if payments[i] > 0:
            base = _lowest_base(h, weight, nash)
            start = _too_high(payments[i], base, g, h, capacity, weight, nash)
            x = _root(payments[i], base, start, np.inf, g, h, capacity, weight, nash)
            totals[i] = payments[i] / (base + x)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _hold(
    payment: float,
    fresh: float,
    alpha: Array,
    beta: Array,
    a: Array,
    b: Array,
    capacity: Array,
    weight: Array,
    nash: bool,
    held: Array,
    excess: Array,
) -> float:
    """Fill in the volumes of all clients, and return their total."""
    if payment <= 0:
        return 0.0
    g, h = alpha * fresh**2 + beta, b + fresh * a
    base = _lowest_base(h, weight, nash)
    start = _too_high(payment, base, g, h, capacity, weight, nash)
    price = base + _root(payment, base, start, np.inf, g, h, capacity, weight, nash)
    base, above = _neighbours(price, h)
    while above < np.inf and _excess(payment, above, 0.0, g, h, capacity, weight, nash)[0] <= 0:
        base, above = _neighbours(above, h)
    while base > 0 and _excess(payment, base, 0.0, g, h, capacity, weight, nash)[0] > 0:
        above = base
        base = _neighbours(np.nextafter(base, 0.0), h)[0]
    start = min(max(price - base, ROUNDING * price), above - base)
    x = _root(payment, base, start, above - base, g, h, capacity, weight, nash)
    price, total = base + x, payment / (base + x)
    for k in range(h.size):
        over = (base - h[k]) + x
        own = price / total if nash else 0.0
        held[k] = min(capacity[k], max(over, 0.0) / (2 * g[k] + own))
        excess[k] = over - (2 * g[k] + own) * held[k]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _root(
    payment: float,
    base: float,
    start: float,
    high: float,
    g: Array,
    h: Array,
    capacity: Array,
    weight: Array,
    nash: bool,
) -> float:
    """The x at which the shares add up to 1 at the price base + x; between 0 and `high`."""
    low, x, before = 0.0, start, np.inf
    close = ROUNDING * (16 + np.sqrt(h.size))
    for _ in range(STEPS):
        value, slope = _excess(payment, base, x, g, h, capacity, weight, nash)
        if value > 0:
            high = x
        else:
            low = x
        if abs(value) <= max(close, 2 * ROUNDING * slope) or high * (1 - 4 * ROUNDING) <= low:
            break
        steep = value > 0 and slope > 2  # just above a price: shares are linear there
        after = x * (1 + np.expm1(-value) / slope if steep else np.exp(-value / slope))
        if not low < after < high or (low > 0 and not abs(value) < before / 2):
            after = 16 * low if high == np.inf else np.sqrt(low) * np.sqrt(high) if low > 0 else high / 1e3
        before, x = abs(value), after
    return x


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _excess(
    payment: float, base: float, x: float, g: Array, h: Array, capacity: Array, weight: Array, nash: bool
) -> tuple[float, float]:
    """The function whose root is sought, and its slope in log x."""
    price = base + x
    total = payment / price
    if nash:
        return _excess_of_nash(price, total, base, x, g, h, capacity, weight)
    held = rise = 0.0
    for k in range(h.size):
        over = (base - h[k]) + x
        if over > 0:
            wanted = over / (2 * g[k])
            if wanted < capacity[k]:
                held += weight[k] * wanted
                rise += weight[k] / (2 * g[k])
            else:
                held += weight[k] * capacity[k]
    return np.log(held / total), x / price + x * (rise / held)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _excess_of_nash(
    price: float, total: float, base: float, x: float, g: Array, h: Array, capacity: Array, weight: Array
) -> tuple[float, float]:
    largest, missing, largest_rise, others, rise = 0.0, 1.0, 0.0, 0.0, 0.0
    for k in range(h.size):
        over = ((base - h[k]) + x) / price
        if over <= 0:
            continue
        q = 2 * g[k] * (total / price)
        share, slope, rest = over / (1 + q), 0.0, 0.0
        if share * total < capacity[k]:
            slope = (h[k] / price + 2 * q * share) / (1 + q)
            rest = (h[k] / price + q) / (1 + q)
        else:
            share = slope = capacity[k] / total
            rest = 1 - share
        if share > largest:
            others += largest + (weight[k] - 1) * share
            rise += largest_rise + (weight[k] - 1) * slope
            largest, missing, largest_rise = share, rest, slope
        else:
            others += weight[k] * share
            rise += weight[k] * slope
    return np.log(others / missing), x / price * (rise / others + largest_rise / missing)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _too_high(
    payment: float, base: float, g: Array, h: Array, capacity: Array, weight: Array, nash: bool
) -> float:
    """An x not below the root: one client alone, or two halves in the Nash game, would hold everything.

    Mean field: p·(p − h)·w/(2g) = R. Nash: a share of a half, p² − 2h·p = 2g·R. Or C is the limit.
    """
    first = second = np.inf
    for k in range(h.size):
        if nash:
            over = np.hypot(h[k], np.sqrt(2 * g[k]) * np.sqrt(payment))
            enough = payment / (2 * capacity[k])
        else:
            size = np.sqrt(8 * g[k] / weight[k]) * np.sqrt(payment)
            over = size * (size / (np.hypot(h[k], size) + h[k])) / 2
            enough = payment / (weight[k] * capacity[k])
        bound = max((h[k] - base) + over, enough - base)
        if bound < first:
            first, second = bound, bound if weight[k] >= 2 else first
        elif bound < second:
            second = bound
    return second if nash and second < np.inf else first


@numba.njit(cache=True, nogil=True)
def _lowest_base(h: Array, weight: Array, nash: bool) -> float:
    """The lowest price at which a client, or a second one in the Nash game, would hold something."""
    first = second = np.inf
    for k in range(h.size):
        if h[k] < first:
            first, second = h[k], h[k] if weight[k] > 1 else first
        elif h[k] < second:
            second = h[k]
    return second if nash and second < np.inf else first


@numba.njit(cache=True, nogil=True)
def _neighbours(price: float, h: Array) -> tuple[float, float]:
    """The largest h that is not above a price, or 0, and the smallest h above it."""
    below, above = 0.0, np.inf
    for k in range(h.size):
        if h[k] <= price:
            below = max(below, h[k])
        else:
            above = min(above, h[k])
    return below, above
