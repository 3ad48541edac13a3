"""Predicted and measured round by round, and the plans that followed: chart, tables and sentences."""

from collections.abc import Sequence

import numpy as np

from dufl.experiment.predicted import Tracking, measured_score
from dufl.experiment.remaining import Remaining
from dufl.formatting import count, money, number, percent
from dufl.game.loss import PowerLaw
from dufl.game.remaining import Choice
from dufl.learning.federation import Record, Replan
from dufl.learning.tracking import Block
from dufl.report.chart_spec import BLUE, GREY, RED, Axis, Chart, Series
from dufl.report.page import Cell, Table
from dufl.report.predictions import NAMES, prediction_text, score_text

Rows = list[tuple[str, str]]
FEW = 4  # replans that are listed in the table of a run


def tracking_chart(tracking: Tracking, name: str = "tracking") -> Chart:
    """What was predicted for every round, with its 90 % interval, and what was measured."""
    what, scale = NAMES[tracking.unit], 100.0 if tracking.unit == "error" else 1.0
    rounds = np.array(tracking.rounds)
    predicted, low, high, measured = (
        scale * values for values in (tracking.predicted, tracking.low, tracking.high, tracking.measured)
    )
    series = [
        Series("predicted, 90 % interval", rounds, predicted, BLUE, low=low, high=high, hover=",.4g"),
        Series("measured", rounds, measured, GREY, width=1.3, hover=",.4g"),
    ]
    known = [block for block in tracking.blocks if np.isfinite(block.measured)]
    if known:
        middle = [(block.rounds[0] + block.rounds[-1]) / 2 for block in known]
        means = [scale * measured_score(block) for block in known]
        series.append(Series("mean of a block", middle, means, RED, "points", marker="diamond", hover=",.4g"))
    unit = " (%)" if tracking.unit == "error" else ""
    return Chart(
        name,
        f"{what[:1].upper()}{what[1:]}, predicted and measured",
        Axis("round t", integers=True),
        Axis(f"{what}{unit}"),
        series,
        {
            "round": rounds,
            "predicted": tracking.predicted,
            "low": tracking.low,
            "high": tracking.high,
            "measured": ["" if v != v else v for v in tracking.measured.tolist()],
        },
        note="The interval is that of the mean over a block of rounds; single rounds scatter more.",
    )


def block_table(tracking: Tracking) -> Table:
    """One row per block: its rounds, what was predicted and measured, and whether they agree."""
    rows: list[list[Cell]] = [
        [
            rounds_text(block),
            prediction_text(block.prediction),
            (score_text(tracking.unit, measured_score(block)), measured_score(block)),
            "inside" if block.inside else "outside",
        ]
        for block in tracking.blocks
    ]
    heads = ("rounds", f"predicted {NAMES[tracking.unit]}", "measured", "90 % interval")
    return Table("Means over blocks of rounds: predicted and measured", heads, rows, sortable=False)


def replan_table(records: Sequence[Record]) -> Table:
    """One row per new plan of a run."""
    rows: list[list[Cell]] = []
    for record in records:
        if (event := record.replan) is not None:
            rows.append(
                [
                    (f"{record.round:,}", record.round),
                    (money(event.payment), event.payment),
                    (f"{100 * event.conservation_rate:.1f}", event.conservation_rate),
                    (number(event.cost), event.cost),
                    (number(event.old_cost), event.old_cost),
                    (number(event.law["floor"]), event.law["floor"]),
                    (f"{event.observations}", event.observations),
                ]
            )
    heads = ("from round", "R", "θ (%)", "cost of the rest", "at the old offer", "floor of the law", "blocks")
    return Table("The remaining rounds planned again", heads, rows, sortable=False)


def rounds_text(block: Block) -> str:
    """The rounds of a block."""
    first, last = block.rounds[0], block.rounds[-1]
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def parted_sentence(tracking: Tracking | None) -> str:
    """When measured and predicted parted; empty if they did not."""
    if tracking is None or (block := tracking.parted) is None:
        return ""
    measured = score_text(tracking.unit, measured_score(block))
    word = "round" if len(block.rounds) == 1 else "rounds"
    return (
        f"in {word} {rounds_text(block)} the measured {NAMES[tracking.unit]} left the predicted interval: "
        f"predicted {prediction_text(block.prediction)}, measured {measured}"
    )


def replan_rows(records: Sequence[Record]) -> Rows:
    """The new plans of a run, for its table."""
    events = [(record.round, record.replan) for record in records if record.replan is not None]
    if not events:
        return []
    rows = [("planned again", count(len(events), "time"))]
    rows += [(f"  from round {round:,}", offer_text(event)) for round, event in events[-FEW:]]
    return rows


def offer_text(event: Replan) -> str:
    """The offer of a new plan."""
    if not event.changed:
        return "same offer"
    return f"R {money(event.payment)}, θ {percent(event.conservation_rate, 1)}"


def remaining_text(rest: Remaining, choice: Choice | None) -> str:
    """What a plan of the remaining rounds starts from, and what the old offer would cost."""
    law = rest.experiment.game.loss
    parts = [f"after {count(rest.round, 'round')}"]
    if rest.observations and isinstance(law, PowerLaw):
        blocks = count(rest.observations, "block")
        parts.append(f"the loss law updated with {blocks} of rounds (floor {number(law.floor)})")
    lines = [", ".join(parts)]
    if choice is not None and rest.offer is not None:
        old = f"R {money(rest.offer.payment)}, θ {percent(rest.offer.conservation_rate, 1)}"
        kept = "" if choice.changed else ", and is kept"
        lines.append(f"the old offer ({old}) would cost {number(choice.old.server_cost)}{kept}")
    return "\n".join(f"  {line}" for line in lines)
