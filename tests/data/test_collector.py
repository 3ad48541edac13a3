"""Collecting in the background: shortfalls are recorded, nothing is lost, no round waits for ever."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dufl.data.collector import Collector
from dufl.data.samples import Samples
from dufl.data.streams import IteratorStream
from dufl.errors import InputError


def numbered(first: int, count: int) -> Samples:
    numbers = np.arange(first, first + count)
    return Samples(numbers.astype(np.float32)[:, None], numbers)


class Scripted:
    """A stream that counts up; each call waits for an event, fails with a text, or answers at once."""

    def __init__(self, *script: threading.Event | str | None) -> None:
        self.script = list(script)
        self.next = 0
        self.calls: list[tuple[int, int]] = []

    def collect(self, count: int, round: int) -> Samples:
        """The next numbers, when the script lets them go."""
        self.calls.append((count, round))
        move = self.script.pop(0) if self.script else None
        if isinstance(move, str):
            raise RuntimeError(move)
        if move is not None:
            assert move.wait(30)
        self.next += count
        return numbered(self.next - count, count)

    def resume(self, collected: int) -> None:
        """Count on from there."""
        self.next = collected


def test_collecting_and_training_at_the_same_time() -> None:
    """The stream waits for something that happens during training: one after the other would never end."""
    trained = threading.Event()
    collector = Collector(Scripted(trained), numbered(0, 0))
    collector.start(5, 0)
    trained.set()  # training, while the stream is at work
    found = collector.finish()
    assert found.samples.labels.tolist() == [0, 1, 2, 3, 4]
    assert (found.shortfall, found.problem) == (0, "")
    assert found.seconds > 0


def test_a_stream_that_runs_dry() -> None:
    collector = Collector(
        IteratorStream(numbered(0, 7).take(slice(i, i + 1)) for i in range(7)), numbered(0, 0)
    )
    amounts = []
    for t in range(3):
        collector.start(4, t)
        found = collector.finish()
        amounts.append((len(found.samples), found.shortfall, found.problem))
    assert amounts[0] == (4, 0, "")
    assert amounts[1] == (3, 1, "short: the stream had no more samples")
    assert amounts[2][:2] == (0, 4)


def test_a_stream_that_fails_is_asked_again() -> None:
    stream = Scripted("the sensor is off")
    collector = Collector(stream, numbered(0, 0))
    collector.start(3, 0)
    found = collector.finish()
    assert (len(found.samples), found.shortfall) == (0, 3)
    assert found.problem == "failed: RuntimeError: the sensor is off"
    collector.start(3, 1)
    assert len(collector.finish().samples) == 3


def test_a_stream_that_hangs_does_not_hold_the_round_and_loses_nothing() -> None:
    arrives = threading.Event()
    stream = Scripted(arrives)
    collector = Collector(stream, numbered(0, 0), deadline=0.05)
    collector.start(6, 0)
    late = collector.finish()  # ends although the stream does not
    assert (len(late.samples), late.shortfall) == (0, 6)
    assert late.problem == "late: not done after 0.05 s"
    collector.start(4, 1)
    arrives.set()
    found = collector.finish()
    while not len(found.samples):  # on a busy machine it may miss a deadline more
        assert found.problem
        collector.start(4, 1)
        found = collector.finish()
    assert found.samples.labels.tolist() == [0, 1, 2, 3]
    collector.start(2, 2)
    assert collector.finish().samples.labels.tolist() == [4, 5]
    assert stream.calls == [(6, 0)]  # not asked again while it was late, nor for what was there


def test_a_slow_stream_is_used_as_far_as_it_has_come() -> None:
    """A deadline in the middle of a round's samples: those that have come are used, none is lost."""
    half, more = threading.Event(), threading.Event()

    def sensor() -> Iterator[Samples]:
        yield numbered(0, 3)
        half.set()
        assert more.wait(30)
        yield numbered(3, 50)

    collector = Collector(IteratorStream(sensor()), numbered(0, 0), deadline=0.2)
    collector.start(5, 0)
    assert half.wait(30)
    found = collector.finish()
    assert found.samples.labels.tolist() == [0, 1, 2]
    assert (found.shortfall, found.problem[:4]) == (2, "late")
    more.set()
    seen = found.samples.labels.tolist()
    for t in range(1, 6):
        collector.start(4, t)
        seen += collector.finish().samples.labels.tolist()
    assert seen == list(range(len(seen)))
    assert len(seen) > 3


def test_training_that_takes_longer_than_the_deadline_still_gets_what_came() -> None:
    came = threading.Event()

    class Announced(Scripted):
        def collect(self, count: int, round: int) -> Samples:
            """Say so when it is done."""
            found = super().collect(count, round)
            came.set()
            return found

    collector = Collector(Announced(), numbered(0, 0), deadline=0.01)
    collector.start(2, 0)
    assert came.wait(30)
    time.sleep(0.05)  # training goes on, past the deadline
    assert len(collector.finish().samples) == 2


def test_no_exit_waits_for_a_hanging_stream() -> None:
    never, before = threading.Event(), set(threading.enumerate())
    Collector(Scripted(never), numbered(0, 0), deadline=0.01).start(1, 0)
    hanging = set(threading.enumerate()) - before
    assert [thread.daemon for thread in hanging] == [True]
    never.set()


class Returning:
    """A stream that returns whatever it was given, whether that is samples or not."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def collect(self, count: int, round: int) -> Samples:
        """The answer."""
        found: Samples = self.answer
        return found

    def resume(self, collected: int) -> None:
        """Nothing to do."""


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "Samples, got NoneType"),
        ([1, 2], "Samples, got list"),
        (Samples(np.zeros((2, 5), np.float32), [0, 1]), "of shape (1,) and type float32, got (5,)"),
        (Samples(np.zeros((2, 1), np.uint8), [0, 1]), "of shape (1,) and type float32, got (1,) and uint8"),
    ],
)
def test_a_stream_that_yields_something_else_does_not_stop_the_round(answer: Any, words: str) -> None:
    collector = Collector(Returning(answer), numbered(0, 0))
    collector.start(2, 0)
    found = collector.finish()
    assert (len(found.samples), found.shortfall) == (0, 2)
    assert found.samples.shape == (1,)
    assert found.problem.startswith("failed: ")
    assert words in found.problem
    collector.start(2, 1)
    assert collector.finish().shortfall == 2


def test_misuse() -> None:
    collector = Collector(Scripted(), numbered(0, 0))
    with pytest.raises(InputError, match="finish must be called after start"):
        collector.finish()
    collector.start(1, 0)
    with pytest.raises(InputError, match="start must be called after the last round was finished"):
        collector.start(1, 1)
    with pytest.raises(InputError, match="deadline must be > 0 seconds, got 0"):
        Collector(Scripted(), numbered(0, 0), deadline=0)


def test_nothing_asked_nothing_collected() -> None:
    stream = Scripted()
    collector = Collector(stream, numbered(0, 0))
    collector.start(0, 0)
    assert collector.finish().shortfall == 0
    assert stream.calls == []
