"""A service without a last round: the stationary equilibrium, the server's best offer, the certificate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dufl.errors import CertificateError, InputError
from dufl.game import endless_offer
from dufl.game.certificate import Certificate
from dufl.game.endless import StationaryPlan, solve_endless
from dufl.game.endless import endless_offer as offer_without_end
from dufl.game.endless_certificate import certify_stationary
from dufl.game.endless_offer import Service, best_offer, cheapest_offer
from dufl.game.loss import PowerLaw
from dufl.game.parameters import Competition, Game
from dufl.game.plan import equilibrium, solve, with_goal
from dufl.game.population import Clients, LogNormal
from dufl.game.stationary import responses, shares

BOTH: list[Competition] = ["mean-field", "nash"]
LAW = PowerLaw(
    floor=0.1,
    volume_weight=0.3,
    volume_exponent=0.25,
    staleness_weight=0.02,
    staleness_exponent=3,
    noise=0.004,
)
FLOW = LAW.replace(flow_weight=0.2, flow_exponent=0.6)
both = pytest.mark.parametrize("competition", BOTH)


def given(game: Game, payment: float, rate: float, competition: Competition) -> StationaryPlan:
    ranges = {"payment_range": (payment, payment), "conservation_range": (rate, rate)}
    return solve_endless(game.replace(**ranges), competition=competition)


def wild(seed: int) -> tuple[Game, Competition]:
    """A game whose parameters and ranges differ by many magnitudes."""
    draw = np.random.default_rng(seed)

    def magnitude(low: float, high: float) -> float:
        return float(10 ** draw.uniform(low, high))

    costs = {name: LogNormal(median=magnitude(-7, 1), spread=draw.uniform(0, 3)) for name in ("a", "b")}
    count = int(draw.integers(2, 30))
    clients = Clients.draw(count, seed, collection_cost=costs["a"], training_cost=costs["b"])
    low, rate = magnitude(-9, 2) * draw.integers(2), float(draw.uniform(0, 0.9)) * draw.integers(2)
    game = Game(
        clients=clients,
        horizon="endless",
        payment_weight=min(1.0, magnitude(-8, 0)),
        time_sensitivity=magnitude(-4, 1),
        sampling_noise=magnitude(-3, 2),
        payment_range=(low, max(low, magnitude(-3, 20))),
        conservation_range=(rate, float(draw.uniform(rate, 1)) if draw.integers(2) else 1.0),
    )
    if seed % 3 == 1:
        law: dict[str, Any] = {}
        for name in ("volume", "staleness", "flow"):
            law |= {f"{name}_exponent": float(draw.uniform(0.1, 6)), f"{name}_weight": magnitude(-4, 0)}
        game = game.replace(loss=PowerLaw(**law))
    return game, BOTH[seed % 2]


@both
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_it_is_the_middle_of_a_long_horizon(rate: float, competition: Competition) -> None:
    finite = equilibrium(Game(num_rounds=400), payment=60.0, conservation_rate=rate, competition=competition)
    plan = given(Game(), 60.0, rate, competition)
    np.testing.assert_allclose(finite.volume[200], plan.volume, rtol=1e-6)
    np.testing.assert_allclose(finite.collection[200], plan.collection, rtol=1e-6)
    assert finite.total_volume[200] == pytest.approx(plan.total_volume, rel=1e-6)
    assert finite.mean_staleness[200] == pytest.approx(plan.staleness, rel=1e-6)
    assert finite.cost_by_term.per_round[200] == pytest.approx(plan.server_cost, rel=1e-6)


@both
def test_it_is_the_limit_of_longer_and_longer_games(competition: Competition) -> None:
    endless = solve_endless(competition=competition)
    apart = []
    for rounds in (25, 100, 400):
        finite = solve(Game(num_rounds=rounds), competition=competition, certified=False)
        away = (
            abs(finite.payment / endless.payment - 1),
            abs(finite.conservation_rate - endless.conservation_rate),
        )
        apart.append(max(away))
    assert apart[0] > 3 * apart[1] > 9 * apart[2]
    assert apart[2] < 0.005


def test_the_figures_that_can_be_checked_by_hand() -> None:
    """With the paper's law, R(θ) = (c/(2γ))^(2/3), and the payment costs half of what scarcity does."""
    game = Game(horizon="endless")
    plan = solve_endless(game)
    assert plan.payment == pytest.approx(53.34, rel=1e-3)
    assert plan.conservation_rate == pytest.approx(0.304, abs=1e-3)
    answer = float(
        (
            1
            / (game.clients.collection_cost * (1 - plan.conservation_rate) ** 2 + game.clients.training_cost)
        ).sum()
    )
    scarcity = (1 - game.payment_weight) * 15 / np.sqrt(answer / 2)
    assert plan.payment == pytest.approx((scarcity / (2 * game.payment_weight)) ** (2 / 3), rel=1e-9)
    assert plan.cost_by_term.volume[0] == pytest.approx(2 * plan.cost_by_term.payment[0], rel=1e-9)


@both
@pytest.mark.parametrize("seed", range(12))
def test_everybody_gains_and_nobody_gains_more_by_deviating(seed: int, competition: Competition) -> None:
    game, _ = wild(seed)
    plan = solve_endless(game, competition=competition)
    assert plan.certificate.holds(1e-9)
    assert plan.residual < 1e-12
    assert (plan.utility > 0).all()
    clients = game.clients
    curvature = clients.collection_cost * (1 - plan.conservation_rate) ** 2 + clients.training_cost
    if competition == "mean-field":
        np.testing.assert_allclose(plan.utility, curvature * plan.volume**2, rtol=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_no_offer_of_a_dense_grid_is_better(seed: int) -> None:
    game, competition = wild(seed)
    plan = solve_endless(game, competition=competition)
    service = Service(game, game.clients, competition)
    ages = np.linspace(*service.ages, 701)
    payments = np.exp(np.linspace(*service.magnitudes, 701))
    rates = service.rates(ages)
    answers = responses(game.clients, rates, competition)
    costs = service.costs(payments[:, None], rates[None], answers[None])
    assert plan.server_cost <= costs.min() * (1 + 1e-9)
    low, high = game.payment_range
    assert low <= plan.payment <= high
    assert game.conservation_range[0] <= plan.conservation_rate <= game.conservation_range[1]


@both
def test_a_law_of_the_same_values_has_the_same_offer(competition: Competition) -> None:
    """The closed form, the payment by magnitudes of a flow law, and a user's own function agree."""
    plain = best_offer(Game(loss=LAW), competition)
    own = best_offer(Game(loss=lambda x, s: 0.3 * x**0.25 + 0.02 * (s / 10) ** 3), competition)
    flow = best_offer(Game(loss=LAW.replace(flow_weight=1e-300)), competition)
    for other in (own, flow):
        assert other.payment == pytest.approx(plain.payment, rel=1e-5)
        assert other.conservation_rate == pytest.approx(plain.conservation_rate, rel=1e-5)


def test_a_million_clients_are_searched_as_a_few_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search sees types; all clients are summed over for the result alone."""
    game = Game(clients=Clients.draw(20_000), payment_range=(0.0, 1e4))
    seen: list[tuple[int, int]] = []

    def counted(clients: Clients, rates: np.ndarray, competition: Competition) -> np.ndarray:
        seen.append((clients.size, rates.size))
        return responses(clients, rates, competition)

    monkeypatch.setattr(endless_offer, "responses", counted)
    plan = solve_endless(game)
    assert max(size for size, _ in seen) <= 256
    assert sum(size * rates for size, rates in seen) < 100 * game.clients.size
    exact = Service(game, game.clients, "mean-field")
    around = plan.conservation_rate + np.linspace(-0.01, 0.01, 9)
    assert plan.server_cost <= exact.paid(around)[1].min() * (1 + 1e-6)
    assert plan.certificate.holds(1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_shares_of_a_nash_game_add_up_over_any_magnitudes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    alpha, beta = 10 ** draw.uniform(-40, 40, (2, 9))
    for rate in (0.0, 0.9, 1 - 1e-6):
        _, held = shares(Clients(1.0, alpha, beta * (draw.random(9) < 0.5)), rate, "nash")
        assert held.sum() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_costs_may_be_sixty_magnitudes_apart(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = int(draw.integers(2, 8))
    alpha, beta = 10 ** draw.uniform(-30, 30, (2, count))
    clients = Clients(1.0, alpha, beta * (draw.random(count) < 0.7))
    game = Game(clients=clients, payment_range=(0.0, float(10 ** draw.uniform(-20, 40))))
    plan = solve_endless(game, competition=BOTH[seed % 2])
    assert plan.certificate.holds(1e-9)
    assert plan.residual < 1e-12


@both
@pytest.mark.parametrize("change", ["volume", "collection", "both", "payment"])
def test_the_certificate_refuses_what_is_not_an_equilibrium(change: str, competition: Competition) -> None:
    plan = given(Game(), 60.0, 0.5, competition)
    factor = np.where(np.arange(15) == 3, 1.001, 1.0)
    volume = plan.volume * (factor if change in ("volume", "both") else 1)
    collection = plan.collection * (factor if change in ("collection", "both") else 1)
    payment = plan.payment * (1.001 if change == "payment" else 1)
    certificate = certify_stationary(plan.game, payment, 0.5, volume, collection, competition)
    assert not certificate.holds()
    other: Competition = "nash" if competition == "mean-field" else "mean-field"
    assert not certify_stationary(plan.game, 60.0, 0.5, plan.volume, plan.collection, other).holds()


def test_a_refused_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Certificate, "holds", lambda *_: False)
    with pytest.raises(CertificateError):
        solve_endless()


@both
def test_no_policy_over_many_rounds_beats_the_bound(competition: Competition) -> None:
    """Alone against the others' constant volumes, from any start, the bound per round and λ·D(0) hold."""
    plan = given(Game(clients=Clients.draw(4, seed=2)), 20.0, 0.7, competition)
    alpha, beta = (getattr(plan.game.clients, f"{name}_cost")[0] for name in ("collection", "training"))
    others = plan.total_volume - plan.volume[0]
    draw = np.random.default_rng(0)
    for scale in (0.3, 1.0, 1.7):
        for start in (0.0, float(plan.volume[0])):
            held, earned, rounds = start, 0.0, 500
            for gathered in scale * plan.collection[0] * draw.uniform(0, 2, rounds):
                total = plan.total_volume if competition == "mean-field" else others + held
                earned += plan.payment * held / total - alpha * gathered**2 - beta * held**2
                held = 0.7 * held + gathered
            worth = 2 * alpha * plan.collection[0]
            assert earned <= rounds * plan.utility[0] * (1 + 1e-9) + worth * start


@pytest.mark.parametrize("law", [LAW, FLOW])
@both
def test_goals_per_round(law: PowerLaw, competition: Competition) -> None:
    game = Game(horizon="endless", loss=law)
    spent = solve_endless(game, budget=7.0, competition=competition)
    assert spent.payment == pytest.approx(7.0)
    assert spent.prediction is not None
    accuracy = spent.prediction.accuracy - 1.2816 * spent.prediction.deviation
    found = cheapest_offer(game, accuracy, competition)
    assert found.reached
    assert found.payment == pytest.approx(7.0, rel=1e-4)
    assert found.conservation_rate == pytest.approx(spent.conservation_rate, abs=1e-3)
    same = game.replace(payment_weight=1 / (1 + 100 * 0.5))
    assert solve_endless(game, point_worth=0.5, competition=competition).offer == best_offer(
        same, competition
    )
    assert with_goal(game, "budget", 7.0).payment_range == (0.0, 7.0)


def test_an_accuracy_out_of_reach_gives_the_best_there_is() -> None:
    found = cheapest_offer(Game(loss=LAW), 0.99)
    assert not found.reached
    assert found.missing > 0
    assert found.payment == pytest.approx(500.0)


def test_unusual_games() -> None:
    nothing = given(Game(), 0.0, 0.5, "mean-field")
    assert nothing.total_volume == 0
    assert nothing.server_cost == np.inf
    assert nothing.certificate.holds()
    assert solve_endless(Game(payment_weight=1.0)).payment == 0
    assert solve_endless(Game(payment_weight=0.0)).payment == 500.0
    ageless = solve_endless(Game(time_sensitivity=0.0))
    assert ageless.staleness == pytest.approx(1e6)
    alone = solve_endless(Game(clients=Clients(5.0, 1e-3, 0.0)))
    assert alone.certificate.holds()
    assert alone.volume.shape == (1,)
    free = solve_endless(
        Game(clients=Clients(5.0, [1e-3, 1e-4, 1e-5], [0.0, 1e-30, 0.0])), competition="nash"
    )
    assert free.certificate.holds()


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("decay", lambda: Game(horizon="endless", decay=0.9)),
        ("horizon", lambda: Game(horizon="monthly")),  # type: ignore[arg-type]
        ("horizon", lambda: solve(Game(horizon="endless"))),
        ("horizon", lambda: equilibrium(Game(horizon="endless"), payment=1.0, conservation_rate=0.5)),
        ("conservation_range", lambda: solve_endless(Game(conservation_range=(1.0, 1.0)))),
        ("competition", lambda: solve_endless(Game(clients=Clients(5.0, 1.0, 1.0)), competition="nash")),
        ("budget", lambda: solve_endless(budget=5.0)),
        ("budget", lambda: solve_endless(Game(loss=LAW), budget=0.0)),
        ("budget", lambda: solve_endless(Game(loss=LAW, payment_range=(3.0, 9.0)), budget=2.0)),
        ("point_worth", lambda: solve_endless(Game(loss=LAW), point_worth=0.0)),
        ("accuracy", lambda: solve_endless(Game(loss=LAW), accuracy=1.5)),
        ("budget and accuracy", lambda: solve_endless(Game(loss=LAW), budget=1.0, accuracy=0.5)),
    ],
)
def test_bad_input(field: str, make: object) -> None:
    with pytest.raises(InputError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field


def test_a_finite_plan_knows_the_offer_without_an_end() -> None:
    plan = solve(Game(num_rounds=10))
    endless = plan.endless_offer
    assert endless == solve_endless(Game(num_rounds=10)).offer
    for game in (Game(decay=0.9), Game(conservation_range=(1.0, 1.0)), Game(loss=lambda x, s: x + s)):
        assert offer_without_end(game) is None
    assert replace(plan, game=plan.game.replace(decay=0.5)).endless_offer is None
