"""What federated algorithms share: a local penalty, an update, and a state kept between rounds.

In every algorithm a client minimizes, by local SGD from the global weights w(t),

    F_k(w) + strength/2·‖w − w(t)‖² − ⟨linear, w⟩

Algorithms differ in `strength` and `linear` (the `LocalPenalty`) and in how the server computes w(t+1) from
the updates. An algorithm is three functions without side effects:

    init(weights, num_clients, training) → state           before the first round
    penalty(state, client)               → LocalPenalty    for each participating client
    apply(state, weights, updates)       → weights, state  after a round

A state is a mapping from names to vectors, so that it can be stored in a checkpoint.
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
    """The term that an algorithm adds to a client's loss; zero by default."""

    strength: float = 0.0
    linear: Vector | None = None

    def with_decay(self, weight_decay: float, weights: Vector) -> "LocalPenalty":
        """The penalty with weight decay λ, for local training from the global weights w(t).

        λ/2·‖w‖² = λ/2·‖w − w(t)‖² + ⟨λ·w(t), w⟩ + a constant.
        """
        if not weight_decay:
            return self
        linear = np.float32(-weight_decay) * weights
        linear = linear if self.linear is None else self.linear + linear
        return LocalPenalty(self.strength + weight_decay, linear)


@dataclass(frozen=True, eq=False)
class Update:
    """What a client sends back.

    Attributes:
        client: the index of the client.
        volume: the number of samples it trained on.
        weights: the weights after local training.
        model_buffers: the buffers of its model, such as running means; averaged by volume with every
            algorithm.
        steps: the number of SGD steps it took.
    """

    client: int
    volume: int
    weights: Vector
    model_buffers: Vector
    steps: int = 0


class Algorithm(Protocol):
    """A federated algorithm."""

    def init(self, weights: Vector, num_clients: int, training: "Training") -> State:
        """Returns the state before the first round; `training` has the learning rate, the batch size etc."""
        ...

    def penalty(self, state: State, client: int) -> LocalPenalty:
        """Returns the term that is added to a client's loss."""
        ...

    def apply(self, state: State, weights: Vector, updates: Iterable[Update]) -> tuple[Vector, State]:
        """Returns the next global weights and state; each client's update comes once, in client order."""
        ...


def refusal(update: Update, size: int) -> str:
    """The reason why an update must not be used; empty if it is valid."""
    if update.weights.shape != (size,):
        return f"weights of shape {update.weights.shape}, not ({size},)"
    return bad_values(update.weights, update.model_buffers)


def bad_values(*arrays: npt.NDArray[Any]) -> str:
    """The reason why arrays must not be aggregated; empty if they are valid."""
    if any(array.dtype.kind not in "fiub" for array in arrays):
        return "weights that are not numeric"
    if any(np.isnan(array).any() for array in arrays):
        return "weights that are not a number"
    if any(np.isinf(array).any() for array in arrays):
        return "infinite weights"
    return ""


class Mean:
    """A weighted mean of vectors that are added one by one, summed in float64."""

    def __init__(self) -> None:
        self._sum: npt.NDArray[np.float64] | float = 0.0
        self.weight = 0.0

    def add(self, vector: Vector, weight: float) -> None:
        """Add a vector."""
        self._sum = self._sum + weight * vector.astype(np.float64)
        self.weight += weight

    def value(self, otherwise: Vector) -> Vector:
        """The mean so far; `otherwise` if no vector was added."""
        return np.asarray(self._sum / self.weight, np.float32) if self.weight else otherwise
