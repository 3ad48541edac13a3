"""Charts of training runs over the rounds: accuracy, loss, cost, and data as planned and as measured.

Rounds of recorded data are periods. Where all runs of a chart have the same periods, it is drawn over time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from dufl.data.arrival import Arrival
from dufl.data.client_data import Period
from dufl.experiment.recorded import as_dates, collected, is_dated, periods_of, plain_time
from dufl.experiment.statistics import LEAST, mean_band
from dufl.experiment.train import Run
from dufl.game.dynamics import Array, collection
from dufl.game.plan import Plan
from dufl.learning.replanning import Course, course_of
from dufl.report.chart_spec import COLORS, DASHES, GREY, Axis, Chart, Column, Series
from dufl.report.measure import ACCURACY, RMSE, Measure, measure_of
from dufl.report.plan_charts import TERMS

POINTS = 6000  # drawn in one chart at most, over all its groups
WINDOW = 5  # rounds of a moving mean
ARRIVALS = 12  # arrivals of classes that are marked at most


@dataclass(frozen=True, eq=False)
class Curves:
    """Runs drawn as one line: the mean of their seeds, with its 95 % interval or their range around it.

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

    def metric(self, name: str) -> Array:
        """A metric of the records, of shape (runs, rounds)."""
        rows = [[r.metrics.get(name, np.nan) for r in run.records[: self.rounds]] for run in self.runs]
        return np.array(rows, float)

    @cached_property
    def periods(self) -> list[Period]:
        """The recorded time of its rounds; empty if data is not recorded."""
        return periods_of(self.runs[0].records[: self.rounds])


Curve = Callable[[Curves], Array]
Planned = Mapping[Curves, Array]
_ROUND = Axis("round t", integers=True)


def score_charts(groups: Sequence[Curves], arrival: Arrival | None = None) -> list[Chart]:
    """Accuracy and loss after every round; RMSE and R² of regression."""
    measure = measure_of([run for group in groups for run in group.runs])
    if measure is RMSE:
        return [rmse_chart(groups), r2_chart(groups)]
    return [accuracy_chart(groups, arrival), loss_chart(groups, arrival)]


def score_chart(groups: Sequence[Curves]) -> Chart:
    """The chart of the accuracy, or of the RMSE."""
    return score_charts(groups)[0]


def rmse_chart(groups: Sequence[Curves]) -> Chart:
    """The root mean squared error on the period of every round."""
    chart = Chart("rmse", "Test RMSE", _ROUND, Axis("RMSE", from_zero=True), [], {})
    return _with_free(_smooth(chart, groups, lambda group: group.metric("rmse"), ",.4g"), groups, RMSE)


def r2_chart(groups: Sequence[Curves]) -> Chart:
    """The coefficient of determination on the period of every round."""
    note = "1 is a perfect prediction; 0 is the error of predicting the mean label of the period itself."
    chart = Chart("r2", "Test R²", _ROUND, Axis("R²"), [], {}, note)
    return _smooth(chart, groups, lambda group: group.metric("r2"), ".3f")


def accuracy_chart(groups: Sequence[Curves], arrival: Arrival | None = None) -> Chart:
    """The accuracy on the test samples after every round."""
    if _timeline(groups):
        chart = Chart("accuracy", "Test accuracy", _ROUND, Axis("accuracy (%)"), [], {})
        smooth = _smooth(chart, groups, lambda group: 100 * group.curve("accuracy"), ".2f")
        return _with_free(smooth, groups, ACCURACY)
    chart = _over_rounds(
        Chart("accuracy", "Test accuracy", _ROUND, Axis("accuracy (%)"), [], {}),
        groups,
        lambda group: 100 * group.curve("accuracy"),
        ".2f",
    )
    return _with_arrivals(chart, arrival)


def loss_chart(groups: Sequence[Curves], arrival: Arrival | None = None) -> Chart:
    """The mean cross-entropy on the test samples after every round."""
    if _timeline(groups):
        empty = Chart("loss", "Test loss", _ROUND, Axis("cross-entropy"), [], {})
        return _smooth(empty, groups, lambda group: group.curve("loss"), ".4f")
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
    axis, positions, columns = _time_axis([group], rounds)
    series, data = list[Series](), dict[str, Column]({"round": rounds, **columns})
    for (name, color), field in zip(TERMS, ("payment", "volume", "staleness"), strict=True):
        data[name] = group.curve(f"cost_of_{field}").mean(axis=0)[rounds]
        series.append(Series(name, positions, data[name], color, "area", width=1))
    data["total"] = group.curve("server_cost").mean(axis=0)[rounds]
    return replace(chart, x=axis, series=series, data=data)


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
    courses = {group: course_of(plan, group.runs[0].records) for group, plan in plans.items()}
    charts = [volume_chart(groups, {group: course.total_volume for group, course in courses.items()})]
    collecting = [group for group in groups if _collects(group, plans) and group.rounds > 1]
    if collecting:
        charts.append(_collection_chart(collecting, plans, courses))
    if any(group.periods and group.curve("shortfall").any() for group in groups):
        charts.append(shortfall_chart(groups))
    aged = {group: course.mean_staleness for group, course in courses.items()}
    return [*charts, staleness_chart(groups, aged)]


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


def shortfall_chart(groups: Sequence[Curves]) -> Chart:
    """The samples that should have joined buffers for a round, and that streams did not have."""
    y, note = Axis("samples", from_zero=True), "Samples asked for in the round before that were not recorded."
    chart = Chart("shortfall", "Samples missing per round", _ROUND, y, [], {}, note)
    return _over_rounds(chart, groups, lambda group: group.curve("shortfall"), ",.0f")


def _collects(group: Curves, plans: Mapping[Curves, Plan]) -> bool:
    return group in plans or collected(group.runs[0].records, group.policy, None, 0) is not None


def _collected(group: Curves, plan: Plan | None) -> Array:
    """The samples collected in every round but the last, of shape (runs, rounds − 1).

    Clients whose streams fall short keep more than the share θ of what they hold.
    """
    again = any(run.replans for run in group.runs)
    known = all(run.plan is not None for run in group.runs) if group.periods else again
    if plan is not None and not known:
        return collection(group.curve("total_volume").T, plan.conservation_rate).T
    rows = [
        collected(run.records[: group.rounds], group.policy, run.plan, run.experiment.training.seed)
        for run in group.runs
    ]
    return np.array(rows, float)


def _collection_chart(
    groups: Sequence[Curves], plans: Mapping[Curves, Plan], courses: Mapping[Curves, Course]
) -> Chart:
    y = Axis("samples per round", from_zero=True)
    note = "Measured: the volume of the next round less the share θ of this round's volume."
    if any(group.periods for group in groups):
        note = "Measured: the volume of the next round less what was kept of this round's volume."
    return _against_plan(
        Chart("collection", "Collection of all clients, Δ(t)", _ROUND, y, [], {}, note),
        groups,
        lambda group: _collected(group, plans.get(group)),
        {group: course.collection for group, course in courses.items() if group in groups},
        ",.0f",
    )


def _over_rounds(chart: Chart, groups: Sequence[Curves], curve: Curve, hover: str, suffix: str = "") -> Chart:
    """The chart with one line per group: the mean of its seeds, and its 95 % interval around it.

    Fewer seeds than an interval needs have their range around it.
    """
    curves = [curve(group) for group in groups]
    most = max(values.shape[1] for values in curves)
    rounds = np.arange(0, most, -(-most * len(groups) // POINTS))
    axis, positions, columns = _time_axis(groups, rounds)
    series: list[Series] = []
    data: dict[str, Column] = {"round": rounds, **columns}
    for index, (group, values) in enumerate(zip(groups, curves, strict=True)):
        color, dash = _look(groups, index)
        name, shown = _name(group, suffix), _at_rounds(values, rounds)
        mean = data[name] = shown.mean(axis=0)
        low = high = None
        if len(shown) >= LEAST:
            low, high = mean_band(shown)
            data |= {f"{name}, 95 % low": low, f"{name}, 95 % high": high}
        elif len(shown) > 1:
            low, high = shown.min(axis=0), shown.max(axis=0)
            data |= {f"{name}, min": low, f"{name}, max": high}
        series.append(Series(name, positions, mean, color, low=low, high=high, dash=dash, hover=hover))
    return replace(chart, x=axis, series=series, data=data)


def _timeline(groups: Sequence[Curves]) -> list[Period]:
    """The periods of all groups, if they share them; empty otherwise. A group may have stopped early."""
    longest = max((group.periods for group in groups), key=len)
    edges = [(p.begin, p.end, p.dated) for p in longest]
    for group in groups:
        own = [(p.begin, p.end, p.dated) for p in group.periods]
        if len(own) < group.rounds or own != edges[: len(own)]:
            return []
    return longest


def _time_axis(
    groups: Sequence[Curves], rounds: npt.NDArray[Any]
) -> tuple[Axis, npt.NDArray[Any], dict[str, Column]]:
    """The axis of a chart, the position of every round on it, and columns of its table.

    A round of recorded data is drawn in the middle of its period.
    """
    periods = _timeline(groups)
    if not periods:
        return _ROUND, rounds, {}
    some = [periods[t] for t in rounds]
    middle = np.array([(p.begin + p.end) / 2 for p in some])
    columns: dict[str, Column] = {
        f"time_{edge}": [plain_time(p, edge) for p in some] for edge in ("begin", "end")
    }
    if is_dated(periods):
        return Axis("recorded time", dates=True), as_dates(middle), columns
    return Axis("recorded time", in_full=True), middle, columns


def _smooth(chart: Chart, groups: Sequence[Curves], curve: Curve, hover: str) -> Chart:
    """The chart with the mean of the last rounds in bold, and single rounds faint if they are many.

    Single periods are noisy, as each is tested on other samples.
    """
    single = _over_rounds(chart, groups, curve, hover)
    if max(group.rounds for group in groups) < 2 * WINDOW:
        return replace(single, data=_without_gaps(single.data))
    bold = _over_rounds(chart, groups, lambda group: moving_mean(curve(group), WINDOW), hover)
    owned = [
        replace(s, low=None, high=None, owner=s.name or "_", opacity=0.3, width=1, hover="")
        for s in single.series
    ]
    means = {f"{series.name}, mean of {WINDOW}": bold.data[series.name] for series in bold.series}
    note = f"Bold: mean of the last {WINDOW} rounds; faint: single rounds. {chart.note}".strip()
    data = _without_gaps({**single.data, **means})
    return replace(bold, series=[*owned, *bold.series], data=data, note=note)


def moving_mean(values: Array, length: int) -> Array:
    """The mean of the last `length` values that are known, along the last axis; NaN if none is.

    >>> moving_mean(np.array([1.0, 3.0, np.nan, 5.0]), 2).tolist()
    [1.0, 2.0, 3.0, 5.0]
    """
    known = ~np.isnan(values)
    before = np.zeros((*values.shape[:-1], length - 1))
    total, number = (
        sliding_window_view(np.concatenate([before, part], axis=-1), length, axis=-1).sum(axis=-1)
        for part in (np.where(known, values, 0.0), known)
    )
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _with_free(chart: Chart, groups: Sequence[Curves], measure: Measure) -> Chart:
    """Thin dashed lines for the predictions that need no model."""
    periods = _timeline(groups)
    if not periods:
        return chart
    rounds, positions = np.asarray(chart.data["round"]), chart.series[0].x
    data, lines = dict(chart.data), list[Series]()
    smooth = any(series.opacity < 1 for series in chart.series)
    for (label, _, field), dash in zip(measure.free, ("dash", "dot"), strict=True):
        values = np.array([measure.drawn(getattr(period, field)) for period in periods])
        drawn = moving_mean(values, WINDOW) if smooth else values
        data |= _without_gaps({label: values[rounds]})
        lines.append(Series(label, positions, drawn[rounds], GREY, dash=dash, width=1.3, hover=",.4g"))
    note = f"Dashed and dotted grey: predictions that need no model. {chart.note}".strip()
    return replace(chart, series=[*chart.series, *lines], data=data, note=note)


def _without_gaps(data: Mapping[str, Column]) -> dict[str, Column]:
    """Columns with an empty cell where a value is unknown, as for a period without samples."""
    return {name: ["" if v != v else v for v in np.asarray(column).tolist()] for name, column in data.items()}


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
                wide.append(_wide(name, chart.series[0].x, data[name], _look(groups, index)[0], hover))
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
    if first < 3 * later or later <= 0:
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
