"""What several seeds show: intervals of means, paired tests, and their correction for many comparisons.

Interval. The means of resamples of x_1 … x_n, drawn with replacement, scatter like the mean itself, but less:
their variance is (n − 1)/n of what it should be, and their tails are normal instead of Student's. The
percentile interval is therefore taken at the expanded levels

    α'/2 = Φ(−√(n/(n − 1))·t_{n−1; α/2}),

which repair both (T. Hesterberg, *What Teachers Should Know About the Bootstrap*, The American Statistician
69(4), 2015). No interval of resampled means reaches beyond the range of the values, and the range of n values
of a symmetric distribution misses its mean in a share 2^(1−n) of all cases. This is at most 5 % from n = 6
on: fewer values have no 95 % interval.

Test. Two methods with the same seed see the same samples and begin with the same weights, so their runs are
pairs with differences d_1 … d_n. If the methods do not differ, every d_i may as well have the opposite sign.
The p-value is the share of all 2^n choices of signs whose |Σ ±d_i| is at least the observed one (R. A.
Fisher, *The Design of Experiments*, 1935, section 21; M. D. Ernst, *Permutation Methods: A Basis for Exact
Inference*, Statistical Science 19(4), 2004). It is exact for any n: it needs neither normal differences, as
the t-test does, nor differences without zeros and ties, as the tables of Wilcoxon's test do. Accuracies on a
few hundred test samples have many of both. It tests the mean difference, which is what is reported. Beyond 16
pairs the signs are drawn, and the observed choice counts as one draw (B. Phipson and G. K. Smyth,
*Permutation P-values Should Never Be Zero*, 2010), so that the test stays valid.

Correction. S. Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, Scandinavian Journal of
Statistics 6(2), 1979: the probability of any false positive is at most α, however the tests depend on each
other.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
LEAST = 6  # values of an interval: 2^(1 − 6) is below 5 %, 2^(1 − 5) is not
RESAMPLES = 10_000
BAND_RESAMPLES = 2_000  # of curves, which have an interval per round
EXACT = 16  # pairs whose choices of signs are all counted
DRAWS = 99_999  # choices of signs beyond
_SEED = 95  # of resamples and signs: the same values have the same statistics
_COLUMNS = 100  # of means that are resampled at a time


def standard_deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation over seeds (n − 1 in the denominator); None for fewer than two values.

    >>> standard_deviation([0.9, 0.92]), standard_deviation([0.9])
    (0.014142135623730963, None)
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The 95 % bootstrap interval of the mean; None for fewer than `LEAST` values.

    >>> mean_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (1.6666666666666665, 5.333333333333333)
    >>> mean_interval([0.5] * 6), mean_interval([1.0, 2.0])
    ((0.5, 0.5), None)
    """
    if len(values) < LEAST:
        return None
    low, high = mean_band(np.asarray(values, float)[:, None], RESAMPLES)
    return float(low[0]), float(high[0])


def mean_band(values: Array, resamples: int = BAND_RESAMPLES) -> tuple[Array, Array]:
    """The 95 % bootstrap intervals of the means of columns, such as the rounds of runs.

    Args:
        values: of shape (runs, rounds), with at least `LEAST` runs.
        resamples: the number of resamples.

    Returns:
        The lower and the upper ends. They are NaN where a value is not finite.
    """
    runs, columns = values.shape
    counts = np.random.default_rng(_SEED).multinomial(runs, np.full(runs, 1 / runs), resamples).T / runs
    level, ends = _expanded(runs), np.full((2, columns), np.nan)
    known = np.flatnonzero(np.isfinite(values).all(axis=0))
    for start in range(0, len(known), _COLUMNS):
        part = known[start : start + _COLUMNS]
        means = np.zeros((len(part), resamples))
        for count, row in zip(counts, values[:, part], strict=True):  # not a product, whose bits may vary
            means += row[:, None] * count
        ends[:, part] = np.quantile(means, (level, 1 - level), axis=1, overwrite_input=True)
    low, high = np.clip(ends, values.min(axis=0), values.max(axis=0))  # constant columns stay constant
    return low, high


def _expanded(size: int) -> float:
    """α'/2 of the expanded percentile interval."""
    from scipy.special import ndtr, stdtrit

    quantile = stdtrit(size - 1, (1 - CONFIDENCE) / 2)
    return float(ndtr(np.sqrt(size / (size - 1)) * quantile))


def sign_flip_test(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of the hypothesis that paired differences are symmetric around zero.

    Returns:
        None for fewer than two pairs.

    >>> sign_flip_test([0.1, 0.2, 0.3, 0.1]), sign_flip_test([0.1, -0.1, 0.0]), sign_flip_test([0.1])
    (0.125, 1.0, None)
    """
    sizes = np.abs(np.asarray(differences, float))
    if len(sizes) < 2:
        return None
    least = abs(float(np.sum(differences))) - 1e-12 * float(sizes.sum())  # equal sums may differ by rounding
    if len(sizes) > EXACT:
        signs = np.random.default_rng(_SEED).integers(0, 2, (DRAWS, len(sizes)), np.int8)
        return float((1 + np.count_nonzero(_sums(sizes, signs) >= least)) / (1 + DRAWS))
    every = np.arange(2 ** (len(sizes) - 1))[:, None] >> np.arange(len(sizes)) & 1  # the last one is 0
    return float(np.mean(_sums(sizes, every) >= least))


def _sums(sizes: Array, signs: npt.NDArray[np.integer]) -> Array:
    """|Σ ±d_i| of every row of signs, summed in the order of the pairs."""
    total = np.zeros(len(signs))
    for size, column in zip(sizes, signs.T, strict=True):
        total += np.where(column == 1, -size, size)
    return np.abs(total)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Corrected p-values, for as many comparisons as have one.

    The i-th smallest of m is the largest of (m − j + 1)·p_(j) over j ≤ i, and at most 1.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[place] = largest
    return corrected
