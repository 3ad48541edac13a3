"""How well runs on recorded data did: the measure, its texts, and the predictions that need no model.

For classes the measure is the accuracy, for numbers the root mean squared error. It is the mean over the
rounds, because every round is tested on another period.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dufl.experiment.recorded import asked, periods_of, time_range
from dufl.experiment.train import Run
from dufl.formatting import number, percent, signed
from dufl.learning.federation import Record

UNKNOWN = "–"


@dataclass(frozen=True)
class Measure:
    """A measure of recorded runs.

    Attributes:
        name: in texts.
        head: in tables.
        mean: the key of a summary with the mean over the rounds.
        final: the key with the last round's.
        std: the key with the standard deviation of the mean over the seeds.
        free: label, key of a summary and field of a period, for every prediction that needs no model.
        larger_is_better: whether it is an accuracy.
    """

    name: str
    head: str
    mean: str
    final: str
    std: str
    free: tuple[tuple[str, str, str], ...]
    larger_is_better: bool

    def of(self, record: Record) -> float:
        """Its value in a round."""
        return record.accuracy if self.larger_is_better else record.metrics.get("rmse", math.nan)

    def text(self, value: float, digits: int = 2) -> str:
        """A value in texts; a dash if it is unknown."""
        if math.isnan(value):
            return UNKNOWN
        return percent(value, digits) if self.larger_is_better else number(value)

    def cell(self, value: float | None) -> str:
        """A value in tables, whose heads have the unit."""
        if value is None or math.isnan(value):
            return UNKNOWN
        if self.larger_is_better:
            return f"{100 * value:.2f}"
        return f"{value:.4g}" if value == 0 or value >= 1e-3 else f"{value:.1e}"

    def drawn(self, value: float) -> float:
        """A value in charts and for sorting."""
        return 100 * value if self.larger_is_better else value

    def difference(self, value: float, other: float) -> str:
        """A value less another, with its sign."""
        if math.isnan(value) or math.isnan(other):
            return UNKNOWN
        if self.larger_is_better:
            return f"{signed(100 * (value - other))} percentage points"
        return f"{signed(100 * (value / other - 1))} %" if other else signed(value - other, 3)

    def is_better(self, value: float, other: float) -> bool:
        """Whether a value is better than another; anything is better than an unknown value."""
        if math.isnan(value) or math.isnan(other):
            return math.isnan(other) and not math.isnan(value)
        return value > other if self.larger_is_better else value < other

    def best_free(self, summary: dict[str, Any]) -> tuple[str, float]:
        """The better prediction that needs no model, and its mean score."""
        (first, one, _), (second, two, _) = self.free
        if self.is_better(summary[two], summary[one]):
            return second, summary[two]
        return first, summary[one]


ACCURACY = Measure(
    *("accuracy", "accuracy (%)", "mean_accuracy", "final_accuracy", "accuracy_std"),
    (
        ("no change", "no_change_accuracy", "no_change"),
        ("majority class", "majority_accuracy", "majority"),
    ),
    larger_is_better=True,
)
RMSE = Measure(
    *("RMSE", "RMSE", "mean_rmse", "final_rmse", "rmse_std"),
    (
        ("no change", "no_change_rmse", "no_change"),
        ("mean label", "mean_label_rmse", "majority"),
    ),
    larger_is_better=False,
)


def measure_of(runs: Sequence[Run]) -> Measure | None:
    """The measure of runs; None if they are not on recorded data or have no measure in common."""
    if not runs or not all(run.recorded for run in runs):
        return None
    kinds = {run.regression for run in runs}
    return None if len(kinds) > 1 else RMSE if kinds == {True} else ACCURACY


def shortfall_text(run: Run) -> str:
    """The number of missing samples, and their share of what was asked for if that is known."""
    missing, wanted = sum(record.shortfall for record in run.records), asked(run)
    if not wanted:
        return f"{missing:,}"
    return f"{missing:,} of {wanted:,} ({percent(missing / wanted, 1)})"


def recorded_rows(run: Run, measure: Measure, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows of a table that only recorded runs have."""
    periods = periods_of(run.records)
    return [
        *((f"{label}, without a model", measure.text(summary[key])) for label, key, _ in measure.free),
        ("recorded time", time_range(periods)),
        ("samples tested on", f"{summary['tested']:,}"),
        ("samples missing (shortfall)", shortfall_text(run)),
    ]
