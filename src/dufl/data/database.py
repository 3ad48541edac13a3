"""SQLite files that survive a kill: written in transactions; files of other programs are not modified."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dufl.errors import InputError


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        what: its name in messages.
        application: the application id in the header of the file.
        version: of its tables.
        error: the exception to raise if the file cannot be used.
        alone: whether only one process at a time may open it; otherwise others may read it meanwhile.
        private: whether only its owner may read it, from its creation on.
    """

    what: str
    application: int
    version: int
    error: type[InputError] = InputError
    alone: bool = True
    private: bool = False

    def connect(self, path: Path) -> sqlite3.Connection:
        """A connection; each transaction is durable once it returns."""
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        mode = "EXCLUSIVE" if self.alone else "NORMAL"
        try:
            for setting in (f"locking_mode={mode}", "journal_mode=WAL", "synchronous=FULL"):
                connection.execute(f"PRAGMA {setting}")
            connection.execute(f"BEGIN {'EXCLUSIVE' if self.alone else 'DEFERRED'}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            connection.close()
            if "locked" in str(error):
                raise self.error(f"{path} must be free, but another process has it open") from None
            raise self.error(f"{path} must be a usable {self.what}: {error}") from None
        return connection

    def make(self, path: Path, fill: Callable[[sqlite3.Connection], object]) -> None:
        """Create a file that is complete before it has its name."""
        if not path.parent.is_dir():
            raise self.error(f"{path} must be in a folder that exists, got {path.parent}")
        temporary = path.with_name(f".{path.name}.new")
        temporary.unlink(missing_ok=True)
        temporary.touch(
            0o600 if self.private else 0o666, exist_ok=False
        )  # the mode of SQLite's other files follows
        connection = self.connect(temporary)
        with transaction(connection):
            fill(connection)
            connection.execute(f"PRAGMA application_id={self.application}")
            connection.execute(f"PRAGMA user_version={self.version}")
        connection.close()  # merges the log into the file
        temporary.replace(path)

    def check_header(self, path: Path) -> None:
        """Check the first bytes without SQLite, so that a file of another program is not modified."""
        try:
            with path.open("rb") as stream:
                header = stream.read(100)
        except OSError as error:
            raise self.error(f"{path} must be a readable {self.what}: {error}") from None
        if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
            raise self.error(f"{path} must be a {self.what}, got something else")
        if int.from_bytes(header[68:72], "big") != self.application:
            raise self.error(f"{path} must be a {self.what} of DUFL, got another program's database")
        version = int.from_bytes(header[60:64], "big")
        if version != self.version:
            raise self.error(f"{path} must be of version {self.version}, got {version}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block, or roll back if anything in it fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # something failed, possibly the commit
            connection.execute("ROLLBACK")
