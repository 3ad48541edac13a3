"""What a comparison shows: means over seeds, differences to a baseline, and ranks over problems.

A method is what is compared, such as an algorithm with a policy. A problem is what it is tried on, such as a
dataset. Methods are tested against a baseline on the same problem; see `statistics`. All these tests are one
family for the correction. If there are several problems, methods are ranked; see `ranks`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dufl.errors import InputError
from dufl.experiment.ranks import Ranks, rank, rank_methods
from dufl.experiment.statistics import (
    CONFIDENCE,
    Interval,
    holm,
    mean_interval,
    sign_flip_test,
    standard_deviation,
)

DEFAULT = "static"  # the baseline, if there is one
SIGNIFICANT = 1 - CONFIDENCE


@dataclass(frozen=True)
class Scored:
    """The scores of a method on a problem.

    Attributes:
        name: of both together.
        problem: what it was tried on.
        method: what was tried.
        parts: what the method consists of: the algorithm, the policy and the discard rule.
        scores: by seed.
        metric: what the scores are: a key of `Run.summary`.
    """

    name: str
    problem: str
    method: str
    parts: tuple[str, ...]
    scores: Mapping[int, float]
    metric: str = "final_accuracy"

    @property
    def lower_is_better(self) -> bool:
        """Whether the scores are errors."""
        return "rmse" in self.metric

    @property
    def known(self) -> bool:
        """Whether there are scores, and all are numbers: a run that diverged cannot be left out of a mean."""
        return bool(self.scores) and bool(np.isfinite(list(self.scores.values())).all())


@dataclass(frozen=True)
class Row:
    """The statistics of a method on a problem. What is not known is None.

    Attributes:
        name: of both together.
        problem: what it was tried on.
        method: what was tried.
        metric: what the scores are.
        seeds: of the finished runs.
        mean: over the seeds.
        std: the sample standard deviation; needs two seeds.
        low: the lower end of the 95 % interval of the mean; needs six seeds.
        high: its upper end.
        best: whether no other method has a better mean on this problem.
        baseline: the name of what it is compared with.
        pairs: the number of seeds that both have.
        difference: the mean over the pairs of its score less the baseline's.
        difference_low: the lower end of the 95 % interval of the difference; needs six pairs.
        difference_high: its upper end.
        p: of the sign-flip test; needs two pairs.
        p_holm: the same, corrected for all tests of the comparison.
    """

    name: str
    problem: str
    method: str
    metric: str
    seeds: tuple[int, ...]
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    best: bool
    baseline: str | None
    pairs: int
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    p: float | None
    p_holm: float | None

    @property
    def lower_is_better(self) -> bool:
        """Whether the scores are errors."""
        return "rmse" in self.metric

    @property
    def significant(self) -> bool:
        """Whether it differs from the baseline, at 5 % for all tests of the comparison together."""
        return self.p_holm is not None and self.p_holm <= SIGNIFICANT

    def flat(self) -> dict[str, Any]:
        """Its columns in a table, with the number of seeds instead of a list."""
        return asdict(self) | {"seeds": len(self.seeds)}


@dataclass(frozen=True)
class Statistics:
    """The statistics of a comparison.

    Attributes:
        rows: one per method and problem that has a finished run.
        ranks: of the methods over the problems; None unless two methods have a score on two problems.
    """

    rows: tuple[Row, ...]
    ranks: Ranks | None

    @property
    def problems(self) -> list[str]:
        """The names of the problems."""
        return list(dict.fromkeys(row.problem for row in self.rows))

    @property
    def tests(self) -> int:
        """The number of tests that p-values are corrected for."""
        return sum(row.p is not None for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        rows = [asdict(row) | {"significant": row.significant} for row in self.rows]
        ranks = None if self.ranks is None else asdict(self.ranks) | {"groups": self.ranks.groups}
        return {"confidence": CONFIDENCE, "tests": self.tests, "rows": rows, "ranks": ranks}


def statistics_of(scored: Sequence[Scored], baseline: str | None = None) -> Statistics:
    """The statistics of methods on problems.

    Args:
        scored: their scores; those without any are left out.
        baseline: see `baseline_of`.
    """
    named = baseline_of(scored, baseline)
    begun = [one for one in scored if one.scores]
    against = [_against(one, begun, named) for one in begun]
    pairs = [_differences(one, other) for one, other in zip(begun, against, strict=True)]
    p_values = [sign_flip_test(differences) for differences in pairs]
    best = _best(begun)
    rows = [
        _row(one, other, differences, p, corrected, one in best)
        for one, other, differences, p, corrected in zip(
            begun, against, pairs, p_values, holm(p_values), strict=True
        )
    ]
    return Statistics(tuple(rows), _ranks(scored))


def baseline_of(scored: Sequence[Scored], baseline: str | None) -> str:
    """The name of the baseline, checked.

    Args:
        scored: the methods.
        baseline: a method, with which all others are compared; or an algorithm, a policy or a discard rule,
            and every method is compared with the one that has it and is else the same. Default: the policy
            "static", or the first method.
    """
    methods = list(dict.fromkeys(one.method for one in scored))
    parts = list(dict.fromkeys(part for one in scored for part in one.parts))
    if baseline is None:
        return DEFAULT if DEFAULT in parts or not methods else methods[0]
    if baseline not in (*methods, *parts):
        rule = f"one of {', '.join(dict.fromkeys((*methods, *parts)))}"
        raise InputError.of("baseline", rule, baseline, text=repr(baseline))
    return baseline


def _against(one: Scored, others: Sequence[Scored], baseline: str) -> Scored | None:
    """What a method is compared with; None for the baseline itself."""
    same = [other for other in others if (other.problem, other.metric) == (one.problem, one.metric)]
    if any(other.method == baseline for other in others):
        wanted = [other for other in same if other.method == baseline]
    else:
        places = range(len(one.parts))
        alike = [tuple(baseline if p == place else one.parts[p] for p in places) for place in places]
        wanted = [other for other in same if other.parts in alike]
    return None if not wanted or one in wanted else wanted[0]


def _differences(one: Scored, other: Scored | None) -> list[float]:
    """The differences of the runs with the same seed."""
    if other is None or not (one.known and other.known):
        return []
    return [one.scores[seed] - other.scores[seed] for seed in one.scores if seed in other.scores]


def _best(scored: Sequence[Scored]) -> list[Scored]:
    """The best on every problem; several if they are equal."""
    means = {one.name: _mean(one) for one in scored if one.known}
    best = []
    for one in scored:
        rivals = [
            means[o.name] for o in scored if o.known and (o.problem, o.metric) == (one.problem, one.metric)
        ]
        if one.known and means[one.name] == (min if one.lower_is_better else max)(rivals):
            best.append(one)
    return best


def _mean(one: Scored) -> float:
    return float(np.mean(list(one.scores.values())))


def _row(
    one: Scored,
    other: Scored | None,
    differences: list[float],
    p: float | None,
    corrected: float | None,
    best: bool,
) -> Row:
    values = list(one.scores.values()) if one.known else []
    low, high = _ends(mean_interval(values))
    difference_low, difference_high = _ends(mean_interval(differences))
    return Row(
        name=one.name,
        problem=one.problem,
        method=one.method,
        metric=one.metric,
        seeds=tuple(one.scores),
        mean=_mean(one) if one.known else None,
        std=standard_deviation(values),
        low=low,
        high=high,
        best=best,
        baseline=None if other is None else other.name,
        pairs=len(differences),
        difference=float(np.mean(differences)) if differences else None,
        difference_low=difference_low,
        difference_high=difference_high,
        p=p,
        p_holm=corrected,
    )


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else interval


def _ranks(scored: Sequence[Scored]) -> Ranks | None:
    """The ranks of the methods that have scores on every problem that any method has scores on."""
    by_name = {(one.problem, one.method): one for one in scored if one.known}
    problems = list(dict.fromkeys(problem for problem, _ in by_name))
    every = list(dict.fromkeys(one.method for one in scored))
    methods = [method for method in every if all((problem, method) in by_name for problem in problems)]
    if len(problems) < 2 or len(methods) < 2:
        return None
    scores = np.array([[_mean(by_name[problem, method]) for method in methods] for problem in problems])
    lower = [by_name[problem, methods[0]].lower_is_better for problem in problems]
    left_out = [method for method in every if method not in methods]
    return rank_methods(problems, methods, rank(scores, lower), left_out)
