"""The Federated Training Phase of Algorithm 1: rounds of broadcast, local training, aggregation, data update.

    for t = 0 … T−1:  every client trains w(t) on its buffer of D_k(t) samples
                      the server aggregates the updates into w(t+1) and evaluates it
                      every client conserves, discards and merges the samples it collected meanwhile

A federation holds all state between two rounds. `state` returns it as named arrays; another federation
resumes from them with `restore`, with the same results.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.buffer import MemoryBuffer, Snapshot
from dufl.data.client_data import ClientData, Period
from dufl.data.samples import IndexedSamples, Pool, Samples
from dufl.game.parameters import Game
from dufl.game.utility import cost_of_rounds
from dufl.learning.arrivals import Arrivals
from dufl.learning.engine import Engine, Named
from dufl.learning.policies import Policy
from dufl.learning.selection import Candidates, participants
from dufl.learning.settings import Training
from dufl.learning.task import Task

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Replan:
    """The server planned the remaining rounds again.

    Attributes:
        payment: R of the new plan, per round.
        conservation_rate: θ of the new plan.
        old_payment: R before.
        old_conservation_rate: θ before.
        cost: the server's cost of the remaining rounds with the new plan, by the updated law.
        old_cost: the same with the old offer; never less.
        law: the parameters of the updated law, by name.
        observations: the number of measurements that the law was updated with.
        losing_clients: the number of clients with negative utility over the remaining rounds.
        drift: whether the measured loss had left the predicted interval.
    """

    payment: float
    conservation_rate: float
    old_payment: float
    old_conservation_rate: float
    cost: float
    old_cost: float
    law: dict[str, float]
    observations: int
    losing_clients: int
    drift: bool

    @property
    def changed(self) -> bool:
        """Whether the offer is another one."""
        return (self.payment, self.conservation_rate) != (self.old_payment, self.old_conservation_rate)


@dataclass(frozen=True)
class Record:
    """The results of one round.

    Attributes:
        round: t.
        accuracy: on the test samples, after the round; NaN for regression. With recorded data, the test
            samples are those of the round's period.
        loss: mean loss on the test samples, after the round.
        total_volume: the number of samples that all clients hold together.
        mean_age: the measured mean age of these samples.
        planned_staleness: the mean age according to the plan, if buffers discard uniformly; None without a
            plan.
        payment: what the server paid for this round.
        server_cost: the server's cost of this and all earlier rounds, with measured volumes and ages.
        cost_of_payment: the payment term of the cost.
        cost_of_volume: the volume term of the cost: the loss from too little data.
        cost_of_staleness: the staleness term of the cost: the loss from old data.
        classes: the number of classes in the buffers.
        volumes: the number of samples that each client holds.
        participants: the number of clients whose updates were used.
        dropped: the clients that were sampled and did not reply.
        refused: the clients whose updates were not used, with the reason.
        seconds: the duration of the round; the only entry that differs between equal runs.
        metrics: user-defined metrics on the test samples, by name; for regression also `rmse` and `r2`.
        shortfall: the number of samples that should have joined the buffers for this round, and that
            streams did not have.
        period: the recorded time of the round; None if data is not recorded.
        replan: the new plan from this round on; None if the plan stays.
        bounded: on Flower, the clients whose updates were scaled down, with their size relative to the
            median of the round; None if there were none.
        scores: on Flower, the audit's estimate of what each client's updates bring, with its lower and upper
            bound; None without an audit.
        held: on Flower, the clients whose payments were held back, with the reason; None if there were none.
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
    shortfall: int = 0
    period: Period | None = None
    replan: Replan | None = None
    bounded: dict[str, float] | None = None
    scores: dict[str, list[float]] | None = None
    held: dict[str, str] | None = None


class Federation:
    """Clients with their buffers, a server with its model, and the number of completed rounds.

    Clients of multiplicity 0 in the game stay away: they are not sampled and do not count in N.
    """

    def __init__(
        self, game: Game, data: ClientData, policy: Policy, settings: Training, engine: Engine
    ) -> None:
        self.round = 0
        self.weights, self.model_buffers = engine.start
        self._game = game
        self._data = data
        self._policy = policy
        self._settings = settings
        self._engine = engine
        self._algorithm = settings.make_algorithm()
        self._state = self._algorithm.init(self.weights, game.clients.size, settings)
        self._members = np.flatnonzero(game.clients.multiplicity)  # those that take part
        self._streams = [data.stream(k) for k in range(game.clients.size)]
        self._background = ThreadPoolExecutor(1)  # collects and evaluates
        self._history = np.zeros((3, game.num_rounds))  # payment, total volume and mean age of every round
        self._missing = 0  # samples of this round that streams did not have
        self._replied = np.full(game.clients.size, -1)  # the last round in which each client replied
        self._buffers: list[MemoryBuffer[IndexedSamples]] = []

    def begin(self) -> None:
        """Collect the initial samples, unless the federation has begun or was restored."""
        if self._buffers:
            return
        clients = range(self._game.clients.size)
        sizes = [self._policy.size(k) for k in clients]
        self._check_memory(sizes, 0)
        staleness = self._game.clients.initial_staleness.tolist()
        self._buffers = [self._data.buffer(k, sizes[k], staleness[k], self._streams[k]) for k in clients]
        self._missing = sum(sizes) - sum(map(len, self._buffers))

    @property
    def done(self) -> bool:
        """Whether all rounds are completed."""
        return self.round == self._game.num_rounds

    def play(self) -> Record:
        """Run one round, from broadcast to data update."""
        began = time.perf_counter()
        self.begin()
        snapshots = [buffer.snapshot() for buffer in self._buffers]
        replying, dropped = self._participants(snapshots)
        fresh = self._background.submit(self._collect)  # while the clients train
        tasks = (self._task(k, snapshots[k]) for k in replying if len(snapshots[k].ages))
        updates = self._engine.train(self.weights, self.model_buffers, tasks)
        with Arrivals(updates, len(self.weights)) as arrivals:
            weights, state = self._algorithm.apply(self._state, self.weights, arrivals)
        self.weights, self._state = weights, state
        self.model_buffers = arrivals.model_buffers.value(self.model_buffers)
        which = self._data.test_range(self.round)
        evaluation = self._background.submit(self._engine.evaluate, self.weights, self.model_buffers, which)
        accounts = self._account(snapshots, bool(arrivals.used))
        shortfall = self._missing
        collected, self._missing = fresh.result()
        self._update_data(collected)
        score = evaluation.result()
        self.round += 1
        return Record(
            accuracy=score.accuracy,
            loss=score.loss,
            participants=len(arrivals.used),
            dropped=dropped,
            refused=arrivals.refused,
            seconds=time.perf_counter() - began,
            metrics=score.metrics,
            shortfall=shortfall,
            period=self._data.period(self.round - 1),
            **accounts,
        )

    def _participants(self, snapshots: list[Snapshot[IndexedSamples]]) -> tuple[list[int], list[int]]:
        """The selected clients that reply, and those that do not."""
        volumes = np.array([float(len(snapshots[k].ages)) for k in self._members])
        candidates = Candidates(self._members, volumes, self.round - self._replied[self._members])
        number = len(snapshots)
        replying, dropped = participants(self._settings, number, self.round, candidates, self._members)
        self._replied[replying] = self.round
        return replying, dropped

    def _task(self, client: int, snapshot: Snapshot[IndexedSamples]) -> Task:
        penalty = self._algorithm.penalty(self._state, client)
        samples = snapshot.samples
        return Task(client, self.round, samples.indices, samples.labels, snapshot.ages, snapshot.ids, penalty)

    def _account(self, snapshots: list[Snapshot[IndexedSamples]], paid: bool) -> dict[str, Any]:
        """The fields of the record on data, payment and cost."""
        t, policy = self.round, self._policy
        volumes = [len(snapshot.ages) for snapshot in snapshots]
        total = sum(volumes)
        age = sum(int(snapshot.ages.sum()) for snapshot in snapshots) / total if total else 1.0
        self._history[:, t] = policy.payment(t) if paid else 0.0, total, age
        cost = cost_of_rounds(self._game, *self._history[:, : t + 1])
        planned = policy.planned_staleness(t)
        present = np.zeros(0 if self._data.regression else self._data.num_classes, bool)
        for snapshot in snapshots if len(present) else []:
            present[snapshot.samples.labels] = True
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

    def _collect(self) -> tuple[list[tuple[int, IndexedSamples]], int]:
        """How many samples every client conserves and what it collects, and the number of missing samples.

        Nothing is collected after the last round.
        """
        if self.round + 1 == self._game.num_rounds:
            return [], 0
        steps = [self._policy.step(k, self.round, len(buffer)) for k, buffer in enumerate(self._buffers)]
        self._check_memory([keep + count for keep, count in steps], self.round + 1)
        collected, missing = [], 0
        for stream, (keep, count) in zip(self._streams, steps, strict=True):
            fresh = stream.collect(count, self.round) if count else IndexedSamples([], [])
            collected.append((keep, fresh))
            missing += count - len(fresh)
        return collected, missing

    def held(self) -> tuple[list[int], list[int]]:
        """The number of samples of every client, and the sum of their ages; in the next round."""
        snapshots = [buffer.snapshot() for buffer in self._buffers]
        return [len(s.ages) for s in snapshots], [int(s.ages.sum()) for s in snapshots]

    def _check_memory(self, sizes: list[int], round: int) -> None:
        self._data.check_memory(sizes, f"in round {round} by the policy")

    def _update_data(self, collected: list[tuple[int, IndexedSamples]]) -> None:
        """Every buffer conserves, discards, merges and ages."""
        for buffer, (keep, fresh) in zip(self._buffers, collected, strict=bool(collected)):
            buffer.advance(keep, fresh)

    def named(self) -> Named:
        """The weights of the model, by name."""
        return self._engine.named(self.weights, self.model_buffers)

    def state(self) -> Arrays:
        """All state that the next rounds depend on, as named arrays."""
        snapshots = [buffer.snapshot() for buffer in self._buffers]
        return {
            "round": np.array(self.round),
            "weights": self.weights,
            "model_buffers": self.model_buffers,
            "history": self._history,
            "missing": np.array(self._missing),
            "sizes": np.array([len(snapshot.ages) for snapshot in snapshots]),
            "next_ids": np.array([buffer.next_id for buffer in self._buffers]),
            "indices": np.concatenate([snapshot.samples.indices for snapshot in snapshots]),
            "ages": np.concatenate([snapshot.ages for snapshot in snapshots]),
            "ids": np.concatenate([snapshot.ids for snapshot in snapshots]),
            **{f"algorithm {name}": vector for name, vector in self._state.items()},
            **({"replied": self._replied.copy()} if self._settings.client_selection == "age" else {}),
            **self._added(),
        }

    def _added(self) -> Arrays:
        """The samples that streams of the user's own brought, and how many each client got."""
        pool = self._data.pool
        if not isinstance(pool, Pool) or not len(pool.added):
            return {}
        return {
            "added_features": pool.added.features,
            "added_labels": pool.added.labels,
            "collected": np.array([stream.collected for stream in self._streams]),
        }

    def restore(self, state: Arrays) -> None:
        """Resume from the state of another federation with the same configuration."""
        for name, like in (
            ("weights", self.weights),
            ("model_buffers", self.model_buffers),
            ("history", self._history),
            *((("replied", self._replied),) if self._settings.client_selection == "age" else ()),
        ):
            if state[name].shape != like.shape:
                raise ValueError(f"{name} of shape {state[name].shape}, not {like.shape}")
        self.round, self._missing = int(state["round"]), int(state["missing"])
        self.weights, self.model_buffers, self._history = (
            state["weights"],
            state["model_buffers"],
            state["history"],
        )
        self._replied = np.array(state.get("replied", self._replied))
        self._state = {
            name.removeprefix("algorithm "): vector
            for name, vector in state.items()
            if name.startswith("algorithm ")
        }
        pool = self._data.pool
        if "collected" in state and isinstance(pool, Pool):
            pool.add(Samples(state["added_features"], state["added_labels"]))
            for stream, collected in zip(self._streams, state["collected"].tolist(), strict=True):
                stream.resume(collected)
        edges = np.cumsum(state["sizes"])[:-1]
        indices, ages, ids = (np.split(state[name], edges) for name in ("indices", "ages", "ids"))
        labels, advanced = self._data.pool.labels, min(self.round, self._game.num_rounds - 1)
        self._buffers = []
        for k, next_id in enumerate(state["next_ids"]):
            snapshot = Snapshot(IndexedSamples(indices[k], labels[indices[k]]), ages[k], ids[k])
            self._buffers.append(self._data.restore(k, snapshot, advanced, int(next_id)))
