"""The distance between the features of two periods, and how much of it is noise.

The distance is the Kolmogorov-Smirnov statistic, averaged over the features:

    d(A, B) = mean over features of  max over z of |F_A(z) − F_B(z)| ,

with F the share of the samples that are at most z. It is 0 for equal distributions and 1 for separate ones.
It only depends on the order of the values. So features need not be standardized, and an outlier counts as one
sample, however far out it is. A feature that is constant everywhere does not count. Changes in how features
depend on each other, or on the label, are not seen if every feature alone keeps its distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.signedinteger]

SHUFFLED = 100  # distances of shuffled periods, at least
QUANTILE = 0.95


@dataclass(frozen=True, eq=False)
class Distances:
    """The distances of periods.

    Attributes:
        from_first: of every period from the first; 0 for the first.
        from_previous: of every period from the one before it; 0 for the first.
        noise: the level below which 95 % of these distances are if the samples are shuffled over all periods.
    """

    from_first: Floats
    from_previous: Floats
    noise: float


def measure_distances(parts: Sequence[Matrix], generator: np.random.Generator) -> Distances:
    """The distances of periods with equally many samples.

    Args:
        parts: the features of every period, each of shape (samples, features).
        generator: of the shuffled order.
    """
    pool = np.concatenate(parts).reshape(len(parts), len(parts[0]), -1)
    flat = pool.reshape(-1, pool.shape[2])
    varying = np.flatnonzero(flat.min(axis=0) != flat.max(axis=0))
    shuffles = -(-SHUFFLED // (2 * len(parts) - 3))
    orders = np.array([generator.permutation(len(flat)) for _ in range(shuffles)])
    sums, shuffled = np.zeros((2, len(parts))), np.zeros((shuffles, 2, len(parts)))
    for feature in varying:
        ranks = np.unique(flat[:, feature], return_inverse=True)[1].astype(np.int32)
        sums += _statistics(ranks.reshape(1, len(parts), -1))[0]
        shuffled += _statistics(ranks[orders].reshape(shuffles, len(parts), -1))
    number = max(len(varying), 1)
    null = np.concatenate([shuffled[:, 0, 1:].ravel(), shuffled[:, 1, 2:].ravel()]) / number
    return Distances(sums[0] / number, sums[1] / number, float(np.quantile(null, QUANTILE)))


def kolmogorov_smirnov(first: Ranks, second: Ranks) -> Floats:
    """The largest difference between the shares of two samples that are at most some value.

    Args:
        first: the values of a sample along the last axis: integers, because only their order counts.
        second: those of the other sample.

    >>> one = np.array([1, 2, 3, 4])
    >>> [float(kolmogorov_smirnov(one, one + more)) for more in (0, 1, 9)]
    [0.0, 0.25, 1.0]
    """
    m, n = first.shape[-1], second.shape[-1]
    keys = np.concatenate([2 * first, 2 * second + 1], axis=-1)  # a key is odd if it is of the second
    keys.sort(axis=-1)
    difference = np.abs(np.cumsum(np.array([n, -m], keys.dtype)[keys & 1], axis=-1))  # times m·n
    keys >>= 1
    difference[..., :-1] *= keys[..., :-1] != keys[..., 1:]  # equal values count together, at the last one
    return np.asarray(difference.max(axis=-1) / (m * n))


def _statistics(ranks: Ranks) -> Floats:
    """The distances of one feature from the first period and from the previous one.

    `ranks` is of shape (orders, periods, samples), the result of shape (orders, 2, periods).
    """
    result = np.zeros((len(ranks), 2, ranks.shape[1]))
    for t in range(1, ranks.shape[1]):
        now = ranks[:, t]
        result[:, 0, t] = kolmogorov_smirnov(ranks[:, 0], now)
        result[:, 1, t] = result[:, 0, 1] if t == 1 else kolmogorov_smirnov(ranks[:, t - 1], now)
    return result
