"""Volume and staleness: the definition, Lemma 1, totals, and a buffer simulated sample by sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dufl.game.dynamics import collection, general_staleness, staleness, volume


@given(
    theta=st.floats(0, 1),
    start=st.floats(1, 20),
    collected=st.lists(st.floats(0.01, 1e4), min_size=2, max_size=30),
    initial=st.floats(0.01, 1e5),
)
def test_definition_is_lemma_1(theta: float, start: float, collected: list[float], initial: float) -> None:
    held = volume([initial], np.array(collected)[:, None], theta)
    definition = staleness(held, theta, start)
    np.testing.assert_allclose(definition, general_staleness(held, theta, start), rtol=1e-9)


def test_the_collection_is_what_the_volumes_say() -> None:
    collected = np.random.default_rng(1).random((9, 3))
    for theta in (0.0, 0.4, 1.0):
        held = volume([5.0, 0.0, 70.0], collected, theta)
        np.testing.assert_allclose(collection(held, theta), collected[:-1], atol=1e-12)
    assert collection(np.array([[4.0], [1.0]]), 0.5).tolist() == [[0.0]]  # more was discarded than planned


def test_definition_as_the_paper_writes_it() -> None:
    generator = np.random.default_rng(0)
    theta, collected = 0.6, generator.random((12, 4))
    held = volume(generator.random(4) + 0.1, collected, theta)
    aged = staleness(held, theta)
    for t in range(1, 12):
        conserved = theta * held[t - 1] / held[t] * (aged[t - 1] + 1)
        np.testing.assert_allclose(aged[t], conserved + collected[t - 1] / held[t])


def test_totals_are_enough() -> None:
    """Σ D_k·S_k/φ follows from the total volume alone, with any initial staleness."""
    generator = np.random.default_rng(1)
    theta, start = 0.7, generator.uniform(1, 9, 5)
    held = volume(generator.random(5) + 0.1, generator.random((15, 5)), theta)
    total = held.sum(axis=1)
    mean = (held * staleness(held, theta, start)).sum(axis=1) / total
    first = held[0] @ start / total[0]
    np.testing.assert_allclose(staleness(total, theta, first), mean)


@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_staleness_is_the_mean_age_of_a_simulated_buffer(theta: float) -> None:
    """Ages of single samples, discarded uniformly: their mean is S(t) in expectation."""
    rounds, collected = 12, np.array([8, 0, 12, 4, 0, 0, 40, 4, 0, 16, 8, 0])
    start = np.array([1, 2, 5, 8] * 32)  # ages at the beginning; 128 samples
    means = []
    for seed in range(600):
        generator = np.random.default_rng(seed)
        ages, course, counts = start.copy(), [start.mean()], [start.size]
        for t in range(rounds - 1):
            kept = generator.permutation(ages)[: round(theta * ages.size)] + 1
            ages = np.concatenate([kept, np.ones(collected[t], int)])
            course.append(ages.mean() if ages.size else 1.0)
            counts.append(ages.size)
        means.append(course)
    whole = np.array(counts, float)
    measured, error = np.mean(means, axis=0), np.std(means, axis=0) / np.sqrt(len(means))
    conserved = np.rint(theta * whole[:-1]) / np.where(whole[:-1] > 0, whole[:-1], 1)
    expected = [start.mean()]
    for t in range(1, rounds):  # the law with the counts of whole samples
        pair = np.array([whole[t - 1], whole[t]])
        expected.append(float(staleness(pair, conserved[t - 1], expected[-1])[1]))
    assert (np.abs(measured - expected) <= 4 * error + 1e-12).all()
    if theta in (0.0, 1.0):  # nothing is rounded: the plan's own law
        planned = volume(start.size, collected.astype(float), theta)
        np.testing.assert_array_equal(planned, whole)
        np.testing.assert_allclose(staleness(planned, theta, start.mean()), expected)


def test_nothing_conserved_is_always_fresh() -> None:
    held = volume([5.0], np.full((6, 1), 2.0), 0.0)
    assert staleness(held, 0.0).ravel().tolist() == [1.0] * 6


def test_everything_conserved_ages_by_one_a_round() -> None:
    held = volume([5.0], np.zeros((6, 1)), 1.0)
    assert staleness(held, 1.0, 3.0).ravel().tolist() == [3, 4, 5, 6, 7, 8]


def test_an_empty_buffer_is_not_old() -> None:
    assert staleness(np.array([5.0, 0.0, 0.0, 2.0]), 0.0).tolist() == [1, 1, 1, 1]
