"""Runs on recorded data: what their rounds say about time, scores, collection and missing samples.

The model of a round is tested on the period of that round before anybody has trained on it. A service is
therefore measured by the mean over the rounds. Two predictions need no model, and are what it has to beat.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dufl.data.client_data import Period
from dufl.data.recording import time_text
from dufl.game.plan import Plan
from dufl.learning.federation import Record
from dufl.learning.policies import parse_name
from dufl.learning.replanning import following

if TYPE_CHECKING:
    from dufl.experiment.train import Run

FREE_SCORES = ("no_change", "majority")
SCORES = ("mean_rmse", "mean_accuracy", "final_accuracy")  # the first that a summary has is its score
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, in seconds since 1970


def score_of(summary: dict[str, Any]) -> str:
    """The key of a summary by which runs are compared.

    >>> score_of({"final_accuracy": 0.7, "mean_accuracy": 0.8}), score_of({"final_accuracy": 0.7})
    ('mean_accuracy', 'final_accuracy')
    """
    return next(name for name in SCORES if name in summary)


def periods_of(records: Sequence[Record]) -> list[Period]:
    """The periods of the rounds; empty if data is not recorded."""
    return [record.period for record in records if record.period is not None]


def mean_of(values: Sequence[float]) -> float:
    """The mean of the values that are known; NaN if none is."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def is_dated(periods: Sequence[Period]) -> bool:
    """Whether times are dates that can be shown as such."""
    return bool(periods) and all(p.dated and _FIRST <= p.begin <= p.end <= _LAST for p in periods)


def times_of(periods: Sequence[Period], edge: str) -> npt.NDArray[Any]:
    """When periods `begin` or `end`: dates, or numbers."""
    numbers = np.array([getattr(period, edge) for period in periods], float)
    return as_dates(numbers) if is_dated(periods) else numbers


def as_dates(seconds: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Seconds since 1970 as dates, to the millisecond."""
    return np.rint(1000 * seconds).astype(np.int64).astype("datetime64[ms]")


def plain_time(period: Period, edge: str) -> float | str:
    """The begin or the end of a period for JSON and CSV: a number, or a date in ISO 8601.

    >>> plain_time(Period(0.0, 86460.5, True, 5, 0.5, 0.5), "end")
    '1970-01-02T00:01:00.500'
    """
    value = getattr(period, edge)
    if not is_dated([period]):
        return float(value)
    return str(as_dates(np.array([value]))[0]).removesuffix(".000")


def time_range(periods: Sequence[Period]) -> str:
    """The recorded time from the first period to the last, as text.

    >>> time_range([Period(0.0, 5.0, False, 5, 0.5, 0.5), Period(5.0, 10.0, False, 5, 0.5, 0.5)])
    '0 to 10'
    """
    dated = is_dated(periods)
    return " to ".join(time_text(time, dated) for time in (periods[0].begin, periods[-1].end))


def window_length(policy: str) -> float | None:
    """The number of rounds that a window policy keeps; None for any other policy.

    >>> window_length("keep-all"), window_length("fresh-only"), window_length("window-7")
    (inf, 1.0, 7.0)
    """
    name = parse_name(policy)
    return float(name.length) if name and name.kind == "window" else None


def collected_by_client(
    records: Sequence[Record], plan: Plan, seed: int, clients: Sequence[int]
) -> list[list[int]]:
    """The number of samples that clients collected in every round but the last, following a plan."""
    steps = following(plan, records, seed)
    return [
        [later.volumes[k] - steps.step(k, now.round, now.volumes[k])[0] for k in clients]
        for now, later in pairwise(records)
    ]


def collected(records: Sequence[Record], policy: str, plan: Plan | None, seed: int) -> list[int] | None:
    """The number of samples that all clients collected in every round but the last.

    It follows from the volumes and from what the policy keeps: V(t+1) = kept(t) + collected(t).

    Returns:
        None if it is not known what the policy keeps.
    """
    if plan is not None:
        every = range(len(records[0].volumes))
        return [sum(row) for row in collected_by_client(records, plan, seed, every)]
    name = parse_name(policy)
    if name is not None and name.kind in ("periodic", "zero"):
        refreshed = name.length if name.kind == "periodic" else math.inf
        return [0 if (t + 1) % refreshed else later.total_volume for t, later in enumerate(records[1:])]
    length = window_length(policy)
    if length is None:
        return None
    result: list[int] = []
    for t, (record, later) in enumerate(pairwise(records)):
        first = t - length + 1  # the first round whose samples stay
        held = record.total_volume if first < 0 else sum(result[int(first) :])
        result.append(later.total_volume - held)
    return result


def asked(run: "Run") -> int | None:
    """The number of samples that the policy asked for: those that joined buffers, and those missing."""
    policy = run.experiment.policy
    name = policy if isinstance(policy, str) else ""
    joined = collected(run.records, name, run.plan, run.experiment.training.seed)
    if joined is None:
        return None
    missing = sum(record.shortfall for record in run.records)
    return run.records[0].total_volume + sum(joined) + missing


def over_time(records: Sequence[Record], regression: bool) -> dict[str, Any]:
    """A summary over time: means over the rounds, each weighted equally, and the scores without a model.

    Empty if data is not recorded.
    """
    periods = periods_of(records)
    if not periods:
        return {}
    summary: dict[str, Any] = {
        "mean_accuracy": mean_of([record.accuracy for record in records]),
        "mean_loss": mean_of([record.loss for record in records]),
    }
    names = ("no_change_accuracy", "majority_accuracy")
    if regression:
        for name in ("rmse", "r2"):
            summary[f"mean_{name}"] = mean_of([r.metrics.get(name, math.nan) for r in records])
            summary[f"final_{name}"] = records[-1].metrics.get(name, math.nan)
        names = ("no_change_rmse", "mean_label_rmse")
    for name, field in zip(names, FREE_SCORES, strict=True):
        summary[name] = mean_of([getattr(period, field) for period in periods])
    return summary | {
        "tested": sum(period.samples for period in periods),
        "time_begin": plain_time(periods[0], "begin"),
        "time_end": plain_time(periods[-1], "end"),
    }
