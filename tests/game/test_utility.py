"""Money and accuracy: the formulas by hand, and Theorem 1 against a measured training run."""

from typing import Any

import numpy as np
import pytest

from dufl import Clients, Game, InputError, convergence_weights
from dufl.game.dynamics import staleness, volume
from dufl.game.utility import client_cost, client_payment, client_utility, convergence_bound, server_cost


def test_client_utility_by_hand() -> None:
    clients = Clients([1.0, 3.0], [0.1, 0.2], [0.01, 0.02])
    held, collected = np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([[1.5, 0.5], [0.0, 0.0]])
    total = held.sum(axis=1)
    np.testing.assert_allclose(client_payment(8.0, held, total), [[2, 6], [4, 4]])
    np.testing.assert_allclose(client_cost(clients, held, collected)[0], [0.235, 0.23])
    expected = [6 - 0.1 * 2.25 - 0.01 * 5, 10 - 0.2 * 0.25 - 0.02 * 13]
    np.testing.assert_allclose(client_utility(clients, 8.0, held, collected, total), expected)


def test_all_of_the_payment_is_paid_out() -> None:
    held = np.random.default_rng(0).random((7, 5))
    np.testing.assert_allclose(client_payment(12.5, held, held.sum(axis=1)).sum(axis=1), 12.5)


def test_server_cost_is_the_paper_s_formula() -> None:
    generator = np.random.default_rng(1)
    clients = Clients(generator.random(3) + 1, 1e-3, 1e-5, initial_staleness=[1, 2, 3])
    game = Game(
        clients=clients, num_rounds=6, time_sensitivity=0.7, sampling_noise=2.0, payment_weight=0.1,
        decay=0.9, volume_weight=3.0, staleness_weight=0.5,
    )  # fmt: skip
    held = volume(clients.initial_volume, generator.random((6, 3)), 0.4)
    aged = staleness(held, 0.4, clients.initial_staleness)
    total = held.sum(axis=1)
    expected = 0.0
    for t in range(6):
        stale = sum(held[t, k] / total[t] * aged[t, k] for k in range(3)) * 0.7**2
        expected += 0.1 * 20 + 0.9 * 0.9 ** (5 - t) * (3.0 * 3 * 2.0**2 / total[t] + 0.5 * stale)
    cost = server_cost(game, 20.0, 0.4, total)
    assert cost.total == pytest.approx(expected)
    assert cost.payment.sum() == pytest.approx(0.1 * 20 * 6)
    np.testing.assert_allclose(cost.per_round, cost.payment + cost.volume + cost.staleness)


def test_data_that_dies_out_costs_without_bound() -> None:
    game = Game(num_rounds=3)
    fading = server_cost(game, 0.0, 1e-3, np.array([1.0, 1e-100, 1e-200])).total
    assert 1e200 < fading < np.inf
    assert server_cost(game, 0.0, 0.0, np.array([1.0, 0.0, 0.0])).total == np.inf


def test_weights_of_theorem_1() -> None:
    weights = convergence_weights(strong_convexity=0.5, smoothness=2.0, learning_rate=0.1)
    assert weights == pytest.approx({"decay": 0.94, "volume_weight": 0.04, "staleness_weight": 0.02})
    convexity: dict[str, Any] = {"strong_convexity": 0.5, "smoothness": 2.0, "learning_rate": 0.1}
    assert Game(**weights).decay == Game(**convexity).decay
    for change, message in (
        ({"learning_rate": 0.3}, r"learning_rate must be <= 1/\(2 \* smoothness\) = 0.25, got 0.3"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'"),
        ({"strong_convexity": 3.0}, "strong_convexity must be <= smoothness = 2, got 3"),
        ({"decay": 0.5}, "decay must be left out"),
    ):
        with pytest.raises(InputError, match=message):
            Game(**(convexity | change))
    del convexity["learning_rate"]
    with pytest.raises(InputError, match="must be given together, got only strong_convexity, smoothness"):
        Game(**convexity)


def _measured_gap(
    game: Game, theta: float, held: np.ndarray, curvature: np.ndarray, rate: float
) -> np.ndarray:
    """F(w(T)) − F* of federated gradient descent on a quadratic, in many independent runs.

    A client's gradient is the true one plus noise whose variance is Assumption 7's ψ²/D_k + S_k·σ².
    """
    runs, dimensions = 4000, curvature.size
    generator = np.random.default_rng(0)
    aged = staleness(held, theta)
    weights = np.ones((runs, dimensions))
    for t in range(game.num_rounds):
        variance = game.sampling_noise**2 / held[t] + aged[t] * game.time_sensitivity**2
        share = held[t] / held[t].sum()
        noise = generator.standard_normal((runs, held.shape[1], dimensions))
        noise *= np.sqrt(variance / dimensions)[None, :, None]
        weights = weights - rate * (curvature * weights + np.einsum("k,rkd->rd", share, noise))
    return np.asarray(0.5 * (curvature * weights**2).sum(axis=1))


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("clients", [1, 4])
def test_theorem_1_bounds_a_measured_run(theta: float, clients: int) -> None:
    curvature, rate = np.array([0.5, 0.8, 1.3, 2.0]), 0.15
    weights = convergence_weights(strong_convexity=0.5, smoothness=2.0, learning_rate=rate)
    start = np.linspace(2.0, 6.0, clients)
    game = Game(
        clients=Clients(start, 1e-3, 1e-5),
        num_rounds=120,
        time_sensitivity=1.0,
        sampling_noise=2.0,
        **weights,
    )
    held = volume(start, np.full((120, clients), 0.5), theta)
    gap = _measured_gap(game, theta, held, curvature, rate)
    measured, error = gap.mean(), gap.std() / np.sqrt(gap.size)
    initial = 0.5 * curvature.sum()
    bound = convergence_bound(game, theta, held.sum(axis=1), initial)
    assert measured + 4 * error <= bound
    # The law has teeth: without the terms of volume and staleness the bound is broken.
    quiet = game.replace(sampling_noise=0.0, time_sensitivity=0.0)
    assert measured - 4 * error > convergence_bound(quiet, theta, held.sum(axis=1), initial)


def test_drift_adds_to_the_bound() -> None:
    game = Game(num_rounds=3, decay=0.5)
    total = np.full(3, 10.0)
    still = convergence_bound(game, 0.5, total, 1.0)
    assert convergence_bound(game, 0.5, total, 1.0, drift=[4.0, 2.0, 1.0]) == pytest.approx(still + 3.0)
