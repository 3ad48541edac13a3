"""A server on Flower that is killed at any moment goes on: the same model, the same money."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from dufl.experiment.run_directory import read_metrics
from dufl.flower import messages
from dufl.flower.app import ServerSettings, client_app, server_app
from dufl.flower.in_process import Answer, InProcessGrid, Meddle, is_training
from dufl.flower.server_store import ServerStore
from flower_grid import SMALL, Run
from loading import load


class KilledError(Exception):
    """The server is gone."""


BY_AGE = (
    *("fraction_train=0.5", "client_selection=age", "training.algorithm=feddyn"),
    *("clients.initial_volume=[40, 60, 90, 50]", "data.discard=reservoir", "age_weighting=linear"),
)
TRIMMED = ("game.trim_start=true", "game.payment_range=[0,2]", "clients.initial_volume=300")


@pytest.mark.parametrize(
    ("moment", "changes"),
    [
        *((0, ()), (7, ()), (13, ()), (19, ()), (0, TRIMMED), (2, TRIMMED), (7, TRIMMED)),
        *((moment, BY_AGE) for moment in (0, 3, 5, 6)),
    ],
)
def test_a_server_that_was_killed_goes_on(tmp_path: Path, moment: int, changes: tuple[str, ...]) -> None:
    trained = 0

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        nonlocal trained
        if is_training(message):
            if trained == moment:
                trained += 1
                raise KilledError
            trained += 1
        return answer()

    whole = Run(tmp_path / "whole", *changes)
    first = Run(tmp_path / "killed", *changes, meddle=meddle)
    with pytest.raises(KilledError):
        first.start()
    again = Run(tmp_path / "killed", *changes)
    result, expected = again.start(), whole.start()
    ours, theirs = messages.from_arrays(result.arrays), messages.from_arrays(expected.arrays)
    assert ours["weights"].tobytes() == theirs["weights"].tobytes()
    assert again.entries() == whole.entries()


def test_killed_between_paying_and_keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, save = Run(tmp_path / "killed"), ServerStore.save_checkpoint

    def killed(*arguments: Any) -> None:
        if first.strategy.round == 3:
            raise KilledError
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ServerStore, "save_checkpoint", killed)
        with pytest.raises(KilledError):
            first.start()
    assert len({entry.round for entry in first.entries()}) == 3  # paid, and not known to be over
    again, whole = Run(tmp_path / "killed"), Run(tmp_path / "whole")
    one, two = again.start(), whole.start()
    assert again.entries() == whole.entries()
    ours, theirs = messages.from_arrays(one.arrays), messages.from_arrays(two.arrays)
    assert ours["weights"].tobytes() == theirs["weights"].tobytes()


def test_the_run_directory_after_a_kill_is_that_of_a_whole_run(tmp_path: Path) -> None:
    trained = 0

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        nonlocal trained
        trained += is_training(message)
        if trained == 11:
            trained += 1
            raise KilledError
        return answer()

    def go(folder: Path, meddle: Meddle | None = None) -> None:
        (folder / "server").mkdir(parents=True, exist_ok=True)
        path = folder / "config.toml"
        path.write_text(load(None, SMALL).to_toml())
        grid = InProcessGrid(client_app(lambda _: (path, folder / "clients")), 4, meddle)
        app = server_app(lambda _: ServerSettings(path, folder / "server", False, timeout=60.0))
        app(grid, Context(1, 1, {}, RecordDict(), {}))

    with pytest.raises(KilledError):
        go(tmp_path / "killed", meddle)
    assert not (tmp_path / "killed" / "server" / "summary.json").exists()
    go(tmp_path / "killed")
    go(tmp_path / "whole")
    one, two = (read_metrics(tmp_path / name / "server") for name in ("killed", "whole"))
    assert [replace(r, seconds=0) for r in one] == [replace(r, seconds=0) for r in two]
    summaries = [
        json.loads((tmp_path / name / "server" / "summary.json").read_text()) for name in ("killed", "whole")
    ]
    assert summaries[0] | {"seconds": 0} == summaries[1] | {"seconds": 0}
