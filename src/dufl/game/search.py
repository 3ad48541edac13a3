"""The smallest cost over a rectangle of payments and conservation rates, by direct search.

A cost may have several valleys, so a coarse grid finds them and a quasi-Newton search follows the
deepest ones down. Both work on the unit square, in which payments are spread evenly by magnitude and
conservation rates more densely towards 1, where a small change keeps data many rounds longer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dufl.game.dynamics import Array
from dufl.inputs import Interval

Cost = Callable[[float, float, float], float]  # (payment, conservation_rate, tolerance) → cost
Progress = Callable[[float], None]  # told the share of the work that is done

MAGNITUDES = 1e-6  # the smallest payment looked at, relative to the largest
GRID = (10, 8)  # payments, conservation rates
VALLEYS = 3
DEEPER = 3  # searches among payments below the smallest on the square
COARSE, FINE = 1e-3, 1e-9  # relative tolerance of a cost on the grid, and in a valley


@dataclass(frozen=True)
class Choice:
    """A pair (R, θ) and what it costs."""

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

    def point(self, u: float, v: float) -> tuple[float, float]:
        """(payment, conservation_rate) at (u, v) in [0, 1]²."""
        low, high = self.payment_range
        payment = high * (self.floor / high) ** (1 - u) if high > 0 else 0.0
        least, most = self.conservation_range
        away = (1 - least) ** 0.5 + v * ((1 - most) ** 0.5 - (1 - least) ** 0.5)
        rate = min(max(1 - away**2, least), most)
        return min(max(payment, low), high), rate

    def axes(self) -> tuple[Array, Array]:
        """Grid coordinates; a range of one value needs one point."""
        (low, high), (least, most) = self.payment_range, self.conservation_range
        return (
            np.linspace(0, 1, GRID[0]) if high > low else np.zeros(1),
            np.linspace(0, 1, GRID[1]) if most > least else np.zeros(1),
        )


def minimise(cost: Cost, square: Square, progress: Progress = lambda _: None) -> Choice:
    """The best (R, θ) found on the grid and in its deepest valleys.

    If that is the smallest payment on the square, and not the corner of no update, the search goes on
    among smaller ones: a range may be far too wide.
    """
    best = _minimise(cost, square, progress)
    for _ in range(DEEPER):
        low = square.payment_range[0]
        cornered = best.conservation_rate == square.conservation_range[1]
        if best.payment > square.floor * 1.001 or square.floor <= low or cornered:
            break
        square = Square((low, square.floor), square.conservation_range)
        best = min(best, _minimise(cost, square, progress), key=lambda choice: choice.cost)
    return best


def _minimise(cost: Cost, square: Square, progress: Progress) -> Choice:
    from scipy.optimize import minimize

    us, vs = square.axes()
    costs = np.full((us.size, vs.size), np.inf)
    for done, (i, j) in enumerate(_snake(us.size, vs.size)):
        costs[i, j] = cost(*square.point(us[i], vs[j]), COARSE)
        progress(0.6 * (done + 1) / costs.size)
    evaluations, best = costs.size, (np.inf, 0.0, 0.0)
    valleys = _valleys(costs)
    for n, (i, j) in enumerate(valleys):
        depth = costs[i, j]
        found = minimize(
            lambda p, depth=depth: cost(*square.point(p[0], p[1]), FINE) / depth,
            np.array([us[i], vs[j]]),
            jac="2-point",
            method="L-BFGS-B",
            bounds=[(0, 1), (0, 1)],
            options={"finite_diff_rel_step": 1e-5, "ftol": 1e-12, "gtol": 1e-7},
        )
        evaluations += found.nfev
        best = min(best, (float(found.fun) * depth, float(found.x[0]), float(found.x[1])))
        progress(0.6 + 0.4 * (n + 1) / len(valleys))
    return Choice(*square.point(best[1], best[2]), best[0], evaluations)


def _snake(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Every cell of a grid, each a neighbour of the one before: a good start for what follows."""
    for i in range(rows):
        there = range(columns) if i % 2 == 0 else range(columns - 1, -1, -1)
        yield from ((i, j) for j in there)


def _valleys(costs: Array) -> list[tuple[int, int]]:
    """The cells that no neighbour undercuts, deepest first."""
    walled = np.pad(costs, 1, constant_values=np.inf)
    around = np.lib.stride_tricks.sliding_window_view(walled, (3, 3)).min(axis=(2, 3))
    low = [(float(costs[i, j]), int(i), int(j)) for i, j in np.argwhere(costs <= around)]
    return [(i, j) for depth, i, j in sorted(low)[:VALLEYS] if 0 < depth < np.inf]
