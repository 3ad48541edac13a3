"""Reports of runs that did not go as usual, or were told something unusual."""

from pathlib import Path

import numpy as np
import pytest

from command_line import GREEDY, write_dataset
from dufl.experiment.run_directory import read_metrics
from reports import make_run, metrics, report
from results import read_lines, write_lines


def test_who_did_not_answer(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "client_dropout=0.4", "fraction_train=0.75")
    page = report(run, out=tmp_path / "r.html")
    silent = [(record.round, client) for record in read_metrics(run) for client in record.dropped]
    assert len(silent) > 1
    assert f"{len(silent)} updates missing. A client" in page.text
    assert page.csv("used")["with data update"] == metrics(run, "participants").tolist()
    found = page.table("Clients left out")
    assert found.heads == ["client", "rounds", "first", "last", "reason"]
    for client, number, first, last, reason in found.rows:
        rounds = [round for round, name in silent if name == int(client)]
        assert (int(number), int(first), int(last)) == (len(rounds), rounds[0], rounds[-1])
        assert reason == "no answer"
    assert sum(int(row[1]) for row in found.rows) == len(silent)


def test_updates_that_were_refused(tmp_path: Path) -> None:
    diverging = make_run(tmp_path / "all" / "diverging", "training.learning_rate=3e38")
    make_run(tmp_path / "all" / "usual")
    page = report(tmp_path / "all", out=tmp_path / "r.html")
    refused = sum(len(record.refused) for record in read_metrics(diverging))
    assert refused > 12
    assert f"{refused} updates refused. A client" in page.text
    found = page.table("Clients left out")
    assert found.heads[0] == "run"
    assert {row[0] for row in found.rows} == {"diverging"}
    assert {row[-1] for row in found.rows} <= {"infinite weights", "weights that are not a number"}
    assert sum(int(row[2]) for row in found.rows) == refused
    used = page.csv("used")
    assert [used[name] for name in used if "3e+38" in name] == [metrics(diverging, "participants").tolist()]


def test_reasons_that_differ_by_their_numbers_are_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = read_lines(run)
    for t in (1, 2, 4):
        lines[t]["refused"] = {"3": f"claims {60 + t} samples, agreed to 60"}
    write_lines(run, lines)
    page = report(run, out=tmp_path / "r.html")
    assert "3 updates refused" in page.text
    assert page.table("Clients left out").rows == [["3", "3", "1", "4", "claims 61 samples, agreed to 60"]]


def test_updates_that_were_scaled_down(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = read_lines(run)
    for t in (0, 3):
        lines[t]["bounded"] = {"2": 3e37 + t}
    write_lines(run, lines)
    page = report(run, out=tmp_path / "r.html")
    assert "2 updates scaled down" in page.text
    (row,) = page.table("Clients left out").rows
    assert row == ["2", "2", "0", "3", "scaled down, 3e+37 times the median size"]


def test_where_nobody_is_left_out_nothing_is_said(tmp_path: Path) -> None:
    page = report(make_run(tmp_path / "run"), out=tmp_path / "r.html")
    assert "Left out" not in page.text
    assert "used" not in page.charts


def test_a_policy_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policy_of_report.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(tmp_path)
    page = report(make_run(tmp_path / "own", "policy=own_policy_of_report:Greedy"), out=tmp_path / "r.html")
    assert "No run on this page follows the server's plan" in page.text
    assert "collection" not in page.charts
    assert page.csv("volume")["own_policy_of_report:Greedy: measured"] == [80] * 6


@pytest.mark.parametrize("images", [True, False])
def test_samples_that_cannot_be_shown(tmp_path: Path, images: bool) -> None:
    generator = np.random.default_rng(0)
    table = {name: generator.random((n, 7), np.float32) for name, n in (("x_train", 60), ("x_test", 9))}
    write_dataset(tmp_path / "own.npz", **({} if images else table))
    changes = (f"dataset={tmp_path / 'own.npz'}", "data.initial_classes=2")
    place = make_run(tmp_path / "run", *changes)
    page = report(place, out=tmp_path / "r.html")
    assert bool(page.images) is images
    assert ("are not images: their shape is 7" in page.text) is not images
    (tmp_path / "own.npz").unlink()
    page = report(place, out=tmp_path / "r.html")
    assert "The samples cannot be shown: " in page.text
    assert "available" not in page.csv("classes")
