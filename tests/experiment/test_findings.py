"""What a comparison shows: pairs by seed, baselines, the better side, missing and unknown scores."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dufl.errors import InputError
from dufl.experiment.files import to_json
from dufl.experiment.findings import Row, Scored, Statistics, statistics_of
from dufl.experiment.statistics import holm, mean_interval, sign_flip_test

SEEDS = range(8)
GENERATOR = np.random.default_rng(11)
NOISE = {seed: float(GENERATOR.normal(0.7, 0.02)) for seed in SEEDS}


def scored(
    method: str, scores: Mapping[int, float], problem: str = "digits", metric: str = "final_accuracy"
) -> Scored:
    """A method ALGORITHM-POLICY or ALGORITHM-POLICY-DISCARD."""
    parts = tuple([*method.split("-"), "uniform"][:3])
    return Scored(f"{problem}/{method}", problem, method, parts, scores, metric)


def shifted(by: float, spread: float = 0.0) -> dict[int, float]:
    return {seed: score + by + spread * (seed % 3) for seed, score in NOISE.items()}


def by_method(results: Statistics, problem: str = "digits") -> dict[str, Row]:
    return {row.method: row for row in results.rows if row.problem == problem}


def strict(text: str) -> Any:
    """Parsed JSON; NaN and infinity are errors."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_a_row_is_what_the_tests_say() -> None:
    plain, better = scored("fedavg-static", NOISE), scored("fedavg-dufl", shifted(0.1, 0.01))
    rows = by_method(statistics_of([plain, better]))
    differences = [better.scores[seed] - plain.scores[seed] for seed in SEEDS]
    row = rows["fedavg-dufl"]
    assert (row.baseline, row.pairs, row.seeds) == ("digits/fedavg-static", 8, tuple(SEEDS))
    assert row.difference == pytest.approx(np.mean(differences))
    assert row.p == row.p_holm == sign_flip_test(differences) == 2 / 2**8
    assert (row.difference_low, row.difference_high) == mean_interval(differences)
    assert (row.low, row.high) == mean_interval(list(better.scores.values()))
    assert row.std == pytest.approx(np.std(list(better.scores.values()), ddof=1))
    assert row.significant
    assert (row.best, rows["fedavg-static"].best) == (True, False)
    assert rows["fedavg-static"].baseline is None
    assert rows["fedavg-static"].p is None


@given(st.permutations(list(SEEDS)), st.sets(st.sampled_from(list(SEEDS)), max_size=5))
def test_pairs_are_runs_with_the_same_seed(order: list[int], missing: set[int]) -> None:
    """Whatever the order of the runs, and whichever runs failed."""
    other = shifted(0.05, 0.01)
    found = {seed: other[seed] for seed in order if seed not in missing}
    row = by_method(statistics_of([scored("a-static", NOISE), scored("a-dufl", found)]))["a-dufl"]
    differences = [other[seed] - NOISE[seed] for seed in SEEDS if seed not in missing]
    assert row.pairs == len(row.seeds) == len(differences)
    assert row.difference == pytest.approx(np.mean(differences))
    assert row.p == sign_flip_test(differences)


def test_a_baseline_is_a_method_or_a_part_of_one() -> None:
    names = ["fedavg-static", "fedavg-dufl", "feddyn-static", "feddyn-dufl"]
    every = [scored(name, shifted(0.01 * n)) for n, name in enumerate(names)]

    def against(baseline: str | None) -> list[str]:
        rows = statistics_of(every, baseline).rows
        return [(row.baseline or "–").removeprefix("digits/") for row in rows]

    assert against(None) == against("static") == ["–", "fedavg-static", "–", "feddyn-static"]
    assert against("fedavg") == ["–", "–", "fedavg-static", "fedavg-dufl"]
    assert against("feddyn-dufl") == ["feddyn-dufl", "feddyn-dufl", "feddyn-dufl", "–"]
    assert [row.baseline for row in statistics_of(every[1::2]).rows] == [None, "digits/fedavg-dufl"]
    with pytest.raises(InputError) as refused:
        statistics_of(every, "fedsgd")
    assert (refused.value.field, refused.value.value) == ("baseline", "fedsgd")


def test_discard_rules_are_compared_with_each_other() -> None:
    every = [scored(f"fedavg-dufl-{rule}", shifted(0)) for rule in ("uniform", "oldest", "newest")]
    rows = by_method(statistics_of(every, "uniform"))
    assert [row.baseline for row in rows.values()] == [None, *["digits/fedavg-dufl-uniform"] * 2]


def test_every_test_of_the_table_counts() -> None:
    every = [
        scored(f"{method}-{policy}", shifted(0.01 * n, 0.001 * n), problem)
        for problem in ("digits", "weather")
        for n, (method, policy) in enumerate([("a", "static"), ("a", "dufl"), ("a", "own")])
    ]
    results = statistics_of(every)
    assert results.tests == 4
    raw = [row.p for row in results.rows]
    assert [row.p_holm for row in results.rows] == holm(raw)


def test_errors_are_better_if_they_are_lower() -> None:
    error = {"metric": "mean_rmse"}
    every = [scored("a-static", NOISE, **error), scored("a-dufl", shifted(-0.1), **error)]
    rows = by_method(statistics_of(every))
    assert rows["a-dufl"].best
    assert not rows["a-static"].best
    assert rows["a-dufl"].lower_is_better
    many = [*every, scored("a-static", shifted(0.1), "x"), scored("a-dufl", shifted(0), "x")]
    ranks = statistics_of(many).ranks
    assert ranks is not None
    assert dict(zip(ranks.methods, ranks.mean_ranks, strict=True)) == {"a-dufl": 1.5, "a-static": 1.5}


def test_one_seed_has_neither_intervals_nor_tests() -> None:
    results = statistics_of([scored("a-static", {3: 0.5}), scored("a-dufl", {3: 0.7})])
    row = by_method(results)["a-dufl"]
    assert row.mean == 0.7
    assert row.difference == pytest.approx(0.2)
    unknown = (row.std, row.low, row.high, row.difference_low, row.difference_high, row.p, row.p_holm)
    assert set(unknown) == {None}
    assert results.tests == 0
    assert strict(to_json(results.to_dict()))["rows"][1]["p"] is None


def test_equal_scores_do_not_differ() -> None:
    results = statistics_of([scored("a-static", NOISE), scored("a-dufl", dict(NOISE))])
    row = by_method(results)["a-dufl"]
    assert (row.difference, row.difference_low, row.difference_high, row.p) == (0, 0, 0, 1)
    assert [row.best for row in results.rows] == [True, True]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_without_a_score_is_not_left_out_of_a_mean(bad: float) -> None:
    every = [
        scored("a-static", NOISE, "x"),
        scored("a-dufl", {**NOISE, 2: bad}, "x"),
        scored("a-own", {}, "x"),
        scored("a-static", NOISE, "y"),
        scored("a-dufl", NOISE, "y"),
    ]
    results = statistics_of(every)
    row = by_method(results, "x")["a-dufl"]
    assert (row.mean, row.std, row.low, row.difference, row.p) == (None,) * 5
    assert not row.best
    assert by_method(results, "y")["a-dufl"].p == 1
    assert results.ranks is None  # one method alone has a score on both
    strict(to_json(results.to_dict()))


def test_methods_without_a_score_on_every_problem_are_not_ranked() -> None:
    every = [
        scored(name, shifted(0.1 * n), problem)
        for problem in ("x", "y", "z")
        for n, name in enumerate(("a-static", "a-dufl", "a-own"))
        if (problem, name) != ("y", "a-own")
    ]
    ranks = statistics_of([*every, scored("a-own", {}, "y")]).ranks
    assert ranks is not None
    assert ranks.methods == ("a-dufl", "a-static")
    assert ranks.mean_ranks == (1, 2)
    assert ranks.left_out == ("a-own",)
    assert strict(to_json(statistics_of(every).to_dict()))["ranks"]["f_statistic_infinite"] is True


def test_nothing_finished_is_nothing() -> None:
    results = statistics_of([scored("a-static", {}), scored("a-dufl", {})])
    assert (results.rows, results.ranks, results.tests) == ((), None, 0)
