"""What each client is owed and why: one SQLite file on the server, one transaction a round.

Money is in whole cents. A round's R is shared among the clients whose update was used, by the volume that
each trained on; cents that do not divide go to the largest remainders. So the shares of a round add up to
R, and a round that is written stays as it is, however often it is written again.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from types import TracebackType

from dufl.data.database import Kind, transaction
from dufl.errors import InputError

KIND = Kind("ledger", 0x4455464D, version=1, alone=False)
_SCHEMA = (
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, cents INTEGER NOT NULL)",
    "CREATE TABLE entries (round INTEGER NOT NULL REFERENCES rounds, client INTEGER NOT NULL, "
    "committed INTEGER NOT NULL, claimed INTEGER NOT NULL, cents INTEGER NOT NULL, reason TEXT NOT NULL, "
    "PRIMARY KEY (round, client)) WITHOUT ROWID",
)


@dataclass(frozen=True)
class Claim:
    """What a client says of a round.

    Attributes:
        client: who.
        committed: how many samples it agreed to hold in this round.
        claimed: how many it says that it trained on.
        refused: why its update was not used; empty if it was.
    """

    client: int
    committed: int
    claimed: int
    refused: str = ""

    @property
    def reason(self) -> str:
        """Why it is not paid; empty if it is."""
        if self.refused:
            return self.refused
        if self.claimed > self.committed:
            return f"claims {self.claimed} samples, agreed to {self.committed}"
        return "" if self.claimed > 0 else "holds no samples"


@dataclass(frozen=True)
class Entry:
    """What a client is owed for a round, in cents, or why it is owed nothing."""

    round: int
    client: int
    committed: int
    claimed: int
    cents: int
    reason: str


class Ledger:
    """A ledger on disk; made if it is not there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            KIND.make(self.path, lambda connection: [connection.execute(s) for s in _SCHEMA])
        KIND.check_header(self.path)
        self._connection = KIND.connect(self.path)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def pay(self, round: int, payment: float, claims: Iterable[Claim]) -> list[Entry]:
        """Share the payment of a round; if the round is there already, what it says."""
        with self._reporting():
            known = self._connection.execute("SELECT 1 FROM rounds WHERE round = ?", (round,)).fetchone()
        if not known:
            entries = shared(round, payment, list(claims))
            rows = [tuple(asdict(entry).values()) for entry in entries]
            with self._reporting(), transaction(self._connection):
                paid = sum(entry.cents for entry in entries)
                self._connection.execute("INSERT INTO rounds VALUES (?, ?)", (round, paid))
                self._connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", rows)
        return self.entries(round)

    def rounds(self) -> dict[int, int]:
        """What was paid for each round, in cents."""
        with self._reporting():
            return dict(self._connection.execute("SELECT round, cents FROM rounds ORDER BY round"))

    def entries(self, round: int | None = None) -> list[Entry]:
        """Everything, or one round, by round and client."""
        which, given = ("", ()) if round is None else ("WHERE round = ?", (round,))
        names = ", ".join(field.name for field in fields(Entry))
        query = f"SELECT {names} FROM entries {which} ORDER BY round, client"
        with self._reporting():
            return [Entry(*row) for row in self._connection.execute(query, given)]

    def check(self) -> None:
        """Refuse a ledger with other tables, with what is no number, or whose shares do not add up."""
        with self._reporting():
            made = self._connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        if sorted(text for (text,) in made) != sorted(_SCHEMA):
            raise InputError.of(str(self.path), "a ledger with the tables rounds and entries", "others")
        for entry in self.entries():
            *numbers, reason = asdict(entry).values()
            if not all(type(number) is int for number in numbers) or not isinstance(reason, str):
                raise InputError.of(f"{self.path}: an entry", "integers and a text", f"{entry}")
        sums = dict.fromkeys(self.rounds(), 0)
        for entry in self.entries():
            sums[entry.round] = sums.get(entry.round, 0) + entry.cents
        for round, cents in self.rounds().items():
            if sums[round] != cents:
                raise InputError.of(f"{self.path}: shares of round {round}", f"{cents} cents", sums[round])

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as fault:
            raise InputError(f"{self.path} must be a usable ledger: {fault}") from fault


def cents(payment: float) -> int:
    """Money in whole cents, rounded half to even.

    >>> cents(63.185), cents(0.1 + 0.2)
    (6318, 30)
    """
    return int((Decimal(repr(float(payment))) * 100).quantize(Decimal(1), ROUND_HALF_EVEN))


def shared(round: int, payment: float, claims: Sequence[Claim]) -> list[Entry]:
    """Who gets what of a payment; all of it goes to those who are paid, if there are any.

    >>> [entry.cents for entry in shared(0, 1.0, [Claim(0, 5, 5), Claim(1, 5, 5), Claim(2, 5, 5)])]
    [34, 33, 33]
    """
    names = [claim.client for claim in claims]
    if len(set(names)) < len(names):
        raise InputError.of("the clients of a round", "each there once", names)
    whole = sum(claim.claimed for claim in claims if not claim.reason)
    due = cents(payment)
    parts = [(0, 0) if claim.reason else divmod(due * claim.claimed, whole) for claim in claims]
    left = due - sum(part for part, _ in parts) if whole else 0
    first = sorted(range(len(parts)), key=lambda k: (-parts[k][1], names[k]))[:left]
    return [
        Entry(round, claim.client, claim.committed, claim.claimed, part + (k in first), claim.reason)
        for k, (claim, (part, _)) in enumerate(zip(claims, parts, strict=True))
    ]
