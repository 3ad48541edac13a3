"""A dataset as the clients of a federation come to know it: what each collects when, and how it looks later.

Buffers hold references: the place of a sample in the dataset, in eight bytes. Features are made from them
when they are needed, looking their age. So a thousand clients need no more memory for their samples than
the dataset itself, and a worker elsewhere needs only the places.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import Discard, MemoryBuffer, Snapshot
from dufl.data.room import most_samples
from dufl.data.samples import Samples
from dufl.data.streams import BEFORE, SimulatedStream
from dufl.errors import InputError

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Streams and buffers of references to the samples of a pool.

    Attributes:
        pool: the training samples.
        arrival: which classes there are when.
        ageing: how kept samples get old.
        seed: same seed, same data.
        skew: see `SimulatedStream`.
        discard: which samples a buffer gives up first.
    """

    pool: Samples
    arrival: Arrival
    ageing: Ageing
    seed: int = 0
    dirichlet_alpha: float | None = None
    discard: Discard = "uniform"

    @cached_property
    def references(self) -> Samples:
        """The pool with places instead of features."""
        places = np.arange(len(self.pool), dtype=np.int64)
        return Samples(places.view(np.uint8).reshape(-1, 8), self.pool.labels)

    def stream(self, client: int) -> SimulatedStream:
        """What a client can collect, as references."""
        return SimulatedStream(
            pool=self.references,
            client=client,
            seed=self.seed,
            arrival=self.arrival,
            dirichlet_alpha=self.dirichlet_alpha,
        )

    def check_room(self, sizes: Sequence[int], cause: str) -> None:
        """Refuse buffers that cannot be trained on because they do not fit into this machine's memory.

        Args:
            sizes: how many samples every client would hold.
            cause: when, and by whose decision.
        """
        fits = "as many as fit into this machine's memory"
        most = most_samples(math.prod(self.pool.shape))  # the features of a client are all made at once
        for client, size in enumerate(sizes):
            if size > most:
                what = f"the samples that client {client} has to hold {cause}"
                raise InputError.of(what, f"at most {most:,}, {fits}", f"{size:,}")
        if sum(sizes) > most_samples():
            what = f"the samples that all clients have to hold {cause}"
            raise InputError.of(what, f"at most {most_samples():,}, {fits}", f"{sum(sizes):,}")

    def buffer(self, client: int, size: int, staleness: float = 1.0) -> MemoryBuffer:
        """A client's buffer at the start: `size` samples of a mean age of `staleness`.

        It holds fewer if the stream has no samples of the classes that there are.
        """
        first = self.stream(client).collect(size, BEFORE)
        whole = math.floor(staleness)
        older = np.arange(len(first)) < round((staleness - whole) * len(first))
        ages = np.full(len(first), whole) + older
        return MemoryBuffer(first, ages, discard=self.discard, seed=self.seed, client=client)

    def restore(self, client: int, held: Snapshot, round: int, next_id: int) -> MemoryBuffer:
        """A client's buffer as it was after some rounds."""
        return MemoryBuffer.restore(held, round, next_id, discard=self.discard, seed=self.seed, client=client)


def indices_of(references: Samples) -> Places:
    """The places that references stand for."""
    return np.ascontiguousarray(references.features).view(np.int64).reshape(-1)
