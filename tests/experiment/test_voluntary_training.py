"""Training where clients may stay away: they hold nothing, are never sampled, and do not count."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.errors import InputError
from dufl.experiment.callbacks import Action
from dufl.experiment.config import Experiment
from dufl.experiment.remaining import read_remaining
from dufl.experiment.train import Run, train
from dufl.game.utility import cost_of_rounds
from dufl.learning.selection import Candidates, participants
from dufl.learning.settings import Training
from dufl.report.tables import run_html
from dufl.report.training_report import write_report
from federations import facts
from loading import load

TOLD = (
    *("game.num_rounds=8", "clients.count=6", "clients.initial_volume={low=50, high=1500}"),
    *("game.payment_range=[40, 40]", "game.conservation_range=[0.3, 0.3]", "training.local_epochs=1"),
    *("checkpoint_every=1", "fraction_train=0.5", "client_dropout=0.2"),
)
VOLUNTARY = "game.participation=voluntary"


def experiment(*changes: str) -> Experiment:
    return load(None, [*TOLD, *changes])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = train(experiment(VOLUNTARY), out=tmp_path_factory.mktemp("voluntary") / "run")
    assert run.plan is not None
    assert 0 < run.plan.staying_away < 6
    return run


def away(run: Run) -> set[int]:
    assert run.plan is not None
    assert run.plan.takes_part is not None
    return set(np.flatnonzero(~run.plan.takes_part).tolist())


def test_who_stays_away_holds_nothing_and_is_never_sampled(run: Run) -> None:
    for record in run.records:
        assert {k for k, volume in enumerate(record.volumes) if not volume} == away(run)
        assert not away(run) & set(record.dropped)
        assert record.participants + len(record.dropped) == 2  # half of the 4 or 3 that take part, rounded
    assert run.summary()["staying_away"] == len(away(run))
    assert "clients that stay away" in run_html(run)


def test_the_measured_cost_counts_those_who_take_part(run: Run) -> None:
    assert run.plan is not None
    paid, total, age = (
        np.array([getattr(record, name) for record in run.records], float)
        for name in ("payment", "total_volume", "mean_age")
    )
    assert run.records[-1].server_cost == cost_of_rounds(run.plan.playing, paid, total, age).total
    assert run.records[-1].server_cost < cost_of_rounds(run.plan.game, paid, total, age).total
    assert run.records[-1].server_cost == pytest.approx(run.plan.server_cost, rel=0.1)


def test_a_pause_after_any_round_changes_nothing(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(experiment(VOLUNTARY), out=out, callbacks=[lambda one: Action.PAUSE if one.round == 3 else None])
    resumed = train(experiment(VOLUNTARY), out=out, resume=True)
    assert [facts(one) for one in resumed.records] == [facts(one) for one in run.records]
    assert resumed.summary()["fingerprint"] == run.summary()["fingerprint"]


def test_a_stored_run_knows_who_stayed_away(run: Run) -> None:
    assert run.folder is not None
    again = Run.load(run.folder)
    assert away(again) == away(run)
    stored = json.loads((run.folder / "summary.json").read_text())
    assert stored["staying_away"] == again.summary()["staying_away"] == len(away(run))


def test_the_report_names_them(run: Run, tmp_path: Path) -> None:
    assert run.folder is not None
    page = write_report([run.folder], tmp_path / "report.html").path.read_text()
    listed = ", ".join(str(k) for k in sorted(away(run)))
    assert f"stay away: {listed}." in page
    assert ">takes part</th>" in page
    assert ">cost of keeping</th>" in page
    assert ">full rounds</th>" not in page


def test_without_update_nobody_has_a_choice() -> None:
    still = train(experiment(VOLUNTARY, "policy=static"))
    same = train(experiment("policy=static"))
    assert all(min(record.volumes) > 0 for record in still.records)
    assert [facts(one) for one in still.records] == [facts(one) for one in same.records]
    assert "staying_away" not in still.summary()


def test_nobody_takes_part(tmp_path: Path) -> None:
    run = train(experiment(VOLUNTARY, "game.payment_range=[0, 0]"), out=tmp_path / "run")
    assert run.summary()["staying_away"] == 6
    assert all(record.volumes == [0] * 6 and record.participants == 0 for record in run.records)
    assert np.isinf(run.records[-1].server_cost)
    assert write_report([tmp_path / "run"], tmp_path / "report.html").path.exists()


def test_the_rest_can_be_planned(run: Run) -> None:
    assert run.folder is not None
    rest = read_remaining(run.folder, num_rounds=6)
    choice = rest.replan()
    assert choice is not None
    assert choice.plan.takes_part is not None


def test_clients_choose_once() -> None:
    told = experiment(VOLUNTARY, "leader.replan_every=3")
    with pytest.raises(InputError) as error:
        train(told)
    assert error.value.field == "leader.replan_every"
    assert "voluntary" in error.value.rule


def candidates(members: list[int]) -> Candidates:
    number = len(members)
    return Candidates(np.array(members, np.int64), np.arange(1.0, number + 1), np.ones(number, np.int64))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("selection", ["random", "age"])
def test_all_clients_are_sampled_as_before(fraction: float, selection: Any) -> None:
    settings = Training(fraction_train=fraction, client_dropout=0.3, seed=3, client_selection=selection)
    everybody = candidates(list(range(9)))
    for t in range(20):
        assert participants(settings, 9, t, everybody, np.arange(9)) == participants(
            settings, 9, t, everybody
        )


def test_members_are_sampled_alike() -> None:
    settings, members = Training(fraction_train=0.5), np.array([1, 4, 5, 8])
    some = candidates(members.tolist())
    called = [participants(settings, 9, t, some, members)[0] for t in range(200)]
    assert all(len(one) == 2 and set(one) <= {1, 4, 5, 8} for one in called)
    counts = np.bincount([k for one in called for k in one])[members]
    assert counts.min() > 70
    assert participants(settings, 9, 0, candidates([]), np.array([], np.int64)) == ([], [])


@pytest.mark.parametrize("policy", ["zero", "random", "fresh-only", "keep-all", "window-3", "fixed-40-0.3"])
def test_policies_with_a_plan_count_those_who_take_part(policy: str) -> None:
    run = train(experiment(VOLUNTARY, f"policy={policy}", "client_selection=age"))
    held = np.array([record.volumes for record in run.records])
    inside = held.any(axis=0)
    assert 0 < inside.sum() < 6
    assert all(not set(np.flatnonzero(~inside)) & set(record.dropped) for record in run.records)
    first, game = run.records[0], run.experiment.game
    noise = (1 - game.payment_weight) * inside.sum() / first.total_volume
    assert first.cost_of_volume == pytest.approx(noise)
