"""How stored samples age in simulation: additive noise that grows with their age.

A sample of age a (1 is fresh) carries Gaussian noise of standard deviation

    noise_scale · σ · ((a − 1)/T)^growth        on features in [0, 1]

in a direction of its own that does not change: every round moves it further. The noise is a pure function
of (seed, client, sample, age). Nothing is stored or rewritten when samples age, and the result does not
depend on the order or the process in which it is computed.
"""

# mypy: disallow-untyped-decorators=False
# (Numba's decorator carries no types.)

from functools import cache

import numpy as np
import numpy.typing as npt
from numba import njit

from dufl.data.samples import Features
from dufl.inputs import Count, Inputs, NonNegative, Positive

STEPS = 4096  # equally likely values of the normal distribution: 16 KiB, which fit into the L1 cache


class Ageing(Inputs):
    """The noise law.

    Attributes:
        time_sensitivity: σ; 0 disables the noise.
        num_rounds: T.
        noise_scale: the standard deviation at σ = 1 after all rounds; 0 disables the noise.
        growth: 1 is linear in the age, 0.5 grows like a random walk.
    """

    time_sensitivity: NonNegative = 0.75
    num_rounds: Count = 100
    noise_scale: NonNegative = 0.5
    growth: Positive = 1.0

    def deviation(self, ages: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The standard deviation of the noise at the given ages.

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
        """The aged features: `features` with the noise of their ages.

        Args:
            features: float32 in [0, 1], of shape (n, ...); not modified, and returned if there is no noise.
            ages: of every sample, in rounds.
            seed: of the simulation.
            client: whose samples they are.
            ids: of the samples, unique within the client.
        """
        if not self.deviation(ages).any():
            return features
        return self.add_noise(features, np.arange(len(features)), ages, seed, client, ids)

    def add_noise(
        self,
        pool: Features,
        indices: npt.NDArray[np.int64],
        ages: npt.ArrayLike,
        seed: int,
        client: int,
        ids: npt.ArrayLike,
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """The aged features of some samples of a pool: float32 of shape (len(indices), ...).

        One pass over the pool's features without an intermediate copy, and without the interpreter lock.

        Args:
            pool: the features of all samples, uint8 or float32.
            indices: of the samples in the pool.
            ages: of the samples, in rounds.
            seed: of the simulation.
            client: whose samples they are.
            ids: of the samples, unique within the client.
            out: a vector from `aligned` for the result, which saves allocating memory; it may be longer.
        """
        count = len(indices)
        deviation = np.ascontiguousarray(np.broadcast_to(self.deviation(ages), count))
        keys = np.ascontiguousarray(np.broadcast_to(sample_keys(ids, seed, client), count))
        flat = pool.reshape(len(pool), -1)
        size = count * flat.shape[1]
        aged = (aligned(size) if out is None else out)[:size].reshape(count, *pool.shape[1:])
        scale = np.float32(255 if pool.dtype == np.uint8 else 1)
        _add_noise(flat, indices, scale, deviation, keys, _normal(), aged.reshape(count, flat.shape[1]))
        return aged


_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio, as in SplitMix64 (Steele et al., 2014)


def aligned(size: int) -> npt.NDArray[np.float32]:
    """A vector that begins on a cache line, which makes training on it faster."""
    memory = np.empty(size + 16, np.float32)
    skip = -memory.__array_interface__["data"][0] % 64 // 4
    return memory[skip : skip + size]


@cache
def _normal() -> npt.NDArray[np.float32]:
    """Equally likely values of the standard normal distribution, scaled to variance one."""
    from scipy.special import ndtri

    steps = ndtri((np.arange(STEPS) + 0.5) / STEPS)
    return np.asarray(steps / steps.std(), dtype=np.float32)


def sample_keys(ids: npt.ArrayLike, *numbers: int) -> npt.NDArray[np.uint64]:
    """64 pseudorandom bits per sample: a function of its id and of some numbers, such as seed and client."""
    own = 0
    for number in numbers:
        own = _mix_number(own + number)
    keys: npt.NDArray[np.uint64] = _mix(np.uint64(own) + np.asarray(ids, dtype=np.uint64) * _STRIDE)
    return keys


def _mix_number(number: int) -> int:
    """64 pseudorandom bits from an integer of any size."""
    low, rest = number % 2**64, number >> 64
    return int(_mix(np.uint64(low) ^ np.uint64(_mix_number(rest) if rest else 0) ^ _STRIDE))


@njit(cache=True, nogil=True, inline="always")
def _mix(x):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser: 64 pseudorandom bits from a counter."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, error_model="numpy")
def _add_noise(pool, indices, scale, deviation, keys, normal, aged):  # type: ignore[no-untyped-def]
    size, mask = pool.shape[1], np.uint64(STEPS - 1)
    for i in range(len(indices)):
        row, out, spread, key = pool[indices[i]], aged[i], deviation[i], keys[i]
        for j in range(size):
            out[j] = np.float32(row[j]) / scale
        if spread == 0:
            continue
        for block in range(size // 4):  # four values from the 64 bits of one counter
            bits, j = _mix(key + np.uint64(block) * _STRIDE), 4 * block
            out[j] += spread * normal[bits & mask]
            out[j + 1] += spread * normal[(bits >> np.uint64(16)) & mask]
            out[j + 2] += spread * normal[(bits >> np.uint64(32)) & mask]
            out[j + 3] += spread * normal[(bits >> np.uint64(48)) & mask]
        bits = _mix(key + np.uint64(size // 4) * _STRIDE)
        for j in range(size - size % 4, size):
            out[j] += spread * normal[bits & mask]
            bits >>= np.uint64(16)
