"""Discard the oldest samples first: a window over the stream.

G. Widmer, M. Kubat, *Learning in the Presence of Concept Drift and Hidden Contexts* (Machine Learning 23,
1996), learn from a window over the latest examples and forget the others.

The buffer of n samples holds the last n that were collected. If the same number f joins in every round and n
is a multiple of f, all ages from 1 to n/f are equally frequent, and the mean age is (n/f + 1)/2. Uniform
discards have the mean age n/f there, and no rule has a lower one.
"""

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Indices


def oldest(born: Indices, count: int, _: np.random.Generator) -> npt.ArrayLike:
    """The positions of the `count` oldest samples; of equal birth, of those that joined first."""
    return np.argsort(born, kind="stable")[:count]
