"""Collecting in the background while the client trains: what is collected in round t joins in round t + 1.

A round never waits for a stream beyond its deadline and never fails with it. Whatever is missing is
recorded as a shortfall; samples that come late are not lost but join with the next round's.
"""

import threading
import time
from dataclasses import dataclass

from dufl.data.samples import Samples, concatenate
from dufl.data.streams import Stream
from dufl.errors import InputError


@dataclass(frozen=True, eq=False)
class Collection:
    """What a round's collection brought.

    Attributes:
        samples: what there is, at most as many as asked for.
        asked: how many were asked for.
        problem: why there are fewer, if there are: the stream was short, failed, or is late.
        seconds: how long the stream took, as far as is known.
    """

    samples: Samples
    asked: int
    problem: str
    seconds: float

    @property
    def shortfall(self) -> int:
        """How many samples are missing."""
        return self.asked - len(self.samples)


class Collector:
    """Collects from a stream in the background, one round at a time.

    `start` when training starts, `finish` when it ends.
    """

    def __init__(self, stream: Stream, like: Samples, deadline: float | None = None) -> None:
        """Collect samples that look `like` these; give up on a round `deadline` seconds after its start."""
        if deadline is not None and deadline <= 0:
            raise InputError.of("deadline", "> 0 seconds", deadline)
        self._stream = stream
        self._none = like.take(slice(0, 0))
        self._deadline = deadline
        self._task: _Task | None = None
        self._early = self._none  # arrived, but more than a round had room for
        self._asked: int | None = None
        self._began = 0.0

    def start(self, count: int, round: int) -> None:
        """Begin to collect `count` samples; returns at once."""
        if self._asked is not None:
            raise InputError.of("start", "called after the last round was finished", f"round {round}")
        self._asked, self._began = count, time.monotonic()
        missing = count - len(self._early)
        if self._task is None and missing > 0:  # a late one is still at work: do not ask twice
            self._task = _Task(self._stream, missing, round, self._none)

    def finish(self) -> Collection:
        """What has been collected; waits for the stream until the deadline."""
        if self._asked is None:
            raise InputError.of("finish", "called after start", "no round under way")
        asked, self._asked = self._asked, None
        problem, parts, seconds = "", [self._early], 0.0
        if self._task is not None:
            left = None if self._deadline is None else self._began + self._deadline - time.monotonic()
            done = self._task.wait(left)
            parts += self._task.take()
            if done:
                problem, seconds = self._task.problem, self._task.seconds
                self._task = None
            else:
                problem, seconds = f"late: not done after {self._deadline:g} s", float(self._deadline or 0)
        there = _together(parts)
        self._early = there.take(slice(asked, None))
        samples = there.take(slice(0, asked))
        if len(samples) < asked and not problem:
            problem = "short: the stream had no more"
        return Collection(samples, asked, problem if len(samples) < asked else "", seconds)


class _Task:
    """A round's calls of a stream, in a thread of their own that no exit of the program waits for.

    A stream with a `portion` is asked for so many samples at a time, and what has come can be taken
    while it goes on; any other is asked once.
    """

    def __init__(self, stream: Stream, count: int, round: int, like: Samples) -> None:
        self._like = like
        self._come: list[Samples] = []
        self._lock = threading.Lock()
        self.problem = ""
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(stream, count, round), daemon=True)
        self._thread.start()

    def _run(self, stream: Stream, count: int, round: int) -> None:
        began = time.monotonic()
        portion = getattr(stream, "portion", count)
        missing = count
        try:
            while missing > 0:
                found = _checked(stream.collect(min(portion, missing), round), self._like)
                with self._lock:
                    self._come.append(found)
                if len(found) < min(portion, missing):
                    break
                missing -= len(found)
        except Exception as fault:  # whatever a user's stream raises: the round goes on
            self.problem = f"failed: {type(fault).__name__}: {fault}"
        self.seconds = time.monotonic() - began

    def take(self) -> list[Samples]:
        """What has come since it was last asked."""
        with self._lock:
            come, self._come = self._come, []
        return come

    def wait(self, seconds: float | None) -> bool:
        """Whether it is done, after waiting so long at most."""
        self._thread.join(None if seconds is None else max(seconds, 0))
        return not self._thread.is_alive()


def _checked(found: object, like: Samples) -> Samples:
    """What a stream returned, if a buffer of samples `like` these can take it."""
    if not isinstance(found, Samples):
        raise InputError.of("what a stream returns", "Samples", type(found).__name__)
    kind, wanted = (found.shape, found.features.dtype), (like.shape, like.features.dtype)
    if len(found) and kind != wanted:
        raise InputError.of(
            "a stream's samples", f"of shape {wanted[0]} and type {wanted[1]}", f"{kind[0]} and {kind[1]}"
        )
    return found if len(found) else like


def _together(parts: list[Samples]) -> Samples:
    filled = [part for part in parts if len(part)]
    return concatenate(filled) if filled else parts[0]
