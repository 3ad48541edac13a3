"""What each client is owed and why: one SQLite file on the server, one transaction per round.

A round that has been written never changes, even if it is written again. How a payment is shared is in
`payment`; how to find out that somebody changed the file is in `ledger_chain`.
"""

import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal, localcontext
from pathlib import Path
from types import TracebackType
from typing import get_args

from dufl.data.database import transaction
from dufl.errors import InputError
from dufl.experiment.service import PaymentRule, Unit
from dufl.flower import ledger_file
from dufl.flower.ledger_chain import (
    Decision,
    Head,
    RoundRecord,
    Settlement,
    first_hash,
    round_hash,
    settlement_hash,
)
from dufl.flower.ledger_check import verify
from dufl.flower.ledger_file import KIND
from dufl.flower.payment import LARGEST, NO_SCORES, NONE, Claim, Entry, Score, shares, text_of

MOST = 1e50  # a payment that no ledger can hold, whatever its unit
__all__ = ["Claim", "Entry", "Head", "Ledger", "Score", "Settlement", "shares"]


class Ledger:
    """A ledger on disk. The file is created if it does not exist.

    Args:
        path: the file.
        unit: the smallest amount that is paid. It is fixed when the file is created; None accepts any.
    """

    def __init__(self, path: str | Path, unit: Unit | None = None) -> None:
        self.path = Path(path)
        if not self.path.exists():
            ledger_file.create(self.path, unit or Unit())
        KIND.check_header(self.path)
        self._connection = KIND.connect(self.path)
        try:
            with self._snapshot():
                self.unit = ledger_file.read_unit(self._connection, self.path)
            if unit is not None and unit != self.unit:
                raise InputError.of("unit", f"{self.unit}, as in {self.path}", str(unit))
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def pay(
        self,
        round: int,
        payment: float,
        claims: Iterable[Claim],
        refused: Mapping[int, str] = NONE,
        *,
        rule: PaymentRule = "volume",
        scores: Mapping[int, Score] = NO_SCORES,
        budget: float | None = None,
    ) -> list[Entry]:
        """Share the payment of a round, once; see `shares`.

        Args:
            round: t, from 0.
            payment: R.
            claims: at most one per client.
            refused: the clients that are not paid, and why; with or without a claim.
            rule: how the payment is shared.
            scores: of the clients that were audited.
            budget: what may be owed and held at most in this ledger, over all rounds. The payment is cut to
                what is left; forfeited amounts can be paid again.

        Returns:
            The entries of the round, by client.
        """
        if not 0 <= payment < math.inf:
            raise InputError.of("payment", "a finite number >= 0", payment)
        claims = list(claims)
        with self._writing():
            known = self._connection.execute("SELECT 1 FROM rounds WHERE round = ?", (round,)).fetchone()
            if not known:
                due, units = self._affordable(payment, budget)
                escrow = ledger_file.read_escrow(self._connection) if rule == "audited" else {}
                spent = due > 0 and units == 0
                entries = shares(
                    round, units, claims, refused, rule=rule, scores=scores, escrow=escrow, spent=spent
                )
                paid = sum(entry.owed + entry.held for entry in entries)
                position, before = self._last()
                record = RoundRecord(position + 1, round, _now(), rule, due, paid, entries)
                ledger_file.insert_round(self._connection, record, round_hash(before.hash, record))
            return ledger_file.read_entries(self._connection, round)

    def _affordable(self, payment: float, budget: float | None) -> tuple[int, int]:
        """A payment in units, and what the budget leaves of it."""
        due, total = self.unit.count(min(payment, MOST)), ledger_file.read_total(self._connection)
        if budget is not None:
            return min(due, LARGEST), min(due, self._left(budget, total))
        if due > LARGEST - total:
            raise InputError.of("payment", f"at most {self.unit.text(LARGEST - total)} here", payment)
        return due, due

    def settle(self, client: int, decision: Decision, reason: str) -> Settlement:
        """Release everything that is held back from a client, or declare it forfeited."""
        if decision not in get_args(Decision):
            raise InputError.of("decision", f"one of {get_args(Decision)}", decision)
        if not reason.strip():
            raise InputError.of("reason", "a text that says why", repr(reason))
        self._escrow_of(client, self.escrow())  # before anything is written
        with self._writing():
            units = self._escrow_of(client, ledger_file.read_escrow(self._connection))
            position, before = self._last()
            settled = Settlement(position + 1, _now(), client, units, decision, text_of(reason.strip()))
            values = (*vars(settled).values(), settlement_hash(before.hash, settled))
            self._connection.execute("INSERT INTO settlements VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        return settled

    def _escrow_of(self, client: int, escrow: Mapping[int, int]) -> int:
        if escrow.get(client, 0) <= 0:
            raise InputError.of("client", "a client with an amount in escrow", client)
        return escrow[client]

    def rounds(self) -> dict[int, int]:
        """What is owed or held for every round, in units."""
        with self._snapshot():
            return ledger_file.read_rounds(self._connection)

    def entries(self, round: int | None = None) -> list[Entry]:
        """All entries, or those of one round, by round and client."""
        with self._snapshot():
            return ledger_file.read_entries(self._connection, round)

    def total(self) -> int:
        """What is owed or held for all rounds, without what was forfeited; in units."""
        with self._snapshot():
            return ledger_file.read_total(self._connection)

    def left(self, budget: float) -> int:
        """What a budget leaves for further rounds, in units."""
        return self._left(budget, self.total())

    def escrow(self) -> dict[int, int]:
        """What is held back from each client from which anything is, in units."""
        with self._snapshot():
            return ledger_file.read_escrow(self._connection)

    def head(self) -> Head:
        """The end of the hash chain."""
        with self._snapshot():
            return self._last()[1]

    def settlements(self) -> list[Settlement]:
        """The operator's decisions, in their order."""
        with self._snapshot():
            if ledger_file.version_of(self._connection) == 1:
                return []
            rows = self._connection.execute("SELECT * FROM settlements ORDER BY position")
            return [Settlement(*values) for *values, _ in rows]

    def check(self, head: str | None = None) -> Head:
        """Raise an error if the ledger is not as it was written; returns its end.

        Args:
            head: a hash that was the head at some time, which must be in the chain.
        """
        with self._snapshot():
            return verify(self._connection, self.path, self.unit, head)

    def backup(self, to: str | Path, *, force: bool = False) -> Head:
        """Copy the ledger while others may write to it; the copy is checked before it gets its name.

        Args:
            to: the file to write.
            force: whether it may exist; it is replaced.

        Returns:
            The end of the copy.
        """
        target = Path(to)
        if target.exists() and (not force or target.samefile(self.path)):
            rule = "a file other than the ledger" if force else "a file that does not exist yet"
            raise InputError.of("to", rule, target)
        temporary = target.with_name(f".{target.name[:200]}.copy-{os.getpid()}")
        try:
            with self._reporting():
                ledger_file.copy_database(self.path, temporary)
            with Ledger(temporary) as copy:
                head = copy.check()
            ledger_file.publish_copy(temporary, target, force)
        finally:
            ledger_file.remove(temporary)
        return head

    def _last(self) -> tuple[int, Head]:
        """The last position in the chain, and its head."""
        (rounds,) = self._connection.execute("SELECT count(*) FROM rounds").fetchone()
        if ledger_file.version_of(self._connection) == 1:
            return rounds, Head(rounds, "")
        query = "SELECT position, hash FROM rounds UNION ALL SELECT position, hash FROM settlements"
        row = self._connection.execute(f"{query} ORDER BY position DESC LIMIT 1").fetchone()
        position, hash = row or (0, first_hash(self.unit))
        return position, Head(rounds, hash)

    def _left(self, budget: float, total: int) -> int:
        if not 0 <= budget < math.inf:
            raise InputError.of("budget", "None or a finite number >= 0", budget)
        with localcontext(prec=400):
            units = Decimal(repr(float(budget))) / self.unit.size
            return max(min(int(units.to_integral_value(ROUND_FLOOR)), LARGEST) - total, 0)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that writes. It turns a file of an older version into the current one."""
        with self._reporting(), transaction(self._connection):
            if ledger_file.version_of(self._connection) == 1:
                verify(self._connection, self.path, self.unit)
                ledger_file.migrate(self._connection, self.path)
            yield

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """A transaction that only reads."""
        with self._reporting():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(f"{self.path} must be a usable ledger: {error}", field=str(self.path)) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
