"""Small charts of block characters for a terminal."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

_BLOCKS = " ▁▂▃▄▅▆▇█"


def chart(values: npt.ArrayLike, width: int = 60, height: int = 4) -> list[str]:
    """A filled line chart, `height` lines of at most `width` characters, from 0 to the largest value.

    >>> chart([0, 1, 2, 3, 4], width=5, height=1)
    [' ▂▄▆█']
    """
    series = np.asarray(values, dtype=float)
    columns = min(width, series.size)
    edges = np.linspace(0, series.size, columns + 1).astype(int)
    means = np.array([series[a:b].mean() for a, b in pairwise(edges)])
    top = means.max()
    level = np.zeros(columns) if top <= 0 else np.rint(means / top * height * 8)
    rows = []
    for row in range(height - 1, -1, -1):
        filled = np.clip(level - 8 * row, 0, 8).astype(int)
        rows.append("".join(_BLOCKS[n] for n in filled))
    return rows
