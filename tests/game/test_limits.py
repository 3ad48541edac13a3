"""Clients with a capacity and with prices per sample: exact best responses, alone and in equilibrium."""

from typing import Any

import numpy as np
import pytest

from dufl import Clients, Game, InputError, best_response, equilibrium, solve
from dufl.errors import CapacityError
from dufl.game.client import random_strategy
from dufl.game.dynamics import volume as volume_law
from dufl.game.mean_field import find_equilibrium
from dufl.game.parameters import Competition
from laws import rough_clients, rough_price
from limits import limited_kkt_residual, limited_money, limited_qp_optimum, rough_limits


def test_kkt_holds_on_200_000_rough_problems_with_capacities_and_prices() -> None:
    generator = np.random.default_rng(10)
    worst, solved, full = 0.0, 0, 0
    while solved < 200_000:
        price = rough_price(generator, int(generator.integers(2, 121)))
        initial, alpha, beta = rough_clients(generator, 128)
        capacity, paid, charged = rough_limits(generator, initial, price)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        volume, collection = best_response(
            price,
            initial,
            alpha,
            beta,
            theta,
            capacity=capacity,
            collection_price=paid,
            training_price=charged,
        )
        assert (collection >= 0).all()
        assert (volume <= capacity).all()
        np.testing.assert_array_equal(volume[0], initial)
        np.testing.assert_allclose(volume_law(initial, collection, theta), volume, rtol=1e-12)
        residual = limited_kkt_residual(
            price, volume, collection, alpha, beta, theta, capacity, paid, charged
        )
        worst = max(worst, float(residual.max()))
        full += int((volume[1:] == capacity).any(axis=0).sum())
        solved += initial.size
    assert worst <= 1e-8
    assert full > 40_000  # the capacity matters in many of them


@pytest.mark.parametrize("trim_start", [False, True])
def test_agrees_with_a_qp_solver(trim_start: bool) -> None:
    generator = np.random.default_rng(11 + trim_start)
    bound = 0
    for _ in range(250):
        price = rough_price(generator, int(generator.integers(2, 50)))
        initial, alpha, beta = rough_clients(generator, 1)
        capacity, paid, charged = rough_limits(generator, initial, price)
        if trim_start and generator.random() < 0.3:
            capacity = np.minimum(capacity, 0.5 * initial + 1e-3)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        costs = float(alpha[0]), float(beta[0]), float(paid[0]), float(charged[0])
        volume, collection = best_response(
            price,
            initial,
            alpha,
            beta,
            theta,
            trim_start,
            capacity=capacity,
            collection_price=paid,
            training_price=charged,
        )
        ours = limited_money(price, volume[:, 0], collection[:, 0], costs)
        held, collected, unit = limited_qp_optimum(
            price, float(initial[0]), costs, theta, float(capacity[0]), trim_start
        )
        theirs = limited_money(price, held, collected, costs)
        scale = float(price @ volume[:, 0]) + abs(ours) + unit
        assert theirs >= ours - 1e-6 * scale
        assert ours >= theirs - 1e-6 * scale  # the QP solver may exceed a bound by its tolerance
        bound += bool((volume[:, 0] >= capacity[0]).any())
    assert bound > 50


def test_without_limits_the_bits_are_the_same() -> None:
    generator = np.random.default_rng(12)
    for _ in range(50):
        price = rough_price(generator, 40)
        initial, alpha, beta = rough_clients(generator, 50)
        for trim in (False, True):
            plain = best_response(price, initial, alpha, beta, 0.8, trim)
            most = float(plain[0].max())
            ample = best_response(price, initial, alpha, beta, 0.8, trim, capacity=most)
            np.testing.assert_array_equal(plain[0], ample[0])
            np.testing.assert_array_equal(plain[1], ample[1])


def test_the_capacity_binds_where_the_multiplier_is_positive() -> None:
    """A flat price: the unconstrained optimum is a hump, whose top is cut off."""
    price = np.full(40, 1.0)
    free, _ = best_response(price, 0.0, 0.2, 0.05, 0.9)
    capacity = 0.6 * float(free.max())
    volume, _ = best_response(price, 0.0, 0.2, 0.05, 0.9, capacity=capacity)
    full = np.flatnonzero(volume[:, 0] == capacity)
    assert full.size > 3
    assert (np.diff(full) == 1).all()  # one stretch
    assert (free[full, 0] > capacity).all()
    assert (volume <= free).all()


def test_more_storage_never_lowers_what_is_earned_or_held() -> None:
    generator = np.random.default_rng(13)
    for _ in range(200):
        price = rough_price(generator, 30)
        (initial,), (alpha,), (beta,) = rough_clients(generator, 1)
        theta = generator.random()
        capacities = initial + np.geomspace(1e-2, 1e4, 12)
        volume, collection = best_response(
            price, np.full(12, initial), alpha, beta, theta, capacity=capacities
        )
        assert (np.diff(volume, axis=1) >= -1e-9 * volume.max()).all()
        earned = [
            limited_money(price, volume[:, k], collection[:, k], (alpha, beta, 0.0, 0.0)) for k in range(12)
        ]
        assert (np.diff(earned) >= -1e-9 * np.abs(earned).max()).all()


def test_a_price_above_every_price_ends_collection() -> None:
    price = np.linspace(1.0, 2.0, 20)
    _, collection = best_response(price, 3.0, 0.1, 0.1, 0.0, collection_price=2.0)
    assert (collection == 0).all()
    _, some = best_response(price, 3.0, 0.1, 0.1, 0.0, collection_price=1.5)
    assert (some[price[1:].searchsorted(1.5) :][:-1] > 0).all()


def test_two_rounds_by_hand() -> None:
    price, initial, alpha, beta, theta, paid, held = 10.0, 3.0, 0.5, 0.25, 0.8, 1.5, 0.5
    _, collection = best_response(
        [0.0, price], initial, alpha, beta, theta, collection_price=paid, training_price=held
    )
    margin = price - held - paid - 2 * beta * theta * initial
    assert collection[0, 0] == pytest.approx(margin / (2 * (alpha + beta)))


def test_what_is_held_at_first_must_fit() -> None:
    with pytest.raises(CapacityError) as caught:
        best_response([1.0, 1.0], [5.0, 20.0], 0.1, 0.1, 0.5, capacity=10.0)
    assert (caught.value.field, caught.value.value) == ("initial_volume", 20.0)
    volume, _ = best_response([9.0, 9.0], [5.0, 20.0], 0.1, 0.1, 0.5, trim_start=True, capacity=10.0)
    assert volume[0].tolist() == [5.0, 10.0]
    game = Game(clients=Clients(20.0, 1e-3, 1e-4, capacity=10.0, count=3))
    with pytest.raises(CapacityError):
        solve(game)
    assert (solve(game.replace(trim_start=True)).volume <= 10).all()


def test_random_collection_fits() -> None:
    collection = np.full((30, 4), 50.0)
    collection[-1] = 0
    capacity = np.array([60.0, 80.0, np.inf, 55.0])
    volume, drawn = random_strategy(np.full(4, 55.0), collection, 0.5, 3, capacity)
    assert (volume <= capacity).all()
    assert (drawn >= 0).all()
    np.testing.assert_allclose(volume_law(np.full(4, 55.0), drawn, 0.5), volume)


def limited_game(seed: int, size: int = 12, rounds: int = 25, priced: bool = True) -> Game:
    generator = np.random.default_rng([seed, 5])
    alpha = 10 ** generator.uniform(-5, -2)
    initial = generator.uniform(1, 500, size)
    clients = Clients(
        initial,
        alpha * generator.uniform(1, 10, size),
        alpha * 10 ** generator.uniform(-3, 0) * generator.uniform(1, 10, size),
        capacity=initial * np.where(generator.random(size) < 0.3, np.inf, generator.uniform(1, 4, size)),
        collection_price=0.1 * generator.random(size) * (generator.random() < 0.7) * priced,
        training_price=0.02 * generator.random(size) * (generator.random() < 0.7) * priced,
    )
    return Game(clients=clients, num_rounds=rounds)


@pytest.mark.parametrize("competition", ["mean-field", "nash"])
def test_equilibria_converge(competition: Competition) -> None:
    generator, passes = np.random.default_rng(14), []
    for seed in range(60):
        game = limited_game(seed)
        payment, rate = 10 ** generator.uniform(-2, 5), float(generator.choice([0, 1, generator.random()]))
        for trim in (False, True):
            found = find_equilibrium(game.clients, 25, payment, rate, competition, trim_start=trim)
            assert found.converged, (seed, payment, rate, trim, found.residual, found.passes)
            passes.append(found.passes)
    assert np.median(passes) <= 10


def test_equilibria_do_not_depend_on_the_start() -> None:
    generator = np.random.default_rng(15)
    for seed in range(20):
        game = limited_game(seed)
        first = find_equilibrium(game.clients, 25, 60.0, 0.7)
        start = first.total_volume * 10 ** generator.uniform(-3, 3, 25)
        again = find_equilibrium(game.clients, 25, 60.0, 0.7, start=start)
        np.testing.assert_allclose(again.total_volume, first.total_volume, rtol=1e-6)


def test_the_potential_is_largest_at_the_equilibrium() -> None:
    """R·Σ log φ less all costs, on the convex set of feasible profiles: no feasible profile has more."""
    generator = np.random.default_rng(16)

    def potential(game: Game, volume: np.ndarray, collection: np.ndarray) -> float:
        clients = game.clients
        spent = clients.collection_cost * collection**2 + clients.training_cost * volume**2
        spent += clients.collection_price * collection + clients.training_price * volume
        return float(50.0 * np.log(volume.sum(axis=1)).sum() - spent.sum())

    for seed in range(10):
        game = limited_game(seed)
        plan = equilibrium(game, payment=50.0, conservation_rate=0.8)
        best = potential(game, plan.volume, plan.collection)
        for _ in range(50):
            other = plan.collection * generator.uniform(0.9, 1.1, plan.collection.shape)
            held = volume_law(game.clients.initial_volume, other, 0.8)
            if (held <= game.clients.capacity).all():
                assert potential(game, held, other) <= best + 1e-7 * abs(best)


def test_an_infinite_capacity_changes_no_bit_of_a_plan() -> None:
    clients = Clients.draw(15)
    columns = (clients.initial_volume, clients.collection_cost, clients.training_cost)
    ample = Clients(*columns, capacity=1e12, collection_price=0.0, training_price=0.0)
    plan, other = solve(Game()), solve(Game(clients=ample))
    assert (plan.payment, plan.conservation_rate) == (other.payment, other.conservation_rate)
    np.testing.assert_array_equal(plan.total_volume, other.total_volume)
    np.testing.assert_array_equal(plan.volume, other.volume)


def test_capacities_lower_the_total_and_raise_the_price() -> None:
    game = Game()
    free = equilibrium(game, payment=53.0, conservation_rate=0.9)
    capacity = np.maximum(1000.0, 0.5 * free.volume.max(axis=0))
    columns = (game.clients.initial_volume, game.clients.collection_cost, game.clients.training_cost)
    tight = game.replace(clients=Clients(*columns, capacity=capacity))
    plan = equilibrium(tight, payment=200.0, conservation_rate=0.99)
    loose = equilibrium(game, payment=200.0, conservation_rate=0.99)
    assert (plan.total_volume <= loose.total_volume * (1 + 1e-12)).all()
    assert (plan.volume <= capacity).all()


def test_capacities_and_prices_that_are_none() -> None:
    for name, value, rule in (
        ("capacity", 0.0, "> 0"),
        ("capacity", np.nan, "a number"),  # infinite is no limit
        ("collection_price", -1.0, ">= 0"),
        ("training_price", np.nan, "a finite number"),
    ):
        columns: dict[str, Any] = {name: value}
        with pytest.raises(InputError) as caught:
            Clients(10.0, 1e-3, 1e-4, **columns)
        assert (caught.value.field, caught.value.rule) == (name, rule)
