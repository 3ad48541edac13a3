"""The frontier: what each payment buys, by a law that was fitted to trainings."""

import numpy as np
import pytest

import dufl
from dufl.experiment.frontier import (
    POINTS,
    Frontier,
    frontier_of,
    paper_offer,
    payment_per_point,
    score_of,
)
from dufl.game.prediction import Prediction
from measured import measured_law

GAME = dufl.Game(loss=measured_law(), payment_range=(0.0, 200.0))


@pytest.fixture(scope="module")
def plan() -> dufl.Plan:
    return dufl.solve(GAME.replace(payment_weight=1e-4), certified=False)


@pytest.fixture(scope="module")
def frontier(plan: dufl.Plan) -> Frontier:
    found = frontier_of(plan)
    assert found is not None
    return found


def test_accuracy_rises_with_the_payment_inside_its_band(plan: dufl.Plan, frontier: Frontier) -> None:
    assert len(frontier.payment) == POINTS
    assert frontier.payment[0] == pytest.approx(1e-3 * plan.payment)
    assert frontier.payment[-1] == pytest.approx(200)
    assert (np.diff(frontier.payment) > 0).all()
    assert (np.diff(frontier.accuracy) > 0).all()
    assert (frontier.low < frontier.accuracy).all()
    assert (frontier.accuracy < frontier.high).all()


def test_the_plan_is_on_it(plan: dufl.Plan, frontier: Frontier) -> None:
    assert plan.prediction is not None
    assert plan.payment in frontier.payment
    assert frontier.at(plan.payment) == pytest.approx(plan.prediction.accuracy, abs=1e-3)
    assert frontier.at(plan.payment) >= plan.prediction.accuracy - 1e-4


def test_no_other_rate_is_better(frontier: Frontier) -> None:
    for place in (4, 14, 22):
        for rate in np.linspace(0, 1, 21):
            other = dufl.equilibrium(GAME, payment=frontier.payment[place], conservation_rate=float(rate))
            assert other.prediction is not None
            assert other.prediction.accuracy <= frontier.accuracy[place] + 1e-4


def test_a_law_without_a_unit_has_none() -> None:
    plan = dufl.equilibrium(payment=50, conservation_rate=0.3)
    assert frontier_of(plan) is None
    assert payment_per_point(plan) is None
    assert paper_offer(plan) is None


@pytest.mark.parametrize("payment", [1e-9, 30.0])
def test_of_an_offer_that_is_fixed(payment: float) -> None:
    game = GAME.replace(payment_range=(payment, payment), conservation_range=(0.5, 0.5), num_rounds=20)
    plan = dufl.equilibrium(game, payment=payment, conservation_rate=0.5)
    frontier = frontier_of(plan)
    assert frontier is not None
    for values in (frontier.payment, frontier.accuracy, frontier.low, frontier.high):
        assert np.isfinite(values).all()
    assert (np.diff(frontier.payment) > 0).all()
    assert (frontier.conservation_rate != 0.5).any()


def test_of_a_server_without_money() -> None:
    game = GAME.replace(payment_range=(0.0, 0.0), num_rounds=20)
    plan = dufl.equilibrium(game, payment=0.0, conservation_rate=0.0)
    assert frontier_of(plan) is None
    assert payment_per_point(plan) is None


def test_the_paper_parameters_pay_for_a_bound(plan: dufl.Plan) -> None:
    offer, alone = paper_offer(plan), dufl.solve(GAME.replace(loss=None), certified=False)
    assert offer is not None
    assert offer.prediction is not None
    assert (offer.payment, offer.conservation_rate) == (alone.payment, alone.conservation_rate)


@pytest.mark.parametrize("worth", [5.0, 200.0])
def test_a_point_costs_what_it_is_worth(worth: float) -> None:
    """At the optimum, the last point of accuracy costs its worth over all rounds."""
    law = measured_law().replace(measured_from=0.0)
    plan = dufl.solve(GAME.replace(loss=law), point_worth=worth, certified=False)
    slope = payment_per_point(plan)
    assert slope is not None
    assert slope * plan.game.num_rounds == pytest.approx(worth, rel=0.02)


def test_an_rmse_falls_with_the_payment() -> None:
    plan = dufl.solve(GAME.replace(loss=measured_law().replace(unit="rmse"), num_rounds=20), certified=False)
    frontier = frontier_of(plan)
    assert frontier is not None
    assert (np.diff(frontier.value) <= 1e-9).all()  # without update at first, which no payment changes
    assert frontier.value[-1] < 0.9 * frontier.value[0]
    assert np.isnan(frontier.accuracy).all()
    assert payment_per_point(plan) is not None


def test_shares_stay_shares() -> None:
    for value, deviation in ((1.7, 0.1), (0.01, 0.1), (np.inf, np.inf), (-0.1, 0.0)):
        score = score_of(Prediction("error", value, deviation))
        assert 0 <= score.low <= score.value <= score.high <= 1
