"""The durable buffer against death, damage and rivals."""

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.data.buffer import MemoryBuffer, Snapshot
from dufl.data.durable import DurableBuffer
from dufl.data.samples import Samples
from dufl.errors import BufferFileError, InputError

KILLS = {"uniform": 300, "oldest": 60, "reservoir": 100, "class-balanced": 100}


def batch(round: int, count: int = 20) -> Samples:
    generator = np.random.default_rng(round)
    return Samples(
        generator.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8), generator.integers(0, 10, count)
    )


def digest(snapshot: Snapshot[Samples]) -> str:
    parts = (snapshot.samples.features, snapshot.samples.labels, snapshot.ages, snapshot.ids)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def advance_for_ever(path: Path) -> None:
    buffer = DurableBuffer.open(path)
    while True:
        following = buffer.round + 1
        buffer.advance(min(len(buffer), 40), batch(following), position=str(following))


def seconds_of_a_step(path: Path) -> float:
    """From a fork to the end of a first step, on this machine."""
    DurableBuffer.create(path, batch(0, 60)).close()
    began = time.monotonic()
    child = os.fork()
    if child == 0:  # pragma: no cover - dies by signal
        try:
            DurableBuffer.open(path).advance(40, batch(1))
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    return time.monotonic() - began


@pytest.mark.parametrize("discard", KILLS)
def test_killed_at_any_moment_it_is_before_or_after_a_step(tmp_path: Path, discard: Any) -> None:
    """Hundreds of kills; after each the content is exactly that of the round it says it is in."""
    path, kills = tmp_path / "buffer.db", KILLS[discard]
    DurableBuffer.create(path, batch(0, 60), discard=discard).close()
    twin, reached = MemoryBuffer(batch(0, 60), discard=discard), [0]
    chance, reach = random.Random(0), 2 * min(seconds_of_a_step(tmp_path / f"{n}.db") for n in range(3))
    for _ in range(kills):
        child = os.fork()
        if child == 0:  # pragma: no cover - dies by signal
            try:
                advance_for_ever(path)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0, reach))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        with DurableBuffer.open(path) as buffer:
            now = buffer.round
            assert now >= reached[-1]
            while twin.round < now:
                twin.advance(min(len(twin), 40), batch(twin.round + 1))
            assert digest(buffer.snapshot()) == digest(twin.snapshot())
            assert buffer.recall("position") == (str(now) if now else None)
            reached.append(now)
    assert reached[-1] > kills / 4  # it did advance in between
    assert len(set(reached)) > kills / 10


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    code = f"from dufl.data.durable import DurableBuffer; DurableBuffer.open({str(path)!r})"
    with DurableBuffer.create(path, batch(0)):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "must be free, but another process has it open" in done.stderr
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got something else"),
        (b"hello" * 100, "got something else"),
        (b"SQLite format 3\0" + bytes(200), "got another program's database"),
    ],
)
def test_a_foreign_file_is_not_touched(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "b.db"
    path.write_bytes(content)
    with pytest.raises(BufferFileError, match=message):
        DurableBuffer.open(path)
    assert contents(tmp_path) == {"b.db": content}


def test_another_program_s_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()
    before = contents(tmp_path)
    with pytest.raises(BufferFileError, match="another program's database"):
        DurableBuffer.open(path)
    assert contents(tmp_path) == before


def test_damage_is_reported_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    DurableBuffer.create(path, batch(0, 200)).close()
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    with DurableBuffer.open(path) as buffer:
        unharmed = digest(buffer.snapshot())
    reported = sum(report_or_harmless(path, spoil(whole, generator, n), unharmed) for n in range(80))
    assert reported >= 50


def spoil(whole: bytes, generator: np.random.Generator, trial: int) -> bytes:
    """Cut off the end, or write rubbish over some of it."""
    if trial % 3 == 0:
        return whole[: int(generator.integers(100, len(whole)))]
    place = int(generator.integers(100, len(whole) - 600))
    return whole[:place] + generator.integers(0, 256, 500, dtype=np.uint8).tobytes() + whole[place + 500 :]


def report_or_harmless(path: Path, damaged: bytes, unharmed: str) -> bool:
    """Whether damage is reported, and the file left as it is; if not, no sample may have suffered."""
    path.write_bytes(damaged)
    try:
        with DurableBuffer.open(path) as buffer:
            found = digest(buffer.snapshot())
    except BufferFileError:
        assert path.read_bytes() == damaged
        return True
    assert found == unharmed
    return False


def test_create_leaves_alone_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    path.write_text("mine")
    with pytest.raises(BufferFileError, match="must not exist yet"):
        DurableBuffer.create(path, batch(0))
    assert path.read_text() == "mine"
    with pytest.raises(BufferFileError, match="in a folder that exists"):
        DurableBuffer.create(tmp_path / "no" / "b.db", batch(0))
    with pytest.raises(BufferFileError, match="must be a readable buffer file"):
        DurableBuffer.open(tmp_path / "none.db")


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    DurableBuffer.create(path, batch(0)).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=2")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with pytest.raises(BufferFileError, match="must be of version 1, got 2"):
        DurableBuffer.open(path)


def test_a_full_disk_leaves_the_last_step(tmp_path: Path) -> None:
    """A limit on the pages of the file stands in for a disk that is full."""
    path = tmp_path / "b.db"
    with DurableBuffer.create(path, batch(0, 60)) as buffer:
        buffer.advance(40, batch(1), position="one")
        before = digest(buffer.snapshot())
        pages = buffer._connection.execute("PRAGMA page_count").fetchone()[0]
        buffer._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(BufferFileError, match="full"):
            buffer.advance(60, batch(2, 5000), position="two")
        assert (buffer.round, buffer.recall("position")) == (1, "one")
        assert digest(buffer.snapshot()) == before
        buffer._connection.execute("PRAGMA max_page_count=100000")  # and now it has space again
        buffer.advance(40, batch(2))
        assert buffer.round == 2
        before = digest(buffer.snapshot())
    with DurableBuffer.open(path) as again:
        assert digest(again.snapshot()) == before
        again.advance(40, batch(3))
        assert again.round == 3


def test_killed_while_it_is_made_it_can_be_made_again(tmp_path: Path) -> None:
    first, chance = batch(0, 3000), random.Random(0)
    for trial in range(60):
        folder = tmp_path / str(trial)
        folder.mkdir()
        child = os.fork()
        if child == 0:  # pragma: no cover - dies by signal
            try:
                DurableBuffer.create(folder / "b.db", first)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        make = DurableBuffer.open if (folder / "b.db").exists() else None
        with make(folder / "b.db") if make else DurableBuffer.create(folder / "b.db", first) as buffer:
            assert len(buffer.snapshot().ids) == 3000
        assert [path.name for path in folder.iterdir()] == ["b.db"]


def test_a_step_on_a_damaged_open_file_is_reported(tmp_path: Path) -> None:
    with DurableBuffer.create(tmp_path / "b.db", batch(0)) as buffer:
        buffer._connection.execute("UPDATE about SET value = 7 WHERE key = 'round'")
        with pytest.raises(BufferFileError, match="does not match its checksum"):
            buffer.advance(5, batch(1))


def test_it_reopens_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    with DurableBuffer.create(path, batch(0), 3, capacity=500, discard="oldest", seed=8, client=9) as buffer:
        buffer.advance(10, batch(1))
        before = digest(buffer.snapshot())
    assert [p.name for p in tmp_path.iterdir()] == ["b.db"]
    with DurableBuffer.open(path) as again:
        assert digest(again.snapshot()) == before
        assert again.round == 1
    with pytest.raises(BufferFileError, match="must be usable"):
        again.advance(1, batch(2))


def test_facts_are_stored_with_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    with DurableBuffer.create(path, batch(0), facts={"position": "a", "plan": "x"}) as buffer:
        assert buffer.recall("position") == "a"
        buffer.advance(10, batch(1), position="b")
        with pytest.raises(InputError):
            buffer.advance(99, batch(2), position="c")
        with pytest.raises(InputError):
            buffer.advance(10, Samples(np.zeros((1, 2), np.float32), [0]), position="c")
        buffer.advance(10, batch(2))
    with DurableBuffer[Samples].open(path) as again:
        assert (again.recall("position"), again.recall("plan"), again.round) == ("b", "x", 2)


def test_labels_that_are_numbers_are_stored_as_such(tmp_path: Path) -> None:
    numbers = [0.1, 3.0, -2.5e-30, float("inf")]
    first = Samples(np.arange(4, dtype=np.float32)[:, None], numbers)
    path = tmp_path / "b.db"
    with DurableBuffer.create(path, first) as buffer:
        buffer.advance(4, first)
        for labels in ([1, 2, 3, 4], [1.0, 2.0, float("nan"), 4.0]):
            with pytest.raises(InputError) as caught:
                buffer.advance(4, Samples(first.features, labels))
            assert caught.value.field == "labels"
    with DurableBuffer[Samples].open(path) as again:
        found = again.snapshot().samples.labels
        np.testing.assert_array_equal(found, np.array(numbers * 2, np.float32))
        assert found.dtype == np.float32
    with DurableBuffer.create(tmp_path / "c.db", batch(0)) as classes:
        with pytest.raises(InputError, match="labels must be classes, as in the buffer"):
            classes.advance(4, Samples(batch(1).features, np.zeros(20, np.float32)))
        about = dict(classes._connection.execute("SELECT key, value FROM about"))
    assert set(about) == {
        *("round", "next", "size", "dtype", "shape", "capacity", "discard", "seed", "client", "checksum")
    }  # a file of classes is what it always was


def test_restarted_it_is_as_if_it_had_been_created_with_less(tmp_path: Path) -> None:
    with DurableBuffer.create(tmp_path / "large.db", batch(0, 60), facts={"key": "kept"}) as large:
        large.restart(batch(0, 25), np.arange(25) % 3 + 1)
        with DurableBuffer.create(tmp_path / "small.db", batch(0, 25), np.arange(25) % 3 + 1) as small:
            for round in (1, 2):
                assert digest(large.snapshot()) == digest(small.snapshot())
                large.advance(15, batch(round))
                small.advance(15, batch(round))
        assert large.recall("key") == "kept"
        with pytest.raises(InputError, match="before the first step"):
            large.restart(batch(0, 5))


def test_trimmed_it_keeps_ages_and_ids(tmp_path: Path) -> None:
    with DurableBuffer.create(tmp_path / "buffer.db", batch(0, 60)) as buffer:
        buffer.advance(40, batch(1))
        before = buffer.snapshot()
        buffer.trim(30)
        after = buffer.snapshot()
        assert (len(buffer), buffer.round) == (30, 1)
        kept = np.isin(before.ids, after.ids)
        assert (before.ages[kept] == after.ages).all()
        assert before.samples.features[kept].tobytes() == after.samples.features.tobytes()
        for wrong in (-1, 31):
            with pytest.raises(InputError) as refused:
                buffer.trim(wrong)
            assert refused.value.field == "keep"
    with DurableBuffer.create(tmp_path / "oldest.db", batch(0, 60), discard="oldest") as oldest:
        oldest.advance(60, batch(1))
        oldest.trim(20)
        assert set(oldest.snapshot().ages) == {1}
