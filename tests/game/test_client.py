"""The best response: optimal on any input, and the simpler strategies it is compared with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dufl import InputError, best_response
from dufl.game.client import random_strategy, zero_strategy
from dufl.game.dynamics import volume as volume_law
from laws import holding, kkt_residual, money, qp_optimum, rough_clients, rough_price


def test_kkt_holds_on_200_000_rough_problems() -> None:
    generator = np.random.default_rng(0)
    worst, solved = 0.0, 0
    while solved < 200_000:
        price = rough_price(generator, int(generator.integers(2, 121)))
        initial, alpha, beta = rough_clients(generator, 32)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        volume, collection = best_response(price, initial, alpha, beta, theta)
        assert (collection >= 0).all()
        assert (collection[-1] == 0).all()
        np.testing.assert_array_equal(volume[0], initial)
        np.testing.assert_allclose(volume_law(initial, collection, theta), volume, rtol=1e-12)
        residual = kkt_residual(price, volume, collection, alpha, beta, theta)
        worst = max(worst, float(residual.max()))
        solved += initial.size
    assert worst <= 1e-8


def test_the_kkt_law_can_fail() -> None:
    price, one = np.full(10, 1.0), np.ones(1)
    volume, collection = best_response(price, 0.0, one, one, 0.5)
    assert kkt_residual(price, volume, collection, one, one, 0.5).max() < 1e-12
    collection[4] *= 1.001
    volume = volume_law(0.0, collection, 0.5)
    assert kkt_residual(price, volume, collection, one, one, 0.5).max() > 1e-5


def test_agrees_with_a_qp_solver() -> None:
    generator = np.random.default_rng(1)
    for _ in range(150):
        price = rough_price(generator, int(generator.integers(2, 60)))
        (initial,), (alpha,), (beta,) = rough_clients(generator, 1)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        volume, collection = best_response(price, initial, alpha, beta, theta)
        ours = money(price, volume[:, 0], collection[:, 0], alpha, beta)
        held, collected, unit = qp_optimum(price, initial, alpha, beta, theta)
        theirs = money(price, held, collected, alpha, beta)
        scale = float(price @ volume[:, 0]) + abs(ours) + unit
        assert ours >= theirs - 1e-9 * scale  # nothing feasible is better
        assert theirs >= ours - 1e-6 * scale  # and the QP solver finds as much


@given(
    theta=st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)),
    price=st.lists(st.floats(0, 1e6), min_size=2, max_size=40),
    initial=st.floats(0, 1e6),
    alpha=st.floats(1e-6, 1e3),
    beta=st.floats(0, 1e3),
)
def test_no_input_fails(theta: float, price: list[float], initial: float, alpha: float, beta: float) -> None:
    volume, collection = best_response(price, initial, alpha, beta, theta)
    residual = kkt_residual(np.array(price), volume, collection, np.array([alpha]), np.array([beta]), theta)
    assert residual.max() <= 1e-8


def test_blocked_rounds_never_need_to_be_freed() -> None:
    """The matrix of the complementarity problem is an M-matrix: the reason why nothing cycles."""
    generator = np.random.default_rng(2)
    for _ in range(50):
        theta, alpha, beta = generator.random(), *(10 ** generator.uniform(-4, 0, 2))
        held = holding(int(generator.integers(2, 30)), theta)[1:, :-1]
        inverse = np.linalg.inv(2 * alpha * np.eye(len(held)) + 2 * beta * held.T @ held)
        off_diagonal = inverse - np.diag(np.diag(inverse))
        assert off_diagonal.max() <= 1e-9 * np.diag(inverse).max()


def test_without_conservation_a_round_stands_alone() -> None:
    price = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    volume, collection = best_response(price, 7.0, 0.3, 0.2, 0.0)
    np.testing.assert_allclose(volume[1:, 0], price[1:] / (2 * (0.3 + 0.2)))
    np.testing.assert_allclose(collection[:-1], volume[1:])


def test_full_conservation_without_training_cost() -> None:
    price = np.array([9.0, 1.0, 2.0, 3.0])
    _, collection = best_response(price, 0.0, 0.5, 0.0, 1.0)
    np.testing.assert_allclose(collection[:, 0], [6.0, 5.0, 3.0, 0.0])


def test_two_rounds_by_hand() -> None:
    price, initial, alpha, beta, theta = 10.0, 3.0, 0.5, 0.25, 0.8
    _, collection = best_response([0.0, price], initial, alpha, beta, theta)
    assert collection[0, 0] == pytest.approx((price - 2 * beta * theta * initial) / (2 * (alpha + beta)))


def test_too_much_data_is_left_to_fade() -> None:
    volume, collection = best_response(np.full(20, 1.0), 1000.0, 0.1, 0.1, 0.5)
    assert collection[0, 0] == 0
    assert collection[-2, 0] > 0
    assert volume[1, 0] == 500


def test_clients_do_not_affect_each_other() -> None:
    generator = np.random.default_rng(3)
    initial, alpha, beta = rough_clients(generator, 40)
    price = rough_price(generator, 30)
    together = best_response(price, initial, alpha, beta, 0.7)[0]
    for k in range(40):
        alone = best_response(price, initial[k], alpha[k], beta[k], 0.7)[0]
        np.testing.assert_array_equal(together[:, [k]], alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"price": [1.0]}, "price must be two or more finite numbers"),
        ({"price": [1.0, float("nan")]}, "price must be two or more finite numbers"),
        ({"conservation_rate": 1.3}, "conservation_rate must be in [0, 1], got 1.3"),
        ({"collection_cost": 0.0}, "collection_cost must be > 0, got 0 for client 0"),
        ({"training_cost": -1.0}, "training_cost must be >= 0, got -1 for client 0"),
        ({"initial_volume": [1.0, 2.0, 3.0], "collection_cost": [1.0, 2.0]}, "collection_cost must be one"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "price": [1.0, 2.0],
        "initial_volume": 1.0,
        "collection_cost": 1.0,
        "training_cost": 1.0,
        "conservation_rate": 0.5,
    }
    with pytest.raises(InputError) as caught:
        best_response(**(good | change))  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_zero_strategy_only_fades() -> None:
    volume, collection = zero_strategy(np.array([8.0, 4.0]), 3, 0.5)
    assert volume.tolist() == [[8, 4], [4, 2], [2, 1]]
    assert not collection.any()


def test_random_strategy_collects_as_much_in_expectation() -> None:
    plan = np.random.default_rng(0).random((20, 3)) * [1, 10, 100]
    totals = np.array([random_strategy(np.zeros(3), plan, 0.5, seed)[1].sum(axis=0) for seed in range(2000)])
    error = totals.std(axis=0) / np.sqrt(len(totals))
    assert (np.abs(totals.mean(axis=0) - plan.sum(axis=0)) < 4 * error).all()
    one = random_strategy(np.zeros(3), plan, 0.5, 0)
    again = random_strategy(np.zeros(3), plan, 0.5, 0)
    np.testing.assert_array_equal(one[1], again[1])
    np.testing.assert_allclose(one[0], volume_law(np.zeros(3), one[1], 0.5))
