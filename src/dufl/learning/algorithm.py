"""What federated algorithms share: a local penalty, an update, and a state that is kept between rounds.

In every algorithm a client minimizes, by local SGD from the global weights w(t),

    F_k(w) + strength/2·‖w − w(t)‖² − ⟨linear, w⟩

Algorithms differ in `strength` and `linear` (the `LocalPenalty`) and in how the server computes w(t+1) from
the updates. An algorithm is three functions without side effects:

    init(weights, num_clients, training) → state           before the first round
    penalty(state, client)               → LocalPenalty    for a client that takes part
    apply(state, weights, updates)       → weights, state  after a round

A state is a mapping from names to vectors, so that a checkpoint can hold it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dufl.learning.settings import Training

Vector = npt.NDArray[np.float32]
State = Mapping[str, Vector]


@dataclass(frozen=True, eq=False)
class LocalPenalty:
    """What an algorithm adds to the loss of a client; nothing by default."""

    strength: float = 0.0
    linear: Vector | None = None


@dataclass(frozen=True, eq=False)
class Update:
    """What a client sends back.

    Attributes:
        client: who.
        volume: how many samples it trained on.
        weights: what came out.
        model_buffers: what else its model keeps, such as running means; averaged by volume, whatever the
            algorithm.
        steps: how many steps of SGD it took.
    """

    client: int
    volume: int
    weights: Vector
    model_buffers: Vector
    steps: int = 0


class Algorithm(Protocol):
    """A federated algorithm."""

    def init(self, weights: Vector, num_clients: int, training: "Training") -> State:
        """The state before the first round; `training` has the learning rate, the batch size and so on."""
        ...

    def penalty(self, state: State, client: int) -> LocalPenalty:
        """What is added to a client's loss."""
        ...

    def apply(self, state: State, weights: Vector, updates: Iterable[Update]) -> tuple[Vector, State]:
        """The next global weights and state; updates come in the order of clients, each once."""
        ...


def refusal(update: Update, size: int) -> str:
    """Why an update must not be used; empty if it may."""
    if update.weights.shape != (size,):
        return f"weights of shape {update.weights.shape}, not ({size},)"
    return bad_values(update.weights, update.model_buffers)


def bad_values(*arrays: npt.NDArray[Any]) -> str:
    """Why arrays must not be aggregated; empty if they may."""
    if any(array.dtype.kind not in "fiub" for array in arrays):
        return "weights that are not numeric"
    if any(np.isnan(array).any() for array in arrays):
        return "weights that are not a number"
    if any(np.isinf(array).any() for array in arrays):
        return "infinite weights"
    return ""


class Mean:
    """A weighted mean of vectors that come one by one, summed in float64."""

    def __init__(self) -> None:
        self._sum: npt.NDArray[np.float64] | float = 0.0
        self.weight = 0.0

    def add(self, vector: Vector, weight: float) -> None:
        """One more."""
        self._sum = self._sum + weight * vector.astype(np.float64)
        self.weight += weight

    def value(self, otherwise: Vector) -> Vector:
        """The mean so far; `otherwise` if there was nothing."""
        return np.asarray(self._sum / self.weight, np.float32) if self.weight else otherwise
