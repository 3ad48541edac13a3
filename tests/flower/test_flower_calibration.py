"""Calibration and runs on Flower: its run directories calibrate, and its runs check what was predicted."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import dufl
from dufl.calibration.calibrate import Calibration
from dufl.calibration.measurements import SIMULATED
from dufl.calibration.stored_runs import calibrate_stored
from dufl.errors import InputError
from dufl.experiment.train import Run, train
from dufl.flower.app import ServerSettings, client_app, server_app
from dufl.flower.in_process import InProcessGrid
from flower_grid import SMALL
from loading import load

LAW = {"floor": 0.1, "volume_weight": 2.0, "staleness_weight": 0.01, "noise": 0.5, "measured_from": 0.4}
OFFERS = [(2, 0.0), (2, 0.8), (10, 0.3), (10, 0.8), (40, 0.0), (40, 0.6)]


def on_flower(folder: Path, *changes: str, law: dict[str, Any] | None = None, negotiate: bool = False) -> Run:
    """A run as a deployment's server writes it."""
    folder.mkdir(parents=True)
    path, config = folder / "config.toml", load(None, [*SMALL, *changes])
    if law:
        config = config.replace(game=config.game.replace(loss=dufl.PowerLaw(**law)))
    path.write_text(config.to_toml())
    grid = InProcessGrid(client_app(lambda _: (path, folder / "clients")), config.game.clients.size)
    app = server_app(lambda _: ServerSettings(path, folder / "server", negotiate, timeout=60.0))
    app(grid, Context(1, 1, {}, RecordDict(), {}))
    return Run.load(folder / "server")


def at(payment: float, rate: float) -> tuple[str, str]:
    return f"game.payment_range=[{payment},{payment}]", f"game.conservation_range=[{rate},{rate}]"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Calibration]:
    folder = tmp_path_factory.mktemp("runs")
    for index, offer in enumerate(OFFERS):
        on_flower(folder / str(index), *at(*offer), f"training.seed={index}", negotiate=index == 1)
    places = [folder / str(index) / "server" for index in range(len(OFFERS))]
    return places, calibrate_stored(places)


def test_runs_on_flower_calibrate(calibrated: tuple[list[Path], Calibration]) -> None:
    places, found = calibrated
    assert [(m.payment, m.conservation_rate) for m in found.measurements] == OFFERS
    for index, (m, offer) in enumerate(zip(found.measurements, OFFERS, strict=True)):
        alone = train(load(None, [*SMALL, *at(*offer), f"training.seed={index}"]))
        late = alone.records[int(SIMULATED * len(alone.records)) :]
        assert m.final == pytest.approx(1 - alone.accuracy)
        if index != 1:  # a negotiated plan is nearly the same
            assert m.staleness == pytest.approx(sum(r.mean_age for r in late) / len(late))
            assert m.scarcity == pytest.approx(sum(4 / r.total_volume for r in late) / len(late))
    game = found.calibrated().game
    assert game.payment_range == (2, 40)  # not only what the first run could offer
    assert game.conservation_range == (0.0, 0.8)
    assert all(place.name in repr(Run.load(place)) for place in places)


def test_the_command_takes_their_directories(
    calibrated: tuple[list[Path], Calibration], tmp_path: Path, dufl_command: Any
) -> None:
    places, expected = calibrated
    code, out, err = dufl_command("calibrate", *map(str, places), "--out", str(tmp_path / "cal"), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["law"]["floor"] == expected.law.floor
    code, out, err = dufl_command("plan", str(tmp_path / "cal" / "calibrated.toml"), "--json")
    assert (code, err) == (0, "")
    assert 2 <= json.loads(out)["payment"] <= 40
    code, _, err = dufl_command("calibrate", *map(str, places[:3]))
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("negotiate", [False, True])
def test_predicted_and_measured(tmp_path: Path, negotiate: bool, dufl_command: Any) -> None:
    """As in `dufl train`: in the summary that the server writes, in the run that is read, in the report."""
    run = on_flower(tmp_path / "run", law=LAW, negotiate=negotiate)
    alone = train(run.experiment)
    written = json.loads((tmp_path / "run" / "server" / "summary.json").read_text())
    expected = alone.summary()
    names = ("predicted_accuracy", "predicted_low", "predicted_high", "measured_late_accuracy")
    for name in names:
        assert written[name] == pytest.approx(expected[name], abs=1e-2 if negotiate else 1e-9)
        assert run.summary()[name] == written[name]
    assert run.outcome is not None
    page = tmp_path / "report.html"
    code, _, err = dufl_command("report", str(tmp_path / "run" / "server"), "--out", str(page))
    assert (code, err) == (0, "")
    assert f"{100 * run.outcome.measured:.1f}" in page.read_text()


def test_a_damaged_deal_is_an_error(tmp_path: Path) -> None:
    on_flower(tmp_path / "run", law=LAW)
    path = tmp_path / "run" / "server" / "deal.json"
    values = json.loads(path.read_text())
    for change in (
        {"announced_volume": [1.0]},
        {"payment": -1},
        {"announced_volume": "x"},
        {"first_round": 9},
    ):
        path.write_text(json.dumps(values | change))
        with pytest.raises(InputError, match=r"deal\.json"):
            Run.load(tmp_path / "run" / "server")
    path.write_text(json.dumps(values | {"first_round": 2, "announced_volume": [9.0] * 3}))
    assert Run.load(tmp_path / "run" / "server").outcome is None  # predicted for other rounds
