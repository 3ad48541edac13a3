"""`dufl plan` and `dufl certify` for a service without a last round."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from command_line import assert_sentence, told
from dufl.game.certificate import Certificate
from results import reseal

ENDLESS = told("horizon=endless")
LAW = {"floor": 0.1, "volume_weight": 0.3, "volume_exponent": 0.25, "staleness_weight": 0.02, "noise": 0.004}


def calibrated(folder: Path) -> str:
    table = "\n".join(f"{name} = {value}" for name, value in LAW.items())
    path = folder / "calibrated.toml"
    path.write_text(f'[game]\nhorizon = "endless"\n[game.loss]\n{table}\n')
    return str(path)


@pytest.mark.parametrize("competition", ["mean-field", "nash"])
def test_json_is_the_plan_in_python(dufl_command: Any, competition: Any) -> None:
    code, out, err = dufl_command("plan", *ENDLESS, *told(f"competition={competition}"), "--json")
    plan = dufl.solve_endless(competition=competition)
    assert (code, err) == (0, "")
    assert json.loads(out) == plan.summary()
    assert json.loads(out)["horizon"] == "endless"


def test_the_table_has_the_offer(dufl_command: Any) -> None:
    code, out, err = dufl_command("plan", *ENDLESS)
    plan = dufl.solve_endless()
    assert (code, err) == (0, "")
    assert f"{plan.payment:.2f}" in out
    assert f"{plan.conservation_rate:.4f}" in out
    assert "<table" in plan._repr_html_()


@pytest.mark.parametrize(("rounds", "shown"), [(100, False), (5, True)])
def test_a_finite_plan_says_so_if_the_offer_without_an_end_differs(
    dufl_command: Any, rounds: int, shown: bool
) -> None:
    endless = dufl.solve_endless()
    _, out, _ = dufl_command("plan", *told(f"num_rounds={rounds}"))
    assert (f"{endless.conservation_rate:.4f}" in out) is shown


def test_the_json_of_a_finite_plan_has_both(dufl_command: Any) -> None:
    endless = dufl.solve_endless()
    _, out, _ = dufl_command("plan", *told("num_rounds=5"), "--json")
    found = json.loads(out)
    assert found["endless_payment"] == endless.payment
    assert found["endless_conservation_rate"] == endless.conservation_rate


def test_a_finite_plan_without_such_an_offer(dufl_command: Any) -> None:
    _, out, _ = dufl_command("plan", *told("decay=0.9", "num_rounds=5"), "--json")
    assert json.loads(out)["endless_payment"] is None


def test_goals_are_per_round(dufl_command: Any, tmp_path: Path) -> None:
    file = calibrated(tmp_path)
    code, out, _ = dufl_command("plan", file, "--budget", "7", "--json")
    spent = json.loads(out)
    assert code == 0
    assert spent["payment"] == pytest.approx(7.0)
    code, out, _ = dufl_command("plan", file, "--accuracy", str(spent["predicted_accuracy"] - 0.02), "--json")
    assert 0 < json.loads(out)["payment"] < 7.0
    assert dufl_command("plan", file, "--point-worth", "0.5", "--json")[0] == 0


def test_what_is_written_can_be_planned_again_and_certified(dufl_command: Any, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    code, _, _ = dufl_command("plan", *ENDLESS, *told("competition=nash"), "--out", str(folder))
    assert code == 0
    summary = json.loads((folder / "plan.json").read_text())
    code, out, _ = dufl_command("plan", str(folder / "config.toml"), "--json")
    assert json.loads(out) == summary
    code, out, _ = dufl_command("certify", str(folder), "--json")
    assert code == 0
    assert json.loads(out)["holds"] is True
    with np.load(folder / "plan.npz") as arrays:
        changed = dict(arrays)
    assert changed["volume"].sum() == pytest.approx(summary["total_volume"])
    changed["volume"] = changed["volume"] * np.linspace(0.99, 1.01, 15)
    np.savez(folder / "plan.npz", **changed)
    assert dufl_command("certify", str(folder))[0] == 2  # the checksum
    reseal(folder)
    assert dufl_command("certify", str(folder))[0] == 1
    changed["volume"][0] = np.nan
    np.savez(folder / "plan.npz", **changed)
    reseal(folder)
    code, _, err = dufl_command("certify", str(folder))
    assert code == 2
    assert_sentence(err)
    with pytest.raises(dufl.InputError):
        dufl.Plan.load(folder)


def test_a_saved_plan_is_what_the_command_writes(dufl_command: Any, tmp_path: Path) -> None:
    clients = dufl.Clients([10.0, 20.0], [1e-3, 2e-3], 1e-5)
    dufl.solve_endless(dufl.Game(clients=clients)).save(tmp_path / "saved")
    assert (tmp_path / "saved" / "clients.csv").exists()
    assert dufl_command("certify", str(tmp_path / "saved"))[0] == 0


LIMITED = told("capacity=60", "collection_price=0.02", "training_price=0.01")


def test_full_buffers_are_counted(dufl_command: Any, tmp_path: Path) -> None:
    clients = dufl.Clients.draw(capacity=60.0, collection_price=0.02, training_price=0.01)
    plan = dufl.solve_endless(dufl.Game(clients=clients))
    full = int(plan.full.sum())
    assert 0 < full < 15
    code, out, err = dufl_command("plan", *ENDLESS, *LIMITED, "--out", str(tmp_path / "plan"))
    assert (code, err) == (0, "")
    assert f"{full} of 15" in next(line for line in out.splitlines() if "full buffer" in line)
    assert f"{plan.shadow_price.max():.4g}" in next(line for line in out.splitlines() if "shadow" in line)
    assert "full buffer" in plan._repr_html_()
    summary = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert summary == plan.summary()
    assert summary["full_clients"] == full
    with np.load(tmp_path / "plan" / "plan.npz") as arrays:
        np.testing.assert_array_equal(arrays["shadow_price"], plan.shadow_price)
        assert int((arrays["volume"] == 60.0).sum()) == full
    assert dufl_command("certify", str(tmp_path / "plan"))[0] == 0
    _, out, _ = dufl_command("plan", *ENDLESS)
    assert "full buffer" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", *ENDLESS, "--set", "decay=0.9"],
        ["plan", *ENDLESS, "--set", "participation=voluntary"],
        ["plan", *ENDLESS, "--set", "method=algorithm1"],
        ["plan", *ENDLESS, "--conservation-rate", "1"],
        ["plan", *ENDLESS, "--budget", "5"],
        ["plan", "--set", "horizon=50"],
        ["train", *ENDLESS],
        ["train", *ENDLESS, "--set", "policy=static"],
        ["sweep", "time_sensitivity=0.5,1", *ENDLESS],
    ],
)
def test_what_is_refused(dufl_command: Any, arguments: list[str]) -> None:
    code, out, err = dufl_command(*arguments)
    assert (code, out) == (2, "")
    assert_sentence(err)


def test_a_refused_certificate_ends_with_3(dufl_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Certificate, "holds", lambda *_: False)
    code, _, err = dufl_command("plan", *ENDLESS)
    assert code == 3
    assert_sentence(err)


def test_nothing_is_calibrated_without_a_number_of_rounds() -> None:
    with pytest.raises(dufl.InputError) as caught:
        dufl.calibrate(dufl.Game(horizon="endless"))
    assert caught.value.field == "horizon"
