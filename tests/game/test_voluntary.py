"""Clients that may stay away: the set that takes part is stable, by brute force and by its certificate."""

import itertools
from typing import Any

import numpy as np
import pytest

from dufl import Clients, Game, InputError, equilibrium, solve
from dufl.game import client, voluntary
from dufl.game.loss import PowerLaw
from dufl.game.mean_field import TOLERANCE
from dufl.game.parameters import Competition
from dufl.game.population import Uniform
from dufl.game.voluntary import Mask, Search, respond


def small_game(seed: int) -> tuple[Game, float, float]:
    """A game of one to eight clients, with or without capacities, prices, reservations and trimming."""
    generator = np.random.default_rng([seed, 9])
    size, alpha = int(generator.integers(1, 9)), 10 ** generator.uniform(-5, -2)
    initial = generator.uniform(1, 500, size)
    clients = Clients(
        initial,
        alpha * 10 ** generator.uniform(0, 1, size),
        alpha * 10 ** generator.uniform(-2, 0) * 10 ** generator.uniform(0, 1, size),
        capacity=np.where(generator.random(size) < 0.3, initial * generator.uniform(1, 3, size), np.inf),
        collection_price=generator.random(size) * 0.05 * (generator.random() < 0.4),
        training_price=generator.random(size) * 0.02 * (generator.random() < 0.4),
        reservation=generator.random(size) * 10 ** generator.uniform(-1, 2) * (generator.random() < 0.7),
    )
    game = Game(
        clients=clients,
        num_rounds=int(generator.integers(2, 20)),
        participation="voluntary",
        trim_start=bool(generator.random() < 0.3),
    )
    return game, 10 ** generator.uniform(0, 3), float(generator.choice([0, 1, generator.random()]))


def stable_sets(search: Search) -> list[tuple[bool, ...]]:
    """All stable sets, by the definition: nobody inside loses, and nobody outside gains if it enters."""
    least = 2 if search.competition == "nash" else 1  # a smaller game does not exist
    subsets = [np.array(one) for one in itertools.product([False, True], repeat=search.game.clients.size)]
    games = [one for one in subsets if one.sum() >= least]
    margins = {tuple(one): search.margins(search.equilibrium(one), one).margin for one in games}

    def enters(inside: Mask, k: int) -> bool:
        more = inside.copy()
        more[k] = True
        return tuple(more) in margins and bool(margins[tuple(more)][k] > 0)

    return [
        tuple(inside.tolist())
        for inside in subsets
        if not inside.any() or tuple(inside) in margins
        if not (inside.any() and (margins[tuple(inside)][inside] < 0).any())
        if not any(enters(inside, int(k)) for k in np.flatnonzero(~inside))
    ]


@pytest.mark.parametrize("competition", ["mean-field", "nash"])
def test_the_set_is_stable_among_all_subsets(competition: Competition) -> None:
    several = partly = 0
    for seed in range(200):
        game, payment, rate = small_game(seed)
        stable = stable_sets(Search(game, payment, rate, competition, TOLERANCE))
        ours = respond(game, payment, rate, competition).takes_part
        assert ours is not None
        assert tuple(ours.tolist()) in stable, seed
        several += len(stable) > 1
        partly += 0 < ours.sum() < ours.size
    assert several > 5  # games in which there is a choice
    assert partly > 20


def crowded_game(seed: int) -> tuple[Game, float, float]:
    """Sixty clients of which many would enter if the others stayed away, and leave if they did not."""
    generator = np.random.default_rng([seed, 10])
    initial = 10 ** generator.uniform(0, 3.3, 60)
    clients = Clients(
        initial,
        10 ** generator.uniform(-5, -3) * generator.uniform(1, 10, 60),
        10 ** generator.uniform(-6, -4) * generator.uniform(1, 10, 60),
        training_price=10 ** generator.uniform(-3, 0) * generator.uniform(0.3, 1.7, 60),
        reservation=generator.random(60) * (generator.random() < 0.5),
    )
    game = Game(clients=clients, num_rounds=int(generator.integers(2, 6)), participation="voluntary")
    return game, 60 * 10 ** generator.uniform(-1, 2), float(generator.choice([0.0, 0.3, 0.6, 0.9]))


@pytest.mark.parametrize("competition", ["mean-field", "nash"])
def test_many_who_enter_and_leave_by_turns_come_to_rest(competition: Competition) -> None:
    """If half of those who gain by entering entered every time, some sets would come back for ever."""
    partly = 0
    for seed in range(120):
        game, payment, rate = crowded_game(seed)
        plan = equilibrium(game, payment=payment, conservation_rate=rate, competition=competition)
        assert plan.certificate.participation_gain <= 1e-6
        partly += 0 < plan.staying_away < 60
    assert partly > 60


@pytest.mark.parametrize("competition", ["mean-field", "nash"])
def test_the_cost_of_keeping_a_client_is_what_it_misses(competition: Competition) -> None:
    """By the certificate of the game in which all who take part, and this client, have to."""
    kept = 0
    for seed in range(60):
        game, payment, rate = small_game(seed)
        if competition == "nash" and game.clients.size < 2:
            continue
        plan = equilibrium(game, payment=payment, conservation_rate=rate, competition=competition)
        if plan.keeping is None or not plan.takes_part.any():  # type: ignore[union-attr]
            continue
        for k, cost in zip(plan.keeping.clients, plan.keeping.cost, strict=True):
            more = np.flatnonzero(plan.takes_part | (np.arange(game.clients.size) == k))
            forced = game.replace(clients=game.clients.take(more), participation="mandatory")
            together = equilibrium(forced, payment=payment, conservation_rate=rate, competition=competition)
            at = int(np.searchsorted(more, k))
            missing = game.clients.reservation[k] - together.certificate.utility[at]
            assert cost == pytest.approx(max(missing, 0.0), rel=1e-6, abs=1e-6 * payment)
            kept += cost > 0
    assert kept > 30


def test_if_somebody_leaves_all_others_gain() -> None:
    """The reason why the set is found from above."""
    for seed in range(40):
        game, payment, rate = small_game(seed)
        if game.clients.size < 3:
            continue
        search = Search(game, payment, rate, "mean-field", TOLERANCE)
        everybody = np.ones(game.clients.size, bool)
        before = search.margins(search.equilibrium(everybody), everybody).margin
        for k in range(game.clients.size):
            others = everybody.copy()
            others[k] = False
            if not game.clients.initial_volume[others].any():
                continue
            after = search.margins(search.equilibrium(others), others).margin
            scale = np.abs(before).max() + payment
            assert (after[others] >= before[others] - 1e-7 * scale).all()


def test_who_need_not_stay_away_changes_nothing() -> None:
    """With reservations that nobody falls below, the plan has the bits of mandatory participation."""
    clients = Clients.draw(15, 0, reservation=-1e6)
    offer: dict[str, Any] = {"payment": 53.0, "conservation_rate": 0.3}
    plain = equilibrium(Game(clients=clients), **offer)
    free = equilibrium(Game(clients=clients, participation="voluntary"), **offer)
    assert free.staying_away == 0
    np.testing.assert_array_equal(plain.volume, free.volume)
    assert plain.server_cost == free.server_cost


def test_who_stays_away_holds_collects_and_earns_nothing_and_does_not_count() -> None:
    clients = Clients.draw(15, 0, reservation=[0.0] * 10 + [1e4] * 5)
    plan = equilibrium(Game(clients=clients, participation="voluntary"), payment=53.0, conservation_rate=0.3)
    assert plan.takes_part is not None
    away = ~plan.takes_part
    assert away.sum() == 5
    assert not plan.volume[:, away].any()
    assert not plan.collection[:, away].any()
    assert not plan.outcomes.payment[away].any()
    assert (plan.outcomes.utility[away] == 0).all()
    assert plan.outcomes.payment.sum() == pytest.approx(plan.total_payment)
    few = Clients(
        *(getattr(clients, name)[:10] for name in ("initial_volume", "collection_cost", "training_cost"))
    )
    ten = equilibrium(Game(clients=few), payment=53.0, conservation_rate=0.3)
    assert plan.server_cost == pytest.approx(ten.server_cost)  # N counts who is left
    np.testing.assert_allclose(plan.volume[:, :10], ten.volume, rtol=1e-6)


def test_the_leader_knows_that_clients_leave() -> None:
    """No offer on a grid costs less, and the plan costs no less than with clients that cannot leave."""
    clients = Clients.draw(6, 3, reservation=Uniform(low=0, high=120))
    game = Game(clients=clients, num_rounds=30, participation="voluntary")
    plan = solve(game)
    for payment in np.geomspace(1, 300, 40):
        for rate in (0.0, 0.2, 0.4, 0.6, 0.8, 0.9):
            other = equilibrium(game, payment=float(payment), conservation_rate=rate)
            assert plan.server_cost <= other.server_cost * (1 + 1e-3)


def test_nobody_takes_part_for_nothing() -> None:
    plan = equilibrium(Game(participation="voluntary"), payment=0.0, conservation_rate=1.0)
    assert plan.staying_away == 15
    assert plan.server_cost == np.inf
    assert not plan.volume.any()


def test_a_million_clients_decide_in_the_time_of_a_hundred_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted here on 20,000 clients: equilibrium passes, and four for every pass over all utilities."""
    clients = Clients.draw(20_000, 1, reservation=Uniform(low=0, high=60))
    passes = {"responses": 0, "margins": 0}
    total_response, margins = client.total_response, voluntary.margins

    def counted_response(some: Clients, *args: Any, **options: Any) -> Any:
        passes["responses"] += some.size == clients.size
        return total_response(some, *args, **options)

    def counted_margins(some: Clients, *args: Any) -> Any:
        passes["margins"] += some.size == clients.size
        return margins(some, *args)

    monkeypatch.setattr("dufl.game.mean_field.total_response", counted_response)
    monkeypatch.setattr("dufl.game.voluntary.margins", counted_margins)
    response = respond(Game(clients=clients, participation="voluntary"), 53.0 * 20_000 / 15, 0.3)
    assert response.takes_part is not None
    assert 0 < (~response.takes_part).sum() < 20_000
    assert passes["responses"] + 4 * passes["margins"] <= 100


def test_algorithm_1_has_no_choice_for_clients() -> None:
    with pytest.raises(InputError) as caught:
        solve(Game(participation="voluntary"), method="algorithm1")
    assert caught.value.field == "participation"


LAW = PowerLaw(
    floor=0.1,
    volume_weight=0.3,
    volume_exponent=0.5,
    staleness_weight=0.02,
    staleness_exponent=1.0,
    unit="error",
    noise=0.001,
)


@pytest.mark.parametrize("goal", [{"budget": 600.0}, {"accuracy": 0.8}, {"point_worth": 20.0}])
@pytest.mark.parametrize("trim_start", [None, False])
def test_plans_for_goals_know_who_takes_part(goal: dict[str, float], trim_start: bool | None) -> None:
    """The plan is certified with its set, and its prediction counts who is left."""
    clients = Clients.draw(6, 2, initial_volume=200.0, reservation=Uniform(low=0, high=60))
    game = Game(
        clients=clients,
        num_rounds=20,
        participation="voluntary",
        trim_start=trim_start,
        loss=LAW,
        payment_range=(0.0, 200.0),
    )
    plan = solve(game, **goal)  # type: ignore[arg-type]
    assert plan.certificate.holds()
    assert plan.takes_part is not None
    assert plan.takes_part.any()
    inside = plan.game.clients.take(np.flatnonzero(plan.takes_part))
    alone = plan.game.replace(clients=inside, participation="mandatory")
    same = equilibrium(alone, payment=plan.payment, conservation_rate=plan.conservation_rate)
    assert plan.prediction is not None
    assert same.prediction is not None
    assert plan.prediction.value == pytest.approx(same.prediction.value, rel=1e-6)
    if "budget" in goal:
        assert plan.total_payment <= 600.0 * (1 + 1e-9)
    if "accuracy" in goal:
        assert plan.prediction.missing(0.8) == 0.0
