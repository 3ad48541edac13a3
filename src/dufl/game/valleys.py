"""The lowest points of many functions of one variable at once, which are evaluated on arrays."""

from collections.abc import Callable

import numpy as np

from dufl.game.dynamics import Array

VALLEYS = 5
FINER = 21  # points between the neighbours of the best point
ZOOMS = 8  # each makes the grid ten times finer
GOLDEN = (5**0.5 - 1) / 2  # the share of an interval that is left after a step of the golden section
SECTIONS = 40  # steps of it: 4e-9 of the first interval is left


def around_valleys(points: Array, values: Array) -> tuple[Array, Array]:
    """The neighbours of the lowest local minima."""
    walled = np.pad(values, 1, constant_values=np.inf)
    lowest = np.flatnonzero((values <= walled[:-2]) & (values <= walled[2:]))
    lowest = lowest[np.argsort(values[lowest], kind="stable")[:VALLEYS]]
    return points[np.maximum(lowest - 1, 0)], points[np.minimum(lowest + 1, points.size - 1)]


def lowest(cost: Callable[[Array], Array], left: Array, right: Array, first: int) -> tuple[Array, Array]:
    """The x with the least cost in every row [left, right]: a grid, then finer ones around its best point."""
    rows = np.arange(left.size)
    best, least = left, np.full(left.shape, np.inf)
    for zoom in range(ZOOMS + 1):
        x = np.linspace(left, right, first if zoom == 0 else FINER, axis=1)
        values = cost(x)
        at = values.argmin(axis=1)
        better = values[rows, at] < least
        best, least = np.where(better, x[rows, at], best), np.where(better, values[rows, at], least)
        left, right = x[rows, np.maximum(at - 1, 0)], x[rows, np.minimum(at + 1, x.shape[1] - 1)]
    return best, least


def sectioned(cost: Callable[[Array], Array], left: Array, right: Array, first: int) -> tuple[Array, Array]:
    """The same with far fewer points: a grid, then the golden section around its best point."""
    rows = np.arange(left.size)
    x = np.linspace(left, right, first, axis=1)
    values = cost(x)
    at = values.argmin(axis=1)
    best, least = x[rows, at], values[rows, at]
    left, right = x[rows, np.maximum(at - 1, 0)], x[rows, np.minimum(at + 1, first - 1)]
    inner, outer = right - GOLDEN * (right - left), left + GOLDEN * (right - left)
    low, high = cost(np.stack([inner, outer], axis=1)).T
    for _ in range(SECTIONS):
        down = low <= high
        left, right = np.where(down, left, inner), np.where(down, outer, right)
        new = np.where(down, right - GOLDEN * (right - left), left + GOLDEN * (right - left))
        value = cost(new[:, None])[:, 0]
        inner, outer = np.where(down, new, outer), np.where(down, inner, new)
        low, high = np.where(down, value, high), np.where(down, low, value)
    points, costs = np.stack([best, inner, outer]), np.stack([least, low, high])
    return points[costs.argmin(axis=0), rows], costs.min(axis=0)
