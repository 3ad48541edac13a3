"""Charts that one can point at: Plotly figures as plain data, for the report's page and the explorer alike.

Nothing here is coloured for a light or a dark page: text takes the page's own colour, the rest can be told
apart on both, also by the colour-blind.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.report.figures import BLUE, GREEN, ORANGE, RED

COLOURS = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9")
FEW = 12  # rounds, each of which gets its own tick
DASHES = ("solid", "dash", "dot", "dashdot")
_GRID = "rgba(128,128,128,0.3)"

Trace = dict[str, Any]
Column = Sequence[Any] | npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart, with what it shows as a table.

    Attributes:
        name: of its file.
        title: what it shows, in a few words.
        traces: Plotly's.
        layout: Plotly's.
        data: the columns of its table, by name.
        note: how to read it.
    """

    name: str
    title: str
    traces: list[Trace]
    layout: dict[str, Any]
    data: Mapping[str, Column]
    note: str = ""

    @property
    def figure(self) -> dict[str, Any]:
        """What Plotly draws."""
        return {"data": self.traces, "layout": self.layout}

    def to_csv(self) -> str:
        """Its data, a line a row.

        >>> print(Chart("a", "A", [], {}, {"round": [0, 1], "volume": [5.0, 7.5]}).to_csv(), end="")
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


def line(name: str, x: Column, y: Column, colour: str, **more: Any) -> Trace:
    """A line through points."""
    look = {"color": colour, "width": 2, **more.pop("line", {})}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": plain(x),
        "y": plain(y),
        "line": look,
        **more,
    }


def band(name: str, x: Column, low: Column, high: Column, colour: str, **more: Any) -> list[Trace]:
    """The area between two lines."""
    edge: dict[str, Any] = {"line": {"width": 0}, "hoverinfo": "skip", "legendgroup": name, **more}
    return [
        line(name, x, low, colour, showlegend=False, **edge),
        line(name, x, high, colour, fill="tonexty", fillcolor=faint(colour), **edge),
    ]


def faint(colour: str, opacity: float = 0.2) -> str:
    """A colour that lets others through."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """The layout of a chart with two axes that are called so."""
    axis = {
        "gridcolor": "rgba(128,128,128,0.25)",
        "zerolinecolor": "rgba(128,128,128,0.5)",
        "automargin": True,
    }
    return {
        "xaxis": {"title": {"text": x}, **axis, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **axis, **more.pop("yaxis", {})},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "font": {"size": 13},
        **more,
    }


def by_round(count: int) -> dict[str, Any]:
    """The axis of so many rounds: there is none between two of them."""
    return {"dtick": 1} if count <= FEW else {}


def plain(values: Column) -> list[Any]:
    """Numbers as JSON has them: what is not finite is left out of a line."""
    found = np.asarray(values)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        return [value if np.isfinite(value) else None for value in found.tolist()]
    return list(found.tolist())
