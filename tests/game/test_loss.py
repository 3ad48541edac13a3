"""The loss law: the paper's bound as a power law, predictions, and plans for a goal."""

import warnings

import numpy as np
import pytest

import dufl
from dufl import InputError
from dufl.game.loss import PARAMETERS, PowerLaw, remember, scarcity_of
from dufl.game.utility import available

LAW = PowerLaw(
    floor=0.12,
    volume_weight=0.33,
    volume_exponent=0.24,
    staleness_weight=0.001,
    staleness_exponent=4.4,
    noise=0.003,
    measured_from=0.6,
)
SMALL = dufl.Game(clients=dufl.Clients.draw(6), num_rounds=40)


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.simplefilter("ignore", dufl.NegativeUtilityWarning)


def test_with_exponents_of_one_it_is_the_paper_s_bound() -> None:
    law = PowerLaw(volume_weight=1.0, staleness_weight=10 * 1e-2 * 0.75**2)
    paper, same = dufl.solve(), dufl.solve(dufl.Game(loss=law))
    assert same.payment == pytest.approx(paper.payment, rel=1e-9)
    assert same.conservation_rate == pytest.approx(paper.conservation_rate, rel=1e-9)
    assert same.server_cost == pytest.approx(paper.server_cost, rel=1e-9)
    assert same.no_update_cost == pytest.approx(paper.no_update_cost, rel=1e-9)


def test_an_own_law_is_a_function() -> None:
    own = dufl.solve(SMALL.replace(loss=lambda scarcity, staleness: scarcity + 0.005625 * staleness))
    paper = dufl.solve(SMALL)
    assert own.payment == pytest.approx(paper.payment, rel=1e-5)
    assert own.prediction is None


def test_gradient_by_finite_differences() -> None:
    law = LAW.replace(flow_weight=0.2, flow_exponent=0.5)
    exact = law.gradient(0.02, 7.0)
    for place, name in enumerate(PARAMETERS):
        step = 1e-6 * max(abs(getattr(law, name)), 1e-3)
        up, down = (law.replace(**{name: getattr(law, name) + sign * step})(0.02, 7.0) for sign in (1, -1))
        assert exact[place] == pytest.approx((up - down) / (2 * step), rel=1e-4)


def test_the_law_is_stored_in_toml() -> None:
    law = LAW.replace(covariance=tuple(tuple(float(i == j) for j in range(7)) for i in range(7)))
    experiment = dufl.Experiment(game=SMALL.replace(loss=law))
    text = experiment.to_toml()
    assert "[game.loss]" in text
    again = dufl.Experiment.from_toml(changes={"game.loss": experiment.game.loss.model_dump()})
    assert again.game.loss == law


def test_a_budget_is_kept_and_used() -> None:
    game = SMALL.replace(loss=LAW)
    plans = [dufl.solve(game, budget=budget) for budget in (40.0, 400.0)]
    assert [plan.total_payment for plan in plans] == pytest.approx([40.0, 400.0])
    first, second = (plan.prediction for plan in plans)
    assert first is not None
    assert second is not None
    assert second.accuracy > first.accuracy
    for rate in np.linspace(0.5, 0.98, 7):  # no other conservation rate predicts more at the same payment
        other = dufl.equilibrium(game, payment=10.0, conservation_rate=float(rate)).prediction
        assert other is not None
        assert other.accuracy <= second.accuracy + 2e-3


def test_an_accuracy_is_reached_at_the_least_payment() -> None:
    game = SMALL.replace(loss=LAW)
    plan = dufl.solve(game, accuracy=0.75)
    prediction = plan.prediction
    assert prediction is not None
    assert 1 - (prediction.value + 1.2816 * prediction.deviation) == pytest.approx(0.75, abs=5e-4)
    cheaper = dufl.solve(game, budget=0.9 * plan.total_payment).prediction
    assert cheaper is not None
    assert 1 - (cheaper.value + 1.2816 * cheaper.deviation) < 0.75
    best = dufl.solve(game, accuracy=0.99)  # out of reach: the best there is
    assert best.payment == game.payment_range[1]


def test_what_a_point_is_worth_sets_the_weight_of_money() -> None:
    game = SMALL.replace(loss=LAW)
    plan = dufl.solve(game, point_worth=25.0)
    assert plan.game.payment_weight == pytest.approx(40 / (40 + 2500))
    more = dufl.solve(game, point_worth=250.0)
    assert more.payment > plan.payment


@pytest.mark.parametrize("goal", ["budget", "accuracy", "point_worth"])
def test_goals_need_a_law_in_a_unit(goal: str) -> None:
    with pytest.raises(InputError, match="dufl calibrate") as caught:
        dufl.solve(SMALL, **{goal: 0.5})  # type: ignore[arg-type]
    assert caught.value.field == goal


def test_one_goal_at_a_time() -> None:
    with pytest.raises(InputError):
        dufl.solve(SMALL.replace(loss=LAW), budget=5.0, accuracy=0.8)


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({"volume_exponent": 0.0}, "volume_exponent"),
        ({"covariance": [[1.0]]}, "covariance"),
        ({"unit": "points"}, "unit"),
        (7, "loss"),
    ],
)
def test_bad_laws_are_refused(table: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        dufl.Game(loss=table)
    assert field in (caught.value.field or "")


def test_data_older_than_any_that_was_tried_is_avoided() -> None:
    """A law without a term of age would let data grow old for ever, where nobody has looked."""
    blind = PowerLaw(floor=0.1, volume_weight=0.3, volume_exponent=0.3)
    game = SMALL.replace(payment_weight=0.5)
    careless, careful = (dufl.solve(game.replace(loss=law)) for law in (blind, blind.replace(oldest=8.0)))
    assert careless.mean_staleness.max() > 20
    assert careful.mean_staleness.mean() < 12


def test_memory_counts_what_was_held_before() -> None:
    law = PowerLaw(volume_weight=1.0, memory=20.0)
    steady, fading = np.full(50, 300.0), np.maximum(3000.0 * 0.8 ** np.arange(50), 300.0)
    assert scarcity_of(law, 15, steady) == pytest.approx(np.full(50, 15 / 300))
    assert (scarcity_of(law, 15, fading) < 15 / fading)[1:].all()
    assert scarcity_of(law, 15, fading)[-1] < scarcity_of(law, 15, steady)[-1]


def test_a_game_that_begins_during_a_run_remembers_what_was_before() -> None:
    law = PowerLaw(volume_weight=1.0, memory=7.0)
    total = np.random.default_rng(0).uniform(100, 900, 40)
    held, weight = remember(total[:25], law.memory)
    later = law.replace(remembered=(float(held[-1]), float(weight[-1])))
    assert scarcity_of(later, 15, total[25:]) == pytest.approx(scarcity_of(law, 15, total)[25:], rel=1e-12)


def test_no_data_is_not_remembered() -> None:
    law = PowerLaw(volume_weight=1.0, memory=7.0)
    assert scarcity_of(law, 15, np.array([100.0, 0.0, 50.0])).tolist()[1] == float("inf")


@pytest.mark.parametrize("trim", [None, True, False])
def test_goals_trim_first_buffers_unless_the_game_says_otherwise(trim: bool | None) -> None:
    law = PowerLaw(floor=0.1, volume_weight=0.3, volume_exponent=0.25, staleness_weight=0.01, noise=0.004)
    plan = dufl.solve(dufl.Game(loss=law, trim_start=trim, num_rounds=30), budget=150.0)
    assert plan.game.trims is (trim is not False)
    assert bool(plan.total_volume[0] < plan.game.clients.initial_total) is plan.game.trims


def test_samples_that_do_not_exist_are_not_planned_with() -> None:
    law = PowerLaw(floor=0.2, volume_weight=0.3, volume_exponent=0.3, staleness_weight=0.05, noise=0.004)
    game = dufl.Game(num_rounds=60, trim_start=True)
    free = dufl.solve(game.replace(loss=law, payment_range=(20.0, 20.0)))
    wanted = float(free.total_volume[30] / free.mean_staleness[30]) / 15
    scarce = game.replace(loss=law.replace(most_collected=wanted / 2))
    assert available(scarce, free.conservation_rate, free.total_volume)[30] < 0.7 * free.total_volume[30]
    bound = dufl.solve(scarce.replace(payment_range=(20.0, 20.0)))
    assert bound.server_cost > free.server_cost
    again = dufl.solve(game.replace(loss=law.replace(most_collected=10 * wanted), payment_range=(20.0, 20.0)))
    assert again.server_cost == pytest.approx(free.server_cost, rel=1e-6)


@pytest.mark.parametrize("payment", [2.0, 20.0])
def test_at_a_fixed_payment_the_prediction_is_best(payment: float) -> None:
    """A law of the late rounds: what large first buffers do in the early ones does not count."""
    law = LAW.replace(measured_from=0.8)
    game = dufl.Game(loss=law, payment_range=(payment, payment), conservation_range=(0.0, 0.97))
    plan = dufl.solve(game)
    assert plan.prediction is not None
    predicted = [
        dufl.equilibrium(game, payment=payment, conservation_rate=rate).prediction
        for rate in np.linspace(0.0, 0.97, 25).tolist()
    ]
    assert all(plan.prediction.accuracy >= other.accuracy - 1e-4 for other in predicted if other is not None)
    everywhere = dufl.solve(game.replace(loss=law.replace(measured_from=0.0)))
    assert everywhere.conservation_rate != pytest.approx(plan.conservation_rate, abs=1e-3)
    spent = dufl.solve(game.replace(payment_range=(0.0, 500.0), trim_start=False), budget=100 * payment)
    assert spent.conservation_rate == pytest.approx(plan.conservation_rate, abs=1e-9)
