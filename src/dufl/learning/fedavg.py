"""FedAvg: the mean of the clients' weights, weighted by volume.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, *Communication-Efficient
Learning of Deep Networks from Decentralized Data* (AISTATS 2017).

    client   w_k ≈ argmin F_k(w), by local SGD from w(t)
    server   w(t+1) = Σ_k D_k(t)/D(t)·w_k
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dufl.learning.algorithm import LocalPenalty, Mean, State, Update, Vector

if TYPE_CHECKING:
    from dufl.learning.settings import Training


@dataclass(frozen=True)
class FedAvg:
    """The mean of the clients' weights, weighted by volume."""

    def init(self, weights: Vector, num_clients: int, training: "Training") -> State:
        """Returns an empty state: nothing is kept between rounds."""
        return {}

    def penalty(self, state: State, client: int) -> LocalPenalty:
        """No penalty: a client minimizes its own loss."""
        return LocalPenalty()

    def apply(self, state: State, weights: Vector, updates: Iterable[Update]) -> tuple[Vector, State]:
        """Average by volume; without updates the weights stay the same."""
        mean = Mean()
        for update in updates:
            mean.add(update.weights, update.volume)
        return mean.value(weights), state
