"""Training runs in charts that one can point at: how good the model gets, what it knows, at what cost."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dufl.data.arrival import Arrival
from dufl.experiment.stored import Group
from dufl.game.dynamics import Array
from dufl.report.figures import GREY
from dufl.report.interactive import COLOURS, DASHES, Chart, Column, Trace, axes, band, by_round, faint, line
from dufl.report.plan_charts import TERMS

POINTS = 6000  # drawn in one chart at most, over all its groups
NEWS = 12  # arrivals of classes that are marked at most

Curve = Callable[[Group], Array]


def accuracy_chart(groups: Sequence[Group], arrival: Arrival | None) -> Chart:
    """How much of the test samples is right after every round."""
    chart = over_rounds(
        Chart("accuracy", "Test accuracy", [], axes("round t", "% right"), {}),
        groups,
        lambda group: 100 * group.curve("accuracy"),
        "%{y:.2f} %",
    )
    return _with_news(chart, arrival)


def loss_chart(groups: Sequence[Group], arrival: Arrival | None) -> Chart:
    """The mean cross-entropy on the test samples after every round."""
    chart = over_rounds(
        Chart("loss", "Test loss", [], axes("round t", "mean cross-entropy"), {}),
        groups,
        lambda group: group.curve("loss"),
        "%{y:.4f}",
    )
    return _with_news(chart, arrival)


def cost_so_far_chart(groups: Sequence[Group]) -> Chart:
    """The server's cost of all rounds up to each, with measured volumes and ages; of one group by term."""
    note = "Payment, too little data and stale data together, with volumes and ages as they were measured."
    layout = axes("round t", "cost U", yaxis={"rangemode": "tozero"})
    empty = Chart("cost_so_far", "Server cost so far", [], layout, {}, note)
    if len(groups) == 1:
        return _by_term(empty, groups[0])
    return over_rounds(empty, groups, lambda group: group.curve("server_cost"), "%{y:,.4g}")


def _by_term(chart: Chart, group: Group) -> Chart:
    """The terms of the cost on top of each other: the mean over the seeds."""
    rounds = np.arange(0, group.rounds, -(-group.rounds // POINTS))
    traces, data = list[Trace](), dict[str, Column]({"round": rounds})
    for (name, colour), field in zip(TERMS, ("payment", "volume", "staleness"), strict=True):
        data[name] = group.curve(f"cost_of_{field}").mean(axis=0)[rounds]
        more: dict[str, Any] = {"stackgroup": "cost", "fillcolor": faint(colour, 0.6), "line": {"width": 1}}
        traces.append(line(name, rounds, data[name], colour, hovertemplate="%{y:,.4g}", **more))
    chart.layout["legend"]["traceorder"] = "normal"
    chart.layout["xaxis"] |= by_round(group.rounds)
    data["all"] = group.curve("server_cost").mean(axis=0)[rounds]
    return replace(chart, traces=traces, data=data)


def classes_chart(groups: Sequence[Group], arrival: Arrival | None) -> Chart:
    """How many classes there are in the buffers, beside how many could be collected."""
    layout = axes("round t", "classes", yaxis={"rangemode": "tozero"})
    chart = over_rounds(
        Chart("classes", "Classes in the buffers", [], layout, {}),
        groups,
        lambda group: group.curve("classes"),
        "%{y:.3g}",
    )
    if arrival is None:
        return chart
    there = [arrival.count(t) for t in chart.data["round"]]
    known = wide_line("could be collected", chart.data["round"], there, GREY, "%{y}")
    known["line"]["shape"] = "hv"
    layout["yaxis"]["range"] = [0, 1.08 * arrival.num_classes]
    return replace(chart, traces=[known, *chart.traces], data={**chart.data, "could be collected": there})


def over_rounds(chart: Chart, groups: Sequence[Group], curve: Curve, hover: str, suffix: str = "") -> Chart:
    """The chart with a line a group: the mean of its seeds, and their range around it."""
    curves = [curve(group) for group in groups]
    most = max(values.shape[1] for values in curves)
    rounds = np.arange(0, most, -(-most * len(groups) // POINTS))
    traces: list[Trace] = []
    data: dict[str, Column] = {"round": rounds}
    for index, (group, values) in enumerate(zip(groups, curves, strict=True)):
        colour, dash = look(groups, index)
        name, shown = group.name + suffix, at_rounds(values, rounds)
        data[name] = shown.mean(axis=0)
        if len(shown) > 1:
            low, high = shown.min(axis=0), shown.max(axis=0)
            traces += [edge | {"showlegend": False} for edge in band(name, rounds, low, high, colour)]
            data |= {f"{name}, least": low, f"{name}, most": high}
        more: dict[str, Any] = {"line": {"dash": dash}, "legendgroup": name, "hovertemplate": hover}
        traces.append(line(name, rounds, data[name], colour, **more))
    chart.layout["xaxis"] |= by_round(most)
    return replace(chart, traces=traces, data=data)


def look(groups: Sequence[Group], index: int) -> tuple[str, str]:
    """Colour and dash of a group: no two of twelve share both; the first is for data update."""
    place = index + (groups[0].policy == "static")
    return COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]


def wide_line(name: str, rounds: Column, values: Column, colour: str, hover: str) -> Trace:
    """A broad faint line, on which another can lie."""
    look = {"width": 8}
    return line(name, rounds, values, colour, line=look, opacity=0.4, hovertemplate=hover, legendgroup=name)


def at_rounds(values: Array, rounds: Array) -> Array:
    """The values in some rounds, not a number where a run has not come so far."""
    padded = np.full((len(values), int(rounds[-1]) + 1), np.nan)
    length = min(values.shape[1], padded.shape[1])
    padded[:, :length] = values[:, :length]
    return np.asarray(padded[:, rounds])


def _with_news(chart: Chart, arrival: Arrival | None) -> Chart:
    """Mark the rounds in which classes arrive, if they are few."""
    if arrival is None:
        return chart
    last = int(chart.data["round"][-1])
    news = [t for t in range(1, last + 1) if arrival.count(t) > arrival.count(t - 1)]
    if not 0 < len(news) <= NEWS:
        return chart
    dotted = {"color": GREY, "width": 1, "dash": "dot"}
    upright = {"type": "line", "y0": 0, "y1": 1, "yref": "paper", "layer": "below", "line": dotted}
    chart.layout["shapes"] = [upright | {"x0": t, "x1": t} for t in news]
    return replace(chart, note="Dotted: a class arrives that nobody could collect before.")
