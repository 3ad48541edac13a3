"""What the loss law of a plan predicts for every round, and what was measured instead.

A law is about the late rounds of a run. They are divided into four blocks. The mean over a block is compared
with its 90 % interval, since single rounds scatter more than the law's noise says, and neighbours are alike.
Where a calibration has measured how trainings go on during the late rounds (`course`), that is added.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dufl.game.dynamics import Array
from dufl.game.loss import PowerLaw, scarcity_of
from dufl.game.parameters import Game
from dufl.game.plan import Plan
from dufl.game.prediction import Prediction, has_unit
from dufl.game.update import Observation, updated
from dufl.learning.federation import Record

BLOCKS = 4


@dataclass(frozen=True, eq=False)
class Stage:
    """A plan, and the round of the run that is its round 0."""

    first_round: int
    plan: Plan

    def predicted(self, rounds: Sequence[int]) -> tuple[Array, Array]:
        """The predicted loss of some rounds of the run, and the standard deviation of a mean around it."""
        law, game = self.plan.game.loss, self.plan.playing
        at = np.asarray(rounds, np.int64) - self.first_round
        scarcity = scarcity_of(law, game.clients.num_clients, self.plan.total_volume)[at]
        aged = self.plan.mean_staleness[at]
        deviations = [
            law.deviation(x, s) if np.isfinite(x) else np.inf for x, s in zip(scarcity, aged, strict=True)
        ]
        return np.asarray(law(scarcity, aged)) * np.ones(len(at)), np.array(deviations)


def late_blocks(law: PowerLaw, num_rounds: int) -> list[range]:
    """The rounds that a law is about, in at most four blocks of the same length; the last may be shorter.

    >>> late_blocks(PowerLaw(measured_from=0.6), 10)
    [range(6, 7), range(7, 8), range(8, 9), range(9, 10)]
    """
    first = int(law.measured_from * num_rounds)
    length = math.ceil((num_rounds - first) / BLOCKS)
    return [range(begin, min(begin + length, num_rounds)) for begin in range(first, num_rounds, length)]


def course_at(law: PowerLaw, num_rounds: int, round: int) -> tuple[float, float]:
    """By how much the loss of a late round differs from the mean over all of them, and its deviation.

    The last quarter is taken for later rounds, and 0 if it is not known.
    """
    if not law.course:
        return 0.0, 0.0
    blocks = late_blocks(law, num_rounds)
    place = next((i for i, block in enumerate(blocks) if round < block.stop), len(blocks) - 1)
    quarter = place * len(law.course) // len(blocks)
    return law.course[quarter], law.course_deviation[quarter] if law.course_deviation else 0.0


def measured_loss(record: Record, unit: str) -> float:
    """The loss of a round in a unit; NaN if it is unknown, nobody held data, or nothing was paid for it.

    No calibration tries an offer without a payment.
    """
    if record.total_volume == 0 or record.payment == 0:
        return math.nan
    if unit == "error":
        return 1 - record.accuracy
    return record.metrics.get("rmse", math.nan) if unit == "rmse" else record.loss


def observations(game: Game, records: Sequence[Record]) -> list[Observation]:
    """What the complete blocks of a run have measured; empty if the law of the game has no unit."""
    law, seen = game.loss, list[Observation]()
    if not has_unit(law):
        return seen
    total = np.array([record.total_volume for record in records], np.float64)
    scarcity = scarcity_of(law, game.clients.num_clients, total)
    for block in late_blocks(law, game.num_rounds):
        if block.stop > len(records):
            break
        known = [t for t in block if math.isfinite(measured_loss(records[t], law.unit))]
        if known:
            aged = np.array([records[t].mean_age for t in known])
            value = float(np.mean([measured_loss(records[t], law.unit) for t in known]))
            moved, deviation = course_at(law, game.num_rounds, block.start)
            seen.append(Observation(scarcity[known], aged, value - moved, deviation))
    return seen


def updated_law(game: Game, records: Sequence[Record]) -> PowerLaw | None:
    """The law of a game, updated with what its rounds so far have measured; None if it has no unit."""
    return updated(game.loss, observations(game, records)) if has_unit(game.loss) else None


@dataclass(frozen=True, eq=False)
class Block:
    """A block of late rounds.

    Attributes:
        rounds: of the run.
        prediction: of the mean loss.
        measured: the mean loss; NaN if it is unknown.
    """

    rounds: range
    prediction: Prediction
    measured: float

    @property
    def inside(self) -> bool:
        """Whether the measured loss is in the 90 % interval; true if one of them is not known."""
        low, high = self.prediction.interval
        if self.prediction.deviation == 0 or not math.isfinite(self.measured):
            return True
        return low <= self.measured <= high


def compared_blocks(stages: Sequence[Stage], records: Sequence[Record]) -> list[Block]:
    """The complete blocks of a run, as predicted by the plans that it followed, and as measured."""
    game = stages[0].plan.game
    law = game.loss
    if not has_unit(law):
        return []
    blocks = []
    for rounds in late_blocks(law, game.num_rounds):
        if rounds.stop > len(records) or stage_of(stages, rounds[-1]).plan.payment == 0:
            continue
        values, deviations = predicted_rounds(stages, rounds)
        losses = np.array([measured_loss(records[t], law.unit) for t in rounds])
        known = losses[np.isfinite(losses)]
        measured = float(known.mean()) if known.size else math.nan
        prediction = Prediction(law.unit, float(values.mean()), float(deviations.mean()))
        blocks.append(Block(rounds, prediction, measured))
    return blocks


def predicted_rounds(stages: Sequence[Stage], rounds: Sequence[int]) -> tuple[Array, Array]:
    """The predicted loss of some rounds by the plan of each and the course of the law, and its deviation."""
    parts = []
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        end = math.inf if after is None else after.first_round
        own = [t for t in rounds if stage.first_round <= t < end]
        if own:
            parts.append(stage.predicted(own))
    values, deviations = (np.concatenate(part) for part in zip(*parts, strict=True))
    game = stages[0].plan.game
    course = np.array([course_at(game.loss, game.num_rounds, t) for t in rounds])
    return values + course[:, 0], np.hypot(deviations, course[:, 1])


def stage_of(stages: Sequence[Stage], round: int) -> Stage:
    """The stage that a round belongs to."""
    return next(stage for stage in reversed(stages) if stage.first_round <= round)
