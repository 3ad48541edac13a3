"""A loss law that is a user's own function: runs are read without the function, and resumed with it."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from dufl.experiment.callbacks import Action
from dufl.experiment.config import Experiment
from dufl.game.loss import DescribedLaw

CALLS: list[str] = []


def imported_law(scarcity: Any, staleness: Any) -> Any:
    """A law that could be imported, which reading must not do."""
    CALLS.append("called")
    return 3 * np.sqrt(scarcity) + 0.01 * staleness


def experiment(law: Any, policy: Any = "dufl") -> Experiment:
    game = dufl.Game(num_rounds=4, loss=law, clients=dufl.Clients.draw(3, initial_volume=60))
    return Experiment(game=game, training=dufl.Training(local_epochs=1), policy=policy)


@pytest.mark.parametrize("law", [imported_law, lambda x, s: np.sqrt(x) + s], ids=["importable", "lambda"])
@pytest.mark.parametrize("policy", ["dufl", "static"])
def test_a_run_is_read_and_reported_without_its_law(
    law: Any, policy: str, tmp_path: Path, dufl_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dufl.train(experiment(law, policy), out=tmp_path / "run")
    before, written = len(CALLS), run.experiment.to_toml()
    monkeypatch.delitem(sys.modules, __name__)  # importing it would be seen
    found = dufl.Run.load(tmp_path / "run")
    described = found.experiment.game.loss
    assert isinstance(described, DescribedLaw)
    assert described.description.startswith("<")
    assert found.summary() == run.summary()
    assert np.isfinite(found.records[-1].server_cost)
    assert found.experiment.to_toml() == written
    code, _, err = dufl_command("report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html"))
    assert (code, err) == (0, "")
    text = (tmp_path / "page.html").read_text()
    assert ">nan<" not in text
    assert "U = nan" not in text
    assert __name__ not in sys.modules
    assert len(CALLS) == before


def test_resuming_needs_the_function(tmp_path: Path, dufl_command: Any) -> None:
    def law(scarcity: Any, staleness: Any) -> Any:
        return np.sqrt(scarcity) + 0.01 * staleness

    whole = dufl.train(experiment(law))
    pause = lambda record: Action.PAUSE if record.round == 1 else None  # noqa: E731
    stopped = dufl.train(experiment(law), out=tmp_path / "run", callbacks=[pause])
    assert not stopped.finished
    read = dufl.Run.load(tmp_path / "run").experiment
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    for train in (dufl.train, dufl.solve):
        with pytest.raises(dufl.InputError) as refused:
            train(read, out=tmp_path / "run", resume=True) if train is dufl.train else dufl.solve(read.game)
        assert refused.value.field == "game.loss"
    code, _, err = dufl_command("train", "--out", str(tmp_path / "run"), "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics
    done = dufl.train(experiment(law), out=tmp_path / "run", resume=True)
    assert done.summary()["fingerprint"] == whole.summary()["fingerprint"]
    code, out, err = dufl_command("train", "--out", str(tmp_path / "run"), "--resume", "--json")
    assert (code, err) == (0, "")  # a finished run needs nothing
    assert json.loads(out)["fingerprint"] == whole.summary()["fingerprint"]


@pytest.mark.parametrize("law", ["bound", "os:system", "<>", "<a\nb>"])
def test_other_texts_are_no_law(law: str) -> None:
    with pytest.raises(dufl.InputError) as refused:
        dufl.Game(loss=law)
    assert refused.value.field == "loss"
