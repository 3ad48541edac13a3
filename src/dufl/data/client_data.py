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
from dufl.data.buffer import Discard, MemoryBuffer, Snapshot, plugin_name
from dufl.data.samples import IndexedSamples, Samples, max_samples
from dufl.data.streams import BEFORE
from dufl.errors import InputError


class IndexSource(Protocol):
    """A stream of your own for training: chooses samples of the pool."""

    def collect(self, count: int, round: int) -> npt.ArrayLike:
        """At most `count` indices of samples; `round` is −1 for the initial samples."""
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
            replaces the stream of `source`. What it collects must depend on (seed, client, round) alone if a
            run is to be resumed.
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
        return IndexedStream(source.collect, self.pool, name, self.known)

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

    def buffer(self, client: int, size: int, staleness: float = 1.0) -> MemoryBuffer[IndexedSamples]:
        """A client's initial buffer: `size` samples with a mean age of `staleness`.

        It is smaller if the stream has fewer initial samples.
        """
        initial = self.stream(client).collect(size, BEFORE)
        ages = initial_ages(len(initial), staleness)
        return MemoryBuffer(initial, ages, discard=self.discard, seed=self.seed, client=client)

    def restore(
        self, client: int, snapshot: Snapshot[IndexedSamples], round: int, next_id: int
    ) -> MemoryBuffer[IndexedSamples]:
        """A client's buffer as it was after `round` rounds."""
        options: dict[str, Any] = {"discard": self.discard, "seed": self.seed, "client": client}
        return MemoryBuffer.restore(snapshot, round, next_id, **options)


class IndexedStream:
    """The stream of one client: indices from a source, with the labels of the pool.

    Args:
        indices: called as `indices(count, round)`.
        pool: the samples that the indices refer to.
        own: the name of a user's own source, whose results are checked; empty for ours.
        known: returns the number of samples that are known in a round.
    """

    def __init__(
        self,
        indices: Callable[[int, int], npt.ArrayLike],
        pool: Samples,
        own: str = "",
        known: Callable[[int], int] | None = None,
    ) -> None:
        self._indices, self._pool, self._own = indices, pool, own
        self._known = known or (lambda _: len(pool))

    def collect(self, count: int, round: int) -> IndexedSamples:
        """At most `count` samples of the pool."""
        indices = np.asarray(self._indices(count, round))
        if self._own:
            self._check(indices, count, self._known(round))
        return IndexedSamples(indices, self._pool.labels[indices.astype(np.int64, copy=False)])

    def resume(self, collected: int) -> None:
        """Nothing to do: the samples of a round do not depend on earlier rounds."""

    def _check(self, indices: npt.NDArray[Any], count: int, size: int) -> None:
        field, rule = f"what stream {self._own!r} collects", f"integers from 0 to {size - 1}"
        if size < len(self._pool):
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
