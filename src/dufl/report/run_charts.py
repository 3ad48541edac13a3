"""Charts of training runs over the rounds: accuracy, loss, cost, and data as planned and as measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dufl.data.arrival import Arrival
from dufl.experiment.train import Run
from dufl.game.dynamics import Array, collection
from dufl.game.plan import Plan
from dufl.report.chart_spec import COLORS, DASHES, GREY, Axis, Chart, Column, Series
from dufl.report.plan_charts import TERMS

POINTS = 6000  # drawn in one chart at most, over all its groups
ARRIVALS = 12  # arrivals of classes that are marked at most


@dataclass(frozen=True, eq=False)
class Curves:
    """Runs drawn as one line: the mean of their seeds, with their range around it.

    Attributes:
        name: its text in the legend.
        policy: of data update.
        runs: one per seed.
        family: what it shares with those that differ by the policy alone.
    """

    name: str
    policy: str
    runs: Sequence[Run]
    family: str = ""

    @cached_property
    def rounds(self) -> int:
        """How many rounds all of its runs have."""
        return min(len(run.records) for run in self.runs)

    def curve(self, field: str) -> Array:
        """A field of the records, of shape (runs, rounds)."""
        return np.array([[getattr(r, field) for r in run.records[: self.rounds]] for run in self.runs], float)


Curve = Callable[[Curves], Array]
Planned = Mapping[Curves, Array]
_ROUND = Axis("round t", integers=True)


def accuracy_chart(groups: Sequence[Curves], arrival: Arrival | None = None) -> Chart:
    """The accuracy on the test samples after every round."""
    chart = _over_rounds(
        Chart("accuracy", "Test accuracy", _ROUND, Axis("accuracy (%)"), [], {}),
        groups,
        lambda group: 100 * group.curve("accuracy"),
        ".2f",
    )
    return _with_arrivals(chart, arrival)


def loss_chart(groups: Sequence[Curves], arrival: Arrival | None = None) -> Chart:
    """The mean cross-entropy on the test samples after every round."""
    chart = _over_rounds(
        Chart("loss", "Test loss", _ROUND, Axis("cross-entropy"), [], {}),
        groups,
        lambda group: group.curve("loss"),
        ".4f",
    )
    return _with_arrivals(chart, arrival)


def cost_so_far_chart(groups: Sequence[Curves]) -> Chart:
    """The cumulative server cost, with measured volumes and ages; of one group by term."""
    note = "Payment, insufficient data and stale data, computed from the measured volumes and ages."
    y = Axis("cost U", from_zero=True)
    chart = Chart("cost_so_far", "Cumulative server cost", _ROUND, y, [], {}, note)
    if len(groups) == 1:
        return _by_term(chart, groups[0])
    return _over_rounds(chart, groups, lambda group: group.curve("server_cost"), ",.4g")


def _by_term(chart: Chart, group: Curves) -> Chart:
    """The terms of the cost stacked: the mean over the seeds."""
    rounds = np.arange(0, group.rounds, -(-group.rounds // POINTS))
    series, data = list[Series](), dict[str, Column]({"round": rounds})
    for (name, color), field in zip(TERMS, ("payment", "volume", "staleness"), strict=True):
        data[name] = group.curve(f"cost_of_{field}").mean(axis=0)[rounds]
        series.append(Series(name, rounds, data[name], color, "area", width=1))
    data["total"] = group.curve("server_cost").mean(axis=0)[rounds]
    return replace(chart, series=series, data=data)


def classes_chart(groups: Sequence[Curves], arrival: Arrival | None) -> Chart:
    """The number of classes in the buffers, and of those that can be collected."""
    chart = _over_rounds(
        Chart("classes", "Classes in the buffers", _ROUND, Axis("classes", from_zero=True), [], {}),
        groups,
        lambda group: group.curve("classes"),
        ".3g",
    )
    if arrival is None:
        return chart
    rounds, name = chart.data["round"], "available"
    known = [arrival.count(t) for t in rounds]
    wide = replace(_wide(name, rounds, known, GREY, "d"), step=True)
    y = replace(chart.y, range=(0.0, 1.08 * arrival.num_classes))
    return replace(chart, y=y, series=[wide, *chart.series], data={**chart.data, name: known})


def data_charts(groups: Sequence[Curves], plans: Mapping[Curves, Plan]) -> list[Chart]:
    """Volume, collection and age, planned and measured; `plans` has those of the groups that follow one."""
    charts = [volume_chart(groups, {group: plan.total_volume for group, plan in plans.items()})]
    collecting = [group for group in groups if group in plans and group.rounds > 1]
    if collecting:
        charts.append(_collection_chart(collecting, plans))
    return [*charts, staleness_chart(groups, {group: plan.mean_staleness for group, plan in plans.items()})]


def volume_chart(groups: Sequence[Curves], planned: Planned) -> Chart:
    """The samples that all clients hold, φ(t)."""
    y = Axis("samples", from_zero=True)
    chart = Chart("volume", "Volume of all clients, φ(t)", _ROUND, y, [], {})
    drawn = _against_plan(chart, groups, lambda group: group.curve("total_volume"), planned, ",.0f")
    return _without_start(drawn)


def staleness_chart(groups: Sequence[Curves], planned: Planned) -> Chart:
    """The mean age of the samples, S(t)."""
    y, note = Axis("rounds", from_zero=True), "A fresh sample has age 1."
    chart = Chart("staleness", "Mean age of the samples, S(t)", _ROUND, y, [], {}, note)
    return _against_plan(chart, groups, lambda group: group.curve("mean_age"), planned, ",.2f")


def _collection_chart(groups: Sequence[Curves], plans: Mapping[Curves, Plan]) -> Chart:
    y = Axis("samples per round", from_zero=True)
    note = "Measured: the volume of the next round less the share θ of this round's volume."
    return _against_plan(
        Chart("collection", "Collection of all clients, Δ(t)", _ROUND, y, [], {}, note),
        groups,
        lambda group: collection(group.curve("total_volume").T, plans[group].conservation_rate).T,
        {group: collection(plan.total_volume, plan.conservation_rate) for group, plan in plans.items()},
        ",.0f",
    )


def _over_rounds(chart: Chart, groups: Sequence[Curves], curve: Curve, hover: str, suffix: str = "") -> Chart:
    """The chart with one line per group: the mean of its seeds, and their range around it."""
    curves = [curve(group) for group in groups]
    most = max(values.shape[1] for values in curves)
    rounds = np.arange(0, most, -(-most * len(groups) // POINTS))
    series: list[Series] = []
    data: dict[str, Column] = {"round": rounds}
    for index, (group, values) in enumerate(zip(groups, curves, strict=True)):
        color, dash = _look(groups, index)
        name, shown = _name(group, suffix), _at_rounds(values, rounds)
        mean = data[name] = shown.mean(axis=0)
        low = high = None
        if len(shown) > 1:
            low, high = shown.min(axis=0), shown.max(axis=0)
            data |= {f"{name}, min": low, f"{name}, max": high}
        series.append(Series(name, rounds, mean, color, low=low, high=high, dash=dash, hover=hover))
    return replace(chart, series=series, data=data)


def used_chart(groups: Sequence[Curves]) -> Chart:
    """The number of updates that were aggregated in every round."""
    y = Axis("clients", from_zero=True)
    chart = Chart("used", "Updates aggregated per round", _ROUND, y, [], {})
    return _over_rounds(chart, groups, lambda group: group.curve("participants"), ".3g")


def _against_plan(
    chart: Chart, groups: Sequence[Curves], curve: Curve, planned: Planned, hover: str
) -> Chart:
    """One line per group for what was measured, on a wide faint one for what was planned.

    Groups without update are drawn only when the reader clicks on the legend: they would flatten the others.
    """
    static = [group for group in groups if group.policy == "static"]
    hidden = {_name(group, "measured") for group in static if len(static) < len(groups)}
    chart = _over_rounds(chart, groups, curve, hover, "measured")
    rounds, data, wide = np.asarray(chart.data["round"]), dict(chart.data), list[Series]()
    for index, group in enumerate(groups):
        if group in planned:
            name = _name(group, "planned")
            data[name] = _at_rounds(planned[group][None], rounds)[0]
            if _name(group, "measured") not in hidden:
                wide.append(_wide(name, rounds, data[name], _look(groups, index)[0], hover))
    if len(wide) > 1 and all(np.array_equal(one.y, wide[0].y, equal_nan=True) for one in wide):
        wide = [replace(wide[0], name="planned", color=GREY)]  # they follow the same plan
        data["planned"] = wide[0].y
    measured = [replace(series, visible=series.name not in hidden) for series in chart.series]
    note = f"{chart.note} Click on the legend to show runs without data update." if hidden else chart.note
    return replace(chart, series=[*wide, *measured], data=data, note=note.strip())


def _without_start(chart: Chart) -> Chart:
    """Cut off the first round where clients begin with far more than they will hold."""
    shown = [np.asarray(series.y, float) for series in chart.series if series.visible]
    first = max(float(y[0]) for y in shown)
    later = max((float(np.nanmax(y[1:])) for y in shown if y.size > 1), default=first)
    if first < 3 * later:
        return chart
    note = f"The initial volume, {first:,.0f} samples, is beyond the axis. {chart.note}".strip()
    return replace(chart, y=replace(chart.y, range=(0.0, 1.15 * later)), note=note)


def _with_arrivals(chart: Chart, arrival: Arrival | None) -> Chart:
    """Mark the rounds in which classes arrive, if they are few."""
    last = int(chart.data["round"][-1])
    new = [t for t in range(1, last + 1) if arrival and arrival.count(t) > arrival.count(t - 1)]
    if not 0 < len(new) <= ARRIVALS:
        return chart
    return replace(chart, dotted=new, note="Dotted lines: a new class becomes available.")


def _look(groups: Sequence[Curves], index: int) -> tuple[str, str]:
    """Colour and dash of a group; blue and solid are for data update.

    Where several algorithms meet several policies, the colour is the algorithm's and the dash the policy's.
    """
    families = list(dict.fromkeys(group.family for group in groups))
    policies = sorted({group.policy for group in groups}, key=lambda policy: (policy == "static", policy))
    if len(families) > 1 and len(policies) > 1:
        color, dash = families.index(groups[index].family), policies.index(groups[index].policy)
    else:
        updated_first = sorted(range(len(groups)), key=lambda i: groups[i].policy == "static")
        color = dash = updated_first.index(index) + (policies == ["static"])
    return COLORS[color % len(COLORS)], DASHES[dash % len(DASHES)]


def _name(group: Curves, suffix: str) -> str:
    return ": ".join(filter(None, (group.name, suffix)))


def _wide(name: str, rounds: Column, values: Column, color: str, hover: str) -> Series:
    """A wide faint line, on which another can lie."""
    return Series(name, rounds, values, color, width=8, opacity=0.4, hover=hover)


def _at_rounds(values: Array, rounds: Array) -> Array:
    """The values in some rounds, not a number where a run has not come so far."""
    padded = np.full((len(values), int(rounds[-1]) + 1), np.nan)
    length = min(values.shape[1], padded.shape[1])
    padded[:, :length] = values[:, :length]
    return np.asarray(padded[:, rounds])
