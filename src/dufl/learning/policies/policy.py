"""The interface of every policy, and what most of them share: volumes that are known before the first round.

A policy may have an attribute `discard`, the discard rule that its buffers need.
"""

from collections.abc import Callable
from functools import cache
from typing import Protocol

from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.game.dynamics import Array
from dufl.game.parameters import Game


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


class Trajectories:
    """Follows given volumes: every client keeps and collects what leads to them, rounded to integers.

    Args:
        game: whose clients they are. A buffer never exceeds the capacity of its client.
        payment: R(t), one per round.
        volume: returns D_k(t) of all clients, of shape (rounds, clients).
        conservation_rate: θ.
        staleness: S(t), one per round.
        seed: determines the direction in which volumes are rounded.
    """

    def __init__(
        self,
        game: Game,
        payment: Array,
        volume: Callable[[], Array],
        conservation_rate: float,
        staleness: Array,
        seed: int,
    ) -> None:
        self._game, self._payment, self._staleness = game, payment, staleness
        self._volume, self._rate, self._seed = cache(volume), conservation_rate, seed
        self._integer = cache(self._integer_plan)

    def payment(self, round: int) -> float:
        """R(t)."""
        return float(self._payment[round])

    def size(self, client: int) -> int:
        """D_k(0), rounded to an integer."""
        return int(self._integer(client).size[0])

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """θ·D_k(t) and Δ_k(t), rounded to integers."""
        return self._integer(client).step(round, size)

    def planned_staleness(self, round: int) -> float:
        """S(t)."""
        return float(self._staleness[round])

    def _integer_plan(self, client: int) -> IntegerPlan:
        capacity = float(self._game.clients.capacity[client])
        return integer_plan(self._volume()[:, client], self._rate, self._seed, client, capacity=capacity)
