"""Buffers of references hold, keep and age the same samples as buffers of the samples themselves."""

import numpy as np
import pytest
from scipy.stats import kstest

from dufl.data.ageing import STEPS, Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import MemoryBuffer
from dufl.data.samples import Samples
from dufl.data.simulation import Simulation, indices_of
from dufl.data.streams import BEFORE, SimulatedStream

ARRIVAL = Arrival(num_classes=10, time_sensitivity=1.25, num_rounds=12)
AGEING = Ageing(time_sensitivity=1.25, num_rounds=12)


def pool() -> Samples:
    generator = np.random.default_rng(0)
    return Samples(generator.integers(0, 256, (700, 1, 5, 5), dtype=np.uint8), np.arange(700) % 10)


@pytest.mark.parametrize("dirichlet_alpha", [None, 0.5])
@pytest.mark.parametrize("discard", ["uniform", "oldest"])
def test_references_stand_for_samples(dirichlet_alpha: float | None, discard: str) -> None:
    samples = pool()
    simulation = Simulation(samples, ARRIVAL, AGEING, 3, dirichlet_alpha, discard)  # type: ignore[arg-type]
    stream = SimulatedStream(pool=samples, client=2, seed=3, arrival=ARRIVAL, dirichlet_alpha=dirichlet_alpha)
    whole = MemoryBuffer(stream.collect(80, BEFORE), discard=discard, seed=3, client=2)  # type: ignore[arg-type]
    short = simulation.buffer(2, 80)
    for t in range(11):
        keep, asked = 50 - t, 20 + t
        whole.advance(keep, stream.collect(asked, t))
        short.advance(keep, simulation.stream(2).collect(asked, t))
        held, references = whole.snapshot(), short.snapshot()
        places = indices_of(references.samples)
        np.testing.assert_array_equal(samples.features[places], held.samples.features)
        np.testing.assert_array_equal(references.samples.labels, held.samples.labels)
        np.testing.assert_array_equal(references.ages, held.ages)
        looks = AGEING.add_noise(samples.features, places, references.ages, 3, 2, references.ids)
        np.testing.assert_array_equal(looks, held.to_float(AGEING, 3, 2))
    again = simulation.restore(2, short.snapshot(), short.round, short.next_id)
    for buffer in (again, short):
        buffer.advance(30, simulation.stream(2).collect(9, 11))
    for one, two in zip(vars(again.snapshot()).values(), vars(short.snapshot()).values(), strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(indices_of(again.snapshot().samples), indices_of(short.snapshot().samples))


@pytest.mark.parametrize("staleness", [1.0, 2.5, 3.25])
def test_the_first_samples_are_as_old_as_asked(staleness: float) -> None:
    buffer = Simulation(pool(), ARRIVAL, AGEING).buffer(0, 100, staleness)
    assert buffer.mean_age == pytest.approx(staleness, abs=0.005)


def test_noise_is_normal_and_of_one_kind_in_every_direction() -> None:
    ageing = Ageing(time_sensitivity=1.0, num_rounds=100, noise_scale=1.0)
    grey = np.full((600, 333), 128, np.uint8)
    looks = ageing.add_noise(grey, np.arange(600), np.full(600, 101), 0, 0, np.arange(600))
    noise = (looks - np.float32(128 / 255)).astype(float)
    assert kstest(noise.ravel(), "norm").statistic < 2 / np.sqrt(noise.size) + 1 / STEPS
    assert np.abs(np.corrcoef(noise) - np.eye(600)).max() < 6 / np.sqrt(333)
    assert np.abs(np.corrcoef(noise.T) - np.eye(333)).max() < 6 / np.sqrt(600)
    columns = np.sqrt(600) * noise.mean(axis=0)
    assert kstest(columns, "norm").pvalue > 1e-3


def test_looks_begin_on_a_cache_line() -> None:
    looks = AGEING.add_noise(pool().features, np.arange(7), 3, 0, 0, np.arange(7))
    assert looks.ctypes.data % 64 == 0
    assert looks.shape == (7, 1, 5, 5)
