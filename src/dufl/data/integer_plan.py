"""A plan in integers: from real volumes D(t) to numbers of samples.

In round t a buffer stores n(t) = round(D(t)) samples, so it never differs from the plan by more than half a
sample. Of the n(t+1) samples of the next round, the fraction that the plan conserves, θ·D(t)/D(t+1), is
conserved. That number is rounded up or down at random, so that the mean age equals the planned staleness in
expectation; the other samples are collected. If rounding would conserve more samples than there are, the next
rounds compensate. With θ = 1 nothing is ever discarded, and only the sizes are rounded. At the capacity of a
buffer, sizes are rounded down: 10.6 samples are 10 if 10.8 fit into the buffer, since 11 do not.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError

Integers = npt.NDArray[np.int64]
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class IntegerPlan:
    """A client's plan in numbers of samples.

    Attributes:
        size: n(t), of shape (rounds,).
        keep: the number conserved from round t to t + 1, of shape (rounds − 1,).
        fresh: the number collected in round t, which join in round t + 1; of shape (rounds − 1,).
    """

    size: Integers
    keep: Integers
    fresh: Integers

    def step(self, round: int, size: int) -> tuple[int, int]:
        """The numbers of samples to keep and to collect in a round if the buffer stores `size`.

        If it stores fewer than planned, because a stream fell short, it conserves the same fraction of what
        it has, so that its samples do not grow older than planned. The difference is collected too. The
        fraction is rounded up or down by the golden ratio, which is right on average over any few rounds.
        """
        keep, planned = int(self.keep[round]), int(self.size[round])
        if size < planned:
            keep = math.floor(keep * size / planned + (round * GOLDEN) % 1)
        keep = min(keep, size)
        return keep, int(self.size[round + 1]) - keep


def integer_plan(
    volume: npt.ArrayLike,
    conservation_rate: float,
    seed: int = 0,
    client: int = 0,
    first_round: int = 0,
    capacity: float = math.inf,
) -> IntegerPlan:
    """The plan D(t) of one client in numbers of samples, none of them above its capacity.

    The direction of rounding depends on (seed, client, round) alone; round 0 of the plan is `first_round`.

    >>> plan = integer_plan([4.0, 3.4, 3.1], conservation_rate=0.5)
    >>> plan.size.tolist(), (plan.keep + plan.fresh).tolist()
    ([4, 3, 3], [3, 3])
    """
    planned = np.asarray(volume, dtype=np.float64)
    if not planned.max() <= 2**53:
        raise InputError.of("a planned volume", "at most 2^53 samples", f"{planned.max():g}")
    size = np.minimum(np.floor(planned + 0.5), math.floor(min(capacity, 2**53))).astype(np.int64)
    keep = np.zeros(len(size) - 1, np.int64)
    owed = 0.0
    for t in range(len(keep)):
        target = int(size[t + 1])
        share = min(conservation_rate * planned[t] / planned[t + 1], 1.0) if planned[t + 1] > 0 else 0.0
        wanted = share * target + owed
        up = np.random.default_rng([seed, client, first_round + t + 1, 6]).random() < wanted - math.floor(
            wanted
        )
        rounded = math.floor(wanted) + int(up)
        least = int(size[t]) if conservation_rate == 1 else 0  # nothing is discarded
        keep[t] = min(max(rounded, least), int(size[t]), target)
        owed = float(max(rounded - keep[t], 0))
    return IntegerPlan(size, keep, size[1:] - keep)
