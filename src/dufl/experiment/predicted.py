"""What a loss law predicted for a training, beside what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dufl.experiment.frontier import score_of
from dufl.game.dynamics import Array
from dufl.game.plan import Plan
from dufl.game.prediction import Prediction
from dufl.learning.federation import Record
from dufl.learning.replanning import stages_of
from dufl.learning.tracking import Block, compared_blocks, predicted_rounds


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
    return Outcome(_prediction(plan, records, first), float(known.mean()), first) if known.size else None


def _prediction(plan: Plan, records: Sequence[Record], first: int) -> Prediction:
    """The prediction of a plan; of a run that was planned again, by the plans that it followed."""
    assert plan.prediction is not None
    if all(record.replan is None for record in records):
        return plan.prediction
    values, deviations = predicted_rounds(stages_of(plan, records), range(first, plan.game.num_rounds))
    return Prediction(plan.prediction.unit, float(values.mean()), float(deviations.mean()))


@dataclass(frozen=True, eq=False)
class Tracking:
    """What was predicted and measured, round by round, in the rounds that the law is about.

    Attributes:
        unit: of the law: "error", "loss" or "rmse".
        rounds: the numbers of the rounds.
        predicted: the accuracy, the loss or the RMSE that the plan of each round predicts.
        low: the lower end of its 90 % interval, for the mean over a block.
        high: the upper end.
        measured: what was measured; NaN if it is unknown.
        blocks: means over some rounds.
    """

    unit: str
    rounds: range
    predicted: Array
    low: Array
    high: Array
    measured: Array
    blocks: tuple[Block, ...]

    @property
    def parted(self) -> Block | None:
        """The first block whose mean is outside of its interval; None if there is none."""
        return next((block for block in self.blocks if not block.inside), None)

    def summary(self) -> dict[str, Any]:
        """The blocks in plain numbers, and the last round of the first one outside of its interval."""
        rows = [_block_summary(block) for block in self.blocks]
        return {
            "prediction_by_block": rows,
            "left_prediction_in_round": None if self.parted is None else self.parted.rounds[-1],
        }


def _block_summary(block: Block) -> dict[str, Any]:
    score = score_of(block.prediction)
    return {
        "first_round": block.rounds[0],
        "last_round": block.rounds[-1],
        "predicted": score.value,
        "low": score.low,
        "high": score.high,
        "measured": measured_score(block),
        "inside": block.inside,
    }


def measured_score(block: Block) -> float:
    """What was measured in a block: an accuracy, or a loss."""
    return 1 - block.measured if block.prediction.unit == "error" else block.measured


def tracking_of(plan: Plan | None, records: Sequence[Record]) -> Tracking | None:
    """What was predicted and measured round by round.

    None if the plan has no prediction or pays nothing, or if no round is late enough.
    """
    if plan is None or plan.prediction is None or plan.payment == 0:
        return None
    unit, stages = plan.prediction.unit, stages_of(plan, records)
    rounds = range(int(plan.game.loss.measured_from * plan.game.num_rounds), len(records))
    if not rounds:
        return None
    scores = [
        score_of(Prediction(unit, *pair)) for pair in zip(*predicted_rounds(stages, rounds), strict=True)
    ]
    predicted, low, high = np.array([(s.value, s.low, s.high) for s in scores]).T
    measured = np.array([_value(records[t], unit) for t in rounds])
    return Tracking(unit, rounds, predicted, low, high, measured, tuple(compared_blocks(stages, records)))


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
