"""Plugins as a user writes them: SCAFFOLD, a policy, a metric and a loss."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import dufl
from dufl.learning.algorithm import Mean, State, Vector


@dataclass(frozen=True)
class Scaffold:
    """S. P. Karimireddy et al., SCAFFOLD (ICML 2020), with option II for the control variates.

    client   y ← y − η·(g + c − c_k), which is a linear penalty c_k − c
             c_k ← c_k − c + (x − y)/(K·η), K the steps it took
    server   x ← x + η_g·mean(y − x),   c ← c + |P|/N·mean of the changes of c_k
    """

    server_rate: float = 1.0

    def init(self, weights: Vector, num_clients: int, training: dufl.Training) -> State:
        facts = np.array([num_clients, training.learning_rate], np.float32)
        return {"control": np.zeros_like(weights), "facts": facts}

    def penalty(self, state: State, client: int) -> dufl.LocalPenalty:
        own = state.get(f"client {client}", np.zeros_like(state["control"]))
        return dufl.LocalPenalty(linear=np.asarray(own - state["control"], np.float32))

    def apply(self, state: State, weights: Vector, updates: Iterable[dufl.Update]) -> tuple[Vector, State]:
        after, (number, rate) = dict(state), state["facts"]
        mean, change = Mean(), np.zeros(weights.shape)
        for update in updates:
            name = f"client {update.client}"
            own = state.get(name, np.zeros_like(weights))
            new = own - state["control"] + (weights - update.weights) / (update.steps * rate)
            after[name] = new.astype(np.float32)
            change += new - own
            mean.add(update.weights - weights, 1)
        after["control"] = np.asarray(state["control"] + change / number, np.float32)
        moved = mean.value(np.zeros_like(weights))
        return np.asarray(weights + self.server_rate * moved, np.float32), after


class Half:
    """A policy: every client keeps half of its samples and collects the other half anew."""

    def __init__(self, game: dufl.Game, seed: int) -> None:
        self._game = game

    def payment(self, round: int) -> float:
        return 1.0

    def size(self, client: int) -> int:
        return int(self._game.clients.initial_volume[client])

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        return size // 2, size - size // 2

    def planned_staleness(self, round: int) -> float:
        return float("nan")


def top_two(labels: Any, logits: Any) -> float:
    """Whether the label is among the two largest logits."""
    best = np.argsort(logits, axis=1)[:, -2:]
    return float((best == labels[:, None]).any(axis=1).mean())
