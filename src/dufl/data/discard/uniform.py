"""Discard at random: every sample in the buffer is equally likely to leave, whatever its age.

This is what the paper's definition of staleness assumes (Liu & Wang, ECAI 2025). If n(t) samples of mean age
S(t) are in the buffer, keep(t) of them are conserved and f(t) fresh ones join, then

    n(t+1)·E[S(t+1)] = keep(t)·(E[S(t)] + 1) + f(t).
"""

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Indices


def uniform(born: Indices, count: int, generator: np.random.Generator) -> npt.ArrayLike:
    """The positions of `count` samples, drawn without replacement."""
    return generator.permutation(len(born))[:count]
