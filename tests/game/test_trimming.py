"""First buffers that may be trimmed: D(0) is a client's choice, and all laws hold with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufl import Clients, Game, InputError, best_response, certify_profile, equilibrium, solve
from dufl.game import client
from dufl.game.deviation import best_deviation
from dufl.game.dynamics import collection as collection_law
from dufl.game.dynamics import volume as volume_law
from dufl.game.leader import Algorithm1Options
from dufl.game.loss import PowerLaw
from dufl.game.mean_field import find_equilibrium, price_of
from dufl.game.parameters import Competition
from dufl.game.plan import with_goal
from dufl.learning.policies import Planned, no_update
from laws import kkt_residual, money, qp_optimum_with_start, random_game, rough_clients, rough_price, worth

BOTH: list[Competition] = ["mean-field", "nash"]
LAW = PowerLaw(
    floor=0.1,
    volume_weight=0.3,
    volume_exponent=0.25,
    staleness_weight=0.05,
    staleness_exponent=2.0,
    unit="error",
)


def trimmed(game: Game) -> Game:
    return game.replace(trim_start=True)


def worth_at_start(price: np.ndarray, volume: np.ndarray, beta: np.ndarray, theta: float) -> np.ndarray:
    """λ(0) of every client."""
    return np.asarray(price[0] - 2 * beta * volume[0] + theta * worth(price, volume, beta, theta)[0])


def test_d0_is_where_one_more_sample_is_worth_nothing() -> None:
    """λ(0) = 0, or λ(0) > 0 at D(0) = D⁰, on 50,000 rough problems; the rest of the KKT conditions too."""
    generator = np.random.default_rng(0)
    solved = some = 0
    while solved < 50_000:
        price = rough_price(generator, int(generator.integers(2, 121)))
        owned, alpha, beta = rough_clients(generator, 32)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        volume, collection = best_response(price, owned, alpha, beta, theta, trim_start=True)
        assert (collection >= 0).all()
        assert (volume[0] >= 0).all()
        assert (volume[0] <= owned).all()
        np.testing.assert_allclose(volume_law(volume[0], collection, theta), volume, rtol=1e-12)
        assert kkt_residual(price, volume, collection, alpha, beta, theta).max() <= 1e-8
        scale = np.maximum(price.max(), (2 * beta * volume).max(axis=0)) * len(price)
        left = worth_at_start(price, volume, beta, theta)
        less = volume[0] < owned
        assert (np.abs(left[less]) <= 1e-9 * scale[less]).all()
        assert (left >= -1e-9 * scale).all()
        solved, some = solved + owned.size, some + int(less.sum())
    assert some > 5_000


def test_agrees_with_a_qp_solver() -> None:
    generator = np.random.default_rng(1)
    less = 0
    for _ in range(150):
        price = rough_price(generator, int(generator.integers(2, 60)))
        (owned,), (alpha,), (beta,) = rough_clients(generator, 1)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        volume, collection = best_response(price, owned, alpha, beta, theta, trim_start=True)
        ours = money(price, volume[:, 0], collection[:, 0], alpha, beta)
        held, collected, unit = qp_optimum_with_start(price, owned, alpha, beta, theta)
        theirs = money(price, held, collected, alpha, beta)
        scale = float(price @ volume[:, 0]) + abs(ours) + unit
        assert ours >= theirs - 1e-9 * scale
        assert theirs >= ours - 1e-6 * scale
        less += volume[0, 0] < owned
    assert less > 20


def test_dynamic_programming_finds_what_the_solver_finds() -> None:
    generator = np.random.default_rng(2)
    for _ in range(1000):
        price = rough_price(generator, int(generator.integers(2, 121)))
        owned, alpha, beta = rough_clients(generator, 4)
        theta = float(generator.choice([0.0, 1.0, generator.random()]))
        volume, collection = best_response(price, owned, alpha, beta, theta, trim_start=True)
        for k in range(4):
            held, collected = np.empty_like(price), np.empty_like(price)
            bend = np.full_like(price, 2 * beta[k])
            best_deviation(price, bend, theta, alpha[k], owned[k], True, held, collected)
            ours = money(price, volume[:, k], collection[:, k], alpha[k], beta[k])
            theirs = money(price, held, collected, alpha[k], beta[k])
            turnover = float(price @ held + alpha[k] * collected @ collected + beta[k] * held @ held)
            assert abs(ours - theirs) <= 1e-10 * turnover
            assert volume[0, k] == pytest.approx(held[0], rel=1e-6, abs=1e-9 * owned[k])


def test_a_buffer_that_is_small_enough_is_kept() -> None:
    """Where nobody trims, the answers are those of the game without the choice, bit for bit."""
    price = np.full(30, 1.0)
    free = best_response(price, 0.01, [0.3, 0.5], [0.2, 0.1], 0.7, trim_start=True)
    fixed = best_response(price, 0.01, [0.3, 0.5], [0.2, 0.1], 0.7)
    np.testing.assert_array_equal(free[0], fixed[0])
    np.testing.assert_array_equal(free[1], fixed[1])


@given(
    theta=st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)),
    price=st.lists(st.floats(-1e3, 1e6), min_size=2, max_size=40),
    owned=st.floats(0, 1e6),
    alpha=st.floats(1e-6, 1e3),
    beta=st.floats(0, 1e3),
)
def test_the_choice_never_costs_anything(
    theta: float, price: list[float], owned: float, alpha: float, beta: float
) -> None:
    """At the same prices a client earns at least as much as without the choice, and never less than 0."""
    prices = np.array(price)
    free = best_response(prices, owned, alpha, beta, theta, trim_start=True)
    fixed = best_response(prices, owned, alpha, beta, theta)
    earned, before = (money(prices, v[:, 0], c[:, 0], alpha, beta) for v, c in (free, fixed))
    turnover = float(
        np.abs(prices) @ free[0][:, 0] + beta * (free[0] ** 2).sum() + alpha * (free[1] ** 2).sum()
    )
    assert earned >= before - 1e-9 * (abs(before) + turnover)
    assert earned >= -1e-9 * turnover


def test_sensitivity_is_the_derivative() -> None:
    """∂Σ D/∂log φ, with the row and the column of round 0, against a finite difference."""
    clients = Clients.draw(9, 3, initial_volume=[5.0, 200.0, *([1000.0] * 7)])
    announced = np.random.default_rng(0).uniform(800, 1500, 12)
    for competition in BOTH:
        price, slope = price_of(60.0, announced, competition)
        sensitivity = np.zeros((12, 12))
        base = client.total_response(clients, price, slope, 0.7, sensitivity, trim_start=True)
        held = client.trajectories(clients, price, slope, 0.7, trim_start=True)[0]
        assert 0 < (held[0] < clients.initial_volume).sum() < 9
        for s in range(12):
            moved = announced.copy()
            moved[s] *= np.exp(1e-6)
            prices = price_of(60.0, moved, competition)
            change = client.total_response(clients, *prices, 0.7, trim_start=True) - base
            np.testing.assert_allclose(
                change / 1e-6, sensitivity[:, s], atol=1e-3 * np.abs(sensitivity).max()
            )


@pytest.mark.parametrize("competition", BOTH)
def test_independent_of_the_start(competition: Competition) -> None:
    for seed in range(8):
        game = random_game(seed)
        payment, theta = game.payment_range[1] / 3, float(np.random.default_rng(seed).random())
        found = [
            find_equilibrium(
                game.clients, game.num_rounds, payment, theta, competition, start, trim_start=True
            ).total_volume
            for start in (None, np.full(game.num_rounds, 1e-3), np.geomspace(1e6, 1, game.num_rounds))
        ]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-7)
        np.testing.assert_allclose(found[2], found[0], rtol=1e-7)


def test_it_maximizes_the_potential() -> None:
    """Φ = R·Σ log φ − Σ costs, with D(0) among the variables."""
    game = trimmed(Game(num_rounds=30))
    owned = game.clients.initial_volume
    plan = equilibrium(game, payment=80.0, conservation_rate=0.5)
    assert 0 < (plan.volume[0] < owned).sum() < 15
    generator = np.random.default_rng(0)

    def potential(start: np.ndarray, collection: np.ndarray) -> float:
        held = volume_law(start, collection, 0.5)
        spent = game.clients.collection_cost * collection**2 + game.clients.training_cost * held**2
        return float(80.0 * np.log(held.sum(axis=1)).sum() - spent.sum())

    best = potential(plan.volume[0], plan.collection)
    for size in (1e-3, 0.03, 0.3):
        for _ in range(50):
            start = np.clip(plan.volume[0] * (1 + size * generator.standard_normal(15)), 0, owned)
            other = np.maximum(plan.collection * (1 + size * generator.standard_normal((30, 15))), 0)
            assert potential(start, plan.collection) < best
            assert potential(start, other) < best


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    theta=st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)),
    payment=st.floats(1e-3, 1e6),
    competition=st.sampled_from(BOTH),
)
def test_every_game_has_an_equilibrium_in_which_nobody_loses(
    seed: int, theta: float, payment: float, competition: Competition
) -> None:
    """A client that begins with nothing and collects nothing has utility 0, so nobody has less."""
    game = trimmed(random_game(seed))
    plan = equilibrium(game, payment=payment, conservation_rate=theta, competition=competition)
    assert plan.converged
    assert plan.certificate.holds()
    assert plan.certificate.deviation_gain <= 1e-8
    assert (plan.outcomes.utility >= -1e-9 * plan.certificate.turnover).all()


@pytest.mark.parametrize("competition", BOTH)
def test_a_cheap_offer_with_much_kept_makes_nobody_lose(competition: Competition) -> None:
    """At R = 10, θ = 0.9 and the defaults, most clients lose if they must carry their first buffer."""
    offer = {"payment": 10.0, "conservation_rate": 0.9}
    fixed = equilibrium(Game(), competition=competition, **offer)
    free = equilibrium(trimmed(Game()), competition=competition, **offer)
    assert fixed.certificate.losing_clients >= 13
    assert free.certificate.losing_clients == 0
    assert free.outcomes.utility.min() > 0


def test_at_the_same_prices_nobody_earns_less() -> None:
    game = Game()
    plan = equilibrium(game, payment=10.0, conservation_rate=0.9)
    price, slope = price_of(10.0, plan.equilibrium.announced_volume, "mean-field")
    free = client.trajectories(game.clients, price, slope, 0.9, trim_start=True)
    for k in range(15):
        costs = game.clients.collection_cost[k], game.clients.training_cost[k]
        before = money(price, plan.volume[:, k], plan.collection[:, k], *costs)
        assert money(price, free[0][:, k], free[1][:, k], *costs) >= before


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.8])
def test_a_client_begins_in_the_steady_state_or_nearby(theta: float) -> None:
    """θ = 0: round 0 stands alone without a collection cost, D(0) = p/(2β) if that is less than D⁰."""
    game = trimmed(Game(clients=Clients(5000.0, 5e-4, 2e-5, count=15), num_rounds=200))
    plan = equilibrium(game, payment=20.0, conservation_rate=theta)
    first, middle = plan.volume[0, 0], plan.volume[100, 0]
    if theta == 0:
        assert first == pytest.approx(np.sqrt(20.0 / (15 * 2 * 2e-5)))
    assert middle == pytest.approx(np.sqrt(20.0 / (15 * (2 * 2e-5 + 2 * 5e-4 * (1 - theta) ** 2))))
    assert middle < first < 5000


def _doctored(change: str, competition: Competition = "mean-field") -> tuple[bool, int]:
    """Whether the certificate holds for a changed plan, and the client with the largest violation."""
    game = trimmed(Game(num_rounds=20))
    plan = equilibrium(game, payment=60.0, conservation_rate=0.5, competition=competition)
    volume, collection = plan.volume.copy(), plan.collection.copy()
    whole = int(np.argmax(plan.volume[0] == game.clients.initial_volume))
    k = whole if change in ("less of all", "too much") else 3
    assert (volume[0, k] == 1000) == (k == whole)
    volume[0, k] *= {"more": 1.01, "less": 0.99, "less of all": 0.99, "too much": 1.01, "none": 1.0}[change]
    collection[0, k] = volume[1, k] - 0.5 * volume[0, k]  # the rest stays as it is
    certificate = certify_profile(game, 60.0, 0.5, volume, collection, competition)
    law = certificate.law_residual
    return certificate.holds(), int((law if law.max() > 1e-9 else certificate.kkt_residual).argmax()) - k


@pytest.mark.parametrize("competition", BOTH)
@pytest.mark.parametrize("change", ["more", "less", "less of all", "too much"])
def test_the_certificate_refuses_one_percent_more_or_less(change: str, competition: Competition) -> None:
    assert _doctored("none", competition)[0]
    assert _doctored(change, competition) == (False, 0)


def test_the_certificate_refuses_first_buffers_that_are_followed_optimally() -> None:
    """Another D(0) with the best collection after it: only the choice of D(0) is wrong, and that is named."""
    game = trimmed(Game(num_rounds=20))
    plan = equilibrium(game, payment=60.0, conservation_rate=0.5)
    price, nothing = price_of(60.0, plan.equilibrium.announced_volume, "mean-field")
    start = plan.volume[0].copy()
    start[3] *= 1.01
    held, collected = client.trajectories(game.clients.holding(start), price, nothing, 0.5)
    certificate = certify_profile(game, 60.0, 0.5, held, collected)
    assert certificate.law_residual.max() <= 1e-12
    assert not certificate.holds()
    assert certificate.fixed_gain.argmax() == 3
    alpha, beta = game.clients.collection_cost[3], game.clients.training_cost[3]
    price = 60.0 / held.sum(axis=1)
    best, gathered, _ = qp_optimum_with_start(price, 1000.0, alpha, beta, 0.5)
    gain = money(price, best, gathered, alpha, beta) - money(price, held[:, 3], collected[:, 3], alpha, beta)
    assert certificate.fixed_gain[3] == pytest.approx(gain, rel=1e-3)


def test_the_equilibrium_without_the_choice_is_no_equilibrium_with_it() -> None:
    plan = equilibrium(Game(), payment=60.0, conservation_rate=0.5)
    certificate = certify_profile(trimmed(Game()), 60.0, 0.5, plan.volume, plan.collection)
    assert not certificate.holds()
    chosen = equilibrium(trimmed(Game()), payment=60.0, conservation_rate=0.5)
    assert not certify_profile(Game(), 60.0, 0.5, chosen.volume, chosen.collection).holds()


@pytest.mark.parametrize("competition", BOTH)
def test_a_hundred_thousand_clients_need_as_few_passes(competition: Competition) -> None:
    clients = Clients.draw(100_000, 2)
    offer = 10 * 100_000 / 15, 0.9
    passes = [
        find_equilibrium(clients, 50, *offer, competition, trim_start=trim).passes for trim in (False, True)
    ]
    assert passes[1] <= passes[0] + 2


@pytest.mark.parametrize("competition", BOTH)
def test_a_long_horizon_needs_no_system_of_equations(
    competition: Competition, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients.draw(15, 1)
    newton = find_equilibrium(clients, 80, 60.0, 0.7, competition, trim_start=True)
    monkeypatch.setattr("dufl.game.mean_field.SYSTEM", 79)
    halfway = find_equilibrium(clients, 80, 60.0, 0.7, competition, trim_start=True)
    assert halfway.converged
    np.testing.assert_allclose(halfway.total_volume, newton.total_volume, rtol=1e-8)


def test_staleness_is_weighted_by_what_is_held() -> None:
    clients = Clients([1000.0, 1000.0], [1e-3, 1e-4], [5e-5, 5e-6], initial_staleness=[9.0, 1.0])
    plan = equilibrium(trimmed(Game(clients=clients, num_rounds=10)), payment=5.0, conservation_rate=0.6)
    assert plan.volume[0, 0] < plan.volume[0, 1]
    weighted = (plan.volume * plan.staleness).sum(axis=1) / plan.total_volume
    np.testing.assert_allclose(plan.mean_staleness, weighted, rtol=1e-8)
    assert plan.mean_staleness[0] < clients.initial_mean_staleness
    game = plan.game
    aged = game.staleness_weight * game.time_sensitivity**2 * plan.mean_staleness
    np.testing.assert_allclose(plan.cost_by_term.staleness, (1 - game.payment_weight) * aged)


def test_the_leader_anticipates_it() -> None:
    """The offer of `solve` costs no more than any offer nearby, and what its plan says."""
    game = trimmed(Game(num_rounds=30, clients=Clients.draw(8, 1, initial_staleness=[1.0, 6.0] * 4)))
    plan = solve(game)
    assert plan.certificate.holds()
    for factor, shift in ((0.9, 0.0), (1.1, 0.0), (1.0, 0.05), (1.0, -0.05)):
        rate = min(max(plan.conservation_rate + shift, 0.0), 1.0)
        near = equilibrium(game, payment=factor * plan.payment, conservation_rate=rate)
        assert plan.server_cost <= near.server_cost * (1 + 1e-9)


def test_algorithm1_anticipates_nothing_and_still_works() -> None:
    options = Algorithm1Options(search="direct", damping=0.5)
    plan = solve(trimmed(Game(num_rounds=20)), method="algorithm1", algorithm1=options)
    assert plan.certificate.holds()
    assert plan.trace is not None
    assert plan.trace.converged
    assert plan.trace.total_volume[-1][0] < 15_000


def test_without_payment_nobody_holds_anything() -> None:
    """So no update is a baseline and no offer: the server cannot choose it."""
    plan = equilibrium(trimmed(Game(num_rounds=5)), payment=0.0, conservation_rate=1.0)
    assert not plan.volume.any()
    assert plan.server_cost == np.inf
    assert plan.certificate.holds()
    stubborn = trimmed(Game(num_rounds=5, time_sensitivity=0.0, payment_weight=0.9))
    assert solve(stubborn).payment > 0
    assert solve(stubborn.replace(trim_start=False)).payment == 0
    free = Game(num_rounds=5, clients=Clients(10.0, 1e-3, [0.0, 1e-5]), trim_start=True)
    kept = equilibrium(free, payment=0.0, conservation_rate=1.0)
    assert kept.volume[0].tolist() == [10.0, 0.0]
    assert kept.certificate.holds()


def test_simpler_strategies_begin_with_the_same_volume() -> None:
    game = trimmed(Game(num_rounds=20))
    plan = equilibrium(game, payment=10.0, conservation_rate=0.9)
    held = volume_law(plan.volume[0], np.zeros((20, 15)), 0.9)
    paid = (10.0 * held / plan.total_volume[:, None]).sum(axis=0)
    spent = (game.clients.training_cost * held**2).sum(axis=0)
    np.testing.assert_allclose(plan.outcomes.zero_utility, paid - spent)
    assert (plan.outcomes.utility >= plan.outcomes.zero_utility - 1e-9).all()


def test_buffers_begin_with_the_trimmed_volume() -> None:
    game = trimmed(Game(num_rounds=10))
    plan = equilibrium(game, payment=10.0, conservation_rate=0.9)
    policy = Planned(plan)
    sizes = np.array([policy.size(k) for k in range(15)])
    assert (np.abs(sizes - plan.volume[0]) <= 1).all()
    assert sizes.max() < 1000
    kept, _ = policy.step(3, 0, int(sizes[3]))
    assert abs(kept - 0.9 * sizes[3]) <= 1
    static = Planned(no_update(game))
    assert [static.size(k) for k in range(15)] == [1000] * 15


def test_goals_let_clients_trim() -> None:
    game = Game(num_rounds=20, loss=LAW)
    for goal, value in (("budget", 100.0), ("accuracy", 0.7)):
        assert with_goal(game, goal, value).trim_start
    assert not with_goal(game, "point_worth", 10.0).trim_start
    assert not with_goal(game, "budget", 0.0).trim_start  # unpaid clients would begin with nothing
    plan = solve(game, budget=100.0)
    assert plan.total_payment <= 100.0 * (1 + 1e-9)
    assert plan.volume[0].max() < 1000
    assert plan.certificate.losing_clients == 0


def test_the_profile_of_a_plan_obeys_the_volume_law() -> None:
    plan = equilibrium(trimmed(Game(num_rounds=20)), payment=3.0, conservation_rate=0.95)
    assert plan.game.trim_start
    np.testing.assert_allclose(collection_law(plan.volume, 0.95), plan.collection[:-1], atol=1e-9)
    np.testing.assert_allclose(plan.volume.sum(axis=1), plan.total_volume, rtol=1e-12)


def test_only_true_or_false() -> None:
    with pytest.raises(InputError, match="trim_start must be true or false"):
        Game(trim_start=2)  # type: ignore[arg-type]
