"""`make bench`, second part: measures datasets, ageing, buffers and collection."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dufl.data.ageing import Ageing
from dufl.data.buffer import MemoryBuffer
from dufl.data.collector import Collector
from dufl.data.datasets import load_dataset
from dufl.data.durable import DurableBuffer
from dufl.data.samples import Samples

SHARED = Path(__file__).parents[2] / "shared" / "data"
CLIENTS, SIZE = 15, 1000


def times(work: Callable[[], Any], runs: int) -> list[float]:
    """The duration of each run, in seconds."""
    durations = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return durations


def loading(console: Console) -> None:
    """Loading MNIST from gzip files."""
    folder = Path(os.environ.get("DUFL_DATA", SHARED))
    if not folder.is_dir():
        console.print(f"MNIST: skipped, {folder} does not exist")
        return
    took = min(times(lambda: load_dataset("mnist", folder), 3))
    console.print(f"loading MNIST from gzip files: {took:.2f} s (target: under 2)")


TABLE_ROWS, TABLE_COLUMNS = 1_000_000, 20
MEASURE = """
import pathlib, resource, sys, time
begin = time.perf_counter()
from dufl.data.datasets import load_recording
recording = load_recording(sys.argv[1])
took, status = time.perf_counter() - begin, pathlib.Path("/proc/self/status")
if status.exists():  # on Linux, ru_maxrss includes the process that started this one
    peak = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(recording), took, peak)
"""


def tables(console: Console, folder: Path) -> None:
    """Loading a large Parquet table and a CSV file as recordings, each in a process of its own."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        console.print("tables: skipped, they need pyarrow: pip install 'dufl[tables]'")
        return
    generator = np.random.default_rng(0)
    columns: dict[str, Any] = {f"f{i}": generator.random(TABLE_ROWS) for i in range(TABLE_COLUMNS)}
    columns |= {"label": generator.integers(0, 5, TABLE_ROWS), "time": np.arange(TABLE_ROWS) / 10}
    parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    took, peak = _loaded(folder / "table.parquet", TABLE_ROWS)
    console.print(
        f"a Parquet table of {TABLE_ROWS:,} × {TABLE_COLUMNS} numbers as a recording: {took:.2f} s, "
        f"peak of the process {peak:.0f} MB (target: under 5 s and 500 MB)"
    )
    some = TABLE_ROWS // 10
    rows = np.stack([column[:some] for column in columns.values()], axis=1)
    np.savetxt(folder / "table.csv", rows, "%.9g", ",", header=",".join(columns), comments="")
    took, peak = _loaded(folder / "table.csv", some)
    console.print(
        f"a CSV file of {some:,} × {TABLE_COLUMNS} numbers as a recording: {took:.2f} s, peak {peak:.0f} MB "
        "(target: under 5 s)"
    )


def _loaded(path: Path, rows: int) -> tuple[float, float]:
    """The seconds, including imports, and the peak of memory in MB of a process that loads a file."""
    command = [sys.executable, "-c", MEASURE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, took, peak = done.stdout.split()
    assert int(count) == rows
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, otherwise KiB
    return float(took), int(peak) * unit / 1e6


def memory_buffers(console: Console) -> None:
    """A step of 15 buffers compared with a copy of their bytes, and the noise on their samples."""
    generator = np.random.default_rng(0)
    images = generator.random((CLIENTS, SIZE, 784), dtype=np.float32)
    fresh = [Samples(images[k, :700], np.zeros(700, int)) for k in range(CLIENTS)]
    buffers = [MemoryBuffer(Samples(images[k], np.zeros(SIZE, int)), client=k) for k in range(CLIENTS)]
    copy = np.empty_like(images)

    def step() -> None:
        for buffer, samples in zip(buffers, fresh, strict=True):
            buffer.advance(300, samples)

    step()
    one_copy = float(np.median(times(lambda: np.copyto(copy, images), 30)))
    one_step = float(np.median(times(step, 30)))
    console.print(
        f"advance of {CLIENTS} buffers of {SIZE:,} × 784 floats: {1e3 * one_step:.1f} ms, a copy of the "
        f"bytes {1e3 * one_copy:.1f} ms: {one_step / one_copy:.2f} times (target: 3)"
    )
    ageing = Ageing(time_sensitivity=1.25)
    ages, ids = np.full(SIZE, 30), np.arange(SIZE)

    def noise(client: int) -> Any:
        return ageing.apply(images[client], ages, 0, client, ids)

    def all_clients() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(noise, range(CLIENTS)))

    took = float(np.median(times(all_clients, 5)))
    console.print(f"noise for the same buffers: {took:.3f} s per round (target: 0.25)")


def durable(console: Console, folder: Path) -> None:
    """A step of a small and of a large durable buffer."""
    generator = np.random.default_rng(0)
    fresh = Samples(generator.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8), np.zeros(100, int))
    small = Samples(np.zeros((1000, 3, 32, 32), np.uint8), np.zeros(1000, int))
    with DurableBuffer.create(folder / "small.db", small) as buffer:
        took = times(lambda: buffer.advance(len(buffer) - 100, fresh), 200)
    console.print(
        f"durable advance, 100 fresh samples of 3 kB: median {1e3 * float(np.median(took)):.1f} ms, "
        f"99 % under {1e3 * float(np.quantile(took, 0.99)):.1f} ms (target: median under 20)"
    )
    large = Samples(np.zeros((100_000, 3, 32, 32), np.uint8), np.zeros(100_000, int))
    begin = time.perf_counter()
    with DurableBuffer.create(folder / "large.db", large) as buffer:
        created = time.perf_counter() - begin
        size = (folder / "large.db").stat().st_size
        before = _bytes_read()
        took = times(lambda: buffer.advance(len(buffer) - 100, fresh), 20)
        read = (_bytes_read() - before) / len(took)
    console.print(
        f"the same in a buffer of 100,000 samples ({size / 2**20:,.0f} MiB, created in {created:.1f} s): "
        f"median {1e3 * float(np.median(took)):.1f} ms, {read / 2**20:.1f} MiB read per step"
    )


def _bytes_read() -> int:
    """The number of bytes this process has read, from files or their cache."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


class SlowStream:
    """A stream with a given latency, such as a sensor or a network."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def collect(self, count: int, round: int) -> Samples:
        """Wait, then return samples."""
        time.sleep(self.seconds)
        return Samples(np.zeros((count, 784), np.float32), np.zeros(count, int))

    def resume(self, collected: int) -> None:
        """Do nothing: the stream has no state."""


def collecting(console: Console) -> None:
    """A round in which training and collecting take the same time."""
    weights = np.random.default_rng(0).random((1200, 1200))

    def train() -> None:
        for _ in range(12):
            weights @ weights

    wait = float(np.median(times(train, 5)))
    collector = Collector(SlowStream(wait), Samples(np.zeros((0, 784), np.float32), np.zeros(0, int)))

    def one_round() -> None:
        collector.start(100, 0)
        train()
        collector.finish()

    # Alternately: the speed of a shared machine drifts by more than the measured difference.
    pairs = [(times(train, 1)[0], times(one_round, 1)[0]) for _ in range(25)]
    alone, took = (float(v) for v in np.median(pairs, axis=0))
    console.print(
        f"a round that trains for {alone:.2f} s and collects for {wait:.2f} s: {took:.2f} s = "
        f"{took / max(alone, wait):.2f} times the longer of the two (target: 1.15)"
    )


def main() -> None:
    """Print all measurements."""
    console = Console(width=110)
    console.print("\nData", style="bold")
    loading(console)
    with tempfile.TemporaryDirectory() as folder:
        tables(console, Path(folder))
    memory_buffers(console)
    with tempfile.TemporaryDirectory() as folder:
        durable(console, Path(folder))
    collecting(console)


if __name__ == "__main__":
    main()
