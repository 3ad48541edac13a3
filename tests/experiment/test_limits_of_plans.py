"""Plans with capacities and voluntary participation: what is said, written, read again and certified."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console

import dufl
from dufl import Clients, Game, InputError, Plan, Uniform
from dufl.cli.certify import certify
from dufl.experiment.limits import LISTED, limit_columns, limits_summary
from dufl.experiment.output import Manifest
from dufl.experiment.planning import has_baseline, summary
from dufl.formatting import number
from dufl.game.mean_field import find_equilibrium
from dufl.report.limits import limit_rows, limit_texts
from dufl.report.plan_table import plan_html, plan_table


def drawn(**columns: Any) -> Clients:
    return Clients.draw(8, **{"initial_volume": Uniform(low=50, high=1500), **columns})


@pytest.fixture(scope="module")
def plain() -> Plan:
    return dufl.equilibrium(Game(clients=drawn(), num_rounds=8), payment=40, conservation_rate=0.3)


@pytest.fixture(scope="module")
def capped() -> Plan:
    game = Game(clients=Clients.draw(8, initial_volume=100, capacity=120), num_rounds=8)
    return dufl.equilibrium(game, payment=40, conservation_rate=0.3)


@pytest.fixture(scope="module")
def voluntary() -> Plan:
    game = Game(clients=drawn(), num_rounds=8, participation="voluntary")
    plan = dufl.equilibrium(game, payment=40, conservation_rate=0.3)
    assert 0 < plan.staying_away < 8
    return plan


@pytest.fixture(scope="module")
def nobody() -> Plan:
    """A federation in which nobody takes part, because nothing is paid."""
    game = Game(clients=drawn(), num_rounds=8, participation="voluntary")
    plan = dufl.equilibrium(game, payment=0, conservation_rate=0.3)
    assert plan.staying_away == 8
    return plan


def text_of(plan: Plan) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(plan_table(plan))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def written(plan: Plan, folder: Path) -> dict[str, Any]:
    plan.save(folder)
    with np.load(folder / "plan.npz") as arrays:
        return dict(arrays)


def test_without_limits_nothing_is_added(plain: Plan, tmp_path: Path) -> None:
    assert limits_summary(plain) == {}
    assert limit_rows(plain) == []
    assert limit_texts(plain) == []
    assert list(written(plain, tmp_path / "plan")) == [
        *("payment", "conservation_rate", "total_volume", "announced_volume", "residual", "passes"),
        *("converged", "mean_staleness", "utility", "collected", "volume", "collection", "staleness"),
    ]
    assert list(summary(plain, None)) == [
        *("payment", "conservation_rate", "server_cost", "server_cost_by_term", "total_payment"),
        *("no_update_cost", "num_clients", "num_rounds", "total_volume", "mean_staleness", "converged"),
        *("residual", "passes", "method", "competition", "deviation_gain", "influence_gain"),
        *("certificate_holds", "losing_clients", "endless_payment", "endless_conservation_rate"),
        "nobody_loses",
    ]
    rows = re.findall(r"^│ (.*?)  +│", text_of(plain), re.MULTILINE)
    assert [re.sub(r" of [0-9.]+$", "", row) for row in rows] == [
        *("payment per round R", "conservation rate θ", "payment over all rounds", "cost U"),
        *("  payment", "  insufficient data", "  stale data", "cost without update"),
        "offer for an endless service, R and θ",
        *("collected per client and round", "volume, first / mean / last round"),
        *("staleness, first / mean / last round", "payment per client", "utility per client"),
        *("  with no collection", "  with random collection", "clients with negative utility"),
        *("  none with trimmed first buffers", "  none with a payment"),
        *("equilibrium", "relative residual", "largest deviation gain (ε)"),
        *("  for a client that knows its influence", "certificate (independent)"),
    ]


def test_full_buffers_are_those_of_the_trajectories(capped: Plan) -> None:
    facts = summary(capped, None)
    full = (capped.volume >= 120 * (1 - 1e-9)).sum(axis=0)
    assert facts["full_rounds"] == full.tolist()
    assert facts["full_clients"] == (full > 0).sum() > 0
    assert facts["largest_shadow_price"] == max(facts["shadow_price"]) > 0
    assert all((price > 0) <= (rounds > 0) for price, rounds in zip(facts["shadow_price"], full, strict=True))
    assert "staying_away" not in facts
    shown = text_of(capped)
    assert re.search(
        rf"clients with a full buffer .* {(full > 0).sum()} of 8, for at most {full.max()} rounds", shown
    )
    assert f"at most {full.max()} rounds" in limit_texts(capped)[0]


def test_a_capacity_that_nobody_reaches_is_told() -> None:
    game = Game(clients=Clients.draw(3, initial_volume=100, capacity=1e6), num_rounds=4)
    plan = dufl.equilibrium(game, payment=40, conservation_rate=0.3)
    assert limit_rows(plan) == [("clients with a full buffer", "0 of 3")]
    assert limit_texts(plan) == []


def test_who_stays_away_and_what_keeping_costs(voluntary: Plan) -> None:
    facts = summary(voluntary, None)
    assert facts["takes_part"] == voluntary.takes_part.tolist()  # type: ignore[union-attr]
    assert facts["staying_away"] == facts["takes_part"].count(False)
    assert all(
        cost == 0 for cost, there in zip(facts["keeping_cost"], facts["takes_part"], strict=True) if there
    )
    assert sum(facts["keeping_cost"]) == pytest.approx(voluntary.keeping.cost.sum())
    assert "full_clients" not in facts
    rows = dict(limit_rows(voluntary))
    assert rows["clients that stay away"] == f"{voluntary.staying_away} of 8"
    assert rows["  keeping all of them costs"].startswith("at least ")
    away = ", ".join(str(k) for k, there in enumerate(facts["takes_part"]) if not there)
    assert f"stay away: {away}." in limit_texts(voluntary)[0]
    assert f"({8 - voluntary.staying_away} of 8 clients" in text_of(voluntary)


def test_means_are_over_those_who_take_part(voluntary: Plan) -> None:
    inside = voluntary.takes_part
    held = voluntary.volume[:, inside].mean(axis=1)
    shown = " / ".join(number(float(v)) for v in (held[0], held.mean(), held[-1]))
    assert shown in text_of(voluntary)
    assert shown in plan_html(voluntary)


def test_nobody_takes_part(nobody: Plan, tmp_path: Path) -> None:
    assert "8 of 8" in text_of(nobody)
    assert np.isinf(nobody.server_cost)
    nobody.save(tmp_path / "plan")
    assert Plan.load(tmp_path / "plan").staying_away == 8


def test_all_may_take_part() -> None:
    game = Game(clients=Clients.draw(3, initial_volume=10), num_rounds=4, participation="voluntary")
    plan = dufl.equilibrium(game, payment=40, conservation_rate=0.3)
    assert limit_rows(plan) == [("clients that stay away", "0 of 3")]
    assert limit_texts(plan) == []
    assert limits_summary(plan)["keeping_cost"] == [0, 0, 0]


def test_many_clients_are_counted_and_not_listed() -> None:
    game = Game(clients=Clients.draw(LISTED + 1, initial_volume=100, capacity=120), num_rounds=3)
    facts = limits_summary(dufl.equilibrium(game, payment=4000, conservation_rate=0.3))
    assert set(facts) == {"full_clients", "largest_shadow_price"}


def test_algorithm1_is_no_baseline_where_clients_choose(plain: Plan) -> None:
    chosen = replace(plain, method="stackelberg")
    assert has_baseline(chosen)
    assert not has_baseline(replace(chosen, game=chosen.game.replace(participation="voluntary")))


@pytest.mark.parametrize("name", ["plain", "capped", "voluntary", "nobody"])
def test_a_stored_plan_is_the_same_plan(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    plan: Plan = request.getfixturevalue(name)
    arrays = written(plan, tmp_path / "plan")
    again = Plan.load(tmp_path / "plan")
    assert (again.takes_part is None) == (plan.takes_part is None)
    assert np.array_equal(again.volume, plan.volume)
    assert np.array_equal(again.collection, plan.collection)
    assert again.server_cost == plan.server_cost
    assert limits_summary(again) == limits_summary(plan)
    for key, values in limit_columns(plan).items():
        assert np.array_equal(arrays[key], values)


def test_who_takes_part_is_checked_when_read(voluntary: Plan, plain: Plan, tmp_path: Path) -> None:
    def refused(plan: Plan, name: str, values: Any) -> str:
        arrays = written(plan, tmp_path / name)
        np.savez(tmp_path / name / "plan.npz", **arrays | {"takes_part": values})
        manifest = Manifest.read(tmp_path / name)
        assert manifest is not None
        manifest.adding("plan.npz").write()
        with pytest.raises(InputError) as error:
            Plan.load(tmp_path / name)
        return error.value.rule

    shape = r"of type uint8 and of shape (8,), 0 or 1 per client"
    assert refused(voluntary, "short", np.ones(7, np.uint8)) == shape
    assert refused(voluntary, "large", np.full(8, 2, np.uint8)) == shape
    assert refused(voluntary, "other", np.ones(8)) == shape
    assert refused(plain, "plain", np.ones(8, np.uint8)) == "left out if participation is 'mandatory'"
    arrays = written(voluntary, tmp_path / "none")
    del arrays["takes_part"]
    np.savez(tmp_path / "none" / "plan.npz", **arrays)
    manifest = Manifest.read(tmp_path / "none")
    assert manifest is not None
    manifest.adding("plan.npz").write()
    assert Plan.load(tmp_path / "none").takes_part is None


@pytest.mark.parametrize("name", ["plain", "capped", "voluntary", "nobody"])
def test_stored_plans_are_certified(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan: Plan = request.getfixturevalue(name)
    plan.save(tmp_path / "plan")
    code, facts = certified(tmp_path / "plan", capsys)
    assert code == 0
    assert facts["holds"]
    assert ("staying_away" in facts) == (plan.takes_part is not None)
    assert facts.get("staying_away", 0) == plan.staying_away


def test_a_wrong_set_is_not_certified(
    voluntary: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The equilibrium of all but one of those who would take part: the one outside gains by entering."""
    inside = voluntary.takes_part
    assert inside is not None
    fewer = inside.copy()
    fewer[int(np.argmax(voluntary.outcomes.utility))] = False
    clients = voluntary.game.clients
    found = find_equilibrium(clients.weighted(clients.multiplicity * fewer), 8, 40.0, 0.3, "mean-field")
    wrong = replace(voluntary, equilibrium=found, takes_part=fewer)
    wrong.save(tmp_path / "plan")
    code, facts = certified(tmp_path / "plan", capsys)
    assert code == 1
    assert not facts["holds"]
    assert facts["participation_gain"] > 1e-3
    assert facts["kkt_residual"] < 1e-6


def test_whoever_holds_something_is_certified_whatever_is_said(
    voluntary: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile with a client that should stay away is not that of an equilibrium."""
    arrays = written(voluntary, tmp_path / "plan")
    away = int(np.argmin(arrays["takes_part"]))
    arrays["volume"][:, away] = 1000.0 * 0.3 ** np.arange(8)
    np.savez(tmp_path / "plan" / "plan.npz", **arrays)
    manifest = Manifest.read(tmp_path / "plan")
    assert manifest is not None
    manifest.adding("plan.npz").write()
    code, facts = certified(tmp_path / "plan", capsys)
    assert code == 1
    assert facts["staying_away"] == voluntary.staying_away - 1


def certified(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = 0
    try:
        certify(folder, json=True, tolerance=1e-6)
    except typer.Exit as stop:
        code = stop.exit_code
    return code, json.loads(capsys.readouterr().out)
