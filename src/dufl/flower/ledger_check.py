"""Whether a ledger is as it was written: undamaged, with amounts that add up and an unbroken hash chain."""

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.flower.ledger_chain import Head, RoundRecord, Settlement, first_hash, round_hash, settlement_hash
from dufl.flower.ledger_file import read_entries, read_rounds, version_of

_NUMBERS = ("round", "client", "committed", "claimed", "owed", "held", "released")


def verify(connection: sqlite3.Connection, path: Path, unit: Unit, head: str | None = None) -> Head:
    """Check a whole ledger, within one transaction.

    Args:
        connection: to the ledger.
        path: its file.
        unit: its unit.
        head: a hash that was the head of the ledger at some time.

    Raises:
        InputError: names the first round or settlement that is not as it was written.
    """
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise InputError.of(str(path), "an undamaged database", str(verdict))
    _check_rounds_exist(connection, path)
    if version_of(connection) == 1:
        return _verify_first_version(connection, path, head)
    hash, escrow, known, rounds = first_hash(unit), defaultdict[int, int](int), {first_hash(unit)}, 0
    for expected, (position, record, stored) in enumerate(_records(connection), start=1):
        name = _name(path, record)
        if position != expected:
            raise InputError.of(f"{path}: record {expected}", f"there, before {_name(None, record)}", "none")
        if isinstance(record, RoundRecord):
            rounds += 1
            _check_types(name, record)
            hash = _hash_of(name, round_hash, hash, record)
        else:
            hash = _hash_of(name, settlement_hash, hash, record)
        if hash != stored:
            raise InputError.of(name, "as it was written", "something else: its hash differs")
        known.add(hash)
        _check_amounts(name, record, escrow)
    if head is not None and head not in known:
        raise InputError.of("head", f"a hash in the chain of {path}", head, advice="rounds are missing")
    return Head(rounds, hash)


def _records(connection: sqlite3.Connection) -> list[tuple[int, RoundRecord | Settlement, str]]:
    """All rounds and settlements, in the order of the chain, with the hashes that are stored."""
    records: list[tuple[int, RoundRecord | Settlement, str]] = []
    rows = connection.execute("SELECT position, round, time, rule, payment, units, hash FROM rounds")
    for position, round, time, rule, payment, units, stored in rows:
        entries = read_entries(connection, round)
        record = RoundRecord(position, round, time, rule, payment, units, entries)
        records.append((position, record, stored))
    for *values, stored in connection.execute("SELECT * FROM settlements"):
        records.append((values[0], Settlement(*values), stored))
    return sorted(records, key=lambda each: each[0])


def _name(path: Path | None, record: RoundRecord | Settlement) -> str:
    own = f"round {record.round}" if isinstance(record, RoundRecord) else f"settlement {record.position}"
    return f"{path}: {own}" if path else own


def _hash_of(name: str, function: Any, before: str, record: RoundRecord | Settlement) -> str:
    try:
        return str(function(before, record))
    except (TypeError, ValueError):  # bytes
        raise InputError.of(name, "numbers and texts", "something else") from None


def _check_types(name: str, record: RoundRecord) -> None:
    for entry in record.entries:
        numbers = all(type(getattr(entry, field)) is int for field in _NUMBERS)
        estimate = all(type(value) in (float, type(None)) for value in (entry.score, entry.low, entry.high))
        if not numbers or not estimate or type(entry.reason) is not str:
            raise InputError.of(f"{name}: an entry", "integers and a text", f"{entry}")


def _check_amounts(name: str, record: RoundRecord | Settlement, escrow: dict[int, int]) -> None:
    """Check what a hash cannot: amounts that were wrong when they were written. Keeps account of escrow."""
    if isinstance(record, Settlement):
        escrow[record.client] -= record.units
        if record.units <= 0 or escrow[record.client] < 0:
            raise InputError.of(f"{name}: amount", "positive and in escrow", record.units)
        return
    shared = sum(entry.owed + entry.held for entry in record.entries)
    if shared != record.units:
        raise InputError.of(f"{name}: shares", f"{record.units} units", shared)
    if record.units > record.payment:
        raise InputError.of(f"{name}: shares", f"{record.payment} units at most", record.units)
    for entry in record.entries:
        escrow[entry.client] -= entry.released
        if min(entry.owed, entry.held, entry.released, escrow[entry.client]) < 0:
            raise InputError.of(f"{name}: amounts", ">= 0, and released from escrow only", f"{entry}")
        escrow[entry.client] += entry.held


def _check_rounds_exist(connection: sqlite3.Connection, path: Path) -> None:
    query = "SELECT round FROM entries WHERE round NOT IN (SELECT round FROM rounds) LIMIT 1"
    orphan = connection.execute(query).fetchone()
    if orphan:
        raise InputError.of(f"{path}: round {orphan[0]}", "there, because it has entries", "none")


def _verify_first_version(connection: sqlite3.Connection, path: Path, head: str | None) -> Head:
    """Check what can be checked without a hash chain: types, and amounts that add up."""
    rounds = read_rounds(connection)
    for round, units in rounds.items():
        record = RoundRecord(0, round, "", "volume", units, units, read_entries(connection, round))
        _check_types(f"{path}: round {round}", record)
        _check_amounts(f"{path}: round {round}", record, defaultdict(int))
    if head is not None:
        raise InputError.of("head", f"left out: {path} is of version 1 and has no hash chain", head)
    return Head(len(rounds), "")
