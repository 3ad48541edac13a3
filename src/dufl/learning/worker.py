"""A worker process: trains clients with torch on one core, for the `Workers` that started it.

`main` runs as a separate program. It reads pickled jobs from standard input and writes pickled replies to
standard output. It exits when its parent process exits, so that no workers remain when the parent is killed.
"""

import os
import pickle
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.samples import Features, Samples
from dufl.errors import InputError, PluginError, plugin_traceback
from dufl.learning.algorithm import Update, Vector
from dufl.learning.settings import Training
from dufl.learning.task import Task


@dataclass(frozen=True)
class Mapped:
    """An array in an open file that all workers inherit, so that they share one copy of the data."""

    descriptor: int
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def array(self) -> Features:
        """The array, memory-mapped."""
        with os.fdopen(os.dup(self.descriptor), "rb") as stream:
            return np.memmap(stream, self.dtype, "r", self.offset, self.shape)


@dataclass(frozen=True, eq=False)
class Setup:
    """The first message to a worker."""

    settings: Training
    device: str
    ageing: Ageing
    seed: int
    shape: tuple[int, ...]
    num_classes: int
    train: Mapped
    test: Mapped
    test_labels: npt.NDArray[Any]
    path: tuple[str, ...]  # import path of user-defined modules
    plugins: bytes  # the model and the loss, by cloudpickle: unpickled once `path` is set
    logits: bool  # whether evaluations return them


@dataclass(frozen=True, eq=False)
class Train:
    """Train a client."""

    weights: Vector
    model_buffers: Vector
    task: Task
    features: Features | None = None  # of its samples; None if all are in the mapped file


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Evaluate a model on some of the test samples."""

    weights: Vector
    model_buffers: Vector
    part: slice | npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Name:
    """Return the weights by their names in the model."""

    weights: Vector
    model_buffers: Vector


class Worker:
    """Executes jobs."""

    def __init__(self, setup: Setup) -> None:
        sys.path[:] = [*setup.path, *(folder for folder in sys.path if folder not in setup.path)]
        from dufl.learning.local import LocalModel

        model, loss = pickle.loads(setup.plugins)
        settings = setup.settings.replace(model=model, loss=loss)
        self._setup = setup
        self._train, self._test = setup.train.array(), setup.test.array()
        self._model = LocalModel(settings, setup.device, setup.shape, setup.num_classes)

    def ready(self) -> tuple[Vector, Vector]:
        """The weights and buffers of the model before training."""
        return self._model.state()

    def do(self, job: Train | Evaluate | Name) -> Any:
        """The reply to a job."""
        setup, model = self._setup, self._model
        if isinstance(job, Evaluate):
            part = Samples(self._test[job.part], setup.test_labels[job.part])
            correct, loss, logits = model.evaluate(
                job.weights, job.model_buffers, part.to_float(), part.labels
            )
            return correct, loss, logits if setup.logits else None
        if isinstance(job, Name):
            return model.named(job.weights, job.model_buffers)
        task = job.task
        features = job.features
        if features is None:
            features = task.features(self._train, setup.ageing, setup.seed)
        weights, model_buffers, steps = model.train(job.weights, job.model_buffers, features, task)
        return Update(task.client, len(task.labels), weights, model_buffers, steps)


def main() -> None:
    """Read jobs and write replies until the input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of user-defined models must not corrupt the replies
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    worker: Worker | None = None
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        reply: tuple[str, Any]
        try:
            if worker is None:
                worker = Worker(job)
                reply = "done", worker.ready()
            else:
                reply = "done", worker.do(job)
        except InputError as error:
            reply = "refused", (str(error), error.field)
        except PluginError as error:
            reply = "raised", (str(error), plugin_traceback(error.__cause__ or error))
        except Exception as error:
            reply = "failed", f"{_failure(job)}: {type(error).__name__}: {error}\n\n{traceback.format_exc()}"
        try:
            pickle.dump(reply, replies, protocol=pickle.HIGHEST_PROTOCOL)
            replies.flush()
        except BrokenPipeError:  # the parent process is gone
            os._exit(1)


def _failure(job: object) -> str:
    """A short description of a failed job."""
    if isinstance(job, Train):
        return f"training client {job.task.client} in round {job.task.round} failed"
    return "evaluating the model failed" if isinstance(job, Evaluate) else "starting a worker failed"


def _end_with(parent: int) -> None:
    """Exit as soon as the parent process is gone, even in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
