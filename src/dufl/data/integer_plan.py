"""From the plan's real numbers to whole samples.

In round t a buffer holds n(t) = round(D(t)) samples, so it never differs from the plan by more than
half a sample. Of the n(t+1) samples of the next round, the share that the plan conserves,
θ·D(t)/D(t+1), is conserved, rounded up or down at random so that the mean age is the planned staleness
in expectation; the others are collected. Where rounding asks to keep more samples than there are, the
next rounds make up for it. With θ = 1 nothing is ever discarded, and sizes alone are rounded.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class IntegerPlan:
    """A client's plan in whole samples.

    Attributes:
        size: n(t), of shape (rounds,).
        keep: how many samples of round t are conserved for the next; of shape (rounds − 1,).
        fresh: how many are collected in round t, to join in the next.
    """

    size: Whole
    keep: Whole
    fresh: Whole

    def step(self, round: int, size: int) -> tuple[int, int]:
        """What to keep and what to collect in a round, if the buffer holds `size` samples.

        Fewer than planned, because a stream fell short, are made up for.
        """
        keep = min(int(self.keep[round]), size)
        return keep, int(self.size[round + 1]) - keep


def integer_plan(
    volume: npt.ArrayLike, conservation_rate: float, seed: int = 0, client: int = 0
) -> IntegerPlan:
    """The plan D(t) of one client in whole samples.

    Which way is rounded depends on (seed, client, round) alone.

    >>> plan = integer_plan([4.0, 3.4, 3.1], conservation_rate=0.5)
    >>> plan.size.tolist(), (plan.keep + plan.fresh).tolist()
    ([4, 3, 3], [3, 3])
    """
    planned = np.asarray(volume, dtype=np.float64)
    if not planned.max() <= 2**53:
        raise InputError.of("a planned volume", "at most 2^53 samples", f"{planned.max():g}")
    size = np.floor(planned + 0.5).astype(np.int64)
    keep = np.zeros(len(size) - 1, np.int64)
    owed = 0.0
    for t in range(len(keep)):
        target = int(size[t + 1])
        share = min(conservation_rate * planned[t] / planned[t + 1], 1.0) if planned[t + 1] > 0 else 0.0
        wanted = share * target + owed
        up = np.random.default_rng([seed, client, t + 1, 6]).random() < wanted - math.floor(wanted)
        rounded = math.floor(wanted) + int(up)
        least = int(size[t]) if conservation_rate == 1 else 0  # nothing is discarded
        keep[t] = min(max(rounded, least), int(size[t]), target)
        owed = float(max(rounded - keep[t], 0))
    return IntegerPlan(size, keep, size[1:] - keep)
