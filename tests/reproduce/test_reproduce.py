"""The reproduction: every item runs, every claim can say no, and nothing is run twice."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.cli.common import parse_changes
from dufl.errors import InputError
from dufl.reproduce import figure_sensitivity as sensitivity
from dufl.reproduce import figure_server as server
from dufl.reproduce import figure_updates as updates
from dufl.reproduce import leaders
from dufl.reproduce import table1 as table
from dufl.reproduce.figure_convergence import settled
from dufl.reproduce.item import PAPER, QUICK, Advance, Scale, game_of, unwatched
from dufl.reproduce.items import ITEMS, chosen
from dufl.reproduce.items import reproduce as reproduce_items
from dufl.reproduce.page import write_page
from dufl.reproduce.table1 import TableCell
from real_data import real


def reproduce(names: Any, scale: Scale, out: Path, changes: Any = (), *arguments: Any, **options: Any) -> Any:
    """With changes as texts."""
    return reproduce_items(names, scale, out, parse_changes(changes), *arguments, **options)


TINY = Scale(
    "tiny",
    draws=1,
    seeds=1,
    local_epochs=1,
    datasets=("digits",),
    skip_missing=False,
    images="digits",
    leaders="digits",
    steps=2,
)
SMALL = ("game.num_rounds=6", "clients.count=15")


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The items of the game, at the smallest scale."""
    out = tmp_path_factory.mktemp("reproduction")
    return out, reproduce(["convergence", "clients", "sensitivity", "updates"], TINY, out)


def claims(item: dict[str, Any]) -> dict[str, bool]:
    return {claim["statement"]: claim["holds"] for claim in item["claims"]}


def test_items_write_data_and_figures(games: tuple[Path, dict[str, Any]]) -> None:
    out, found = games
    assert json.loads((out / "reproduction.json").read_text()).keys() == found.keys()
    for name, item in found.items():
        assert item["files"] == [f"{name}.csv", f"{name}.png", f"{name}.svg", f"{name}.pdf"]
        for file in item["files"]:
            assert (out / file).stat().st_size > 100
        assert all(claim["measured"] for claim in item["claims"])
        assert item["run"] == {"scale": "tiny"}


def test_what_holds_and_what_does_not(games: tuple[Path, dict[str, Any]]) -> None:
    _, found = games
    assert claims(found["convergence"]) == {
        "(R, θ) settles within a few iterations of the plain update": True,
        "(R, θ) settles within a few iterations of the damped update": True,
        "φ converges with the plain update": False,
        "φ converges with the damped update": True,
        "Bayesian search is as good as direct search": True,
    }
    assert all(claims(found["clients"]).values())
    assert all(claims(found["sensitivity"]).values())
    no = [statement for statement, holds in claims(found["updates"]).items() if not holds]
    assert no == ["a larger θ collects more early"]


def test_nothing_is_run_twice(games: tuple[Path, dict[str, Any]]) -> None:
    out, found = games
    began: list[str] = []

    def begin(name: str) -> Advance:
        began.append(name)
        return unwatched

    again = reproduce(["clients", "updates"], TINY, out, begin=begin)
    assert began == []
    assert again == found


def test_the_claims_of_the_updates_can_fail() -> None:
    offers = ("*", "θ = 0.12", "θ = 0.82", "θ = 0.92", "R = 13.18", "R = 203.18", "R = 423.18")
    flat = {name: {c: np.ones(100) for c in updates.TRAJECTORIES} for name in offers}
    assert not any(holds for _, holds, _ in updates.judge(flat))


def test_settling_is_found() -> None:
    class Trace:
        payment = np.array([10.0, 20.0, 50.0, 50.1, 50.0])
        conservation_rate = np.array([0.5, 0.5, 0.52, 0.5, 0.5])

    assert settled(Trace()) == 3  # type: ignore[arg-type]


def test_thresholds_are_where_payment_begins() -> None:
    found = sensitivity.threshold(0, "stackelberg", 8)
    assert sensitivity.plan_of(0, found - 0.01, "stackelberg").payment == 0
    assert sensitivity.plan_of(0, found + 0.01, "stackelberg").payment > 0


def test_the_table_on_digits(tmp_path: Path) -> None:
    found = reproduce(["table"], TINY, tmp_path, SMALL)["table"]
    with (tmp_path / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 18
    assert {row["paper"] for row in rows} == {""}
    same = "digits: at σ = 0 the best plan is no update, and the runs are the same"
    assert claims(found)[same]
    runs = sorted(path.name for path in (tmp_path / "table").iterdir())
    assert len(runs) == 18
    before = (tmp_path / "table" / runs[0] / "metrics.jsonl").read_bytes()
    (tmp_path / "reproduction.json").unlink()  # killed after the last cell: none is trained again
    reproduce(["table"], TINY, tmp_path, SMALL)
    assert (tmp_path / "table" / runs[0] / "metrics.jsonl").read_bytes() == before


def test_the_claims_of_the_table_can_fail() -> None:
    rows = [
        {"dataset": "mnist", "time_sensitivity": sigma, "algorithm": algorithm, "policy": policy}
        | {"accuracy": 50.0, "difference": 10.0, "fingerprint": policy, "changes": ""}
        for sigma in table.SIGMAS
        for algorithm in table.ALGORITHMS
        for policy in table.POLICIES
    ]
    assert [claim.holds for claim in table.judge(rows)] == [False, False, False]


def test_the_server_s_strategies_on_digits(tmp_path: Path) -> None:
    found = reproduce(["server"], TINY, tmp_path, ("game.num_rounds=12",))["server"]
    assert found["settings"]["dataset"] == "digits"
    assert len(list((tmp_path / "server").iterdir())) == 8
    with (tmp_path / "server.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 8 * 12
    paid = {row["offer"]: float(row["payment"]) for row in rows}
    assert paid["R = 423.18"] == 423.18
    assert len(found["claims"]) == 4
    assert found["run"] == {"scale": "tiny", "changes": ["game.num_rounds=12"]}
    assert "At θ = " in found["notes"][0]
    assert found["notes"][1].count("%") == 12


def test_the_claims_of_the_server_can_fail() -> None:
    flat = dict.fromkeys([*updates.offers(game_of(0)), server.STACKELBERG], 1.0)
    assert not any(claim.holds for claim in server.judge(flat, flat))


def test_the_page_says_what_was_found(games: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, found = games
    written = write_page(found, out, tmp_path / "page.md")
    assert all(path.stat().st_size > 1000 for path in written)
    text = (tmp_path / "page.md").read_text()
    for item in found.values():
        for claim in item["claims"]:
            assert claim["measured"] in text
    assert text.count("**no**") == 2
    for path in written[1:]:
        assert f"(assets/{path.name})" in text


def test_what_the_paper_prints() -> None:
    assert TableCell("mnist", 1.25, "fedavg", "static").printed == 57.9
    assert TableCell("fmnist", 0.75, "feddyn", "dufl").printed == 82.6
    assert TableCell("cifar100", 0.0, "fedprox", "dufl").printed == 59.2
    assert TableCell("digits", 0.0, "fedprox", "dufl").printed is None


def test_cells_are_chosen_by_any_of_their_names() -> None:
    assert len(table.cells(PAPER)) == 90
    assert len(table.cells(PAPER, ["mnist", "fmnist"])) == 36
    assert table.cells(PAPER, ["svhn", "0", "feddyn", "dufl"]) == [TableCell("svhn", 0.0, "feddyn", "dufl")]
    with pytest.raises(
        InputError, match=r"unknown key 'cifar' \(cells of the table\): did you mean 'cifar10'"
    ):
        table.cells(PAPER, ["cifar"])


def test_the_quick_table_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUFL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert {cell.dataset for cell in table.cells(QUICK)} == {"digits"}
    assert {cell.dataset for cell in table.cells(PAPER)} == set(PAPER.datasets)
    assert {cell.dataset for cell in table.cells(QUICK, ["fmnist"])} == {"fmnist"}  # as it was asked for


def test_the_table_keeps_the_cells_of_earlier_calls(tmp_path: Path) -> None:
    reproduce(["table"], TINY, tmp_path, SMALL, ["fedavg", "1.25"])
    changed = (*SMALL, "training.batch_size=32")
    found = reproduce(["table"], TINY, tmp_path, changed, ["fedprox", "1.25", "dufl"])["table"]
    rows = table.read_rows(tmp_path / "table.csv")
    assert [str(table.cell_of(row)) for row in rows] == [
        "digits-1.25-fedavg-static",
        "digits-1.25-fedavg-dufl",
        "digits-1.25-fedprox-dufl",
    ]
    assert [row["changes"] for row in rows] == [*[" ".join(SMALL)] * 2, " ".join(changed)]
    assert found["run"]["only"] == ["fedprox", "1.25", "dufl"]
    assert len(found["claims"]) == 1  # of σ = 0 and the paper's numbers nothing can be said
    written = write_page({"table": found}, tmp_path, tmp_path / "page.md")[0].read_text()
    assert "**not the paper's setting:** `game.num_rounds=6`, `clients.count=15`" in written
    assert "| 1.25 | " in written
    assert "| 0.75 | " not in written
    assert found["settings"] == {
        "leader": "algorithm1",
        "rounds": 6,
        "clients": 15,
        "samples at the start": 1000,
        "epochs": 1,
        "batch": [64, 32],
        "learning rate": 0.01,
    }
    assert "epochs: 1; batch: 64, 32; learning rate: 0.01." in written
    with pytest.raises(InputError, match=r"training.batch_size was 64, is 32"):
        reproduce(["table"], TINY, tmp_path, changed, ["fedavg", "1.25"])


def test_numbers_at_another_setting_are_not_held_against_the_paper() -> None:
    row = {"dataset": "svhn", "time_sensitivity": 1.25, "algorithm": "fedavg", "policy": "dufl"}
    row |= {"accuracy": 50.0, "difference": -41.3, "fingerprint": "x"}
    assert table.judge([row | {"changes": "game.num_rounds=30"}]) == []
    assert [claim.holds for claim in table.judge([row | {"changes": ""}])] == [False]


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("dataset,policy\ndigits,dufl\n")
    with pytest.raises(InputError, match=r"table.csv must be a file that a reproduction wrote"):
        reproduce(["table"], TINY, tmp_path, SMALL, ["fedavg", "1.25"], force=True)


def test_both_leaders_are_trained_for_the_same_money(tmp_path: Path) -> None:
    told: list[str] = []

    def begin(_: str) -> Advance:
        return lambda share, now="": told.append(now)

    changes = ("game.num_rounds=12", "clients.initial_volume=100")
    found = reproduce(["leaders"], TINY, tmp_path, changes, begin=begin)["leaders"]
    with (tmp_path / "leaders.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 8
    for sigma in ("1.25", "0.75"):
        for payer in leaders.LEADERS:
            two = [r for r in rows if (r["time_sensitivity"], r["payment_of"]) == (sigma, payer)]
            assert float(two[0]["payment"]) == pytest.approx(float(two[1]["payment"]))
            assert two[0]["conservation_rate"] != two[1]["conservation_rate"]
    cheaper = [claim for claim in found["claims"] if "pays less and costs less" in claim["statement"]]
    assert [claim["holds"] for claim in cheaper] == [True, True]
    assert told[-1] == "0.75-stackelberg-pays-stackelberg-0 (8 of 8), round 12 of 12"


def test_the_claims_of_the_leaders_can_fail() -> None:
    rows = [
        {"time_sensitivity": sigma, "leader": leader, "payment_of": payer, "conservation_rate": 0.5}
        | {"total_payment": 1.0, "server_cost": 1.0, "accuracy": 90.0 if leader == "algorithm1" else 80.0}
        for sigma in leaders.SIGMAS
        for leader in leaders.LEADERS
        for payer in leaders.LEADERS
    ]
    assert not any(claim.holds for claim in leaders.judge(rows))


def test_experiments_explain_what_differs(games: tuple[Path, dict[str, Any]]) -> None:
    _, found = games
    (early,) = found["updates"]["notes"]
    assert "With 10 samples, it holds in the first round." in early
    low, high = (sensitivity.threshold(0, "algorithm1", 5, sampling_noise=noise) for noise in (1.0, 4.0))
    assert low < high
    assert "by ψ" in found["sensitivity"]["notes"][0]
    assert not found["clients"]["notes"]


def test_wrong_changes_are_met_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_rounds must be >= 2, got 0"):
        reproduce(["convergence"], TINY, tmp_path / "out", ["game.num_rounds=0"])
    with pytest.raises(InputError, match="unknown key 'nothing'"):
        reproduce(["convergence"], TINY, tmp_path / "out", only=["nothing"])
    with pytest.raises(InputError, match=r"changes must be for an item that is trained \(server, table, lea"):
        reproduce(["convergence"], TINY, tmp_path / "out", ["game.num_rounds=5"])
    with pytest.raises(InputError, match="only must be for the table, whose cells it chooses, got server"):
        reproduce(["server"], TINY, tmp_path / "out", only=["fedavg"])
    for name, change in {
        "table": "time_sensitivity=1",
        "server": "game.payment_range=[0,1]",
        "leaders": "method=algorithm1",
    }.items():
        with pytest.raises(InputError, match=rf"changes must be without \w+.\w+, which the item {name} sets"):
            reproduce([name], TINY, tmp_path / "out", [change])
    assert not (tmp_path / "out").exists()


def test_choosing_items() -> None:
    assert chosen([]) == chosen(["all"]) == list(ITEMS)
    assert chosen(["table", "clients", "table"]) == ["table", "clients"]
    with pytest.raises(InputError, match=r"unknown key 'tabel' \(an item\): did you mean 'table'\?"):
        chosen(["tabel"])


def test_the_command(dufl_command: Any, tmp_path: Path) -> None:
    code, _, err = dufl_command("reproduce", "clients", "--scale", "huge", "--out", str(tmp_path / "o"))
    assert (code, err) == (2, "error: --scale must be one of quick, paper, got 'huge'\n")
    assert not (tmp_path / "o").exists()
    (tmp_path / "reproduction.json").write_text("nonsense")
    code, _, err = dufl_command("reproduce", "clients", "--out", str(tmp_path), "--force")
    assert code == 2
    assert "reproduction.json must be a file that a reproduction wrote" in err
    (tmp_path / "reproduction.json").write_text('{"clients": {"claims": []}}')
    code, _, err = dufl_command("reproduce", "clients", "--out", str(tmp_path), "--force")
    assert code == 2
    assert "reproduction.json must be a file that a reproduction wrote: clients is incomplete" in err


@pytest.mark.parametrize(
    "arguments", [["table", "--only", "fmnist"], ["server", "leaders", "--scale", "paper"]]
)
def test_data_that_are_not_there_are_one_sentence_before_anything_runs(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    name = "fmnist" if "fmnist" in arguments else "cifar10"
    for changes, looked in (
        ([], [tmp_path / "cache/dufl"]),
        (["--set", f"data_dir={tmp_path / 'data'}"], [tmp_path / "data", tmp_path / "cache/dufl"]),
    ):
        code, out, err = dufl_command("reproduce", *arguments, *changes, "--out", str(tmp_path / "out"))
        assert (code, out) == (2, "")
        where = ", ".join(map(str, looked))
        assert err == f"error: {name} was not found in {where}; run `dufl data fetch {name}`\n"
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("only", [["fmnist", "fedavg", "0.75"], ["fmnist", "feddyn", "0", "static"]])
def test_a_part_of_the_table_as_a_process(tmp_path: Path, only: list[str]) -> None:
    """Data come from `data_dir`, the accuracy is printed, and nothing else."""
    folder = real("fmnist")
    command = [str(Path(sys.executable).with_name("dufl")), "reproduce", "table", "--out", "out"]
    command += [part for name in only for part in ("--only", name)]
    changes = ("num_rounds=3", "local_epochs=1", f"data_dir={folder}", "training.workers=1")
    command += [part for change in changes for part in ("--set", change)]
    environment = {name: value for name, value in os.environ.items() if name != "DUFL_DATA"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = table.read_rows(tmp_path / "out" / "table.csv")
    assert rows
    for row in rows:
        shown = [row["dataset"], f"{row['time_sensitivity']:g}", row["algorithm"], row["policy"]]
        shown += [f"{row['accuracy']:.2f}", f"{row['paper']:.1f}", f"{row['difference']:+.1f}"]
        assert shown in [line.split() for line in done.stdout.splitlines()]
        assert row["changes"] == "game.num_rounds=3 training.local_epochs=1"  # not where data is
    item = json.loads((tmp_path / "out" / "reproduction.json").read_text())["table"]
    assert item["settings"]["rounds"] == 3
    assert [row["accuracy"] for row in item["rows"]] == [row["accuracy"] for row in rows]


def test_one_cell_makes_a_figure_and_a_page_without_claims(tmp_path: Path) -> None:
    only = ["digits", "feddyn", "0.75", "dufl"]
    item = reproduce(["table"], TINY, tmp_path, SMALL, only)["table"]
    assert item["claims"] == []
    assert len(item["rows"]) == 1
    written = write_page({"table": item}, tmp_path, tmp_path / "page.md")[0].read_text()
    assert f"{item['rows'][0]['accuracy']:.1f}" in written


def test_the_deviation_in_the_table_is_over_its_seeds(tmp_path: Path) -> None:
    only = ["digits", "fedavg", "1.25", "dufl"]
    changes = ("num_rounds=6", "clients.initial_volume=100")
    (row,) = reproduce(["table"], replace(TINY, seeds=3), tmp_path, changes, only)["table"]["rows"]
    finals = [
        json.loads((tmp_path / "table" / f"digits-1.25-fedavg-dufl-{seed}" / "summary.json").read_text())
        for seed in range(3)
    ]
    assert row["std"] == pytest.approx(np.std([100 * final["final_accuracy"] for final in finals], ddof=1))


def test_data_that_came_later_join_the_quick_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was run without a dataset is not taken for what is run with it."""
    folder = real("mnist")
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    few = replace(TINY, datasets=("digits", "mnist"), skip_missing=True)
    changes = ["num_rounds=3"]
    before = reproduce(["table"], few, tmp_path, changes, ["fedavg", "1.25"])["table"]
    assert {row["dataset"] for row in before["rows"]} == {"digits"}
    after = reproduce(["table"], few, tmp_path, [*changes, f"data_dir={folder}"], ["fedavg", "1.25"])["table"]
    assert {row["dataset"] for row in after["rows"]} == {"digits", "mnist"}
