"""What it costs that nobody loses: the least payment that is enough, and first buffers that are trimmed."""

import numpy as np
import pytest

from dufl import Clients, Game, equilibrium, solve
from dufl.game import participation
from dufl.game.parameters import Competition
from dufl.game.participation import NobodyLoses, nobody_loses
from dufl.game.plan import Plan
from measured import measured_law

BOTH: list[Competition] = ["mean-field", "nash"]


def losing_plan(game: Game, competition: Competition = "mean-field", rate: float = 0.9) -> Plan:
    plan = equilibrium(game, payment=10.0, conservation_rate=rate, competition=competition)
    assert plan.certificate.losing_clients > 0
    return plan


def cost_of(plan: Plan) -> NobodyLoses:
    cost = nobody_loses(plan)
    assert cost is not None
    return cost


@pytest.mark.parametrize("competition", BOTH)
@pytest.mark.parametrize("rate", [0.5, 0.9, 1.0])
def test_at_the_payment_nobody_loses_and_below_it_somebody_does(
    competition: Competition, rate: float
) -> None:
    game = Game(num_rounds=40)
    plan = losing_plan(game, competition, rate)
    change = cost_of(plan).larger_payment
    assert change is not None
    enough, less = (
        equilibrium(game, payment=payment, conservation_rate=rate, competition=competition)
        for payment in (change.payment, 0.9999 * change.payment)
    )
    assert enough.certificate.losing_clients == 0
    assert less.certificate.losing_clients > 0
    assert change.extra_payment == pytest.approx(enough.total_payment - plan.total_payment)
    assert change.extra_cost == pytest.approx(enough.server_cost - plan.server_cost)


@pytest.mark.parametrize("competition", BOTH)
def test_with_trimmed_buffers_nobody_loses(competition: Competition) -> None:
    plan = losing_plan(Game(), competition)
    change = cost_of(plan).trim_start
    assert change is not None
    trimmed = equilibrium(
        plan.game.replace(trim_start=True),
        payment=plan.payment,
        conservation_rate=plan.conservation_rate,
        competition=competition,
    )
    assert trimmed.certificate.losing_clients == 0
    assert nobody_loses(trimmed) is None
    assert change.extra_payment == 0
    assert change.extra_cost == pytest.approx(trimmed.server_cost - plan.server_cost)


def test_a_plan_without_losing_clients_costs_nothing_more() -> None:
    assert nobody_loses(solve()) is None


def test_the_change_is_in_the_unit_of_the_law() -> None:
    plan = losing_plan(Game(num_rounds=40, loss=measured_law()))
    assert plan.prediction is not None
    summary = cost_of(plan).summary()
    for change in (summary["trim_start"], summary["larger_payment"]):
        gained = change["predicted_accuracy"] - plan.prediction.accuracy
        assert change["extra_accuracy"] == pytest.approx(gained)
    assert summary["larger_payment"]["extra_accuracy"] > 0
    costs = {name: summary[name]["extra_cost"] for name in ("trim_start", "larger_payment")}
    assert costs[summary["cheapest"]] == min(costs.values())
    loss = cost_of(losing_plan(Game(num_rounds=40, loss=measured_law().replace(unit="loss")))).summary()
    assert {"predicted_loss", "extra_loss"} <= set(loss["trim_start"])


def test_without_any_payment_only_a_payment_helps() -> None:
    """With R = 0, clients that may begin with less would keep nothing at all."""
    plan = equilibrium(Game(num_rounds=20), payment=0.0, conservation_rate=1.0)
    assert plan.certificate.losing_clients == 15
    cost = cost_of(plan)
    assert cost.trim_start is None
    assert cost.larger_payment is not None
    enough = equilibrium(plan.game, payment=cost.larger_payment.payment, conservation_rate=1.0)
    assert enough.certificate.losing_clients == 0


def test_a_payment_that_buys_more_than_fits_is_no_way() -> None:
    roomy = losing_plan(Game(num_rounds=20, clients=Clients.draw(4, capacity=1e6)))
    assert cost_of(roomy).larger_payment is not None
    tight = roomy.game.replace(clients=Clients.draw(4, capacity=1000.0))
    plan = equilibrium(tight, payment=10.0, conservation_rate=0.5)
    assert plan.certificate.losing_clients > 0
    cost = cost_of(plan)
    assert cost.trim_start is not None
    paid = cost.larger_payment
    if paid is not None:
        assert equilibrium(tight, payment=paid.payment, conservation_rate=0.5).volume.max() <= 1000.0 * 1.001


def test_one_client() -> None:
    plan = losing_plan(Game(num_rounds=5, clients=Clients.draw(1)))
    change = cost_of(plan).larger_payment
    assert change is not None
    assert change.payment > 10


def test_a_large_population_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers to within a few percent, if totals are those of types and few clients are watched."""
    plan = losing_plan(Game(num_rounds=40, clients=Clients.draw(600)))
    exact = cost_of(plan)
    monkeypatch.setattr(participation, "EXACT", 100)
    estimate = cost_of(plan)
    assert estimate.estimated
    assert not exact.estimated
    for name in ("trim_start", "larger_payment"):
        one, other = getattr(exact, name), getattr(estimate, name)
        assert other.payment == pytest.approx(one.payment, rel=0.02)
        assert other.extra_cost == pytest.approx(one.extra_cost, rel=0.02)


def test_the_summary_is_plain() -> None:
    summary = cost_of(losing_plan(Game(num_rounds=20))).summary()
    assert set(summary) == {"cheapest", "trim_start", "larger_payment", "estimated"}
    for change in (summary["trim_start"], summary["larger_payment"]):
        assert set(change) == {"payment", "extra_payment", "extra_cost"}
        assert np.isfinite(list(change.values())).all()


def test_a_law_of_ones_own_has_no_unit() -> None:
    plan = losing_plan(Game(num_rounds=20, loss=lambda scarcity, staleness: scarcity + 0.01 * staleness))
    assert cost_of(plan).unit is None
