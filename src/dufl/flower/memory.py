"""What the server knows after a round, in a file: a server that was killed goes on from there."""

from collections.abc import Mapping
from logging import INFO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord
from flwr.common.logger import log
from flwr.serverapp.strategy import Strategy

from dufl.experiment.files import replacing
from dufl.flower import wire

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
    values = {f"array {name}": value for name, value in wire.from_arrays(arrays).items()}
    values |= {f"state {name}": value for name, value in own.items()}
    with replacing(folder / FILE) as temporary, temporary.open("wb") as stream:
        np.savez(stream, round=np.array(rounds), **values)  # type: ignore[arg-type]


def recall(folder: Path, strategy: Strategy, arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
    """How many rounds are over, and the model after them; `arrays` if none is. Restores the strategy."""
    if not (folder / FILE).exists():
        return 0, arrays
    with np.load(folder / FILE) as kept:
        rounds = int(kept["round"])
        own = {n.removeprefix("state "): kept[n] for n in kept.files if n.startswith("state ")}
        found = {n.removeprefix("array "): kept[n] for n in kept.files if n.startswith("array ")}
    if isinstance(strategy, WithState):
        strategy.restore(own)
    log(INFO, "going on after round %s", rounds)
    return rounds, wire.to_arrays({name: found[name] for name in arrays})


def rounds_done(folder: Path) -> int:
    """How many rounds of a run are over and kept."""
    if not (folder / FILE).exists():
        return 0
    with np.load(folder / FILE) as kept:
        return int(kept["round"])
