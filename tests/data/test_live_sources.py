"""Sources that go on while the client does not: nothing is lost, nothing comes twice, no round waits."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker import Broker, needs_mosquitto
from dufl.data.collector import Collector
from dufl.data.durable import DurableBuffer
from dufl.data.live import FolderStream, folders
from dufl.data.live.message import parse_message
from dufl.data.live.mqtt_stream import MqttStream
from dufl.data.live.positions import POSITION, START, Positioned, confirm, position_facts, seek
from dufl.data.live.table_stream import TableStream
from dufl.data.samples import Samples
from dufl.errors import InputError

FIRST = Samples(np.full((1, 1), -1, np.float32), [-1])
HEADER = "time,value,label\n"


def rows(numbers: range) -> str:
    return "".join(f"2026-01-01,{n},{n}\n" for n in numbers)


def values(samples: Samples) -> list[int]:
    return [int(v) for v in samples.features.ravel()]


def client(
    path: Path, make_stream: Callable[[], Any], deadline: float | None = None, drain: bool = False
) -> None:
    """Open the buffer and the stream, and collect, as after any start: for ever, or until nothing comes."""
    stream = make_stream()
    with DurableBuffer[Samples].open(path) as buffer:
        seek(stream, buffer.recall(POSITION))
        collector = Collector(stream, FIRST, deadline)
        while True:
            collector.start(7, buffer.round)
            found = collector.finish()
            buffer.advance(len(buffer), found.samples, **position_facts(found.position))
            confirm(stream, found.position)
            if drain and not len(found.samples):
                break


def in_a_process(action: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:  # pragma: no cover - dies by signal
        try:
            action()
        finally:
            os._exit(1)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def wait_for(change: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for a change, for some time."""
    end = time.monotonic() + seconds
    while not change() and time.monotonic() < end:
        time.sleep(0.005)


def written_since(time: int, path: Path) -> bool:
    return path.exists() and path.stat().st_mtime_ns > time


def stored(path: Path) -> list[int]:
    with DurableBuffer[Samples].open(path) as buffer:
        return values(buffer.snapshot().samples)[1:]


# Tables


def test_rows_are_samples(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,b,room,label,a\n2026-01-01,0.5,hall,3,1\n2026-01-02,1.5,hall,4,2\n")
    stream = TableStream(tmp_path)
    found = stream.collect(9, 0)
    assert (stream.features, found.features.tolist()) == (["b", "a"], [[0.5, 1], [1.5, 2]])
    assert (found.labels.tolist(), str(found.labels.dtype)) == ([3, 4], "int64")
    chosen = TableStream(tmp_path, label="b", features=["a", "label"], task="regression").collect(9, 0)
    assert (chosen.features.tolist(), chosen.labels.tolist()) == ([[1, 3], [2, 4]], [0.5, 1.5])
    assert chosen.labels.dtype == np.float32
    assert isinstance(stream, Positioned)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_file_that_is_written_byte_by_byte(tmp_path: Path, end: str) -> None:
    """Whatever is there at any moment, no half row is collected and none is missing."""
    content = ("\ufeff" + HEADER + rows(range(5)) + "\n" + rows(range(5, 12))).replace("\n", end).encode()
    stream, found = TableStream(tmp_path, patience=1000), list[int]()
    with (tmp_path / "a.csv").open("wb") as file:
        for place in range(len(content)):
            file.write(content[place : place + 1])
            file.flush()
            found += values(stream.collect(3, 0))
    assert found == list(range(12))


def test_an_unfinished_last_line_counts_when_nothing_follows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + rows(range(3)).removesuffix("\n"))
    assert values(TableStream(tmp_path, patience=1000).collect(9, 0)) == [0, 1]
    assert values(TableStream(tmp_path, patience=0).collect(9, 0)) == [0, 1, 2]
    path.write_text(HEADER + rows(range(3)) + "2026-01-01,3")
    torn = TableStream(tmp_path, patience=0)
    assert values(torn.collect(9, 0)) == [0, 1, 2]
    assert torn.skipped == [path]


def test_a_file_is_left_when_it_is_quiet_and_there_is_a_later_one(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(HEADER + rows(range(2)))
    stream = TableStream(tmp_path, patience=1000)
    assert values(stream.collect(9, 0)) == [0, 1]
    second.write_text(HEADER + rows(range(2, 4)))
    assert values(stream.collect(9, 0)) == [2, 3]
    with first.open("a") as file:  # its writer was not done
        file.write(rows(range(4, 6)))
    assert values(stream.collect(9, 0)) == [4, 5]
    again = TableStream(tmp_path, patience=1000)
    again.seek(stream.position())
    assert len(again.collect(9, 0)) == 0
    os.utime(first, (0, 0))
    assert len(again.collect(9, 0)) == 0
    assert json.loads(again.position())["recent"] == ["a.csv"]
    assert list(json.loads(again.position())["begun"]) == ["b.csv"]


@pytest.mark.parametrize(
    ("text", "where", "rule"),
    [
        ("time,value,label\nx,1,0\nx,warm,1\n", "column value in row 2 of", "a finite number"),
        ("time,value,label\nx,1,0\n\nx,nan,1\n", "column value in row 2 of", "a finite number"),
        ("time,value,label\nx,1,0\nx,,1\n", "column value in row 2 of", "a finite number"),
        ("time,value,label\nx,1,0\nx,1e39,1\n", "column value in row 2 of", "a finite number"),
        ("time,value,label\nx,1,0\nx,2,0.5\n", "column label in row 2 of", "an integer"),
        ("time,value,label\nx,1,0\nx,2,hot\n", "column label in row 2 of", "an integer"),
        ("time,value,label\nx,1,0\nx,2\n", "row 2 of", "3 fields"),
        ("time,value,label\nx,1,0\nx,2,1,\n", "row 2 of", "3 fields"),
    ],
)
def test_a_bad_field_is_named_after_the_rows_before_it(
    tmp_path: Path, text: str, where: str, rule: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    stream = TableStream(tmp_path, patience=1000)
    assert values(stream.collect(9, 0)) == [1]
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            stream.collect(9, 0)
        assert caught.value.field == f"{where} {path}"
        assert caught.value.rule.startswith(rule)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("value,class\n1,2\n")
    with pytest.raises(InputError) as caught:
        TableStream(tmp_path).collect(1, 0)
    assert caught.value.field == str(tmp_path / "a.csv")
    assert caught.value.rule == "a table with the column label"
    with pytest.raises(InputError, match="with the columns x, y, got value, class"):
        TableStream(tmp_path, "class", ["value", "x", "y"]).collect(1, 0)
    (tmp_path / "b.csv").write_text("other,class\n1,2\n")
    stream = TableStream(tmp_path, "class")
    assert values(stream.collect(1, 0)) == [1]
    with pytest.raises(InputError, match=r"b\.csv must be a table with the column value"):
        stream.collect(1, 0)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.csv").write_text("label,name\n1,x\n")
    with pytest.raises(InputError, match="with a column of numbers"):
        TableStream(tmp_path / "c").collect(1, 0)


@pytest.mark.parametrize("arguments", [{"features": []}, {"features": "ab"}, {"features": ["label"]}])
def test_features_are_columns_other_than_the_label(tmp_path: Path, arguments: Any) -> None:
    with pytest.raises(InputError, match="features must be columns other than the label"):
        TableStream(tmp_path, **arguments)
    with pytest.raises(InputError, match="task must be"):
        TableStream(tmp_path, task="ranking")  # type: ignore[arg-type]


def test_a_line_without_end_costs_no_memory(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"label," * 2_000_000)
    with pytest.raises(InputError, match="of lines of less than"):
        TableStream(tmp_path).collect(1, 0)
    (tmp_path / "a.csv").write_bytes(b"label,x\n" + b"1" * 10_000_000)
    with pytest.raises(InputError, match="of lines of less than"):
        TableStream(tmp_path).collect(1, 0)


def test_a_large_csv_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dufl.data.live.table_files.CHUNK", 100)
    (tmp_path / "a.csv").write_text(HEADER + rows(range(500)))
    assert values(TableStream(tmp_path).collect(900, 0)) == list(range(500))


def test_parquet_files(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def table(numbers: range, **others: Any) -> Any:
        return pa.table({"label": list(numbers), "value": [float(n) for n in numbers]} | others)

    parquet.write_table(table(range(7), name=["x"] * 7), tmp_path / "a.parquet", row_group_size=3)
    stream = TableStream(tmp_path, patience=1000)
    assert values(stream.collect(4, 0)) == [0, 1, 2, 3]
    again = TableStream(tmp_path, patience=1000)
    again.seek(stream.position())
    assert values(again.collect(9, 0)) == [4, 5, 6]
    parquet.write_table(table(range(7, 9)), tmp_path / "c.parquet")
    whole = (tmp_path / "c.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:-20])  # still being written
    assert len(again.collect(9, 0)) == 0
    (tmp_path / "b.parquet").write_bytes(whole)
    assert values(again.collect(9, 0)) == [7, 8, 7, 8]
    (tmp_path / "d.parquet").write_bytes(b"rubbish")
    hasty = TableStream(tmp_path, patience=0)
    assert len(hasty.collect(99, 0)) == 11
    assert [path.name for path in hasty.skipped] == ["d.parquet"]
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"value": [1.0, None]}, "column value in row 2 of .*e.parquet must be a finite number, got ''"),
        ({"value": ["a", "b"]}, "column value in row 1 of .*e.parquet must be a finite number, got 'a'"),
        ({"value": [[1], [2]]}, "column value in row 1"),
    )
    for others, says in bad:
        parquet.write_table(table(range(2), **others), tmp_path / "e.parquet")
        stream = TableStream(tmp_path, patience=0)
        assert len(stream.collect(99, 0)) == 11 + (None in others["value"])
        with pytest.raises(InputError, match=says):
            stream.collect(99, 0)


# Positions


@pytest.mark.parametrize("size", [1, 2, 3, 5, 40])
def test_every_position_of_a_folder_continues_after_its_samples(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "RECENT", 2)
    for n in range(4):
        folder = tmp_path / f"{n % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{n}.csv").write_text(HEADER + rows(range(8 * n, 8 * n + n)) if n else "")
        np.savez(folder / f"{n}.npz", x=np.arange(3.0)[:, None] + 50 * n, y=[n, n, n])
    for make in (lambda: TableStream(tmp_path, patience=0), lambda: FolderStream(tmp_path)):
        whole = values(make().collect(99, 0))
        stream: Any = make()
        positions = [START]
        while len(found := stream.collect(size, 0)):
            positions += [stream.position(stream.collected - n) for n in reversed(range(len(found)))]
        assert len(positions) == len(whole) + 1 > 6
        for number, position in enumerate(positions):
            again: Any = make()
            again.seek(position)
            assert values(again.collect(99, 0)) == whole[number:]
            stream.seek(positions[0])  # the same object goes back and forth
            stream.collect(number, 0)
            stream.confirm(stream.position())
            stream.collect(1, 0)
            stream.seek(position)
            assert (stream.collected, values(stream.collect(99, 0))) == (number, whole[number:])


@pytest.mark.parametrize("text", ["7", "{}", "x", '{"collected": 3}'])
def test_a_position_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        TableStream(tmp_path).seek(text)
    assert caught.value.field == "position"


class Numbers:
    """0, 1, 2, …; a call waits until it may go on. Positions are numbers."""

    portion = 2

    def __init__(self) -> None:
        self.collected = 0
        self.allowed = threading.Semaphore(0)
        self.bad = -1

    def collect(self, count: int, round: int) -> Samples:
        assert self.allowed.acquire(timeout=30)
        numbers = np.arange(self.collected, self.collected + count)
        self.collected += count
        shape = (count, 2) if self.bad in numbers else (count, 1)
        return Samples(np.broadcast_to(numbers[:, None], shape).astype(np.float32), numbers)

    def resume(self, collected: int) -> None:
        self.collected = collected

    def position(self, collected: int | None = None) -> str:
        return str(self.collected if collected is None else collected)

    def seek(self, position: str) -> None:
        self.collected = int(position)

    def confirm(self, position: str) -> None:
        pass


def test_the_position_of_a_collection_is_that_of_its_last_sample() -> None:
    """However late the samples are and however many more have arrived."""
    chance, stream, found = random.Random(0), Numbers(), list[int]()
    stream.bad = 33
    collector = Collector(stream, FIRST, deadline=0.02)
    for round in range(60):
        collector.start(chance.randrange(9), round)
        for _ in range(chance.randrange(4)):
            stream.allowed.release()
        result = collector.finish()
        found += values(result.samples)
        assert result.position == (str(found[-1] + 1) if len(result.samples) else None)
    lost = {number for number in range(found[-1]) if number not in found}
    assert len(lost) <= 2  # those of the wrong shape
    assert found == sorted(set(found))


def test_a_closed_collector_makes_no_further_calls() -> None:
    stream = Numbers()
    collector = Collector(stream, FIRST, deadline=0.01)
    collector.start(10, 0)
    assert collector.finish().problem.startswith("late")
    collector.close()
    for _ in range(5):
        stream.allowed.release()
    time.sleep(0.2)
    assert stream.collected == 2


def test_without_the_position_samples_come_twice(tmp_path: Path) -> None:
    """What the next tests rule out does happen when the position is not stored with the samples."""
    (tmp_path / "a.csv").write_text(HEADER + rows(range(20)))
    path = tmp_path / "b.db"
    DurableBuffer.create(path, FIRST).close()
    for _ in range(2):
        stream = TableStream(tmp_path)
        with DurableBuffer[Samples].open(path) as buffer:
            buffer.advance(len(buffer), stream.collect(7, 0))
    assert stored(path) == [*range(7), *range(7)]


def test_killed_at_any_moment_a_folder_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Its files grow meanwhile, by pieces that end anywhere."""
    folder, path, chance = tmp_path / "in", tmp_path / "b.db", random.Random(1)
    folder.mkdir()
    DurableBuffer.create(path, FIRST).close()
    log = path.with_name(f"{path.name}-wal")  # written by every commit
    reached, total = set(), 0

    def make() -> TableStream:
        return TableStream(folder, patience=1000)

    for cycle in range(40):
        name = folder / f"{cycle // 5:03}.csv"
        content = ("" if name.exists() else HEADER) + rows(range(total, total + 60))
        before = time.time_ns()
        child = in_a_process(lambda: client(path, make))
        total += 60
        with name.open("a") as file:
            for begin in range(0, len(content), 97):
                file.write(content[begin : begin + 97])
                file.flush()
                time.sleep(chance.uniform(0, 0.006))
        if cycle % 2:  # on a busy machine, the client would always be killed before it does anything
            wait_for(partial(written_since, before, log))
        kill(child)
        reached.add(len(stored(path)))
    client(path, make, drain=True)
    assert stored(path) == list(range(total))
    assert len(reached) > 10


# MQTT


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[1, 2]",
        b"{}",
        b'{"x": [1, 2]}',
        b'{"x": [1], "y": 0}',
        b'{"x": [[1, 2]], "y": 0}',
        b'{"x": [1, "2"], "y": 0}',
        b'{"x": [1, NaN], "y": 0}',
        b'{"x": [1, 1e39], "y": 0}',
        b'{"x": [1, ' + b"9" * 5000 + b'], "y": 0}',
        b'{"x": [1, [2]], "y": 0}',
        b'{"x": [true, false], "y": 0}',
        b'{"x": [1, 2], "y": "0"}',
        b'{"x": [1, 2], "y": true}',
        b'{"x": [1, 2], "y": 0.5}',
        b'{"x": [1, 2], "y": ' + b"9" * 400 + b"}",
        b'{"x": [1, 2], "y": 0, "id": []}',
        b'{"x": [1, 2], "y": 0, "id": ""}',
        b"[" * 100_000,
    ],
)
def test_garbage_is_no_sample(payload: bytes) -> None:
    assert parse_message(payload, (2,), "classification") is None
    assert parse_message(b'{"x": [1, 2], "y": 0, "time": "now", "id": 3}', (2,), "classification")


def test_labels_of_messages_are_numbers_for_regression() -> None:
    found = parse_message(b'{"x": [1, 2], "y": 0.5}', (2,), "regression")
    assert found is not None
    assert found.sample.label == 0.5
    for label in (b"NaN", b"Infinity", b"1e39"):
        assert parse_message(b'{"x": [1, 2], "y": ' + label + b"}", (2,), "regression") is None


def message(number: int, named: bool = True) -> dict[str, Any]:
    return {"x": [number], "y": number % 5} | ({"id": number} if named else {})


def subscriber(broker: Broker, wait: float = 0.5, **others: Any) -> MqttStream:
    return MqttStream("samples", 1, "client", "127.0.0.1", broker.port, wait=wait, **others)


@needs_mosquitto
def test_messages_published_while_the_client_is_down_arrive(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with subscriber(broker) as stream:
            assert len(stream.collect(1, 0)) == 0
        broker.publish(*(message(n) for n in range(300)), b"rubbish", message(300))
        with subscriber(broker) as stream:
            assert values(stream.collect(301, 0)) == list(range(301))
            assert (stream.garbage, stream.collected) == (1, 301)
            stream.confirm(stream.position(200))
            assert values(stream.collect(1, 0)) == []
            rest = stream.position(200)
        with subscriber(broker) as stream:
            stream.seek(rest)
            assert values(stream.collect(101, 0)) == list(range(200, 301))
            stream.seek(rest)  # back: they are not stored, but the broker does not send them again
            assert values(stream.collect(101, 0)) == list(range(200, 301))


@needs_mosquitto
@pytest.mark.parametrize("named", [True, False])
def test_killed_at_any_moment_a_topic_loses_and_repeats_nothing(tmp_path: Path, named: bool) -> None:
    path, chance, reached = tmp_path / "b.db", random.Random(2), set()
    DurableBuffer.create(path, FIRST).close()
    with Broker(tmp_path) as broker:
        with subscriber(broker) as stream:
            stream.collect(1, 0)  # subscribed
        total = 0
        for _ in range(25):
            child = in_a_process(lambda: client(path, lambda: subscriber(broker), deadline=0.05))
            time.sleep(0.05)
            broker.publish(*(message(n, named) for n in range(total, total + 30)))
            total += 30
            time.sleep(chance.uniform(0, 0.1))
            kill(child)
            reached.add(len(stored(path)))
        client(path, lambda: subscriber(broker, wait=3), deadline=3, drain=True)
    assert sorted(stored(path)) == list(range(total))
    assert len(reached) > 5


@needs_mosquitto
def test_a_message_published_twice_is_one_sample(tmp_path: Path) -> None:
    """Publishers repeat what was not acknowledged; only an id tells that it is the same."""
    with Broker(tmp_path) as broker, subscriber(broker) as stream:
        assert len(stream.collect(1, 0)) == 0
        broker.publish(message(1), message(1), message(2, named=False), message(2, named=False))
        assert values(stream.collect(4, 0)) == [1, 2, 2]
        stream.confirm(stream.position())
        broker.publish(message(1), message(2, named=False))
        assert values(stream.collect(4, 0)) == [2]
        assert stream.repeated == 2


@needs_mosquitto
@pytest.mark.parametrize(
    ("number", "named"),
    [
        (signal.SIGTERM, True),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.slow),
    ],
)
def test_rounds_go_on_without_the_broker(tmp_path: Path, number: int, named: bool) -> None:
    """With a broker that saves its sessions nothing is lost; with ids, nothing comes twice in any case."""
    path = tmp_path / "b.db"
    DurableBuffer.create(path, FIRST).close()
    problems = list[str]()
    with (
        Broker(tmp_path) as broker,
        subscriber(broker) as stream,
        DurableBuffer[Samples].open(path) as buffer,
    ):
        collector = Collector(stream, FIRST, deadline=0.5)

        def collect() -> None:
            collector.start(20, buffer.round)
            found = collector.finish()
            problems.append(found.problem)
            assert bool(found.shortfall) == bool(found.problem)
            buffer.advance(len(buffer), found.samples, **position_facts(found.position))
            if len(problems) % 2:  # some are stored and not acknowledged when the broker ends
                confirm(stream, found.position)

        collect()
        for turn in range(3):
            broker.publish(*(message(n, named) for n in range(30 * turn, 30 * turn + 30)))
            collect()
            broker.stop(number)
            collect()
            collect()
            broker.start()
            for _ in range(4):
                collect()
        for _ in range(12):
            collect()
    found = sorted(stored(path))
    assert len(set(found)) == len(found)
    assert any("MQTT broker 127.0.0.1" in problem for problem in problems)
    if number == signal.SIGTERM:
        assert found == list(range(90))


@needs_mosquitto
def test_a_frozen_broker_and_none_at_all(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with subscriber(broker, wait=0.2) as stream:
            assert len(stream.collect(1, 0)) == 0
            broker.publish(message(0), message(1))
            broker.send(signal.SIGSTOP)
            collector = Collector(stream, FIRST, deadline=1)
            began = time.monotonic()
            collector.start(5, 0)
            found = collector.finish()
            assert time.monotonic() - began < 5
            assert found.shortfall == 5 - len(found.samples) >= 3
            broker.send(signal.SIGCONT)
        broker.stop()
        with subscriber(broker, wait=0.2) as stream:
            with pytest.raises(ConnectionError, match="no connection"):
                stream.collect(1, 0)
            collector = Collector(stream, FIRST, deadline=5)
            collector.start(5, 0)
            assert collector.finish().problem.startswith("failed: ConnectionError: MQTT broker")


def test_the_session_has_a_name_and_a_window() -> None:
    with pytest.raises(InputError, match="client_id"):
        MqttStream("samples", 1, "")
    with pytest.raises(InputError, match="task"):
        MqttStream("samples", 1, "client", task="ranking")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="window"):
        MqttStream("samples", 1, "client", window=0)


@needs_mosquitto
def test_more_messages_than_the_window_come_when_room_is_made(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, subscriber(broker, window=10) as stream:
        assert len(stream.collect(1, 0)) == 0
        broker.publish(*(message(n) for n in range(25)))
        found = values(stream.collect(25, 0))
        assert found == list(range(10))
        for _ in range(2):
            stream.confirm(stream.position())
            found += values(stream.collect(25, 0))
        assert found == list(range(25))
