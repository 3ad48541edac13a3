"""A recording as one figure: its labels over time, the drift of its features, and how models age."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from dufl.experiment.drift import WORST, Drift
from dufl.report.chart_spec import BLUE, COLORS, GREY, ORANGE
from dufl.report.figures import NotebookFigure, style

# Twelve colours by Paul Tol that people with colour blindness can tell apart, neighbours most of all.
MANY = (
    *("#332288", "#88CCEE", "#117733", "#DDCC77", "#882255", "#44AA99"),
    *("#CC6677", "#6699CC", "#661100", "#999933", "#AA4499", "#AA4466"),
)
OTHERS = "#DDDDDD"
_NAME = 18  # characters of a class in the legend
_WRITTEN = 16  # periods with numbers in the cells
_PAST = 0.35  # opacity of models that are tested on the past

Positions = npt.NDArray[np.float64]


def drift_figure(drift: Drift) -> Figure:
    """The labels over time, the distances of the features, and the scores of all models on all periods."""
    with style():
        figure = NotebookFigure(figsize=(12.5, 6.0), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplot_mosaic([["labels", "heat"], ["drift", "heat"]], width_ratios=[1.05, 1])
        edges = _positions(drift)
        if drift.recording.task == "regression":
            _draw_numbers(panels["labels"], drift, edges)
        else:
            _draw_classes(panels["labels"], drift, edges)
        _draw_distances(panels["drift"], drift, edges)
        for name in ("labels", "drift"):
            _time_axis(panels[name], drift, edges, numbered=name == "labels")
        _draw_scores(figure, panels["heat"], drift)
        figure.suptitle(drift.recording.describe(), x=0.01, ha="left", fontsize=10, color=GREY)
    return figure


def _positions(drift: Drift) -> Positions:
    """The edges of the periods on the time axis; dates in days since 1970, as matplotlib counts them."""
    times = drift.timeline.times
    return times / 86400.0 if drift.recording.dated else times


def _draw_classes(axes: Axes, drift: Drift, edges: Positions) -> None:
    names, shares = shown_classes(drift)
    colors = list(COLORS if len(names) <= len(COLORS) else MANY)[: len(names)]
    if names[-1].endswith(" others"):
        colors[-1:] = [OTHERS]
    steps = np.vstack([shares, shares[-1:]]).T
    areas = axes.stackplot(edges, steps, labels=names, colors=colors, alpha=0.9, step="post")
    for area in areas:
        area.set(edgecolor="white", linewidth=0.6)
    axes.set(title="Share of the classes", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.grid(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))


def shown_classes(drift: Drift) -> tuple[list[str], npt.NDArray[np.float64]]:
    """The names of the classes that are drawn, and their shares. Beyond twelve, small ones are others."""
    names = [_short(name) for name in drift.recording.class_names]
    if len(names) <= len(MANY):
        return names, drift.labels
    order = np.argsort(-drift.labels.mean(axis=0), kind="stable")
    largest, rest = np.sort(order[: len(MANY) - 1]), order[len(MANY) - 1 :]
    others = drift.labels[:, rest].sum(axis=1, keepdims=True)
    return [*(names[c] for c in largest), f"{len(rest):,} others"], np.hstack(
        [drift.labels[:, largest], others]
    )


def _short(name: str) -> str:
    """A class in the legend. A name with $ is no formula, and one with a leading _ is shown too."""
    text = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return "\u200b" * text.startswith("_") + text.replace("$", r"\$")


def _draw_numbers(axes: Axes, drift: Drift, edges: Positions) -> None:
    steps = np.vstack([drift.labels, drift.labels[-1:]])
    axes.fill_between(
        edges, steps[:, 1], steps[:, 2], step="post", color=BLUE, alpha=0.2, linewidth=0, label="10 to 90 %"
    )
    axes.step(edges, steps[:, 0], where="post", color=BLUE, label="mean")
    axes.set(title="Labels")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_distances(axes: Axes, drift: Drift, edges: Positions) -> None:
    centres, distances = (edges[1:] + edges[:-1])[1:] / 2, drift.distances
    axes.plot(
        centres, distances.from_first[1:], "o-", color=BLUE, markersize=4, label="from the\nfirst period"
    )
    previous = distances.from_previous[1:]
    axes.plot(centres, previous, "s-", color=ORANGE, markersize=4, label="from the\nprevious period")
    label = "noise: 95 % of a\nshuffled recording"
    axes.axhline(distances.noise, color=GREY, linestyle="--", linewidth=1.2, label=label)
    axes.set(title="Distance of the features (mean Kolmogorov-Smirnov statistic)")
    axes.set_ylim(0, 1.1 * max(distances.noise, distances.from_first.max(), previous.max(), 1e-3))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _time_axis(axes: Axes, drift: Drift, edges: Positions, numbered: bool) -> None:
    axes.set_xlim(edges[0], edges[-1])
    if drift.recording.dated:
        locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
        axes.xaxis_date()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    else:
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if not numbered:
        axes.set_xlabel("time (UTC)" if drift.recording.dated else "time")
        return
    above = axes.secondary_xaxis("top")
    chosen = _ticks(drift.num_periods)
    above.set_xticks([(edges[t] + edges[t + 1]) / 2 for t in chosen], [f"{t + 1}" for t in chosen])
    above.tick_params(length=0, labelcolor=GREY, labelsize=7, pad=1)
    axes.set_title(f"{axes.get_title(loc='left')} by period", pad=14)


def _draw_scores(figure: Figure, axes: Axes, drift: Drift) -> None:
    """Rows are what a model was trained on, columns what it is tested on. Below the diagonal is the past."""
    regression = drift.recording.task == "regression"
    number, scores = drift.num_periods, drift.scores if regression else 100 * drift.scores
    shown = np.maximum(scores, WORST if regression else 0)
    norm = Normalize(*_limits(shown, least=0.2 if regression else 20.0, top=1.0 if regression else 100.0))
    past = np.tri(number, number, -1, dtype=bool)
    axes.imshow(np.where(past, shown, np.nan), cmap="viridis", norm=norm, alpha=_PAST)
    image = axes.imshow(np.where(past, np.nan, shown), cmap="viridis", norm=norm)
    corners = np.arange(number + 1) - 0.5
    axes.plot(corners.repeat(2)[:-1], corners.repeat(2)[1:], color="black", linewidth=1.6, clip_on=False)
    if number <= _WRITTEN:
        _write_cells(axes, image, scores, past, regression)
    chosen = _ticks(number)
    axes.set_xticks(chosen, [f"{t + 1}" for t in chosen])
    axes.set_yticks(chosen, [f"{t + 1}" for t in chosen])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    what = "R²" if regression else "Accuracy"
    axes.set(title=f"{what} of a model of one period on another (faded: on the past)")
    axes.set(xlabel=f"tested on period\n{age_line(drift)}", ylabel="trained on period")
    extend = "min" if regression and np.nanmin(scores, initial=np.inf) < WORST else "neither"
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, extend=extend)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if not regression:
        bar.ax.yaxis.set_major_formatter(PercentFormatter(100, decimals=0, symbol=" %"))


def _limits(values: Positions, least: float, top: float) -> tuple[float, float]:
    """The ends of the colours: at least `least` apart, so that noise does not look like a pattern."""
    known = values[np.isfinite(values)]
    if not len(known):
        return top - least, top
    low, high = float(known.min()), float(known.max())
    wider = max(0.0, least - (high - low)) / 2
    high = min(top, high + wider)
    return min(low - wider, high - least), high


def age_line(drift: Drift) -> str:
    """The change of the score at three ages."""
    ages = sorted({1, (1 + drift.old) // 2, drift.old})
    unit = "" if drift.recording.task == "regression" else " points"
    first = f"{drift.effect_text(1)}{unit} when 1 period old"
    return (
        f"against a fresh model: {', '.join([first, *(f'{drift.effect_text(a)} at {a}' for a in ages[1:])])}"
    )


def _write_cells(
    axes: Axes, image: AxesImage, scores: Positions, past: npt.NDArray[np.bool_], regression: bool
) -> None:
    size = 7.5 if len(scores) <= 12 else 6
    bright = np.asarray(image.to_rgba(scores))[..., :3] @ [0.299, 0.587, 0.114]
    for (i, j), value in np.ndenumerate(scores):
        score = float(value)
        if not np.isfinite(score):
            continue
        dark = bright[i, j] < 0.5 and not past[i, j]
        text = f"{score:.0f}" if not regression else f"{score:.2f}" if score > -9.95 else "< −9"
        text = text.replace("-0.00", "0.00").replace("-", "−")
        axes.text(j, i, text, ha="center", va="center", fontsize=size, color="white" if dark else "black")


def _ticks(number: int) -> Sequence[int]:
    """Which periods have a number on an axis."""
    return range(0, number, -(-number // 20))
