"""Policies decide what the server pays for fresh data, and what every buffer keeps and collects.

A policy is any object with the four methods of `Policy`. What they return may depend on the client, the round
and the size of the buffer, and on no other state. A run can therefore be resumed after any round.
"""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Protocol

from dufl.data.client_data import ClientData
from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.data.replay import Replay
from dufl.errors import InputError
from dufl.game.parameters import Game
from dufl.game.plan import Plan, equilibrium
from dufl.learning.own import OwnPolicy
from dufl.plugins import Spec

POLICIES = ("dufl", "static", "keep-all", "fresh-only", "window-5")
_WINDOW = re.compile(r"window-([1-9][0-9]{0,8})")


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
        first_round: the round of the federation that is the plan's round 0.
    """

    def __init__(self, plan: Plan, seed: int = 0, first_round: int = 0) -> None:
        self.plan = plan
        self.first_round = first_round
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
        return self._integer(client).step(round - self.first_round, size)

    def planned_staleness(self, round: int) -> float:
        """S(t)."""
        return float(self.plan.mean_staleness[round - self.first_round])

    def _integer_plan(self, client: int) -> IntegerPlan:
        volume, rate = self.plan.volume[:, client], self.plan.conservation_rate
        return integer_plan(volume, rate, self._seed, client, self.first_round)


class Window:
    """Collects everything that is recorded and keeps the last rounds of it, for no payment.

    A baseline on recorded data: it shows what fresh or old data is worth, not what it costs.

    Args:
        game: whose clients start with their initial volume.
        data: recorded data.
        length: the number of rounds whose samples are in a buffer; infinite to keep everything.
    """

    discard = "oldest"

    def __init__(self, game: Game, data: Replay, length: float) -> None:
        self._volume = game.clients.initial_volume
        self._data = data
        self._length = length

    def payment(self, round: int) -> float:
        """Nothing."""
        return 0.0

    def size(self, client: int) -> int:
        """D_k(0), rounded to an integer."""
        return int(self._volume[client] + 0.5)

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """Keep what joined in the last `length` − 1 rounds, and collect all that the period has."""
        first = round - self._length + 1  # the first round whose samples stay
        joined = 0 if first < 0 else sum(self._available(client, t) for t in range(int(first), round))
        return size if first < 0 else min(joined, size), self._available(client, round)

    def planned_staleness(self, round: int) -> float:
        """Not planned."""
        return math.nan

    def _available(self, client: int, round: int) -> int:
        return len(self._data.collectable(client, round))


def is_policy(name: str) -> bool:
    """Whether a policy of this name is built in.

    >>> is_policy("window-12"), is_policy("window-0")
    (True, False)
    """
    return name in POLICIES or _WINDOW.fullmatch(name) is not None


def no_update(game: Game) -> Plan:
    """The plan that pays nothing and keeps everything, also the first buffers; nobody has a choice."""
    fixed = game.replace(trim_start=False, participation="mandatory")
    return equilibrium(fixed, payment=0.0, conservation_rate=1.0)


def make_policy(
    spec: Spec, game: Game, solve: Callable[[], Plan], seed: int, data: ClientData | None = None
) -> Policy:
    """A policy from its specification; `solve` is called if the server's plan is needed.

    A class or function is called with the game and the seed. A policy may have an attribute `discard`, the
    discard rule that it needs.
    """
    if isinstance(spec, Planned):
        _check_plan(spec.plan, game)
        return Planned(spec.plan, seed)
    if isinstance(spec, str) and spec == "dufl":
        return Planned(solve(), seed)
    if isinstance(spec, str) and spec == "static":
        return Planned(no_update(game), seed)
    if isinstance(spec, str) and is_policy(spec):
        if not isinstance(data, Replay):
            rule = "'dufl', 'static' or your own, unless data is recorded"
            raise InputError.of("policy", rule, spec, text=repr(spec))
        lengths = {"keep-all": math.inf, "fresh-only": 1}
        length = lengths[spec] if spec in lengths else int(spec.removeprefix("window-"))
        return Window(game, data, length)
    return OwnPolicy(spec, game, seed)


def _check_plan(plan: Plan, game: Game) -> None:
    for name, planned, wanted in (
        ("num_rounds", plan.game.num_rounds, game.num_rounds),
        ("number of clients", plan.game.clients.size, game.clients.size),
    ):
        if planned != wanted:
            raise InputError.of("policy", f"a plan whose {name} is {wanted}, as the game's", planned)
