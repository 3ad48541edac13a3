"""Where fresh samples come from.

A stream has two methods: `collect(count, round)` yields at most `count` samples, fewer if there are no
more now, and `resume(collected)` goes on after so many samples were taken in all. Anything can be one:
the simulated stream and an iterator here, a folder that another program fills in `folder`.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dufl.data.arrival import Arrival
from dufl.data.room import most_samples
from dufl.data.samples import Samples, concatenate
from dufl.errors import InputError
from dufl.inputs import Inputs, NonNegative, Positive, Seed, Whole

BEFORE = -1  # the round in which a client collects what it holds at the start


class Stream(Protocol):
    """What yields fresh samples."""

    def collect(self, count: int, round: int) -> Samples:
        """At most `count` samples, collected in a round."""
        ...

    def resume(self, collected: int) -> None:
        """Go on as if `collected` samples had been taken already."""
        ...


class SimulatedStream(Inputs):
    """Samples of a dataset as they become known over time.

    What is collected depends on (seed, client, round) alone, so there is nothing to resume. Within a round no
    sample comes twice unless more are asked for than there are.

    Attributes:
        pool: the training samples of the dataset.
        client: whose stream it is.
        seed: of the simulation.
        arrival: which classes there are when; all of them if left out.
        skew: the concentration of the Dirichlet distribution from which each client's share of every
            class is drawn; small is very uneven, none (the default) is even.
        drift: the standard deviation, at the end, of a pattern of the client's own that comes to lie over
            its fresh samples as rounds go by; 0 is none.
        num_rounds: over which the drift builds up.
    """

    pool: Samples
    client: Seed = 0
    seed: Seed = 0
    arrival: Arrival | None = None
    dirichlet_alpha: Positive | None = None
    drift: NonNegative = 0.0
    num_rounds: Whole = 100

    def collect(self, count: int, round: int) -> Samples:
        """Draw `count` samples of the classes there are in this round."""
        if count > most_samples():
            rule = f"at most {most_samples():,}, as many as fit into this machine's memory"
            raise InputError.of("the samples to collect", rule, f"{count:,}")
        generator = np.random.default_rng([self.seed, self.client, round + 1, 1])
        chosen = self._draw(generator, count, self._classes(round))
        fresh = self.pool.take(chosen)
        if not self.drift:
            return fresh
        moved = fresh.to_float() + self._pattern * (self.drift * max(round, 0) / self.num_rounds)
        return Samples(moved.astype(np.float32), fresh.labels)

    def resume(self, collected: int) -> None:
        """Nothing to do: a round's samples depend on nothing before it."""

    def _classes(self, round: int) -> npt.NDArray[np.int64]:
        if self.arrival is None:
            return np.arange(len(self._places))
        return self.arrival.classes(round, self.seed, self.client)

    def _draw(
        self, generator: np.random.Generator, count: int, classes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.intp]:
        if self.dirichlet_alpha is None:
            number = self.arrival.num_classes if self.arrival else None
            return _take(generator, _places_of(self.pool, number, tuple(classes.tolist())), count)
        present = [self._places[c] for c in classes if c < len(self._places)]
        share = np.maximum(self._shares[classes], 1e-12)
        numbers = generator.multinomial(count, share / share.sum())
        parts = [_take(generator, places, n) for places, n in zip(present, numbers, strict=True)]
        return np.asarray(generator.permutation(np.concatenate(parts)))

    @property
    def _places(self) -> list[npt.NDArray[np.intp]]:
        """Where the samples of each class are in the pool."""
        return _places(self.pool, self.arrival.num_classes if self.arrival else None)

    @cached_property
    def _shares(self) -> npt.NDArray[np.float64]:
        generator = np.random.default_rng([self.seed, self.client, 0, 4])
        return generator.dirichlet(np.full(len(self._places), self.dirichlet_alpha or 1.0))

    @cached_property
    def _pattern(self) -> npt.NDArray[np.float32]:
        generator = np.random.default_rng([self.seed, self.client, 0, 5])
        return generator.standard_normal(self.pool.shape, dtype=np.float32)


class IteratorStream:
    """Any iterator of samples: single (features, label) pairs, or `Samples`, many at a time.

    It may be asked for one sample at a time, so a slow one is used as far as it has come.
    """

    portion = 1

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = _singly(iter(source))
        self._shape: tuple[int, ...] = (0,)

    def collect(self, count: int, round: int) -> Samples:
        """The next `count` samples, fewer if the iterator ends."""
        taken = [sample for _, sample in zip(range(count), self._source, strict=False)]
        if taken:
            self._shape = taken[0].shape
            return concatenate(taken)
        return Samples(np.zeros((0, *self._shape), np.float32), np.zeros(0, np.int64))

    def resume(self, collected: int) -> None:
        """Pass over what was taken already: the iterator must begin where it began before."""
        for skipped in range(collected):
            if next(self._source, None) is None:
                raise InputError.of(
                    "the iterator", f"able to pass over {collected} samples to resume", f"{skipped}"
                )


def _singly(source: Iterator[Any]) -> Iterator[Samples]:
    for item in source:
        if isinstance(item, Samples):
            yield from (item.take(slice(i, i + 1)) for i in range(len(item)))
        else:
            features, label = item
            yield Samples(np.asarray(features)[None], [label])


@lru_cache(maxsize=4)
def _places(pool: Samples, num_classes: int | None) -> list[npt.NDArray[np.intp]]:
    """Where the samples of each class are; worked out once for all clients of a pool."""
    number = int(pool.labels.max()) + 1 if num_classes is None else num_classes
    order = np.argsort(pool.labels, kind="stable")
    edges = np.searchsorted(pool.labels[order], np.arange(number + 1))
    return [order[a:b] for a, b in pairwise(edges)]


@lru_cache(maxsize=32)
def _places_of(pool: Samples, num_classes: int | None, classes: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Where the samples of some classes are."""
    places = _places(pool, num_classes)
    return np.concatenate([places[c] for c in classes if c < len(places)])


def _take(generator: np.random.Generator, places: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """`count` places drawn at random; each as often as any other, give or take one."""
    if not places.size:
        return places[:0]
    whole, rest = divmod(count, places.size)
    drawn = places[_distinct(generator, places.size, rest)]
    return np.concatenate([*(generator.permutation(places) for _ in range(whole)), drawn])


def _distinct(generator: np.random.Generator, size: int, count: int) -> npt.NDArray[np.int64]:
    """`count` of the numbers below `size`, in random order; of a large size without touching all of it."""
    if 4 * count > size:
        return generator.permutation(size)[:count]
    drawn = np.empty(0, np.int64)
    while True:  # the first distinct ones of independent draws
        drawn = np.concatenate([drawn, generator.integers(size, size=count + count // 4 + 8)])
        first = np.unique(drawn, return_index=True)[1]
        if len(first) >= count:
            return drawn[np.sort(first)[:count]]
