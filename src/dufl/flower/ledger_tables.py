"""A ledger as text: totals per client, tables for a terminal, and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from dufl.experiment.service import Unit
from dufl.flower.ledger_chain import Settlement
from dufl.flower.payment import NOT_SELECTED, Entry

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_AMOUNTS = ("owed", "held", "released")


@dataclass
class Account:
    """The account of a client; amounts are in units.

    Attributes:
        rounds_paid: the number of rounds for which something is owed.
        samples_paid: the number of samples that it trained on in these rounds.
        units: what it is owed, including what was released from escrow.
        escrow: what is held back.
        forfeited: what was held back and is not paid.
        score: the audit's last estimate of what its updates contribute.
        low: the lower bound of the estimate.
        high: the upper bound of the estimate.
    """

    rounds_paid: int = 0
    samples_paid: int = 0
    units: int = 0
    escrow: int = 0
    forfeited: int = 0
    score: float | None = None
    low: float | None = None
    high: float | None = None

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        if entry.owed:
            self.rounds_paid += 1
            self.samples_paid += entry.claimed
        self.units += entry.owed + entry.released
        self.escrow += entry.held - entry.released
        if entry.score is not None:
            self.score, self.low, self.high = entry.score, entry.low, entry.high

    def settle(self, settlement: Settlement) -> None:
        """Add an operator's decision."""
        self.escrow -= settlement.units
        if settlement.decision == "release":
            self.units += settlement.units
        else:
            self.forfeited += settlement.units


def accounts(entries: Sequence[Entry], settlements: Sequence[Settlement] = ()) -> dict[int, Account]:
    """The account of every client, by client."""
    found: dict[int, Account] = {}
    for entry in entries:
        found.setdefault(entry.client, Account()).add(entry)
    for settlement in settlements:
        found.setdefault(settlement.client, Account()).settle(settlement)
    return dict(sorted(found.items()))


def ledger_summary(
    entries: Sequence[Entry], settlements: Sequence[Settlement] = (), unit: Unit | None = None
) -> dict[str, Any]:
    """Totals per client, and the entries that were not paid or not at once, as numbers.

    A round counts as paid if the amount owed for it is positive. An update that was used in a round whose
    payment is 0 is recorded, but not paid.
    """
    clients = accounts(entries, settlements)
    return {
        "unit": str(unit or Unit()),
        "rounds_paid": len({entry.round for entry in entries if entry.owed}),
        "rounds_recorded": len({entry.round for entry in entries}),
        "units": sum(account.units for account in clients.values()),
        "escrow": sum(account.escrow for account in clients.values()),
        "forfeited": sum(account.forfeited for account in clients.values()),
        "clients": [{"client": client} | vars(account) for client, account in clients.items()],
        "refused": [
            {"round": entry.round, "client": entry.client, "held": entry.held, "reason": entry.reason}
            for entry in entries
            if entry.reason and entry.reason != NOT_SELECTED
        ],
        "settlements": [vars(settlement) for settlement in settlements],
    }


def ledger_table(summary: dict[str, Any]) -> "Group":
    """The tables that `dufl ledger show` prints."""
    from rich.console import Group

    tables = [_owed(summary)]
    if summary["refused"]:
        tables.append(_unpaid(summary))
    if summary["settlements"]:
        tables.append(_settled(summary))
    return Group(*tables)


def _owed(summary: dict[str, Any]) -> "Table":
    unit, rows = Unit.parse(summary["unit"]), summary["clients"]
    rounds = f"{summary['rounds_paid']} of {summary['rounds_recorded']} rounds"
    more = [name for name in ("escrow", "forfeited") if any(row[name] for row in rows)]
    scored = any(row["score"] is not None for row in rows)
    titles = {"escrow": "in escrow", "forfeited": "forfeited"}
    columns = ["client", "rounds paid", "samples paid", "owed", "share", *(titles[name] for name in more)]
    table = _table(f"Owed for {rounds}: {unit.text(summary['units'])}", columns + ["score"] * scored)
    for row in rows:
        share = row["units"] / summary["units"] if summary["units"] else 0.0
        cells = [str(row["client"]), str(row["rounds_paid"]), f"{row['samples_paid']:,}"]
        cells += [unit.text(row["units"]), f"{100 * share:.1f} %"]
        cells += [unit.text(row[name]) for name in more]
        table.add_row(*cells, *([_estimate(row)] if scored else []))
    return table


def _estimate(row: dict[str, Any]) -> str:
    if row["score"] is None:
        return "–"
    return f"{row['score']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def _unpaid(summary: dict[str, Any]) -> "Table":
    unit, held = Unit.parse(summary["unit"]), any(row["held"] for row in summary["refused"])
    columns = ["round", "client", "held back", "reason"] if held else ["round", "client", "reason"]
    table = _table("Not paid, or not at once" if held else "Not paid", columns)
    for row in summary["refused"]:
        amount = [unit.text(row["held"])] if held else []
        table.add_row(str(row["round"]), str(row["client"]), *amount, row["reason"])
    return table


def _settled(summary: dict[str, Any]) -> "Table":
    unit = Unit.parse(summary["unit"])
    table = _table("Settled", ["time", "client", "amount", "decision", "reason"])
    for row in summary["settlements"]:
        amount = unit.text(row["units"])
        table.add_row(row["time"], str(row["client"]), amount, row["decision"], row["reason"])
    return table


def _table(title: str, columns: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("reason", "decision", "time") else "right")
    return table


def ledger_csv(entries: Sequence[Entry], unit: Unit | None = None) -> str:
    """The entries as CSV, one line per entry; amounts without currency."""
    text, unit = io.StringIO(), unit or Unit()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Entry)]
    writer.writerow(names)
    for entry in entries:
        row = {name: getattr(entry, name) for name in names}
        writer.writerow((row | {name: unit.amount(row[name]) for name in _AMOUNTS}).values())
    return text.getvalue()
