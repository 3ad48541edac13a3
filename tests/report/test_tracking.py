"""Predicted and measured round by round, and new plans, in tables, reports and on the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl import Clients, Experiment, Game, InputError, Leader, PowerLaw, Run, Training, train
from dufl.experiment.config import law_table
from dufl.learning.replanning import course_of
from dufl.report.tables import run_html
from dufl.report.tracking import block_table, parted_sentence, replan_rows, replan_table, tracking_chart
from dufl.report.training_report import write_report
from loading import pausing
from results import change_lines

LAW = PowerLaw(
    floor=0.05, volume_weight=0.5, volume_exponent=0.4, staleness_weight=0.05, noise=0.01, measured_from=0.2
)


def experiment(every: Any = 4) -> Experiment:
    """Four clients on the digits, with a law that is far off."""
    game = Game(clients=Clients.draw(4, initial_volume=60.0), num_rounds=12, loss=LAW)
    return Experiment(game=game, training=Training(local_epochs=1), leader=Leader(replan_every=every))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that planned again twice, in a run directory."""
    return train(experiment(), out=tmp_path_factory.mktemp("tracked") / "run")


def test_the_chart_and_the_tables_show_what_is_tracked(stored: Run) -> None:
    """Every late round, every block, every new plan."""
    tracking = stored.tracking
    assert tracking is not None
    chart = tracking_chart(tracking)
    assert list(chart.data["round"]) == list(tracking.rounds)
    np.testing.assert_array_equal(chart.data["predicted"], tracking.predicted)
    assert (tracking.low <= tracking.predicted).all()
    assert (tracking.predicted <= tracking.high).all()
    assert len(block_table(tracking).rows) == len(tracking.blocks)
    assert len(replan_table(stored.records).rows) == len(stored.replans) == 2
    assert len(replan_rows(stored.records)) == 3
    assert parted_sentence(tracking) in run_html(stored)


def test_the_report_of_a_run_that_was_planned_again(stored: Run) -> None:
    """It says so, and draws the plans that were followed."""
    assert stored.folder is not None
    assert stored.plan is not None
    page = write_report([stored.folder]).path.read_text()
    assert "tracking" in page
    assert "planned again" in page
    course = course_of(stored.plan, stored.records)
    planned = [record.planned_staleness for record in stored.records]
    np.testing.assert_array_equal(course.mean_staleness, planned)
    measured = [record.total_volume for record in stored.records]
    np.testing.assert_allclose(course.total_volume, measured, atol=0.5 * len(stored.records[0].volumes))


def test_planning_the_rest_of_a_run_on_the_command_line(tmp_path: Path, dufl_command: Any) -> None:
    """As the run itself would; the offer that it made never costs less."""
    out, seen = tmp_path / "run", list[Any]()
    train(experiment(None), out=out, callbacks=[seen.append, pausing(lambda: len(seen) >= 6)])
    code, shown, _ = dufl_command("plan", "--from", str(out), "--json")
    assert code == 0
    facts = json.loads(shown)
    over = facts["rounds_over"]
    assert facts["num_rounds"] == 12 - over
    assert facts["observations"] > 0
    assert facts["server_cost"] <= facts["old_cost"]
    assert facts["certificate_holds"]
    assert facts["law"]["floor"] == Run.load(out).remaining_game().loss.floor > LAW.floor
    assert dufl_command("plan", "--from", str(out), "--payment", "3", "--json")[0] == 0
    code, shown, _ = dufl_command("plan", "--from", str(out), "--rounds", "20", "--json")
    assert json.loads(shown)["num_rounds"] == 20


def test_what_cannot_be_planned_from_is_refused(stored: Run, tmp_path: Path, dufl_command: Any) -> None:
    """A finished run without further rounds, no run at all, and options that contradict each other."""
    folder, file = str(stored.folder), tmp_path / "one.toml"
    file.write_text("[game]\nnum_rounds = 5\n")
    for arguments in (
        ["--from", folder],
        ["--from", str(tmp_path)],
        ["--rounds", "5"],
        [str(file), "--from", folder],
        ["--from", folder, "--rounds", "5", "--set", "num_rounds=20"],
        ["--from", folder, "--rounds", "5", "--set", "clients.count=3"],
    ):
        code, shown, said = dufl_command("plan", *arguments)
        assert (code, shown) == (2, "")
        assert said.startswith("error: ")


def damage(name: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    """A change of the first new plan in the metrics of a run."""

    def change(lines: list[dict[str, Any]]) -> None:
        lines[4]["replan"][name] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        damage("payment", -1.0),
        damage("payment", None),
        damage("conservation_rate", 1.5),
        damage("conservation_rate", None),
        damage("law", {"floor": 0.1}),
        damage("law", []),
        damage("drift", "yes"),
        damage("observations", 0.5),
        damage("more", 1),
        lambda lines: lines[0].update(replan=lines[4]["replan"]),
        lambda lines: lines[11].update(replan=lines[4]["replan"]),
        lambda lines: lines[4].update(replan=7),
    ],
)
def test_damaged_plans_in_the_metrics_are_refused(change: Any, stored: Run, tmp_path: Path) -> None:
    """With a sentence that names the file."""
    assert stored.folder is not None
    shutil.copytree(stored.folder, tmp_path / "run")
    change_lines(tmp_path / "run", change)
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        Run.load(tmp_path / "run")


def test_training_on_the_command_line(tmp_path: Path, dufl_command: Any) -> None:
    """The key is a key like any other; unusable values end with a sentence."""
    file = tmp_path / "one.toml"
    file.write_text(experiment().to_toml())
    (tmp_path / "clients.csv").write_text(experiment().game.clients.to_csv())
    assert law_table(LAW) == law_table(Experiment.from_toml(file).game.loss)
    code, shown, _ = dufl_command("train", str(file), "--json")
    assert code == 0
    assert [row["round"] for row in json.loads(shown)["replans"]] == [4, 8]
    for value in ("0", "11", "often"):
        assert dufl_command("train", str(file), "--set", f"replan_every={value}")[0] == 2
