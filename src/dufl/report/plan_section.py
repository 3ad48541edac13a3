"""What was planned and why, and how far it came true."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dufl.formatting import money, number, percent
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.interactive import Chart
from dufl.report.page import Block, Cell, Section, paragraph, table
from dufl.report.plan_charts import cost_chart, surface_chart
from dufl.report.planning import SHOWN, Planning, is_negotiated
from dufl.report.stored import Group, differences

Row = list[Cell]


def plan_section(found: Sequence[Planning], progress: Progress = lambda _: None) -> Section:
    """Every plan in full; a table alone if there are very many."""
    blocks: list[Block] = []
    if len(found) > 1:
        blocks.append(_plans_table(found))
    for place, planning in enumerate(found if len(found) <= SHOWN else [], 1):
        name, prefix = (f"Plan {place}", f"plan_{place}_") if len(found) > 1 else ("", "")
        charts = _charts(planning, progress)
        blocks += [
            *([f"<h3>{name}</h3>\n"] if name else []),
            *(paragraph(text) for text in _words(planning)),
            [replace(chart, name=prefix + chart.name) for chart in charts],
            *_came_true(planning, f"{name}: " if name else ""),
        ]
    return Section("Plan", "The plan" if len(found) == 1 else "The plans", blocks)


def _words(planning: Planning) -> list[str]:
    """What is paid and kept, why, and what it saves."""
    plan, cost = planning.plan, planning.plan.cost_by_term
    parts = [number(float(part.sum())) for part in (cost.payment, cost.volume, cost.staleness)]
    texts = [
        f"The server pays R = {money(plan.payment)} a round, which clients share by the data they hold. From "
        f"one round to the next they keep θ = {percent(plan.conservation_rate, 1)} of their data and discard "
        f"the rest. {_reason(planning)}",
        f"Its cost over all rounds is U = {number(cost.total)}: {parts[0]} for payment, {parts[1]} for too "
        f"little data and {parts[2]} for stale data. {_savings(planning)}",
    ]
    if not planning.followers:
        texts.insert(
            0, "No run on this page follows a plan of the server's. For this federation it would be:"
        )
    if planning.replanned:
        texts.append(
            f"The federation planned again, last from round {planning.replanned:,} on, when clients had gone "
            "or come. Shown is the first plan."
        )
    return texts


def _reason(planning: Planning) -> str:
    plan = planning.plan
    if plan.payment == 0 and plan.conservation_rate == 1:
        return "Here no update at all costs the server least."
    if plan.method == "algorithm1":
        return (
            "The paper's Algorithm 1 chose it: the server searches while the clients' total is held fixed, "
            "they answer, and so on in turn."
        )
    asked = any(is_negotiated(stored) for one in planning.groups for stored in one.every)
    how = " It was found by asking the clients, whose costs stayed their own." if asked else ""
    return (
        "Of all that it may offer, this costs the server least once every client has answered in its own "
        "interest: to pay less brings too little data, to pay more costs more than the data are worth, and "
        f"to keep more makes them stale.{how}"
    )


def _savings(planning: Planning) -> str:
    plan, baseline = planning.plan, planning.baseline
    told = [f"{_saved(plan.server_cost, plan.no_update_cost)} without update ({number(plan.no_update_cost)})"]
    if baseline is not None:
        told.append(
            f"{_saved(plan.server_cost, baseline.server_cost)} with the plan of the paper's Algorithm 1 "
            f"({number(baseline.server_cost)}), which pays {money(baseline.payment)} a round"
        )
    return f"That is {', and '.join(told)}."


def _saved(ours: float, other: float) -> str:
    if not np.isfinite(other) or other <= 0:
        return "beside that of the server"
    saved = 1 - ours / other
    return f"{percent(abs(saved), 1)} {'less' if saved >= 0 else 'more'} than"


def _charts(planning: Planning, progress: Progress) -> list[Chart]:
    plan, baseline = planning.plan, planning.baseline
    cost = replace(
        cost_chart(plan, baseline), note="The shorter the better; colours say what the cost is for."
    )
    surface = surface_chart(plan, baseline, *planning.surface(progress))
    note = (
        "Every point is an offer to the same clients, its colour what the server ends up with; dark is dear."
    )
    return [cost, replace(surface, note=note)]


def _came_true(planning: Planning, prefix: str) -> list[str]:
    """A table for every group that follows the plan: planned beside measured."""
    tables = []
    for one in planning.followers:
        label = f"{prefix}{one.name}" if len(planning.followers) > 1 or prefix else "The plan"
        caption = f"{label}: planned and measured over {one.rounds:,} rounds"
        heads = ("", "planned", "measured", "difference, %")
        tables.append(table(caption, heads, _measured_rows(planning.plan, one), sorts=False))
    return tables


def _measured_rows(plan: Plan, one: Group) -> list[Row]:
    rounds, found = one.rounds, one.summary
    cost = plan.cost_by_term
    parts = [float(part[:rounds].sum()) for part in (cost.payment, cost.volume, cost.staleness)]
    terms = ("payment", "volume", "staleness")
    names = ("\u2003of it payment", "\u2003of it too little data", "\u2003of it stale data")
    rows = [
        ("payment over all rounds", plan.payment * rounds, found["total_payment"], money),
        ("samples held, mean", float(plan.total_volume[:rounds].mean()), found["mean_volume"], number),
        ("age of the samples, mean", float(plan.mean_staleness[:rounds].mean()), found["mean_age"], number),
        ("server cost U", sum(parts), found["server_cost"], number),
        *(
            (name, part, found[f"cost_of_{term}"], number)
            for name, part, term in zip(names, parts, terms, strict=True)
        ),
    ]
    return [
        [name, (form(planned), planned), (form(measured), measured), _difference(planned, measured)]
        for name, planned, measured, form in rows
    ]


def _difference(planned: float, measured: float) -> Cell:
    if not planned or not np.isfinite([planned, measured]).all():
        return "–", 0.0
    share = round(100 * (measured / planned - 1), 2) or 0.0
    return f"{share:+.2f}".replace("-", "−") if share else "0.00", share


def _plans_table(found: Sequence[Planning]) -> str:
    """One row a plan, with what it differs by."""
    settings = [
        {
            k: v
            for k, v in one.groups[0].every[0].settings.items()
            if k.startswith(("game.", "clients.", "leader."))
        }
        for one in found
    ]
    keys = differences(settings)
    heads = ["plan", *keys, "R", "θ, %", "cost U", "no update U", "Algorithm 1 U"]
    rows: list[Row] = []
    for place, (one, told) in enumerate(zip(found, settings, strict=True), 1):
        plan, baseline = one.plan, one.baseline
        rows.append(
            [
                (f"Plan {place}", place),
                *(_setting(told.get(key, "–")) for key in keys),
                (money(plan.payment), plan.payment),
                (f"{100 * plan.conservation_rate:.1f}", plan.conservation_rate),
                (number(plan.server_cost), plan.server_cost),
                (number(plan.no_update_cost), plan.no_update_cost),
                (number(baseline.server_cost), baseline.server_cost) if baseline else ("–", float("inf")),
            ]
        )
    return table("The plans behind the runs, and by what they differ", heads, rows)


def _setting(value: object) -> Cell:
    """A value of the configuration."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}", float(value)
    return str(value)
