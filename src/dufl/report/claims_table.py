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
    return table
