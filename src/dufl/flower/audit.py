"""Audit by contribution: whose updates bring nothing.

The influence and the direction of every client (see `contribution`) are averaged over rounds, with more
weight on recent ones; influences relative to the median of a round, so that 1 is a typical client. A client
is suspected if its averages are lower than those of the others by more than the differences between the
others explain (Student's t), and if its influence is not shown to be positive. Where clients differ much,
because their data does, few are suspected. Several clients that cheat alike do not hide one another, up to a
third of all. Who returns the model unchanged is suspected at once. A suspicion ends when the client is no
longer lower than the others.
"""

import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.flower.contribution import AnyArray, Arrays, Loss, Updates
from dufl.flower.payment import Score

UNCHANGED = 1e-3  # of the median size of a round: who changes the model less has returned it
LARGEST = 7.5  # the largest influence that counts for one round
SETTLED = 0.05  # the probability from which on a suspicion ends
ALLOWANCE = 0.5  # seconds of a round that an audit may always take
_NORMAL = 1.959964  # bounds of a score: 95 %
_ECHO = "it returned the model without training it"
_LOW = "its updates do not improve the model as those of the others do (p = {:.1g})"


@dataclass(frozen=True)
class Running:
    """The weighted mean of a sequence, with more weight on recent values.

    Attributes:
        total: Σ w·x.
        squares: Σ w·x².
        weight: Σ w.
        weight_squares: Σ w².
        count: the number of values.
    """

    total: float = 0.0
    squares: float = 0.0
    weight: float = 0.0
    weight_squares: float = 0.0
    count: float = 0.0

    def add(self, value: float, memory: float) -> "Running":
        """With one more value; earlier ones count for `memory` times as much as before."""
        return Running(
            memory * self.total + value,
            memory * self.squares + value * value,
            memory * self.weight + 1.0,
            memory * memory * self.weight_squares + 1.0,
            self.count + 1.0,
        )

    @property
    def mean(self) -> float:
        """The mean; 0 if there are no values."""
        return self.total / self.weight if self.count else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite if there are fewer than two values."""
        if self.count < 2:
            return math.inf
        variance = max(self.squares / self.weight - self.mean**2, 0.0)
        size = self.weight**2 / self.weight_squares  # of as many values of equal weight
        return math.sqrt(variance / max(size - 1.0, 1.0))


@dataclass(frozen=True)
class _Known:
    """What is known of a client.

    Attributes:
        influence: over the rounds in which it was measured, relative to a typical client.
        direction: over all rounds.
        latest: the last influence, as a change of the loss.
    """

    influence: Running = Running()
    direction: Running = Running()
    latest: float = 0.0


class Audit:
    """The audit of a federation, over all rounds.

    Args:
        loss: returns the loss of a model on recent samples of the server, given the round (from 0) and the
            model's arrays by name. Without it, only directions are compared.
        share: of a round's time that the audit may take; at least half a second. If there is not enough time
            to measure the influence of all clients, they take turns.
        memory: the weight of a round, relative to the next one.
        level: the probability with which an honest client is suspected in a round by chance.
        warm_up: the number of rounds before a client can be suspected, unless it returns the model unchanged.

    Attributes:
        seconds: that the last audit took.
    """

    def __init__(
        self,
        loss: Loss | None = None,
        *,
        share: float = 0.1,
        memory: float = 0.95,
        level: float = 2e-4,
        warm_up: int = 4,
    ) -> None:
        for name, value, most in (("share", share, 1.0), ("memory", memory, 1.0), ("level", level, SETTLED)):
            if not 0 < value <= most:
                raise InputError.of(name, f"in (0, {most:g}]", value)
        if warm_up < 2:
            raise InputError.of("warm_up", "an integer >= 2", warm_up)
        self._loss, self._share = loss, share
        self._memory, self._level, self._warm_up = memory, level, warm_up
        self._known: dict[int, _Known] = {}
        self._suspected: set[int] = set()
        self._last = -1  # the client whose influence was measured last
        self.seconds = 0.0

    @property
    def measures_influence(self) -> bool:
        """Whether the server has samples on which updates are measured."""
        return self._loss is not None

    def assess(
        self,
        round: int,
        model: Arrays,
        returned: Mapping[int, Arrays],
        volumes: Mapping[int, int],
        seconds: float = math.inf,
    ) -> dict[int, Score]:
        """Measure the updates of a round; returns the score of every client with samples.

        Args:
            round: t, from 0.
            model: the arrays that were sent out.
            returned: the arrays that clients returned.
            volumes: the number of samples that every client trained on.
            seconds: the time that the round took so far.
        """
        began = time.perf_counter()
        trained = {client: returned[client] for client in sorted(returned) if volumes[client] > 0}
        updates = Updates(round, model, trained, volumes)
        for client, value in updates.directions().items():
            known = self._known.get(client, _Known())
            self._known[client] = replace(known, direction=known.direction.add(value, self._memory))
        self._add_influences(updates, began + max(self._share * seconds, ALLOWANCE))
        reasons = self._suspicions(updates.sizes)
        self.seconds = time.perf_counter() - began
        return {client: self._score(client, volumes[client], reasons.get(client, "")) for client in trained}

    def _add_influences(self, updates: Updates, until: float) -> None:
        """Measure as many clients as there is time for."""
        measured: list[int] = []
        for client in _in_turn(updates.returned, self._last) if self._loss else ():
            if measured and time.perf_counter() > until:
                break
            value = updates.influence(client, self._loss) if self._loss else 0.0
            self._last = client
            if math.isfinite(value):
                measured.append(client)
                self._known[client] = replace(self._known[client], latest=value)
        latest = [abs(self._known[client].latest) for client in updates.returned]
        typical = float(np.median([value for value in latest if value] or [0.0]))
        for client in measured if typical else ():
            known = self._known[client]
            relative = min(max(known.latest / typical, -LARGEST), LARGEST)
            self._known[client] = replace(known, influence=known.influence.add(relative, self._memory))

    def _suspicions(self, sizes: Mapping[int, float]) -> dict[int, str]:
        """The clients that are suspected now, and why."""
        typical = float(np.median([size for size in sizes.values() if size > 0] or [0.0]))
        reasons = {client: _ECHO for client, size in sizes.items() if size < UNCHANGED * typical}
        for client, probability in self._probabilities(sizes).items():
            suspected = client in self._suspected  # to end a suspicion takes more than to avoid it
            limit, doubt = (SETTLED, self._level**2) if suspected else (self._level, self._level)
            if probability < limit and not self._improves(client, doubt):
                reasons.setdefault(client, _LOW.format(probability))
        self._suspected = (self._suspected - set(sizes)) | set(reasons)
        return reasons

    def _improves(self, client: int, doubt: float) -> bool:
        """Whether the influence of a client is shown to be positive, up to a probability."""
        from scipy.stats import norm

        influence = self._known[client].influence
        return influence.mean - float(norm.isf(doubt)) * influence.error > 0

    def _probabilities(self, present: Collection[int]) -> dict[int, float]:
        """How probable it is for an honest client to be as low as each client is."""
        known = {c: k for c, k in self._known.items() if c in present and k.direction.count >= self._warm_up}
        rows = [[each.direction.mean for each in known.values()]]
        if all(each.influence.count >= self._warm_up for each in known.values()):
            rows.append([each.influence.mean for each in known.values()])
        return dict(zip(known, lower_outliers(np.array(rows)).tolist(), strict=True))

    def _score(self, client: int, volume: int, suspicion: str) -> Score:
        influence = self._known[client].influence
        mean, margin = influence.mean, _NORMAL * influence.error
        low, high = max(mean - margin, -LARGEST), min(mean + margin, LARGEST)
        return Score(mean, low, high, suspicion, 0.0 if suspicion else volume * max(mean, 0.0))

    def state(self) -> dict[str, AnyArray]:
        """What must survive a restart, as arrays by name."""
        rows = [
            [*vars(known.influence).values(), *vars(known.direction).values(), known.latest]
            for known in self._known.values()
        ]
        return {
            "clients": np.array(list(self._known), np.int64),
            "known": np.array(rows, np.float64).reshape(len(rows), 11),
            "suspected": np.array(sorted(self._suspected), np.int64),
            "last": np.array(self._last),
        }

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from a state."""
        self._known = {
            client: _Known(Running(*row[:5]), Running(*row[5:10]), row[10])
            for client, row in zip(state["clients"].tolist(), state["known"].tolist(), strict=True)
        }
        self._suspected = set(state["suspected"].tolist())
        self._last = int(state["last"])


def lower_outliers(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How probable it is that each client is as low as it is by chance; 1 for clients that are not low.

    The lowest client is compared with all others, the second lowest with all above it, and so on up to a
    third of all. If the j-th lowest is improbable, so are those below it.

    Args:
        values: of shape (quantities, clients). A client's deviations are averaged over the quantities.
    """
    from scipy.stats import t

    count = values.shape[1]
    probabilities = np.ones(count)
    if count < 4:
        return probabilities
    everyone = np.arange(count)
    alone = [_deviation(values, client, np.delete(everyone, client)) for client in range(count)]
    order = np.argsort(alone, kind="stable")
    for lowest in range(count // 3):
        others = order[lowest + 1 :]
        statistic = _deviation(values, int(order[lowest]), others) / math.sqrt(1 + 1 / len(others))
        below = order[: lowest + 1]
        probabilities[below] = np.minimum(probabilities[below], t.cdf(statistic, len(others) - 1))
    return probabilities


def _deviation(values: npt.NDArray[np.float64], client: int, others: npt.NDArray[np.int64]) -> float:
    """How far a client is above the mean of others, in their standard deviations, on average."""
    peers = values[:, others]
    spread = np.maximum(peers.std(axis=1, ddof=1), 1e-12)
    return float(np.mean((values[:, client] - peers.mean(axis=1)) / spread))


def _in_turn(clients: Iterable[int], last: int) -> list[int]:
    """Clients in order, beginning after the one that was last."""
    ordered = sorted(clients)
    return [client for client in ordered if client > last] + [client for client in ordered if client <= last]
