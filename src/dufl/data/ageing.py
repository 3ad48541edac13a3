"""How a stored sample gets old, in simulation: additive noise that grows with its age.

A sample of age a (1 is fresh) carries noise of standard deviation

    noise_scale · σ · ((a − 1)/T)^growth        on features in [0, 1]

in a direction of its own that stays the same: each round adds to it. The noise is a pure function of
(seed, client, sample, age). So nothing has to be stored or rewritten when samples age, and it is the
same in whatever order and wherever it is worked out.
"""

import numpy as np
import numpy.typing as npt

from dufl.inputs import Count, Inputs, NonNegative, Positive


class Ageing(Inputs):
    """The noise law.

    Attributes:
        time_sensitivity: σ; 0 is no noise.
        num_rounds: T.
        noise_scale: the standard deviation at σ = 1 after all rounds; 0 is no noise.
        growth: 1 grows evenly with age, 0.5 like a random walk.
    """

    time_sensitivity: NonNegative = 0.75
    num_rounds: Count = 100
    noise_scale: NonNegative = 0.5
    growth: Positive = 1.0

    def deviation(self, ages: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The standard deviation of the noise at some ages.

        >>> Ageing(time_sensitivity=1.0, num_rounds=100, noise_scale=0.5).deviation([1, 51, 101]).tolist()
        [0.0, 0.25, 0.5]
        """
        elapsed = (np.asarray(ages, dtype=np.float64) - 1) / self.num_rounds
        return np.asarray(self.noise_scale * self.time_sensitivity * elapsed**self.growth, dtype=np.float32)

    def apply(
        self,
        features: npt.NDArray[np.float32],
        ages: npt.ArrayLike,
        seed: int,
        client: int,
        ids: npt.ArrayLike,
    ) -> npt.NDArray[np.float32]:
        """The features as they look at their ages; `ids` tell the samples of a client apart.

        Args:
            features: float32 in [0, 1], of shape (n, ...); not changed.
            ages: of every sample, in rounds.
            seed: of the simulation.
            client: whose samples they are.
            ids: the number of every sample, unique within the client.
        """
        deviation = np.broadcast_to(self.deviation(ages), len(features))
        if not deviation.any():
            return features
        flat = features.reshape(len(features), -1)
        direction = _directions(flat.shape, deviation > 0, seed, client, np.asarray(ids))
        direction *= deviation[:, None]
        direction += flat
        return direction.reshape(features.shape)


def _directions(
    shape: tuple[int, ...],
    wanted: npt.NDArray[np.bool_],
    seed: int,
    client: int,
    ids: npt.NDArray[np.int64],
) -> npt.NDArray[np.float32]:
    """Standard normal rows, each from its own place in a counter-based generator."""
    rows = np.zeros(shape, np.float32)
    source = np.random.Philox(key=[seed, client])
    generator = np.random.Generator(source)
    state = source.state
    for i in np.flatnonzero(wanted):
        state["state"]["counter"][3] = ids[i]
        source.state = state
        generator.standard_normal(dtype=np.float32, out=rows[i])
    return rows
