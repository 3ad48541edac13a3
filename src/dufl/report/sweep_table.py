"""A sweep for people: one row a value, ranges over seeds."""

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dufl.report.figures import BLUE, ORANGE, new_figure, save, style

Row = dict[str, Any]


def sweep_table(keys: list[str], rows: list[Row]) -> Table:
    """One row per combination of values; several seeds give the range from least to most."""
    table = Table(title=f"Plans over {', '.join(keys)}", title_justify="left")
    for key in keys:
        table.add_column(key.rpartition(".")[2], justify="right")
    for name, _ in _COLUMNS:
        table.add_column(name, justify="right")
    for values, group in _by_values(keys, rows).items():
        table.add_row(*values, *(_range([get(row) for row in group], name) for name, get in _COLUMNS))
    return table


def sweep_csv(keys: list[str], rows: list[Row]) -> str:
    """Every row of a sweep as CSV."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows((row | {key: _text(row[key]) for key in keys}).values() for row in rows)
    return stream.getvalue()


def _text(value: Any) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _by_values(keys: list[str], rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    """The rows of each combination of values: one per seed."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_text(row[key]) for key in keys), []).append(row)
    return groups


def sweep_figure(keys: list[str], rows: list[Row], folder: Path) -> list[Path]:
    """Payment, conservation rate and cost over the values of the last key, for both leaders.

    With several keys, Algorithm 1 is left out, and there is one line per combination of the others.
    """
    *others, key = keys
    numbers = all(type(row[key]) in (int, float) for row in rows)
    texts = list(dict.fromkeys(_text(row[key]) for row in rows))
    places = [float(text) if numbers else float(n) for n, text in enumerate(texts)]
    panels = (
        ("payment", "payment per round R"),
        ("conservation_rate", "conservation rate θ"),
        ("cost", "server cost U"),
    )
    with style():
        figure, axes = new_figure(10.5, 3.2, ncols=3)
        for axis, (name, title) in zip(axes, panels, strict=True):
            for label, some, field, look in _lines(others, rows, name):
                groups = [
                    [_number(row[field]) for row in rows_ if row in some]
                    for rows_ in _columns(key, texts, rows)
                ]
                axis.plot(places, [np.mean(g) for g in groups], ms=4, label=label, **look)
                low, high = [min(g) for g in groups], [max(g) for g in groups]
                axis.fill_between(places, low, high, color=look["color"], alpha=0.2, linewidth=0)
            axis.set(title=title, xlabel=key)
            if not numbers:
                axis.set_xticks(places, texts)
            axis.set_ylim(bottom=0)
        axes[0].legend()
        return save(figure, folder, "sweep")


def _columns(key: str, texts: list[str], rows: list[Row]) -> list[list[Row]]:
    return [[row for row in rows if _text(row[key]) == text] for text in texts]


def _lines(others: list[str], rows: list[Row], name: str) -> list[tuple[str, list[Row], str, dict[str, Any]]]:
    """Label, rows, field and style of every line of a panel."""
    own = "server_cost" if name == "cost" else name
    if not others:
        return [
            ("Stackelberg", rows, own, {"color": BLUE, "marker": "o", "linestyle": "-"}),
            ("Algorithm 1", rows, f"algorithm1_{name}", {"color": ORANGE, "marker": "s", "linestyle": "--"}),
        ]
    groups = _by_values(others, rows)
    return [
        (
            ", ".join(f"{k.rpartition('.')[2]} = {v}" for k, v in zip(others, values, strict=True)),
            group,
            own,
            {"color": f"C{n}", "marker": "o", "linestyle": "-"},
        )
        for n, (values, group) in enumerate(groups.items())
    ]


def _number(value: float | None) -> float:
    """What is not there leaves a gap in a line."""
    return math.nan if value is None else value


def _saving(ours: str, theirs: str) -> Callable[[Row], float | None]:
    """How much less ours is, in percent; nothing where theirs is nothing or without bound."""
    return lambda row: (
        100 * (1 - row[ours] / row[theirs]) if row[theirs] and math.isfinite(row[theirs]) else None
    )


_COLUMNS: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("R", lambda row: row["payment"]),
    ("θ", lambda row: row["conservation_rate"]),
    ("U", lambda row: row["server_cost"]),
    ("Alg. 1 R", lambda row: row["algorithm1_payment"]),
    ("Alg. 1 θ", lambda row: row["algorithm1_conservation_rate"]),
    ("Alg. 1 U", lambda row: row["algorithm1_cost"]),
    ("no update U", lambda row: row["no_update_cost"]),
    ("saved in U %", _saving("server_cost", "algorithm1_cost")),
    ("saved in R %", _saving("payment", "algorithm1_payment")),
    ("influence gain", lambda row: row["influence_gain"]),
)


def _range(found: list[float | None], name: str) -> str:
    values = [value for value in found if value is not None]
    if not values:
        return "–"
    form = ".1e" if name == "influence gain" else ".1f" if name.endswith(("R", "%")) else ".3f"
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low}–{high}"
