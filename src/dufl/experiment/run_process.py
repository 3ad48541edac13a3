"""A process that trains runs of a comparison, for the `Pool` that started it.

`main` runs as a separate program. It reads pickled orders from standard input and writes pickled messages to
standard output. SIGTERM pauses the current run after its round. The process exits when its parent process
exits, so that none remains when the parent is killed.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dufl.errors import InputError, NegativeUtilityWarning, PluginError, plugin_traceback
from dufl.experiment.config import Experiment
from dufl.experiment.loader import Loader
from dufl.experiment.runs import Job, Observer, Options, Result, train_job
from dufl.experiment.sections import ClientsSection, Leader
from dufl.experiment.train import Run
from dufl.game.parameters import Game
from dufl.learning.federation import Record

_EVERY = 0.1  # seconds between two messages about rounds


@dataclass(frozen=True, eq=False)
class Setup:
    """The first message to a process."""

    path: tuple[str, ...]  # import path of user-defined modules
    experiments: bytes  # of all runs, by cloudpickle: unpickled once `path` is set


@dataclass(frozen=True, eq=False)
class Order:
    """Train a run."""

    place: int  # of its experiment
    seed: int
    out: Path | None
    resume: bool
    force: bool


@dataclass(frozen=True, eq=False)
class Outcome:
    """A run, without the parts of its experiment that the parent process has: they may be large."""

    game: Game
    clients: ClientsSection
    leader: Leader
    run: dict[str, Any]


class _Messenger(Observer):
    """Tells the parent process about rounds, and whether a run is to pause."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._last = stream, 0.0
        self._stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    @property
    def stopping(self) -> bool:
        """Whether SIGTERM has arrived."""
        return self._stopping

    def on_round(self, job: Job, record: Record) -> None:
        """Send the record of a round, unless the last message was a moment ago."""
        if record.round == 0 or time.monotonic() - self._last > _EVERY:
            self._last = time.monotonic()
            self.send("round", record)

    def send(self, kind: str, content: Any) -> None:
        """Write a message."""
        try:
            pickle.dump((kind, content), self._stream, protocol=pickle.HIGHEST_PROTOCOL)
            self._stream.flush()
        except BrokenPipeError:  # the parent process is gone
            os._exit(1)


def main() -> None:
    """Read orders and train their runs until the input ends."""
    messenger = _Messenger(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # output of user-defined parts must not corrupt the messages
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    warnings.simplefilter("ignore", NegativeUtilityWarning)  # shown in tables and JSON
    load = Loader()
    try:
        experiments = _experiments(pickle.load(sys.stdin.buffer))
    except EOFError:
        return
    except Exception as error:  # a user's own modules may raise anything
        messenger.send("unusable", f"{type(error).__name__}: {error}")
        return
    while True:
        try:
            order: Order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        messenger.send(*_train(order, experiments, messenger, load))


def _experiments(setup: Setup) -> Sequence[Experiment]:
    sys.path[:] = [*setup.path, *(folder for folder in sys.path if folder not in setup.path)]
    experiments: Sequence[Experiment] = pickle.loads(setup.experiments)
    return experiments


def _train(
    order: Order, experiments: Sequence[Experiment], messenger: _Messenger, load: Loader
) -> tuple[str, Any]:
    """The message about a run that has ended."""
    experiment = experiments[order.place]
    load.keep([experiment.data])
    job = Job("", order.place, order.seed, experiment, order.out)
    try:
        result = train_job(job, Options(order.resume, order.force), messenger, load)
    except Exception as error:
        return "failed", ("DuflError", f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}", "")
    return _message(result)


def _message(result: Result) -> tuple[str, Any]:
    if isinstance(result, Run):
        import cloudpickle

        names = ("records", "weights", "stopped_early", "plan", "data", "held", "agreed")
        run = {name: getattr(result, name) for name in names}
        whole = result.experiment
        return "done", bytes(cloudpickle.dumps(Outcome(whole.game, whole.clients, whole.leader, run)))
    if isinstance(result, PluginError):
        return "raised", (str(result), plugin_traceback(result.__cause__ or result))
    field = result.field if isinstance(result, InputError) else ""
    return "failed", (type(result).__name__, str(result), field)


def _end_with(parent: int) -> None:
    """Exit as soon as the parent process is gone, even in the middle of a round."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
