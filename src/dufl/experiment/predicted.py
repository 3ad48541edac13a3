"""What a loss law predicted for a training, beside what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dufl.experiment.frontier import score_of
from dufl.game.plan import Plan
from dufl.game.prediction import Prediction
from dufl.learning.federation import Record


@dataclass(frozen=True)
class Outcome:
    """A prediction, and the mean over the rounds that it is about.

    Attributes:
        prediction: of the plan.
        measured: the mean accuracy, loss or RMSE.
        first_round: from which on it was measured.
    """

    prediction: Prediction
    measured: float
    first_round: int

    @property
    def inside(self) -> bool:
        """Whether the measured value is in the 90 % interval; true if there is no interval."""
        score = score_of(self.prediction)
        return self.prediction.deviation == 0 or score.low <= self.measured <= score.high

    def summary(self) -> dict[str, Any]:
        """Predicted and measured in plain numbers."""
        name = "accuracy" if self.prediction.unit == "error" else self.prediction.unit
        return self.prediction.summary() | {f"measured_late_{name}": self.measured}


def outcome_of(plan: Plan | None, records: Sequence[Record]) -> Outcome | None:
    """What was predicted and measured.

    None if the plan has no prediction, if it pays nothing, which no calibration tries, or if no round is late
    enough.
    """
    if plan is None or plan.prediction is None or plan.payment == 0:
        return None
    first = int(plan.game.loss.measured_from * plan.game.num_rounds)
    values = np.array([_value(record, plan.prediction.unit) for record in records[first:]])
    known = values[np.isfinite(values)]
    return Outcome(plan.prediction, float(known.mean()), first) if known.size else None


def mean_outcome(outcomes: Sequence[Outcome | None]) -> Outcome | None:
    """One outcome of several runs on the same plan: the mean of what they measured."""
    known = [outcome for outcome in outcomes if outcome is not None]
    if not known:
        return None
    measured = float(np.mean([outcome.measured for outcome in known]))
    return Outcome(known[0].prediction, measured, known[0].first_round)


def _value(record: Record, unit: str) -> float:
    """The score of a round; NaN if nobody held data."""
    if record.total_volume == 0:
        return float("nan")
    if unit == "error":
        return record.accuracy
    return record.metrics.get("rmse", float("nan")) if unit == "rmse" else record.loss
