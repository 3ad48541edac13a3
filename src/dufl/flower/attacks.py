"""Clients that cheat with their data: what it does to a model, and whether the audit notices.

The federation is simulated without Flower: clients, data, training, audit and payments are those of a run on
Flower, and messages would not change them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dufl.learning.algorithm import Update, Vector
from dufl.learning.engine import Engine
from dufl.learning.task import Task

Data = Callable[[Task, Task, np.random.Generator], Task]


def _shuffled(task: Task, _: Task, generator: np.random.Generator) -> Task:
    """The labels are shuffled."""
    return replace(task, labels=generator.permutation(task.labels))


def _taken(task: Task, source: Task, rows: Any, ages: Any) -> Task:
    chosen = {name: getattr(source, name)[rows] for name in ("indices", "labels", "ids")}
    return replace(task, ages=ages, **chosen)


def _duplicates(task: Task, _: Task, generator: np.random.Generator) -> Task:
    """One sample of the round, as often as samples are due."""
    rows = np.full(len(task.labels), generator.integers(len(task.labels)))
    return _taken(task, task, rows, task.ages[rows])


def _one_sample(task: Task, first: Task, _: np.random.Generator) -> Task:
    """One sample of the first round, as often as samples are due."""
    rows = np.zeros(len(task.labels), np.int64)
    return _taken(task, first, rows, np.ones(len(rows), np.int64))


def _recycled(task: Task, first: Task, _: np.random.Generator) -> Task:
    """The samples of the first round, sold as fresh."""
    rows = np.resize(np.arange(len(first.labels)), len(task.labels))
    return _taken(task, first, rows, first.ages[rows] + task.round - first.round)


def _honest(task: Task, _: Task, __: np.random.Generator) -> Task:
    """The samples that are due."""
    return task


ATTACKS: Mapping[str, Data] = {
    "none": _honest,
    "shuffled labels": _shuffled,
    "duplicates": _duplicates,
    "one sample": _one_sample,
    "recycled": _recycled,
    "echo": _honest,
    "huge": _honest,
}
FACTOR = 1e6  # of a huge update


class DishonestEngine:
    """An engine in which some clients cheat.

    Args:
        engine: trains.
        attack: the name of an attack.
        cheats: the clients that cheat.
        seed: of what cheats choose at random.
        on_updates: called with the weights that were sent out and the updates of a round; returns the updates
            to aggregate.
    """

    def __init__(
        self,
        engine: Engine,
        attack: str,
        cheats: Collection[int],
        seed: int,
        on_updates: Callable[[int, Vector, list[Update]], list[Update]],
    ) -> None:
        self._engine, self._attack, self._cheats, self._seed = engine, attack, frozenset(cheats), seed
        self._first: dict[int, Task] = {}
        self._on_updates = on_updates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, weights: Vector, model_buffers: Vector, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train every client, on what it says is its data."""
        given = [self._data(task) for task in tasks]
        updates = [
            self._sent(weights, update) for update in self._engine.train(weights, model_buffers, given)
        ]
        yield from self._on_updates(given[0].round, weights, updates) if given else updates

    def _data(self, task: Task) -> Task:
        if task.client not in self._cheats:
            return task
        first = self._first.setdefault(task.client, task)
        generator = np.random.default_rng([self._seed, task.client, task.round + 1, 13])
        return ATTACKS[self._attack](task, first, generator)

    def _sent(self, weights: Vector, update: Update) -> Update:
        if update.client not in self._cheats or self._attack not in ("echo", "huge"):
            return update
        factor = 0.0 if self._attack == "echo" else FACTOR
        return replace(update, weights=(weights + factor * (update.weights - weights)).astype(weights.dtype))
