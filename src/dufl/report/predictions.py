"""Predictions of a loss law in texts and tables, and what a training measured instead."""

from typing import TYPE_CHECKING

from dufl.experiment.frontier import payment_per_point, score_of
from dufl.formatting import money, number, percent
from dufl.game.plan import Plan
from dufl.game.prediction import Prediction

if TYPE_CHECKING:
    from dufl.experiment.predicted import Outcome

Rows = list[tuple[str, str]]
NAMES = {"error": "accuracy", "loss": "loss", "rmse": "RMSE"}


def predicted_name(prediction: Prediction) -> str:
    """What is predicted: the accuracy, the loss or the RMSE."""
    return NAMES[prediction.unit]


def score_text(unit: str, value: float) -> str:
    """An accuracy in percent, or a loss."""
    return percent(value, 1) if unit == "error" else number(value)


def interval_text(prediction: Prediction) -> str:
    """The 90 % interval; empty if the uncertainty is not known.

    >>> interval_text(Prediction("error", 0.226, 0.003)), interval_text(Prediction("rmse", 1.5, 0.0))
    ('76.9 to 77.9', '')
    """
    score = score_of(prediction)
    if prediction.deviation == 0:
        return ""
    if prediction.unit == "error":
        return f"{100 * score.low:.1f} to {100 * score.high:.1f}"
    return f"{number(score.low)} to {number(score.high)}"


def prediction_text(prediction: Prediction) -> str:
    """A prediction with its 90 % interval.

    >>> prediction_text(Prediction("error", 0.226, 0.003))
    '77.4 % (76.9 to 77.9)'
    """
    interval = interval_text(prediction)
    value = score_text(prediction.unit, score_of(prediction).value)
    return f"{value} ({interval})" if interval else value


def headline_part(plan: Plan) -> str:
    """The end of a plan's headline: what is predicted; empty without a prediction."""
    if plan.prediction is None:
        return ""
    return f": predicted {predicted_name(plan.prediction)} {prediction_text(plan.prediction)}"


def prediction_rows(plan: Plan) -> Rows:
    """The rows of a plan's table that only a law in a unit has."""
    prediction = plan.prediction
    if prediction is None:
        return []
    rows = [(f"predicted {predicted_name(prediction)}", prediction_text(prediction))]
    slope = payment_per_point(plan)
    if slope is not None:
        rows.append((slope_label(prediction), slope_text(plan, slope)))
    return rows


def predicted_facts(plan: Plan) -> Rows:
    """The prediction as a key figure: its value, and what it is."""
    prediction = plan.prediction
    if prediction is None or plan.payment == 0:
        return []
    interval = interval_text(prediction)
    around = f" (90 % interval: {interval})" if interval else ""
    value = score_text(prediction.unit, score_of(prediction).value)
    return [(value, f"predicted {predicted_name(prediction)}{around}")]


def prediction_metrics(plan: Plan) -> list[tuple[str, str, str, str]]:
    """The explorer's metrics of a prediction: label, value, what is written below, and an explanation."""
    prediction = plan.prediction
    if prediction is None:
        return []
    name, interval = predicted_name(prediction), interval_text(prediction)
    value = score_text(prediction.unit, score_of(prediction).value)
    about = (
        f"Mean {name} over the late rounds, as the calibrated loss law predicts it, with its 90 % interval."
    )
    metrics = [(f"Predicted {name}", value, interval or "no interval", about)]
    slope = payment_per_point(plan)
    if slope is not None:
        label = "Payment per point" if prediction.unit == "error" else f"Payment per 1 % less {name}"
        about = "What one more point costs at this plan, per round: the slope of the frontier."
        below = f"{money(slope * plan.game.num_rounds)} in total"
        metrics.append((label, money(slope), below, about))
    return metrics


def slope_label(prediction: Prediction) -> str:
    """What the slope of the frontier is the price of."""
    name = predicted_name(prediction)
    what = "point of accuracy" if name == "accuracy" else f"1 % less {name}"
    return f"payment per {what} at this plan"


def slope_text(plan: Plan, slope: float) -> str:
    """The slope of the frontier at a plan."""
    return f"{money(slope)} per round, {money(slope * plan.game.num_rounds)} in all"


def cost_label(plan: Plan) -> str:
    """What the server's cost is: a power law's is above its floor."""
    return "cost U" if plan.prediction is None else "cost U above the floor"


def outcome_rows(outcome: "Outcome | None") -> Rows:
    """Predicted and measured, for the table of a run."""
    if outcome is None:
        return []
    name = predicted_name(outcome.prediction)
    return [
        (f"predicted {name}", prediction_text(outcome.prediction)),
        (
            f"measured from round {outcome.first_round:,} on",
            score_text(outcome.prediction.unit, outcome.measured),
        ),
    ]


def outcome_sentence(outcome: "Outcome | None") -> str:
    """What to do if the measured value is outside of the 90 % interval; empty if it is not."""
    if outcome is None or outcome.inside:
        return ""
    measured = score_text(outcome.prediction.unit, outcome.measured)
    return f"the law predicted {prediction_text(outcome.prediction)}, measured {measured}: calibrate again"
