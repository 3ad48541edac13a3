"""Payments that rise with age: what they add up to, and that no client gains by collecting otherwise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufl import Clients, DuflError, Game, equilibrium
from dufl.errors import CapacityError
from dufl.game import price_path
from dufl.game.client import trajectories
from dufl.game.parameters import Competition
from dufl.game.price_path import age_price
from laws import kkt_residual


def games(seed: int, trims: bool = False) -> Game:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 20))
    clients = Clients(
        generator.uniform(1, 2000, count),
        np.exp(generator.uniform(-12, 2, count)),
        np.exp(generator.uniform(-16, 0, count)),
        initial_staleness=generator.uniform(1, 30, count),
    )
    return Game(clients=clients, num_rounds=int(generator.integers(2, 60)), trim_start=trims)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    payment=st.floats(1e-4, 1e5),
    rate=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    competition=st.sampled_from(["mean-field", "nash"]),
    trims=st.booleans(),
)
def test_the_payments_add_up_and_rise_with_age(
    seed: int, payment: float, rate: float, competition: Competition, trims: bool
) -> None:
    game = games(seed, trims)
    path = age_price(game, payment, rate, competition)
    assert path.residual <= 1e-9
    np.testing.assert_allclose(path.total_volume, path.announced_volume, rtol=2e-9)
    assert path.payment.sum() == pytest.approx(game.num_rounds * payment, rel=1e-12)
    np.testing.assert_allclose(path.payment / path.mean_staleness, path.payment[0] / path.mean_staleness[0])
    older = np.argsort(path.mean_staleness, kind="stable")
    assert (np.diff(path.payment[older]) >= 0).all()
    np.testing.assert_allclose(path.volume().sum(axis=1), path.total_volume, rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_staleness_is_that_of_the_volumes_which_clients_hold(seed: int) -> None:
    """S(t) by the definition, client by client and sample by sample of their first buffers."""
    game, rate = games(seed, trims=seed % 2 == 1), 0.8
    path = age_price(game, 30.0, rate)
    volume = path.volume()
    aged = volume[0] * game.clients.initial_staleness
    for t in range(game.num_rounds):
        if t:
            aged = rate * aged + volume[t]
        assert path.mean_staleness[t] == pytest.approx(aged.sum() / volume[t].sum(), rel=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_no_client_gains_by_collecting_otherwise(seed: int) -> None:
    game, rate = games(seed), 0.7
    path = age_price(game, 20.0, rate)
    price, clients = path.payment / path.announced_volume, game.clients
    volume, collection = trajectories(clients, price, np.zeros_like(price), rate)
    costs = clients.collection_cost, clients.training_cost
    assert kkt_residual(price, volume, collection, *costs, rate).max() < 1e-8
    assert kkt_residual(price, volume, collection * 1.01, *costs, rate).max() > 1e-4  # it can fail


def test_data_that_never_ages_has_a_constant_price() -> None:
    game = Game(num_rounds=20)
    path, plan = age_price(game, 40.0, 0.0), equilibrium(game, payment=40.0, conservation_rate=0.0)
    np.testing.assert_allclose(path.payment, 40.0)
    np.testing.assert_allclose(path.total_volume, plan.total_volume, rtol=1e-8)


def test_nothing_is_bought_for_nothing() -> None:
    game = Game(num_rounds=5)
    path = age_price(game, 0.0, 0.5)
    assert path.payment.tolist() == [0.0] * 5
    np.testing.assert_allclose(path.total_volume, 15_000 * 0.5 ** np.arange(5))


def test_an_equilibrium_that_is_not_found_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_path, "MAX_PASSES", 2)
    with pytest.raises(DuflError, match=r"no equilibrium was found .* after 2 passes"):
        age_price(Game(num_rounds=20), 40.0, 0.5)


def test_capacities_are_kept() -> None:
    game = Game(clients=Clients.draw(4, initial_volume=20.0, capacity=30.0), num_rounds=10)
    path = age_price(game, 500.0, 0.5)
    assert path.volume().max() == 30.0
    assert path.residual <= 1e-9
    small = Game(clients=Clients.draw(4, initial_volume=40.0, capacity=30.0), num_rounds=10)
    with pytest.raises(CapacityError) as caught:
        age_price(small, 500.0, 0.5)
    assert caught.value.field == "initial_volume"
