"""`window-M`: a buffer holds the samples of the last M rounds. M = ∞ is `keep-all`, M = 1 is `fresh-only`.

FedDrift's baselines win-1 and win-2 are `window-1` and `window-2`: E. Jothimurugesan, K. Hsieh, J. Wang,
G. Joshi, P. B. Gibbons, "Federated Learning under Distributed Concept Drift", AISTATS 2023. They train on all
data of the last time steps, which costs nothing there. On recorded data, so does `TakeAll`.

A window that buys (`Window`) pays R per round. It has no price of its own, so a client collects in round t
what the equilibrium for R and θ = 1 − 1/M collects. Both hold D = M·Δ in the stationary state, where a sample
stays for M rounds: on average in that equilibrium, and exactly in a window.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import cache

import numpy as np

from dufl.data.integer_plan import IntegerPlan
from dufl.data.replay import Replay
from dufl.game.dynamics import Array
from dufl.game.parameters import Competition, Game
from dufl.game.plan import equilibrium
from dufl.game.population import Clients

ROUNDING = 19  # the purpose of the random numbers that round what is collected
LARGEST_SIZE = 2**53


class _LastRounds(ABC):
    """Keeps what joined in the last rounds, by a schedule that is known before the first round."""

    discard = "oldest"

    def __init__(self) -> None:
        self._schedule = cache(self._make_schedule)

    @abstractmethod
    def _make_schedule(self, client: int) -> IntegerPlan: ...

    def size(self, client: int) -> int:
        """D_k(0), rounded to an integer."""
        return int(self._schedule(client).size[0])

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """Keep what joined in the last M − 1 rounds, and collect."""
        schedule = self._schedule(client)
        return min(int(schedule.keep[round]), size), int(schedule.fresh[round])


class Window(_LastRounds):
    """Keeps the samples of the last rounds, and collects what a payment buys.

    Args:
        game: its clients, who start with their initial volume.
        length: M >= 1, the number of rounds whose samples are in a buffer.
        payment: R per round.
        competition: of the clients; see `dufl.equilibrium`.
        seed: determines the direction in which volumes are rounded.
        data: recorded data, which limits what can be collected.
    """

    def __init__(
        self,
        game: Game,
        length: int,
        payment: float,
        competition: Competition = "mean-field",
        seed: int = 0,
        data: Replay | None = None,
    ) -> None:
        super().__init__()
        rate = 1 - 1 / length
        self.plan = equilibrium(game, payment=payment, conservation_rate=rate, competition=competition)
        self._length, self._seed = length, seed
        self._there = None if data is None else data.available()[1:-1]
        joined = np.concatenate([self.plan.total_volume[:1], self.plan.collection.sum(axis=1)])
        self._staleness = window_staleness(joined, length, self.plan.starting_staleness)

    def __repr__(self) -> str:
        return f"Window({self._length}, payment={self.plan.payment:g})"

    def payment(self, round: int) -> float:
        """R, the same in every round."""
        return self.plan.payment

    def planned_staleness(self, round: int) -> float:
        """The mean age if everything is collected that is bought."""
        return float(self._staleness[round])

    def _make_schedule(self, client: int) -> IntegerPlan:
        wanted = rounded(self.plan.collection[:-1, client], self._seed, client)
        there = wanted if self._there is None else self._there[:, client].tolist()
        first, capacity = first_size(self.plan.game.clients, client, self.plan.volume[0, client])
        return schedule(first, wanted, there, self._length, capacity)


class TakeAll(_LastRounds):
    """Collects everything that is recorded and keeps the last rounds of it, for no payment.

    A baseline on recorded data: it shows what fresh or old data is worth, not what it costs.

    Args:
        game: whose clients start with their initial volume.
        data: recorded data.
        length: the number of rounds whose samples are in a buffer; infinite to keep everything.
    """

    def __init__(self, game: Game, data: Replay, length: float) -> None:
        super().__init__()
        self._clients, self._length = game.clients, length
        self._there = data.available()[1:-1]

    def __repr__(self) -> str:
        return f"TakeAll({self._length:g})"

    def payment(self, round: int) -> float:
        """Nothing."""
        return 0.0

    def planned_staleness(self, round: int) -> float:
        """Not planned."""
        return math.nan

    def _make_schedule(self, client: int) -> IntegerPlan:
        there = self._there[:, client].tolist()
        first, capacity = first_size(self._clients, client, self._clients.initial_volume[client])
        return schedule(first, there, there, self._length, capacity)


def schedule(
    first: int, wanted: Sequence[int], there: Sequence[int], length: float, capacity: int
) -> IntegerPlan:
    """What a window keeps and collects.

    A full buffer makes room for fresh samples by discarding its oldest ones, or collects less if it has to
    keep everything.

    Args:
        first: the size of the first buffer.
        wanted: what is to be collected in every round but the last.
        there: what can be collected in these rounds.
        length: M; infinite to keep everything.
        capacity: of the buffer.

    >>> schedule(5, [2, 3, 4], [9, 9, 9], length=2, capacity=100).size.tolist()
    [5, 7, 5, 7]
    """
    joined, held = deque([first]), first  # what joined in each round of the window, and their sum
    sizes, keep, fresh = [first], [], []
    for asked, most in zip(wanted, there, strict=True):
        if len(joined) >= length:
            held -= joined.popleft()
        asked = min(asked, capacity - held if math.isinf(length) else capacity)
        arriving = min(asked, most)
        held -= _discard(joined, held + arriving - capacity)
        keep.append(held)
        fresh.append(min(asked, capacity - held))
        joined.append(arriving)
        held += arriving
        sizes.append(held)
    return IntegerPlan(*(np.array(column, np.int64) for column in (sizes, keep, fresh)))


def _discard(joined: deque[int], excess: int) -> int:
    """Take the excess from the oldest samples, and return it."""
    left = excess = max(excess, 0)
    for i in range(len(joined)):
        if not left:
            break
        dropped = min(left, joined[i])
        joined[i] -= dropped
        left -= dropped
    return excess


def first_size(clients: Clients, client: int, volume: float) -> tuple[int, int]:
    """The number of samples in a client's first buffer, and its capacity."""
    capacity = math.floor(min(float(clients.capacity[client]), LARGEST_SIZE))
    return min(int(volume + 0.5), capacity), capacity


def rounded(collection: Array, seed: int, client: int) -> list[int]:
    """What is collected in integers, whose sum up to any round differs from the exact one by less than 1.

    >>> rounded(np.full(10, 0.5), seed=0, client=0)
    [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    """
    shift = np.random.default_rng([seed, client, 0, ROUNDING]).random()
    total = np.floor(np.cumsum(np.append(0.0, collection)) + shift).astype(np.int64)
    return [int(count) for count in np.diff(total)]


def window_staleness(joined: Array, length: int, start: float) -> Array:
    """The mean age in every round, from what joined for round 0 and in every round.

    >>> window_staleness(np.array([4.0, 4.0, 4.0, 0.0]), length=2, start=1.0).tolist()
    [1.0, 1.5, 1.5]
    """
    rounds = np.arange(len(joined) - 1)
    begin = np.maximum(rounds - length + 1, 0)
    upto, aged = (np.append(0.0, np.cumsum(part)) for part in (joined, joined * np.arange(len(joined))))
    held = upto[rounds + 1] - upto[begin]
    total = (rounds + 1) * held - (aged[rounds + 1] - aged[begin]) + (begin == 0) * joined[0] * (start - 1)
    return np.asarray(np.divide(total, held, out=np.ones(len(rounds)), where=held > 0))
