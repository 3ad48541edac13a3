"""Buffers of chosen sizes and ages from an experiment's data, and the stream to compare them with.

In round t a sample of age a was collected in round t − a; the oldest have age t + 1 and are initial samples.
A buffer that keeps the share θ of its samples has a staleness of S = 1/(1 − θ) and samples of age a in
proportion to θ^(a−1): the *mixed* ages that buffers have in the steady state.

The variance of a mean over n of P samples, drawn without repetition, is s²·(1/n − 1/P). With n_a samples of
age a, D = Σ n_a, and M samples that stand for the stream, the squared distance of two means is s² times

    1/D − Σ (n_a/D)²/P + 1/M − 1/P.

A simulated stream has P samples; a recorded one is itself a sample, and P is infinite.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.data.client_data import ClientData
from dufl.data.replay import Replay

Integers = npt.NDArray[np.int64]
Ages = Literal["mixed", "equal"]
STREAM = 4096  # samples that stand for a client's whole stream


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples as a client has them in a round.

    Attributes:
        features: of shape (samples, features), with the noise of their ages.
        labels: one per sample.
        ages: one per sample.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[Any]
    ages: Integers

    @property
    def staleness(self) -> float:
        """S, the mean age."""
        return float(self.ages.mean())

    @property
    def concentration(self) -> float:
        """Σ (n_a/D)²: 1 if all samples are from one round."""
        return float(np.sum((np.bincount(self.ages) / len(self)) ** 2))

    def __len__(self) -> int:
        return len(self.labels)


class Buffers:
    """Draws buffers.

    Args:
        data: of the federation; without a stream of the user's own.
        ages: whether the samples of a buffer have mixed ages, or all the same.
    """

    def __init__(self, data: ClientData, ages: Ages = "mixed") -> None:
        self._data, self._ages = data, ages
        self.available = cache(self._available)
        self._size = cache(self._count)

    def _available(self, client: int, round: int) -> Integers:
        """Indices of samples that a client can collect in a round, in random order."""
        data = self._data
        if not isinstance(data, Replay):
            return data.source(client).collect(min(STREAM, self._size(client, round)), round).indices
        if data.recording.clients is None and data.deal == "even" and data.dirichlet_alpha is None:
            period = data.timeline.period(round)  # clients differ by chance only: take all that was recorded
            there = np.arange(period.start, period.stop)
        else:
            there = data.collectable(client, round)
        generator = np.random.default_rng([data.seed, client, round + 1, 14])
        return generator.permutation(there)

    def _count(self, client: int, round: int) -> int:
        """How many different samples a client can collect in a round of a simulation."""
        everything = self._data.source(client).collect(len(self._data.pool), round)
        return len(np.unique(everything.indices))

    def population(self, client: int, round: int) -> float:
        """P, the size of a client's stream."""
        return np.inf if isinstance(self._data, Replay) else float(self._size(client, round))

    def stream(self, client: int, round: int) -> Drawn:
        """A large fresh sample of what a client can collect in a round; empty if there is nothing."""
        indices = self.available(client, round)[:STREAM]
        fresh = np.ones(len(indices), np.int64)
        return self._drawn(client, indices, fresh, np.arange(len(indices)))

    def draw(
        self, client: int, round: int, volume: int, staleness: float, generator: np.random.Generator
    ) -> Drawn:
        """A buffer; it has fewer samples if fewer were recorded."""
        numbers = self._numbers(round, volume, staleness, generator)
        indices, ages = [], []
        for age in np.flatnonzero(numbers) + 1:
            there = self.available(client, round - int(age))
            taken = min(int(numbers[age - 1]), len(there))
            indices.append(there[generator.choice(len(there), taken, replace=False, shuffle=False)])
            ages.append(np.full(taken, age))
        joined = np.concatenate(indices)
        ids = generator.integers(2**62, size=len(joined))  # every sample has noise of its own
        return self._drawn(client, joined, np.concatenate(ages), ids)

    def _numbers(
        self, round: int, volume: int, staleness: float, generator: np.random.Generator
    ) -> npt.NDArray[Any]:
        """The number of samples of every age, from 1 to t + 1."""
        if self._ages == "equal":
            return np.where(np.arange(1, round + 2) == int(staleness), volume, 0)
        shares = (1 - 1 / staleness) ** np.arange(round + 1)
        return generator.multinomial(volume, shares / shares.sum())

    def _drawn(self, client: int, indices: Integers, ages: Integers, ids: Integers) -> Drawn:
        data, count = self._data, len(indices)
        features = data.ageing.add_noise(data.pool.features, indices, ages, data.seed, client, ids)
        flat = features.reshape(count, math.prod(features.shape[1:]))
        return Drawn(flat, data.pool.labels[indices], ages)
