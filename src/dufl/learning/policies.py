"""What is paid for fresh data, and what a client's buffer keeps and collects: the plugin of data update.

A policy is anything with the four functions of `Policy`. What it says may depend on the client, the round
and the size of the buffer, and on nothing else that changes: so a run can be resumed anywhere.
"""

from collections.abc import Callable
from functools import cache
from typing import Protocol

from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.game.parameters import Game
from dufl.game.plan import Plan, equilibrium
from dufl.learning.own import OwnPolicy

POLICIES = ("dufl", "static")


class Policy(Protocol):
    """A policy of data update."""

    def payment(self, round: int) -> float:
        """What the server pays in a round, to all clients together."""
        ...

    def size(self, client: int) -> int:
        """How many samples a client holds in round 0."""
        ...

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """How many of its `size` samples a client conserves after a round, and how many it collects."""
        ...

    def planned_staleness(self, round: int) -> float:
        """The mean age of all samples that is planned for a round; NaN if none is."""
        ...


class Planned:
    """Follows a plan of the game: `dufl` the server's, `static` the plan that pays and collects nothing."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self._seed = seed
        self._whole = cache(self._integer_plan)

    def payment(self, round: int) -> float:
        """R, the same in every round."""
        return self.plan.payment

    def size(self, client: int) -> int:
        """D_k(0), in whole samples."""
        return int(self._whole(client).size[0])

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """θ·D_k(t) and Δ_k(t), in whole samples."""
        return self._whole(client).step(round, size)

    def planned_staleness(self, round: int) -> float:
        """S(t)."""
        return float(self.plan.mean_staleness[round])

    def _integer_plan(self, client: int) -> IntegerPlan:
        return integer_plan(self.plan.volume[:, client], self.plan.conservation_rate, self._seed, client)


def no_update(game: Game) -> Plan:
    """The plan that pays nothing and keeps everything."""
    return equilibrium(game, payment=0.0, conservation_rate=1.0)


def make_policy(name: str, game: Game, solve: Callable[[], Plan], seed: int) -> Policy:
    """A policy by name or import path; `solve` finds the server's plan where one is needed.

    A user's own is called with the game and the seed.
    """
    if name == "dufl":
        return Planned(solve(), seed)
    if name == "static":
        return Planned(no_update(game), seed)
    return OwnPolicy(name, game, seed)
