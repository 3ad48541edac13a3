"""Callbacks: user code that is called during training.

A callback is an object with methods of `Callback`, or a function that is called with every record.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dufl.data.client_data import Period
from dufl.errors import InputError
from dufl.experiment.recorded import mean_of
from dufl.learning.federation import Record
from dufl.plugins import calling

if TYPE_CHECKING:
    from dufl.experiment.config import Experiment
    from dufl.experiment.train import Run


class Action(Enum):
    """The action that a callback requests after a round.

    FINISH ends the run as if this had been its last round. PAUSE writes a checkpoint and stops.
    """

    FINISH = "finish"
    PAUSE = "pause"


class Callback:
    """Base class of callbacks. All methods do nothing by default."""

    def on_train_begin(self, experiment: "Experiment", folder: Path | None) -> None:
        """Called before the first round with the experiment and the run directory, if there is one."""

    def on_round_end(self, record: Record) -> "Action | bool | None":
        """Called after every round. A resumed run first calls it with the earlier records.

        Returns:
            The requested action, if any; True is `Action.FINISH`.
        """
        return None

    def on_train_end(self, run: "Run") -> None:
        """Called when a run has finished or was paused."""


class EarlyStopping(Callback):
    """Finish a run when a metric has stopped improving.

    Args:
        metric: "loss", "accuracy", or the name of a custom metric.
        patience: the number of rounds without improvement after which the run finishes.
        min_delta: the minimum change that counts as an improvement.
        mode: "min" or "max"; by default "min" for "loss" and "max" for anything else.

    >>> early = EarlyStopping("accuracy", patience=1)
    """

    def __init__(
        self, metric: str = "loss", patience: int = 10, min_delta: float = 0.0, mode: str | None = None
    ) -> None:
        if mode not in (None, "min", "max"):
            raise InputError.of("mode", "'min' or 'max'", mode, text=repr(mode))
        if patience < 1:
            raise InputError.of("patience", ">= 1", patience)
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self._sign = 1 if (mode or ("min" if metric == "loss" else "max")) == "min" else -1
        self._best = float("inf")
        self._since = 0

    def on_train_begin(self, experiment: "Experiment", folder: Path | None) -> None:
        """Reset the state."""
        self._best, self._since = float("inf"), 0

    def on_round_end(self, record: Record) -> bool:
        """Whether the metric has stopped improving."""
        value = self._sign * metric_of(record, self.metric)
        if value < self._best - self.min_delta:
            self._best, self._since = value, 0
        else:
            self._since += 1
        return self._since >= self.patience


class TensorBoard(Callback):
    """Write metrics as TensorBoard events, by default to the run directory.

    On recorded data, also the means over the rounds so far, the scores without a model, and the shortfall.
    """

    SCALARS = (
        *("accuracy", "loss", "total_volume", "mean_age", "planned_staleness", "payment", "server_cost"),
    )

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise InputError("tensorboard needs TensorBoard: pip install 'dufl[tensorboard]'") from None
        self._folder = folder
        self._writer: Any = None
        self._records: list[Record] = []

    def on_train_begin(self, experiment: "Experiment", folder: Path | None) -> None:
        """Open the event file. A resumed run writes all of its rounds again."""
        from torch.utils.tensorboard import SummaryWriter

        self._records = []
        place = self._folder or folder
        if place is None:
            raise InputError("out must be given with TensorBoard(), or a folder to TensorBoard", field="out")
        self._writer = SummaryWriter(str(place), purge_step=0)

    def on_round_end(self, record: Record) -> None:
        """Write the metrics of a round."""
        values = {name: getattr(record, name) for name in self.SCALARS} | record.metrics
        if record.period is not None:
            self._records.append(record)
            values |= self._over_time(record, record.period)
            values = {name: value for name, value in values.items() if value is not None and value == value}
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def _over_time(self, record: Record, period: Period) -> dict[str, float]:
        """What only recorded data has; NaN where it is unknown."""
        names = ("accuracy", *(name for name in ("rmse", "r2") if name in record.metrics))
        means = {f"mean_{name}": mean_of([_value(r, name) for r in self._records]) for name in names}
        free = {"no_change": period.no_change, "majority": period.majority}
        return means | free | {"shortfall": record.shortfall, "tested": period.samples}

    def on_train_end(self, run: "Run") -> None:
        """Close the event file."""
        self._writer.close()


def _value(record: Record, name: str) -> float:
    return record.accuracy if name == "accuracy" else record.metrics.get(name, float("nan"))


def metric_of(record: Record, name: str) -> float:
    """The value of a metric: a field of the record or a custom metric."""
    value = record.metrics[name] if name in record.metrics else getattr(record, name, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        known = [key for key, item in vars(record).items() if isinstance(item, int | float)]
        raise InputError.of("metric", f"one of {', '.join([*known, *record.metrics])}", name, text=repr(name))
    return float(value)


class Callbacks:
    """A list of callbacks that are called in order."""

    def __init__(self, callbacks: Iterable["Callback | Callable[[Record], Any]"]) -> None:
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            if not callable(callback) and not hasattr(callback, "on_round_end"):
                raise InputError.of("callbacks", "functions or Callback objects", type(callback).__name__)

    def begin(self, experiment: "Experiment", folder: Path | None) -> None:
        """Call `on_train_begin`."""
        self._call("on_train_begin", experiment, folder)

    def round_end(self, record: Record) -> Action | None:
        """Call `on_round_end`. PAUSE takes precedence over FINISH."""
        actions = []
        for callback in self._callbacks:
            function: Any = getattr(callback, "on_round_end", callback)
            with calling("callback", callback, f"after round {record.round}"):
                actions.append(function(record))
        if Action.PAUSE in actions:
            return Action.PAUSE
        return Action.FINISH if any(a is Action.FINISH or a is True for a in actions) else None

    def end(self, run: "Run") -> None:
        """Call `on_train_end`."""
        self._call("on_train_end", run)

    def _call(self, name: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            function = getattr(callback, name, None)
            if function is not None:
                with calling("callback", callback, name):
                    function(*arguments)
