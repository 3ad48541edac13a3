"""Watching a run that goes on for months: observers of finished rounds, and a log in JSON lines.

An observer is called with every finished round. One that is a context manager is entered before the first
round and left after the last one, also if the run fails. An error of an observer is logged and does not stop
the run. The exporter for Prometheus is in `prometheus`.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any

from flwr.common.logger import console_handler, log

from dufl.errors import InputError
from dufl.experiment.files import target_of, to_json
from dufl.flower.server_store import Round

Observer = Callable[[Round], None]
LOG = "log.jsonl"
LOGS = ("text", "json", "json-stderr", "json-both")


@contextmanager
def entered(observers: Sequence[Observer]) -> Iterator[None]:
    """Enter the observers that are context managers, and leave them at the end of the block."""
    with ExitStack() as stack:
        for observer in observers:
            if isinstance(observer, AbstractContextManager):
                stack.enter_context(observer)
        yield


def notify(observers: Sequence[Observer], round: Round) -> None:
    """Call the observers with a finished round. An error is logged and does not stop the run."""
    for observer in observers:
        try:
            observer(round)
        except Exception as error:
            log(logging.WARNING, "%s failed in round %s: %r", observer, round.round, error)


def round_numbers(round: Round) -> dict[str, Any]:
    """All numbers of a finished round. Amounts are integers, in units."""
    return {
        "seconds": time.perf_counter() - round.began,
        "volume": round.volume,
        "mean_age": round.mean_age,
        "unit": str(round.unit),
        "payment": round.payment,
        "owed": sum(entry.owed for entry in round.entries),
        "held": round.held,
        "released": sum(entry.released for entry in round.entries),
        "claims": [asdict(claim) for claim in round.claims],
        "entries": [asdict(entry) for entry in round.entries],
        "refused": {str(client): reason for client, reason in round.refused.items()},
        "missing": list(round.missing),
        "bounded": {str(client): ratio for client, ratio in round.bounded.items()},
        "scores": {str(client): asdict(score) for client, score in round.scores.items()},
        "metrics": dict(round.metrics),
        "ledger_rounds": round.ledger_head.rounds,
        "ledger_head": round.ledger_head.hash,
    }


class JsonLog:
    """Flower's log and every finished round as JSON lines, one object per event.

    A line has `time` (UTC), `level`, `event` ("log" or "round"), `message`, `round` and `folder`; that of a
    finished round has all its numbers, too. `round` is t, from 0: the finished round or, in a message, the
    round under way; null before the first one of this process has finished.

    Args:
        folder: of the run. The file `log.jsonl` in it is continued by a server that is started again. If it
            is renamed by a program that rotates logs, a new one is begun.
        file: whether the file is written.
        stderr: whether the lines are written to stderr, in place of Flower's own lines.
    """

    def __init__(self, folder: str | Path, *, file: bool = True, stderr: bool = False) -> None:
        self._folder = Path(folder)
        self._file = file
        self._stderr = stderr
        self._handlers: list[logging.Handler] = []
        self._silenced = False
        self.round: int | None = None

    def __enter__(self) -> "JsonLog":
        logger = logging.getLogger("flwr")
        if self._file:
            self._handlers.append(self._file_handler())
        if self._stderr:
            self._handlers.append(logging.StreamHandler(sys.stderr))
            self._silenced = console_handler in logger.handlers
            logger.removeHandler(console_handler)
        for handler in self._handlers:
            handler.setFormatter(_JsonFormatter(self))
            handler.addFilter(lambda record: bool(record.getMessage().strip()))  # Flower logs empty lines
            logger.addHandler(handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger = logging.getLogger("flwr")
        if error is not None:
            self._emit(logging.ERROR, "log", f"the run ends: {error!r}", {})
        for handler in self._handlers:
            logger.removeHandler(handler)
            handler.close()
        if self._silenced:
            logger.addHandler(console_handler)
        self._handlers, self._silenced = [], False

    def __call__(self, round: Round) -> None:
        """Log a finished round."""
        self.round = round.round
        message = f"round {round.round} is finished"
        self._emit(logging.INFO, "round", message, round_numbers(round))
        self.round += 1

    def _file_handler(self) -> logging.Handler:
        path = self._folder / LOG
        target_of(path)  # raises an error for a pipe, which would block
        try:
            _end_line(path)
            return WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            rule = "a file that can be written to"
            raise InputError.of(str(path), rule, str(error.strerror or error)) from None

    def _emit(self, level: int, event: str, message: str, numbers: dict[str, Any]) -> None:
        record = logging.LogRecord("dufl", level, "", 0, message, None, None)
        record.dufl = {"event": event} | numbers
        for handler in self._handlers:
            handler.handle(record)

    def line(self, record: logging.LogRecord) -> dict[str, Any]:
        """The object of an event."""
        numbers = dict(getattr(record, "dufl", {"event": "log"}))
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "event": numbers.pop("event"),
            "message": record.getMessage().strip(),
            "round": self.round,
            "folder": str(self._folder),
        }
        return values | numbers


def _end_line(path: Path) -> None:
    """End the last line of a file, which a server that was killed may have left unfinished."""
    with path.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")


class _JsonFormatter(logging.Formatter):
    def __init__(self, owner: JsonLog) -> None:
        super().__init__()
        self._owner = owner

    def format(self, record: logging.LogRecord) -> str:
        values = self._owner.line(record)
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return to_json(values, indent=None).rstrip("\n").encode("utf-8", "replace").decode()


def json_log(kind: str, folder: Path) -> list[Observer]:
    """The log that the setting `log` of a server asks for."""
    if kind not in LOGS:
        raise InputError.of("log", f"one of {', '.join(LOGS)}", kind)
    if kind == "text":
        return []
    return [JsonLog(folder, file=kind != "json-stderr", stderr=kind != "json")]
