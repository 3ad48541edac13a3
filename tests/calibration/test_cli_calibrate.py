"""`dufl calibrate` and plans for a goal, as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path


def dufl(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dufl", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


SMALL = ("num_rounds=12", "clients.count=4", "clients.initial_volume=200", "local_epochs=1")


def test_calibrate_then_plan_for_a_goal(tmp_path: Path) -> None:
    out, changes = tmp_path / "cal", [part for change in SMALL for part in ("--set", change)]
    code, text, err = dufl("calibrate", *changes, "--pilots", "8", "--out", str(out), "--json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    assert {"law", "r2_heldout", "verdict", "snippet"} <= set(found)
    assert "[game.loss]" in found["snippet"]
    assert len(found["pilots"]) == 8
    assert (out / "calibration.png").stat().st_size > 10_000
    (tmp_path / "snippet.toml").write_text(found["snippet"])
    for file in (out / "calibrated.toml", tmp_path / "snippet.toml"):  # the snippet is a file as it is
        code, text, err = dufl("plan", str(file), "--budget", "60", "--json")
        assert (code, err) == (0, "")
        plan = json.loads(text)
        assert plan["total_payment"] <= 60.001
        assert plan["predicted_low"] <= plan["predicted_accuracy"] <= plan["predicted_high"]
    code, text, err = dufl("plan", str(out / "calibrated.toml"), "--accuracy", "0.999", "--json")
    assert (code, err) == (0, "")
    assert json.loads(text)["missed_by"] > 0
    runs = [str(path) for path in sorted(out.glob("pilot-*"))]
    code, text, err = dufl("calibrate", *runs, "--json")
    assert (code, err) == (0, "")
    assert json.loads(text)["law"]["floor"] == found["law"]["floor"]


def test_goals_without_a_law_say_what_to_do() -> None:
    code, _, err = dufl("plan", "--accuracy", "0.8")
    assert code == 2
    assert "run `dufl calibrate` first" in err


def test_gradients_then_plan(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[data]\ndataset = "digits"\n[game]\nnum_rounds = 12\n')
    command = ("calibrate", "gradients", str(tmp_path / "mine.toml"), "--set", "clients.count=3")
    code, text, err = dufl(*command, "--out", str(tmp_path / "out"), "--json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    assert json.loads((tmp_path / "out" / "gradients.json").read_text()) == found
    assert {"sampling_noise", "time_sensitivity", "weights", "r2", "verdict", "snippet"} <= set(found)
    (tmp_path / "snippet.toml").write_text(found["snippet"])
    for file in (tmp_path / "out" / "gradients.toml", tmp_path / "snippet.toml"):
        code, text, err = dufl("plan", str(file), "--json")
        assert (code, err) == (0, "")
    for wrong in (("--metric", "loss"), (str(tmp_path / "other.toml"),), ("--set", "model=cnn")):
        code, text, err = dufl(*command, *wrong)
        assert (code, text, err.count("\n")) == (2, "", 1)


def test_costs_from_a_log(tmp_path: Path) -> None:
    rows = [(c, h, 2e-4 * c * c + 2e-5 * h * h) for c in (5, 20, 50, 90) for h in (100, 250, 400)]
    log = tmp_path / "log.csv"
    log.write_text("collected,held,cost\n" + "".join(f"{c},{h},{cost}\n" for c, h, cost in rows))
    code, text, err = dufl("calibrate", "costs", str(log), "--json")
    assert (code, err) == (0, "")
    assert abs(json.loads(text)["collection_cost"] / 2e-4 - 1) < 0.02
    code, text, _ = dufl("calibrate", "costs", str(log))
    assert code == 0
    assert text.startswith("[clients]\ncollection_cost = ")
    assert dufl("calibrate", "costs")[0] == 2
