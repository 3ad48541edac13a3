"""Sources of fresh samples.

A stream has two methods: `collect(count, round)` returns at most `count` samples, and `resume(collected)`
continues after `collected` samples in total. The simulated stream draws from a dataset, the iterator stream
from any Python iterator, the folder stream from a folder that another program fills. A stream that can tell
its position has the methods of `dufl.data.live.positions.Positioned` as well.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dufl.data.arrival import Arrival
from dufl.data.samples import IndexedSamples, Indices, Samples, concatenate, max_samples
from dufl.errors import InputError
from dufl.inputs import Inputs, NonNegative, Positive, Seed, Whole

BEFORE = -1  # the round in which a client collects its initial samples

Yields = TypeVar("Yields", Samples, IndexedSamples, covariant=True)


class Stream(Protocol[Yields]):
    """A source of fresh samples."""

    def collect(self, count: int, round: int) -> Yields:
        """At most `count` samples, collected in a round; fewer if no more are available yet."""
        ...

    def resume(self, collected: int) -> None:
        """Continue as if `collected` samples had been collected already."""
        ...


class SimulatedStream(Inputs):
    """Samples of a dataset as they become available over time.

    What is collected depends on (seed, client, round) alone, so there is nothing to resume. Within a round no
    sample is repeated unless more are requested than there are.

    Attributes:
        pool: the training samples of the dataset.
        client: whose stream it is.
        seed: of the simulation.
        arrival: which classes are available in a round; all of them if None.
        dirichlet_alpha: the concentration of the Dirichlet distribution from which each client's class
            proportions are drawn; small values are very uneven, None is even.
        drift: the standard deviation, after all rounds, of a pattern of the client's own that is added to its
            fresh samples and grows over the rounds; 0 is none.
        num_rounds: over which the drift grows.
    """

    repeatable: ClassVar[bool] = True  # the samples of a round can be collected again

    pool: Samples
    client: Seed = 0
    seed: Seed = 0
    arrival: Arrival | None = None
    dirichlet_alpha: Positive | None = None
    drift: NonNegative = 0.0
    num_rounds: Whole = 100

    def collect(self, count: int, round: int) -> Samples:
        """Draw `count` samples of the classes that are available in this round."""
        fresh = self.pool.take(self.indices(count, round))
        if not self.drift:
            return fresh
        moved = fresh.to_float() + self._pattern * (self.drift * max(round, 0) / self.num_rounds)
        return Samples(moved.astype(np.float32), fresh.labels)

    def indices(self, count: int, round: int) -> Indices:
        """The indices in the pool of the samples that `collect` returns."""
        if count > max_samples():
            rule = f"at most {max_samples():,}, as many as fit into this machine's memory"
            raise InputError.of("count", rule, f"{count:,}")
        generator = np.random.default_rng([self.seed, self.client, round + 1, 1])
        if self.dirichlet_alpha is None:
            number = self.arrival.num_classes if self.arrival else None
            return _draw(
                generator, _indices_of(self.pool, number, tuple(self._classes(round).tolist())), count
            )
        classes = self._classes(round)
        present = [self._by_class[c] for c in classes if c < len(self._by_class)]
        share = np.maximum(self._shares[classes], 1e-12)
        numbers = generator.multinomial(count, share / share.sum())
        parts = [_draw(generator, indices, n) for indices, n in zip(present, numbers, strict=True)]
        return np.asarray(generator.permutation(np.concatenate(parts)))

    def resume(self, collected: int) -> None:
        """Nothing to do: the samples of a round do not depend on earlier rounds."""

    def _classes(self, round: int) -> npt.NDArray[np.int64]:
        if self.arrival is None:
            return np.arange(len(self._by_class))
        return self.arrival.classes(round, self.seed, self.client)

    @property
    def _by_class(self) -> list[Indices]:
        return _indices_by_class(self.pool, self.arrival.num_classes if self.arrival else None)

    @cached_property
    def _shares(self) -> npt.NDArray[np.float64]:
        generator = np.random.default_rng([self.seed, self.client, 0, 4])
        return generator.dirichlet(np.full(len(self._by_class), self.dirichlet_alpha or 1.0))

    @cached_property
    def _pattern(self) -> npt.NDArray[np.float32]:
        generator = np.random.default_rng([self.seed, self.client, 0, 5])
        return generator.standard_normal(self.pool.shape, dtype=np.float32)


@lru_cache(maxsize=4)
def _indices_by_class(pool: Samples, num_classes: int | None) -> list[Indices]:
    """The indices of the samples of each class; computed once for all clients of a pool."""
    number = int(pool.labels.max()) + 1 if num_classes is None else num_classes
    order = np.argsort(pool.labels, kind="stable")
    edges = np.searchsorted(pool.labels[order], np.arange(number + 1))
    return [order[a:b] for a, b in pairwise(edges)]


@lru_cache(maxsize=32)
def _indices_of(pool: Samples, num_classes: int | None, classes: tuple[int, ...]) -> Indices:
    """The indices of the samples of some classes."""
    by_class = _indices_by_class(pool, num_classes)
    return np.concatenate([by_class[c] for c in classes if c < len(by_class)])


def _draw(generator: np.random.Generator, indices: Indices, count: int) -> Indices:
    """`count` of the indices at random; each as often as any other, or once more."""
    if not indices.size:
        return indices[:0]
    repeats, rest = divmod(count, indices.size)
    drawn = indices[_distinct(generator, indices.size, rest)]
    return np.concatenate([*(generator.permutation(indices) for _ in range(repeats)), drawn])


def _distinct(generator: np.random.Generator, size: int, count: int) -> Indices:
    """`count` different integers below `size` in random order; for a large `size`, in O(count)."""
    if 4 * count > size:
        return generator.permutation(size)[:count]
    drawn = np.empty(0, np.int64)
    while True:  # the first distinct ones of independent draws
        drawn = np.concatenate([drawn, generator.integers(size, size=count + count // 4 + 8)])
        first = np.unique(drawn, return_index=True)[1]
        if len(first) >= count:
            return drawn[np.sort(first)[:count]]


class IteratorStream:
    """Any iterator of single (features, label) pairs or of `Samples`.

    A `Collector` requests one sample at a time (`portion`), so that the samples of a slow iterator are used
    as they come.
    """

    portion = 1

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = _one_by_one(iter(source))
        self._shape: tuple[int, ...] = (0,)

    def collect(self, count: int, round: int) -> Samples:
        """The next `count` samples; fewer if the iterator ends."""
        taken = [sample for _, sample in zip(range(count), self._source, strict=False)]
        if taken:
            self._shape = taken[0].shape
            return concatenate(taken)
        return Samples(np.zeros((0, *self._shape), np.float32), np.zeros(0, np.int64))

    def resume(self, collected: int) -> None:
        """Skip the samples collected before; the iterator must start where it started then."""
        for skipped in range(collected):
            if next(self._source, None) is None:
                rule = f"an iterator of at least the {collected} samples collected before"
                raise InputError.of("source", rule, f"{skipped}")


def _one_by_one(source: Iterator[Any]) -> Iterator[Samples]:
    for item in source:
        if isinstance(item, Samples):
            yield from (item.take(slice(i, i + 1)) for i in range(len(item)))
        else:
            features, label = item
            yield Samples(np.asarray(features)[None], [label])
