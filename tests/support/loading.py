"""Experiments from `key=value` strings, as on the command line."""

from collections.abc import Callable, Iterable
from pathlib import Path

from dufl.cli.common import parse_changes
from dufl.experiment.callbacks import Action
from dufl.experiment.config import Experiment
from dufl.learning.federation import Record


def load(path: Path | None = None, changes: Iterable[str] = ()) -> Experiment:
    """The experiment of a file with changes, as `dufl COMMAND FILE --set …` reads it."""
    return Experiment.from_toml(path, parse_changes(changes))


def pausing(condition: Callable[[], bool]) -> Callable[[Record], Action | None]:
    """A callback that pauses a run after the first round at the end of which a condition holds."""
    return lambda _: Action.PAUSE if condition() else None
