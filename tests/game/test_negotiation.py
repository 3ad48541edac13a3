"""Negotiation: the server sees sums alone, and finds what it would find if it knew every cost."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dufl.errors import DuflError, InputError
from dufl.game.client import best_response
from dufl.game.client_types import has_other_costs, refit
from dufl.game.dynamics import Array
from dufl.game.leader import FIXED_POINT
from dufl.game.negotiation import Announcement, Ask, NegotiatedPlan, negotiate
from dufl.game.parameters import Game, Offer
from dufl.game.plan import Method, solve
from dufl.game.population import Clients, LogNormal, Uniform


def asking(private: Clients) -> Ask:
    """Clients that answer one by one, from costs that nobody else has, and whose answers are added up."""

    def ask(announcements: Sequence[Announcement]) -> list[Array]:
        totals = []
        for announcement in announcements:
            price = announcement.offer.payment / announcement.announced_volume
            rate = announcement.offer.conservation_rate
            each = [
                best_response(
                    price,
                    private.initial_volume[k],
                    private.collection_cost[k],
                    private.training_cost[k],
                    rate,
                    announcement.trim_start,
                    capacity=private.capacity[k],
                    collection_price=private.collection_price[k],
                    training_price=private.training_price[k],
                )
                for k in range(private.size)
            ]
            totals.append(np.sum([volume[:, 0] for volume, _ in each], axis=0))
        return totals

    return ask


def assert_as_good_as_knowing(found: NegotiatedPlan, game: Game, private: Clients, method: Method) -> None:
    known = solve(game.replace(clients=private), method=method, algorithm1=FIXED_POINT)
    assert found.phases <= 12
    assert found.residual <= 1e-3
    assert np.abs(found.total_volume / found.announcement.announced_volume - 1).max() == found.residual
    assert found.server_cost == pytest.approx(known.server_cost, rel=5e-3)
    assert found.no_update_cost == pytest.approx(known.no_update_cost, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_as_good_as_with_all_costs_known(seed: int) -> None:
    private = Clients.draw(15, seed=100 + seed)
    found = negotiate(Game(), asking(private))
    assert_as_good_as_knowing(found, Game(), private, "stackelberg")
    assert found.phases <= 4


@pytest.mark.parametrize("sigma", [0.3, 1.25])
def test_other_tasks(sigma: float) -> None:
    game, private = Game(time_sensitivity=sigma), Clients.draw(15, seed=7)
    assert_as_good_as_knowing(negotiate(game, asking(private)), game, private, "stackelberg")


def test_a_first_guess_that_is_far_off() -> None:
    game = Game(clients=Clients(100.0, 3e-3, 1e-6, count=15))
    private = Clients.draw(15, seed=5)
    assert_as_good_as_knowing(negotiate(game, asking(private)), game, private, "stackelberg")


def test_very_unequal_clients() -> None:
    private = Clients.draw(
        60,
        seed=2,
        initial_volume=LogNormal(median=300, spread=1.0),
        collection_cost=LogNormal(median=3e-4, spread=1.5),
        training_cost=LogNormal(median=2e-5, spread=1.0),
    )
    game = Game(clients=Clients.draw(60), num_rounds=30)
    assert_as_good_as_knowing(negotiate(game, asking(private)), game, private, "stackelberg")


PRICED = {"collection_price": Uniform(low=0.0, high=0.05), "training_price": Uniform(low=0.0, high=0.02)}
CAPPED = {"initial_volume": 100.0, "capacity": Uniform(low=100.0, high=400.0)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("other", [PRICED, CAPPED, PRICED | CAPPED], ids=["priced", "capped", "both"])
def test_clients_with_prices_and_capacities(other: dict[str, Any], seed: int) -> None:
    """The server guesses neither: it takes the clients for those of the paper."""
    game, private = Game(num_rounds=20), Clients.draw(15, seed=30 + seed, **other)
    found = negotiate(game, asking(private))
    known = solve(game.replace(clients=private), certified=False)
    assert found.phases <= 12
    assert found.residual <= 1e-3
    assert found.server_cost == pytest.approx(known.server_cost, rel=0.01)


def test_a_server_that_guesses_prices_and_capacities() -> None:
    guessed = Clients.draw(15, initial_volume=200.0, capacity=300.0, collection_price=0.03)
    game, private = Game(num_rounds=20, clients=guessed), Clients.draw(15, seed=3, **PRICED)
    found = negotiate(game, asking(private))
    assert found.residual <= 1e-3
    known = solve(game.replace(clients=private), certified=False)
    assert found.server_cost == pytest.approx(known.server_cost, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_quadratic_costs_are_fitted_without_prices(seed: int) -> None:
    """The negotiation of clients with quadratic costs alone is the same as if there were no others."""
    kinds: list[dict[str, Any]] = [
        {},
        {
            "initial_volume": LogNormal(median=300, spread=1.0),
            "collection_cost": LogNormal(median=3e-4, spread=1.5),
            "training_cost": LogNormal(median=2e-5, spread=1.0),
        },
    ]
    for kind in kinds:
        private = Clients.draw(40, seed=seed, **kind)
        fits: list[Clients] = []

        def ask(announcements: Sequence[Announcement], private: Clients = private) -> list[Array]:
            return [announcement.response(private) for announcement in announcements]

        def spying(*given: Any, fits: list[Clients] = fits) -> Clients:
            fits.append(refit(*given))
            return fits[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dufl.game.negotiation.refit", spying)
            negotiate(Game(clients=Clients.draw(40), num_rounds=15), ask)
        assert fits
        assert not any(has_other_costs(each) for each in fits)


def test_few_clients_and_rounds() -> None:
    game, private = Game(num_rounds=3, clients=Clients.draw(3)), Clients.draw(3, 9, initial_volume=100)
    assert_as_good_as_knowing(negotiate(game, asking(private)), game, private, "stackelberg")


@pytest.mark.parametrize(("guessed", "held"), [(1000.0, 400.0), (200.0, 2000.0), (5000.0, 100.0)])
def test_clients_that_begin_with_less(guessed: float, held: float) -> None:
    """Nobody tells the server what clients hold; what they begin with is in the sums."""
    game = Game(
        clients=Clients.draw(15, initial_volume=guessed),
        num_rounds=20,
        payment_range=(0.0, 5.0),
        trim_start=True,
    )
    private = Clients.draw(15, seed=6, initial_volume=held)
    found = negotiate(game, asking(private))
    known = solve(game.replace(clients=private))
    assert found.phases <= 12
    assert found.residual <= 1e-3
    assert found.announcement.trim_start
    assert found.server_cost == pytest.approx(known.server_cost, rel=5e-3)
    assert found.total_volume[0] == pytest.approx(known.total_volume[0], rel=0.01)
    assert found.total_volume[0] < 0.99 * 15 * held


def test_nothing_is_held_where_nothing_can_be_paid() -> None:
    game = Game(payment_range=(0.0, 0.0), trim_start=True)
    with pytest.raises(InputError) as refused:
        negotiate(game, asking(game.clients))
    assert refused.value.field == "payment_range"


def test_algorithm_1_negotiates_too() -> None:
    private = Clients.draw(15, seed=8)
    found = negotiate(Game(), asking(private), method="algorithm1", algorithm1=FIXED_POINT)
    assert_as_good_as_knowing(found, Game(), private, "algorithm1")


def test_where_no_update_is_best_nothing_is_paid() -> None:
    game, private = Game(time_sensitivity=0.05), Clients.draw(15, seed=7)
    found = negotiate(game, asking(private))
    assert found.offer == Offer(payment=0.0, conservation_rate=1.0)
    assert found.server_cost == found.no_update_cost


def test_an_offer_can_be_given() -> None:
    game = Game(payment_range=(60.0, 60.0), conservation_range=(0.5, 0.5))
    found = negotiate(game, asking(Clients.draw(15, seed=4)))
    assert found.offer == Offer(payment=60.0, conservation_rate=0.5)
    assert found.residual <= 1e-3


def test_answers_that_make_no_sense_end_it() -> None:
    generator = np.random.default_rng(0)

    def ask(announcements: Sequence[Announcement]) -> list[Array]:
        return [a.announced_volume * generator.uniform(0.5, 2, 20) for a in announcements]

    with pytest.raises(DuflError, match="did not converge within 4 phases of messages"):
        negotiate(Game(num_rounds=20), ask, max_phases=4)


def test_the_same_answers_give_the_same_plan() -> None:
    private = Clients.draw(15, seed=11)
    one, two = (negotiate(Game(num_rounds=20), asking(private)) for _ in range(2))
    assert one.offer == two.offer
    assert one.announcement.announced_volume.tobytes() == two.announcement.announced_volume.tobytes()
