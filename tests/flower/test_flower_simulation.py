"""Flower's simulation on Ray, as a user runs it: the same as `dufl train`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import told
from dufl.experiment.run_directory import read_metrics
from dufl.experiment.train import train
from dufl.flower.ledger import Ledger
from loading import load
from recordings import hyperplane, linear

CHANGES = ("game.num_rounds=10", "clients.count=15", "clients.initial_volume=200", "training.local_epochs=5")


def simulate(*arguments: str) -> tuple[int, str, str]:
    command = [str(Path(sys.executable).with_name("dufl")), "flower", "simulate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout, done.stderr


TRIMMED = ("game.trim_start=true", "game.payment_range=[0,2]")
LIMITED = (
    "clients.capacity={low=205,high=260}",
    "clients.collection_price={low=0,high=0.05}",
    "clients.training_price={low=0,high=0.02}",
)


@pytest.mark.parametrize(
    "change",
    [
        ("training.algorithm=fedavg",),
        pytest.param(("training.algorithm=fedprox",), marks=pytest.mark.slow),
        pytest.param(("training.algorithm=feddyn",), marks=pytest.mark.slow),
        pytest.param(TRIMMED, marks=pytest.mark.slow),
        LIMITED,
    ],
)
def test_the_same_as_dufl_train(tmp_path: Path, change: tuple[str, ...]) -> None:
    changes = (*CHANGES, *change)
    code, out, err = simulate(*told(*changes), "--out", str(tmp_path / "run"), "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    alone = train(load(None, changes))
    records = read_metrics(tmp_path / "run")
    assert [record.volumes for record in records] == [record.volumes for record in alone.records]
    assert [r.mean_age for r in records] == pytest.approx([r.mean_age for r in alone.records])
    assert [r.classes for r in records] == [r.classes for r in alone.records]
    assert [r.planned_staleness for r in records] == pytest.approx(
        [r.planned_staleness for r in alone.records]
    )
    assert (records[0].total_volume < 15 * 200) == (change == TRIMMED)
    capacity = alone.config.game.clients.capacity
    full = [np.floor(capacity) == record.volumes for record in records]
    assert np.any(full) == (change == LIMITED)  # capacities matter
    assert all((np.array(record.volumes) <= capacity).all() for record in records)
    assert [r.server_cost for r in records] == pytest.approx([r.server_cost for r in alone.records])
    assert abs(found["final_accuracy"] - alone.accuracy) < 0.01
    assert found["fingerprint"] == alone.summary()["fingerprint"]  # better than asked for: the same bits
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        ledger.check()
        assert set(ledger.rounds().values()) == {round(100 * records[0].payment)}


@pytest.mark.parametrize("task", ["classification", pytest.param("regression", marks=pytest.mark.slow)])
def test_recorded_data_is_the_same_as_in_dufl_train(tmp_path: Path, task: str) -> None:
    recording = linear(600)[0] if task == "regression" else hyperplane(600, turns=0.3)
    path = tmp_path / "mine.npz"
    np.savez(path, x=recording.samples.features, y=recording.samples.labels, time=recording.times)
    changes = [f"data.dataset={path}", "game.num_rounds=4", "clients.count=3", "training.local_epochs=2"]
    changes += [f"data.task={task}", f"training.model={'linear' if task == 'regression' else 'logistic'}"]
    code, out, err = simulate(*told(*changes), "--out", str(tmp_path / "run"), "--json")
    assert (code, err) == (0, "")
    alone, records = train(load(None, changes)), read_metrics(tmp_path / "run")
    for name in ("volumes", "mean_age", "classes", "shortfall", "period", "metrics"):
        assert [getattr(r, name) for r in records] == [getattr(r, name) for r in alone.records]
    assert [r.loss for r in records] == [r.loss for r in alone.records]
    assert sum(record.shortfall for record in records) > 0
    assert json.loads(out)["fingerprint"] == alone.summary()["fingerprint"]


def test_a_run_that_is_there_is_not_run_again(tmp_path: Path) -> None:
    changes = ("game.num_rounds=2", "clients.count=2", "clients.initial_volume=50", "training.local_epochs=1")
    arguments = (*told(*changes), "--out", str(tmp_path / "run"), "--negotiate")
    code, out, err = simulate(*arguments)
    assert (code, err) == (0, "")
    assert "digits, logistic, fedavg, dufl" in out
    assert out.endswith(f"report: {tmp_path}/run/report.html\n")
    assert (tmp_path / "run" / "report.html").stat().st_size > 1_000_000
    assert json.loads((tmp_path / "run" / "deal.json").read_text())["phases"] <= 12
    code, _, err = simulate(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert "holds a run already: add --resume" in err
    code, again, err = simulate(*arguments, "--resume")
    assert (code, err) == (0, "")
    assert again == out


def test_clients_cannot_stay_away(tmp_path: Path) -> None:
    code, _, err = simulate("--set", "participation=voluntary", "--out", str(tmp_path / "run"))
    assert (code, err) == (2, "error: participation must be 'mandatory' on Flower, got voluntary\n")
    assert not (tmp_path / "run").exists()


def test_only_the_planned_policy(tmp_path: Path) -> None:
    code, _, err = simulate("--set", "policy=static", "--out", str(tmp_path / "run"))
    assert (code, err) == (2, "error: policy must be 'dufl' on Flower, got 'static'\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_simulated_runs_calibrate(tmp_path: Path, dufl_command: Any) -> None:
    changes = ("game.num_rounds=5", "clients.count=3", "clients.initial_volume=100")
    offers = [(2, 0.0), (2, 0.8), (10, 0.5), (40, 0.0), (40, 0.3), (40, 0.6)]
    for index, (payment, rate) in enumerate(offers):
        given = (
            f"game.payment_range=[{payment},{payment}]",
            f"game.conservation_range=[{rate},{rate}]",
        )
        code, _, err = simulate(
            *told(*changes, *given), "--out", str(tmp_path / "runs" / str(index)), "--json"
        )
        assert (code, err) == (0, "")
    code, out, err = dufl_command(
        "calibrate", str(tmp_path / "runs"), "--out", str(tmp_path / "cal"), "--json"
    )
    assert (code, err) == (0, "")
    pilots = json.loads(out)["pilots"]
    assert [(p["payment"], p["conservation_rate"]) for p in pilots] == offers
    law = str(tmp_path / "cal" / "calibrated.toml")
    code, out, err = simulate(law, "--out", str(tmp_path / "run"), "--json")
    assert (code, err) == (0, "")
    found, alone = json.loads(out), train(load(Path(law))).summary()
    for name in ("predicted_accuracy", "predicted_low", "predicted_high", "measured_late_accuracy"):
        assert found[name] == pytest.approx(alone[name])
