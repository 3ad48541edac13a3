"""A client's buffer: samples with ages, conserved, discarded, merged and aged in one step per round.

A sample has age 1 in the round in which it joins and is one round older in each following round. The age
follows from the round of birth, so ageing changes nothing in memory. A step is applied completely or, if any
argument is invalid, not at all.
"""

from dataclasses import dataclass
from typing import Any, Generic, Protocol

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.discard.discarding import Discard, Discarding
from dufl.data.samples import AnySamples, Samples
from dufl.errors import CapacityError, InputError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Snapshot(Generic[AnySamples]):
    """The content of a buffer, in the order in which samples joined.

    Attributes:
        samples: as they were collected: `Samples`, or `IndexedSamples` in simulation.
        ages: in rounds; 1 is fresh.
        ids: one number per sample, unique within the client.
    """

    samples: AnySamples
    ages: Integers
    ids: Integers

    def to_float(
        self: "Snapshot[Samples]", ageing: Ageing | None = None, seed: int = 0, client: int = 0
    ) -> npt.NDArray[np.float32]:
        """The features as float32; with `ageing`, with the noise of their age."""
        if ageing is None:
            return self.samples.to_float()
        indices = np.arange(len(self.samples))
        return ageing.add_noise(self.samples.features, indices, self.ages, seed, client, self.ids)


class Buffer(Protocol[AnySamples]):
    """The interface of every buffer, in memory or durable."""

    @property
    def round(self) -> int:
        """The number of steps so far."""
        ...

    @property
    def mean_age(self) -> float:
        """The measured counterpart of the planned staleness; 1 if the buffer is empty."""
        ...

    def __len__(self) -> int: ...

    def advance(self, keep: int, fresh: AnySamples) -> None:
        """Conserve `keep` samples, discard the others, merge the fresh ones, age all by one round.

        A rule that discards fresh samples too conserves one more for each of them: the size is the same.
        """
        ...

    def snapshot(self) -> Snapshot[AnySamples]:
        """The current content."""
        ...


class MemoryBuffer(Generic[AnySamples]):
    """A buffer in memory. Its arrays are reused: fresh samples replace discarded ones.

    Args:
        initial: the first samples; `Samples` or `IndexedSamples`. Later ones must be of the same kind.
        initial_age: one age for all of them, or one each.
        capacity: the largest number of samples.
        discard: "uniform", "oldest", "reservoir", "class-balanced", or a rule of your own; see `Discarding`.
        seed: of random discards.
        client: whose buffer it is; random discards differ between clients.
    """

    def __init__(
        self,
        initial: AnySamples,
        initial_age: npt.ArrayLike = 1,
        *,
        capacity: float = np.inf,
        discard: Discard = "uniform",
        seed: int = 0,
        client: int = 0,
    ) -> None:
        ages = checked_ages(len(initial), initial_age)
        check_capacity(len(initial), capacity)
        self.round = 0
        self._discarding = Discarding(discard, seed, client)
        self._discarding.check(initial.labels)
        self._capacity = capacity
        self._kind: type[AnySamples] = type(initial)
        self._content: npt.NDArray[Any] = initial.content.copy()
        self._labels = initial.labels.copy()
        self._born = 1 - ages
        self._ids = np.arange(len(initial))
        self._size = self._next_id = len(initial)

    @classmethod
    def restore(
        cls,
        snapshot: Snapshot[AnySamples],
        round: int,
        next_id: int,
        *,
        discard: Discard = "uniform",
        seed: int,
        client: int,
    ) -> "MemoryBuffer[AnySamples]":
        """A buffer that continues from a snapshot taken after `round` steps."""
        buffer = cls(snapshot.samples, discard=discard, seed=seed, client=client)
        buffer.round, buffer._next_id = round, next_id
        buffer._born, buffer._ids = round + 1 - snapshot.ages, snapshot.ids.copy()
        return buffer

    @property
    def next_id(self) -> int:
        """The id of the next sample that joins."""
        return self._next_id

    def __len__(self) -> int:
        return self._size

    @property
    def mean_age(self) -> float:
        """The mean age of the samples; 1 if there are none."""
        return float(self._ages().mean()) if self._size else 1.0

    def _ages(self) -> Integers:
        return self.round + 1 - self._born[: self._size]

    def snapshot(self) -> Snapshot[AnySamples]:
        """The current content, in the order in which samples joined."""
        order = np.argsort(self._ids[: self._size])
        samples = self._kind(self._content[order], self._labels[order])
        return Snapshot(samples, self._ages()[order], self._ids[order])

    def advance(self, keep: int, fresh: AnySamples) -> None:
        """Conserve `keep` samples, discard the others, merge the fresh ones, age all by one round."""
        check_step(self._size, keep, fresh, self._content.dtype, self._content.shape[1:], self._capacity)
        order = np.argsort(self._ids[: self._size])
        left, joined = self._discarding.step(
            self._born[order], self._labels[order], fresh.labels, keep, self.round, self._next_id
        )
        size, following = keep + len(fresh), self._next_id + len(fresh)
        fresh = fresh if len(joined) == len(fresh) else fresh.take(joined)
        self._reserve(size)
        free = np.concatenate([order[left], np.arange(self._size, max(self._size, size))])
        filled, holes = free[: len(joined)], free[len(joined) :]
        self.round += 1
        self._content[filled] = fresh.content
        self._labels[filled] = fresh.labels
        self._born[filled] = self.round
        self._ids[filled] = self._next_id + joined
        self._next_id, self._size = following, size
        self._close(holes)

    def _reserve(self, size: int) -> None:
        """Allocate memory for `size` samples and half as many again, so that it is not needed every round."""
        if size <= len(self._labels):
            return
        for name in ("_content", "_labels", "_born", "_ids"):
            old: npt.NDArray[Any] = getattr(self, name)
            new = np.empty((size + size // 2, *old.shape[1:]), old.dtype)
            new[: self._size] = old[: self._size]
            setattr(self, name, new)

    def _close(self, holes: npt.NDArray[np.intp]) -> None:
        """Move the last samples into the holes before them."""
        if not len(holes):
            return
        last = np.setdiff1d(np.arange(self._size, self._size + len(holes)), holes)
        into = holes[holes < self._size]
        for array in (self._content, self._labels, self._born, self._ids):
            array[into] = array[last]


def checked_ages(count: int, age: npt.ArrayLike) -> Integers:
    """The ages of the first samples, one each."""
    ages = np.asarray(age)
    if ages.shape not in ((), (count,)) or (ages < 1).any() or (ages != np.floor(ages)).any():
        raise InputError.of("initial_age", f"integers >= 1, one or {count}", f"{age!r:.60}")
    return np.array(np.broadcast_to(ages.astype(np.int64), count))


def check_capacity(size: int, capacity: float) -> None:
    """Raise if a buffer would store more samples than its capacity."""
    if size > capacity:
        raise CapacityError.of("the number of samples", f"<= the capacity {capacity:g} of the buffer", size)


def check_step(size: int, keep: int, fresh: Any, dtype: Any, shape: tuple[int, ...], capacity: float) -> None:
    """Raise if any argument of a step is invalid, before anything changes."""
    if not 0 <= keep <= size:
        raise InputError.of("keep", f"between 0 and {size}, the number of samples", keep)
    if len(fresh) and (fresh.shape != shape or fresh.content.dtype != dtype):
        rule, got = f"of shape {shape} and type {dtype}", f"{fresh.shape} and {fresh.content.dtype}"
        raise InputError.of("fresh samples", rule, got)
    check_capacity(keep + len(fresh), capacity)
