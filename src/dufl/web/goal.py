"""A goal in place of the server's cost: a budget, an accuracy, or what a point of accuracy is worth."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from dufl.experiment.sections import Leader
from dufl.formatting import money, percent
from dufl.game.plan import Plan
from dufl.game.prediction import NINETY_ONE_SIDED

GoalName = Literal["budget", "accuracy", "point_worth"]
GOALS: tuple[GoalName, ...] = get_args(GoalName)
NO_GOAL = "cost"  # the choice of the form without a goal


@dataclass(frozen=True)
class Goal:
    """What the server plans for, named as in `[leader]`.

    >>> Goal("point_worth", 50.0).option
    '--point-worth'
    """

    name: GoalName
    value: float

    @classmethod
    def of(cls, leader: Leader) -> "Goal | None":
        """The goal of a leader."""
        values = leader.goals
        return next((cls(name, float(values[name])) for name in GOALS if name in values), None)

    @property
    def option(self) -> str:
        """The option of `dufl plan`."""
        return f"--{self.name.replace('_', '-')}"


def starting_goal(name: GoalName, plan: Plan) -> float:
    """The value of a goal that asks for about what a plan gives.

    A point is worth V = T·(1 − γ)/(100·γ), which is the inverse of `weight_of_a_point`.
    """
    game, prediction = plan.game, plan.prediction
    if name == "budget":
        return _round_up(plan.total_payment)
    if name == "accuracy":
        sure = prediction.accuracy - NINETY_ONE_SIDED * prediction.deviation if prediction else math.nan
        return math.floor(100 * sure) / 100 if 0.01 <= sure < 1 else 0.5
    weight = game.payment_weight
    return _round_up(game.num_rounds * (1 - weight) / (100 * weight)) if 0 < weight < 1 else 1.0


def goal_remarks(plan: Plan, goal: Goal | None) -> list[str]:
    """By how much a plan misses its accuracy, or that a limit keeps it from using its budget."""
    if goal is None or goal.name == "point_worth" or plan.prediction is None:
        return []
    if goal.name == "budget":
        if plan.robustness or plan.total_payment >= (1 - 1e-3) * goal.value:
            return []
        limit = money(plan.payment)
        return [
            f"The payment is at its upper limit of {limit}, below the budget. Raise the limit under Method."
        ]
    missing = plan.prediction.missing(goal.value)
    if missing == 0:
        return []
    by = f" It misses by {100 * missing:.1f} points." if math.isfinite(missing) else ""
    return [
        f"No payment up to {money(plan.payment)} per round reaches an accuracy of {percent(goal.value, 1)} "
        f"with 90 % confidence. This plan comes closest.{by}"
    ]


def _round_up(value: float) -> float:
    """Three digits, so that a budget still suffices.

    >>> _round_up(123.41), _round_up(0.0)
    (124.0, 0.0)
    """
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.3g}")
