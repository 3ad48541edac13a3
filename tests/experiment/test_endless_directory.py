"""Plans of endless services on disk: certified from their numbers alone, and refused if those are damaged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl import Clients, Game, InputError, solve, solve_endless
from dufl.experiment.endless_directory import certify_endless, is_endless, write_endless
from dufl.experiment.environment import environment
from dufl.experiment.service import Service, Unit
from results import reseal

GAME = Game(clients=Clients.draw(5, seed=3), horizon="endless")


@pytest.fixture(name="folder")
def written(tmp_path: Path) -> Path:
    """A directory with the plan of five clients."""
    folder = tmp_path / "plan"
    paths = write_endless(solve_endless(GAME), folder)
    assert sorted(path.name for path in paths) == ["config.toml", "plan.json", "plan.npz"]
    return folder


def _rewrite(folder: Path, **changes: Any) -> None:
    """Replace arrays of a plan."""
    with np.load(folder / "plan.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(folder / "plan.npz", **(arrays | changes))
    reseal(folder)


def test_a_written_plan_is_certified(folder: Path) -> None:
    assert is_endless(folder)
    assert certify_endless(folder).holds()


def test_a_plan_in_which_a_client_collects_too_much_is_not_certified(folder: Path) -> None:
    plan = solve_endless(GAME)
    more = np.array([2.0, 1, 1, 1, 1])
    _rewrite(folder, volume=plan.volume * more, collection=plan.collection * more)
    assert not certify_endless(folder).holds()


@pytest.mark.parametrize("volume", [np.zeros(4), np.full(5, np.nan), -np.ones(5), np.ones(5, np.float32)])
def test_damaged_volumes_are_refused_by_name(folder: Path, volume: np.ndarray[Any, Any]) -> None:
    _rewrite(folder, volume=volume)
    with pytest.raises(InputError, match=r"volume in .* finite numbers >= 0 of type float64"):
        certify_endless(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("payment", -1.0, "payment"),
        ("conservation_rate", 1.0, "below 1 in an endless service"),
        ("conservation_rate", None, "conservation_rate"),
    ],
)
def test_a_damaged_offer_is_refused_by_name(folder: Path, name: str, value: Any, message: str) -> None:
    facts = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(facts | {name: value}))
    reseal(folder)
    with pytest.raises(InputError, match=message):
        certify_endless(folder)


def test_the_plan_of_a_run_is_not_an_endless_one(tmp_path: Path) -> None:
    solve(GAME.replace(horizon="finite", num_rounds=4)).save(tmp_path / "plan")
    assert not is_endless(tmp_path / "plan")
    with pytest.raises(InputError, match="a directory with an endless plan"):
        certify_endless(tmp_path / "plan")


@pytest.mark.parametrize("text", ["0.01 EUR", "1", "1000 JPY", "0.000001 BTC"])
def test_counts_of_units_are_exact(text: str) -> None:
    unit = Unit.parse(text)
    assert str(unit) == text == Service(unit=text).unit
    for units in (0, 1, 12345678901234567890):
        assert unit.value(units) == units * unit.size
        assert unit.text(units).replace(",", "").startswith(unit.amount(units))
    assert [unit.count(float(unit.size) * number) for number in (0, 1, 7)] == [0, 1, 7]


@pytest.mark.parametrize("text", ["", "0.02", "EUR", "0.01EUR", "0.01 E1", "1 " + "A" * 50])
def test_other_units_are_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="unit must be a power of ten"):
        Unit.parse(text)


def test_the_environment_names_what_computed_a_result() -> None:
    facts = environment()
    assert {"dufl", "numpy", "scipy"} <= facts["packages"].keys()
    assert facts["processor"]
