"""A dataset in simulation: what each client collects in each round, and its buffer.

Streams and buffers contain `IndexedSamples`: the indices of samples in the dataset, eight bytes each, and
their labels. Aged features are computed from them when they are needed. A thousand clients need little more
memory than the dataset, and a worker process receives only indices.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import Discard, MemoryBuffer, Snapshot, plugin_name
from dufl.data.samples import IndexedSamples, Samples, max_samples
from dufl.data.streams import BEFORE, SimulatedStream
from dufl.errors import InputError


class IndexSource(Protocol):
    """A stream of your own for training: chooses samples of the training set."""

    def collect(self, count: int, round: int) -> npt.ArrayLike:
        """At most `count` indices of training samples; `round` is −1 for the initial samples."""
        ...


StreamFactory = Callable[[Samples, int, int], IndexSource]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Streams and buffers of indices into a pool of samples.

    Attributes:
        pool: the training samples.
        arrival: which classes are available in a round.
        ageing: how stored samples age.
        seed: of everything random.
        dirichlet_alpha: see `SimulatedStream`.
        discard: which samples a buffer discards; see `Discarding`.
        make_stream: called as `make_stream(pool, client, seed)` to create a client's `IndexSource`, which
            replaces the `SimulatedStream` with `arrival` and `dirichlet_alpha`. What it collects must depend
            on (seed, client, round) alone if a run is to be resumed.
    """

    pool: Samples
    arrival: Arrival
    ageing: Ageing
    seed: int = 0
    dirichlet_alpha: float | None = None
    discard: Discard = "uniform"
    make_stream: StreamFactory | None = None

    def stream(self, client: int) -> "IndexedStream":
        """What a client can collect."""
        if self.make_stream is not None:
            source = self.make_stream(self.pool, client, self.seed)
            name = plugin_name(self.make_stream)
            if not callable(getattr(source, "collect", None)):
                rule = "an object with a method collect(count, round)"
                raise InputError.of(f"stream {name!r}", rule, type(source).__name__)
            return IndexedStream(source.collect, self.pool, name)
        simulated = SimulatedStream(
            pool=self.pool,
            client=client,
            seed=self.seed,
            arrival=self.arrival,
            dirichlet_alpha=self.dirichlet_alpha,
        )
        return IndexedStream(simulated.indices, self.pool)

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

        It is smaller if the stream has no samples of the initial classes.
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
    """The stream of one client in simulation: indices from a source, with the labels of the pool.

    Args:
        indices: called as `indices(count, round)`.
        pool: the samples that the indices refer to.
        own: the name of a user's own source, whose results are checked; empty for ours.
    """

    def __init__(self, indices: Callable[[int, int], npt.ArrayLike], pool: Samples, own: str = "") -> None:
        self._indices, self._pool, self._own = indices, pool, own

    def collect(self, count: int, round: int) -> IndexedSamples:
        """At most `count` samples of the pool."""
        indices = np.asarray(self._indices(count, round))
        if self._own:
            self._check(indices, count)
        return IndexedSamples(indices, self._pool.labels[indices.astype(np.int64, copy=False)])

    def resume(self, collected: int) -> None:
        """Nothing to do: the samples of a round do not depend on earlier rounds."""

    def _check(self, indices: npt.NDArray[Any], count: int) -> None:
        size = len(self._pool)
        field, rule = f"what stream {self._own!r} collects", f"integers from 0 to {size - 1}"
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
