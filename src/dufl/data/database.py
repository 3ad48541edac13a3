"""SQLite files that survive a kill: written in transactions; files of other programs are not modified."""

import glob
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dufl.errors import InputError

WAIT = 30.0  # seconds to wait for another process that writes to a file that is not opened alone
_PATIENCE = 1_000_000  # instructions of SQLite that a query of a file of unknown version may take


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
        oldest: the oldest version of its tables that can be read; by default, no older one can.
    """

    what: str
    application: int
    version: int
    error: type[InputError] = InputError
    alone: bool = True
    private: bool = False
    oldest: int | None = None

    def connect(self, path: Path) -> sqlite3.Connection:
        """A connection; each transaction is durable once it returns.

        A file that others may read can be read in a folder without write access, too, unless a process that
        was killed left a log beside it.
        """
        readable = not self.alone and not os.access(path.parent, os.W_OK) and not _log_of(path)
        place = f"{path.absolute().as_uri()}?immutable=1" if readable else path
        mode = "EXCLUSIVE" if self.alone else "NORMAL"
        settings = (f"locking_mode={mode}", "journal_mode=WAL", "synchronous=FULL")
        connection = sqlite3.connect(
            place,
            timeout=0 if self.alone else WAIT,
            isolation_level=None,
            check_same_thread=False,
            uri=readable,
        )
        try:
            for setting in () if readable else settings:
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
        """Create a file that is complete before it has its name.

        Several processes may do so at once for a file that they share: one of them succeeds.
        """
        if not path.parent.is_dir():
            raise self.error(f"{path} must be in a folder that exists, got {path.parent}")
        temporary = path.with_name(f".{path.name}.new" + ("" if self.alone else f"-{os.getpid()}"))
        if not self.alone:
            _remove_abandoned(path)
        temporary.unlink(missing_ok=True)
        temporary.touch(
            0o600 if self.private else 0o666, exist_ok=False
        )  # the mode of SQLite's other files follows
        try:
            connection = self.connect(temporary)
            with closing(connection), transaction(connection):  # closing merges the log into the file
                fill(connection)
                connection.execute(f"PRAGMA application_id={self.application}")
                connection.execute(f"PRAGMA user_version={self.version}")
            if self.alone:
                temporary.replace(path)
            else:
                publish(temporary, path)
        except FileExistsError:
            raise self.error(f"{path} must not exist yet: open it, or choose another name") from None
        finally:
            temporary.unlink(missing_ok=True)

    def check_header(self, path: Path) -> None:
        """Check the first bytes without SQLite, so that a file of another program is not modified."""
        try:
            if path.exists() and not path.is_file():  # opening a pipe would block
                raise self.error(f"{path} must be a {self.what}, which is a regular file")
            with path.open("rb") as stream:
                header = stream.read(100)
        except OSError as error:
            raise self.error(f"{path} must be a readable {self.what}: {error}") from None
        if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
            raise self.error(f"{path} must be a {self.what}, got something else")
        if int.from_bytes(header[68:72], "big") != self.application:
            raise self.error(f"{path} must be a {self.what} of DUFL, got another program's database")
        self.check_version(path, int.from_bytes(header[60:64], "big"))

    def check_version(self, path: Path, version: int) -> None:
        """Raise an error if tables of a version cannot be read; it says what is needed."""
        oldest = self.version if self.oldest is None else self.oldest
        if oldest <= version <= self.version:
            return
        known = str(self.version) if oldest == self.version else f"{oldest} to {self.version}"
        needs = ""
        if version > self.version:
            needs = f": it needs {_program_for(path) or 'a newer version of DUFL than this one'}"
        raise self.error(f"{path} must be of version {known}, got {version}{needs}")


def publish(temporary: Path, path: Path) -> None:
    """Give a complete file its name. Raises FileExistsError if there is such a file."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(path) from None
        temporary.replace(path)


def _remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed while they created a file left behind."""
    for file in path.parent.glob(f".{glob.escape(path.name)}.new-*"):
        owner = file.name.removeprefix(f".{path.name}.new-").partition("-")[0]
        if owner.isdecimal() and not _runs(int(owner)):
            file.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _log_of(path: Path) -> bool:
    """Whether SQLite has a log beside a file that is not merged into it."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _program_for(path: Path) -> str:
    """The program that a file of a newer version needs, as it says itself; empty if it does not."""
    try:
        place = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(place, uri=True)) as connection:
            connection.set_progress_handler(lambda: 1, _PATIENCE)  # stop a query that does not end
            query = "SELECT value FROM about WHERE key = 'needs'"
            row = connection.execute(query).fetchone()
    except sqlite3.Error:
        return ""
    text = row[0] if row and isinstance(row[0], str) else ""
    return text if text.isprintable() and len(text) <= 40 else ""


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
