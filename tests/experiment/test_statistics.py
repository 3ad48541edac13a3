"""Statistics over seeds and ranks over problems: laws, published examples, SciPy, and simulations."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dufl.experiment.ranks import Ranks, critical_difference, rank, rank_methods
from dufl.experiment.statistics import (
    EXACT,
    LEAST,
    RESAMPLES,
    holm,
    mean_band,
    mean_interval,
    sign_flip_test,
    standard_deviation,
)

VALUES = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))
# Demšar (2006), table 6: the ranks of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 datasets.
DEMSAR = np.array(
    [
        *([4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5]),
        *([3, 2, 4, 1], [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5]),
        *([3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2]),
    ],
    float,
)
METHODS = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
TRIALS = 2000


def at_most(share: float, trials: int) -> float:
    """What the observed share of events of a probability exceeds in one of a million simulations."""
    return float(stats.binom.ppf(1 - 1e-6, trials, share)) / trials


def at_least(share: float, trials: int) -> float:
    return float(stats.binom.ppf(1e-6, trials, share)) / trials


@given(st.lists(VALUES, min_size=2, max_size=9))
def test_the_sign_flip_test_is_its_definition(differences: list[float]) -> None:
    """All 2ⁿ signs, in exact arithmetic."""
    whole = [round(1e6 * value) for value in differences]
    sums = [abs(sum(s * d for s, d in zip(signs, whole, strict=True)))
            for signs in product((1, -1), repeat=len(whole))]  # fmt: skip
    expected = np.mean([one >= abs(sum(whole)) for one in sums])
    assert sign_flip_test(differences) == pytest.approx(expected, abs=1e-12)


@given(st.lists(VALUES, min_size=2, max_size=12), st.floats(1e-3, 1e3))
def test_the_sign_flip_test_has_no_order_side_or_unit(differences: list[float], unit: float) -> None:
    p = sign_flip_test(differences)
    assert p is not None
    assert 2.0 ** (1 - len(differences)) <= p <= 1
    assert sign_flip_test(sorted(differences)) == p
    assert sign_flip_test([-value for value in differences]) == p
    assert sign_flip_test([unit * value for value in differences]) == p


def test_the_sign_flip_test_is_scipys() -> None:
    generator = np.random.default_rng(1)
    for size in (2, 5, 10):
        differences = np.round(generator.normal(0.3, 1, size), 1)  # with ties
        theirs = stats.permutation_test(
            (differences,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
        )
        assert sign_flip_test(differences.tolist()) == pytest.approx(theirs.pvalue)


def test_drawn_signs_agree_with_counted_ones() -> None:
    generator = np.random.default_rng(2)
    differences = generator.normal(0.4, 1, EXACT).tolist()
    exact = sign_flip_test(differences)
    drawn = sign_flip_test([*differences, 0.0])  # a zero changes no sum
    assert exact is not None
    assert drawn == pytest.approx(exact, abs=5 * math.sqrt(exact / 99_999))
    assert sign_flip_test([1.0] * 40) == 1 / 100_000  # never zero


def test_no_difference_is_no_finding() -> None:
    assert sign_flip_test([0.0] * 10) == 1
    assert sign_flip_test([0.0] * 30) == 1
    assert sign_flip_test([]) is None
    assert sign_flip_test([3.0]) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(p_values: list[float]) -> None:
    """A hypothesis is rejected if every set of hypotheses that has it is: |S|·min p ≤ α."""
    every = range(len(p_values))
    sets = [s for size in every for s in combinations(every, size + 1)]
    for place, corrected in enumerate(holm(p_values)):
        worst = max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets if place in s)
        assert corrected == pytest.approx(worst)


def test_holm_counts_only_tests_that_were_made() -> None:
    assert holm([None, 0.04, None]) == [None, 0.04, None]
    assert holm([]) == []


def test_corrected_tests_have_few_false_positives() -> None:
    """Four methods that do not differ from the baseline, 10 seeds, scores that are accuracies: ties occur."""
    generator = np.random.default_rng(3)
    found = raw = 0
    for _ in range(TRIALS):
        scores = generator.binomial(360, 0.9, (5, 10)) / 360
        p_values = [sign_flip_test((row - scores[0]).tolist()) for row in scores[1:]]
        found += min(p for p in holm(p_values) if p is not None) <= 0.05
        raw += min(p for p in p_values if p is not None) <= 0.05
    assert found / TRIALS <= at_most(0.05, TRIALS)
    assert raw / TRIALS > at_most(0.05, TRIALS)  # without the correction, the law fails


def test_the_test_finds_what_is_there() -> None:
    """A difference of one standard deviation, 10 pairs: the t-test would find it in 80 % of all cases."""
    generator = np.random.default_rng(4)
    found = [sign_flip_test(generator.normal(1, 1, 10).tolist()) <= 0.05 for _ in range(500)]  # type: ignore[operator]
    assert np.mean(found) > 0.7


@pytest.mark.parametrize("runs", [LEAST, 10, 30])
@pytest.mark.parametrize("name", ["normal", "uniform", "accuracies"])
def test_intervals_cover_the_mean(runs: int, name: str) -> None:
    """Symmetric or nearly so; 93 % at least, where the plain percentile interval of 10 runs has 90 %."""
    generator = np.random.default_rng(5)
    size = runs, TRIALS
    values = {
        "normal": generator.normal(7, 2, size),
        "uniform": 14 * generator.random(size),
        "accuracies": generator.binomial(360, 0.9, size) / 360 * 7 / 0.9,
    }[name]
    low, high = mean_band(values)
    covered = np.mean((low <= 7) & (high >= 7))
    assert at_least(0.93, TRIALS) <= covered <= at_most(0.96, TRIALS)


def test_an_interval_of_many_values_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(6).normal(3, 2, 400)
    half = 1.966 * np.std(values, ddof=1) / 20
    found = mean_interval(values.tolist())
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=9999, rng=7)
    assert found == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)


@given(st.lists(VALUES, min_size=LEAST, max_size=12), st.floats(-1e3, 1e3))
def test_intervals_hold_the_mean_and_move_with_the_values(values: list[float], shift: float) -> None:
    found = mean_interval(values)
    assert found is not None
    low, high = found
    scale = max(map(abs, values)) + abs(shift) + 1
    assert min(values) <= low <= np.mean(values) + 1e-9 * scale
    assert np.mean(values) - 1e-9 * scale <= high <= max(values)
    moved = mean_interval([value + shift for value in values])
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-9 * scale)
    assert mean_interval(values) == found


def test_few_or_equal_values() -> None:
    assert mean_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert mean_interval([0.1] * 7) == (0.1, 0.1)
    assert standard_deviation([0.5]) is None
    assert standard_deviation([0.1, 0.4, 0.4]) == pytest.approx(stats.tstd([0.1, 0.4, 0.4]))


def test_bands_are_intervals_of_every_round() -> None:
    values = np.random.default_rng(8).normal(size=(8, 230))
    values[2, 3], values[1, 4], values[:, 5] = np.nan, np.inf, np.inf
    low, high = mean_band(values, RESAMPLES)
    for place in (0, 99, 100, 229):
        assert (low[place], high[place]) == mean_interval(values[:, place].tolist())
    assert np.isnan([low[3:6], high[3:6]]).all()
    assert not np.isnan(np.delete([low, high], [3, 4, 5], axis=1)).any()
    fewer, _ = mean_band(values)
    np.testing.assert_allclose(fewer, low, atol=0.3)


def test_the_worked_example_of_demsar() -> None:
    found = rank_methods([f"{n}" for n in range(14)], METHODS, DEMSAR)
    by_name = dict(zip(found.methods, found.mean_ranks, strict=True))
    assert [round(by_name[name], 3) for name in METHODS] == [3.143, 2.0, 2.893, 1.964]
    assert found.methods == ("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")
    assert round(found.chi_squared, 2) == 9.28
    assert round(found.f_statistic, 2) == 3.69
    assert round(found.critical_difference, 2) == 1.25
    assert stats.f.sf(found.f_statistic, 3, 39) == pytest.approx(found.f_p)
    assert found.f_p < 0.05
    assert found.p == pytest.approx(found.f_p, abs=0.01)
    assert found.groups == [(0, 3)]  # even the best and the worst differ by 1.179 only


def test_the_critical_values_of_demsar() -> None:
    """Table 5(a): q at 0.05 for 2 to 10 methods; some of its digits are cut off instead of rounded."""
    table = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164)
    for methods, value in enumerate(table, 2):
        q = critical_difference(methods, 10) / math.sqrt(methods * (methods + 1) / 60)
        assert q == pytest.approx(value, abs=1e-3)


@given(st.integers(3, 6), st.integers(3, 12), st.integers(0, 1000))
def test_friedmans_test_is_scipys(methods: int, problems: int, seed: int) -> None:
    scores = np.random.default_rng(seed).random((problems, methods))  # without ties
    found = rank_methods(["x"] * problems, ["y"] * methods, rank(scores, [False] * problems))
    theirs = stats.friedmanchisquare(*scores.T)
    assert found.chi_squared == pytest.approx(theirs.statistic, abs=1e-9)
    assert sum(found.mean_ranks) == pytest.approx(methods * (methods + 1) / 2)
    assert list(found.mean_ranks) == sorted(found.mean_ranks)


def test_two_problems_that_agree_prove_nothing() -> None:
    found = rank_methods(["a", "b"], ["x", "y"], np.array([[1.0, 2.0], [1.0, 2.0]]))
    assert (found.f_statistic, found.f_p) == (math.inf, 0.0)  # the approximation
    assert found.p == 0.5  # of the four permutations, two agree
    equal = rank_methods(["a", "b"], ["x", "y"], np.full((2, 2), 1.5))
    assert (equal.chi_squared, equal.p) == (0, 1)
    assert equal.groups == [(0, 1)]


def test_permutations_have_few_false_positives() -> None:
    generator, trials = np.random.default_rng(9), 400
    found = 0
    for _ in range(trials):
        ranks = rank(generator.random((3, 3)), [False] * 3)
        found += rank_methods(["a", "b", "c"], ["x", "y", "z"], ranks).p <= 0.05
    assert found / trials <= at_most(0.05, trials)


def test_drawn_permutations_agree_with_the_chi_squared_distribution() -> None:
    scores = np.random.default_rng(10).random((40, 5)) + np.arange(5) / 14
    found = rank_methods(["p"] * 40, ["m"] * 5, rank(scores, [False] * 40))
    assert found.p == pytest.approx(stats.chi2.sf(found.chi_squared, 4), abs=0.01)


@given(st.lists(st.floats(1, 9), min_size=2, max_size=9), st.floats(0.1, 5))
def test_groups_are_the_largest_that_do_not_differ(ranks: list[float], difference: float) -> None:
    ranks = sorted(ranks)
    names = tuple(str(place) for place in range(len(ranks)))
    groups = Ranks((), names, tuple(ranks), 0, 0, 1, 1, difference).groups
    joined = {pair for a, b in groups for pair in combinations(range(a, b + 1), 2)}
    expected = {(i, j) for i, j in combinations(range(len(ranks)), 2) if ranks[j] - ranks[i] < difference}
    assert joined == expected
    for one, two in combinations(groups, 2):
        assert not (two[0] <= one[0] and one[1] <= two[1])
        assert not (one[0] <= two[0] and two[1] <= one[1])
