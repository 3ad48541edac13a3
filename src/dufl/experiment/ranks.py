"""Ranks of methods over several problems, such as datasets, and which of them differ.

J. Demšar, *Statistical Comparisons of Classifiers over Multiple Data Sets*, JMLR 7, 2006, section 3.2.2. With
r_ij the rank of method j of k on problem i of N (1 is best; ties share the mean rank) and R_j its mean:

    χ²_F = 12N/(k(k + 1))·(Σ_j R_j² − k(k + 1)²/4)        M. Friedman, 1937
    F_F  = (N − 1)χ²_F/(N(k − 1) − χ²_F)                  R. L. Iman and J. M. Davenport, 1980
    CD   = q_α·√(k(k + 1)/(6N))                           P. B. Nemenyi, 1963

F_F has an F distribution with k − 1 and (k − 1)(N − 1) degrees of freedom if there are many problems. With
few, it does not: two problems that agree on two methods have F_F = ∞. `p` is therefore the share of all
permutations of the ranks within problems whose χ²_F is at least the observed one, counted if they are few and
drawn otherwise. Two methods differ if their mean ranks differ by at least CD; q_α is the quantile of the
studentized range, divided by √2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import numpy.typing as npt

from dufl.experiment.statistics import CONFIDENCE

Array = npt.NDArray[np.float64]
_COUNTED = 20_000  # permutations at most
_DRAWN = 19_999
_SEED = 95


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods and the tests of their differences.

    Attributes:
        problems: the names of the problems.
        methods: the names of the methods, the best mean rank first.
        mean_ranks: their mean ranks, in this order.
        chi_squared: χ²_F.
        f_statistic: F_F; infinite if all problems agree.
        f_p: the p-value of F_F by its F distribution.
        p: the p-value of χ²_F by permutations.
        critical_difference: CD, at 5 %.
        left_out: methods that do not have a score on every problem.
    """

    problems: tuple[str, ...]
    methods: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    chi_squared: float
    f_statistic: float
    f_p: float
    p: float
    critical_difference: float
    left_out: tuple[str, ...] = ()

    @property
    def groups(self) -> list[tuple[int, int]]:
        """The first and the last place of every largest group of methods that do not differ.

        >>> Ranks((), ("a", "b", "c"), (1.0, 2.0, 3.5), 0, 0, 1, 1, 1.6).groups
        [(0, 1), (1, 2)]
        """
        groups: list[tuple[int, int]] = []
        for first, rank in enumerate(self.mean_ranks):
            near = [p for p, other in enumerate(self.mean_ranks) if other - rank < self.critical_difference]
            if near[-1] > first and (not groups or near[-1] > groups[-1][1]):
                groups.append((first, near[-1]))
        return groups


def rank(scores: Array, lower_is_better: Sequence[bool]) -> Array:
    """The ranks of methods on every problem; 1 is best, ties share the mean rank.

    Args:
        scores: of shape (problems, methods).
        lower_is_better: by problem.

    >>> rank(np.array([[0.9, 0.8, 0.9], [1.0, 2.0, 3.0]]), [False, True]).tolist()
    [[1.5, 3.0, 1.5], [1.0, 2.0, 3.0]]
    """
    from scipy.stats import rankdata

    signs = np.where(lower_is_better, 1.0, -1.0)
    return np.asarray(rankdata(signs[:, None] * scores, axis=1), float)


def rank_methods(
    problems: Sequence[str], methods: Sequence[str], ranks: Array, left_out: Sequence[str] = ()
) -> Ranks:
    """Test the ranks of at least two methods on at least two problems.

    Args:
        problems: their names.
        methods: their names.
        ranks: of shape (problems, methods).
        left_out: methods without ranks.
    """
    number, k = ranks.shape
    chi_squared = _chi_squared(ranks.mean(axis=0), number)
    f_statistic, f_p = _iman_davenport(chi_squared, number, k)
    order = sorted(range(k), key=lambda j: (ranks[:, j].mean(), j))
    return Ranks(
        tuple(problems),
        tuple(methods[j] for j in order),
        tuple(float(ranks[:, j].mean()) for j in order),
        chi_squared,
        f_statistic,
        f_p,
        _permutation_p(ranks),
        critical_difference(k, number),
        tuple(left_out),
    )


def critical_difference(methods: int, problems: int) -> float:
    """CD, the smallest difference of mean ranks that is significant at 5 %.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    quantile = studentized_range.ppf(CONFIDENCE, methods, np.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(methods * (methods + 1) / (6 * problems)))


def _chi_squared(mean_ranks: Array, number: int) -> float:
    """χ²_F, without a correction for ties, as in the paper: conservative where there are some."""
    k = mean_ranks.shape[-1]
    spread = float(np.sum(mean_ranks**2)) - k * (k + 1) ** 2 / 4
    return float(max(0.0, 12 * number / (k * (k + 1)) * spread))


def _iman_davenport(chi_squared: float, number: int, k: int) -> tuple[float, float]:
    from scipy.special import fdtrc

    rest = number * (k - 1) - chi_squared
    if rest <= 1e-9 * number * k:
        return math.inf, 0.0
    f_statistic = (number - 1) * chi_squared / rest
    return f_statistic, float(fdtrc(k - 1, (k - 1) * (number - 1), f_statistic))


def _permutation_p(ranks: Array) -> float:
    """The share of permutations within problems whose Σ R_j² is at least the observed one."""
    number, k = ranks.shape
    least = float(np.sum(ranks.sum(axis=0) ** 2)) * (1 - 1e-12)
    if k < 9 and math.factorial(k) ** (number - 1) <= _COUNTED:  # the first problem may keep its ranks
        orders = [list(permutations(row)) for row in ranks[1:].tolist()]
        sums = np.array([np.sum(rows, axis=0) for rows in product(*orders)]) + ranks[0]
        return float(np.mean(np.sum(sums**2, axis=1) >= least))
    generator = np.random.default_rng(_SEED)
    sums = np.zeros((_DRAWN, k))
    for row in ranks:
        sums += generator.permuted(np.tile(row, (_DRAWN, 1)), axis=1)
    return float((1 + np.count_nonzero(np.sum(sums**2, axis=1) >= least)) / (1 + _DRAWN))
