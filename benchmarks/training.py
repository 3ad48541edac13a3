"""`make bench`, third part: measures training, with plain PyTorch loops as baselines.

`--cpu haswell` measures the same without AVX-512 on a processor that has it; `--logistic` measures only that.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from logistic import CLIENTS, CORES, HELD, images, load, logistic, without_avx512
from rich.console import Console
from torch.nn import functional

from dufl.data.client_data import ClientData
from dufl.data.datasets import Dataset, load_dataset
from dufl.data.recording import make_recording
from dufl.experiment.callbacks import Action
from dufl.experiment.config import Experiment
from dufl.learning.algorithm import LocalPenalty
from dufl.learning.engine import CompiledEngine, make_engine, spread
from dufl.learning.federation import Federation
from dufl.learning.logistic import train_logistic
from dufl.learning.models import build
from dufl.learning.task import Task

SHARED = Path(os.environ.get("DUFL_DATA") or Path(__file__).parents[2] / "shared" / "data")


class Half:
    """A policy with a typical data update: every client replaces half of its samples in every round."""

    def __init__(self, held: int) -> None:
        self.held = held

    def payment(self, round: int) -> float:
        """No payment."""
        return 0.0

    def size(self, client: int) -> int:
        """The same number for all clients."""
        return self.held

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """Keep one half and collect the other."""
        return self.held // 2, self.held - self.held // 2

    def planned_staleness(self, round: int) -> float:
        """About 2."""
        return 2.0


def overhead(console: Console) -> None:
    """The time per round other than local SGD: buffers, noise, aggregation, evaluation, records."""
    config = load(["training.local_epochs=20", "game.time_sensitivity=0.75", "num_rounds=40"])
    simulation = config.data.simulation(images((1, 28, 28)), config.game, 0)
    _overhead(console, config, simulation, "a round of W with 20 epochs and data update")
    size = CLIENTS * HELD * 41 // 2 + 20_000
    every = images((28, 28), size).train
    recording = make_recording("random", every.features, every.labels, np.arange(size))
    replay = config.data.replace(warm_up=20_000 / size).replay(recording, config.game, 0)
    _overhead(console, config, replay, "the same on recorded data")


def _overhead(console: Console, config: Experiment, data: ClientData, what: str) -> None:
    engine = CompiledEngine(data, config.training)
    federation = Federation(config.game, data, Half(HELD), config.training, engine)
    for _ in range(5):
        federation.play()
    tasks = [federation._task(k, buffer.snapshot()) for k, buffer in enumerate(federation._buffers)]
    features = [t.features(data.pool.features, data.ageing, 0).reshape(len(t.labels), -1) for t in tasks]

    def one(k: int) -> Any:  # shuffling counts as SGD
        order = tasks[k].shuffles(config.training)
        return train_logistic(federation.weights, features[k], tasks[k].labels, order, 64, 0.01)

    rounds, alone = [], []
    with ThreadPoolExecutor(CORES) as threads:
        for _ in range(30):  # alternately, so that a slow moment of the machine affects both
            rounds.append(federation.play().seconds)
            begin = time.perf_counter()
            list(spread(threads, one, range(CLIENTS), 2 * CORES))
            alone.append(time.perf_counter() - begin)
    engine.close()
    whole, sgd = float(np.median(rounds)), float(np.median(alone))
    console.print(
        f"{what}: {1e3 * whole:.0f} ms, local SGD alone "
        f"{1e3 * sgd:.0f} ms: {100 * (whole - sgd) / whole:.0f} % of it is overhead (target: 15)"
    )


def plain_cnn(dataset: Dataset, seconds: float) -> float:
    """Samples per second of the plain PyTorch loop on tensors, with one thread per core."""
    torch.set_num_threads(CORES)
    model = build("cnn", dataset.shape, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.from_numpy(dataset.train.to_float()[:HELD])
    y = torch.from_numpy(dataset.train.labels[:HELD])
    done, begin = 0, 0.0
    while not begin or time.perf_counter() - begin < seconds:
        for batch in torch.randperm(HELD).split(64):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if begin:
            done += HELD
        else:
            begin = time.perf_counter()  # the first epoch warms up
    return done / (time.perf_counter() - begin)


def our_cnn(dataset: Dataset, precision: str) -> Callable[[], float]:
    """A function that measures the samples per second of our engine."""
    config = load(["training.model=cnn", "training.local_epochs=5", f"training.precision={precision}"])
    simulation = config.data.simulation(dataset, config.game, 0)
    engine = make_engine(simulation, config.training, 15)
    start, no_buffers = engine.start
    ones, ids = np.ones(HELD, np.int64), np.arange(HELD)
    tasks = [
        Task(k, 0, ids, dataset.train.labels[:HELD], ones, ids, LocalPenalty()) for k in range(2 * CORES)
    ]

    def once() -> float:
        begin = time.perf_counter()
        list(engine.train(start, no_buffers, tasks))
        return len(tasks) * HELD * 5 / (time.perf_counter() - begin)

    once()
    return once


def cnn(console: Console) -> None:
    """The light CNN on images of 3 × 32 × 32."""
    dataset = images((3, 32, 32))
    single, half = our_cnn(dataset, "float32"), our_cnn(dataset, "bf16")
    speeds = [(plain_cnn(dataset, 5), single(), half()) for _ in range(5)]  # alternately
    plain, ours, bf16 = np.median(speeds, axis=0)
    console.print(
        f"light CNN: plain loop with {CORES} threads {plain:,.0f} samples/s; ours {ours:,.0f}: "
        f"{ours / plain:.2f} times (target: 1.3); bf16 {bf16:,.0f}: {bf16 / plain:.2f} times (target: 1.7)"
    )


def precision(console: Console) -> None:
    """The effect of bf16 on accuracy: CIFAR-10, 5 rounds of 5 epochs on 5 clients."""
    if not SHARED.is_dir():
        console.print(f"accuracy with bf16: skipped, {SHARED} does not exist")
        return
    whole = load_dataset("cifar10", SHARED)
    dataset = Dataset("cifar10", whole.train, whole.test.take(slice(0, 2000)), whole.class_names)
    accuracy = {}
    for name in ("float32", "bf16"):
        changes = [
            f"training.precision={name}",
            "training.model=cnn",
            "training.local_epochs=5",
            "clients.count=5",
        ]
        config = load([*changes, "clients.initial_volume=500", "policy=static", "num_rounds=5"])
        accuracy[name] = _accuracy(config, dataset)
    console.print(
        f"accuracy on CIFAR-10 after 5 rounds of 5 epochs, 5 clients of 500: float32 "
        f"{100 * accuracy['float32']:.1f} %, bf16 {100 * accuracy['bf16']:.1f} %"
    )


def _accuracy(config: Experiment, dataset: Dataset) -> float:
    from dufl.experiment.train import train

    return train(config, dataset=dataset).accuracy


def memory(console: Console) -> None:
    """The memory of all processes for 1,000 clients with 200 samples of the size of CIFAR-10's."""
    for model in ("logistic", "cnn"):
        process = subprocess.Popen([sys.executable, __file__, "--thousand", model])
        largest, ended = 0.0, threading.Event()
        while not ended.wait(0.1):
            largest = max(largest, _resident(process.pid))
            if process.poll() is not None:
                ended.set()
        console.print(f"1,000 clients × 200 samples of 3 × 32 × 32, {model}: {largest:.2f} GB (target: 2)")


def _resident(pid: int) -> float:
    """The memory of a process and its children in GB; shared memory is counted once."""
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            total += process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
    return total / 1e9


def thousand(model: str) -> None:
    """Train one round of 1,000 clients."""
    config = load(
        [
            *("clients.count=1000", "clients.initial_volume=200", "policy=static", "num_rounds=2"),
            *(f"training.model={model}", "training.local_epochs=1"),
        ],
    )
    from dufl.experiment.train import train

    train(config, dataset=images((3, 32, 32)), callbacks=[lambda _: Action.PAUSE])  # after one round


def linear(console: Console) -> None:
    """The time per round by the number of samples, for 1,000 clients and the logistic model."""
    dataset, sizes, took = images((1, 28, 28)), np.array([100, 200, 400, 800, 1600]), []
    for held in sizes:
        config = load(["clients.count=1000", "training.local_epochs=5", "num_rounds=100"])
        simulation = config.data.simulation(dataset, config.game, 0)
        engine = CompiledEngine(simulation, config.training)
        federation = Federation(config.game, simulation, Half(int(held)), config.training, engine)
        federation.play()
        took.append(min(federation.play().seconds for _ in range(3)))
        engine.close()
    slope, start = np.polyfit(sizes, took, 1, w=1 / np.array(took))
    off = np.abs((start + slope * sizes) / took - 1).max()
    each = ", ".join(f"{held}: {seconds:.2f} s" for held, seconds in zip(sizes, took, strict=True))
    console.print(
        f"a round of 1,000 clients, logistic, 5 epochs, by samples held: {each}; "
        f"{start:.2f} s plus {1e9 * slope / 5000:.0f} ns per sample and epoch, within {100 * off:.0f} %"
    )


def main() -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", choices=["haswell"], help="the processor to compile for")
    parser.add_argument("--logistic", action="store_true", help="only the logistic model")
    parser.add_argument("--thousand", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.thousand:
        thousand(options.thousand)
    elif options.cpu:  # libraries read these variables when they are loaded: start again
        again = [sys.executable, __file__, *(["--logistic"] if options.logistic else [])]
        with tempfile.TemporaryDirectory() as cache:
            variables = {**without_avx512(options.cpu), "NUMBA_CACHE_DIR": cache}
            sys.exit(subprocess.run(again, env=variables).returncode)
    else:
        console = Console(width=200, highlight=False)
        for part in (logistic,) if options.logistic else (logistic, overhead, cnn, precision, memory, linear):
            part(console)


if __name__ == "__main__":
    main()
