"""Goals in the explorer: a budget, an accuracy, or what a point of accuracy is worth."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from streamlit.testing.v1 import AppTest

import dufl
from dufl import InputError
from dufl.web import streamlit_app
from dufl.web.goal import NO_GOAL, Goal, goal_remarks, starting_goal
from dufl.web.plans import baseline_plan, frontier_around, optimum_of, plan_json, plan_of, surface_of
from dufl.web.request import Request, initial_values
from dufl.web.source import upload_source

LAW = {
    "floor": 0.1,
    "volume_weight": 0.3,
    "volume_exponent": 0.5,
    "staleness_weight": 0.01,
    "staleness_exponent": 1.0,
    "noise": 0.005,
}
COVARIANCE = [[1e-6 * (row == column) for column in range(7)] for row in range(7)]
GAME: dict[str, Any] = {"num_rounds": 12, "loss": LAW, "payment_weight": 1e-4}
CALIBRATED: dict[str, Any] = {"game": GAME, "clients": {"count": 5}}
BUDGET, ACCURACY, WORTH = Goal("budget", 60.0), Goal("accuracy", 0.8), Goal("point_worth", 40.0)

Command = Callable[..., tuple[int, str, str]]


def request_for(table: dict[str, Any] = CALIBRATED, **changes: Any) -> Request:
    source = upload_source(tomli_w.dumps(table).encode(), "federation.toml", None)
    return Request(source, replace(initial_values(source), **changes))


def with_leader(**leader: Any) -> dict[str, Any]:
    return CALIBRATED | {"leader": leader}


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """Start the page with a file."""

    def start(table: dict[str, Any]) -> AppTest:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "federation.toml").write_text(tomli_w.dumps(table))
        monkeypatch.setattr(sys, "argv", ["streamlit_app", "federation.toml"])
        return AppTest.from_file(streamlit_app.__file__, default_timeout=60).run()

    return start


GOALS = {
    "budget": request_for(goal=BUDGET),
    "accuracy": request_for(goal=ACCURACY, num_rounds=9),
    "point worth": request_for(goal=WORTH),
    "Nash": request_for(goal=BUDGET, competition="nash"),
    "Algorithm 1": request_for(goal=BUDGET, method="algorithm1", search="direct"),
    "no money": request_for(goal=Goal("budget", 0.0)),
    "no accuracy that high": request_for(goal=Goal("accuracy", 0.99)),
    "of the file": request_for(with_leader(budget=60)),
    "another value than in the file": request_for(with_leader(budget=60), goal=Goal("budget", 30.0)),
    "another goal than in the file": request_for(with_leader(budget=60), goal=WORTH),
    "robust": request_for(
        with_leader(robust="worst") | {"game": GAME | {"loss": LAW | {"covariance": COVARIANCE}}},
        goal=BUDGET,
    ),
}


@pytest.mark.parametrize("name", GOALS)
def test_the_command_plans_for_the_same_goal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dufl_command: Command
) -> None:
    request = GOALS[name]
    monkeypatch.chdir(tmp_path)
    Path("federation.toml").write_text(request.source.toml)
    code, out, _ = dufl_command(*shlex.split(request.command())[1:], "--json")
    printed = json.loads(out)
    missed = printed.pop("missed_by", None)  # the page says it in words
    assert (code, printed) == (0, json.loads(plan_json(request)))
    assert (missed is None) is ("accuracy" not in name)


def test_the_command_names_the_goal() -> None:
    assert request_for(goal=BUDGET).command() == "dufl plan federation.toml --budget 60.0"
    assert request_for(goal=WORTH).command() == "dufl plan federation.toml --point-worth 40.0"
    assert request_for(with_leader(budget=60)).command() == "dufl plan federation.toml"
    assert request_for(goal=BUDGET).changes() == {"leader.budget": 60.0}


def test_a_goal_that_the_file_has_and_the_page_has_not_needs_the_saved_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dufl_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    request = request_for(with_leader(budget=60), goal=None)
    assert request.files() == ["dufl.toml"]
    Path("dufl.toml").write_text(request.experiment().to_toml())
    code, out, _ = dufl_command(*shlex.split(request.command())[1:], "--json")
    assert (code, out) == (0, plan_json(request))
    assert plan_of(request).offer == plan_of(request_for()).offer


def test_the_saved_file_has_the_goal() -> None:
    toml = request_for(goal=ACCURACY).experiment().to_toml()
    assert initial_values(upload_source(toml.encode(), "dufl.toml", None)).goal == ACCURACY


@pytest.mark.parametrize("goal", [BUDGET, ACCURACY, WORTH], ids=lambda goal: goal.name)
def test_the_plan_is_that_of_solve(goal: Goal) -> None:
    request = request_for(goal=goal)
    game = request_for().experiment().game
    named: dict[str, Any] = {goal.name: goal.value}
    plan, wanted = plan_of(request), dufl.solve(game, **named)
    assert plan.offer == wanted.offer
    assert plan.summary() == wanted.summary()


def test_a_goal_is_compared_in_its_own_game() -> None:
    """The optimum has the goal's weight of money, and its first buffers: no plan has a lower cost."""
    for goal in (BUDGET, ACCURACY, WORTH):
        request = request_for(goal=goal)
        plan, optimum = plan_of(request), optimum_of(request)
        assert plan.game.trims == optimum.game.trims
        assert plan.game.payment_weight == optimum.game.payment_weight
        assert optimum.server_cost <= plan.server_cost * (1 + 1e-6)
        frontier = frontier_around(request)
        assert frontier is not None
        assert plan.prediction is not None
        if goal is not WORTH:
            assert frontier.at(plan.payment) == pytest.approx(plan.prediction.accuracy, abs=0.005)
        assert baseline_plan(request) is not None
        assert surface_of(request).payments[-1] > plan.payment
    assert optimum_of(request_for(goal=WORTH)) is plan_of(request_for(goal=WORTH))
    assert optimum_of(request_for(goal=BUDGET)) is optimum_of(request_for(goal=ACCURACY))


@pytest.mark.parametrize(
    ("goal", "rule"),
    [
        (Goal("budget", -1.0), ">= 0"),
        (Goal("accuracy", 1.0), "in (0, 1)"),
        (Goal("accuracy", 78.0), "in (0, 1)"),
        (Goal("point_worth", 0.0), "> 0"),
    ],
)
def test_a_wrong_goal_is_explained_beside_its_field(goal: Goal, rule: str) -> None:
    with pytest.raises(InputError) as raised:
        request_for(goal=goal).experiment()
    assert (raised.value.field, raised.value.rule) == ("goal", rule)
    assert str(raised.value).startswith(goal.name)


def test_a_goal_without_a_unit_is_refused() -> None:
    rmse = {"game": GAME | {"loss": LAW | {"unit": "rmse"}}}
    for table, goal in (({"game": {"num_rounds": 12}}, BUDGET), (rmse, ACCURACY)):
        with pytest.raises(InputError) as raised:
            request_for(table, goal=goal).experiment()
        assert raised.value.field == "goal"
    assert plan_of(request_for(rmse, goal=BUDGET)).prediction


def test_a_goal_starts_at_the_plan_on_the_page() -> None:
    plan = plan_of(request_for())
    assert starting_goal("budget", plan) == pytest.approx(plan.total_payment, rel=0.01)
    assert starting_goal("budget", plan) >= plan.total_payment
    assert plan.prediction is not None
    assert 0 < starting_goal("accuracy", plan) <= plan.prediction.accuracy
    again = plan_of(request_for(goal=Goal("point_worth", starting_goal("point_worth", plan))))
    assert again.payment == pytest.approx(plan.payment, rel=0.02)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_goal_has_a_start_at_the_edges(weight: float) -> None:
    for payments in ([0.0, 0.0], [0.0, 20.0], [20.0, 20.0]):
        game = GAME | {"payment_weight": weight, "payment_range": payments}
        plan = plan_of(request_for({"game": game, "clients": {"count": 1}}))
        for name in ("budget", "accuracy", "point_worth"):
            goal = Goal(name, starting_goal(name, plan))
            assert plan_of(request_for({"game": game, "clients": {"count": 1}}, goal=goal)).payment <= 20


def test_a_goal_that_the_limit_of_the_payment_prevents_is_told() -> None:
    for far in (Goal("accuracy", 0.99), Goal("budget", 1e6)):
        assert goal_remarks(plan_of(request_for(goal=far)), far)
    for goal in (BUDGET, ACCURACY, WORTH, None):
        assert goal_remarks(plan_of(request_for(goal=goal)), goal) == []


def shown(tab: AppTest) -> dict[str, str]:
    assert not tab.exception
    return {figure.label: figure.value for figure in tab.metric}


def charts(tab: AppTest) -> list[str]:
    """The names of the charts, from top to bottom."""
    return [chart.proto.id.rpartition("-")[2] for chart in tab.get("plotly_chart")]


def test_a_budget_on_the_page(opened: Callable[..., AppTest]) -> None:
    tab = opened(CALIBRATED)
    before = shown(tab)
    tab.toggle(key="fix_payment").set_value(True).run()
    control = tab.selectbox(key="goal")
    assert (control.value, control.disabled) == (NO_GOAL, False)
    control.set_value("budget").run()
    tab.number_input(key="goal_value").set_value(60.0).run()
    plan = dufl.solve(request_for().experiment().game, budget=60)
    assert shown(tab)["Payment R per round"] == f"{plan.payment:.2f}"
    assert shown(tab)["Conservation rate θ"] == f"{plan.conservation_rate:.3f}"
    assert tab.code[0].value == "dufl plan federation.toml --budget 60.0"
    for name in ("fix_payment", "fix_conservation_rate"):
        assert (tab.toggle(key=name).value, tab.toggle(key=name).disabled) == (False, True)
    tab.number_input(key="goal_value").set_value(-5.0).run()
    assert "budget" in tab.sidebar.error[0].value
    assert shown(tab)["Payment R per round"] == f"{plan.payment:.2f}"
    tab.selectbox(key="goal").set_value(NO_GOAL).run()
    assert not tab.error
    assert shown(tab) == before


def test_the_frontier_is_the_first_chart(opened: Callable[..., AppTest]) -> None:
    tab = opened(with_leader(budget=60))
    assert charts(tab)[0] == "frontier"
    assert charts(tab).count("frontier") == 1


def test_the_goal_of_a_file_is_in_the_control(opened: Callable[..., AppTest]) -> None:
    tab = opened(with_leader(accuracy=0.8))
    assert tab.selectbox(key="goal").value == "accuracy"
    assert tab.number_input(key="goal_value").value == 0.8
    assert tab.code[0].value == "dufl plan federation.toml"
    tab.selectbox(key="goal").set_value("point_worth").run()
    assert "--point-worth" in tab.code[0].value
    assert shown(tab)
    assert not tab.error


def test_a_law_without_a_unit_has_no_goals(opened: Callable[..., AppTest]) -> None:
    tab = opened({"game": {"num_rounds": 12}, "clients": {"count": 5}})
    assert tab.selectbox(key="goal").disabled
    assert any("dufl calibrate" in caption.value for caption in tab.sidebar.caption)
    assert "frontier" not in charts(tab)
    assert not tab.toggle(key="fix_payment").disabled


def test_a_goal_of_a_file_without_such_a_law_can_be_taken_back(opened: Callable[..., AppTest]) -> None:
    tab = opened({"game": {"num_rounds": 12}, "clients": {"count": 5}, "leader": {"budget": 60}})
    assert "dufl calibrate" in tab.sidebar.error[0].value
    tab.selectbox(key="goal").set_value(NO_GOAL).run()
    assert shown(tab)
    assert not tab.error
