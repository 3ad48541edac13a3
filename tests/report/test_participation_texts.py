"""What it would cost that nobody loses, as it is written."""

from dataclasses import replace

import pytest

import dufl
from dufl.game.plan import Plan
from dufl.report.participation import participation_rows, participation_text
from dufl.report.uncertainty import uncertainty_rows
from measured import measured_law


@pytest.fixture(scope="module")
def plan() -> Plan:
    return dufl.equilibrium(dufl.Game(num_rounds=20, loss=measured_law()), payment=10, conservation_rate=0.9)


def test_both_ways_are_shown(plan: Plan) -> None:
    rows = participation_rows(plan)
    assert len(rows) == 2
    assert all("points" in value for _, value in rows)
    assert participation_text(plan).startswith(f"{plan.certificate.losing_clients} clients")


def test_estimates_are_called_so(plan: Plan) -> None:
    about = replace(plan)
    about.__dict__["nobody_loses"] = replace(plan.nobody_loses, estimated=True)
    assert all("about" in label + value for label, value in participation_rows(about))


def test_nothing_is_said_where_nobody_loses() -> None:
    fine = dufl.equilibrium(payment=53.0, conservation_rate=0.3)
    assert participation_rows(fine) == []
    assert participation_text(fine) == ""
    assert uncertainty_rows(fine) == []


def test_another_unit(plan: Plan) -> None:
    loss = dufl.Game(num_rounds=20, loss=measured_law().replace(unit="rmse"))
    other = dufl.equilibrium(loss, payment=10, conservation_rate=0.9)
    assert all("RMSE" in value for _, value in participation_rows(other))
