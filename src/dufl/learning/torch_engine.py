"""Trains any torch model in worker processes, each with one thread on one core.

On small batches a second thread costs more time than it saves, and slows down sharply when anything else runs
on the machine; a second process does not. All workers map the data from one unnamed temporary file.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

from dufl.data.client_data import ClientData
from dufl.data.samples import Features
from dufl.errors import InputError
from dufl.learning.algorithm import Update, Vector
from dufl.learning.engine import Metrics, Named, Score, Which, parts, score
from dufl.learning.settings import Training
from dufl.learning.task import Task
from dufl.learning.worker import Evaluate, Mapped, Name, Setup, Train
from dufl.learning.workers import Workers
from dufl.plugins import describe


class TorchEngine:
    """An engine whose worker processes train with torch."""

    def __init__(self, data: ClientData, settings: Training, most: int) -> None:
        """Start at most `most` workers."""
        device = find_device(settings)
        self._data, self._mapped_samples = data, len(data.pool)
        self._labels, self._metrics = data.test.labels, Metrics(settings)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the engine)
        train = self._mapped(data.pool.features)
        test = train if data.test is data.pool else self._mapped(data.test.features)
        local = settings.replace(algorithm="fedavg", model="logistic", loss="auto", metrics={})
        setup = Setup(
            local,
            device,
            data.ageing,
            data.seed,
            data.pool.shape,
            data.num_classes,
            train,
            test,
            data.test.labels,
            tuple(folder or os.getcwd() for folder in sys.path),
            _pickled(settings),
            bool(settings.metrics) or data.regression,
        )
        count = min(settings.num_workers, most) if device == "cpu" else 1
        self.workers = Workers(count, setup, [self._file.fileno()])
        try:
            self._start: tuple[Vector, Vector] = self.workers.ready()
        except BaseException:
            self.close()
            raise

    def _mapped(self, features: Features) -> Mapped:
        offset = self._file.tell()
        self._file.write(np.ascontiguousarray(features).data)
        self._file.flush()
        return Mapped(self._file.fileno(), offset, features.dtype.str, features.shape)

    @property
    def start(self) -> tuple[Vector, Vector]:
        """The weights and buffers of the model before training."""
        return self._start

    def train(self, weights: Vector, model_buffers: Vector, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train every client from the same weights."""
        return self.workers.do(Train(weights, model_buffers, task, self._features(task)) for task in tasks)

    def _features(self, task: Task) -> Features | None:
        """The features of a task's samples, if workers do not have them all."""
        data = self._data
        if len(data.pool) == self._mapped_samples:
            return None
        return task.features(data.pool.features, data.ageing, data.seed)

    def evaluate(self, weights: Vector, model_buffers: Vector, which: Which | None = None) -> Score:
        """Evaluate a model on some of the test samples; on all by default."""
        which = slice(0, len(self._labels)) if which is None else which
        jobs = (Evaluate(weights, model_buffers, part) for part in parts(which))
        return score(self.workers.do(jobs), self._labels[which], self._metrics)

    def named(self, weights: Vector, model_buffers: Vector) -> Named:
        """The weights by their names in the model."""
        (named,) = self.workers.do([Name(weights, model_buffers)])
        return dict(named)

    def close(self) -> None:
        """Stop the workers."""
        self.workers.close()
        self._file.close()


def _pickled(settings: Training) -> bytes:
    """The pickled model and loss; classes and functions of a notebook or a script are pickled by value."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps((settings.model, settings.loss)))
    except Exception as error:  # user-defined objects may raise anything
        rule = "one that can be sent to worker processes (by cloudpickle)"
        raise InputError.of("model", rule, describe(settings.model), advice=str(error)) from error


def find_device(settings: Training) -> str:
    """The device to compute on, checked to be available."""
    if importlib.util.find_spec("torch") is None:
        name = describe(settings.model)
        raise InputError(f"model {name!r} needs PyTorch: pip install 'dufl[train]'", field="model")
    if settings.device == "cpu":
        return "cpu"
    import torch

    available = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    available += ["mps"] * torch.backends.mps.is_available()
    if settings.device == "auto":
        return available[0] if available else "cpu"
    wanted = "cuda:0" if settings.device == "cuda" else settings.device
    if wanted not in available:
        rule = f"an available one ({', '.join(['cpu', *available])})"
        raise InputError.of("device", rule, repr(settings.device))
    return wanted
