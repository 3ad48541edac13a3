"""`zero` and `random`: the paper's two baseline strategies (Liu & Wang, ECAI 2025, section 6.2), trained.

In the paper a single client deviates from the plan. Here all clients do, at the offer of the server's plan:

    zero      Δ_k(t) = 0
    random    Δ_k(t) uniform on [0, 2·m_k], m_k the mean of the planned Δ_k over all rounds but the last

so that a random client collects as much as planned in expectation, at other times. The server pays R in every
round, whatever clients collect.
"""

import numpy as np

from dufl.game.client import random_strategy, zero_strategy
from dufl.game.dynamics import Array, staleness
from dufl.game.plan import Plan
from dufl.learning.policies.policy import Trajectories

DRAWS = 18  # the purpose of the random draws, which are independent of all others of a seed


class ZeroStrategy(Trajectories):
    """Every client keeps what the plan's offer demands, and collects nothing.

    Args:
        plan: its offer and first volumes.
        seed: determines the direction in which volumes are rounded.
    """

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        rounds, rate = plan.game.num_rounds, plan.conservation_rate
        kept = np.power(rate, np.arange(rounds), dtype=np.float64)

        def volume() -> Array:
            return zero_strategy(plan.volume[0], rounds, rate)[0]

        aged = staleness(kept, rate, plan.starting_staleness)
        super().__init__(plan.game, np.full(rounds, plan.payment), volume, rate, aged, seed)
        self.plan = plan

    def __repr__(self) -> str:
        return f"ZeroStrategy({self.plan!r})"

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """θ·D_k(t), rounded to an integer, and nothing."""
        return super().step(client, round, size)[0], 0


class RandomStrategy(Trajectories):
    """Every client collects at random, with the same expected total as in a plan.

    A client whose buffer is full collects less.

    Args:
        plan: its offer, first volumes and expected totals.
        seed: of the draws.
    """

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        rate = plan.conservation_rate
        drawn = int(np.random.SeedSequence([seed, DRAWS]).generate_state(1, np.uint64)[0])
        collected = random_strategy(plan.volume[0], plan.collection, rate, drawn)[1]
        volume = _within_capacity(plan, collected)
        aged = staleness(volume.sum(axis=1), rate, plan.starting_staleness)
        payment = np.full(plan.game.num_rounds, plan.payment)
        super().__init__(plan.game, payment, lambda: volume, rate, aged, seed)
        self.plan = plan

    def __repr__(self) -> str:
        return f"RandomStrategy({self.plan!r})"


def _within_capacity(plan: Plan, collection: Array) -> Array:
    """D_k(t+1) = min(θ·D_k(t) + Δ_k(t), C_k)."""
    held = np.empty_like(collection)
    held[0] = plan.volume[0]
    for t in range(1, len(held)):
        held[t] = np.minimum(
            plan.conservation_rate * held[t - 1] + collection[t - 1], plan.game.clients.capacity
        )
    return held
