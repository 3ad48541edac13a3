"""The critical-difference diagram of mean ranks over problems.

J. Demšar, *Statistical Comparisons of Classifiers over Multiple Data Sets*, JMLR 7, 2006, figure 1: an axis
of ranks, the best on the left, with a label for every method. Bars join methods that do not differ.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from dufl.errors import InputError
from dufl.experiment.ranks import Ranks
from dufl.formatting import count
from dufl.report.chart_spec import BLUE, GREY
from dufl.report.figures import COLUMN, Width, new_figure, style

_LINE = 0.26  # inches between two labels
_BAR = 0.13  # inches between two bars
_TOP = 0.66  # inches above the axis
_AXIS = 1.6  # inches of the axis at least
_TICK = 0.19  # inches between two ticks at least


def plot_ranks(ranks: Ranks | None, width: Width = "page") -> Figure:
    """A critical-difference diagram.

    Args:
        ranks: of methods over problems.
        width: `page`, or `column` for a column of a paper.
    """
    if ranks is None:
        rule = "of at least two methods on at least two problems"
        raise InputError.of("comparison", rule, "fewer")
    size = 7.5 if width == "column" else 9.0
    margin = 0.18 + 1.04 * max(_length(f"{name}  0.00", size) for name in ranks.methods)
    inches = max(COLUMN if width == "column" else 7.0, 2 * margin + max(_AXIS, _TICK * len(ranks.methods)))
    lines = -(-len(ranks.methods) // 2)  # labels on the left; the others are on the right
    bars = 0.12 + _BAR * len(ranks.groups)  # inches between the axis and the first label
    height = _TOP + bars + _LINE * lines + 0.05
    with style(width):
        figure, axes = new_figure(inches, height)
        figure.set_layout_engine("none")
        axes.set_position((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, inches), ylim=(height, 0))  # in inches, downwards
        _draw(axes, ranks, _Scale(len(ranks.methods), margin, inches - margin), size, bars)
        _draw_difference(axes, ranks, _Scale(len(ranks.methods), margin, inches - margin), size, inches)
    return figure


def _length(text: str, size: float) -> float:
    """The length of a text in inches."""
    return float(TextPath((0, 0), text, size=size).get_extents().x1) / 72


class _Scale:
    """Ranks as positions in inches: rank 1 at the begin, rank k at the end."""

    def __init__(self, most: int, begin: float, end: float) -> None:
        self.most, self.begin, self.end = most, begin, end

    def __call__(self, rank: float) -> float:
        return self.begin + (self.end - self.begin) * (rank - 1) / (self.most - 1)


def _draw(axes: Axes, ranks: Ranks, at: _Scale, size: float, bars: float) -> None:
    axes.plot([at(1), at(at.most)], [_TOP, _TOP], color="black", linewidth=1.0)
    for tick in range(1, at.most + 1):
        axes.plot([at(tick)] * 2, [_TOP - 0.06, _TOP], color="black", linewidth=1.0)
        axes.text(at(tick), _TOP - 0.09, f"{tick}", ha="center", va="bottom", fontsize=size)
    half = -(-len(ranks.methods) // 2)
    for place, (name, rank) in enumerate(zip(ranks.methods, ranks.mean_ranks, strict=True)):
        on_left = place < half
        line = place if on_left else len(ranks.methods) - 1 - place
        y, x = _TOP + bars + _LINE * (line + 0.5), at.begin if on_left else at.end
        axes.plot([at(rank), at(rank), x], [_TOP, y, y], color=GREY, linewidth=0.9, solid_joinstyle="miter")
        axes.plot(at(rank), _TOP, "o", color=BLUE, markersize=4, zorder=5)
        gap, side = (-0.06, "right") if on_left else (0.06, "left")
        text = f"{name}  {rank:.2f}" if on_left else f"{rank:.2f}  {name}"
        axes.text(x + gap, y, text, ha=side, va="center", fontsize=size)
    for number, (first, last) in enumerate(ranks.groups):
        y = _TOP + 0.12 + _BAR * number
        ends = [at(ranks.mean_ranks[first]) - 0.05, at(ranks.mean_ranks[last]) + 0.05]
        axes.plot(ends, [y, y], color=BLUE, linewidth=3.2, solid_capstyle="round", zorder=4)


def _draw_difference(axes: Axes, ranks: Ranks, at: _Scale, size: float, inches: float) -> None:
    """The critical difference, to scale; in words alone if it is longer than the axis."""
    difference = ranks.critical_difference
    longer = ", longer than the axis" if difference > at.most - 1 else ""
    text = f"critical difference {difference:.2f}{longer} ({count(len(ranks.problems), 'problem')})"
    begin = max(0.05, min(at.begin, inches - 0.05 - _length(text, size)))
    axes.text(begin, 0.12, text, ha="left", va="center", fontsize=size)
    if not longer:
        x = [at(1), at(1 + difference)]
        axes.plot(x, [0.3, 0.3], color="black", linewidth=1.4)
        for end in x:
            axes.plot([end, end], [0.25, 0.35], color="black", linewidth=1.4)
