"""Any torch model, trained by worker processes, one core and one thread each.

Two threads on one model collapse when anything else runs on the machine, and cost more than they bring
on small batches; two processes do not. The data lie in one file without a name that all of them map.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

from dufl.data.datasets import Dataset
from dufl.data.samples import Features
from dufl.data.simulation import Simulation
from dufl.errors import InputError
from dufl.learning.algorithm import Update, Vector
from dufl.learning.engine import Metrics, Named, Score, parts, score
from dufl.learning.settings import Training
from dufl.learning.task import Task
from dufl.learning.worker import Evaluate, Mapped, Name, Setup, Train
from dufl.learning.workers import Workers
from dufl.plugins import describe


class TorchEngine:
    """Workers that train with torch."""

    def __init__(self, dataset: Dataset, simulation: Simulation, settings: Training, most: int) -> None:
        """Start the workers, no more than `most`."""
        device = find_device(settings)
        self._labels, self._metrics = dataset.test.labels, Metrics(settings)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the engine)
        train, test = self._mapped(simulation.pool.features), self._mapped(dataset.test.features)
        local = settings.replace(algorithm="fedavg", model="logistic", loss="cross_entropy", metrics={})
        setup = Setup(
            local,
            device,
            simulation.ageing,
            simulation.seed,
            dataset.shape,
            dataset.num_classes,
            train,
            test,
            dataset.test.labels,
            tuple(folder or os.getcwd() for folder in sys.path),
            _pickled(settings),
            bool(settings.metrics),
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
        return self.workers.do(Train(weights, model_buffers, task) for task in tasks)

    def evaluate(self, weights: Vector, model_buffers: Vector) -> Score:
        """Test a model."""
        jobs = (Evaluate(weights, model_buffers, part) for part in parts(len(self._labels)))
        return score(self.workers.do(jobs), self._labels, self._metrics)

    def named(self, weights: Vector, model_buffers: Vector) -> Named:
        """The weights by their names in the model."""
        (found,) = self.workers.do([Name(weights, model_buffers)])
        return dict(found)

    def close(self) -> None:
        """End the workers."""
        self.workers.close()
        self._file.close()


def _pickled(settings: Training) -> bytes:
    """The model and the loss; classes and functions of a notebook or a script are sent by value."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps((settings.model, settings.loss)))
    except Exception as error:  # whatever a user's own objects raise
        rule = "one that can be sent to worker processes (by cloudpickle)"
        raise InputError.of("model", rule, describe(settings.model), advice=str(error)) from error


def find_device(settings: Training) -> str:
    """The device to compute on, if it is there."""
    if importlib.util.find_spec("torch") is None:
        name = describe(settings.model)
        raise InputError(f"model {name!r} needs PyTorch: pip install 'dufl[train]'", field="model")
    if settings.device == "cpu":
        return "cpu"
    import torch

    there = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    there += ["mps"] * torch.backends.mps.is_available()
    if settings.device == "auto":
        return there[0] if there else "cpu"
    wanted = "cuda:0" if settings.device == "cuda" else settings.device
    if wanted not in there:
        raise InputError.of(
            "device", f"one that is there ({', '.join(['cpu', *there])})", repr(settings.device)
        )
    return wanted
