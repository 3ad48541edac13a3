"""Full buffers and clients that stay away, as they are drawn."""

from typing import Any

import numpy as np
import pytest

import dufl
from dufl import Clients, Game, Plan, Uniform
from dufl.report.chart_spec import Chart, Series
from dufl.report.plan_charts import trajectory_charts, utility_chart


def planned(count: int = 8, payment: float = 40.0, participation: Any = "mandatory", **columns: Any) -> Plan:
    clients = Clients.draw(count, **{"initial_volume": 100, **columns})
    game = Game(clients=clients, num_rounds=8, participation=participation)
    return dufl.equilibrium(game, payment=payment, conservation_rate=0.3)


def named(chart: Chart) -> dict[str, Series]:
    return {series.name: series for series in chart.series}


def test_without_limits_the_charts_have_what_they_had() -> None:
    plan = planned()
    assert all(list(named(chart)) == ["each client", "mean"] for chart in trajectory_charts(plan))
    utilities = utility_chart(plan)
    assert list(named(utilities)) == ["plan (optimal)", "random, same total", "no collection"]
    assert list(utilities.data) == ["client", "payment", "utility", "random_utility", "zero_utility"]
    assert all(not chart.note for chart in (*trajectory_charts(plan), utilities))
    assert list(named(trajectory_charts(planned(capacity=1e6))[1])) == ["each client", "mean"]


def test_full_rounds_are_drawn_at_the_capacity() -> None:
    plan = planned(capacity=120)
    volume = trajectory_charts(plan)[1]
    drawn = named(volume)
    assert np.all(np.asarray(drawn["capacity"].y) == 120)
    assert drawn["capacity"].dash == "dash"
    full = np.asarray(drawn["full buffer"].y)
    np.testing.assert_allclose(full[~np.isnan(full)], 120)
    assert (~np.isnan(full)).sum() == plan.certificate.full_rounds.sum() > 0
    assert "with a full buffer" in volume.note


def test_capacities_that_differ_have_no_common_line() -> None:
    plan = planned(capacity=Uniform(low=101, high=140))
    assert (plan.certificate.full_rounds > 0).sum() > 1
    drawn = named(trajectory_charts(plan)[1])
    assert "capacity" not in drawn
    assert "full buffer" in drawn


def test_of_many_clients_the_line_alone_is_drawn() -> None:
    plan = planned(60, payment=300, capacity=120)
    assert list(named(trajectory_charts(plan)[1])) == ["90 % of clients", "mean", "capacity"]
    assert "full buffer in some round" not in named(utility_chart(plan))


def test_full_clients_are_marked_at_their_utility() -> None:
    plan = planned(capacity=120)
    marks = named(utility_chart(plan))["full buffer in some round"]
    full = np.flatnonzero(plan.certificate.full_rounds)
    assert sorted(int(name) for name in marks.x) == full.tolist()
    for name, value in zip(marks.x, marks.y, strict=True):
        assert value == plan.outcomes.utility[int(name)]


def test_who_stays_away_is_not_drawn() -> None:
    plan = planned(participation="voluntary", initial_volume=Uniform(low=50, high=1500))
    assert plan.takes_part is not None
    inside = np.flatnonzero(plan.takes_part)
    assert 0 < inside.size < 8
    collected, volume, _ = trajectory_charts(plan)
    names = [name for name in volume.data if name.startswith("client ")]
    assert names == [f"client {k}" for k in inside]
    np.testing.assert_allclose(np.asarray(volume.data["mean"]), plan.volume[:, inside].mean(axis=1))
    np.testing.assert_array_equal(volume.data[names[-1]], plan.volume[:, inside[-1]])
    np.testing.assert_allclose(np.asarray(collected.data["mean"]), plan.collection[:-1, inside].mean(axis=1))
    utilities = utility_chart(plan)
    assert sorted(utilities.data["client"]) == inside.tolist()
    assert utilities.note == f"{8 - inside.size} clients stay away."


@pytest.mark.parametrize("kind", ["trajectories", "utilities", "cost", "surface"])
@pytest.mark.parametrize("payment", [0.0, 40.0])
def test_all_figures_are_drawn(kind: str, payment: float) -> None:
    """Also if nobody takes part, where nothing is held and the cost is infinite."""
    columns = {"initial_volume": Uniform(low=50, high=1500), "capacity": 1500}
    plan = planned(4, payment, "voluntary", **columns)
    assert plan.plot(kind)._repr_png_().startswith(b"\x89PNG")
