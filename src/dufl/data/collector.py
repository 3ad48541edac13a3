"""Collection in the background while the client trains: what is collected in round t joins in round t + 1.

A round never waits for a stream beyond its deadline and never fails because of it. Missing samples are
recorded as a shortfall. Samples that arrive late are not lost: they join in a later round. If the stream has
positions, a round's collection has the position after its last sample, wherever the stream is by then.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any, Generic

from dufl.data.live.positions import Positioned
from dufl.data.samples import AnySamples, concatenate
from dufl.data.streams import Stream
from dufl.errors import InputError


@dataclass(frozen=True, eq=False)
class Collection(Generic[AnySamples]):
    """The result of a round's collection.

    Attributes:
        samples: at most as many as requested.
        requested: the number of samples requested.
        problem: why there are fewer, if there are: the stream was short, failed, or is late.
        seconds: how long the stream took; the deadline if it is late.
        position: of the stream after these samples; None if there are none or the stream has no positions.
    """

    samples: AnySamples
    requested: int
    problem: str
    seconds: float
    position: str | None = None

    @property
    def shortfall(self) -> int:
        """The number of missing samples."""
        return self.requested - len(self.samples)


@dataclass(frozen=True, eq=False)
class _Part(Generic[AnySamples]):
    """Samples of one call, and how many the stream had collected after them; None without positions."""

    samples: AnySamples
    end: int | None

    def split(self, count: int) -> "tuple[_Part[AnySamples], _Part[AnySamples]]":
        """The first `count` samples, and the others."""
        first, others = self.samples.take(slice(0, count)), self.samples.take(slice(count, None))
        return _Part(first, None if self.end is None else self.end - len(others)), _Part(others, self.end)


class Collector(Generic[AnySamples]):
    """Collects from a stream in the background, one round at a time.

    Call `start` when training starts and `finish` when it ends.

    Args:
        stream: the source of samples.
        like: samples of the kind, shape and type that the stream must yield; may be empty.
        deadline: seconds after `start` at which `finish` stops waiting; None waits for ever.
    """

    def __init__(self, stream: Stream[AnySamples], like: AnySamples, deadline: float | None = None) -> None:
        if deadline is not None and deadline <= 0:
            raise InputError.of("deadline", "> 0 seconds", deadline)
        self._stream: Stream[AnySamples] = stream
        self._empty: AnySamples = like.take(slice(0, 0))
        self._deadline = deadline
        self._task: _Task[AnySamples] | None = None
        self._surplus: list[_Part[AnySamples]] = []  # arrived, but more than was requested
        self._requested: int | None = None
        self._started = 0.0

    def start(self, count: int, round: int) -> None:
        """Start to collect `count` samples; returns at once."""
        if self._requested is not None:
            raise InputError.of("start", "called after the last round was finished", f"round {round}")
        self._requested, self._started = count, time.monotonic()
        missing = count - sum(len(part.samples) for part in self._surplus)
        if self._task is None and missing > 0:  # while a late task runs, no other is started
            self._task = _Task(self._stream, missing, round, self._empty)

    def finish(self) -> Collection[AnySamples]:
        """The samples collected so far; waits for the stream until the deadline."""
        if self._requested is None:
            raise InputError.of("finish", "called after start", "no round in progress")
        requested, self._requested = self._requested, None
        problem, parts, seconds = "", self._surplus, 0.0
        if self._task is not None:
            left = None if self._deadline is None else self._started + self._deadline - time.monotonic()
            done = self._task.wait(left)
            parts += self._task.take()
            if done:
                problem, seconds = self._task.problem, self._task.seconds
                self._task = None
            else:
                problem, seconds = f"late: not done after {self._deadline:g} s", float(self._deadline or 0)
        taken, self._surplus = _divide(parts, requested)
        samples = concatenate([part.samples for part in taken]) if taken else self._empty
        if len(samples) < requested and not problem:
            problem = "short: the stream had no more samples"
        problem = problem if len(samples) < requested else ""
        return Collection(samples, requested, problem, seconds, self._position(taken))

    def close(self) -> None:
        """Let a late task end after the call that it is in; what it still collects is dropped."""
        if self._task is not None:
            self._task.stop()

    def _position(self, taken: list[_Part[AnySamples]]) -> str | None:
        if not taken or taken[-1].end is None or not isinstance(self._stream, Positioned):
            return None
        return self._stream.position(taken[-1].end)


def _divide(
    parts: list[_Part[AnySamples]], count: int
) -> tuple[list[_Part[AnySamples]], list[_Part[AnySamples]]]:
    """The first `count` samples of some parts, and the others; no part is empty."""
    taken: list[_Part[AnySamples]] = []
    others: list[_Part[AnySamples]] = []
    for part in parts:
        first, rest = part.split(count)
        count -= len(first.samples)
        taken += [first] if len(first.samples) else []
        others += [rest] if len(rest.samples) else []
    return taken, others


class _Task(Generic[AnySamples]):
    """The calls of a stream for one round, in a daemon thread, which no exit of the program waits for.

    A stream with an attribute `portion` is called for that many samples at a time, and what has arrived can
    be taken while it runs. Any other stream is called once.
    """

    def __init__(self, stream: Stream[AnySamples], count: int, round: int, empty: AnySamples) -> None:
        self._empty: AnySamples = empty
        self._arrived: list[_Part[AnySamples]] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.problem = ""
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(stream, count, round), daemon=True)
        self._thread.start()

    def _run(self, stream: Stream[AnySamples], count: int, round: int) -> None:
        started = time.monotonic()
        portion = getattr(stream, "portion", count)
        missing = count
        try:
            while missing > 0 and not self._stopped.is_set():
                samples = self._checked(stream.collect(min(portion, missing), round))
                end = stream.collected if isinstance(stream, Positioned) else None
                with self._lock:
                    self._arrived.append(_Part(samples, end))
                if len(samples) < min(portion, missing):
                    break
                missing -= len(samples)
        except Exception as error:  # whatever a user's stream raises: the round continues
            self.problem = f"failed: {type(error).__name__}: {error}"
        self.seconds = time.monotonic() - started

    def _checked(self, samples: Any) -> AnySamples:
        """What a stream returned, if a buffer of the expected samples can store it."""
        empty = self._empty
        if not isinstance(samples, type(empty)):
            raise InputError.of("what a stream returns", type(empty).__name__, type(samples).__name__)
        shape, dtype = samples.shape, samples.content.dtype
        if len(samples) and (shape, dtype) != (empty.shape, empty.content.dtype):
            rule = f"of shape {empty.shape} and type {empty.content.dtype}"
            raise InputError.of("a stream's samples", rule, f"{shape} and {dtype}")
        if len(samples) and samples.labels.dtype != empty.labels.dtype:
            raise InputError.of("a stream's labels", f"of type {empty.labels.dtype}", samples.labels.dtype)
        checked: AnySamples = samples if len(samples) else empty
        return checked

    def stop(self) -> None:
        """Make no further call."""
        self._stopped.set()

    def take(self) -> list[_Part[AnySamples]]:
        """What has arrived since the last call."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self, seconds: float | None) -> bool:
        """Whether the task is done, after waiting at most `seconds`."""
        self._thread.join(None if seconds is None else max(seconds, 0))
        return not self._thread.is_alive()
