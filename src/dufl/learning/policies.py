"""Policies decide what the server pays for fresh data, and what every buffer keeps and collects.

A policy is any object with the four methods of `Policy`. What they return may depend on the client, the round
and the size of the buffer, and on no other state. A run can therefore be resumed after any round.
"""

from collections.abc import Callable
from functools import cache
from typing import Protocol

from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.errors import InputError
from dufl.game.parameters import Game
from dufl.game.plan import Plan, equilibrium
from dufl.learning.own import OwnPolicy
from dufl.plugins import Spec

POLICIES = ("dufl", "static")


class Policy(Protocol):
    """A policy for data updates."""

    def payment(self, round: int) -> float:
        """What the server pays in a round, to all clients together."""
        ...

    def size(self, client: int) -> int:
        """The number of samples that a client holds in round 0."""
        ...

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """How many of its `size` samples a client conserves after a round, and how many it collects."""
        ...

    def planned_staleness(self, round: int) -> float:
        """The planned mean age of all samples in a round; NaN if there is no plan."""
        ...


class Planned:
    """Follows a plan: every client keeps and collects what the plan says, rounded to integers.

    Args:
        plan: a plan with as many rounds and clients as the federation.
        seed: determines the direction in which volumes are rounded; a run uses its own seed.
    """

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan = plan
        self._seed = seed
        self._integer = cache(self._integer_plan)

    def __repr__(self) -> str:
        return f"Planned({self.plan!r})"

    def payment(self, round: int) -> float:
        """R, the same in every round."""
        return self.plan.payment

    def size(self, client: int) -> int:
        """D_k(0), rounded to an integer."""
        return int(self._integer(client).size[0])

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """θ·D_k(t) and Δ_k(t), rounded to integers."""
        return self._integer(client).step(round, size)

    def planned_staleness(self, round: int) -> float:
        """S(t)."""
        return float(self.plan.mean_staleness[round])

    def _integer_plan(self, client: int) -> IntegerPlan:
        return integer_plan(self.plan.volume[:, client], self.plan.conservation_rate, self._seed, client)


def no_update(game: Game) -> Plan:
    """The plan that pays nothing and keeps everything."""
    return equilibrium(game, payment=0.0, conservation_rate=1.0)


def make_policy(spec: Spec, game: Game, solve: Callable[[], Plan], seed: int) -> Policy:
    """A policy from its specification; `solve` is called if the server's plan is needed.

    A class or function is called with the game and the seed.
    """
    if isinstance(spec, Planned):
        _check_plan(spec.plan, game)
        return Planned(spec.plan, seed)
    if isinstance(spec, str) and spec == "dufl":
        return Planned(solve(), seed)
    if isinstance(spec, str) and spec == "static":
        return Planned(no_update(game), seed)
    return OwnPolicy(spec, game, seed)


def _check_plan(plan: Plan, game: Game) -> None:
    for name, planned, wanted in (
        ("num_rounds", plan.game.num_rounds, game.num_rounds),
        ("number of clients", plan.game.clients.size, game.clients.size),
    ):
        if planned != wanted:
            raise InputError.of("policy", f"a plan whose {name} is {wanted}, as the game's", planned)
