"""Collection in the background while the client trains: what is collected in round t joins in round t + 1.

A round never waits for a stream beyond its deadline and never fails because of it. Missing samples are
recorded as a shortfall. Samples that arrive late are not lost: they join in a later round.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any, Generic

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
    """

    samples: AnySamples
    requested: int
    problem: str
    seconds: float

    @property
    def shortfall(self) -> int:
        """The number of missing samples."""
        return self.requested - len(self.samples)


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
        self._surplus: AnySamples = self._empty  # arrived, but more than was requested
        self._requested: int | None = None
        self._started = 0.0

    def start(self, count: int, round: int) -> None:
        """Start to collect `count` samples; returns at once."""
        if self._requested is not None:
            raise InputError.of("start", "called after the last round was finished", f"round {round}")
        self._requested, self._started = count, time.monotonic()
        missing = count - len(self._surplus)
        if self._task is None and missing > 0:  # while a late task runs, no other is started
            self._task = _Task(self._stream, missing, round, self._empty)

    def finish(self) -> Collection[AnySamples]:
        """The samples collected so far; waits for the stream until the deadline."""
        if self._requested is None:
            raise InputError.of("finish", "called after start", "no round in progress")
        requested, self._requested = self._requested, None
        problem, parts, seconds = "", [self._surplus], 0.0
        if self._task is not None:
            left = None if self._deadline is None else self._started + self._deadline - time.monotonic()
            done = self._task.wait(left)
            parts += self._task.take()
            if done:
                problem, seconds = self._task.problem, self._task.seconds
                self._task = None
            else:
                problem, seconds = f"late: not done after {self._deadline:g} s", float(self._deadline or 0)
        filled = [part for part in parts if len(part)]
        available = concatenate(filled) if filled else self._empty
        self._surplus = available.take(slice(requested, None))
        samples = available.take(slice(0, requested))
        if len(samples) < requested and not problem:
            problem = "short: the stream had no more samples"
        return Collection(samples, requested, problem if len(samples) < requested else "", seconds)


class _Task(Generic[AnySamples]):
    """The calls of a stream for one round, in a daemon thread, which no exit of the program waits for.

    A stream with an attribute `portion` is called for that many samples at a time, and what has arrived can
    be taken while it runs. Any other stream is called once.
    """

    def __init__(self, stream: Stream[AnySamples], count: int, round: int, empty: AnySamples) -> None:
        self._empty: AnySamples = empty
        self._arrived: list[AnySamples] = []
        self._lock = threading.Lock()
        self.problem = ""
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(stream, count, round), daemon=True)
        self._thread.start()

    def _run(self, stream: Stream[AnySamples], count: int, round: int) -> None:
        started = time.monotonic()
        portion = getattr(stream, "portion", count)
        missing = count
        try:
            while missing > 0:
                samples = self._checked(stream.collect(min(portion, missing), round))
                with self._lock:
                    self._arrived.append(samples)
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
        checked: AnySamples = samples if len(samples) else empty
        return checked

    def take(self) -> list[AnySamples]:
        """What has arrived since the last call."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self, seconds: float | None) -> bool:
        """Whether the task is done, after waiting at most `seconds`."""
        self._thread.join(None if seconds is None else max(seconds, 0))
        return not self._thread.is_alive()
