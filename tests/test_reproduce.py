"""The reproduction: every item runs, every claim can say no, and nothing is run twice."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.errors import InputError
from dufl.reproduce import sensitivity, server, table, updates
from dufl.reproduce.convergence import settled
from dufl.reproduce.item import Scale
from dufl.reproduce.items import ITEMS, chosen, reproduce
from dufl.reproduce.page import write_page

TINY = Scale("tiny", draws=1, seeds=1, epochs=1, datasets=("digits",), pictures="digits", steps=2)
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
        assert item["files"] == [f"{name}.csv", f"{name}.png", f"{name}.svg"]
        for file in item["files"]:
            assert (out / file).stat().st_size > 100
        assert all(claim["measured"] for claim in item["claims"])
        assert item["run"]["scale"] == "tiny"


def test_what_holds_and_what_does_not(games: tuple[Path, dict[str, Any]]) -> None:
    _, found = games
    assert claims(found["convergence"]) == {
        "(R, θ) settles within a few iterations of the plain update": True,
        "(R, θ) settles within a few iterations of the damped update": True,
        "φ comes to rest with the plain update": False,
        "φ comes to rest with the damped update": True,
        "Bayesian search ends as well as direct search": True,
    }
    assert all(claims(found["clients"]).values())
    assert all(claims(found["sensitivity"]).values())
    no = [statement for statement, holds in claims(found["updates"]).items() if not holds]
    assert no == ["a larger θ collects more early"]


def test_nothing_is_run_twice(games: tuple[Path, dict[str, Any]]) -> None:
    out, found = games
    began: list[str] = []

    def begin(name: str) -> Callable[[float], None]:
        began.append(name)
        return lambda _: None

    again = reproduce(["clients", "updates"], TINY, out, begin=begin)
    assert began == []
    assert again == found


def test_the_claims_of_the_updates_can_fail() -> None:
    offers = ("*", "θ = 0.12", "θ = 0.82", "θ = 0.92", "R = 13.18", "R = 203.18", "R = 423.18")
    flat = {name: {c: np.ones(100) for c in updates.COURSES} for name in offers}
    assert not any(holds for _, holds, _ in updates.judge(flat))


def test_settling_is_found() -> None:
    class Trace:
        payment = np.array([10.0, 20.0, 50.0, 50.1, 50.0])
        conservation_rate = np.array([0.5, 0.5, 0.52, 0.5, 0.5])

    assert settled(Trace()) == 3  # type: ignore[arg-type]


def test_thresholds_are_where_payment_begins() -> None:
    found = sensitivity.threshold(0, "anticipating", 8)
    assert sensitivity.plan_of(0, found - 0.01, "anticipating").payment == 0
    assert sensitivity.plan_of(0, found + 0.01, "anticipating").payment > 0


def test_the_table_on_digits(tmp_path: Path) -> None:
    found = reproduce(["table"], TINY, tmp_path, SMALL)["table"]
    with (tmp_path / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 18
    assert {row["paper"] for row in rows} == {""}
    same = "at σ = 0 the best plan is no update, and the runs are the same"
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
        | {"accuracy": 50.0, "difference": 10.0, "fingerprint": policy}
        for sigma in table.SIGMAS
        for algorithm in table.ALGORITHMS
        for policy in table.POLICIES
    ]
    assert [claim.holds for claim in table.judge(rows)] == [False, False, False]


def test_the_server_s_strategies_on_digits(tmp_path: Path) -> None:
    found = reproduce(["server"], TINY, tmp_path, ("game.num_rounds=12",))["server"]
    assert found["settings"]["dataset"] == "digits"
    assert len(list((tmp_path / "server").iterdir())) == 7
    with (tmp_path / "server.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 7 * 12
    paid = {row["offer"]: float(row["payment"]) for row in rows}
    assert paid["R = 423.18"] == 423.18
    assert len(found["claims"]) == 3


def test_the_claims_of_the_server_can_fail() -> None:
    flat = dict.fromkeys(updates.offers(0), 1.0)
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
    assert table.printed("mnist", 1.25, "fedavg", "static") == 57.9
    assert table.printed("fmnist", 0.75, "feddyn", "dufl") == 82.6
    assert table.printed("cifar100", 0.0, "fedprox", "dufl") == 59.2
    assert table.printed("digits", 0.0, "fedprox", "dufl") is None


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
    code, _, err = dufl_command("reproduce", "clients", "--out", str(tmp_path))
    assert code == 2
    assert "reproduction.json must be what a reproduction wrote" in err
