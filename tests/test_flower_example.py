"""A stock Flower app gains data update by fewer than 15 changed lines, and works."""

import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from dufl.flower.ledger import Ledger
from flower_grid import InProcessGrid

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower-pytorch"


def lines(app: str) -> dict[str, list[str]]:
    folder = EXAMPLE / app
    paths = [path for path in folder.rglob("*") if path.suffix in (".py", ".toml")]
    return {str(path.relative_to(folder)): path.read_text().splitlines() for path in paths}


def test_fewer_than_fifteen_lines_are_changed() -> None:
    stock, fresh = lines("stock"), lines("fresh")
    assert stock.keys() == fresh.keys()
    changed = [
        line
        for name in stock
        for line in difflib.unified_diff(stock[name], fresh[name], lineterm="", n=0)
        if line.startswith("+") and not line.startswith("+++")
    ]
    assert 0 < len(changed) < 15


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE / "fresh"))
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("app.client_app").app, importlib.import_module("app.server_app").app
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        del sys.modules[name]


def test_the_app_with_data_update_runs(tmp_path: Path, fresh: Any) -> None:
    clients, server = fresh
    run_config: Any = {
        "num-server-rounds": 6,
        "local-epochs": 5,
        "batch-size": 32,
        "learning-rate": 0.05,
        "model": str(tmp_path / "model.pt"),
        "num-clients": 4,
        "folder": str(tmp_path / "run"),
    }
    grid = InProcessGrid(clients, 4, run_config=run_config)
    server(grid, Context(1, 1, {}, RecordDict(), run_config))
    assert (tmp_path / "model.pt").exists()
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        ledger.check()
        assert list(ledger.rounds()) == list(range(6))
        assert all(cents > 0 for cents in ledger.rounds().values())
    task = importlib.import_module("app.task")
    import torch

    model = task.Net()
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert task.test(model)[1] > 0.8
