"""FedDyn: every client keeps a gradient that corrects its drift.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, *Federated
Learning Based on Dynamic Regularization* (ICLR 2021).

    client   w_k ≈ argmin F_k(w) − ⟨g_k, w⟩ + α/2·‖w − w(t)‖²
             g_k ← g_k − α·(w_k − w(t))
    server   h ← h − α/N·Σ_{k ∈ P} (w_k − w(t))
             w(t+1) = 1/|P|·Σ_{k ∈ P} w_k − h/α

with g_k = h = 0 at the start. P is the set of participating clients; all have the same weight, whatever
their volume. At a fixed point each g_k is the gradient of F_k at w, and they sum to zero: w minimizes the
mean of the F_k. At all times h = 1/N·Σ_k g_k.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dufl.learning.algorithm import LocalPenalty, Mean, State, Update, Vector

if TYPE_CHECKING:
    from dufl.learning.settings import Training


@dataclass(frozen=True)
class FedDyn:
    """Every client keeps a gradient that corrects its drift from the common minimum."""

    feddyn_alpha: float = 0.1  # α

    def init(self, weights: Vector, num_clients: int, training: "Training") -> State:
        """Returns h = 0; the state contains a client's g_k from its first update on."""
        return {"server": np.zeros_like(weights), "clients": np.array([num_clients], np.float32)}

    def penalty(self, state: State, client: int) -> LocalPenalty:
        """The proximal term with strength α and the linear term g_k."""
        return LocalPenalty(self.feddyn_alpha, state.get(f"client {client}"))

    def apply(self, state: State, weights: Vector, updates: Iterable[Update]) -> tuple[Vector, State]:
        """Update every participant's g_k and the server's h, and correct the mean of the weights by h/α."""
        alpha, after = self.feddyn_alpha, dict(state)
        drift, mean = np.zeros(weights.shape), Mean()
        for update in updates:
            name, moved = f"client {update.client}", update.weights - weights
            after[name] = np.asarray(state.get(name, 0) - alpha * moved, np.float32)
            drift += moved
            mean.add(update.weights, 1)
        if not mean.weight:
            return weights, state
        server = state["server"] - alpha / float(state["clients"][0]) * drift
        after["server"] = server.astype(np.float32)
        return np.asarray(mean.value(weights) - server / alpha, np.float32), after
