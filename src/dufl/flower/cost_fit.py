"""The costs for which a client's volumes are best responses.

The search has two steps. First the paper's clients: a formula in two unknowns, α_k and β_k, within wide
bounds. Only if no such costs fit, five unknowns: also the prices a_k and b_k per sample, and the capacity
C_k. More unknowns fit more, so these are kept close. A capacity that matters is where volumes are largest. No
price can be higher than what a sample earns, or nothing would be collected at all. And α_k and β_k must be
within a factor of 100 of the middle of their bounds: without it, a client with hardly any costs and a large
capacity could commit to any number of samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dufl.flower.messages import are_volumes
from dufl.game.client import best_response
from dufl.game.dynamics import Array
from dufl.game.negotiation import Announcement

RELATIVE = 1e-5  # of the largest volume: numerical errors
GRID = 25  # costs in each direction from which a fit may start
COARSE_GRID = 9  # the same, if there are prices too
STARTS = 4
MORE_STARTS = 8  # the same, if there are prices too
PRICES = (
    0.0,
    0.03,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.95,
)  # where a fit may start: parts of the highest
SOME = 5  # volumes to fit before all are: those of one query
NARROW = 100.0  # the factor of the middle of the bounds within which costs must be, if there are other costs
EXACT = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}

Bounds = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Fit:
    """The costs for which volumes are nearest to best responses.

    Attributes:
        held: the number of samples before the first round.
        collection_cost: α_k.
        training_cost: β_k.
        misfit: the largest difference from the best response, in samples, beyond numerical errors.
        collection_price: a_k.
        training_price: b_k.
        capacity: C_k.
    """

    held: float
    collection_cost: float
    training_cost: float
    misfit: float
    collection_price: float = 0.0
    training_price: float = 0.0
    capacity: float = np.inf


def fit_costs(
    announcements: Sequence[Announcement], volumes: Sequence[Array], bounds: Bounds, slack: float = 0.0
) -> Fit:
    """Find costs within bounds for which volumes are best responses.

    Args:
        announcements: one or more.
        volumes: of one client, for every announcement.
        bounds: the lowest and the highest α_k, and the lowest and the highest β_k.
        slack: the misfit at which the search ends.
    """
    found = _fit_quadratic(announcements, volumes, bounds, slack)
    if found.misfit <= slack:
        return found
    other = _fit_all(announcements, volumes, bounds, slack)
    return other if other.misfit < found.misfit else found


def is_best_response(
    announcements: Sequence[Announcement], volumes: Sequence[Array], bounds: Bounds, slack: float
) -> bool:
    """Whether there are costs within bounds for which all volumes are best responses, within `slack`."""
    if not all(are_volumes(each) for each in volumes):
        return False
    if _fit_quadratic(announcements, volumes, bounds, slack).misfit <= slack:
        return True
    # Most false answers show in a few of many: if no costs fit these, none fit all.
    some = slice(-SOME, None)
    if _fit_all(announcements[some], volumes[some], bounds, slack).misfit > slack:
        return False
    return len(volumes) <= SOME or _fit_all(announcements, volumes, bounds, slack).misfit <= slack


def _fit_quadratic(
    announcements: Sequence[Announcement], volumes: Sequence[Array], bounds: Bounds, slack: float
) -> Fit:
    """The best fit with α and β alone."""
    from scipy.optimize import least_squares

    held, scale = _held(volumes), _scale(volumes)

    def differences(logs: Array) -> Array:
        """In units of `scale`, of shape (volumes, costs)."""
        collection, training = np.exp(np.atleast_2d(logs.T).T)
        training = np.maximum(training - bounds[1][0], 0.0)  # no training costs at the lower end
        pairs = zip(announcements, volumes, strict=True)
        return np.concatenate(
            [(_response(a, held, collection, training) - v[:, None]) / scale for a, v in pairs]
        )

    low, high = np.log(bounds).T
    grid = np.array(np.meshgrid(*np.linspace(low, high, GRID).T)).reshape(2, -1)
    nearest = np.argsort((differences(grid) ** 2).sum(axis=0), kind="stable")[:STARTS]
    best: Fit | None = None
    for start in grid[:, nearest].T:
        found = least_squares(lambda logs: differences(logs)[:, 0], start, bounds=(low, high), **EXACT)
        collection, training = np.exp(found.x)
        misfit = max(np.abs(found.fun).max() * scale - RELATIVE * scale, 0.0)
        fit = Fit(held, float(collection), max(float(training) - bounds[1][0], 0.0), float(misfit))
        best = fit if best is None or fit.misfit < best.misfit else best
        if best.misfit <= slack:
            break
    assert best is not None
    return best


def _fit_all(
    announcements: Sequence[Announcement], volumes: Sequence[Array], bounds: Bounds, slack: float
) -> Fit:
    """The best fit with α, β, prices and a capacity.

    The unknowns are log α, log β, the prices as parts of the highest ones, and by how much the capacity
    differs from the largest volume. A volume at the capacity is rounded down, so none is larger than that.
    """
    from scipy.optimize import least_squares

    held, scale = _held(volumes), _scale(volumes)
    costs, top = _narrow(bounds), max(float(each.max()) for each in volumes)
    worth = max(_worth(each) for each in announcements)
    highest = np.array([worth, max(float(each.price.max()) for each in announcements)])
    room = max(2 * slack, 1e-3)

    def client(values: Array) -> tuple[Array, Array, Array, Array, Array]:
        collection, training = np.exp(values[:2])
        training = np.maximum(training - costs[1][0], 0.0)
        return collection, training, *(highest[:, None] * values[2:4]), np.maximum(top + values[4], held)

    def differences(values: Array) -> Array:
        """In units of `scale`, of shape (volumes, costs)."""
        columns = client(np.atleast_2d(values.T).T)
        pairs = zip(announcements, volumes, strict=True)
        found = [np.minimum(_response(a, held, *columns), top) - v[:, None] for a, v in pairs]
        return np.concatenate(found) / scale

    low = np.array([*np.log(costs)[:, 0], 0.0, 0.0, -room])
    high = np.array([*np.log(costs)[:, 1], 1.0, 1.0, room])
    best: Fit | None = None
    for start in _starts(differences, low, high):
        found = least_squares(lambda values: differences(values)[:, 0], start, bounds=(low, high), **EXACT)
        misfit = max(float(np.abs(found.fun).max()) * scale - RELATIVE * scale, 0.0)
        if best is None or misfit < best.misfit:
            alpha, beta, a, b, capacity = (float(each[0]) for each in client(found.x[:, None]))
            best = Fit(held, alpha, beta, misfit, a, b, capacity)
        if best.misfit <= slack:
            break
    assert best is not None
    reached = top > best.capacity - room
    return best if reached else replace(best, capacity=np.inf)


def _starts(differences: Callable[[Array], Array], low: Array, high: Array) -> list[Array]:
    """The points of a grid from which to fit: the nearest of all with the same prices, for several prices.

    Volumes that are 0 or at the capacity do not change with small changes of prices, so a fit does not leave
    prices that are far off.
    """
    costs = np.array(np.meshgrid(*np.linspace(low[:2], high[:2], COARSE_GRID).T)).reshape(2, -1)
    starts = []
    for collected in PRICES:
        for held in PRICES:
            others = np.broadcast_to([[collected], [held], [0.0]], (3, costs.shape[1]))
            grid = np.concatenate([costs, others])
            errors = (differences(grid) ** 2).sum(axis=0)
            starts.append((float(errors.min()), grid[:, np.argmin(errors)]))
    return [start for _, start in sorted(starts, key=lambda each: each[0])[:MORE_STARTS]]


def _narrow(bounds: Bounds) -> Bounds:
    """The part of the bounds that is within a factor of `NARROW` of their middle."""
    (low, high), (least, most) = (
        (max(low, np.sqrt(low * high) / NARROW), min(high, np.sqrt(low * high) * NARROW))
        for low, high in bounds
    )
    return (low, high), (least, most)


def _worth(announcement: Announcement) -> float:
    """The most that a sample can earn: Σ_s θ^s·p(t+1+s), for the best t."""
    worth = most = 0.0
    for price in announcement.price[::-1]:
        worth = float(price) + announcement.offer.conservation_rate * worth
        most = max(most, worth)
    return most


def _held(volumes: Sequence[Array]) -> float:
    return max(float(each[0]) for each in volumes)


def _scale(volumes: Sequence[Array]) -> float:
    return 1.0 + max(float(each.max()) for each in volumes)


def _response(
    announcement: Announcement,
    held: float,
    collection_cost: Array,
    training_cost: Array,
    collection_price: Array | float = 0.0,
    training_price: Array | float = 0.0,
    capacity: Array | float = np.inf,
) -> Array:
    volume, _ = best_response(
        announcement.price,
        held,
        collection_cost,
        training_cost,
        announcement.offer.conservation_rate,
        announcement.trim_start,
        capacity=capacity,
        collection_price=collection_price,
        training_price=training_price,
    )
    return volume
