"""What a client has to do in a round, and the order in which it goes through its samples."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.samples import Features
from dufl.learning.algorithm import LocalPenalty
from dufl.learning.settings import Training

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """A client's part in a round: which samples, how old, pulled where.

    Attributes:
        client: who.
        round: when.
        indices: of its samples in the pool.
        labels: of its samples.
        ages: of its samples, in rounds.
        ids: the numbers that tell its samples apart.
        pull: what the algorithm adds to its loss.
    """

    client: int
    round: int
    indices: Whole
    labels: Whole
    ages: Whole
    ids: Whole
    penalty: LocalPenalty

    def features(
        self, pool: Features, ageing: Ageing, seed: int, out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """The aged features of the samples in this round, in `out` if there is one."""
        return ageing.add_noise(pool, self.indices, self.ages, seed, self.client, self.ids, out)

    def shuffles(self, settings: Training) -> Whole:
        """The order of the samples in every epoch, one a row; a function of (seed, client, round)."""
        generator = np.random.default_rng([settings.seed, self.client, self.round + 1, 7])
        rows = np.tile(np.arange(len(self.labels)), (settings.local_epochs, 1))
        return generator.permuted(rows, axis=1, out=rows)
