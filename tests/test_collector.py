"""Collecting in the background: shortfalls are recorded, nothing is lost, no round waits for ever."""

import threading
import time

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
    """A stream that counts up, and waits or fails as told for each call."""

    def __init__(self, *script: float | str) -> None:
        self.script = list(script)
        self.next = 0
        self.calls: list[tuple[int, int]] = []

    def collect(self, count: int, round: int) -> Samples:
        """The next numbers, or what the script says."""
        self.calls.append((count, round))
        move = self.script.pop(0) if self.script else 0
        if isinstance(move, str):
            raise RuntimeError(move)
        time.sleep(move)
        self.next += count
        return numbered(self.next - count, count)

    def resume(self, collected: int) -> None:
        """Count on from there."""
        self.next = collected


def test_collecting_and_training_at_the_same_time() -> None:
    collector = Collector(Scripted(0.2), numbered(0, 0))
    began = time.monotonic()
    collector.start(5, 0)
    time.sleep(0.2)
    found = collector.finish()
    assert time.monotonic() - began < 0.35
    assert found.samples.labels.tolist() == [0, 1, 2, 3, 4]
    assert (found.shortfall, found.problem) == (0, "")
    assert 0.15 < found.seconds < 0.35


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
    assert amounts[1] == (3, 1, "short: the stream had no more")
    assert amounts[2][:2] == (0, 4)


def test_a_stream_that_fails_is_asked_again() -> None:
    stream = Scripted("the sensor is off", 0)
    collector = Collector(stream, numbered(0, 0))
    collector.start(3, 0)
    found = collector.finish()
    assert (len(found.samples), found.shortfall) == (0, 3)
    assert found.problem == "failed: RuntimeError: the sensor is off"
    collector.start(3, 1)
    assert len(collector.finish().samples) == 3


def test_a_stream_that_hangs_does_not_hold_the_round_and_loses_nothing() -> None:
    stream = Scripted(0.4)
    collector = Collector(stream, numbered(0, 0), deadline=0.1)
    began = time.monotonic()
    collector.start(6, 0)
    late = collector.finish()
    assert time.monotonic() - began < 0.25
    assert (len(late.samples), late.shortfall) == (0, 6)
    assert late.problem == "late: not done after 0.1 s"
    time.sleep(0.4)
    collector.start(4, 1)
    found = collector.finish()
    assert found.samples.labels.tolist() == [0, 1, 2, 3]
    collector.start(4, 2)
    found = collector.finish()
    assert found.samples.labels.tolist() == [4, 5, 6, 7]
    assert stream.calls == [(6, 0), (2, 2)]  # not asked twice while late, and only for what was missing


def test_training_that_takes_longer_than_the_deadline_still_gets_what_came() -> None:
    collector = Collector(Scripted(0.05), numbered(0, 0), deadline=0.1)
    collector.start(2, 0)
    time.sleep(0.2)
    assert len(collector.finish().samples) == 2


def test_no_exit_waits_for_a_hanging_stream() -> None:
    Collector(Scripted(60.0), numbered(0, 0), deadline=0.01).start(1, 0)
    hanging = [thread for thread in threading.enumerate() if thread.name.startswith("Thread-")]
    assert hanging
    assert all(thread.daemon for thread in hanging)


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
