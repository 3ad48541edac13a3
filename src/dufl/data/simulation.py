"""A dataset in simulation: classes arrive over the rounds, and stored samples age."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.client_data import ClientData, IndexedStream, StreamFactory, spread
from dufl.data.discard.discarding import Discard
from dufl.data.samples import Samples
from dufl.data.streams import SimulatedStream


@dataclass(frozen=True, eq=False)
class Simulation(ClientData):
    """The simulated data of a federation.

    Attributes:
        pool: the training samples.
        arrival: which classes are available in a round.
        ageing: how stored samples age.
        seed: of everything random.
        dirichlet_alpha: see `SimulatedStream`.
        discard: which samples a buffer discards; see `Discarding`.
        make_stream: see `ClientData`; replaces the `SimulatedStream` with `arrival` and `dirichlet_alpha`.
        test: the test samples, which never age; the pool if there are no others.
    """

    pool: Samples
    arrival: Arrival
    ageing: Ageing
    seed: int = 0
    dirichlet_alpha: float | None = None
    discard: Discard = "uniform"
    make_stream: StreamFactory | None = None
    test: Samples = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.test is None:
            object.__setattr__(self, "test", self.pool)

    @property
    def num_classes(self) -> int:
        """The number of classes of the dataset."""
        return self.arrival.num_classes

    def source(self, client: int) -> IndexedStream:
        """What a client can collect."""
        simulated = SimulatedStream(
            pool=self.pool,
            client=client,
            seed=self.seed,
            arrival=self.arrival,
            dirichlet_alpha=self.dirichlet_alpha,
        )
        return IndexedStream(simulated.indices, self.pool)

    def recent_test(self, round: int, count: int) -> npt.NDArray[np.int64]:
        """At most `count` test samples of the classes that have arrived."""
        if self.arrival.order == "client" or self.make_stream is not None:
            return super().recent_test(round, count)
        return spread(np.flatnonzero(np.isin(self.test.labels, self.arrival.classes(round))), count)
