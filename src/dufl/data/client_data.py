"""The data of a federation: a pool of samples, and for each client a stream and a buffer of indices into it.

`Simulation` lets a dataset arrive and age; `Replay` uses recorded samples when they were recorded. Streams
and buffers contain `IndexedSamples`: the indices of samples in the pool, eight bytes each, and their labels.
Features are computed from them when they are needed. A thousand clients need little more memory than the
pool, and a worker process receives only indices.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.buffer import MemoryBuffer, Snapshot
from dufl.data.discard.discarding import Discard, plugin_name
from dufl.data.samples import IndexedSamples, Pool, Samples, max_samples
from dufl.data.streams import BEFORE
from dufl.errors import InputError
from dufl.plugins import calling


class IndexSource(Protocol):
    """A stream of your own for training: chooses samples of the pool, or brings samples of its own.

    One that brings samples is a `Stream`: it also has a method `resume(collected)`.
    """

    def collect(self, count: int, round: int) -> npt.ArrayLike | Samples:
        """At most `count` indices of samples, or `Samples`; `round` is −1 for the initial samples."""
        ...


StreamFactory = Callable[[Samples, int, int], IndexSource]


@dataclass(frozen=True)
class Period:
    """The recorded time of a round.

    Attributes:
        begin: the time at which it begins: a number, or seconds since 1970 if it is a date.
        end: the time at which it ends.
        dated: whether times are dates.
        samples: the number of samples that the model was tested on.
        no_change: the accuracy of predicting the previous label; for regression, its RMSE.
        majority: the accuracy of predicting the most frequent label so far; for regression, the RMSE of
            predicting the mean so far.
    """

    begin: float
    end: float
    dated: bool
    samples: int
    no_change: float
    majority: float


class ClientData(ABC):
    """What a federation and its engine need to know about data.

    Attributes:
        pool: the samples that clients train on.
        test: the samples that models are tested on.
        ageing: how stored samples age.
        seed: of everything random.
        discard: which samples a buffer discards; see `Discarding`.
        make_stream: called as `make_stream(pool, client, seed)` to create a client's `IndexSource`, which
            replaces the stream of `source`. The indices that it collects must depend on (seed, client, round)
            alone if a run is to be resumed. Samples that it collects are added to the pool, a `Pool`.
    """

    pool: Samples
    test: Samples
    ageing: Ageing
    seed: int
    discard: Discard
    make_stream: StreamFactory | None

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """The number of outputs of a model: one per class, or one for regression."""

    @abstractmethod
    def source(self, client: int) -> "IndexedStream":
        """What a client can collect, unless it has a stream of the user's own."""

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return self.pool.labels.dtype.kind == "f"

    def test_range(self, round: int) -> slice:
        """The test samples of a round: all of them, unless data is recorded."""
        return slice(0, len(self.test))

    def recent_test(self, round: int, count: int) -> npt.NDArray[np.int64]:
        """At most `count` test samples like those that clients can have in a round, evenly spread."""
        which = self.test_range(round)
        return spread(np.arange(which.start, which.stop), count)

    def period(self, round: int) -> Period | None:
        """The recorded time of a round; None if data is not recorded."""
        return None

    def known(self, round: int) -> int:
        """The number of samples, from the first of the pool, that can be collected in a round."""
        return len(self.pool)

    def stream(self, client: int) -> "IndexedStream":
        """What a client can collect."""
        if self.make_stream is None:
            return self.source(client)
        source = self.make_stream(self.pool, client, self.seed)
        name = plugin_name(self.make_stream)
        if not callable(getattr(source, "collect", None)):
            rule = "an object with a method collect(count, round)"
            raise InputError.of(f"stream {name!r}", rule, type(source).__name__)
        return OwnStream(source, self.pool, name, self.known, self.num_classes)

    def discarding(self, rule: Discard | None) -> Self:
        """The same data with another discard rule; unchanged without one."""
        return self if rule is None else replace(self, discard=rule)  # type: ignore[type-var]

    def check_memory(self, sizes: Sequence[int], cause: str) -> None:
        """Raise if buffers are too large to be trained on in this machine's memory.

        Args:
            sizes: the number of samples of every client.
            cause: appended to the field of the error: in which round, and by which policy.
        """
        fits = "as many as fit into this machine's memory"
        largest = max_samples(math.prod(self.pool.shape))  # the features of one client are in memory at once
        for client, size in enumerate(sizes):
            if size > largest:
                field = f"the number of samples of client {client} {cause}"
                raise InputError.of(field, f"at most {largest:,}, {fits}", f"{size:,}")
        if sum(sizes) > max_samples():
            field = f"the number of samples of all clients {cause}"
            raise InputError.of(field, f"at most {max_samples():,}, {fits}", f"{sum(sizes):,}")

    def buffer(
        self, client: int, size: int, staleness: float = 1.0, stream: "IndexedStream | None" = None
    ) -> MemoryBuffer[IndexedSamples]:
        """A client's initial buffer: `size` samples of its stream with a mean age of `staleness`.

        It is smaller if the stream has fewer initial samples.
        """
        initial = (stream or self.stream(client)).collect(size, BEFORE)
        ages = initial_ages(len(initial), staleness)
        return MemoryBuffer(initial, ages, discard=self.discard, seed=self.seed, client=client)

    def restore(
        self, client: int, snapshot: Snapshot[IndexedSamples], round: int, next_id: int
    ) -> MemoryBuffer[IndexedSamples]:
        """A client's buffer as it was after `round` rounds."""
        options: dict[str, Any] = {"discard": self.discard, "seed": self.seed, "client": client}
        return MemoryBuffer.restore(snapshot, round, next_id, **options)


def spread(indices: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """At most `count` of the indices, at equal distances.

    >>> spread(np.arange(10), 3).tolist(), spread(np.arange(2), 3).tolist()
    ([0, 4, 9], [0, 1])
    """
    if len(indices) <= count:
        return indices
    return indices[np.linspace(0, len(indices) - 1, count).astype(np.int64)]


class IndexedStream:
    """The stream of one client: indices from a source, with the labels of the pool.

    Args:
        indices: called as `indices(count, round)`.
        pool: the samples that the indices refer to.
    """

    collected = 0  # samples from outside the pool
    repeatable = True  # the samples of a round can be collected again

    def __init__(self, indices: Callable[[int, int], npt.ArrayLike], pool: Samples) -> None:
        self._indices, self._pool = indices, pool

    def collect(self, count: int, round: int) -> IndexedSamples:
        """At most `count` samples of the pool."""
        indices = np.asarray(self._indices(count, round))
        return IndexedSamples(indices, self._pool.labels[indices.astype(np.int64, copy=False)])

    def resume(self, collected: int) -> None:
        """Nothing to do: the samples of a round do not depend on earlier rounds."""


class OwnStream(IndexedStream):
    """A user's own stream of one client, whose results are checked.

    Args:
        source: the user's object.
        pool: the samples that indices refer to. Samples from outside are added to it.
        name: of the stream, in messages.
        known: returns the number of samples of the pool that are known in a round.
        num_classes: of the labels of samples from outside.
    """

    repeatable = False

    def __init__(
        self, source: IndexSource, pool: Samples, name: str, known: Callable[[int], int], num_classes: int
    ) -> None:
        self._source, self._pool, self._own, self._known = source, pool, name, known
        self._classes = num_classes
        self._size = len(pool)  # without what streams add
        self.collected = 0

    def collect(self, count: int, round: int) -> IndexedSamples:
        """At most `count` samples: of the pool, or from outside."""
        with calling("stream", self._own, f"collect in round {round}"):
            made = self._source.collect(count, round)
        if isinstance(made, Samples):
            return self._added(made, count)
        indices = np.asarray(made)
        self._check(indices, count, min(self._known(round), self._size))
        return IndexedSamples(indices, self._pool.labels[indices.astype(np.int64, copy=False)])

    def resume(self, collected: int) -> None:
        """Continue after `collected` samples from outside."""
        self.collected = collected
        resume = getattr(self._source, "resume", None)
        if collected and callable(resume):
            with calling("stream", self._own, "resume"):
                resume(collected)
        elif collected:
            rule = "one with a method resume(collected), to resume a run"
            raise InputError.of(f"stream {self._own!r}", rule, type(self._source).__name__)

    def _added(self, samples: Samples, count: int) -> IndexedSamples:
        field = f"what stream {self._own!r} collects"
        if not isinstance(self._pool, Pool):
            rule = "indices of samples; on Flower, samples are for an app of your own with DataUpdateMod"
            raise InputError.of(field, rule, "Samples")
        if len(samples) > count:
            raise InputError.of(field, f"at most {count} samples", len(samples))
        if not len(samples):
            return IndexedSamples(np.empty(0, np.int64), self._pool.labels[:0])
        if samples.labels.dtype != self._pool.labels.dtype:
            kind = "classes" if self._pool.labels.dtype.kind == "i" else "numbers"
            raise InputError.of(f"the labels of {field}", kind, samples.labels.dtype)
        low, high = samples.labels.min(), samples.labels.max()
        if samples.labels.dtype.kind == "i" and (low < 0 or high >= self._classes):
            raise InputError.of(
                f"the labels of {field}", f"from 0 to {self._classes - 1}", f"{low} to {high}"
            )
        if samples.features.dtype.kind == "f" and not np.isfinite(samples.features).all():
            raise InputError.of(f"the features of {field}", "finite numbers", "others")
        try:
            indices = self._pool.add(samples)
        except InputError as error:
            raise error.within(field) from None
        self.collected += len(samples)
        return IndexedSamples(indices, samples.labels)

    def _check(self, indices: npt.NDArray[Any], count: int, size: int) -> None:
        field, rule = f"what stream {self._own!r} collects", f"integers from 0 to {size - 1}"
        if size < self._size:
            rule += ", the samples recorded so far"
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "ui"):
            raise InputError.of(field, f"{rule} of shape (n,)", f"{indices.dtype} {indices.shape}")
        if len(indices) > count:
            raise InputError.of(field, f"at most {count} indices", len(indices))
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            raise InputError.of(field, rule, f"{indices.min()} to {indices.max()}")


def initial_ages(count: int, staleness: float) -> npt.NDArray[np.int64]:
    """Integer ages of `count` samples whose mean is `staleness`, as exactly as integers allow."""
    whole = math.floor(staleness)
    older = np.arange(count) < round((staleness - whole) * count)
    return np.full(count, whole) + older
