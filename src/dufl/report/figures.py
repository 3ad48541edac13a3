"""Charts drawn by matplotlib, for files and notebooks: PNG, SVG and PDF, in two widths.

`page` is as wide as a page of text, `column` (3.3 inches) as a column of a two-column paper.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation

from dufl.errors import InputError
from dufl.experiment.compare import slug
from dufl.experiment.comparison import Cell
from dufl.experiment.files import replacing
from dufl.experiment.frontier import frontier_of, paper_offer
from dufl.experiment.train import Run
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.plugins import describe
from dufl.report.chart_spec import BLUE, GREEN, GREY, ORANGE, RED, Chart, Column, Series, Surface
from dufl.report.frontier import Measured, frontier_chart
from dufl.report.measure import measure_of
from dufl.report.plan_charts import (
    cost_chart,
    plan_surface,
    surface_chart,
    sweep_charts,
    trajectory_charts,
    utility_chart,
)
from dufl.report.run_charts import (
    Curves,
    cost_so_far_chart,
    score_chart,
    staleness_chart,
    volume_chart,
)

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "RED"]  # beside what is defined here

Width = Literal["page", "column"]
PlanFigure = Literal["trajectories", "surface", "utilities", "cost", "frontier"]

COLUMN = 3.3  # inches
_OFFSETS = ["", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d %H:%M"]  # of dates, by the unit of ticks
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "star": "*", "": ""}
_STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "dufl",
    "pdf.fonttype": 42,  # text stays text
}
_COLUMN_STYLE: dict[str, Any] = {
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
}


class NotebookFigure(Figure):
    """A figure that a notebook displays without pyplot."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=110)
        return stream.getvalue()


@contextmanager
def style(width: Width = "page") -> Iterator[None]:
    """DUFL's look, for the figures made inside the block."""
    if width not in ("page", "column"):
        raise InputError.of("width", "page or column", repr(width))
    with mpl.rc_context(_STYLE | (_COLUMN_STYLE if width == "column" else {})):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """A figure without a window, and its axes."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(**subplots)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png, `name`.svg and `name`.pdf, the same bytes for the same figure."""
    paths = []
    for kind, metadata in (("png", {}), ("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
        path = folder / f"{name}.{kind}"
        with replacing(path) as temporary, mpl.rc_context(_STYLE):  # type: ignore[arg-type]
            figure.savefig(temporary, format=kind, dpi=160, metadata=metadata)
        paths.append(path)
    return paths


def plot_plan(
    plan: Plan,
    kind: PlanFigure = "trajectories",
    width: Width = "page",
    baseline: Plan | None = None,
    progress: Progress = lambda _: None,
    measured: Measured = (),
) -> Figure:
    """A plan as a figure.

    Args:
        plan: what is drawn.
        kind: `trajectories` of collection, volume and staleness; the cost `surface` over (R, θ); the
            clients' `utilities`; the server's `cost` by term; or the `frontier`: which accuracy each payment
            buys, if the game's loss law was fitted to trainings.
        width: `page`, or `column` for a column of a paper.
        baseline: the plan of Algorithm 1, to mark on the surface or to compare the cost with.
        progress: called with the share of the cost surface that is done.
        measured: payments and measured accuracies, to mark on the frontier.
    """
    if kind == "frontier":
        return _plot_frontier(plan, width, baseline, measured)
    if kind == "trajectories":
        offer = f"R = {plan.payment:,.2f} per round, θ = {plan.conservation_rate:.3f}"
        return figure_of(trajectory_charts(plan), width, ncols=3, title=offer)
    if kind == "surface":
        return figure_of([surface_chart(plan, baseline, *plan_surface(plan, baseline, progress))], width)
    if kind == "utilities":
        return figure_of([utility_chart(plan)], width)
    if kind == "cost":
        return figure_of([cost_chart(plan, baseline)], width)
    raise InputError.of("kind", "trajectories, surface, utilities, cost or frontier", repr(kind))


def _plot_frontier(plan: Plan, width: Width, baseline: Plan | None, measured: Measured) -> Figure:
    frontier = frontier_of(plan)
    if frontier is None:
        rule = "another one: only a game with a calibrated loss law has a frontier"
        raise InputError.of("kind", rule, "'frontier'")
    return figure_of([frontier_chart(plan, frontier, baseline, paper_offer(plan), measured)], width)


def plot_run(run: Run, width: Width = "page") -> Figure:
    """A run as a figure: accuracy (RMSE of regression), volume, age and cost over the rounds.

    Recorded data is drawn over its time.
    """
    curves = [Curves("", describe(run.experiment.policy), [run])]
    planned = [record.planned_staleness for record in run.records]
    expected = {} if None in planned else {curves[0]: np.array(planned, float)}
    charts = [
        score_chart([replace(curves[0], name=curves[0].policy)] if run.recorded else curves),
        volume_chart(curves, {}),
        staleness_chart(curves, expected),
        cost_so_far_chart(curves),
    ]
    return figure_of(charts, width, ncols=2)


def plot_comparison(cells: Iterable[Cell], width: Width = "page") -> Figure:
    """Accuracy over the rounds: one line per cell, the mean of its seeds with its 95 % interval.

    Fewer than six seeds have their range instead. On recorded data, over time, with the mean over the rounds
    in the legend; for regression, the RMSE. There is one chart per problem.
    """
    problems: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.runs:
            problems.setdefault(cell.problem, []).append(cell)
    charts = [score_chart(_curves(some)) for some in problems.values()]
    if len(charts) == 1:
        return figure_of(charts, width)
    titled = [
        replace(chart, title=f"{problem}: {chart.title}")
        for problem, chart in zip(problems, charts, strict=True)
    ]
    figure = figure_of(titled, width)
    with style(width):
        _legends_outside(figure, width)
    return figure


def _legends_outside(figure: Figure, width: Width) -> None:
    """Legends that differ, beside their panels; below them in a column."""
    for axes in figure.axes:
        if (legend := axes.get_legend()) is None:
            continue
        if width == "page":
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
        else:
            below = axes.transAxes + ScaledTranslation(0, -0.4, figure.dpi_scale_trans)  # in inches
            axes.legend(loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, borderaxespad=0)
            figure.set_figheight(figure.get_figheight() + 0.16 * len(legend.get_texts()) + 0.1)


def _curves(cells: Iterable[Cell]) -> list[Curves]:
    """One line per cell, with its score in the legend."""
    curves = []
    for cell in cells:
        measure = measure_of(cell.runs)
        if measure is None:
            score = f"{100 * np.mean([run.accuracy for run in cell.runs]):.1f} %"
        else:
            score = measure.text(float(np.mean([run.summary()[measure.mean] for run in cell.runs])), 1)
        usual = f"{slug(cell.algorithm)}-{slug(cell.policy)}"
        label = f"{cell.algorithm}, {cell.policy}" if cell.method == usual else cell.method
        curves.append(
            Curves(f"{label}: {score}", cell.policy, cell.runs, f"{cell.algorithm}, {cell.discard}")
        )
    return curves


def write_plan_figures(
    plan: Plan,
    folder: Path,
    baseline: Plan | None = None,
    progress: Progress = lambda _: None,
    measured: Measured = (),
) -> list[Path]:
    """Write trajectories, cost surface, utilities and, if there is one, the frontier; returns the paths."""
    known = plan.prediction is not None and plan.game.payment_range[1] > 0
    frontier = [plot_plan(plan, "frontier", baseline=baseline, measured=measured)] if known else []
    return [
        *(path for figure in frontier for path in save(figure, folder, "frontier")),
        *save(plot_plan(plan, "trajectories"), folder, "trajectories"),
        *save(plot_plan(plan, "surface", baseline=baseline, progress=progress), folder, "cost_surface"),
        *save(plot_plan(plan, "utilities"), folder, "utilities"),
    ]


def write_run_figure(run: Run) -> list[Path]:
    """Write training.png, .svg and .pdf into the run's directory."""
    assert run.folder is not None
    return save(plot_run(run), run.folder, "training")


def write_sweep_figure(keys: list[str], rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write sweep.png, .svg and .pdf: R, θ and U over the values, of both leaders."""
    return save(figure_of(sweep_charts(keys, rows), ncols=3), folder, "sweep")


def figure_of(charts: Sequence[Chart], width: Width = "page", ncols: int = 1, title: str = "") -> Figure:
    """Charts side by side; one below the other in a column. They share a legend where it is the same."""
    columns = ncols if width == "page" else 1
    rows = -(-len(charts) // columns)
    inches = COLUMN if width == "column" else {1: 7.0, 2: 9.0, 3: 10.5}[columns]
    tall = {1: 3.9 if rows == 1 else 2.9, 2: 2.7, 3: 3.2}[columns]
    if width == "column":
        tall = 2.7 if len(charts) == 1 else 1.8
    with style(width):
        figure, grid = new_figure(inches, tall * rows, nrows=rows, ncols=columns, squeeze=False)
        for axes, chart in zip(grid.flat, charts, strict=True):
            _draw(axes, chart)
        _legends(figure, list(grid.flat), width, beside=len(charts) == 1 and charts[0].surface is None)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=mpl.rcParams["axes.titlesize"])
    return figure


def _legends(figure: Figure, panels: Sequence[Axes], width: Width, beside: bool) -> None:
    """The legend outside of the axes if all panels have the same, else one in each panel that needs it."""
    entries = [axes.get_legend_handles_labels() for axes in panels]
    names = [labels for _, labels in entries]
    if all(labels == names[0] for labels in names):
        if len(names[0]) < 2:
            return
        if beside and width == "page":
            figure.legend(*entries[0], loc="outside right upper")
        else:
            longest = max(map(len, names[0]))
            columns = max(1, min(len(names[0]), (110 if width == "page" else 60) // (longest + 6)))
            figure.legend(*entries[0], loc="outside lower center", ncols=columns)
            taller = 0.15 * (-(-len(names[0]) // columns) - 1)  # inches, for every line of the legend but one
            figure.set_figheight(figure.get_figheight() + taller)
        return
    for axes, labels in zip(panels, names, strict=True):
        if len(labels) > 1:
            axes.legend(loc="best")


def _draw(axes: Axes, chart: Chart) -> None:
    """One chart on its axes."""
    if chart.x.log:
        axes.set_xscale("log")  # first: what is drawn depends on it
    if chart.surface:
        _draw_surface(axes, chart.surface)
    for position in chart.dotted:
        axes.axvline(position, color=GREY, linewidth=0.9, linestyle=":")
    bars = [series for series in chart.series if series.kind == "bar"]
    areas = [series for series in chart.series if series.kind == "area"]
    if areas and (finite := np.isfinite([series.y for series in areas]).all(axis=0)).any():
        labels, colors = [series.name for series in areas], [series.color for series in areas]
        heights = [np.asarray(series.y)[finite] for series in areas]
        axes.stackplot(np.asarray(areas[0].x)[finite], heights, labels=labels, colors=colors, alpha=0.8)
    for place in range(len(bars)):
        _draw_bars(axes, chart, bars, place)
    for series in chart.series:
        if series.kind in ("line", "points", "band", "text") and series.visible:
            _draw_series(axes, chart, series)
    _label(axes, chart)


def _draw_series(axes: Axes, chart: Chart, series: Series) -> None:
    positions = np.arange(len(series.x)) if chart.x.names else _numbers_or_dates(series.x)
    if series.low is not None and series.high is not None:
        label = series.name if series.kind == "band" else None
        low, high = np.asarray(series.low, float), np.asarray(series.high, float)
        axes.fill_between(positions, low, high, color=series.color, alpha=0.2, linewidth=0, label=label)
    if series.kind == "band":
        return
    values = np.asarray(series.y, float)
    if series.kind == "text":
        edge = chart.y.range[1] if chart.y.range else np.inf
        for position, value, text in zip(positions, values, series.texts, strict=True):
            axes.text(value, position, text, ha="right" if value >= edge else "left", va="center", fontsize=8)
        return
    look: dict[str, Any] = {"color": series.color, "alpha": series.opacity, "label": series.name}
    if series.owner:
        look["label"] = "_"  # not in the legend
    if series.kind == "points":
        size = 16 if series.marker == "star" else 9 if chart.surface else 5
        look |= {"linestyle": "none", "markeredgecolor": "white", "clip_on": False, "zorder": 5}
        axes.plot(positions, values, _MARKERS[series.marker], markersize=size, **look)
        return
    width = mpl.rcParams["lines.linewidth"] * series.width / 2
    more: dict[str, Any] = {"drawstyle": "steps-post"} if series.step else {}
    line: dict[str, Any] = {
        "linestyle": _DASHES[series.dash],
        "linewidth": width,
        "marker": _MARKERS[series.marker],
    }
    axes.plot(positions, values, markersize=4, **look, **line, **more)


def _numbers_or_dates(column: Column) -> Any:
    array = np.asarray(column)
    return array if array.dtype.kind == "M" else array.astype(float)


def _draw_bars(axes: Axes, chart: Chart, bars: Sequence[Series], place: int) -> None:
    """Bars side by side; of a horizontal chart, one after the other."""
    series, positions = bars[place], np.arange(len(bars[place].x))
    values = np.asarray(series.y, float)
    look: dict[str, Any] = {"color": series.color, "label": series.name, "alpha": series.opacity}
    if chart.horizontal:
        start = np.sum([bar.y for bar in bars[:place]], axis=0) if place else 0.0
        axes.barh(positions, values, 0.6, left=start, **look)
        return
    width = 0.81 / len(bars)
    axes.bar(positions + width * (place - (len(bars) - 1) / 2), values, width, **look)


def _draw_surface(axes: Axes, surface: Surface) -> None:
    least, most = surface.limits
    levels = np.geomspace(least, most, 25)
    values = np.clip(np.nan_to_num(surface.values, nan=2 * most), least, 2 * most)
    drawn = axes.contourf(
        surface.x, surface.y, values.T, levels=levels, norm=LogNorm(), cmap="viridis_r", extend="max"
    )
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    bar = figure.colorbar(drawn, ax=axes, label=surface.label, extend="max")
    ticks = levels[::6].tolist()
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    bar.minorticks_off()


def _label(axes: Axes, chart: Chart) -> None:
    """Title and axes."""
    names = chart.series[0].x if chart.x.names else ()
    axes.set_title(chart.title)
    if chart.horizontal:
        axes.set(xlabel=chart.y.label, yticks=range(len(names)), yticklabels=list(names), xlim=chart.y.range)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        return
    axes.set(xlabel=chart.x.label, ylabel=chart.y.label, xlim=chart.x.range)
    if chart.surface:
        axes.grid(False)
    else:
        low, high = axes.get_ylim()
        if low < 0 < high and not chart.y.from_zero:
            axes.axhline(0, color="black", linewidth=0.8)
        if high >= 1000:
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if chart.x.names:
        axes.set_xticks(range(len(names)), list(names))
        axes.grid(axis="x", visible=False)
    elif chart.x.dates:
        locator = AutoDateLocator(maxticks=6)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator, offset_formats=_OFFSETS)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
    elif chart.x.log:
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    elif chart.x.in_full:
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    elif chart.x.integers:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if chart.y.range:
        axes.set_ylim(*chart.y.range)
    elif chart.y.from_zero and np.isfinite(axes.dataLim.ymin):
        axes.set_ylim(bottom=min(0.0, axes.dataLim.ymin))
