"""A ledger for people: what every client is owed in all, and what was refused."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

from dufl.flower.ledger import Entry


def money(cents: int) -> str:
    """Cents as an amount.

    >>> money(6318), money(5)
    ('63.18', '0.05')
    """
    return f"{cents // 100:,}.{cents % 100:02d}"


def ledger_summary(entries: Sequence[Entry]) -> dict[str, Any]:
    """Totals by client, and what was refused, as numbers.

    A round is paid if something is owed for it; so is a client's round, and the samples in it. An update that
    was used in a round whose payment is 0 is recorded and not paid.
    """
    clients: dict[int, dict[str, Any]] = {}
    for entry in entries:
        total = clients.setdefault(entry.client, {"rounds_paid": 0, "samples_paid": 0, "cents": 0})
        if entry.cents:
            total["rounds_paid"] += 1
            total["samples_paid"] += entry.claimed
            total["cents"] += entry.cents
    return {
        "rounds_paid": len({entry.round for entry in entries if entry.cents}),
        "rounds_recorded": len({entry.round for entry in entries}),
        "cents": sum(entry.cents for entry in entries),
        "clients": [{"client": client} | total for client, total in sorted(clients.items())],
        "refused": [
            {"round": entry.round, "client": entry.client, "reason": entry.reason}
            for entry in entries
            if entry.reason
        ],
    }


def ledger_table(summary: dict[str, Any]) -> Group:
    """What `dufl ledger` prints."""
    rounds = f"{summary['rounds_paid']} of {summary['rounds_recorded']} rounds"
    owed = Table(title=f"Owed for {rounds}: {money(summary['cents'])}", title_justify="left")
    for column in ("client", "rounds paid", "samples paid", "owed", "share"):
        owed.add_column(column, justify="right")
    for row in summary["clients"]:
        share = row["cents"] / summary["cents"] if summary["cents"] else 0.0
        cells = (row["client"], row["rounds_paid"], f"{row['samples_paid']:,}", money(row["cents"]))
        owed.add_row(*map(str, cells), f"{100 * share:.1f} %")
    if not summary["refused"]:
        return Group(owed)
    refused = Table(title="Not paid", title_justify="left")
    for column in ("round", "client", "why"):
        refused.add_column(column, justify="left" if column == "why" else "right")
    for row in summary["refused"]:
        refused.add_row(str(row["round"]), str(row["client"]), row["reason"])
    return Group(owed, refused)


def ledger_csv(entries: Sequence[Entry]) -> str:
    """Every entry as a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["round", "client", "committed", "claimed", "owed", "reason"])
    for e in entries:
        owed = f"{e.cents // 100}.{e.cents % 100:02d}"
        writer.writerow([e.round, e.client, e.committed, e.claimed, owed, e.reason])
    return text.getvalue()
