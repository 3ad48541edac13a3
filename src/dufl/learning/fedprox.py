"""FedProx: FedAvg with a proximal term that keeps clients near the global weights.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, *Federated Optimization in
Heterogeneous Networks* (MLSys 2020).

    client   w_k ≈ argmin F_k(w) + μ/2·‖w − w(t)‖²
    server   as FedAvg
"""

from dataclasses import dataclass

from dufl.learning.algorithm import LocalPenalty, State
from dufl.learning.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps clients near the global weights; with μ = 0 it is FedAvg."""

    proximal_mu: float = 0.01  # μ

    def penalty(self, state: State, client: int) -> LocalPenalty:
        """The proximal term with strength μ."""
        return LocalPenalty(strength=self.proximal_mu)
