"""The equilibrium: unique, certified, fast, and right where a formula is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufl import Clients, Game, InputError, equilibrium
from dufl.game import client
from dufl.game.compression import compress
from dufl.game.mean_field import find_equilibrium, price_of
from dufl.game.parameters import Competition
from dufl.game.threads import CHUNK
from laws import random_game

BOTH: list[Competition] = ["mean-field", "nash"]


@pytest.mark.parametrize("seed", range(4))
def test_at_most_15_passes_at_the_paper_s_defaults(seed: int) -> None:
    clients = Clients.draw(15, seed)
    for theta in np.linspace(0, 1, 101):
        for payment in (1.0, 63.18, 500.0):
            found = find_equilibrium(clients, 100, payment, float(theta))
            assert found.converged
            assert found.residual <= 1e-9
            assert found.passes <= 15


@pytest.mark.parametrize("competition", BOTH)
def test_independent_of_the_start(competition: Competition) -> None:
    for seed in range(8):
        game = random_game(seed)
        payment, theta = game.payment_range[1] / 3, float(np.random.default_rng(seed).random())
        found = [
            find_equilibrium(game.clients, game.num_rounds, payment, theta, competition, start).total_volume
            for start in (None, np.full(game.num_rounds, 1e-3), np.geomspace(1e6, 1, game.num_rounds))
        ]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-7)
        np.testing.assert_allclose(found[2], found[0], rtol=1e-7)


@pytest.mark.parametrize("competition", BOTH)
def test_independent_of_the_order_of_clients(competition: Competition) -> None:
    clients = Clients.draw(37, 5)
    order = np.random.default_rng(0).permutation(37)
    mixed = Clients(1000.0, clients.collection_cost[order], clients.training_cost[order])
    one = equilibrium(Game(clients=clients), payment=90.0, conservation_rate=0.6, competition=competition)
    two = equilibrium(Game(clients=mixed), payment=90.0, conservation_rate=0.6, competition=competition)
    np.testing.assert_allclose(one.volume[:, order], two.volume, rtol=1e-8)


@pytest.mark.parametrize("competition", BOTH)
def test_scaling_all_money_changes_nothing_but_money(competition: Competition) -> None:
    clients = Clients.draw(15, 1)
    dear = Clients(1000.0, 7 * clients.collection_cost, 7 * clients.training_cost)
    one = equilibrium(Game(clients=clients), payment=60.0, conservation_rate=0.4, competition=competition)
    two = equilibrium(Game(clients=dear), payment=420.0, conservation_rate=0.4, competition=competition)
    np.testing.assert_allclose(one.volume, two.volume, rtol=1e-8)
    np.testing.assert_allclose(7 * one.outcomes.utility, two.outcomes.utility, rtol=1e-6)


def test_it_maximizes_the_potential() -> None:
    """Φ = R·Σ log φ − Σ costs is larger at the equilibrium than at any other profile tried."""
    game = Game(num_rounds=30)
    plan = equilibrium(game, payment=80.0, conservation_rate=0.5)
    generator = np.random.default_rng(0)

    def potential(collection: np.ndarray) -> float:
        from dufl.game.dynamics import volume

        held = volume(game.clients.initial_volume, collection, 0.5)
        spent = game.clients.collection_cost * collection**2 + game.clients.training_cost * held**2
        return float(80.0 * np.log(held.sum(axis=1)).sum() - spent.sum())

    best = potential(plan.collection)
    for size in (1e-3, 0.03, 0.3):
        for _ in range(50):
            other = np.maximum(plan.collection * (1 + size * generator.standard_normal((30, 15))), 0)
            assert potential(other) < best


@pytest.mark.parametrize(("competition", "influence"), [("mean-field", 0.0), ("nash", 1.0)])
def test_equal_clients_without_conservation(competition: Competition, influence: float) -> None:
    """θ = 0: every round alone, D = sqrt(R·(1 − 1/N)/(2·N·(α + β))), the 1/N in the exact game only."""
    count, payment = 8, 50.0
    game = Game(clients=Clients(1000.0, 4e-4, 2e-5, count=count), num_rounds=10)
    plan = equilibrium(game, payment=payment, conservation_rate=0.0, competition=competition)
    seen = payment * (1 - influence / count)
    expected = np.sqrt(seen / (2 * count * (4e-4 + 2e-5)))
    np.testing.assert_allclose(plan.volume[1:], expected, rtol=1e-8)


@pytest.mark.parametrize(("competition", "influence"), [("mean-field", 0.0), ("nash", 1.0)])
@pytest.mark.parametrize("theta", [0.3, 0.8, 0.95])
def test_equal_clients_settle_at_the_steady_state(
    competition: Competition, influence: float, theta: float
) -> None:
    """In mid-course D = sqrt(R·(1 − 1/N)/(N·(2β + 2α·(1−θ)²)))."""
    count, payment = 15, 70.0
    game = Game(clients=Clients(100.0, 5e-4, 2e-5, count=count), num_rounds=600)
    plan = equilibrium(game, payment=payment, conservation_rate=theta, competition=competition)
    seen = payment * (1 - influence / count)
    expected = np.sqrt(seen / (count * (2 * 2e-5 + 2 * 5e-4 * (1 - theta) ** 2)))
    np.testing.assert_allclose(plan.volume[300], expected, rtol=1e-8)


def test_one_client_two_rounds_by_hand() -> None:
    """θ = 1, one client: (2α + 2β)·D(1)² − 2α·D(0)·D(1) − R = 0."""
    alpha, beta, start, payment = 1e-2, 1e-3, 20.0, 300.0
    game = Game(clients=Clients(start, alpha, beta), num_rounds=2)
    plan = equilibrium(game, payment=payment, conservation_rate=1.0)
    a, b = 2 * alpha + 2 * beta, 2 * alpha * start
    assert plan.total_volume[1] == pytest.approx((b + np.sqrt(b**2 + 4 * a * payment)) / (2 * a))


def test_influence_lowers_volumes_by_half_of_one_over_n() -> None:
    game = Game(clients=Clients(1000.0, 5e-4, 2e-5, count=15))
    mean_field = equilibrium(game, payment=60.0, conservation_rate=0.5)
    exact = equilibrium(game, payment=60.0, conservation_rate=0.5, competition="nash")
    lower = 1 - exact.total_volume[50] / mean_field.total_volume[50]
    assert lower == pytest.approx(1 - np.sqrt(1 - 1 / 15), rel=1e-6)


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_no_payment_no_collection(theta: float) -> None:
    plan = equilibrium(Game(), payment=0.0, conservation_rate=theta)
    assert not plan.collection.any()
    np.testing.assert_allclose(plan.total_volume, 15_000 * theta ** np.arange(100.0))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    theta=st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)),
    payment=st.floats(1e-3, 1e6),
    competition=st.sampled_from(BOTH),
)
def test_every_game_has_an_equilibrium(
    seed: int, theta: float, payment: float, competition: Competition
) -> None:
    game = random_game(seed)
    found = find_equilibrium(game.clients, game.num_rounds, payment, theta, competition)
    assert found.converged
    assert (found.total_volume > 0).all()


def test_exact_needs_two_clients() -> None:
    game = Game(clients=Clients(10.0, 1e-3, 1e-5))
    with pytest.raises(InputError, match="paid all of R whatever it holds"):
        equilibrium(game, payment=1.0, conservation_rate=0.5, competition="nash")


@pytest.mark.parametrize("competition", BOTH)
def test_a_large_population_borrows_the_derivative_of_its_types(competition: Competition) -> None:
    clients = Clients.draw(5000, 2)
    found = find_equilibrium(clients, 50, 75 * 5000 / 15, 0.5, competition)
    assert found.converged
    assert found.passes <= 6
    price, slope = price_of(75 * 5000 / 15, found.total_volume, competition)
    answer = client.total_response(clients, price, slope, 0.5)
    np.testing.assert_allclose(answer, found.total_volume, rtol=1e-8)


@pytest.mark.parametrize("competition", BOTH)
def test_a_long_horizon_needs_no_system_of_equations(
    competition: Competition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a limit of rounds the halfway step alone finds the same, and memory grows with T, not T²."""
    clients = Clients.draw(15, 1)
    newton = find_equilibrium(clients, 80, 60.0, 0.7, competition)
    monkeypatch.setattr("dufl.game.mean_field.SYSTEM", 79)
    halfway = find_equilibrium(clients, 80, 60.0, 0.7, competition)
    assert halfway.converged
    assert newton.passes < halfway.passes <= 40
    np.testing.assert_allclose(halfway.total_volume, newton.total_volume, rtol=1e-8)
    monkeypatch.undo()
    long = find_equilibrium(clients, 60_000, 60.0, 0.7, competition)
    assert long.converged
    np.testing.assert_allclose(long.total_volume[20:60], newton.total_volume[20:60], rtol=1e-3)


def test_same_bits_whatever_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients.draw(3 * CHUNK + 5, 0)
    price, nothing = np.full(20, 0.01), np.zeros(20)
    totals = []
    for threads in (1, 2, 7):
        monkeypatch.setattr("os.cpu_count", lambda threads=threads: threads)
        totals.append(client.total_response(clients, price, nothing, 0.6))
    np.testing.assert_array_equal(totals[0], totals[1])
    np.testing.assert_array_equal(totals[0], totals[2])


def test_sensitivity_is_the_derivative() -> None:
    """∂Σ D/∂log φ against a finite difference, in both games."""
    clients = Clients.draw(9, 3)
    announced = np.random.default_rng(0).uniform(800, 1500, 12)
    for competition in BOTH:
        price, slope = price_of(60.0, announced, competition)
        sensitivity = np.zeros((12, 12))
        base = client.total_response(clients, price, slope, 0.7, sensitivity)
        for s in range(1, 12):
            moved = announced.copy()
            moved[s] *= np.exp(1e-6)
            change = client.total_response(clients, *price_of(60.0, moved, competition), 0.7) - base
            np.testing.assert_allclose(
                change / 1e-6, sensitivity[:, s], atol=1e-3 * np.abs(sensitivity).max()
            )


def test_compression_keeps_totals_and_nearly_the_answer() -> None:
    clients = Clients.draw(4000, 1)
    types = compress(clients, 256)
    assert types.size == 256
    assert types.num_clients == 4000
    assert types.initial_total == pytest.approx(clients.initial_total)
    price, nothing = np.full(30, 0.01), np.zeros(30)
    whole = client.total_response(clients, price, nothing, 0.5)
    np.testing.assert_allclose(client.total_response(types, price, nothing, 0.5), whole, rtol=1e-3)


LOPSIDED = Clients(1000.0, [1e-12, 1e12, 1e12], [1e-13, 1e11, 1e11])


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.9])
def test_one_client_far_cheaper_than_all_others(theta: float) -> None:
    """It holds nearly any total that is announced, and still there is one equilibrium, from every start."""
    found = [
        find_equilibrium(LOPSIDED, 20, 50.0, theta, "nash", np.full(20, start)) for start in (1.0, 1e3, 1e6)
    ]
    assert all(one.converged for one in found)
    for one in found[1:]:
        np.testing.assert_allclose(one.total_volume, found[0].total_volume, rtol=1e-4)
    plan = equilibrium(
        Game(clients=LOPSIDED, num_rounds=20), payment=50.0, conservation_rate=theta, competition="nash"
    )
    assert plan.certificate.holds()


def test_a_start_far_below_the_equilibrium() -> None:
    """Buffers of a few samples and a payment for trillions of them."""
    clients = Clients([2.0, 5.0, 1.0], [2e-5, 1e-4, 4e-7], [5e-8, 2e-7, 4e-5])
    found = find_equilibrium(clients, 40, 4e19, 0.0, "nash")
    assert found.converged
    assert found.total_volume[1:].min() > 1e11
