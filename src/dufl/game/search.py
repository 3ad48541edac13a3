"""The smallest cost over a rectangle of payments and conservation rates, by direct search.

A cost may have several valleys, so a coarse grid finds them and a quasi-Newton search follows the
deepest ones down. Both work on the unit square, in which payments are spread evenly by magnitude and
conservation rates more densely towards 1, where a small change keeps data many rounds longer.

A range of payments may be far too wide. An offer with a known cost bounds the payments that are worth
considering, since paying R in every round costs at least γ·T·R. From there the search goes down by six
magnitudes at a time as long as smaller payments can reduce the cost.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dufl.game.dynamics import Array
from dufl.game.threads import one_thread
from dufl.inputs import Interval

Cost = Callable[[float, float, float], float]  # (payment, conservation_rate, tolerance) → cost
Progress = Callable[[float], None]  # called with the completed share of the work

MAGNITUDES = 1e-6  # the smallest payment on a square, relative to the largest
AMPLE = 10.0  # times the largest payment that can be the best: a margin for the grid
GRID = (10, 8)  # payments, conservation rates
VALLEYS = 3
NEGLIGIBLE = 1e-5  # the relative saving that does not justify another search
JUMPS = (37, 9)  # payments and rates on the first grid for a cost that jumps
CLOSER = 3  # grids around its best points, each three times as fine
INFINITE = 1e12  # in place of an infinite cost, relative to a finite one: differences stay numbers
DEEPER = 3  # searches among payments below the smallest on the square
SCAN = 11  # conservation rates at the best payment, up to one cell of the grid away
COARSE, SCANNED, FINE = 1e-3, 1e-6, 1e-9  # relative tolerance of a cost on the grid, in the scan, in a valley


@dataclass(frozen=True)
class Choice:
    """A pair (R, θ) and its cost."""

    payment: float
    conservation_rate: float
    cost: float
    evaluations: int


@dataclass(frozen=True)
class Square:
    """The unit square laid over the two ranges."""

    payment_range: Interval
    conservation_range: Interval

    @property
    def floor(self) -> float:
        """The smallest payment on the square: six magnitudes are enough for one search."""
        return max(self.payment_range[0], MAGNITUDES * self.payment_range[1])

    def below(self, payment: float) -> "Square":
        """The part of the square up to a payment; its lower edge if there is nothing below."""
        low, high = self.payment_range
        return Square((low, max(low, min(high, payment))), self.conservation_range)

    def point(self, u: float, v: float) -> tuple[float, float]:
        """(payment, conservation_rate) at (u, v) in [0, 1]²."""
        low, high = self.payment_range
        payment = high * (self.floor / high) ** (1 - u) if high > 0 else 0.0
        least, most = self.conservation_range
        away = (1 - least) ** 0.5 + v * ((1 - most) ** 0.5 - (1 - least) ** 0.5)
        rate = min(max(1 - away**2, least), most)
        return min(max(payment, low), high), rate

    def around(self, payment: float) -> "Square":
        """The part of the square within three magnitudes of a payment, either way."""
        low, high = self.payment_range
        return Square((max(low, payment / 1e3), min(high, payment * 1e3)), self.conservation_range)

    def coordinates(self, payment: float, rate: float) -> tuple[float, float]:
        """(u, v) of an offer on the square: the inverse of `point`."""
        high, (least, most) = self.payment_range[1], self.conservation_range
        u = 1 - np.log(payment / high) / np.log(self.floor / high) if 0 < self.floor < high else 0.0
        width = (1 - most) ** 0.5 - (1 - least) ** 0.5
        v = ((1 - rate) ** 0.5 - (1 - least) ** 0.5) / width if width else 0.0
        return min(max(float(u), 0.0), 1.0), min(max(float(v), 0.0), 1.0)

    def axes(self) -> tuple[Array, Array]:
        """Grid coordinates; a range of one value needs one point."""
        (low, high), (least, most) = self.payment_range, self.conservation_range
        return (
            np.linspace(0, 1, GRID[0]) if high > low else np.zeros(1),
            np.linspace(0, 1, GRID[1]) if most > least else np.zeros(1),
        )


def minimize(
    cost: Cost, square: Square, known: Choice, unit_cost: float, progress: Progress = lambda _: None
) -> Choice:
    """The best (R, θ) found on the grid and in its deepest valleys, and from a known offer.

    Args:
        cost: the function to minimize; at least `unit_cost`·R everywhere.
        square: the domain.
        known: an offer that is likely to be good, with its cost.
        unit_cost: γ·T, the cost of a unit of payment in every round.
        progress: called with the share of the work that is done.
    """
    near = square.around(known.payment)
    square = square.below(AMPLE * known.cost / unit_cost if unit_cost > 0 else np.inf)
    best = _minimize(cost, square, progress)
    for _ in range(DEEPER):
        low = square.payment_range[0]
        saved = unit_cost * square.floor  # at most, by paying less than the floor
        if best.payment > square.floor * 1.001 or square.floor <= low or saved <= NEGLIGIBLE * best.cost:
            break
        square = Square((low, square.floor), square.conservation_range)
        best = min(best, _minimize(cost, square, progress), key=lambda choice: choice.cost)
    if known.cost < best.cost * (1 - FINE):
        best = min(known, _rescanned(cost, near, _descend(cost, near, known)), key=lambda choice: choice.cost)
    return best


def _rescanned(cost: Cost, square: Square, best: Choice) -> Choice:
    """The best after a scan of nearby conservation rates: one grid cell may contain two valleys."""
    least, most = square.conservation_range
    tiny = best.payment <= square.floor and square.floor > square.payment_range[0]
    if least == most or best.payment == 0 or tiny:
        return best
    _, here = square.coordinates(best.payment, best.conservation_rate)
    cells = np.linspace(-1, 1, SCAN) / (GRID[1] - 1)
    scanned = [square.point(1.0, v)[1] for v in np.unique(np.clip(here + cells, 0, 1))]
    costs = [cost(best.payment, rate, SCANNED) for rate in scanned]
    j = int(np.argmin(costs))
    if costs[j] >= best.cost * (1 - 10 * SCANNED):
        return best
    start = Choice(best.payment, scanned[j], costs[j], best.evaluations + len(scanned))
    return min(best, _descend(cost, square, start), key=lambda choice: choice.cost)


def _minimize(cost: Cost, square: Square, progress: Progress) -> Choice:
    """The best on one square."""
    us, vs = square.axes()
    costs = np.full((us.size, vs.size), np.inf)
    for done, (i, j) in enumerate(_snake(us.size, vs.size)):
        costs[i, j] = cost(*square.point(us[i], vs[j]), COARSE)
        progress(0.6 * (done + 1) / costs.size)
    best = Choice(*square.point(0.0, 0.0), np.inf, costs.size)
    valleys = _valleys(costs)
    for n, (i, j) in enumerate(valleys):
        start = Choice(*square.point(us[i], vs[j]), costs[i, j], best.evaluations)
        lowest = _rescanned(cost, square, _descend(cost, square, start, (us[i], vs[j])))
        best = replace(min(best, lowest, key=lambda choice: choice.cost), evaluations=lowest.evaluations)
        progress(0.6 + 0.4 * (n + 1) / len(valleys))
    return best


def _descend(cost: Cost, square: Square, start: Choice, at: tuple[float, float] | None = None) -> Choice:
    """The minimum that a quasi-Newton search reaches from a point of the square."""
    from scipy.optimize import minimize

    depth = start.cost
    if not 0 < depth < np.inf:
        return start
    with one_thread():
        result = minimize(
            lambda p: min(cost(*square.point(p[0], p[1]), FINE) / depth, INFINITE),
            np.array(at or square.coordinates(start.payment, start.conservation_rate)),
            jac="2-point",
            method="L-BFGS-B",
            bounds=[(0, 1), (0, 1)],
            options={"finite_diff_rel_step": 1e-5, "ftol": 1e-12, "gtol": 1e-7},
        )
    reached = square.point(float(result.x[0]), float(result.x[1]))
    return Choice(*reached, float(result.fun) * depth, start.evaluations + result.nfev)


def scanned(cost: Cost, square: Square, known: Choice, progress: Progress = lambda _: None) -> Choice:
    """The best offer of a cost that jumps: dense grids, ever closer around the best points, then polished.

    Where a cost jumps, a gradient is no guide, and a valley may be narrower than a cell of the first grid.
    """
    us, vs = (
        np.linspace(0, 1, number) if axis.size > 1 else axis
        for number, axis in zip(JUMPS, square.axes(), strict=True)
    )
    points = [(float(us[i]), float(vs[j])) for i, j in _snake(us.size, vs.size)]
    points.append(square.coordinates(known.payment, known.conservation_rate))
    width, costs = 1 / (np.array(JUMPS) - 1), dict[tuple[float, float], float]()
    for level in range(1, CLOSER + 2):
        for done, point in enumerate(points):
            if point not in costs:
                costs[point] = cost(*square.point(*point), SCANNED)
            progress((level - 1 + (done + 1) / len(points)) / (CLOSER + 2))
        lowest = sorted(costs, key=lambda point: costs[point])[:VALLEYS]
        width = width / 3
        near = np.array([np.add(point, width * step) for point in lowest for step in _AROUND])
        points = [(float(u), float(v)) for u, v in np.unique(np.clip(near, 0, 1), axis=0)]
    offer = square.point(*lowest[0])
    best = min(known, Choice(*offer, cost(*offer, FINE), len(costs)), key=lambda choice: choice.cost)
    return polished(cost, square, best) if 0 < best.cost < np.inf and best.payment > 0 else best


_AROUND = np.array([[i, j] for i in range(-2, 3) for j in range(-2, 3)])


def polished(cost: Cost, square: Square, best: Choice, evaluations: int = 120) -> Choice:
    """The minimum near a choice for a cost with kinks, at which a gradient is no guide (Nelder-Mead)."""
    from scipy.optimize import minimize

    def at(point: Array) -> tuple[float, float]:
        u, v = np.clip(point, 0.0, 1.0)
        return square.point(float(u), float(v))

    start = np.array(square.coordinates(best.payment, best.conservation_rate))
    simplex = start + np.where(start < 0.5, 1, -1) * np.array([[0, 0], [0.01, 0], [0, 0.01]])
    options = {"initial_simplex": simplex, "maxfev": evaluations, "xatol": 1e-6, "fatol": 0.0}
    found = minimize(lambda point: cost(*at(point), FINE), start, method="Nelder-Mead", options=options)
    if not found.fun < best.cost:
        return best
    return Choice(*at(found.x), float(found.fun), best.evaluations + found.nfev)


def _snake(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """All cells of a grid, each a neighbour of the previous one, so that solutions can be reused."""
    for i in range(rows):
        there = range(columns) if i % 2 == 0 else range(columns - 1, -1, -1)
        yield from ((i, j) for j in there)


def _valleys(costs: Array) -> list[tuple[int, int]]:
    """The cells whose cost is not above any neighbour's, lowest first."""
    walled = np.pad(costs, 1, constant_values=np.inf)
    around = np.lib.stride_tricks.sliding_window_view(walled, (3, 3)).min(axis=(2, 3))
    low = [(float(costs[i, j]), int(i), int(j)) for i, j in np.argwhere(costs <= around)]
    return [(i, j) for depth, i, j in sorted(low)[:VALLEYS] if 0 < depth < np.inf]
