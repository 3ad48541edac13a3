"""A service of DUFL's own app: its run directory, also while it is running, and its report."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.experiment.run_directory import read_metrics
from dufl.experiment.train import Run
from dufl.flower import nodes
from dufl.flower.app import Runtime, ServerSettings, check_on_flower, client_app, server_app
from dufl.flower.in_process import Answer, InProcessGrid, Meddle, is_training
from dufl.flower.run_recorder import Costs
from dufl.game.utility import cost_of_rounds
from dufl.report.training_report import write_report
from loading import load

SERVICE = (
    "game.horizon=endless",
    "game.num_rounds=4",
    "clients.count=4",
    "clients.initial_volume=60",
    "training.local_epochs=1",
)


class KilledError(Exception):
    """The server is gone."""


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "POLL", 0.01)


def serve(folder: Path, *changes: str, negotiate: bool = True, meddle: Meddle | None = None) -> InProcessGrid:
    """Run a service whose clients' file has one client more than the server's."""
    (folder / "server").mkdir(parents=True, exist_ok=True)
    path, theirs = folder / "config.toml", folder / "client.toml"
    path.write_text(load(None, [*SERVICE, *changes]).to_toml())
    theirs.write_text(load(None, [*SERVICE, "clients.count=5"]).to_toml())
    app = client_app(lambda _: (theirs, folder / "clients"), min_others=0)
    grid = InProcessGrid(app, 4, meddle)
    settings = ServerSettings(path, folder / "server", negotiate, timeout=60.0, arrival_timeout=20.0)
    server_app(lambda _: settings)(grid, Context(1, 1, {}, RecordDict(), {}))
    return grid


def test_the_run_directory_of_a_service_while_it_runs_and_after_a_kill(tmp_path: Path) -> None:
    trained = 0

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        nonlocal trained
        trained += is_training(message)
        if trained == 23 and is_training(message):
            raise KilledError
        return answer()

    with pytest.raises(KilledError):
        serve(tmp_path / "killed", "service.max_rounds=7", meddle=meddle)
    running = Run.load(tmp_path / "killed" / "server")
    assert (len(running.records), running.finished) == (5, False)
    page = write_report([tmp_path / "killed" / "server"]).path.read_text()
    assert "This is a service" in page
    assert "stopped after 5 of 7 rounds" in page
    serve(tmp_path / "killed", "service.max_rounds=7")
    serve(tmp_path / "whole", "service.max_rounds=7")
    one, two = (read_metrics(tmp_path / name / "server") for name in ("killed", "whole"))
    assert [r.round for r in one] == list(range(7))
    assert [replace(r, seconds=0) for r in one[:5]] == [replace(r, seconds=0) for r in two[:5]]
    assert one[-1].server_cost == pytest.approx(two[-1].server_cost, rel=0.05)
    done = Run.load(tmp_path / "killed" / "server")
    assert done.finished
    assert json.loads((tmp_path / "killed" / "server" / "summary.json").read_text())["rounds"] == 7
    for record in two:
        assert record.planned_staleness is not None
        assert record.mean_age == pytest.approx(record.planned_staleness, rel=0.15)


def test_a_client_that_the_server_does_not_know_joins(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        if is_training(message) and not grids[0].nodes.get(5555):
            grids[0].move(4, 5555)
        return answer()

    class Known(InProcessGrid):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            grids.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(serve.__globals__, "InProcessGrid", Known)
        serve(tmp_path, "service.max_rounds=5", "training.algorithm=feddyn", meddle=meddle)
    records = read_metrics(tmp_path / "server")
    assert [len(record.volumes) for record in records] == [4, 4, 5, 5, 5]
    assert all(record.volumes[4] > 0 for record in records[2:])


def test_a_service_whose_budget_is_spent_is_finished(tmp_path: Path) -> None:
    serve(tmp_path, "service.total_budget=60", "game.payment_range=[10,20]", negotiate=False)
    run = Run.load(tmp_path / "server")
    assert run.finished
    assert run.stopped_early
    assert 50 < sum(record.payment for record in run.records) <= 60
    assert "Run(" in repr(run)


def test_costs_add_up_as_in_one_sum() -> None:
    game = load(None, ["game.horizon=endless", "game.num_rounds=9"]).game
    values = np.random.default_rng(0).uniform(1, 9, (9, 3))
    costs = Costs()
    for payment, volume, age in values:
        costs = costs.after(game, payment, int(volume), age)
    whole = cost_of_rounds(game, values[:, 0], np.floor(values[:, 1]), values[:, 2])
    assert costs.total == pytest.approx(whole.total)


def test_what_a_service_cannot_be(tmp_path: Path, dufl_command: Callable[..., tuple[int, str, str]]) -> None:
    command = ("flower", "simulate", "--set", "horizon=endless", "--out", str(tmp_path / "run"))
    code, _, err = dufl_command(*command)
    assert code == 2
    assert "service.max_rounds must be given in a simulation with horizon = 'endless'" in err
    drift = load(None, ["leader.replan_every=drift", *SERVICE])
    with pytest.raises(InputError, match=r"leader.replan_every must be an integer on Flower"):
        check_on_flower(drift)
    recorded = Experiment.from_toml(None, {"data.dataset": "weather", "game.horizon": "endless"})
    with pytest.raises(InputError, match=r"data.dataset must be .*: a recording ends, got weather"):
        check_on_flower(recorded, Runtime(recorded).dataset)
