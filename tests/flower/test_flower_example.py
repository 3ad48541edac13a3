"""A stock Flower app gains data update by fewer than 15 changed lines, and works as Flower runs it."""

import difflib
import importlib
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dufl.errors import InputError
from dufl.flower import messages
from dufl.flower.client_mod import DataUpdateMod
from dufl.flower.ledger import Ledger
from flower_grid import Run
from flower_processes import EXAMPLES, flower_home, run

EXAMPLE = EXAMPLES / "flower-pytorch"


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
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLE / "fresh"))
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        del sys.modules[name]


def documented(app: str) -> list[str]:
    """The command of the README that runs an app."""
    text = (EXAMPLE / "README.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"flwr run {app} ")]
    return shlex.split(line.replace("num-supernodes=10", "num-supernodes=4"))


def test_as_its_readme_says(tmp_path: Path, fresh: Any) -> None:
    model, folder = tmp_path / "model.pt", tmp_path / "run"
    config = {"num-server-rounds": 4, "num-clients": 4, "local-epochs": 10}
    paths = f"model={str(model)!r} folder={str(folder)!r} "
    small = ["--run-config", paths + " ".join(f"{name}={value}" for name, value in config.items())]
    with flower_home(tmp_path / "home") as environment:
        done = run([*documented("fresh"), *small], cwd=EXAMPLE, env=environment)
        faster = [*small[:1], small[1] + " learning-rate=0.5"]
        again = run([*documented("fresh"), *faster], cwd=EXAMPLE, env=environment)
    assert done.returncode == 0, done.stderr
    assert "run_config.learning-rate was 0.05, is 0.5" in again.stdout + again.stderr
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger.check()
        entries = ledger.entries()
    assert [(entry.round, entry.client) for entry in entries] == [(t, k) for t in range(4) for k in range(4)]
    assert all(entry.claimed > 0 and entry.owed > 0 and not entry.reason for entry in entries), done.stdout
    for number in range(4):
        volume = sum(entry.claimed for entry in entries if entry.round == number)
        assert f"round {number + 1} of 4: 4 updates on {volume} samples" in done.stdout
    import torch

    task = fresh("app.task")
    torch.manual_seed(0)
    start, end = task.Net(), task.Net()
    end.load_state_dict(torch.load(model, weights_only=True))
    assert task.test(end)[1] > task.test(start)[1] + 0.4


def test_the_app_is_sent_without_the_data_around_it(fresh: Any) -> None:
    """Flower sends it with every message; the train function and its mod are those of the module there."""
    module = fresh("app.client_app")
    sent = cloudpickle.dumps(module.app)
    assert len(sent) < 10_000 < module.streams(0).pool.features.nbytes
    assert cloudpickle.loads(sent)._mods[0] is module.update
    alone = DataUpdateMod(lambda context: module.update._profile(context), deadline=2.0)
    copied = cloudpickle.loads(cloudpickle.dumps(alone))  # no module has a name for it
    assert (type(copied), copied._deadline) == (DataUpdateMod, 2.0)


def test_clients_in_threads_of_one_process_hold_their_own(tmp_path: Path) -> None:
    """Each sees its own data while all train at once, and none outside of training."""
    ready = Run(tmp_path, "clients.count=3", "clients.initial_volume=[10, 20, 30]", "game.num_rounds=2")
    ready.start()
    app = importlib.import_module("dufl.flower.app")
    together, seen = threading.Barrier(3, timeout=60), {}
    update = DataUpdateMod(app.client_app(lambda _: (ready.path, tmp_path / "clients"))._mods[0]._profile)

    def train(message: Message, context: Context) -> Message:
        together.wait()
        seen[app.client_number(context)] = len(update.snapshot.ages)
        together.wait()
        return Message(RecordDict(), reply_to=message)

    def answer(client: int) -> None:
        message = Message(
            RecordDict({messages.RECORD: ConfigRecord({"round": 1})}),
            dst_node_id=client + 1,
            message_type=MessageType.TRAIN,
        )
        message.metadata.__dict__["_message_id"] = str(client)
        update(message, Context(1, client + 1, {"partition-id": client}, RecordDict(), {}), train)

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    threads = [threading.Thread(target=answer, args=(client,)) for client in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {claim.client: claim.volume for claim in ready.rounds[1].claims}
    assert len(set(np.array(list(seen.values())))) > 1
    with pytest.raises(InputError, match="only available while training"):
        _ = update.snapshot
