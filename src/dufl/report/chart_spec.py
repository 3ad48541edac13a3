"""A chart as data: what it shows, without how it is drawn.

Every chart is described once. `plotly_charts` draws the description for pages, `figures` draws it with
matplotlib for files, and `Chart.to_csv` writes the numbers behind it.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

# Colours that people with colour blindness can tell apart, on light and dark backgrounds.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
COLORS = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot")

Column = Sequence[Any] | npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis.

    Attributes:
        label: its title.
        range: the values at its two ends; chosen from the data if left out.
        from_zero: whether it begins at 0.
        integers: whether there is nothing between two integers, as between two rounds.
        names: whether its values are names instead of numbers.
        dates: whether its values are dates (datetime64).
        in_full: whether large numbers are written in full.
        log: whether it is logarithmic.
    """

    label: str
    range: tuple[float, float] | None = None
    from_zero: bool = False
    integers: bool = False
    names: bool = False
    dates: bool = False
    in_full: bool = False
    log: bool = False


@dataclass(frozen=True, eq=False)
class Series:
    """One entry of the legend and what is drawn for it.

    Attributes:
        name: its text in the legend.
        x: the positions.
        y: the values; of a `band` there are none.
        color: one of the colours above.
        kind: a `line`, `points`, `bar`s, an `area` stacked on the areas before it, a `band` from `low` to
            `high`, or `text`, which writes `texts` beside the points.
        low: the lower end of the range around `y`.
        high: its upper end.
        dash: one of `DASHES`.
        width: of a line, in pixels.
        opacity: from 0 to 1.
        marker: circle, square, diamond or star.
        step: whether a value holds until the next.
        hover: the format of a value under the pointer; empty to show none.
        texts: for `text`.
        visible: False draws it only when the reader clicks on the legend.
        owner: the series whose entry in the legend it shares; empty for an entry of its own.
    """

    name: str
    x: Column
    y: Column
    color: str
    kind: Literal["line", "points", "bar", "area", "band", "text"] = "line"
    low: Column | None = None
    high: Column | None = None
    dash: str = "solid"
    width: float = 2.0
    opacity: float = 1.0
    marker: str = ""
    step: bool = False
    hover: str = ",.4g"
    texts: Sequence[str] = ()
    visible: bool = True
    owner: str = ""


@dataclass(frozen=True, eq=False)
class Surface:
    """Values over two axes, in colours on a logarithmic scale.

    Attributes:
        x: the positions of the rows of `values`.
        y: the positions of its columns.
        values: what is drawn; not a number where there is no value.
        limits: the least and the largest value that the colours tell apart.
        label: what the values are.
    """

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    limits: tuple[float, float]
    label: str


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart, with the numbers it shows as a table.

    Attributes:
        name: of its file.
        title: what it shows, in a few words.
        x: the horizontal axis; of a `horizontal` chart, the vertical one.
        y: the axis of the values.
        series: from the one at the back.
        data: the columns of its table, by name.
        note: how to read it.
        surface: drawn behind the series.
        dotted: positions on `x` marked by a dotted line.
        horizontal: whether bars run to the right, stacked.
    """

    name: str
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    data: Mapping[str, Column]
    note: str = ""
    surface: Surface | None = None
    dotted: Sequence[float] = ()
    horizontal: bool = False

    def to_csv(self) -> str:
        """Its data as CSV, one line per row.

        >>> axis = Axis("round")
        >>> print(Chart("a", "A", axis, axis, [], {"round": [0, 1], "volume": [5.0, 7.5]}).to_csv(), end="")
        round,volume
        0,5.0
        1,7.5
        """
        columns = [np.asarray(column).tolist() for column in self.data.values()]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.data)
        writer.writerows(zip(*columns, strict=True))
        return text.getvalue()
