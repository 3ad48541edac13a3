"""The certificate: it agrees with a QP solver on any profile, and it can say no."""

from itertools import pairwise

import numpy as np
import pytest

from dufl import Certificate, Clients, Game, InputError, certify, certify_profile, equilibrium
from dufl.game.client import best_response, random_strategy, zero_strategy
from dufl.game.deviation import best_deviation
from dufl.game.dynamics import volume as volume_law
from dufl.game.parameters import Competition
from laws import money, qp_optimum, random_game, rough_clients, rough_price

BOTH: list[Competition] = ["mean-field", "nash"]


def test_dynamic_programming_finds_what_the_solver_finds() -> None:
    """Two algorithms that share no formula, on rough problems: the same optimum."""
    generator = np.random.default_rng(0)
    for _ in range(2000):
        price = rough_price(generator, int(generator.integers(2, 121)))
        initial, alpha, beta = rough_clients(generator, 4)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        volume, collection = best_response(price, initial, alpha, beta, theta)
        for k in range(4):
            held, collected = np.empty_like(price), np.empty_like(price)
            best_deviation(
                price, np.full_like(price, 2 * beta[k]), theta, alpha[k], initial[k], False, held, collected
            )
            ours = money(price, volume[:, k], collection[:, k], alpha[k], beta[k])
            theirs = money(price, held, collected, alpha[k], beta[k])
            turnover = float(price @ held + alpha[k] * collected @ collected + beta[k] * held @ held)
            assert abs(ours - theirs) <= 1e-10 * turnover


@pytest.mark.parametrize("competition", BOTH)
@pytest.mark.parametrize("seed", range(12))
def test_no_client_gains_by_deviating(seed: int, competition: Competition) -> None:
    game = random_game(seed)
    payment = game.payment_range[1] / 5
    theta = [0.0, 1.0, 0.5, 0.9][seed % 4]
    plan = equilibrium(game, payment=payment, conservation_rate=theta, competition=competition)
    certificate = certify(plan)
    assert certificate.deviation_gain <= 1e-8
    assert certificate.kkt_residual.max() <= 1e-6
    assert certificate.law_residual.max() <= 1e-12
    assert certificate.equilibrium_residual <= 1e-6
    assert certificate.holds()


@pytest.mark.parametrize("theta", [0.0, 0.4, 0.9, 1.0])
def test_the_gain_of_any_profile_is_what_a_qp_solver_finds(theta: float) -> None:
    game = Game(num_rounds=25)
    clients = game.clients
    plan = equilibrium(game, payment=60.0, conservation_rate=theta)
    volume, collection = random_strategy(clients.initial_volume, plan.collection + 5, theta, seed=3)
    certificate = certify_profile(game, 60.0, theta, volume, collection)
    assert not certificate.holds()
    price = 60.0 / volume.sum(axis=1)
    for k in range(15):
        alpha, beta = clients.collection_cost[k], clients.training_cost[k]
        held, collected, _ = qp_optimum(price, 1000.0, alpha, beta, theta)
        gain = money(price, held, collected, alpha, beta)
        gain -= money(price, volume[:, k], collection[:, k], alpha, beta)
        assert certificate.fixed_gain[k] == pytest.approx(gain, rel=1e-5, abs=1e-7)


def test_the_gain_from_influence_is_reached_and_not_exceeded() -> None:
    """The upper bound against what hill climbing in the true utility finds."""
    from scipy.optimize import minimize

    game = Game(num_rounds=8, clients=Clients.draw(3, 0))
    plan = equilibrium(game, payment=20.0, conservation_rate=0.6)
    certificate = certify(plan)
    for k in range(3):
        alpha, beta = game.clients.collection_cost[k], game.clients.training_cost[k]
        others = plan.volume.sum(axis=1) - plan.volume[:, k]

        def lost(
            collection: np.ndarray, others: np.ndarray = others, a: float = alpha, b: float = beta
        ) -> float:
            held = volume_law(1000.0, np.append(collection, 0.0), 0.6)
            share = held / (held + others)
            return -float(20.0 * share.sum() - a * collection @ collection - b * held @ held)

        start = plan.collection[:-1, k]
        found = minimize(lost, start, bounds=[(0, None)] * 7, method="L-BFGS-B", options={"ftol": 1e-15})
        gain = lost(start) - found.fun
        assert gain > 0
        assert certificate.influence_gain[k] == pytest.approx(gain, rel=1e-3)
        assert certificate.influence_gain[k] >= gain * (1 - 1e-9)


def test_what_the_mean_field_leaves_out_falls_with_n() -> None:
    gains = []
    for count in (2, 10, 50, 250):
        game = Game(clients=Clients.draw(count, 0))
        plan = equilibrium(game, payment=4.0 * count, conservation_rate=0.5)
        certificate = certify(plan)
        assert certificate.deviation_gain <= 1e-8
        gains.append(certificate.influence)
    assert all(more > 3 * less for more, less in pairwise(gains))
    assert gains[-1] < 1e-4


def _doctored(change: str) -> Certificate:
    game = Game(num_rounds=20)
    plan = equilibrium(game, payment=60.0, conservation_rate=0.5)
    volume, collection = plan.volume.copy(), plan.collection.copy()
    if change == "volume":
        volume[7, 3] *= 1.01
    if change == "collection":
        collection[6, 3] *= 1.01
        volume = volume_law(game.clients.initial_volume, collection, 0.5)
    if change == "negative":
        collection[6, 3] = -1.0
        volume = volume_law(game.clients.initial_volume, collection, 0.5)
    if change == "zero":
        volume, collection = zero_strategy(game.clients.initial_volume, 20, 0.5)
    return certify_profile(game, 60.0, 0.5, volume, collection)


@pytest.mark.parametrize("change", ["volume", "collection", "negative", "zero"])
def test_it_says_no(change: str) -> None:
    assert not _doctored(change).holds()


def test_it_names_the_violation() -> None:
    assert _doctored("none").holds()
    assert _doctored("volume").law_residual.argmax() == 3
    moved = _doctored("collection")
    assert moved.law_residual.max() < 1e-12
    assert moved.kkt_residual.argmax() == 3
    assert moved.fixed_gain.argmax() == 3


def test_where_all_data_has_died_out_everything_is_to_be_gained() -> None:
    game = Game(num_rounds=4)
    volume, collection = zero_strategy(game.clients.initial_volume, 4, 0.0)
    assert certify_profile(game, 10.0, 0.0, volume, collection).deviation_gain == np.inf
    assert certify_profile(game, 0.0, 0.0, volume, collection).holds()


def test_a_profile_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"volume must be of shape \(100, 15\)"):
        certify_profile(Game(), 1.0, 0.5, np.ones((3, 15)), np.ones((3, 15)))


@pytest.mark.parametrize("theta", [1e-9, 1e-12, 1e-16, 4e-19, 1e-30])
@pytest.mark.parametrize("trim_start", [False, True])
def test_conservation_rates_near_nothing_lose_no_digits(theta: float, trim_start: bool) -> None:
    plan = equilibrium(Game(num_rounds=10, trim_start=trim_start), payment=1.0, conservation_rate=theta)
    assert plan.certificate.worst <= 1e-8
