"""The Federated Training Phase of Algorithm 1: rounds of broadcast, local training, aggregation, data update.

    for t = 0 … T−1:  every client trains w(t) on its buffer of D_k(t) samples
                      the server makes w(t+1) of the answers and tests it
                      every client conserves, discards and merges what it collected in the meantime

A federation is all the state between two rounds. `state` gives it as named arrays, and one that takes
them over goes on as the first would have.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.buffer import Snapshot
from dufl.data.samples import IndexedSamples
from dufl.data.simulation import Simulation
from dufl.game.parameters import Game
from dufl.game.utility import cost_of_rounds
from dufl.learning.arrivals import Arrivals
from dufl.learning.engine import Engine, Named
from dufl.learning.policies import Policy
from dufl.learning.settings import Training
from dufl.learning.task import Task

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Record:
    """What is known of a round once it is over.

    Attributes:
        round: t.
        accuracy: on the test samples, after the round.
        loss: likewise.
        total_volume: how many samples all clients hold together.
        mean_age: their mean age, measured.
        planned_staleness: what the plan says it should be; None without one.
        payment: what the server paid for this round.
        server_cost: the server's cost of this and all earlier rounds, with measured volumes and ages.
        cost_of_payment: the part of it that is money.
        cost_of_volume: the part of it that too little data costs.
        cost_of_staleness: the part of it that old data cost.
        classes: how many classes there are in the buffers.
        volumes: how many samples each client holds.
        participants: how many clients' updates were used.
        dropped: the clients that should have answered and did not.
        refused: the clients whose update was not used, and why.
        seconds: how long the round took; the only entry that differs between equal runs.
        metrics: the user's own metrics on the test samples, by name.
    """

    round: int
    accuracy: float
    loss: float
    total_volume: int
    mean_age: float
    planned_staleness: float | None
    payment: float
    server_cost: float
    cost_of_payment: float
    cost_of_volume: float
    cost_of_staleness: float
    classes: int
    volumes: list[int]
    participants: int
    dropped: list[int]
    refused: dict[str, str]
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


class Federation:
    """Clients with buffers, a server with a model, and the rounds they have come through."""

    def __init__(
        self, game: Game, simulation: Simulation, policy: Policy, settings: Training, engine: Engine
    ) -> None:
        self.round = 0
        self.weights, self.model_buffers = engine.start
        self._game = game
        self._simulation = simulation
        self._policy = policy
        self._settings = settings
        self._engine = engine
        self._algorithm = settings.make_algorithm()
        self._state = self._algorithm.init(self.weights, game.clients.size, settings)
        self._streams = [simulation.stream(k) for k in range(game.clients.size)]
        sizes = [policy.size(k) for k in range(game.clients.size)]
        self._check_memory(sizes, 0)
        self._held = [
            simulation.buffer(k, size, float(game.clients.initial_staleness[k]))
            for k, size in enumerate(sizes)
        ]
        self._aside = ThreadPoolExecutor(1)  # for what need not be waited for
        self._history = np.zeros((3, game.num_rounds))  # payment, total volume and mean age of every round

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return self.round == self._game.num_rounds

    def play(self) -> Record:
        """One round, from broadcast to data update."""
        began = time.perf_counter()
        held = [buffer.snapshot() for buffer in self._held]
        called, dropped = participants(self._settings, self._game.clients.size, self.round)
        fresh = self._aside.submit(self._collect)  # while the clients train
        tasks = (self._task(k, held[k]) for k in called if len(held[k].ages))
        updates = self._engine.train(self.weights, self.model_buffers, tasks)
        with Arrivals(updates, len(self.weights)) as arrivals:
            weights, state = self._algorithm.apply(self._state, self.weights, arrivals)
        self.weights, self._state = weights, state
        self.model_buffers = arrivals.model_buffers.value(self.model_buffers)
        tested = self._aside.submit(self._engine.evaluate, self.weights, self.model_buffers)
        facts = self._account(held, bool(arrivals.used))
        self._update_data(fresh.result())
        score = tested.result()
        self.round += 1
        return Record(
            accuracy=score.accuracy,
            loss=score.loss,
            participants=len(arrivals.used),
            dropped=dropped,
            refused=arrivals.refused,
            seconds=time.perf_counter() - began,
            metrics=score.metrics,
            **facts,
        )

    def _task(self, client: int, held: Snapshot[IndexedSamples]) -> Task:
        penalty = self._algorithm.penalty(self._state, client)
        samples = held.samples
        return Task(client, self.round, samples.indices, samples.labels, held.ages, held.ids, penalty)

    def _account(self, held: list[Snapshot[IndexedSamples]], paid: bool) -> dict[str, Any]:
        """What the round says of data and money."""
        t, policy = self.round, self._policy
        volumes = [len(part.ages) for part in held]
        total = sum(volumes)
        age = sum(int(part.ages.sum()) for part in held) / total if total else 1.0
        self._history[:, t] = policy.payment(t) if paid else 0.0, total, age
        cost = cost_of_rounds(self._game, *self._history[:, : t + 1])
        planned = policy.planned_staleness(t)
        present = np.zeros(self._simulation.arrival.num_classes, bool)
        for part in held:
            present[part.samples.labels] = True
        return {
            "round": t,
            "total_volume": total,
            "mean_age": age,
            "planned_staleness": None if np.isnan(planned) else planned,
            "payment": float(self._history[0, t]),
            "server_cost": cost.total,
            "cost_of_payment": float(cost.payment.sum()),
            "cost_of_volume": float(cost.volume.sum()),
            "cost_of_staleness": float(cost.staleness.sum()),
            "classes": int(present.sum()),
            "volumes": volumes,
        }

    def _collect(self) -> list[tuple[int, IndexedSamples]]:
        """How many samples every client conserves, and what it collects; nothing after the last round."""
        if self.round + 1 == self._game.num_rounds:
            return []
        steps = [self._policy.step(k, self.round, len(buffer)) for k, buffer in enumerate(self._held)]
        self._check_memory([keep + asked for keep, asked in steps], self.round + 1)
        found = []
        for stream, (keep, asked) in zip(self._streams, steps, strict=True):
            found.append((keep, stream.collect(asked, self.round) if asked else IndexedSamples([], [])))
        return found

    def _check_memory(self, sizes: list[int], round: int) -> None:
        self._simulation.check_memory(sizes, f"in round {round} by the policy")

    def _update_data(self, collected: list[tuple[int, IndexedSamples]]) -> None:
        """Every buffer conserves, discards, merges and ages."""
        for buffer, (keep, fresh) in zip(self._held, collected, strict=bool(collected)):
            buffer.advance(keep, fresh)

    def named(self) -> Named:
        """The model, by the names of its parameters."""
        return self._engine.named(self.weights, self.model_buffers)

    def state(self) -> Arrays:
        """Everything that the next rounds depend on."""
        held = [buffer.snapshot() for buffer in self._held]
        return {
            "round": np.array(self.round),
            "weights": self.weights,
            "model_buffers": self.model_buffers,
            "history": self._history,
            "sizes": np.array([len(part.ages) for part in held]),
            "next_ids": np.array([buffer.next_id for buffer in self._held]),
            "indices": np.concatenate([part.samples.indices for part in held]),
            "ages": np.concatenate([part.ages for part in held]),
            "ids": np.concatenate([part.ids for part in held]),
            **{f"algorithm {name}": vector for name, vector in self._state.items()},
        }

    def restore(self, state: Arrays) -> None:
        """Go on where another federation of the same configuration was."""
        for name, like in (
            ("weights", self.weights),
            ("model_buffers", self.model_buffers),
            ("history", self._history),
        ):
            if state[name].shape != like.shape:
                raise ValueError(f"{name} of shape {state[name].shape}, not {like.shape}")
        self.round = int(state["round"])
        self.weights, self.model_buffers, self._history = (
            state["weights"],
            state["model_buffers"],
            state["history"],
        )
        self._state = {
            name.removeprefix("algorithm "): vector
            for name, vector in state.items()
            if name.startswith("algorithm ")
        }
        edges = np.cumsum(state["sizes"])[:-1]
        indices, ages, ids = (np.split(state[name], edges) for name in ("indices", "ages", "ids"))
        labels, advanced = self._simulation.pool.labels, min(self.round, self._game.num_rounds - 1)
        for k, next_id in enumerate(state["next_ids"]):
            held = Snapshot(IndexedSamples(indices[k], labels[indices[k]]), ages[k], ids[k])
            self._held[k] = self._simulation.restore(k, held, advanced, int(next_id))


def participants(settings: Training, number: int, round: int) -> tuple[list[int], list[int]]:
    """Who of so many clients is called and answers in a round, and who is called and does not."""
    called = np.arange(number)
    if settings.fraction_train < 1:
        generator = np.random.default_rng([settings.seed, round + 1, 9])
        count = max(1, int(np.rint(settings.fraction_train * number)))
        called = np.sort(generator.choice(number, count, replace=False))
    if not settings.client_dropout:
        return called.tolist(), []
    generator = np.random.default_rng([settings.seed, round + 1, 8])
    silent = generator.random(number)[called] < settings.client_dropout
    return called[~silent].tolist(), called[silent].tolist()
