"""The tables of a ledger file, how they are read, and how a file of an older version becomes a new one.

A file of version 1 is read as it is. Writing to it turns it into the current version, in the transaction of
the first write; a copy of the old file is kept beside it, with the suffix `.v1`.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

from dufl.data.database import Kind, publish
from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.flower.ledger_chain import RoundRecord, first_hash, round_hash
from dufl.flower.payment import Entry

KIND = Kind("ledger", 0x4455464D, version=2, alone=False, oldest=1)
NEEDS = "dufl 0.1.0 or newer"  # what can read this version; an older program shows it
SCHEMA = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE rounds (position INTEGER PRIMARY KEY, round INTEGER NOT NULL UNIQUE, time TEXT NOT NULL, "
    "rule TEXT NOT NULL, payment INTEGER NOT NULL, units INTEGER NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE entries (round INTEGER NOT NULL REFERENCES rounds (round), client INTEGER NOT NULL, "
    "committed INTEGER NOT NULL, claimed INTEGER NOT NULL, owed INTEGER NOT NULL, held INTEGER NOT NULL, "
    "released INTEGER NOT NULL, reason TEXT NOT NULL, score REAL, low REAL, high REAL, "
    "PRIMARY KEY (round, client)) WITHOUT ROWID",
    "CREATE TABLE settlements (position INTEGER PRIMARY KEY, time TEXT NOT NULL, client INTEGER NOT NULL, "
    "units INTEGER NOT NULL, decision TEXT NOT NULL, reason TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE INDEX escrow ON entries (client, held, released) WHERE held > 0 OR released > 0",
)
SCHEMA_1 = (
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, cents INTEGER NOT NULL)",
    "CREATE TABLE entries (round INTEGER NOT NULL REFERENCES rounds, client INTEGER NOT NULL, "
    "committed INTEGER NOT NULL, claimed INTEGER NOT NULL, cents INTEGER NOT NULL, reason TEXT NOT NULL, "
    "PRIMARY KEY (round, client)) WITHOUT ROWID",
)
_COLUMNS = ", ".join(field.name for field in fields(Entry))
_COLUMNS_1 = "round, client, committed, claimed, cents, 0, 0, reason, NULL, NULL, NULL"


def create(path: Path, unit: Unit) -> None:
    """Create a ledger. Does nothing if another process was faster."""

    def fill(connection: sqlite3.Connection) -> None:
        for statement in SCHEMA:
            connection.execute(statement)
        _write_about(connection, unit)

    try:
        KIND.make(path, fill)
    except InputError:
        if not path.exists():
            raise
    except (OSError, sqlite3.Error) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError.of(str(path), "a file that can be created", str(told)) from None


def _write_about(connection: sqlite3.Connection, unit: Unit) -> None:
    rows = [("needs", NEEDS), ("unit", str(unit))]
    connection.executemany("INSERT INTO about VALUES (?, ?)", rows)


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the tables. The header of the file may be older than its log."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def read_unit(connection: sqlite3.Connection, path: Path) -> Unit:
    """The unit of a ledger. Raises an error if its tables are not those of a ledger."""
    version = version_of(connection)
    KIND.check_version(path, version)
    tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if sorted(str(text) for (text,) in tables) != sorted(SCHEMA_1 if version == 1 else SCHEMA):
        raise InputError.of(str(path), "a ledger with the tables rounds and entries", "other tables")
    if version == 1:
        return Unit()
    row = connection.execute("SELECT value FROM about WHERE key = 'unit'").fetchone()
    try:
        return Unit.parse(str(row[0]) if row else "")
    except InputError as error:
        raise error.within(str(path)) from None


def read_rounds(connection: sqlite3.Connection) -> dict[int, int]:
    """The amount of every round, in units."""
    column = "cents" if version_of(connection) == 1 else "units"
    return dict(connection.execute(f"SELECT round, {column} FROM rounds ORDER BY round"))


def read_entries(connection: sqlite3.Connection, round: int | None = None) -> list[Entry]:
    """All entries, or those of one round, by round and client."""
    where, arguments = ("", ()) if round is None else ("WHERE round = ?", (round,))
    columns = _COLUMNS_1 if version_of(connection) == 1 else _COLUMNS
    query = f"SELECT {columns} FROM entries {where} ORDER BY round, client"
    return [Entry(*row) for row in connection.execute(query, arguments)]


def read_total(connection: sqlite3.Connection) -> int:
    """What is owed or held for all rounds, without what was forfeited; in units."""
    if version_of(connection) == 1:
        return sum(read_rounds(connection).values())
    query = "SELECT coalesce(sum(units), 0) FROM rounds"
    forfeited = "SELECT coalesce(sum(units), 0) FROM settlements WHERE decision = 'forfeit'"
    return int(connection.execute(f"SELECT ({query}) - ({forfeited})").fetchone()[0])


def read_escrow(connection: sqlite3.Connection) -> dict[int, int]:
    """What is held back from each client from which anything is, in units."""
    if version_of(connection) == 1:
        return {}
    query = "SELECT client, held - released FROM entries WHERE held > 0 OR released > 0"
    query += " UNION ALL SELECT client, -units FROM settlements"
    query = f"SELECT client, sum(units) FROM ({query.replace('held - released', 'held - released AS units')})"
    return {client: units for client, units in connection.execute(f"{query} GROUP BY client") if units}


def insert_round(connection: sqlite3.Connection, record: RoundRecord, hash: str) -> None:
    """Write a round and its entries."""
    values = (record.position, record.round, record.time, record.rule, record.payment, record.units, hash)
    connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    places = ", ".join("?" * len(fields(Entry)))
    rows = [tuple(getattr(entry, field.name) for field in fields(Entry)) for entry in record.entries]
    connection.executemany(f"INSERT INTO entries VALUES ({places})", rows)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Turn the tables of version 1 into the current ones, in a transaction that has begun."""
    _keep_copy(path)
    rounds, entries = read_rounds(connection), read_entries(connection)
    for table in ("entries", "rounds"):
        connection.execute(f"DROP TABLE {table}")
    for statement in SCHEMA:
        connection.execute(statement)
    _write_about(connection, Unit())
    by_round: dict[int, list[Entry]] = {round: [] for round in rounds}
    for entry in entries:
        by_round[entry.round].append(entry)
    hash = first_hash(Unit())
    for position, (round, units) in enumerate(rounds.items(), start=1):
        record = RoundRecord(position, round, "", "volume", units, units, tuple(by_round[round]))
        hash = round_hash(hash, record)
        insert_round(connection, record, hash)
    connection.execute(f"PRAGMA user_version={KIND.version}")


def _keep_copy(path: Path) -> None:
    """Keep a copy of a file of version 1; one that is there from an interrupted attempt must be the same."""
    copy = path.with_name(f"{path.name}.v1")
    temporary = path.with_name(f".{path.name[:200]}.v1-{os.getpid()}")
    try:
        copy_database(path, temporary)
        publish(temporary, copy)
    except FileExistsError:
        if _content(copy) != _content(temporary):
            raise InputError.of(str(copy), f"a copy of {path}, or absent", "another file") from None
    finally:
        remove(temporary)


def _content(path: Path) -> list[list[tuple[object, ...]]]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("rounds", "entries")]


def copy_database(path: Path, copy: Path) -> None:
    """Copy a database that others may be writing to, as it is at one moment."""
    remove(copy)
    with closing(KIND.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # a single file


def publish_copy(temporary: Path, target: Path, force: bool) -> None:
    """Give a copy its name."""
    if force:
        temporary.replace(target)
        return
    try:
        publish(temporary, target)
    except FileExistsError:
        raise InputError.of("to", "a file that does not exist yet", target) from None


def remove(database: Path) -> None:
    """Remove a database and SQLite's files beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
