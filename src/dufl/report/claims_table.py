"""Claims for people: which hold, and by how much."""

from typing import Any

from rich.table import Table
from rich.text import Text


def claims_table(items: dict[str, dict[str, Any]]) -> Table:
    """What `dufl reproduce` prints."""
    table = Table(box=None, padding=(0, 1))
    table.add_column("item", no_wrap=True)
    table.add_column("claim")
    table.add_column("", no_wrap=True)
    table.add_column("measured")
    for name, item in items.items():
        for number, claim in enumerate(item["claims"]):
            holds = "holds" if claim["holds"] else Text("does not hold", style="bold")
            table.add_row(name if number == 0 else "", claim["statement"], holds, claim["measured"])
        if not item["claims"]:
            table.add_row(name, "none can be checked with these cells alone", "", "")
    return table


def accuracy_table(rows: list[dict[str, Any]]) -> Table:
    """The cells of the paper's table that were trained: accuracy in percent, beside what the paper prints.

    ± std is the standard deviation over the seeds, in points.
    """
    several = any(row["std"] is not None for row in rows)
    table = Table(box=None, padding=(0, 1))
    for name in ("dataset", "σ", "algorithm", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("accuracy %", *["± std"] * several, "paper %", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown = [_number(row["accuracy"]), *[_number(row["std"])] * several, _number(row["paper"], ".1f")]
        who = [row["dataset"], f"{row['time_sensitivity']:g}", row["algorithm"], row["policy"]]
        table.add_row(*who, *shown, _number(row["difference"], "+.1f"))
    return table


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else f"{value:{form}}"
