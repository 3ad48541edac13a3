"""A dataset as the clients of a federation come to know it: what each collects when, and how it looks later.

Buffers hold references: the place of a sample in the dataset, in eight bytes. Features are made from them
when they are needed, looking their age. So a thousand clients need no more memory for their samples than
the dataset itself, and a worker elsewhere needs only the places.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import Discard, Held, MemoryBuffer
from dufl.data.samples import Samples
from dufl.data.streams import BEFORE, SimulatedStream

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
    skew: float | None = None
    discard: Discard = "uniform"

    @cached_property
    def references(self) -> Samples:
        """The pool with places instead of features."""
        places = np.arange(len(self.pool), dtype=np.int64)
        return Samples(places.view(np.uint8).reshape(-1, 8), self.pool.labels)

    def stream(self, client: int) -> SimulatedStream:
        """What a client can collect, as references."""
        return SimulatedStream(
            pool=self.references, client=client, seed=self.seed, arrival=self.arrival, skew=self.skew
        )

    def buffer(self, client: int, size: int, staleness: float = 1.0) -> MemoryBuffer:
        """A client's buffer at the start: `size` samples of a mean age of `staleness`."""
        first = self.stream(client).collect(size, BEFORE)
        whole = math.floor(staleness)
        older = np.arange(size) < round((staleness - whole) * size)
        ages = np.full(size, whole) + older
        return MemoryBuffer(first, ages, discard=self.discard, seed=self.seed, client=client)

    def restore(self, client: int, held: Held, round: int, next_id: int) -> MemoryBuffer:
        """A client's buffer as it was after some rounds."""
        return MemoryBuffer.restore(held, round, next_id, discard=self.discard, seed=self.seed, client=client)


def places_of(references: Samples) -> Places:
    """The places that references stand for."""
    return np.ascontiguousarray(references.features).view(np.int64).reshape(-1)
