"""Buffers of indices keep and age the same samples as buffers of features; streams of one's own."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

from dufl.data.ageing import STEPS, Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import MemoryBuffer
from dufl.data.samples import IndexedSamples, Samples, concatenate
from dufl.data.simulation import Simulation
from dufl.data.streams import BEFORE, SimulatedStream
from dufl.errors import InputError

ARRIVAL = Arrival(num_classes=10, time_sensitivity=1.25, num_rounds=12)
AGEING = Ageing(time_sensitivity=1.25, num_rounds=12)


def pool() -> Samples:
    generator = np.random.default_rng(0)
    return Samples(generator.integers(0, 256, (700, 1, 5, 5), dtype=np.uint8), np.arange(700) % 10)


@pytest.mark.parametrize("dirichlet_alpha", [None, 0.5])
@pytest.mark.parametrize("discard", ["uniform", "oldest"])
def test_indices_stand_for_samples(dirichlet_alpha: float | None, discard: Any) -> None:
    samples = pool()
    simulation = Simulation(samples, ARRIVAL, AGEING, 3, dirichlet_alpha, discard)
    stream = SimulatedStream(pool=samples, client=2, seed=3, arrival=ARRIVAL, dirichlet_alpha=dirichlet_alpha)
    featured = MemoryBuffer(stream.collect(80, BEFORE), discard=discard, seed=3, client=2)
    indexed = simulation.buffer(2, 80)
    for t in range(11):
        keep, count = 50 - t, 20 + t
        featured.advance(keep, stream.collect(count, t))
        indexed.advance(keep, simulation.stream(2).collect(count, t))
        one, two = featured.snapshot(), indexed.snapshot()
        indices = two.samples.indices
        assert (indices.dtype.str, indices.shape) == ("<i8", (len(indexed),))
        np.testing.assert_array_equal(samples.features[indices], one.samples.features)
        np.testing.assert_array_equal(two.samples.labels, one.samples.labels)
        np.testing.assert_array_equal(two.ages, one.ages)
        aged = AGEING.add_noise(samples.features, indices, two.ages, 3, 2, two.ids)
        np.testing.assert_array_equal(aged, one.to_float(AGEING, 3, 2))
    again = simulation.restore(2, indexed.snapshot(), indexed.round, indexed.next_id)
    for buffer in (again, indexed):
        buffer.advance(30, simulation.stream(2).collect(9, 11))
    one, two = again.snapshot(), indexed.snapshot()  # type: ignore[assignment]
    for left, right in ((one.ages, two.ages), (one.ids, two.ids), (one.samples.content, two.samples.content)):
        np.testing.assert_array_equal(left, right)


def test_samples_and_indices_do_not_mix() -> None:
    buffer = MemoryBuffer(IndexedSamples([1, 2], [0, 0]))
    with pytest.raises(InputError) as refused:
        buffer.advance(2, pool().take(slice(0, 1)))  # type: ignore[arg-type]
    assert refused.value.field == "fresh samples"
    for indices, labels in (([0.5], [0]), ([[1]], [0]), ([1], [0, 1]), ([1], ["a"])):
        with pytest.raises(InputError):
            IndexedSamples(indices, labels)
    both = concatenate([IndexedSamples([4], [1]), IndexedSamples([9, 9], [2, 3])])
    assert (both.indices.tolist(), both.labels.tolist()) == ([4, 9, 9], [1, 2, 3])


@pytest.mark.parametrize("staleness", [1.0, 2.5, 3.25])
def test_the_first_samples_have_the_given_mean_age(staleness: float) -> None:
    buffer = Simulation(pool(), ARRIVAL, AGEING).buffer(0, 100, staleness)
    assert buffer.mean_age == pytest.approx(staleness, abs=0.005)


class EvenLabels:
    """A stream of one's own: samples with even labels, in an order that seed, client and round determine."""

    def __init__(self, samples: Samples, client: int, seed: int) -> None:
        self.even = np.flatnonzero(samples.labels % 2 == 0)
        self.key = seed, client

    def collect(self, count: int, round: int) -> Any:
        """Indices of training samples."""
        return np.random.default_rng([*self.key, round + 1]).choice(self.even, count)


def test_a_stream_of_one_s_own() -> None:
    samples = pool()
    simulation = Simulation(samples, ARRIVAL, AGEING, seed=4, make_stream=EvenLabels)
    buffer = simulation.buffer(3, 40)
    buffer.advance(20, simulation.stream(3).collect(15, 0))
    content = buffer.snapshot().samples
    assert len(content) == 35
    assert set(content.labels.tolist()) == {0, 2, 4, 6, 8}
    np.testing.assert_array_equal(samples.labels[content.indices], content.labels)
    expected = EvenLabels(samples, 3, 4).collect(15, 0)
    np.testing.assert_array_equal(content.indices[20:], expected)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ([0, 700], "integers from 0 to 699"),
        ([-1], "integers from 0 to 699"),
        ([0.0, 1.0], "integers from 0 to 699 of shape (n,)"),
        ([[0, 1]], "integers from 0 to 699 of shape (n,)"),
        (None, "integers from 0 to 699 of shape (n,)"),
        ([True], "integers from 0 to 699 of shape (n,)"),
        (list(range(6)), "at most 5 indices"),
    ],
)
def test_what_a_stream_collects_is_checked(answer: Any, rule: str) -> None:
    class Odd(EvenLabels):
        def collect(self, count: int, round: int) -> Any:
            """The answer."""
            return answer

    stream = Simulation(pool(), ARRIVAL, AGEING, make_stream=Odd).stream(0)
    with pytest.raises(InputError) as refused:
        stream.collect(5, 0)
    assert refused.value.rule == rule
    assert "Odd" in refused.value.field


def test_a_stream_may_run_dry_but_must_be_one() -> None:
    class Dry(EvenLabels):
        def collect(self, count: int, round: int) -> Any:
            """Nothing."""
            return []

    assert len(Simulation(pool(), ARRIVAL, AGEING, make_stream=Dry).stream(0).collect(5, 0)) == 0
    with pytest.raises(InputError, match="collect"):
        Simulation(pool(), ARRIVAL, AGEING, make_stream=lambda *_: 3).stream(0)  # type: ignore[arg-type]


def test_noise_is_normal_and_of_one_kind_in_every_direction() -> None:
    ageing = Ageing(time_sensitivity=1.0, num_rounds=100, noise_scale=1.0)
    grey = np.full((600, 333), 128, np.uint8)
    aged = ageing.add_noise(grey, np.arange(600), np.full(600, 101), 0, 0, np.arange(600))
    noise = (aged - np.float32(128 / 255)).astype(float)
    assert kstest(noise.ravel(), "norm").statistic < 2 / np.sqrt(noise.size) + 1 / STEPS
    assert np.abs(np.corrcoef(noise) - np.eye(600)).max() < 6 / np.sqrt(333)
    assert np.abs(np.corrcoef(noise.T) - np.eye(333)).max() < 6 / np.sqrt(600)
    columns = np.sqrt(600) * noise.mean(axis=0)
    assert kstest(columns, "norm").pvalue > 1e-3


def test_aged_features_begin_on_a_cache_line() -> None:
    aged = AGEING.add_noise(pool().features, np.arange(7), 3, 0, 0, np.arange(7))
    assert aged.ctypes.data % 64 == 0
    assert aged.shape == (7, 1, 5, 5)
