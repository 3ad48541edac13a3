"""A buffer in an SQLite file, which survives its process; every step is one transaction.

There are two tables. `samples` is narrow (id, round of birth, label, checksum), so that choosing what to
discard reads little. `features` has the bytes of each sample and is accessed only for samples that join or
leave. If the process is killed at any moment, the file has the state before a step or after it. One process
at a time can open the file. Facts, such as the position of a stream, are stored in the transaction of the
step that they belong to.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from dufl.data.buffer import Snapshot, check_capacity, check_step, checked_ages
from dufl.data.database import Kind, transaction
from dufl.data.discard.discarding import Discard, Discarding, is_known, plugin_name
from dufl.data.samples import AnySamples, Labels, samples_of
from dufl.errors import BufferFileError, InputError

APPLICATION = 0x4455464C  # "DUFL", in the header of the file
KIND = Kind("buffer file", APPLICATION, version=1, error=BufferFileError, private=True)
_SCHEMA = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE samples (id INTEGER PRIMARY KEY, born INTEGER, label INTEGER, checksum INTEGER)",
    "CREATE TABLE features (id INTEGER PRIMARY KEY, bytes BLOB)",
)


class DurableBuffer(Generic[AnySamples]):
    """A buffer in a file: `create` it once, then `open` it any number of times.

    It behaves like `MemoryBuffer`: the same steps keep the same samples.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, discard: Discard | None = None) -> None:
        self._connection = connection
        self._path = path
        about = _read_about(connection)
        self._dtype = np.dtype(about["dtype"])
        self._shape = tuple(int(n) for n in about["shape"].split(",") if n)
        self._capacity = float(about["capacity"])
        self._numbers = "labels" in about  # whether labels are numbers; otherwise they are classes
        rule = about["discard"] if discard is None else discard
        if plugin_name(rule) != about["discard"]:
            raise BufferFileError.of(
                "discard", f"{about['discard']!r}, as when {path} was created", plugin_name(rule)
            )
        if discard is None and not is_known(rule):
            raise BufferFileError.of("discard", f"given to open {path}: the rule {rule!r}", "nothing")
        self._discarding = Discarding(rule, about["seed"], about["client"])

    @classmethod
    def create(
        cls,
        path: str | Path,
        initial: AnySamples,
        initial_age: npt.ArrayLike = 1,
        *,
        capacity: float = np.inf,
        discard: Discard = "uniform",
        seed: int = 0,
        client: int = 0,
        facts: Mapping[str, str] | None = None,
    ) -> "DurableBuffer[AnySamples]":
        """Create a file with the first samples and facts; raises if the file exists. See `MemoryBuffer`."""
        where = Path(path)
        if where.exists():
            raise BufferFileError(f"{where} must not exist yet: open it, or choose another name")
        ages = checked_ages(len(initial), initial_age)
        check_capacity(len(initial), capacity)
        discarding = Discarding(discard, seed, client)
        discarding.check(initial.labels)
        about: dict[str, Any] = {
            "round": 0,
            "next": len(initial),
            "size": len(initial),
            "dtype": initial.content.dtype.str,
            "shape": ",".join(str(n) for n in initial.shape),
            "capacity": repr(float(capacity)),
            "discard": discarding.name,
            "seed": seed,
            "client": client,
        }
        numbers = initial.labels.dtype.kind == "f"
        if numbers:  # files of classes have no such entry
            about["labels"] = initial.labels.dtype.str
        _check_labels(initial, numbers)

        def fill(connection: sqlite3.Connection) -> None:
            for statement in _SCHEMA:
                connection.execute(statement)
            _write_about(connection, about | _named(facts or {}))
            _insert(connection, initial, np.arange(len(initial)), 1 - ages)

        KIND.make(where, fill)
        return cls.open(where, discard)

    @classmethod
    def open(cls, path: str | Path, discard: Discard | None = None) -> "DurableBuffer[AnySamples]":
        """Open a file that `create` made.

        Args:
            path: the file.
            discard: the rule that it was created with; required if it is a rule of your own, because no code
                that a file names is ever run.
        """
        where = Path(path)
        KIND.check_header(where)
        connection = KIND.connect(where)
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise BufferFileError(f"{where} must be undamaged, got: {verdict}")
            return cls(connection, where, discard)
        except sqlite3.OperationalError as error:
            connection.close()
            if "locked" in str(error):
                raise BufferFileError(f"{where} must be free, but another process has it open") from None
            raise BufferFileError(f"{where} must be a readable buffer file: {error}") from None
        except (sqlite3.DatabaseError, KeyError, ValueError, TypeError, InputError) as error:
            connection.close()
            if isinstance(error, BufferFileError):
                raise
            raise BufferFileError(f"{where} must be an undamaged buffer file: {error}") from None
        except BaseException:  # whatever the constructor of a rule raises
            connection.close()
            raise

    def close(self) -> None:
        """Close the file, so that other processes can open it."""
        self._connection.close()

    def __enter__(self) -> "DurableBuffer[AnySamples]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._one("SELECT value FROM about WHERE key = 'size'"))

    @property
    def round(self) -> int:
        """The number of steps so far."""
        return int(self._one("SELECT value FROM about WHERE key = 'round'"))

    @property
    def mean_age(self) -> float:
        """The mean age of the samples; 1 if there are none."""
        born = self._one("SELECT avg(born) FROM samples")
        return 1.0 if born is None else self.round + 1 - float(born)

    def advance(self, keep: int, fresh: AnySamples, **facts: str) -> None:
        """Conserve `keep` samples, discard the others, merge the fresh ones, age all by one round.

        Args:
            keep: how many samples to conserve.
            fresh: the samples that join.
            facts: named texts, as for `remember`, stored in the same transaction: either the samples have
                joined and the facts are known, or neither.
        """
        with self._reporting():
            ids, born, labels = self._births()
            check_step(len(ids), keep, fresh, self._dtype, self._shape, self._capacity)
            _check_labels(fresh, self._numbers)
            about = _read_about(self._connection)
            now, first = about["round"], about["next"]
            left, joined = self._discarding.step(born, labels, fresh.labels, keep, now, first)
            after = {"round": now + 1, "next": first + len(fresh), "size": keep + len(fresh)}
            fresh = fresh if len(joined) == len(fresh) else fresh.take(joined)
            with transaction(self._connection):
                self._delete(ids[left])
                _insert(self._connection, fresh, first + joined, np.full(len(joined), now + 1))
                _write_about(self._connection, about | after | _named(facts))

    def restart(self, initial: AnySamples, initial_age: npt.ArrayLike = 1) -> None:
        """Replace the first samples before the first step, as if the file had been created with these."""
        ages = checked_ages(len(initial), initial_age)
        check_capacity(len(initial), self._capacity)
        _check_labels(initial, self._numbers)
        with self._reporting():
            about = _read_about(self._connection)
            if about["round"]:
                raise InputError.of("restart", "called before the first step", f"round {about['round']}")
            with transaction(self._connection):
                self._connection.execute("DELETE FROM samples")
                self._connection.execute("DELETE FROM features")
                _insert(self._connection, initial, np.arange(len(initial)), 1 - ages)
                _write_about(self._connection, about | {"next": len(initial), "size": len(initial)})

    def trim(self, keep: int) -> None:
        """Discard samples until `keep` remain, without a step: no sample joins or ages."""
        with self._reporting():
            about = _read_about(self._connection)
            ids, born, labels = self._births()
            if not 0 <= keep <= len(ids):
                raise InputError.of("keep", f"between 0 and {len(ids)}, the number of samples", keep)
            left = self._discarding.trim(born, labels, keep, about["round"], about["next"])
            with transaction(self._connection):
                self._delete(ids[left])
                _write_about(self._connection, about | {"size": keep})

    def age(self, rounds: int) -> None:
        """Let rounds pass in which nothing joins and nothing is discarded: all samples age."""
        if rounds < 0:
            raise InputError.of("rounds", ">= 0", rounds)
        with self._reporting(), transaction(self._connection):
            about = _read_about(self._connection)
            _write_about(self._connection, about | {"round": about["round"] + rounds})

    def _births(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Labels | None]:
        """The ids of all samples, their rounds of birth, and their labels if the rule sees them.

        They are in the order in which samples joined.
        """
        rows = self._connection.execute("SELECT id, born FROM samples ORDER BY id").fetchall()
        ids, born = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        if not self._discarding.reads_labels:
            return ids, born, None
        labels = self._connection.execute("SELECT label FROM samples ORDER BY id").fetchall()
        kind = np.float32 if self._numbers else np.int64
        return ids, born, np.array(labels, dtype=kind).reshape(-1)

    def _delete(self, ids: npt.NDArray[np.int64]) -> None:
        each = [(int(i),) for i in ids]
        self._connection.executemany("DELETE FROM samples WHERE id = ?", each)
        self._connection.executemany("DELETE FROM features WHERE id = ?", each)

    def remember(self, **facts: str) -> None:
        """Store named texts beside the samples; a text of the same name is replaced."""
        with self._reporting(), transaction(self._connection):
            about = _read_about(self._connection)
            _write_about(self._connection, about | _named(facts))

    def recall(self, name: str) -> str | None:
        """A text stored by `remember` or with a step; None if there is none of this name."""
        with self._reporting():
            text = _read_about(self._connection).get(f"fact {name}")
        return None if text is None else str(text)

    def snapshot(self) -> Snapshot[AnySamples]:
        """The current content, in the order in which samples joined; verified against their checksums."""
        query = (
            "SELECT samples.id, born, label, checksum, bytes "
            "FROM samples JOIN features USING (id) ORDER BY samples.id"
        )
        with self._reporting():
            rows = self._connection.execute(query).fetchall()
            if len(rows) != len(self):
                raise BufferFileError(f"{self._path} must have {len(self)} samples, got {len(rows)}")
            if self._numbers:  # SQLite stores 3.0 as 3
                rows = [(id, born, float(label), *rest) for id, born, label, *rest in rows]
            for *facts, checksum, content in rows:
                if _checksum(content, *facts) != checksum:
                    raise BufferFileError(f"{self._path} must be undamaged, but sample {facts[0]} is not")
            raw = np.frombuffer(b"".join(row[4] for row in rows), self._dtype)
            stored = raw.reshape(len(rows), *self._shape)
            ids, born = (np.array([row[i] for row in rows], np.int64) for i in range(2))
            labels = np.array([row[2] for row in rows], np.float32 if self._numbers else np.int64)
            return Snapshot(samples_of(stored, labels), self.round + 1 - born, ids)

    def _one(self, query: str) -> float:
        value: float = self._connection.execute(query).fetchone()[0]
        return value

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise BufferFileError(f"{self._path} must be usable: {error}") from error


def _insert(
    connection: sqlite3.Connection, fresh: Any, which: npt.NDArray[np.int64], born: npt.NDArray[np.int64]
) -> None:
    blobs = [row.tobytes() for row in np.ascontiguousarray(fresh.content)]
    ids = which.tolist()
    facts = list(zip(ids, born.tolist(), fresh.labels.tolist(), strict=True))
    rows = [(*fact, _checksum(blob, *fact)) for fact, blob in zip(facts, blobs, strict=True)]
    connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)
    connection.executemany("INSERT INTO features VALUES (?, ?)", zip(ids, blobs, strict=True))


def _check_labels(samples: Any, numbers: bool) -> None:
    if len(samples) and (samples.labels.dtype.kind == "f") != numbers:
        rule = "numbers, as in the buffer" if numbers else "classes, as in the buffer"
        raise InputError.of("labels", rule, samples.labels.dtype)
    if numbers and np.isnan(samples.labels).any():  # SQLite would store nothing
        raise InputError.of("labels", "numbers", "nan")


def _named(facts: Mapping[str, str]) -> dict[str, str]:
    return {f"fact {name}": text for name, text in facts.items()}


def _checksum(content: bytes, *facts: Any) -> int:
    return zlib.crc32(repr(facts).encode(), zlib.crc32(content))


def _read_about(connection: sqlite3.Connection) -> dict[str, Any]:
    about = dict(connection.execute("SELECT key, value FROM about"))
    if about.pop("checksum", None) != _checksum(b"", sorted(about.items())):
        raise sqlite3.DatabaseError("its metadata does not match its checksum")
    return about


def _write_about(connection: sqlite3.Connection, about: dict[str, Any]) -> None:
    signed = about | {"checksum": _checksum(b"", sorted(about.items()))}
    connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", signed.items())
