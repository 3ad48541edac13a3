"""The plan of the report: the offer and why it was chosen, its cost, and planned beside measured."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dufl.experiment.frontier import frontier_of, paper_offer, score_of
from dufl.experiment.predicted import Outcome
from dufl.experiment.stored import differences
from dufl.formatting import count, money, number, percent, signed
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.chart_spec import Chart
from dufl.report.frontier import frontier_chart
from dufl.report.limits import limit_texts
from dufl.report.page import Block, Cell, Charts, Heading, Paragraph, Section, Table
from dufl.report.participation import participation_text
from dufl.report.plan_charts import TERMS, cost_chart, plan_surface, surface_chart
from dufl.report.planning import SHOWN, Planning
from dufl.report.predictions import (
    cost_label,
    outcome_sentence,
    predicted_name,
    prediction_rows,
    prediction_text,
    score_text,
)
from dufl.report.tracking import block_table, parted_sentence, replan_table, tracking_chart

Row = list[Cell]


def plan_section(plannings: Sequence[Planning], progress: Progress = lambda _: None) -> Section:
    """Every plan in full; only a table if there are very many."""
    blocks: list[Block] = []
    if len(plannings) > 1:
        blocks.append(_plans_table(plannings))
    for place, planning in enumerate(plannings if len(plannings) <= SHOWN else [], 1):
        name, prefix = (f"Plan {place}", f"plan_{place}_") if len(plannings) > 1 else ("", "")
        charts = [replace(chart, name=prefix + chart.name) for chart in _charts(planning, progress)]
        blocks += [
            *([Heading(name)] if name else []),
            *(Paragraph(text) for text in _texts(planning)),
            *([Charts(charts)] if charts else []),
            *_planned_and_measured(planning, name or "The plan"),
            *_tracking_tables(planning),
        ]
    return Section("Plan", "The plan" if len(plannings) == 1 else "The plans", blocks)


def _texts(planning: Planning) -> list[str]:
    """The offer, its reason and its cost."""
    plan, cost = planning.plan, planning.plan.cost_by_term
    unknown = (
        "The loss law of this run is a function of its own, which a run directory does not hold. Costs that "
        "were measured in training are shown; planned costs and costs of other offers are not known."
    )
    if not planning.law_known and not planning.followers:
        return [unknown]
    parts = [number(float(part.sum())) for part in (cost.payment, cost.volume, cost.staleness)]
    terms = ", ".join(f"{part} for {name}" for part, (name, _) in zip(parts, TERMS, strict=True))
    texts = [
        f"The server pays R = {money(plan.payment)} per round, shared among the clients by volume. From one "
        f"round to the next, clients keep θ = {percent(plan.conservation_rate, 1)} of their data and discard "
        f"the rest. {_reason(planning)}",
        *_prediction_texts(planning),
        f"The {_cost(plan)} over all rounds is U = {number(cost.total)}: {terms}. {_savings(planning)}"
        if planning.law_known
        else unknown,
    ]
    if losses := participation_text(plan):
        texts.append(losses)
    texts += limit_texts(plan)
    if not planning.followers:
        texts.insert(0, "No run on this page follows the server's plan. For this federation it is:")
    if planning.endless:
        texts.append(
            f"This is a service: server and clients agree on a plan for {plan.game.num_rounds:,} rounds, run "
            f"the first of them, and plan again; last from round {planning.replanned:,} on. Shown is what a "
            "first plan would be with the last offer."
        )
    elif planning.replanned:
        texts.append(
            f"The federation planned again when clients joined or left, last from round "
            f"{planning.replanned:,} on. The first plan is shown."
        )
    return texts


def _cost(plan: Plan) -> str:
    return cost_label(plan).replace(" U", "")


def _prediction_texts(planning: Planning) -> list[str]:
    """What the loss law predicts, the price of a point, and a warning if trainings measured otherwise."""
    plan = planning.plan
    if plan.prediction is None:
        return []
    (_, predicted), *slopes = prediction_rows(plan)
    text = f"The calibrated loss law predicts {_article(plan)} of {predicted}, with its 90 % interval."
    text += "".join(f" {label[:1].upper()}{label[1:]}: {value}." for label, value in slopes)
    missed = [outcome_sentence(planning.outcome), *_tracking_sentences(planning)]
    return [text, *(f"{one[:1].upper()}{one[1:]}." for one in missed if one)]


def _tracking_sentences(planning: Planning) -> list[str]:
    """When the first run that follows the plan left its prediction, and when it was planned again."""
    if not planning.tracked:
        return []
    run, tracking = planning.tracked[0]
    again = [event["round"] for event in run.replans]
    texts = [parted_sentence(tracking)]
    if again:
        rounds = ", ".join(f"{round:,}" for round in again)
        texts.append(
            f"the remaining rounds were planned again from round {rounds} on; the first plan is shown"
        )
    return texts


def _article(plan: Plan) -> str:
    assert plan.prediction is not None
    name = predicted_name(plan.prediction)
    return f"an {name}" if name in ("accuracy", "RMSE") else f"a {name}"


def _reason(planning: Planning) -> str:
    plan = planning.plan
    if plan.payment == 0 and plan.conservation_rate == 1:
        return "In this game, no update has the lowest cost."
    if plan.method == "algorithm1":
        return (
            "The offer was chosen by the paper's Algorithm 1: the server searches with the total volume held "
            "fixed, the clients respond, and both alternate."
        )
    asked = " It was found by querying the clients; their costs stayed private." * planning.is_negotiated
    return (
        "This offer has the lowest cost at the clients' equilibrium: a lower payment brings too little data, "
        "a higher one costs more than the data are worth, and a higher conservation rate makes the data "
        f"stale.{asked}"
    )


def _savings(planning: Planning) -> str:
    plan, baseline = planning.plan, planning.baseline
    others = [f"{_compared(plan.server_cost, plan.no_update_cost)} without update"]
    if baseline is not None:
        others.append(
            f"{_compared(plan.server_cost, baseline.server_cost)} with the plan of the paper's Algorithm 1, "
            f"which pays {money(baseline.payment)} per round"
        )
    return f"This is {', and '.join(others)}."


def _compared(ours: float, other: float) -> str:
    if not np.isfinite(other) or other <= 0:
        return f"to be compared with {number(other)}"
    saved = 1 - ours / other
    return f"{percent(abs(saved), 1)} {'less' if saved >= 0 else 'more'} than {number(other)}"


def _charts(planning: Planning, progress: Progress) -> list[Chart]:
    plan, baseline = planning.plan, planning.baseline
    if not planning.law_known:
        return []
    # Run directories hold no costs of other offers: the surface is computed here.
    surface = surface_chart(plan, baseline, *plan_surface(plan, baseline, progress))
    note = "Every point is an offer to the same clients; the darker, the higher the cost."
    tracked = [tracking_chart(tracking) for _, tracking in planning.tracked[:1]]
    return [
        *_frontier_charts(planning),
        *tracked,
        replace(cost_chart(plan, baseline), note="Shorter is better."),
        replace(surface, note=note),
    ]


def _frontier_charts(planning: Planning) -> list[Chart]:
    """The frontier, with what the runs measured; none if the loss law has no unit."""
    plan, frontier = planning.plan, frontier_of(planning.plan)
    if frontier is None:
        return []
    measured = [(payment, outcome.measured) for payment, outcome in planning.outcomes]
    return [frontier_chart(plan, frontier, planning.baseline, paper_offer(plan), measured)]


def _tracking_tables(planning: Planning) -> list[Table]:
    """Blocks of rounds and new plans of the first run that follows the plan."""
    if not planning.tracked:
        return []
    run, tracking = planning.tracked[0]
    blocks = [block_table(tracking)] if tracking.blocks else []
    return [*blocks, *([replan_table(run.records)] if run.replans else [])]


def _planned_and_measured(planning: Planning, name: str) -> list[Table]:
    """One table for the plan: planned beside the mean of all runs that follow it."""
    groups = planning.followers
    if not groups or planning.endless:
        return []
    runs, rounds = sum(len(group.runs) for group in groups), min(group.rounds for group in groups)
    mean = f"; measured values are the mean of {runs} runs" if runs > 1 else ""
    caption = f"{name}: planned and measured over {count(rounds, 'round')}{mean}"
    rows = _measured_rows(planning, rounds)
    return [Table(caption, ("", "planned", "measured", "difference (%)"), rows, sortable=False)]


def _measured_rows(planning: Planning, rounds: int) -> list[Row]:
    plan: Plan = planning.plan

    def curve(field: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.concatenate([group.curve(field)[:, :rounds] for group in planning.followers])

    def last(field: str) -> float:
        return float(curve(field)[:, -1].mean())

    cost = plan.cost_by_term
    planned = [float(part[:rounds].sum()) for part in (cost.payment, cost.volume, cost.staleness)]
    fields = ("cost_of_payment", "cost_of_volume", "cost_of_staleness")
    total_payment = float(curve("payment").sum(axis=1).mean())
    volume, age = float(plan.total_volume[:rounds].mean()), float(plan.mean_staleness[:rounds].mean())
    rows = [
        ("payment over all rounds", plan.payment * rounds, total_payment, money),
        ("samples held, mean over rounds", volume, float(curve("total_volume").mean()), number),
        ("age of the samples, mean over rounds", age, float(curve("mean_age").mean()), number),
        (f"server {cost_label(plan)}", sum(planned), last("server_cost"), number),
        *(
            (f"\u2003{name}", part, last(field), number)
            for (name, _), part, field in zip(TERMS, planned, fields, strict=True)
        ),
    ]
    return [
        *_outcome_row(planning.outcome),
        *(
            [name, (form(planned), planned), (form(measured), measured), _difference(planned, measured)]
            for name, planned, measured, form in rows
        ),
    ]


def _outcome_row(outcome: Outcome | None) -> list[Row]:
    """The predicted and the measured accuracy; no row if nothing was predicted."""
    if outcome is None:
        return []
    prediction, value = outcome.prediction, score_of(outcome.prediction).value
    name = f"{predicted_name(prediction)}, mean from round {outcome.first_round:,} on"
    planned: Cell = (prediction_text(prediction), value)
    measured: Cell = (score_text(prediction.unit, outcome.measured), outcome.measured)
    return [[name, planned, measured, _difference(value, outcome.measured)]]


def _difference(planned: float, measured: float) -> Cell:
    if not planned or not np.isfinite([planned, measured]).all():
        return "–", 0.0
    difference = 100 * (measured / planned - 1)
    return signed(difference, 2), round(difference, 2)


def _plans_table(plannings: Sequence[Planning]) -> Table:
    """One row per plan, with the settings in which they differ."""
    sections = ("game.", "clients.", "leader.")
    settings = [
        {k: v for k, v in one.groups[0].every[0].settings.items() if k.startswith(sections)}
        for one in plannings
    ]
    keys = differences(settings)
    heads = ["plan", *keys, "R", "θ (%)", "cost U", "U without update", "U of Algorithm 1"]
    rows: list[Row] = []
    for place, (one, values) in enumerate(zip(plannings, settings, strict=True), 1):
        plan, baseline = one.plan, one.baseline
        rows.append(
            [
                (f"Plan {place}", place),
                *(_setting(values.get(key, "–")) for key in keys),
                (money(plan.payment), plan.payment),
                (f"{100 * plan.conservation_rate:.1f}", plan.conservation_rate),
                (number(plan.server_cost), plan.server_cost),
                (number(plan.no_update_cost), plan.no_update_cost),
                (number(baseline.server_cost), baseline.server_cost) if baseline else ("–", float("inf")),
            ]
        )
    return Table("The plans of these runs and the settings in which they differ", heads, rows)


def _setting(value: object) -> Cell:
    """A value of the configuration."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}", float(value)
    return str(value)
