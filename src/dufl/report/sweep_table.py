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


def sweep_table(key: str, rows: list[Row]) -> Table:
    """One line a value; several seeds give the range from least to most."""
    table = Table(title=f"Plans over {key}", title_justify="left")
    table.add_column(key.partition(".")[2] or key, justify="right")
    for name, _ in _COLUMNS:
        table.add_column(name, justify="right")
    for value, group in _by_value(rows).items():
        table.add_row(value, *(_range([get(row) for row in group], name) for name, get in _COLUMNS))
    return table


def sweep_csv(key: str, rows: list[Row]) -> str:
    """Every row of a sweep as CSV."""
    stream = io.StringIO()
    names = [key if name == "value" else name for name in rows[0]]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows((row | {"value": _text(row["value"])}).values() for row in rows)
    return stream.getvalue()


def _text(value: Any) -> str:
    """A value as one types it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _by_value(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each value: one a seed."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_text(row["value"]), []).append(row)
    return groups


def sweep_figure(key: str, rows: list[Row], folder: Path) -> list[Path]:
    """Payment, conservation rate and cost over the values, for both leaders."""
    by_value = _by_value(rows)
    numbers = all(type(row["value"]) in (int, float) for row in rows)
    places = [float(value) if numbers else float(n) for n, value in enumerate(by_value)]
    panels = (
        ("payment", "payment per round R"),
        ("conservation_rate", "conservation rate θ"),
        ("cost", "server cost U"),
    )
    with style():
        figure, axes = new_figure(10.5, 3.2, ncols=3)
        for axis, (name, title) in zip(axes, panels, strict=True):
            own = "server_cost" if name == "cost" else name
            for label, field, color, mark in (
                ("stackelberg", own, BLUE, "o-"),
                ("Algorithm 1", f"algorithm1_{name}", ORANGE, "s--"),
            ):
                groups = [[_number(row[field]) for row in group] for group in by_value.values()]
                axis.plot(places, [np.mean(g) for g in groups], mark, color=color, ms=4, label=label)
                low, high = [min(g) for g in groups], [max(g) for g in groups]
                axis.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)
            axis.set(title=title, xlabel=key)
            if not numbers:
                axis.set_xticks(places, by_value)
            axis.set_ylim(bottom=0)
        axes[0].legend()
        return save(figure, folder, "sweep")


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
