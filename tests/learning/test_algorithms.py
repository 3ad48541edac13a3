"""FedAvg, FedProx and FedDyn do what their papers say, whatever trains the clients."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dufl.learning.algorithm import Algorithm, LocalPenalty, Mean, Update, Vector, refusal
from dufl.learning.fedavg import FedAvg
from dufl.learning.feddyn import FedDyn
from dufl.learning.fedprox import FedProx
from dufl.learning.settings import Training
from own_plugins import Scaffold

NOTHING = np.zeros(0, np.float32)
vectors = arrays(np.float32, 5, elements=st.floats(-10, 10, width=32))


def update(client: int, weights: Vector, volume: int = 1, steps: int = 0) -> Update:
    return Update(client, volume, weights, NOTHING, steps)


class Quadratic:
    """A client whose loss is ½·(w − c)ᵀA(w − c), trained by plain gradient descent on it and its pull."""

    def __init__(self, seed: int, size: int = 5) -> None:
        generator = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(generator.standard_normal((size, size)))
        self.matrix = basis @ np.diag(generator.uniform(0.2, 4.0, size)) @ basis.T
        self.centre = generator.standard_normal(size)

    def train(self, start: Vector, penalty: LocalPenalty, steps: int, rate: float = 0.1) -> Vector:
        w = start.astype(np.float64)
        linear = 0.0 if penalty.linear is None else penalty.linear.astype(np.float64)
        for _ in range(steps):
            w = w - rate * (self.matrix @ (w - self.centre) + penalty.strength * (w - start) - linear)
        return w.astype(np.float32)


CLIENTS = [Quadratic(seed) for seed in range(6)]
OPTIMUM = np.linalg.solve(sum(c.matrix for c in CLIENTS), sum(c.matrix @ c.centre for c in CLIENTS))


def rounds(algorithm: Algorithm, count: int, steps: int = 50) -> Iterator[Vector]:
    weights = np.zeros(5, np.float32)
    state = algorithm.init(weights, len(CLIENTS), Training(learning_rate=0.1))
    for _ in range(count):
        answers = [
            update(k, client.train(weights, algorithm.penalty(state, k), steps), steps=steps)
            for k, client in enumerate(CLIENTS)
        ]
        weights, state = algorithm.apply(state, weights, iter(answers))
        yield weights


def error(algorithm: Algorithm, count: int = 400) -> float:
    *_, last = rounds(algorithm, count)
    return float(np.abs(last - OPTIMUM).max())


def test_feddyn_reaches_the_optimum_where_fedavg_stops_beside_it() -> None:
    beside = error(FedAvg())
    assert beside > 0.05
    assert error(FedAvg(), 800) == pytest.approx(beside, rel=1e-3)  # it has stopped
    assert error(FedDyn(0.5)) < 1e-5


def test_scaffold_needs_only_the_settings_and_the_steps_to_reach_the_optimum() -> None:
    assert error(Scaffold()) < 1e-4


def test_fedprox_ends_nearer_to_the_optimum_but_not_at_it() -> None:
    assert 1e-3 < error(FedProx(1.0)) < error(FedAvg())


def test_fedprox_without_weight_is_fedavg() -> None:
    for one, two in zip(rounds(FedProx(0.0), 5), rounds(FedAvg(), 5), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("taking_part", [1.0, 0.5])
def test_feddyn_state_sums_as_its_paper_says(taking_part: float) -> None:
    generator = np.random.default_rng(0)
    algorithm, weights = FedDyn(0.3), np.zeros(5, np.float32)
    state = algorithm.init(weights, len(CLIENTS), Training())
    for _ in range(30):
        called = np.flatnonzero(generator.random(len(CLIENTS)) < taking_part).tolist()
        before = dict(state)
        answers = [update(k, CLIENTS[k].train(weights, algorithm.penalty(state, k), 20)) for k in called]
        after, state = algorithm.apply(state, weights, answers)
        gradients = [state.get(f"client {k}", np.zeros(5)) for k in range(len(CLIENTS))]
        np.testing.assert_allclose(state["server"], np.mean(gradients, axis=0), atol=1e-5)
        for k, answer in zip(called, answers, strict=True):
            moved = -0.3 * (answer.weights - weights)
            was = before.get(f"client {k}", np.zeros(5))
            np.testing.assert_allclose(state[f"client {k}"], was + moved, atol=1e-6)
        if len(called):
            mean = np.mean([answer.weights for answer in answers], axis=0)
            np.testing.assert_allclose(after, mean - state["server"] / 0.3, atol=1e-5)
        weights = after


def test_feddyn_gradients_are_gradients_when_clients_train_to_the_end() -> None:
    algorithm, weights = FedDyn(0.5), np.zeros(5, np.float32)
    state = algorithm.init(weights, len(CLIENTS), Training())
    answers = []
    for _ in range(3):
        answers = [
            update(k, c.train(weights, algorithm.penalty(state, k), 3000)) for k, c in enumerate(CLIENTS)
        ]
        weights, state = algorithm.apply(state, weights, answers)
    for k, client in enumerate(CLIENTS):
        gradient = client.matrix @ (answers[k].weights - client.centre)
        np.testing.assert_allclose(state[f"client {k}"], gradient, atol=1e-4)


@given(st.lists(st.tuples(vectors, st.integers(1, 10_000)), min_size=1, max_size=8))
def test_weights_follow_volumes_and_sum_to_one(answers: list[tuple[Vector, int]]) -> None:
    updates = [update(k, vector, volume) for k, (vector, volume) in enumerate(answers)]
    found, _ = FedAvg().apply({}, np.zeros(5, np.float32), updates)
    share = np.array([volume for _, volume in answers]) / sum(volume for _, volume in answers)
    expected = share @ np.array([vector for vector, _ in answers], dtype=np.float64)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@given(vectors, st.lists(st.integers(1, 2**20), min_size=1, max_size=9))
def test_equal_updates_give_themselves_bit_for_bit(vector: Vector, volumes: list[int]) -> None:
    updates = [update(k, vector, volume) for k, volume in enumerate(volumes)]
    found, _ = FedAvg().apply({}, np.zeros(5, np.float32), updates)
    np.testing.assert_array_equal(found, vector)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(), FedDyn()])
def test_nobody_answers_and_nothing_changes(algorithm: Algorithm) -> None:
    weights = np.arange(5, dtype=np.float32)
    state = algorithm.init(weights, 3, Training())
    after, still = algorithm.apply(state, weights, [])
    np.testing.assert_array_equal(after, weights)
    assert still == state


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(), FedDyn()])
def test_what_is_given_is_not_changed(algorithm: Algorithm) -> None:
    weights = np.ones(5, np.float32)
    state = algorithm.init(weights, 2, Training())
    _, state = algorithm.apply(state, weights, [update(0, 2 * weights), update(1, -weights)])
    kept = {name: vector.copy() for name, vector in state.items()}
    answer = update(0, 3 * weights)
    algorithm.apply(state, weights, [answer])
    np.testing.assert_array_equal(weights, np.ones(5))
    np.testing.assert_array_equal(answer.weights, 3 * np.ones(5))
    assert all((state[name] == kept[name]).all() for name in kept)


def test_refusals() -> None:
    good = np.zeros(4, np.float32)
    assert refusal(update(0, good), 4) == ""
    assert "shape (3,), not (4,)" in refusal(update(0, good[:3]), 4)
    assert "not a number" in refusal(update(0, np.array([0, np.nan, 0, 0], np.float32)), 4)
    assert "infinite" in refusal(update(0, np.array([0, -np.inf, 0, 0], np.float32)), 4)
    assert "not a number" in refusal(Update(0, 1, good, np.array([np.nan], np.float32)), 4)


def test_mean_of_nothing() -> None:
    mean = Mean()
    np.testing.assert_array_equal(mean.value(np.ones(2, np.float32)), [1, 1])
