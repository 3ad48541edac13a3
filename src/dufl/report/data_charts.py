"""What the plan says of the data, and what came true: volume, collection and age over the rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dufl.experiment.stored import Group
from dufl.game.dynamics import Array
from dufl.game.plan import Plan
from dufl.report.interactive import Chart, Trace, axes
from dufl.report.run_charts import Curve, at_rounds, look, over_rounds, wide_line

Plans = Mapping[Group, Plan]

MEASURED, PLANNED = ": measured", ": planned"


def data_charts(groups: Sequence[Group], plans: Plans) -> list[Chart]:
    """Volume, collection and age, planned and measured; `plans` has those of the groups that follow one."""
    charts = [_volume(groups, plans)]
    collecting = [group for group in groups if group in plans and group.rounds > 1]  # from round to round
    if collecting:
        charts.append(_collection(collecting, plans))
    return [*charts, _staleness(groups, plans)]


def _volume(groups: Sequence[Group], plans: Plans) -> Chart:
    chart = _against_plan(
        _empty("volume", "Samples held by all clients, φ(t)", "samples"),
        groups,
        lambda group: group.curve("total_volume"),
        {group: plan.total_volume for group, plan in plans.items()},
        "%{y:,.0f}",
    )
    return _without_start(chart)


def _collection(groups: Sequence[Group], plans: Plans) -> Chart:
    return _against_plan(
        _empty(
            "collection",
            "Samples collected by all clients, Δ(t)",
            "samples a round",
            "Measured is what volumes tell: those of the next round less the share θ of this.",
        ),
        groups,
        lambda group: collected(group.curve("total_volume"), plans[group].conservation_rate),
        {group: collected(plan.total_volume, plan.conservation_rate) for group, plan in plans.items()},
        "%{y:,.0f}",
    )


def _staleness(groups: Sequence[Group], plans: Plans) -> Chart:
    return _against_plan(
        _empty("staleness", "Mean age of the samples, S(t)", "rounds", "A fresh sample has age 1."),
        groups,
        lambda group: group.curve("mean_age"),
        {group: plan.mean_staleness for group, plan in plans.items()},
        "%{y:,.2f}",
    )


def collected(volume: Array, rate: float) -> Array:
    """Δ(t) = D(t+1) − θ·D(t), of shape (..., rounds − 1)."""
    return np.asarray(np.maximum(volume[..., 1:] - rate * volume[..., :-1], 0))


def _empty(name: str, title: str, unit: str, note: str = "") -> Chart:
    return Chart(
        name, title, [], axes("round t", unit, yaxis={"rangemode": "tozero", "tickformat": ","}), {}, note
    )


def _against_plan(
    chart: Chart, groups: Sequence[Group], curve: Curve, planned: Mapping[Group, Array], hover: str
) -> Chart:
    """A line a group for what was measured, on a broad faint one for what was planned."""
    chart = over_rounds(chart, groups, curve, hover, MEASURED)
    rounds = np.asarray(chart.data["round"])
    broad: list[Trace] = []
    data = dict(chart.data)
    for index, group in enumerate(groups):
        if group in planned:
            name = group.name + PLANNED
            data[name] = at_rounds(planned[group][None], rounds)[0]
            if not _is_idle(group) or all(map(_is_idle, groups)):
                broad.append(wide_line(name, rounds, data[name], look(groups, index)[0], hover))
    return _without_idle(replace(chart, traces=[*broad, *chart.traces], data=data), groups)


def _without_idle(chart: Chart, groups: Sequence[Group]) -> Chart:
    """Draw groups without update only when the legend is asked for them: they would flatten the rest."""
    idle = {group.name + MEASURED for group in groups if _is_idle(group)}
    if all(map(_is_idle, groups)) or not idle:
        return chart
    for trace in chart.traces:
        if trace["name"] in idle:
            trace["visible"] = "legendonly"
    return replace(chart, note=f"{chart.note} Click the legend to add what has no update.".strip())


def _is_idle(group: Group) -> bool:
    return group.policy == "static"


def _without_start(chart: Chart) -> Chart:
    """Cut off the first round where clients begin with far more than they will hold."""
    shown = [np.array(t["y"], float) for t in chart.traces if t.get("visible") != "legendonly"]
    first = max(float(y[0]) for y in shown)
    later = max((float(np.nanmax(y[1:])) for y in shown if y.size > 1), default=first)
    if first < 3 * later:
        return chart
    chart.layout["yaxis"]["range"] = [0, 1.15 * later]
    begun = f"Clients begin with {first:,.0f}, above the edge of the picture."
    return replace(chart, note=f"{begun} {chart.note}".strip())
