"""How a stored sample gets old, in simulation: additive noise that grows with its age.

A sample of age a (1 is fresh) carries Gaussian noise of standard deviation

    noise_scale · σ · ((a − 1)/T)^growth        on features in [0, 1]

in a direction of its own that stays the same: each round adds to it. The noise is a pure function of
(seed, client, sample, age). So nothing has to be stored or rewritten when samples age, and it is the
same in whatever order and wherever it is worked out.
"""

# mypy: disallow-untyped-decorators=False
# (Numba's decorator carries no types.)

from functools import cache

import numpy as np
import numpy.typing as npt
from numba import njit
from scipy.special import ndtri

from dufl.data.samples import Features
from dufl.inputs import Count, Inputs, NonNegative, Positive

STEPS = 4096  # equally likely values that stand for the normal distribution: 16 KiB, so that they stay near


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
        if not self.deviation(ages).any():
            return features
        return self.add_noise(features, np.arange(len(features)), ages, seed, client, ids)

    def add_noise(
        self,
        pool: Features,
        places: npt.NDArray[np.int64],
        ages: npt.ArrayLike,
        seed: int,
        client: int,
        ids: npt.ArrayLike,
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """How the samples at some places of a pool look at their ages: float32, of shape (places, ...).

        One pass, with nothing copied before, and free for other threads to run beside it. The result is in
        `out`, a vector from `aligned`, if one is given: new memory costs more than what is written to it.
        """
        deviation = np.ascontiguousarray(np.broadcast_to(self.deviation(ages), len(places)))
        own = _mix_number(_mix_number(seed) + client)
        keys = _mix(np.uint64(own) + np.asarray(ids, dtype=np.uint64) * _STRIDE)
        flat = pool.reshape(len(pool), -1)
        size = len(places) * flat.shape[1]
        looks = (aligned(size) if out is None else out)[:size].reshape(len(places), *pool.shape[1:])
        keys = np.ascontiguousarray(np.broadcast_to(keys, len(places)))
        scale = np.float32(255 if pool.dtype == np.uint8 else 1)
        _look(flat, places, scale, deviation, keys, _normal(), looks.reshape(len(looks), flat.shape[1]))
        return looks


_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio, as in SplitMix64 (Steele et al., 2014)


def aligned(size: int) -> npt.NDArray[np.float32]:
    """A vector whose memory begins on a cache line, which makes training on it faster."""
    memory = np.empty(size + 16, np.float32)
    skip = -memory.__array_interface__["data"][0] % 64 // 4
    return memory[skip : skip + size]


@cache
def _normal() -> npt.NDArray[np.float32]:
    """The standard normal distribution in equally likely steps, of variance one."""
    steps = ndtri((np.arange(STEPS) + 0.5) / STEPS)
    return np.asarray(steps / steps.std(), dtype=np.float32)


def _mix_number(number: int) -> int:
    """A number of any size to 64 bits that look random."""
    low, rest = number % 2**64, number >> 64
    return int(_mix(np.uint64(low) ^ np.uint64(_mix_number(rest) if rest else 0) ^ _STRIDE))


@njit(cache=True, nogil=True, inline="always")
def _mix(x):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser: from a counter to 64 random bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, error_model="numpy")
def _look(pool, places, scale, deviation, keys, normal, looks):  # type: ignore[no-untyped-def]
    size, mask = pool.shape[1], np.uint64(STEPS - 1)
    for i in range(len(places)):
        row, look, spread, key = pool[places[i]], looks[i], deviation[i], keys[i]
        for j in range(size):
            look[j] = np.float32(row[j]) / scale
        if spread == 0:
            continue
        for block in range(size // 4):  # four values from the 64 bits of one counter
            bits, j = _mix(key + np.uint64(block) * _STRIDE), 4 * block
            look[j] += spread * normal[bits & mask]
            look[j + 1] += spread * normal[(bits >> np.uint64(16)) & mask]
            look[j + 2] += spread * normal[(bits >> np.uint64(32)) & mask]
            look[j + 3] += spread * normal[(bits >> np.uint64(48)) & mask]
        bits = _mix(key + np.uint64(size // 4) * _STRIDE)
        for j in range(size - size % 4, size):
            look[j] += spread * normal[bits & mask]
            bits >>= np.uint64(16)
