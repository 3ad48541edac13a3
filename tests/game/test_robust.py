"""Plans under the uncertainty of a loss law: plausible laws, robust offers, and the value of information."""

import warnings
from functools import cache

import numpy as np
import pytest

import dufl
from dufl import Clients, Game, InputError, solve
from dufl.calibration.fit import FORMS, Fit, Form, covariance, fit_form
from dufl.calibration.measurements import columns
from dufl.game import robust
from dufl.game.information import TERMS, known_cost, values
from dufl.game.law_draws import LawDraws, draw_laws
from dufl.game.loss import PARAMETERS, PowerLaw
from dufl.game.parameters import Competition
from dufl.game.robustness import Robust, Robustness
from measured import DEVIATIONS, measured_law, measurements

KINDS: list[Robust] = ["expected", "worst"]
SMALL = Game(num_rounds=10, clients=Clients.draw(3, initial_volume=50.0), payment_weight=1e-3)


def scaled(*deviations: float, by: float = 1.0) -> PowerLaw:
    """The law of a calibration with other standard deviations of its parameters."""
    matrix = by * np.diag(np.square(deviations or DEVIATIONS))
    return measured_law().replace(
        staleness_weight=0.15, covariance=tuple(tuple(row) for row in matrix.tolist())
    )


def parameters_of(law: PowerLaw, row: np.ndarray) -> PowerLaw:
    return law.replace(**dict(zip(PARAMETERS, row.tolist(), strict=True)))


@cache
def robustness(
    kind: Robust = "expected", by: float = 1.0, competition: Competition = "mean-field"
) -> Robustness:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dufl.NegativeUtilityWarning)
        found = solve(SMALL.replace(loss=scaled(by=by)), robust=kind, competition=competition).robustness
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.simplefilter("ignore", dufl.NegativeUtilityWarning)


@pytest.mark.parametrize("form", FORMS[3:], ids=lambda form: form.name)
def test_plausible_laws_predict_what_the_covariance_says(form: Form) -> None:
    """At the trainings predictions spread as the expansion says, also where terms are hard to tell apart."""
    measured = measurements(20, noise=0.01)
    scarcity, staleness, value = columns(measured)
    law = fit_form(form, scarcity, staleness, value)
    rmse = float(np.sqrt(np.mean((value - law(scarcity, staleness)) ** 2)))
    law = law.replace(covariance=covariance(Fit(form, law, rmse, 0, 0, 0, 0), measured))
    draws = draw_laws(law)
    assert len(draws) == 129
    predicted = np.array([parameters_of(law, row)(scarcity, staleness) for row in draws.parameters])
    expected = np.array([law.deviation(x, s) for x, s in zip(scarcity, staleness, strict=True)])
    assert np.median(predicted.std(axis=0) / expected) == pytest.approx(0.9, abs=0.2)
    assert np.abs(np.median((predicted.mean(axis=0) - law(scarcity, staleness)) / expected)) < 0.4


def test_plausible_laws_can_exist_and_are_the_same_every_time() -> None:
    law = scaled(0.5, 1.0, 1.0, 0.5, 3.0, 0.5, 1.0)
    first, second = draw_laws(law), draw_laws(law)
    np.testing.assert_array_equal(first.parameters, second.parameters)
    np.testing.assert_array_equal(first.parameters[0], law.parameters)
    for row in first.parameters:
        parameters_of(law, row)  # raises if a weight is negative or an exponent is not in (0, 50]
    assert np.ptp(first.parameters[:, 1]) > 0.5


def test_parameters_without_variance_do_not_change() -> None:
    draws = draw_laws(scaled(0.01, 0.05, 0.0, 0.0, 0.3, 0.0, 0.0))
    varies = np.ptp(draws.parameters, axis=0) > 0
    assert varies.tolist() == [True, True, False, False, True, False, False]


def test_all_laws_at_once_cost_what_each_costs() -> None:
    law = scaled(0.01, 0.02, 0.05, 0.01, 0.3, 0.02, 0.1).replace(oldest=6.0)
    draws = draw_laws(law)
    generator = np.random.default_rng(0)
    scarcity, staleness, weight = (
        generator.uniform(0.01, 1, 9),
        generator.uniform(1, 9, 9),
        generator.random(9),
    )
    losses = draws.losses(scarcity, staleness, weight)
    for row, loss in zip(draws.parameters, losses, strict=True):
        one = float(weight @ (parameters_of(law, row)(scarcity, staleness) - law.floor))
        assert loss == pytest.approx(one, rel=1e-9)
    assert np.isinf(draws.losses(np.array([np.inf]), np.ones(1), np.ones(1))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_without_uncertainty_it_is_the_plain_plan(kind: Robust) -> None:
    game = SMALL.replace(loss=scaled(by=0.0))
    plain, other = solve(game), solve(game, robust=kind)
    assert other.offer == plain.offer
    found = other.robustness
    assert found is not None
    assert found.laws == 1
    assert found.chosen.expected_cost == pytest.approx(plain.server_cost, rel=1e-9)
    assert found.chosen.worst_cost == found.chosen.expected_cost
    assert found.expected_regret == 0
    assert not any(found.value_of.values())
    assert found.next_pilot is None


@pytest.mark.parametrize("competition", ["mean-field", "nash"])
def test_costs_are_in_order(competition: Competition) -> None:
    expected, worst = (robustness(kind, 1.0, competition) for kind in KINDS)
    for found in (expected, worst):
        assert found.known_cost <= found.chosen.expected_cost <= found.chosen.worst_cost
        assert found.known_cost <= found.plain.expected_cost <= found.plain.worst_cost
    assert expected.chosen.expected_cost <= expected.plain.expected_cost
    assert worst.chosen.worst_cost <= worst.plain.worst_cost
    assert expected.chosen.expected_cost <= worst.chosen.expected_cost * (1 + 1e-9)
    assert worst.chosen.worst_cost <= expected.chosen.worst_cost * (1 + 1e-9)


def test_no_other_offer_is_better() -> None:
    """Offers around the chosen one cost more, under laws that are evaluated one by one."""
    game = SMALL.replace(loss=scaled())
    rows = draw_laws(game.loss).parameters
    for kind in KINDS:
        chosen = robustness(kind).chosen

        def cost(payment: float, rate: float, kind: Robust = kind) -> float:
            plan = dufl.equilibrium(game, payment=payment, conservation_rate=rate)
            scarcity = game.clients.num_clients / plan.total_volume
            losses = [np.sum(parameters_of(game.loss, row)(scarcity, plan.mean_staleness)) for row in rows]
            value = np.mean(losses) if kind == "expected" else np.max(losses)
            paid = game.payment_weight * plan.total_payment
            return float(paid + (1 - game.payment_weight) * (value - 10 * game.loss.floor))

        best = cost(chosen.payment, chosen.conservation_rate)
        assert best == pytest.approx(getattr(chosen, f"{kind}_cost"), rel=1e-6)
        for factor, shift in ((1.1, 0.0), (0.9, 0.0), (1.0, 0.03), (1.0, -0.03), (1.05, 0.02), (0.95, -0.02)):
            assert cost(factor * chosen.payment, chosen.conservation_rate + shift) > best


def test_knowing_is_worth_more_the_less_is_known() -> None:
    found = [robustness(by=by) for by in (0.25, 1.0, 4.0)]
    known = [one.value_of["law"] for one in found]
    assert 0 < known[0] < known[1] < known[2]
    for one in found:
        assert one.expected_regret == pytest.approx(one.value_of["law"], rel=1e-6)
        assert all(0 <= one.value_of[term] <= one.value_of["law"] for term in TERMS)


@pytest.mark.parametrize(
    ("deviations", "term"),
    [
        ((0.01, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0), "volume"),
        ((0.01, 0.0, 0.0, 0.01, 0.4, 0.0, 0.0), "staleness"),
    ],
)
def test_what_is_known_is_worth_nothing(deviations: tuple[float, ...], term: str) -> None:
    game = SMALL.replace(loss=scaled(*deviations))
    found = solve(game, robust="expected").robustness
    assert found is not None
    assert found.value_of[term] > 0.6 * found.value_of["law"] > 0  # the only term that is not known
    assert not any(found.value_of[other] for other in TERMS if other != term)
    assert found.next_pilot == term


def test_the_value_of_a_term_in_a_case_with_a_known_answer() -> None:
    """Quadratic costs: with U = (g − v − s)², and v and s independent, knowing v is worth var(v)."""
    generator = np.random.default_rng(1)
    laws = np.tile(measured_law().parameters, (400, 1))
    laws[:, 1], laws[:, 3] = (
        2 + 0.4 * generator.standard_normal(400),
        2 + 0.2 * generator.standard_normal(400),
    )
    offers = np.linspace(2, 6, 401)
    costs = (offers[:, None] - laws[:, 1] - laws[:, 3]) ** 2
    found = values(costs, LawDraws(measured_law(), laws))
    assert known_cost(costs) == pytest.approx(0, abs=1e-4)
    assert found["law"] == pytest.approx(0.2, rel=0.15)
    assert found["volume"] == pytest.approx(0.16, rel=0.2)
    assert found["staleness"] == pytest.approx(0.04, rel=0.5)
    assert found["flow"] == 0


def test_money_and_loss_of_a_regret() -> None:
    found = robustness()
    amounts = found.amounts(found.expected_regret)
    assert amounts["money"] == pytest.approx(found.expected_regret / 1e-3)
    assert amounts["money_per_round"] == pytest.approx(found.expected_regret / 1e-3 / 10)
    assert amounts["loss"] == pytest.approx(found.expected_regret / (10 * (1 - 1e-3)))
    summary = found.summary()
    assert summary["value_of"].keys() == {"law", *TERMS}
    assert summary["next_pilot"] in (None, *TERMS)


@pytest.mark.parametrize("goal", [{"budget": 300.0}, {"point_worth": 30.0}])
def test_with_a_goal(goal: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "GRID", (5, 5))
    monkeypatch.setattr(robust, "OFFERS", 50)
    game = SMALL.replace(loss=scaled())
    plan = solve(game, robust="expected", **goal)  # type: ignore[arg-type]
    found = plan.robustness
    assert found is not None
    assert found.chosen.expected_cost <= found.plain.expected_cost
    if "budget" in goal:
        assert plan.total_payment <= 300.0 * (1 + 1e-9)
        assert found.amounts(found.expected_regret)["money"] is None
    else:
        assert found.payment_weight == pytest.approx(10 / (10 + 3000))


@pytest.mark.parametrize(
    ("game", "options"),
    [
        (SMALL, {}),
        (SMALL.replace(loss=measured_law().replace(covariance=None)), {}),
        (SMALL.replace(loss=lambda scarcity, staleness: scarcity), {}),
        (SMALL.replace(loss=scaled()), {"accuracy": 0.7}),
        (SMALL.replace(loss=scaled()), {"method": "algorithm1"}),
        (SMALL.replace(loss=scaled(), payment_range=(5.0, 5.0), conservation_range=(0.5, 0.5)), {}),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(game: Game, options: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        solve(game, robust="expected", **options)  # type: ignore[arg-type]
    assert caught.value.field == "robust"


def test_a_matrix_that_is_no_covariance_is_refused() -> None:
    matrix = np.eye(7)
    matrix[0, 1] = matrix[1, 0] = 5.0
    law = measured_law().replace(covariance=tuple(tuple(row) for row in matrix.tolist()))
    with pytest.raises(InputError) as caught:
        solve(SMALL.replace(loss=law), robust="worst")
    assert caught.value.field == "loss.covariance"


@pytest.mark.parametrize(
    "changes",
    [
        {"payment_weight": 1.0},
        {"num_rounds": 2},
        {"payment_range": (0.0, 0.0)},
        {"conservation_range": (1.0, 1.0)},
        {"trim_start": True, "decay": 0.9},
        {"clients": Clients.draw(1)},
    ],
)
def test_extreme_games(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "GRID", (5, 5))
    monkeypatch.setattr(robust, "OFFERS", 50)
    plan = solve(SMALL.replace(loss=scaled().replace(oldest=4.0), **changes), robust="worst")
    found = plan.robustness
    assert found is not None
    assert found.known_cost <= found.chosen.expected_cost <= found.chosen.worst_cost
    assert plan.certificate.holds()


def test_in_a_file_it_belongs_to_the_leader() -> None:
    experiment = dufl.Experiment(game=SMALL.replace(loss=scaled()), leader=dufl.Leader(robust="worst"))
    assert 'robust = "worst"' in experiment.to_toml()
    assert "robust" not in dufl.Experiment().to_toml()
    assert experiment.solve().robustness == robustness("worst")
    with pytest.raises(InputError):
        experiment.for_goal({"accuracy": 0.7})
