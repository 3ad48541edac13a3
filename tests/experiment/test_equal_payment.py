"""Comparisons at equal payment: whoever collects pays the same, and it is recorded what was paid."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from command_line import told
from dufl.experiment.compare import compare, grid
from dufl.experiment.config import Experiment
from dufl.experiment.equal_payment import EqualPayment
from dufl.report.tables import comparison_table
from dufl.report.training_report import write_report
from federations import SMALL, facts
from federations import small as small_experiment
from own_plugins import Half
from recordings import hyperplane, recorded

SPENDING = (
    *("dufl", "algorithm1", "fixed-10-0.9", "zero", "random", "keep-all", "fresh-only"),
    *("window-1", "window-3", "periodic-3", "age-price"),
)
KEPT = "game.conservation_range=[0.8, 1]"  # so that nobody runs out of samples who collects none
LAW = dufl.PowerLaw(
    floor=0.1, volume_weight=0.5, volume_exponent=0.3, staleness_weight=0.2, staleness_exponent=1.5
)


def small(*changes: str) -> Experiment:
    return small_experiment("leader.search=direct", *changes)  # a Bayesian search takes seconds


def paid(comparison: dufl.Comparison) -> dict[str, float]:
    return {cell.policy: cell.summary()["total_payment"] for cell in comparison.cells}


def test_whoever_collects_pays_the_same() -> None:
    experiment = small("clients.initial_volume=400", KEPT)
    wanted = experiment.solve().payment * 8
    found = compare(grid(experiment, policies=("static", *SPENDING)), equal_payment=True)
    assert wanted > 0
    assert paid(found).pop("static") == 0
    for policy in SPENDING:
        assert paid(found)[policy] == pytest.approx(wanted, rel=1e-9), policy
    assert {run.experiment.game.payment_range for cell in found.cells for run in cell.runs} == {(0.0, 500.0)}


def test_without_it_policies_pay_what_they_like() -> None:
    found = paid(compare(grid(small(), policies=("dufl", "algorithm1", "fixed-10-0.9", "window-3"))))
    assert found["fixed-10-0.9"] == 80.0
    assert found["window-3"] == pytest.approx(found["dufl"])
    assert found["algorithm1"] != pytest.approx(found["dufl"], rel=0.01)


def test_nobody_is_paid_who_holds_nothing() -> None:
    """A strategy that collects nothing ends with empty buffers if little is kept; the record says so."""
    experiment = small("game.conservation_range=[0, 0]")
    found = compare(grid(experiment, policies=("zero", "dufl")), equal_payment=True)
    assert paid(found)["zero"] == pytest.approx(paid(found)["dufl"] / 8)


def test_a_given_payment_is_that_of_all() -> None:
    found = compare(grid(small().fixed(payment=7.0), policies=SPENDING[1:]), equal_payment=True)
    assert {p: v for p, v in paid(found).items() if p != "zero"} == pytest.approx(
        dict.fromkeys(set(SPENDING[1:]) - {"zero"}, 56.0), rel=1e-9
    )


def test_the_loop_of_the_paper_searches_at_the_given_payment() -> None:
    experiment = small()
    found = compare(grid(experiment, policies=("algorithm1",)), equal_payment=True)
    plan, payment = found.cells[0].runs[0].plan, experiment.solve().payment
    game = experiment.game.replace(payment_range=(payment, payment))
    fixed = dufl.solve(game, method="algorithm1", algorithm1=experiment.leader.algorithm1)
    assert plan is not None
    assert (plan.payment, plan.conservation_rate) == (payment, fixed.conservation_rate)


@pytest.mark.parametrize("goal", ["budget", "accuracy", "point_worth"])
def test_a_plan_for_a_goal_sets_the_payment(goal: str) -> None:
    value = {"budget": 120.0, "accuracy": 0.7, "point_worth": 500.0}[goal]
    experiment = small("clients.initial_volume=400")
    experiment = experiment.replace(game=experiment.game.replace(loss=LAW))
    experiment = experiment.replace(leader=experiment.leader.replace(**{goal: value}))
    policies = (
        "static",
        "dufl",
        "algorithm1",
        "fixed-10-0.9",
        "random",
        "window-3",
        "periodic-3",
        "age-price",
    )
    found = compare(grid(experiment, policies=policies), equal_payment=True)
    wanted = 8 * experiment.for_goal().solve().payment
    assert wanted > 0
    assert goal != "budget" or wanted == pytest.approx(120.0)
    for policy in policies[1:]:
        assert paid(found)[policy] == pytest.approx(wanted, rel=1e-9), policy
    loop = found["fedavg-algorithm1"].runs[0].plan
    assert loop is not None
    assert loop.game.trims == (goal != "point_worth")  # as for the plan
    assert loop.game.conservation_range == (0.0, 1.0)


def test_recorded_policies_buy_what_is_there() -> None:
    recording = hyperplane(900)
    experiment = recorded(recording, rounds=9, policy="dufl")
    policies = (
        "dufl",
        "keep-all",
        "fresh-only",
        "window-3",
        "periodic-3",
        "age-price",
        "random",
        "algorithm1",
    )
    found = compare(grid(experiment, policies=policies), equal_payment=True, seeds=2)
    first = paid(found)["dufl"]
    assert paid(found) == pytest.approx(dict.fromkeys(policies, first), rel=1e-9)
    for cell in found.cells:
        for run in cell.runs:
            replay = experiment.data.replay(recording, run.experiment.game, run.experiment.training.seed)
            held = np.cumsum(replay.available(), axis=0)[:-1]
            assert (np.array([record.volumes for record in run.records]) <= held).all()


def test_a_comparison_at_equal_payment_is_resumed_and_reported(tmp_path: Path) -> None:
    wanted = grid(small(), policies=("static", *SPENDING))
    first = compare(wanted, equal_payment=True, out=tmp_path / "all")
    again = compare(wanted, equal_payment=True, out=tmp_path / "all", resume=True)
    for one, two in zip(first.cells, again.cells, strict=True):
        assert [facts(r) for r in one.runs[0].records] == [facts(r) for r in two.runs[0].records]
    with pytest.raises(dufl.InputError, match="holds a run of another configuration"):
        compare(wanted, out=tmp_path / "all", resume=True)
    page = write_report([tmp_path / "all"]).path.read_text(encoding="utf-8")
    for policy in ("age-price", "periodic-3", "window-3", "zero", "random", "keep-all"):
        assert policy in page


def test_the_table_marks_the_reference() -> None:
    experiment = small()
    found = compare(grid(experiment, policies=("static", "fixed-10-0.5", Half)), equal_payment=True)
    labels = list(comparison_table(list(found.cells)).columns[1].cells)
    assert labels == [
        "static (collects nothing)",
        f"fixed-{experiment.solve().payment:g}-0.5",
        "own_plugins:Half (its own payment)",
    ]


def test_the_plan_of_a_comparison_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[Experiment] = []
    original = Experiment.solve

    def solve(self: Experiment) -> dufl.Plan:
        solved.append(self)
        return original(self)

    monkeypatch.setattr(Experiment, "solve", solve)
    equal, experiment = EqualPayment(), small()
    made = [equal(experiment.replace(policy=policy), dufl.Data().load()) for policy in SPENDING]
    assert len(solved) == 1
    assert {one.baseline_payment for one in made} == {None, original(experiment).payment}


def test_the_command(dufl_command: Any, tmp_path: Path) -> None:
    options = (*told(*SMALL), "--policies", "static,dufl,window-3,periodic-3,age-price", "--equal-payment")
    code, out, err = dufl_command("compare", *options, "--payment", "20", "--json")
    assert (code, err) == (0, "")
    totals = {cell["policy"]: cell["total_payment"] for cell in json.loads(out)["cells"]}
    assert totals == pytest.approx(
        {"static": 0.0, "dufl": 160.0, "window-3": 160.0, "periodic-3": 160.0, "age-price": 160.0}
    )
    code, out, err = dufl_command("compare", *options, "--out", str(tmp_path / "all"))
    assert (code, err) == (0, "")
    assert "static (collects nothing)" in out
