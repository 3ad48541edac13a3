"""What a client holds: samples with ages, conserved, discarded, merged and aged in one step a round.

A sample's age is 1 in the round in which it joins and grows by 1 a round; it follows from the round of
its birth, so ageing changes nothing in memory. A step happens whole or, if anything about it is wrong,
not at all.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.samples import Samples
from dufl.errors import CapacityError, InputError

Discard = Literal["uniform", "oldest"]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of a buffer, in the order in which samples joined.

    Attributes:
        samples: features as they were collected, and labels.
        ages: in rounds; 1 is fresh.
        ids: a number for every sample, unique within the client.
    """

    samples: Samples
    ages: Whole
    ids: Whole

    def to_float(
        self, ageing: Ageing | None = None, seed: int = 0, client: int = 0
    ) -> npt.NDArray[np.float32]:
        """Features as float32 in [0, 1], looking their age if an `ageing` says how."""
        if ageing is None:
            return self.samples.to_float()
        places = np.arange(len(self.samples))
        return ageing.add_noise(self.samples.features, places, self.ages, seed, client, self.ids)


class Buffer(Protocol):
    """What every buffer can do, in memory or durable."""

    @property
    def round(self) -> int:
        """How often it has advanced."""
        ...

    @property
    def mean_age(self) -> float:
        """The measured counterpart of the planned staleness; 1 if the buffer is empty."""
        ...

    def __len__(self) -> int: ...

    def advance(self, keep: int, fresh: Samples) -> None:
        """Conserve `keep` samples, discard the others, merge fresh ones, age by a round."""
        ...

    def snapshot(self) -> Snapshot:
        """Everything in it."""
        ...


class MemoryBuffer:
    """A buffer in memory, whose arrays are used again: fresh samples take the places of discarded ones."""

    def __init__(
        self,
        initial: Samples,
        initial_age: npt.ArrayLike = 1,
        *,
        capacity: float = np.inf,
        discard: Discard = "uniform",
        seed: int = 0,
        client: int = 0,
    ) -> None:
        ages = checked_ages(initial, initial_age)
        check_fits(len(initial), capacity)
        self.round = 0
        self._rule = Rule(discard, seed, client)
        self._capacity = capacity
        self._features = initial.features.copy()
        self._labels = initial.labels.copy()
        self._born = 1 - ages
        self._ids = np.arange(len(initial))
        self._size = self._next = len(initial)

    @classmethod
    def restore(
        cls, held: Snapshot, round: int, next_id: int, *, discard: Discard = "uniform", seed: int, client: int
    ) -> "MemoryBuffer":
        """A buffer that goes on where another was: after `round` steps, holding `held`."""
        buffer = cls(held.samples, discard=discard, seed=seed, client=client)
        buffer.round, buffer._next = round, next_id
        buffer._born, buffer._ids = round + 1 - held.ages, held.ids.copy()
        return buffer

    @property
    def next_id(self) -> int:
        """The number that the next sample to join will have."""
        return self._next

    def __len__(self) -> int:
        return self._size

    @property
    def mean_age(self) -> float:
        """The mean age of the samples."""
        return float(self._ages().mean()) if self._size else 1.0

    def _ages(self) -> Whole:
        return self.round + 1 - self._born[: self._size]

    def snapshot(self) -> Snapshot:
        """Everything in it, in the order in which it joined."""
        order = np.argsort(self._ids[: self._size])
        samples = Samples(self._features[order], self._labels[order])
        return Snapshot(samples, self._ages()[order], self._ids[order])

    def advance(self, keep: int, fresh: Samples) -> None:
        """Conserve `keep` samples, discard the others, merge fresh ones, age by a round."""
        check_step(self._size, keep, fresh, self._features.dtype, self._features.shape[1:], self._capacity)
        order = np.argsort(self._ids[: self._size])
        gone = order[self._rule.discarded(self._born[order], keep, self.round)]
        self._reserve(keep + len(fresh))
        end = max(self._size, keep + len(fresh))
        places = np.concatenate([gone, np.arange(self._size, end)])
        filled, holes = places[: len(fresh)], places[len(fresh) :]
        self.round += 1
        self._features[filled] = fresh.features
        self._labels[filled] = fresh.labels
        self._born[filled] = self.round
        self._ids[filled] = self._next + np.arange(len(fresh))
        self._next += len(fresh)
        self._size = keep + len(fresh)
        self._close(holes)

    def _reserve(self, size: int) -> None:
        """Make room for `size` samples, and for half as many again so as not to do it every round."""
        if size <= len(self._labels):
            return
        room = size + size // 2
        for name in ("_features", "_labels", "_born", "_ids"):
            old = getattr(self, name)
            new = np.empty((room, *old.shape[1:]), old.dtype)
            new[: self._size] = old[: self._size]
            setattr(self, name, new)

    def _close(self, holes: npt.NDArray[np.intp]) -> None:
        """Move the last samples into the holes before them."""
        if not len(holes):
            return
        last = np.setdiff1d(np.arange(self._size, self._size + len(holes)), holes)
        into = holes[holes < self._size]
        for array in (self._features, self._labels, self._born, self._ids):
            array[into] = array[last]


@dataclass(frozen=True)
class Rule:
    """Which samples are discarded; random choices depend on (seed, client, round) alone."""

    discard: Discard
    seed: int
    client: int

    def __post_init__(self) -> None:
        if self.discard not in ("uniform", "oldest"):
            raise InputError.of("discard", "one of 'uniform' or 'oldest'", repr(self.discard))

    def discarded(self, born: Whole, keep: int, round: int) -> npt.NDArray[np.intp]:
        """The places to discard, of samples in the order in which they joined."""
        surplus = len(born) - keep
        if self.discard == "oldest":
            return np.argsort(born, kind="stable")[:surplus]
        generator = np.random.default_rng([self.seed, self.client, round + 1, 2])
        return generator.permutation(len(born))[:surplus]


def checked_ages(initial: Samples, age: npt.ArrayLike) -> Whole:
    """The ages of the first samples, one each."""
    ages = np.asarray(age)
    if ages.shape not in ((), (len(initial),)) or (ages < 1).any() or (ages != np.floor(ages)).any():
        raise InputError.of("initial_age", f"whole numbers >= 1, one or {len(initial)}", f"{age!r:.60}")
    return np.array(np.broadcast_to(ages.astype(np.int64), len(initial)))


def check_fits(size: int, capacity: float) -> None:
    """Refuse more samples than the buffer takes."""
    if size > capacity:
        raise CapacityError.of("the samples of a buffer", f"<= its capacity of {capacity:g}", size)


def check_step(
    size: int, keep: int, fresh: Samples, dtype: Any, shape: tuple[int, ...], capacity: float
) -> None:
    """Everything that can be wrong with a step, before anything is done."""
    if not 0 <= keep <= size:
        raise InputError.of("keep", f"between 0 and the {size} samples there are", keep)
    if len(fresh) and (fresh.shape != shape or fresh.features.dtype != dtype):
        raise InputError.of(
            "fresh samples", f"of shape {shape} and type {dtype}", f"{fresh.shape} and {fresh.features.dtype}"
        )
    check_fits(keep + len(fresh), capacity)
