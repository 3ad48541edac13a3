"""What the server knows after a round, in a file: a server that was killed goes on from there."""

import zipfile
import zlib
from collections.abc import Mapping
from logging import INFO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord
from flwr.common.logger import log
from flwr.serverapp.strategy import Strategy

from dufl.errors import InputError
from dufl.experiment.files import replacing
from dufl.flower import messages

FILE = "server.npz"


@runtime_checkable
class WithState(Protocol):
    """A strategy that remembers more than the model, and can go on in another process."""

    def state(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """What it remembers."""

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on where another was."""


def keep(folder: Path, strategy: Strategy, rounds: int, arrays: ArrayRecord) -> None:
    """Write the model and the state of the strategy after so many rounds."""
    own = strategy.state() if isinstance(strategy, WithState) else {}
    values = {f"array {name}": value for name, value in messages.from_arrays(arrays).items()}
    values |= {f"state {name}": _plain(name, value) for name, value in own.items()}
    with replacing(folder / FILE) as temporary, temporary.open("wb") as stream:
        np.savez(stream, round=np.array(rounds), **values)  # type: ignore[arg-type]


def recall(folder: Path, strategy: Strategy, arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
    """How many rounds are over, and the model after them; `arrays` if none is. Restores the strategy."""
    if not (folder / FILE).exists():
        return 0, arrays
    kept = _read(folder / FILE)
    own = {name.removeprefix("state "): kept[name] for name in kept if name.startswith("state ")}
    model = {name.removeprefix("array "): kept[name] for name in kept if name.startswith("array ")}
    if set(model) != set(arrays):
        raise InputError.of(f"{folder / FILE}", f"of a model with {sorted(arrays)}", sorted(model))
    if isinstance(strategy, WithState):
        strategy.restore(own)
    rounds = int(kept["round"])
    log(INFO, "going on after round %s", rounds)
    return rounds, messages.to_arrays({name: model[name] for name in arrays})


def rounds_done(folder: Path) -> int:
    """How many rounds of a run are over and kept."""
    if not (folder / FILE).exists():
        return 0
    return int(_read(folder / FILE)["round"])


def _plain(name: str, value: Any) -> np.ndarray[Any, Any]:
    """An array that can be read again without running code; another is refused before anything is lost."""
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise InputError.of(f"{name!r} in the state of the strategy", "an array of numbers", repr(value))
    return array


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All that is in the file."""
    try:
        with path.open("rb") as stream, np.load(stream) as kept:
            found = {name: kept[name] for name in kept.files}
            int(found["round"])
            return found
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} must be an undamaged file of a server: {error}") from None
