"""The chart of the frontier: which accuracy each payment buys."""

from collections.abc import Sequence

import numpy as np

from dufl.experiment.frontier import Frontier, score_of
from dufl.formatting import money, percent
from dufl.game.plan import Plan
from dufl.report.chart_spec import BLUE, GREEN, GREY, ORANGE, RED, Axis, Chart, Series
from dufl.report.predictions import NAMES, score_text

Measured = Sequence[tuple[float, float]]  # payments per round, and what was measured there


def frontier_chart(
    plan: Plan,
    frontier: Frontier,
    baseline: Plan | None = None,
    paper: Plan | None = None,
    measured: Measured = (),
) -> Chart:
    """The best prediction for every payment, with its 90 % band.

    Args:
        plan: the plan that is marked.
        frontier: of its game.
        baseline: Algorithm 1's plan, if it is known.
        paper: the clients' response to the offer of the paper's parameters.
        measured: payments and measured accuracies (losses, if the law is about these).
    """
    name, scale = NAMES[frontier.unit], 100.0 if frontier.unit == "error" else 1.0
    best, low, high = (scale * values for values in (frontier.value, frontier.low, frontier.high))
    series = [Series("predicted, 90 % band", frontier.payment, best, BLUE, low=low, high=high, hover=".1f")]
    paid = [(payment, value) for payment, value in measured if payment > 0 and np.isfinite(value)]
    if paid:
        payments, values = np.array(paid).T
        series.append(Series("measured", payments, scale * values, GREY, "points", marker="square"))
    marks = [
        ("paper's parameters", paper, "diamond", GREEN),
        ("Algorithm 1", baseline, "circle", ORANGE),
        ("this plan", plan, "star", RED),
    ]
    series += [_mark(*mark, scale) for mark in marks if mark[1] is not None and mark[1].payment > 0]
    unit = " (%)" if frontier.unit == "error" else ""
    return Chart(
        "frontier",
        f"{name[:1].upper()}{name[1:]} that each payment buys",
        Axis("payment per round R", log=True),
        Axis(f"predicted {name}{unit}"),
        series,
        {
            "payment": frontier.payment,
            "conservation_rate": frontier.conservation_rate,
            f"predicted_{name.lower()}": frontier.value,
            "low": frontier.low,
            "high": frontier.high,
        },
        note=_note(frontier),
    )


def _mark(name: str, plan: Plan | None, marker: str, color: str, scale: float) -> Series:
    """A plan as a point: what it pays, and what is predicted for it."""
    assert plan is not None
    assert plan.prediction is not None
    value = score_of(plan.prediction).value
    text = f"{name}: {score_text(plan.prediction.unit, value)} for {money(plan.payment)}"
    return Series(text, [plan.payment], [scale * value], color, "points", marker=marker, hover=".1f")


def _note(frontier: Frontier) -> str:
    rates = [percent(rate, 0) for rate in frontier.conservation_rate[[0, -1]].tolist()]
    return (
        "By the calibrated loss law. Each payment has its own best conservation rate: from "
        f"{rates[0]} on the left to {rates[1]} on the right."
    )
