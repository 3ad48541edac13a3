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
    orders = [generator.permutation(len(flat)) for _ in range(-(-SHUFFLED // (2 * len(parts) - 3)))]
    sums, shuffled = np.zeros((2, len(parts))), np.zeros((len(orders), 2, len(parts)))
    for feature in varying:
        values = flat[:, feature]
        sums += _statistics(values.reshape(len(parts), -1))
        for n, order in enumerate(orders):
            shuffled[n] += _statistics(values[order].reshape(len(parts), -1))
    number = max(len(varying), 1)
    null = np.concatenate([shuffled[:, 0, 1:].ravel(), shuffled[:, 1, 2:].ravel()]) / number
    return Distances(sums[0] / number, sums[1] / number, float(np.quantile(null, QUANTILE)))


def kolmogorov_smirnov(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> float:
    """The largest difference between the shares of two sorted samples that are at most some value.

    >>> one = np.array([1, 2, 3, 4], np.float32)
    >>> kolmogorov_smirnov(one, one), kolmogorov_smirnov(one, one + 1), kolmogorov_smirnov(one, one + 9)
    (0.0, 0.25, 1.0)
    """
    # The difference is largest at a value of either sample. Equal values count together.
    values = np.concatenate([first, second])
    shares = [np.searchsorted(ordered, values, "right") / len(ordered) for ordered in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def _statistics(periods: npt.NDArray[np.float32]) -> Floats:
    """The distances of one feature from the first period and from the previous one."""
    ordered = np.sort(periods, axis=1)
    result = np.zeros((2, len(ordered)))
    for t in range(1, len(ordered)):
        result[0, t] = kolmogorov_smirnov(ordered[0], ordered[t])
        result[1, t] = result[0, 1] if t == 1 else kolmogorov_smirnov(ordered[t - 1], ordered[t])
    return result
