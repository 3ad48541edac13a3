"""A client's training task in a round, and the order of its samples."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.samples import Features, Labels
from dufl.learning.age_weights import age_weights
from dufl.learning.algorithm import LocalPenalty
from dufl.learning.settings import Training

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """A client's training task in a round: its samples, their ages, and the algorithm's penalty.

    Attributes:
        client: the index of the client.
        round: t.
        indices: of its samples in the pool.
        labels: of its samples.
        ages: of its samples, in rounds.
        ids: unique numbers of its samples.
        penalty: the term that the algorithm adds to its loss.
    """

    client: int
    round: int
    indices: Integers
    labels: Labels
    ages: Integers
    ids: Integers
    penalty: LocalPenalty

    def features(
        self, pool: Features, ageing: Ageing, seed: int, out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """The aged features of the samples in this round, written to `out` if given."""
        return ageing.add_noise(pool, self.indices, self.ages, seed, self.client, self.ids, out)

    def sample_weights(self, settings: Training) -> npt.NDArray[np.float32] | None:
        """The weights of the samples by their ages; None if all count equally."""
        return age_weights(self.ages, settings.age_weighting, settings.age_scale)

    def shuffles(self, settings: Training) -> Integers:
        """The order of the samples, one row per epoch; a function of (seed, client, round)."""
        generator = np.random.default_rng([settings.seed, self.client, self.round + 1, 7])
        rows = np.tile(np.arange(len(self.labels)), (settings.local_epochs, 1))
        return generator.permuted(rows, axis=1, out=rows)
