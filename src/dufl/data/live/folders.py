"""Folders that another program fills: each sample is collected once, in the order of the files' names.

`GrowingFolder` knows which files are next, which are not complete yet, and how far each has been read.
A subclass knows how to read one file.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.live.positions import parse_position
from dufl.data.samples import Samples, concatenate
from dufl.errors import InputError

RECENT = 10_000  # finished files that a position names
_BEGINNING: dict[str, Any] = {"collected": 0, "recent": [], "before": {}, "begun": {}, "facts": {}}
_KEYS = tuple(_BEGINNING)


class IncompleteError(InputError):
    """A file that cannot be read; it may be incomplete."""


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of a file, in order.

    Attributes:
        samples: possibly none.
        ends: one integer per sample: from where to read on after it.
        last: whether the file has no more samples, now and later.
    """

    samples: Samples
    ends: Sequence[int] | npt.NDArray[np.int64]
    last: bool


@dataclass(frozen=True, eq=False)
class _Event:
    """After `count` samples in total, `ends` of a file were collected, or the file was left for good."""

    count: int
    file: str
    ends: Sequence[int] | npt.NDArray[np.int64] | None

    @property
    def end(self) -> int:
        """The number of samples in total after it."""
        return self.count + (0 if self.ends is None else len(self.ends))


class _Progress:
    """How far a folder has been collected.

    Attributes:
        recent: the last finished files.
        before: per folder, the last name among the files that finished before the recent ones.
        begun: the files of which some samples have been collected, and from where to read on.
    """

    def __init__(self, recent: Iterable[str], before: dict[str, str], begun: dict[str, int]) -> None:
        self.recent = dict.fromkeys(recent)  # a set in the order of insertion
        self.before = dict(before)
        self.begun = dict(begun)

    def copy(self) -> "_Progress":
        return _Progress(self.recent, self.before, self.begun)

    def apply(self, event: _Event, upto: int) -> None:
        """Note an event, or the part of it that is within the first `upto` samples."""
        if event.ends is None:
            self.begun.pop(event.file, None)
            self.recent[event.file] = None
            if len(self.recent) > RECENT:
                self._push_out(next(iter(self.recent)))
        elif (taken := min(len(event.ends), upto - event.count)) > 0:
            self.begun[event.file] = int(event.ends[taken - 1])

    def _push_out(self, file: str) -> None:
        del self.recent[file]
        folder, _, name = file.rpartition("/")
        self.before[folder] = max(name, self.before.get(folder, ""))

    def finished(self, file: str) -> bool:
        """Whether a file has been left for good."""
        folder, _, name = file.rpartition("/")
        return file in self.recent or (file not in self.begun and name <= self.before.get(folder, ""))


class GrowingFolder(ABC):
    """The files in a folder that another program fills, in the order of their names.

    In each folder, names must sort in the order of arrival. Files whose names begin with a dot or end in
    `.part` or `.tmp` are ignored. A file that cannot be read is assumed to be incomplete: the stream stops
    before it and tries again at the next call. After `patience` seconds without a change it is skipped and
    listed in `skipped`.

    A position has the names of the last 10,000 finished files. A file that arrives later and whose name comes
    before those of all earlier files counts as finished.

    Args:
        folder: with files, or with folders of files.
        patience: seconds without a change after which a file counts as finished.
    """

    portion = 256

    def __init__(self, folder: str | Path, patience: float = 10.0) -> None:
        self.folder = Path(folder)
        self.skipped: list[Path] = []
        self.collected = 0
        self._patience = patience
        self._turn = threading.Lock()  # one thread at a time collects or seeks; reading may take long
        self._state = threading.Lock()  # of the progress; never held while a file is read
        self._stored, self._now = _Progress((), {}, {}), _Progress((), {}, {})
        self._events: list[_Event] = []  # since the stored progress
        self._facts: dict[str, Any] = {}  # of a subclass, part of every position
        self._rest: tuple[str, Part] | None = None  # read but not yet collected
        if not self.folder.is_dir():
            raise InputError.of("folder", "a folder that exists", self.folder)

    @abstractmethod
    def _knows(self, path: Path) -> bool:
        """Whether a file is of a kind that the stream reads."""

    @abstractmethod
    def _read(self, path: Path, start: int, quiet: bool) -> Part:
        """Some samples of a file from `start` on, an element of `ends` or 0 for the beginning.

        `quiet` is whether the file has not changed for `patience` seconds. Raises `IncompleteError` if the
        file cannot be read yet, and `InputError` if it is complete but something else.
        """

    def collect(self, count: int, round: int) -> Samples:
        """The next `count` samples; fewer if there are no more files yet."""
        taken: list[Samples] = []
        missing = count
        with self._turn:
            parts = self._parts()
            while missing > 0:
                try:
                    self._rest = self._rest or next(parts, None)
                except InputError:
                    if taken:
                        break  # the next call raises it
                    raise
                if self._rest is None:
                    break
                taken.append(self._take(missing))
                missing -= len(taken[-1])
        return concatenate(taken) if taken else self._no_samples()

    def resume(self, collected: int) -> None:
        """Skip the samples collected before; their files must still be in the folder."""
        found = len(self.collect(collected, 0))
        if found < collected:
            rule = f"a folder that still has the {collected} samples collected before"
            raise InputError.of("folder", rule, found)

    def position(self, collected: int | None = None) -> str:
        """The finished files, and how far the files that are not finished have been read."""
        with self._state:
            upto = self.collected if collected is None else collected
            progress = self._stored.copy()
            for event in self._events:
                if event.count <= upto:
                    progress.apply(event, upto)
            found = {"collected": upto, "recent": list(progress.recent), "before": progress.before}
            return json.dumps(found | {"begun": progress.begun, "facts": self._facts})

    def seek(self, position: str) -> None:
        """Continue after a position; files that are not finished must still be in the folder."""
        found = parse_position(position, *_KEYS) if position else dict(_BEGINNING)
        with self._turn, self._state:
            self.collected, self._facts = int(found["collected"]), dict(found["facts"])
            self._stored = _Progress(found["recent"], found["before"], found["begun"])
            self._now, self._events, self._rest = self._stored.copy(), [], None

    def confirm(self, position: str) -> None:
        """Forget how the stream came to this position."""
        found = parse_position(position, *_KEYS)
        upto = int(found["collected"])
        with self._state:
            self._stored = _Progress(found["recent"], found["before"], found["begun"])
            self._events = [event for event in self._events if event.end > upto or event.count == upto]

    def _parts(self) -> Iterator[tuple[str, Part]]:
        """What can be read now; ends at a file that may be incomplete."""
        for path, later in self._files():
            file = path.relative_to(self.folder).as_posix()
            while True:
                quiet = _idle(path) >= self._patience
                try:
                    part = self._read(path, self._now.begun.get(file, 0), quiet)
                except IncompleteError:
                    if not quiet:
                        return
                    self.skipped.append(path)
                    self._note(_Event(self.collected, file, None))
                    break
                if len(part.samples):
                    yield file, part  # the caller takes all of it before it asks for more
                elif part.last or (quiet and later):
                    self._note(_Event(self.collected, file, None))
                if part.last or not len(part.samples):
                    break

    def _files(self) -> list[tuple[Path, bool]]:
        """The files that are not finished, and whether there is a later one in the same folder."""
        found: list[tuple[Path, bool]] = []
        latest: set[Path] = set()
        for path in sorted(self.folder.rglob("*"), reverse=True):
            hidden = path.name.startswith(".") or path.suffix in (".part", ".tmp")
            if hidden or not self._knows(path) or not path.is_file():
                continue
            if not self._now.finished(path.relative_to(self.folder).as_posix()):
                found.append((path, path.parent in latest))
            latest.add(path.parent)
        return found[::-1]

    def _take(self, count: int) -> Samples:
        """At most `count` of the samples that have been read; notes how far the file is collected."""
        assert self._rest is not None
        file, part = self._rest
        taken = part.samples.take(slice(0, count))
        rest = Part(part.samples.take(slice(count, None)), part.ends[count:], part.last)
        self._rest = (file, rest) if len(rest.samples) else None
        self._note(_Event(self.collected, file, part.ends[:count]))
        if self._rest is None and part.last:
            self._note(_Event(self.collected, file, None))
        return taken

    def _note(self, event: _Event) -> None:
        with self._state:
            self._events.append(event)
            self._now.apply(event, event.end)
            self.collected = event.end

    def _no_samples(self) -> Samples:
        return Samples(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))


def _idle(path: Path) -> float:
    """Seconds since a file changed; 0 if it is not there."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
