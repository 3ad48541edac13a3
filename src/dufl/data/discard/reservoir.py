"""Reservoir sampling: every sample that was ever collected is equally likely to be in the buffer.

J. S. Vitter, *Random Sampling with a Reservoir* (ACM Transactions on Mathematical Software 11, 1985),
Algorithm R, for steps in which f samples arrive at once and the size may change.

Put all N samples that were ever collected, those f of this step included, in a random order. The buffer of n
samples is to be the first n of them. The f fresh ones are at f random places; those at the first n places
join. They are as many as a hypergeometric variable with mean n·f/N. The others of the n are drawn from the
samples that were in the buffer before, at random:

    P(sample i is in the buffer) = n/N   for all i,    E[mean age] = mean age of all N samples.

A sample that was discarded cannot come back. So the law is exact in every step if the buffer does not become
larger than it was after something was discarded. In a step in which it does, from m to n > m samples, at
least n − m of the n must be fresh. If fewer would join, exactly n − m do: the nearest possible distribution
(in total variation). Fresh samples are then more likely to be in the buffer than n/N, and earlier ones less.
Samples of the same round are always equally likely, and steps without growth go on from there.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Indices


class Reservoir:
    """Keeps a uniform random subset of all samples that were ever collected."""

    among_fresh: ClassVar = True

    def __call__(
        self, born: Indices, count: int, generator: np.random.Generator, *, fresh: int, seen: int
    ) -> npt.ArrayLike:
        """The positions of `count` samples: of fresh ones that do not join, and of earlier ones."""
        held, size = len(born) - fresh, len(born) - count
        places = generator.choice(seen, fresh, replace=False)
        joining = max(int((places < size).sum()), size - held)
        rejected = held + np.argsort(places)[joining:]
        return np.concatenate([generator.permutation(held)[: count - len(rejected)], rejected])
