"""`dufl plan --robust`, and what it would cost that nobody loses, as a user types them."""

import json
from pathlib import Path
from typing import Any

import pytest

import dufl
from command_line import assert_sentence
from measured import measured_law

SMALL = dufl.Game(num_rounds=8, clients=dufl.Clients.draw(3, initial_volume=50.0), loss=measured_law())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "law.toml"
    path.write_text(dufl.Experiment(game=SMALL).to_toml())
    return path


def test_a_robust_plan_as_json_is_the_one_in_python(dufl_command: Any, file: Path) -> None:
    code, out, err = dufl_command("plan", str(file), "--robust", "expected", "--json")
    plan = dufl.solve(SMALL, robust="expected")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["payment"] == plan.payment
    assert plan.robustness is not None
    assert found["robust"]["plain"]["payment"] == plan.robustness.plain.payment
    assert found["robust"]["expected_regret"]["cost"] == plan.robustness.expected_regret
    assert found["robust"]["advice"] == plan.robustness.advice


def test_a_robust_plan_for_people(dufl_command: Any, file: Path) -> None:
    code, out, _ = dufl_command("plan", str(file), "--robust", "worst", "--point-worth", "20")
    assert code == 0
    for words in ("plausible loss laws", "not knowing the law costs", "plain plan"):
        assert words in out


def test_it_is_refused_where_it_makes_no_sense(dufl_command: Any, file: Path) -> None:
    for options in (
        ("--robust", "expected"),
        (str(file), "--robust", "expected", "--accuracy", "0.7"),
        (str(file), "--robust", "expected", "--payment", "5", "--conservation-rate", "0.5"),
        (str(file), "--robust", "worst", "--set", "method=algorithm1"),
    ):
        code, out, err = dufl_command("plan", *options)
        assert (code, out) == (2, "")
        assert_sentence(err)
        assert "--robust" in err


def test_what_it_costs_that_nobody_loses(dufl_command: Any, tmp_path: Path) -> None:
    options = ("--payment", "10", "--conservation-rate", "0.9", "--set", "num_rounds=20")
    code, out, _ = dufl_command("plan", *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["losing_clients"] > 0
    assert found["nobody_loses"]["larger_payment"]["payment"] > 10
    assert found["nobody_loses"]["trim_start"]["extra_payment"] == 0
    dufl.equilibrium(dufl.Game(num_rounds=20), payment=10, conservation_rate=0.9).save(tmp_path / "plan")
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["nobody_loses"] == found["nobody_loses"]
    _, table, _ = dufl_command("plan", *options)
    assert "trimmed first buffers" in table
    assert "nobody_loses" not in json.loads(dufl_command("plan", "--json")[1])
