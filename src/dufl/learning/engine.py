"""Engines compute training and evaluation: a compiled kernel for the logistic model, torch for any other.

The results of both do not depend on the number of cores: a client trains on one core, and results are used
in client order.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import aligned
from dufl.data.client_data import ClientData
from dufl.errors import InputError
from dufl.learning.algorithm import Update, Vector
from dufl.learning.logistic import evaluate_logistic, predict_linear, train_logistic
from dufl.learning.settings import LOSSES, MODELS, Training
from dufl.learning.task import Task
from dufl.plugins import Spec, calling, resolve

Named = Mapping[str, npt.NDArray[Any]]
Item = TypeVar("Item")
Result = TypeVar("Result")
CHUNK = 1000  # test samples evaluated at a time
Which = slice | npt.NDArray[np.int64]  # test samples: a range, or their indices
Part = tuple[int, float, npt.NDArray[np.float32] | None]  # correct, sum of losses, outputs


@dataclass(frozen=True)
class Score:
    """A model's accuracy, mean loss and metrics (by name) on the test samples.

    For regression the accuracy is NaN, and the metrics have `rmse` and `r2`. Without test samples all are
    NaN.
    """

    accuracy: float
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)


class Metrics:
    """User-defined metrics: functions of (labels, outputs) that return a number."""

    def __init__(self, settings: Training) -> None:
        self._functions = {name: _metric(spec) for name, spec in settings.metrics.items()}
        self._specs = settings.metrics

    def __bool__(self) -> bool:
        return bool(self._functions)

    def values(self, labels: npt.NDArray[Any], logits: npt.NDArray[np.float32]) -> dict[str, float]:
        """The value of every metric; the metrics get read-only arrays."""
        labels, logits = labels.view(), logits.view()
        labels.flags.writeable = logits.flags.writeable = False
        return {name: self._value(name, labels, logits) for name in self._functions}

    def _value(self, name: str, labels: npt.NDArray[Any], logits: npt.NDArray[np.float32]) -> float:
        with calling("metric", self._specs[name]):
            value = self._functions[name](labels, logits)
            is_number = isinstance(value, Real) or (isinstance(value, np.ndarray) and value.ndim == 0)
            number = float(value) if is_number else None
        if number is None:
            raise InputError.of(f"the value of metric {name!r}", "a number", type(value).__name__)
        return number


def _metric(spec: Spec) -> Callable[..., Any]:
    metric = resolve("metric", spec)
    if isinstance(metric, type):
        with calling("metric", spec, "while it was made"):
            metric = metric()
    return metric  # type: ignore[no-any-return]


class Engine(Protocol):
    """The interface that a federation uses."""

    @property
    def start(self) -> tuple[Vector, Vector]:
        """The weights and buffers of the model before training."""
        ...

    def train(self, weights: Vector, model_buffers: Vector, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train every client from the same weights; yields updates in the order of the tasks."""
        ...

    def evaluate(self, weights: Vector, model_buffers: Vector, which: Which | None = None) -> Score:
        """Evaluate a model on some of the test samples; on all by default."""
        ...

    def named(self, weights: Vector, model_buffers: Vector) -> Named:
        """The weights by their names in the torch model."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class CompiledEngine:
    """The logistic or the linear model in a compiled kernel, one thread per client."""

    def __init__(self, data: ClientData, settings: Training) -> None:
        self._data = data
        self._settings = settings
        self._classes = data.num_classes
        self._features = int(np.prod(data.pool.shape))
        self._test = np.ascontiguousarray(data.test.to_float().reshape(len(data.test), -1))
        self._labels = data.test.labels
        self._threads = ThreadPoolExecutor(settings.num_workers)
        self._own = threading.local()
        self._metrics = Metrics(settings)

    @property
    def start(self) -> tuple[Vector, Vector]:
        """All zero: the loss is convex, so the starting point does not matter."""
        return np.zeros(self._classes * (self._features + 1), np.float32), np.zeros(0, np.float32)

    def train(self, weights: Vector, model_buffers: Vector, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train every client from the same weights."""

        def work(task: Task) -> Update:
            size = len(task.labels)
            steps = self._settings.local_epochs * -(-size // self._settings.batch_size)
            return Update(task.client, size, self._train(weights, task), model_buffers, steps)

        return spread(self._threads, work, tasks, 2 * self._settings.num_workers)

    def _train(self, weights: Vector, task: Task) -> Vector:
        data, settings = self._data, self._settings
        penalty = task.penalty.with_decay(settings.weight_decay, weights)
        scratch = self._scratch(len(task.labels) * self._features)
        features = task.features(data.pool.features, data.ageing, data.seed, scratch)
        return train_logistic(
            weights,
            features.reshape(len(features), -1),
            task.labels,
            task.shuffles(settings),
            min(settings.batch_size, len(features)),
            settings.rate(task.round),
            settings.momentum,
            penalty.strength,
            penalty.linear,
            task.sample_weights(settings),
        )

    def _scratch(self, size: int) -> npt.NDArray[np.float32]:
        """Memory of this thread that is reused for the features of each client."""
        scratch: npt.NDArray[np.float32] | None = getattr(self._own, "scratch", None)
        if scratch is None or len(scratch) < size:
            scratch = self._own.scratch = aligned(size + size // 4)
        return scratch

    def evaluate(self, weights: Vector, model_buffers: Vector, which: Which | None = None) -> Score:
        """Evaluate a model on some of the test samples; on all by default."""
        regression = self._data.regression

        def work(part: Which) -> Part:
            features, labels = self._test[part], self._labels[part]
            if regression:
                predicted = predict_linear(weights, features)
                loss = float(np.sum((labels - predicted) ** 2))
                return 0, loss, predicted[:, None].astype(np.float32)
            correct, loss = evaluate_logistic(weights, features, labels, self._classes)
            return correct, loss, self._logits(weights, features) if self._metrics else None

        which = slice(0, len(self._labels)) if which is None else which
        return score(spread(self._threads, work, parts(which), 64), self._labels[which], self._metrics)

    def _logits(self, weights: Vector, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        named = self.named(weights, weights[:0])
        return np.asarray(features @ named["1.weight"].T + named["1.bias"], np.float32)

    def named(self, weights: Vector, model_buffers: Vector) -> Named:
        """The weights by their names in `torch.nn.Sequential(Flatten(), Linear(…))`."""
        edge = self._classes * self._features
        return {
            "1.weight": weights[:edge].reshape(self._classes, self._features),
            "1.bias": weights[edge:],
        }

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(cancel_futures=True)


def make_engine(data: ClientData, settings: Training, num_clients: int) -> Engine:
    """The fastest engine that supports the model."""
    settings = _for_task(data, settings)
    if settings.compiled:
        return CompiledEngine(data, settings)
    from dufl.learning.torch_engine import TorchEngine

    return TorchEngine(data, settings, num_clients)


def _for_task(data: ClientData, settings: Training) -> Training:
    """The settings with the loss that fits the labels. The model and the loss must be for such labels."""
    kind, loss = ("numbers", "squared_error") if data.regression else ("classes", "cross_entropy")
    models = ("linear",) if data.regression else tuple(name for name in MODELS if name != "linear")
    for key, given, known, fitting in (
        ("model", settings.model, MODELS, models),
        ("loss", settings.loss, LOSSES, ("auto", loss)),
    ):
        if isinstance(given, str) and given in known and given not in fitting:
            rule = f"{' or '.join(map(repr, fitting))} or your own, because the labels are {kind}"
            raise InputError.of(f"training.{key}", rule, given, text=repr(given))
    augmentation, shape = settings.augmentation, data.pool.shape
    if augmentation != "none" and len(shape) != 3:
        rule = f"'none' for samples of shape {shape}, which are not (channels, height, width)"
        raise InputError.of("training.augmentation", rule, augmentation, text=repr(augmentation))
    return settings.replace(loss=loss) if settings.loss == "auto" else settings


def spread(
    executor: Executor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """Results in the order of the items, with at most `ahead` items submitted at a time."""
    pending = deque()  # type: ignore[var-annotated]
    try:
        for item in items:
            pending.append(executor.submit(work, item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def parts(which: Which) -> list[Which]:
    """Test samples in chunks, the same on every machine."""
    if not isinstance(which, slice):
        return [which[begin : begin + CHUNK] for begin in range(0, len(which), CHUNK)]
    end = which.stop
    return [slice(begin, min(begin + CHUNK, end)) for begin in range(which.start, end, CHUNK)]


def score(results: Iterable[Part], labels: npt.NDArray[Any], metrics: Metrics) -> Score:
    """The score from the number of correct samples, the sum of losses and the outputs of every chunk."""
    correct, loss, chunks = 0, 0.0, []
    for chunk_correct, chunk_loss, chunk_outputs in results:
        correct, loss = correct + chunk_correct, loss + chunk_loss
        chunks.append(chunk_outputs)
    size, regression = len(labels), labels.dtype.kind == "f"
    if not size:  # nothing was recorded in this period
        return Score(math.nan, math.nan)
    if not regression and not metrics:
        return Score(correct / size, loss / size)
    outputs: npt.NDArray[np.float32] = np.concatenate(chunks)  # type: ignore[arg-type]
    outputs = outputs[:, 0] if regression else outputs
    values = metrics.values(labels, outputs) if metrics else {}
    if not regression:
        return Score(correct / size, loss / size, values)
    return Score(math.nan, loss / size, regression_scores(labels, outputs) | values)


def regression_scores(labels: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, float]:
    """The root mean squared error, and R² = 1 − Σ(y − ŷ)²/Σ(y − mean)²; NaN if all labels are equal.

    >>> regression_scores(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    {'rmse': 0.7071067811865476, 'r2': 0.5}
    """
    truth = labels.astype(np.float64)
    squares = float(np.sum((truth - predicted) ** 2))
    spread_of = float(np.sum((truth - truth.mean()) ** 2))
    r2 = 1 - squares / spread_of if spread_of > 0 else math.nan
    return {"rmse": math.sqrt(squares / len(truth)), "r2": r2}
