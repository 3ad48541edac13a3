"""Charts drawn by Plotly, for pages.

The colours of text and background are left to the page, light or dark.
"""

from typing import Any

import numpy as np

from dufl.report.chart_spec import Axis, Chart, Column, Series, Surface

FEW = 12  # rounds, each of which gets its own tick
_GRID = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.5)", "automargin": True}

Trace = dict[str, Any]


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """The traces (`data`) and the layout of a chart, as plain data."""
    surface = [_contour(chart, chart.surface)] if chart.surface else []
    return {
        "data": [*surface, *(t for s in chart.series for t in _traces(chart, s))],
        "layout": _layout(chart),
    }


def _layout(chart: Chart) -> dict[str, Any]:
    x, y = _axis(chart.x, chart), _axis(chart.y, chart)
    if not chart.surface:
        y["tickformat"] = ",~r"  # 12,000 and 0.5
    if chart.horizontal:
        x, y = y, x | {"autorange": "reversed", "showgrid": False}
    hover = "closest" if chart.surface else "y unified" if chart.horizontal else "x unified"
    dotted = {"color": "#777777", "width": 1, "dash": "dot"}
    upright = {"type": "line", "y0": 0, "y1": 1, "yref": "paper", "layer": "below", "line": dotted}
    return {
        "xaxis": x,
        "yaxis": y,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hovermode": hover,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.06 if chart.surface else 1.02, "x": 0},
        "font": {"size": 13},
        **({"barmode": "stack"} if chart.horizontal else {"bargap": 0.35} if chart.x.names else {}),
        **({"shapes": [upright | {"x0": t, "x1": t} for t in chart.dotted]} if len(chart.dotted) else {}),
    }


def _axis(axis: Axis, chart: Chart) -> dict[str, Any]:
    layout: dict[str, Any] = {"title": {"text": axis.label}, **_GRID}
    if axis.range:
        layout["range"] = list(axis.range)
    if axis.from_zero:
        layout["rangemode"] = "tozero"
    if axis.names:
        layout["type"] = "category"
    if axis.dates:
        layout["type"] = "date"
    if axis.log:
        layout |= {"type": "log", "dtick": 1, "tickformat": ",~g"}
    if axis.in_full:
        layout["tickformat"] = ",~r"
    if axis.integers and max((len(series.x) for series in chart.series), default=0) <= FEW:
        layout["dtick"] = 1
    return layout


def _traces(chart: Chart, series: Series) -> list[Trace]:
    """A series as traces: its range, if it has one, and what is drawn on top of it."""
    ranged = [] if series.low is None else _band(series)
    if series.kind == "band":
        return ranged
    x, y = plain(series.x), plain(series.y)
    if chart.horizontal:
        x, y = y, x
    value = "x" if chart.horizontal else "y"
    trace: Trace = {"type": "scatter", "name": series.name, "x": x, "y": y, "legendgroup": series.name}
    trace |= {"hovertemplate": f"%{{{value}:{series.hover}}}"} if series.hover else {"hoverinfo": "skip"}
    if not series.visible:
        trace["visible"] = "legendonly"
    if series.owner:
        trace |= {"legendgroup": series.owner, "showlegend": False}
    if series.kind == "bar":
        bar = {"type": "bar", "marker": {"color": series.color, "opacity": series.opacity}}
        return [trace | bar | ({"orientation": "h"} if chart.horizontal else {})]
    if series.kind == "text":
        return _texts(chart, trace, series)
    if series.kind == "points":
        return [trace | _points(chart, series)]
    line: dict[str, Any] = {"color": series.color, "width": series.width, "dash": series.dash}
    if series.step:
        line["shape"] = "hv"
    trace |= {"mode": "lines", "line": line, "opacity": series.opacity}
    if series.marker:
        trace |= {"mode": "lines+markers", "marker": {"symbol": series.marker, "size": 7}}
    if series.kind == "area":
        trace |= {"stackgroup": "all", "fillcolor": faint(series.color, 0.6)}
    return [*ranged, trace]


def _texts(chart: Chart, trace: Trace, series: Series) -> list[Trace]:
    """Texts beside the ends of bars; that of a bar that is cut off at the edge stands inside the bar."""
    edge = chart.y.range[1] if chart.y.range else np.inf
    traces = []
    for name, position, value, text in zip(series.x, trace["x"], series.y, series.texts, strict=True):
        inside = {"textposition": "middle left", "textfont": {"color": "black"}}
        place = inside if value >= edge else {"textposition": "middle right"}
        point = {"x": [position], "y": [name], "mode": "text", "text": [text], "showlegend": False}
        traces.append(trace | point | place)
    return traces


def _points(chart: Chart, series: Series) -> Trace:
    edge = {"color": "white", "width": 1.5 if chart.surface else 1}
    marker = {
        "symbol": series.marker,
        "color": series.color,
        "size": 15 if chart.surface or series.marker == "star" else 9,
        "line": edge,
    }
    if len(series.x) > 2 * FEW and not chart.x.names:
        marker |= {"size": 4, "line": {"width": 0}}
    points: Trace = {"mode": "markers", "marker": marker}
    if chart.surface:
        points |= {"cliponaxis": False, "hovertemplate": f"{_offer(chart, series.name)}<extra></extra>"}
    return points


def _band(series: Series) -> list[Trace]:
    """The area between the ends of a range; it has its own entry in the legend if there is no line in it."""
    alone = series.kind == "band"
    assert series.low is not None
    assert series.high is not None
    edge: Trace = {"type": "scatter", "mode": "lines", "name": series.name, "x": plain(series.x)}
    edge |= {"line": {"color": series.color, "width": 0}, "hoverinfo": "skip", "legendgroup": series.name}
    if not series.visible:
        edge["visible"] = "legendonly"
    fill = {"fill": "tonexty", "fillcolor": faint(series.color), "showlegend": alone}
    return [edge | {"y": plain(series.low), "showlegend": False}, edge | {"y": plain(series.high)} | fill]


def _contour(chart: Chart, surface: Surface) -> Trace:
    least, most = surface.limits
    ticks = np.geomspace(least, most, 5)
    return {
        "type": "contour",
        "x": plain(surface.x),
        "y": plain(surface.y),
        "z": [plain(row) for row in np.log(np.clip(surface.values, least, most)).T],
        "customdata": [plain(row) for row in surface.values.T],
        "zmin": float(np.log(least)),
        "zmax": float(np.log(most)),
        "colorscale": "Viridis",
        "reversescale": True,
        "ncontours": 24,
        "contours": {"coloring": "fill", "showlines": False},
        "line": {"width": 0},
        "colorbar": {
            "title": {"text": surface.label, "side": "top", "font": {"size": 13}},
            "tickvals": plain(np.log(ticks)),
            "ticktext": [*(f"{tick:.3g}" for tick in ticks[:-1]), f"≥ {ticks[-1]:.3g}"],
            "thickness": 14,
        },
        "hovertemplate": f"{_offer(chart, surface.label + ' = %{customdata:.4g}')}<extra></extra>",
    }


def _offer(chart: Chart, name: str) -> str:
    """What is said of a point on a surface."""
    return f"{name}<br>{chart.x.label}: %{{x:.4g}}<br>{chart.y.label}: %{{y:.3f}}"


def faint(color: str, opacity: float = 0.2) -> str:
    """A colour that lets others through.

    >>> faint("#0072B2")
    'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def plain(values: Column) -> list[Any]:
    """Values for JSON: a number that is not finite becomes None, a gap in a line. Dates become text.

    >>> plain(np.array(["2024-03-01"], "datetime64[ms]"))
    ['2024-03-01T00:00:00.000']
    """
    array = np.asarray(values)
    if array.dtype.kind == "M":
        return [str(text) for text in np.datetime_as_string(array)]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [value if np.isfinite(value) else None for value in array.tolist()]
    return list(array.tolist())
