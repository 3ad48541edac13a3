"""What each client is owed and why: one SQLite file on the server, one transaction per round.

Amounts are integers, in cents. The payment R of a round is shared among the clients whose updates were used,
in proportion to the volume that each trained on; indivisible cents go to the largest remainders. The shares
of a round therefore add up to R. A round that has been written never changes, even if it is written again.
"""

import csv
import io
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from dufl.data.database import Kind, transaction
from dufl.errors import InputError
from dufl.formatting import cents

if TYPE_CHECKING:
    from rich.console import Group

KIND = Kind("ledger", 0x4455464D, version=1, alone=False)
_SCHEMA = (
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, cents INTEGER NOT NULL)",
    "CREATE TABLE entries (round INTEGER NOT NULL REFERENCES rounds, client INTEGER NOT NULL, "
    "committed INTEGER NOT NULL, claimed INTEGER NOT NULL, cents INTEGER NOT NULL, reason TEXT NOT NULL, "
    "PRIMARY KEY (round, client)) WITHOUT ROWID",
)
NOT_SELECTED = "not selected in this round"
_NONE: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class Claim:
    """What a client claims for a round that it trained in.

    Attributes:
        client: the number of the client.
        volume: the number of samples that it trained on.
        committed: the number of samples that it committed to.
        mean_age: of the samples.
        classes: the number of classes among them.
    """

    client: int
    volume: int
    committed: int
    mean_age: float
    classes: int

    @property
    def refusal(self) -> str:
        """Why it is not paid; empty if it is."""
        if self.volume > self.committed:
            return f"claimed {self.volume} samples, committed to {self.committed}"
        return "" if self.volume > 0 else "no samples"


@dataclass(frozen=True)
class Entry:
    """What a client is owed for a round, or why it is owed nothing.

    Attributes:
        round: t, from 0.
        client: the number of the client.
        committed: the number of samples that it committed to.
        claimed: the number of samples that it claimed.
        cents: the amount.
        reason: why it is not paid; empty if it is.
    """

    round: int
    client: int
    committed: int
    claimed: int
    cents: int
    reason: str


class Ledger:
    """A ledger on disk. The file is created if it does not exist."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            KIND.make(self.path, lambda connection: [connection.execute(s) for s in _SCHEMA])
        KIND.check_header(self.path)
        self._connection = KIND.connect(self.path)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def pay(
        self, round: int, payment: float, claims: Iterable[Claim], refused: Mapping[int, str] = _NONE
    ) -> list[Entry]:
        """Share the payment of a round, once; see `shares`. Returns the entries of the round."""
        with self._reporting():
            known = self._connection.execute("SELECT 1 FROM rounds WHERE round = ?", (round,)).fetchone()
        if not known:
            entries = shares(round, payment, list(claims), refused)
            rows = [tuple(asdict(entry).values()) for entry in entries]
            with self._reporting(), transaction(self._connection):
                paid = sum(entry.cents for entry in entries)
                self._connection.execute("INSERT INTO rounds VALUES (?, ?)", (round, paid))
                self._connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", rows)
        return self.entries(round)

    def rounds(self) -> dict[int, int]:
        """The amount of every round, in cents."""
        with self._reporting():
            return dict(self._connection.execute("SELECT round, cents FROM rounds ORDER BY round"))

    def entries(self, round: int | None = None) -> list[Entry]:
        """All entries, or those of one round, by round and client."""
        where, arguments = ("", ()) if round is None else ("WHERE round = ?", (round,))
        names = ", ".join(field.name for field in fields(Entry))
        query = f"SELECT {names} FROM entries {where} ORDER BY round, client"
        with self._reporting():
            return [Entry(*row) for row in self._connection.execute(query, arguments)]

    def check(self) -> None:
        """Raise an error if tables or types are not those of a ledger, or if shares do not add up."""
        with self._reporting():
            tables = self._connection.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
            ).fetchall()
        if sorted(text for (text,) in tables) != sorted(_SCHEMA):
            raise InputError.of(str(self.path), "a ledger with the tables rounds and entries", "other tables")
        for entry in self.entries():
            *numbers, reason = asdict(entry).values()
            if not all(type(number) is int for number in numbers) or not isinstance(reason, str):
                raise InputError.of(f"{self.path}: an entry", "integers and a text", f"{entry}")
        sums = dict.fromkeys(self.rounds(), 0)
        for entry in self.entries():
            sums[entry.round] = sums.get(entry.round, 0) + entry.cents
        for round, amount in self.rounds().items():
            if sums[round] != amount:
                raise InputError.of(f"{self.path}: shares of round {round}", f"{amount} cents", sums[round])

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(f"{self.path} must be a usable ledger: {error}", field=str(self.path)) from error


def to_cents(payment: float) -> int:
    """An amount in cents, rounded half to even.

    >>> to_cents(63.185), to_cents(0.1 + 0.2)
    (6318, 30)
    """
    return int((Decimal(repr(float(payment))) * 100).quantize(Decimal(1), ROUND_HALF_EVEN))


def shares(
    round: int, payment: float, claims: Sequence[Claim], refused: Mapping[int, str] = _NONE
) -> list[Entry]:
    """How a payment is shared. All of it goes to the clients that are paid, if there are any.

    Args:
        round: t, from 0.
        payment: R.
        claims: at most one per client.
        refused: the clients that are not paid, and why; with or without a claim.

    >>> claims = [Claim(client, 5, 5, 1.0, 1) for client in range(3)]
    >>> [entry.cents for entry in shares(0, 1.0, claims)]
    [34, 33, 33]
    >>> [(entry.client, entry.cents, entry.reason) for entry in shares(0, 1.0, claims[:1], {1: "no reply"})]
    [(0, 100, ''), (1, 0, 'no reply')]
    """
    by_client = {claim.client: claim for claim in claims}
    if len(by_client) < len(claims):
        raise InputError.of("claims", "at most one per client", [claim.client for claim in claims])
    reasons = {client: claim.refusal for client, claim in by_client.items()} | dict(refused)
    volumes = {client: by_client[client].volume for client, reason in reasons.items() if not reason}
    cents, total = to_cents(payment), sum(volumes.values())
    parts = {client: divmod(cents * volume, total) for client, volume in volumes.items()}
    left = cents - sum(part for part, _ in parts.values()) if parts else 0
    first = sorted(parts, key=lambda client: (-parts[client][1], client))[:left]
    entries = []
    for client in sorted(reasons):
        claim = by_client.get(client)
        committed, claimed = (claim.committed, claim.volume) if claim else (0, 0)
        share = parts.get(client, (0, 0))[0] + (client in first)
        entries.append(Entry(round, client, committed, claimed, share, reasons[client]))
    return entries


def ledger_summary(entries: Sequence[Entry]) -> dict[str, Any]:
    """Totals per client, and the entries that were not paid, as numbers.

    A round counts as paid if the amount owed for it is positive. An update that was used in a round whose
    payment is 0 is recorded, but not paid.
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
            if entry.reason and entry.reason != NOT_SELECTED
        ],
    }


def ledger_table(summary: dict[str, Any]) -> "Group":
    """The tables that `dufl ledger` prints."""
    from rich.console import Group
    from rich.table import Table

    rounds = f"{summary['rounds_paid']} of {summary['rounds_recorded']} rounds"
    owed = Table(title=f"Owed for {rounds}: {cents(summary['cents'])}", title_justify="left")
    for column in ("client", "rounds paid", "samples paid", "owed", "share"):
        owed.add_column(column, justify="right")
    for row in summary["clients"]:
        share = row["cents"] / summary["cents"] if summary["cents"] else 0.0
        cells = (row["client"], row["rounds_paid"], f"{row['samples_paid']:,}", cents(row["cents"]))
        owed.add_row(*map(str, cells), f"{100 * share:.1f} %")
    if not summary["refused"]:
        return Group(owed)
    refused = Table(title="Not paid", title_justify="left")
    for column in ("round", "client", "reason"):
        refused.add_column(column, justify="left" if column == "reason" else "right")
    for row in summary["refused"]:
        refused.add_row(str(row["round"]), str(row["client"]), row["reason"])
    return Group(owed, refused)


def ledger_csv(entries: Sequence[Entry]) -> str:
    """The entries as CSV, one line per entry."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["round", "client", "committed", "claimed", "owed", "reason"])
    for e in entries:
        owed = f"{e.cents // 100}.{e.cents % 100:02d}"
        writer.writerow([e.round, e.client, e.committed, e.claimed, owed, e.reason])
    return text.getvalue()
