"""The logistic workload of `training.py`: the compiled kernel beside a DataLoader loop, NumPy and sgemm."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from threadpoolctl import threadpool_info, threadpool_limits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dufl.cli.common import parse_changes
from dufl.data.datasets import Dataset
from dufl.data.samples import Samples
from dufl.experiment.config import Experiment
from dufl.learning.algorithm import LocalPenalty
from dufl.learning.engine import CompiledEngine, spread
from dufl.learning.lanes import LANES
from dufl.learning.logistic import train_logistic
from dufl.learning.models import build
from dufl.learning.task import Task

CLIENTS, HELD, CORES = 15, 1000, os.cpu_count() or 1
Floats = npt.NDArray[np.float32]


def load(changes: list[str]) -> Experiment:
    """The paper's experiment with changes."""
    return Experiment.from_toml(changes=parse_changes(changes))


def images(shape: tuple[int, ...], size: int = 20_000, classes: int = 10) -> Dataset:
    """Random images: time and memory do not depend on their content."""
    generator = np.random.default_rng(0)
    features = generator.integers(0, 256, (size, *shape), dtype=np.uint8)
    every = Samples(features, generator.integers(0, classes, size))
    return Dataset("random", every, every.take(slice(0, 10_000)), tuple(map(str, range(classes))))


def seconds(work: Callable[[], Any]) -> float:
    """The duration of one run."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turns(works: list[Callable[[], Any]], turns: int) -> Any:
    """The durations (turns, works) of works that take turns: a slow moment of the machine affects all."""
    for work in works:
        work()  # warms up
    return np.array([[seconds(work) for work in works] for _ in range(turns)])


def without_avx512(cpu: str) -> dict[str, str]:
    """The environment in which Numba compiles for a processor with AVX2, and BLAS and torch use AVX2."""
    names = llvm.get_host_cpu_features().items()
    wide = ("avx512", "avx10")
    features = [("+" if has and not name.startswith(wide) else "-") + name for name, has in names]
    return {
        **os.environ,
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": ",".join(features),
        "OPENBLAS_CORETYPE": cpu,
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }


def loader_round(features: Any, labels: Any, local_epochs: int) -> None:
    """The first baseline: a loop with one DataLoader and one optimizer per client."""
    for k in range(CLIENTS):
        model = build("logistic", (784,), 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(features[k], labels[k]), batch_size=64, shuffle=True)
        for _ in range(local_epochs):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()


def numpy_training(start: Floats, features: Floats, labels: Any, order: Any) -> Floats:
    """The second baseline: a client in plain NumPy, whose products are calls of sgemm."""
    w, b = start[:7840].reshape(10, 784).copy(), start[7840:].copy()
    rate = np.float32(0.01)
    for epoch in order:
        for first in range(0, len(epoch), 64):
            rows = epoch[first : first + 64]
            x = features[rows]
            q = x @ w.T + b
            q -= q.max(axis=1, keepdims=True)
            np.exp(q, out=q)
            q /= q.sum(axis=1, keepdims=True)
            q[np.arange(len(rows)), labels[rows]] -= 1
            q /= len(rows)
            w -= rate * (q.T @ x)
            b -= rate * q.sum(axis=0)
    return np.concatenate([w.ravel(), b])


def logistic(console: Console) -> None:
    """Workload W: 15 clients of 1,000 samples of 784 features, batches of 64, 5 epochs."""
    config = load(["training.local_epochs=5", "game.time_sensitivity=0.75"])
    dataset = images((1, 28, 28))
    simulation = config.data.simulation(dataset, config.game, 0)
    engine = CompiledEngine(simulation, config.training)
    generator = np.random.default_rng(0)
    indices = [generator.integers(0, 20_000, HELD) for _ in range(CLIENTS)]
    ones, ids = np.ones(HELD, np.int64), np.arange(HELD)
    tasks = [Task(k, 0, i, dataset.train.labels[i], ones, ids, LocalPenalty()) for k, i in enumerate(indices)]
    features = [t.features(dataset.train.features, simulation.ageing, 0).reshape(HELD, -1) for t in tasks]
    orders = [task.shuffles(config.training) for task in tasks]
    start, no_buffers = engine.start

    def one(k: int) -> Any:
        return train_logistic(start, features[k], tasks[k].labels, orders[k], 64, 0.01)

    plain = numpy_training(start, features[0], tasks[0].labels, orders[0])
    np.testing.assert_allclose(one(0), plain, atol=1e-5)  # the same work
    x = [torch.from_numpy(f) for f in features]
    y = [torch.from_numpy(task.labels) for task in tasks]
    torch.set_num_threads(1)  # two wait for each other on a busy machine
    with ThreadPoolExecutor(CORES) as threads:
        rounds = [
            lambda: list(spread(threads, one, range(CLIENTS), 2 * CORES)),
            lambda: list(engine.train(start, no_buffers, tasks)),
            lambda: loader_round(x, y, 5),
        ]
        ours, whole, loader = in_turns(rounds, 3).min(axis=0)
    engine.close()
    console.print(
        f"logistic, W, vectors of {32 * LANES} bits: {1e3 * ours:.1f} ms per round on {CORES} threads "
        f"({1e3 * whole:.1f} including features and orders); "
        f"DataLoader loop {1e3 * loader:.0f} ms: {loader / ours:.0f} and {loader / whole:.0f} times "
        "(target: 20)"
    )
    _one_thread(console, start, features[0], tasks[0].labels, orders[0][:1])


def _one_thread(console: Console, start: Floats, features: Floats, labels: Any, order: Any) -> None:
    """An epoch on one thread: the fastest of many runs shorter than the time slices of a busy machine."""
    a, b = np.random.default_rng(0).random((2, 512, 512), dtype=np.float32)
    works = [
        lambda: train_logistic(start, features, labels, order, 64, 0.01),
        lambda: numpy_training(start, features, labels, order),
        lambda: a @ b,
    ]
    with threadpool_limits(1):
        ours, plain, product = in_turns(works, 300).min(axis=0)
    peak, work = 2 * 512**3 / product, HELD * 784 * 10 * 4
    kinds = {info["architecture"] for info in threadpool_info() if "numpy" in info["filepath"]}
    console.print(
        f"  an epoch of a client on one thread: {1e3 * ours:.2f} ms, NumPy {1e3 * plain:.2f} ms: "
        f"{plain / ours:.1f} times; "
        f"{work / ours / 1e9:.0f} GFLOP/s of a peak of {peak / 1e9:.0f} in sgemm ({', '.join(kinds)}): "
        f"{100 * work / ours / peak:.0f} % (target: 45)"
    )
