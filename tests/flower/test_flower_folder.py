"""A folder belongs to one run of one configuration, and the clients' files to many runs."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedProx, FedTrimmedAvg, Result
from test_flower_contract import CLIENTS, GAME, STATIC, client_app

import dufl
from dufl.errors import InputError
from dufl.flower import messages
from dufl.flower.app import ServerSettings, server_app
from dufl.flower.app import client_app as own_client_app
from dufl.flower.in_process import Answer, InProcessGrid, is_training
from dufl.flower.messages import from_arrays, to_arrays
from dufl.flower.strategy import DataUpdateStrategy
from dufl.game.negotiation import Announcement
from flower_grid import SMALL, Run
from loading import load


class KilledError(Exception):
    """The server is gone."""


def run(folder: Path, *, stop_after: int | None = None, clients: str = "clients", **changes: Any) -> Any:
    """A user's own app; returns the result, the strategy and the messages."""
    given: dict[str, Any] = {"game": GAME, "inner": FedAvg(fraction_evaluate=0.0), "plan": STATIC} | changes
    start = {name: given.pop(name) for name in ("train_config", "arrays") if name in given}
    inner, game = given.pop("inner"), given.pop("game")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == stop_after:
            raise KilledError
        return MetricRecord({"sum": float(from_arrays(arrays)["w"].sum())})

    grid = InProcessGrid(client_app(folder), CLIENTS, None, {"folder": str(folder / clients)})
    strategy = DataUpdateStrategy(inner, game, folder / "server", **given)
    model = start.pop("arrays", to_arrays({"w": np.arange(5.0)}))
    rounds = game.num_rounds
    result: Result = strategy.start(grid, model, rounds, evaluate_fn=evaluate, **start)
    return result, strategy, grid.sent


def other_plan() -> Announcement:
    return Announcement(dufl.Offer(payment=1.0, conservation_rate=1.0), STATIC.announced_volume)


CHANGES = [
    ({"run_config": {"learning-rate": 0.1}}, "run_config.learning-rate was 0.05, is 0.1"),
    ({"train_config": ConfigRecord({"lr": 0.1})}, "train_config.lr was None, is 0.1"),
    ({"inner": FedAvg(fraction_train=0.5)}, "strategy.fraction_train was 1.0, is 0.5"),
    ({"inner": FedProx(fraction_evaluate=0.0)}, "FedAvg', is 'flwr.serverapp.strategy.fedprox.FedProx'"),
    ({"game": GAME.replace(payment_weight=0.5)}, "game.payment_weight was 0.0001, is 0.5"),
    ({"game": GAME.replace(num_rounds=5)}, "game.num_rounds was 4, is 5"),
    ({"game": GAME.replace(clients=dufl.Clients.draw(CLIENTS, seed=9))}, "clients.collection_cost was"),
    ({"plan": other_plan()}, "plan.payment was 0.0, is 1.0"),
    ({"max_update": None}, "max_update was 10.0, is None"),
    ({"arrays": to_arrays({"w": np.arange(6.0)})}, "model.w was 'float64 [5]', is 'float64 [6]'"),
    ({"arrays": to_arrays({"v": np.arange(5.0)})}, "model.v was None, is 'float64 [5]'; model.w was"),
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its third round."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.raises(KilledError):
        run(folder, stop_after=3, run_config={"learning-rate": 0.05})
    return folder


@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_another_configuration_is_refused_and_named(begun: Path, change: Any, told: str) -> None:
    before = (begun / "server" / "server.npz").read_bytes()
    with pytest.raises(InputError, match="holds a run of another configuration") as caught:
        run(begun, **{"run_config": {"learning-rate": 0.05}} | change)
    assert told in str(caught.value)
    assert "needs another folder" in str(caught.value)
    assert (begun / "server" / "server.npz").read_bytes() == before


def test_the_strategy_inside_a_wrapper_counts(tmp_path: Path) -> None:
    class Wrapper(FedAvg):
        def __init__(self, beta: float) -> None:
            super().__init__(fraction_evaluate=0.0)
            self.inner = FedTrimmedAvg(beta=beta)

    with pytest.raises(KilledError):
        run(tmp_path, stop_after=2, inner=Wrapper(0.2))
    with pytest.raises(InputError, match=r"strategy\.inner\.beta was 0\.2, is 0\.3"):
        run(tmp_path, inner=Wrapper(0.3))


def test_the_same_configuration_is_resumed(tmp_path: Path) -> None:
    """Timeouts, the initial weights and the place of the folder may change."""
    with pytest.raises(KilledError):
        run(tmp_path / "one", stop_after=3, run_config={"folder": str(tmp_path / "one" / "server"), "x": 1})
    (tmp_path / "one").rename(tmp_path / "two")
    config = {"folder": str(tmp_path / "two" / "server"), "x": 1}
    arrays = to_arrays({"w": np.ones(5)})  # as of an app that sets no seed
    result, _, sent = run(tmp_path / "two", run_config=config, timeout=9.0, arrays=arrays)
    assert [messages.round_of(m.content) for m in sent if is_training(m)] == [2] * 4 + [3] * 4
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]


def test_a_finished_run(tmp_path: Path) -> None:
    first = run(tmp_path)[0]
    with pytest.raises(
        InputError, match=r"is finished: .* another folder, or if-finished = 'new'.* server-2 "
    ):
        run(tmp_path)
    again, _, sent = run(tmp_path, if_finished="return")
    assert from_arrays(again.arrays)["w"].tolist() == from_arrays(first.arrays)["w"].tolist()
    assert not any(is_training(message) for message in sent)
    with pytest.raises(InputError, match="another configuration"):
        run(tmp_path, max_update=5.0)
    with pytest.raises(InputError) as caught:
        run(tmp_path, if_finished="whatever")
    assert caught.value.field == "if_finished"


def test_a_new_run_is_begun_and_resumed_by_the_same_call(tmp_path: Path) -> None:
    for name in ("server", "server-2"):
        with pytest.raises(KilledError):
            run(tmp_path, if_finished="new", stop_after=3)
        _, strategy, sent = run(tmp_path, if_finished="new")
        assert strategy.folder == tmp_path / name
        assert len([m for m in sent if is_training(m)]) == 2 * CLIENTS  # two rounds were left
    ids = {json.loads((tmp_path / name / "run.json").read_text())["id"] for name in ("server", "server-2")}
    assert len(ids) == 2


def test_the_configuration_is_on_disk_before_the_first_message(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        assert (tmp_path / "server" / "run.json").exists()
        raise KilledError

    first = Run(tmp_path, meddle=meddle)
    with pytest.raises(KilledError):
        first.start()
    with pytest.raises(InputError, match=r"training\.learning_rate was 0\.\d+, is 0\.5"):
        Run(tmp_path, "training.learning_rate=0.5").start()
    Run(tmp_path, "training.device=cpu").start()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"id": 1, "configuration": {}}'])
def test_a_damaged_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "run.json").write_text(content)
    with pytest.raises(InputError) as caught:
        run(tmp_path)
    assert caught.value.field == str(tmp_path / "server" / "run.json")


def test_a_deal_of_an_unknown_run_is_not_resumed(begun: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "deal.json").write_bytes((begun / "server" / "deal.json").read_bytes())
    with pytest.raises(InputError, match=r"one without run\.json"):
        run(tmp_path)


def own_app(folder: Path, *changes: str, meddle: Any = None, if_finished: Any = "error") -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"config{len(list(folder.glob('*.toml')))}.toml"  # each is loaded once per process
    path.write_text(load(None, [*SMALL, "game.num_rounds=3", *changes]).to_toml())
    grid = InProcessGrid(own_client_app(lambda _: (path, folder / "clients"), min_others=0), 4, meddle)
    settings = ServerSettings(path, folder / "run", False, 60.0, if_finished=if_finished)
    server_app(lambda _: settings)(grid, Context(1, 1, {}, RecordDict(), {}))


def test_dufl_s_own_app(tmp_path: Path) -> None:
    def killed(client: int, message: Message, answer: Answer) -> Message | None:
        if is_training(message) and messages.round_of(message.content) == 1:
            raise KilledError
        return answer()

    with pytest.raises(KilledError):
        own_app(tmp_path, meddle=killed)
    with pytest.raises(InputError, match=r"training\.learning_rate was .*, is 0\.5"):
        own_app(tmp_path, "training.learning_rate=0.5")
    own_app(tmp_path)
    with pytest.raises(InputError, match=r"is finished: .*run-2"):
        own_app(tmp_path)
    with pytest.raises(InputError, match=r"training\.learning_rate was"):
        own_app(tmp_path, "training.learning_rate=0.5")
    own_app(tmp_path, "training.learning_rate=0.5", if_finished="new")
    assert (tmp_path / "run-2" / "summary.json").exists()


def test_killed_before_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("dufl.flower.run_recorder.RunRecorder.finish", killed)
        with pytest.raises(KilledError):
            own_app(tmp_path)
    assert not (tmp_path / "run" / "summary.json").exists()
    own_app(tmp_path)
    assert (tmp_path / "run" / "summary.json").exists()


def renewed(folder: Path, name: str, *changes: str, **options: Any) -> Run:
    """A run with a server folder of its own and the same clients."""
    made = Run(folder, *changes, negotiate=True, **options)
    made.strategy.folder = folder / name
    made.strategy._store = type(made.strategy._store)(folder / name)
    return made


def test_clients_take_part_in_a_second_run(tmp_path: Path) -> None:
    """Rounds begin at 0 again; nothing but the samples they hold comes from the first run."""
    first, second = renewed(tmp_path, "a"), renewed(tmp_path, "b")
    first.start()
    ages = [round.mean_age for round in first.rounds]
    held = {claim.client: claim.volume for claim in first.rounds[-1].claims}
    second.start()
    assert [round.round for round in second.rounds] == list(range(5))
    assert all(len(round.claims) == 4 and not round.refused for round in second.rounds)
    assert {claim.client: claim.volume for claim in second.rounds[0].claims} == held
    assert second.rounds[0].mean_age == pytest.approx(ages[-1])
    assert second.strategy.deal is not None
    said = [m for m in second.grid.received if not is_training(m)]
    told = {key for m in said for record in m.content.config_records.values() for key in record}
    assert told == {"client", "key", "volumes", "grid"}


def test_the_plan_of_an_earlier_run_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that joins a later run late enters no rounds of the plan that it has from an earlier one."""
    monkeypatch.setattr("dufl.flower.nodes.POLL", 0.05)
    first = renewed(tmp_path, "a", "game.num_rounds=3")
    first.start()
    (held,) = [claim.volume for claim in first.rounds[-1].claims if claim.client == 1]
    began: list[int] = []

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply, kind = answer(), message.metadata.message_type
        if client == 1 and kind == messages.HELLO and second.strategy.round < 4:
            record: Any = reply.content[messages.RECORD]
            record["key"] = b"none"
        if client == 1 and kind == messages.COMMIT:
            began.append(messages.Commitment.read(reply.content, 8).volumes[0])
        return reply

    second = renewed(tmp_path, "b", "game.num_rounds=12", meddle=meddle, arrival_timeout=0.1)
    second.start()
    assert began == [held]
    present = [1 in {claim.client for claim in round.claims} for round in second.rounds]
    assert present == [False] * 4 + [True] * 8


def test_a_train_message_of_another_run_is_refused(tmp_path: Path) -> None:
    made = Run(tmp_path)
    made.start()
    node = next(iter(made.grid.nodes))
    record = messages.train_record(4, "another run")
    outgoing = Message(RecordDict({messages.RECORD: record}), dst_node_id=node, message_type="train")
    (reply,) = made.grid.send_and_receive([outgoing])
    assert "run must be the one that the client committed to" in (reply.error.reason or "")


def test_two_servers_at_once(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        if is_training(message) and messages.round_of(message.content) == 1:
            with pytest.raises(InputError, match="another process has it open"):
                Run(tmp_path, "game.num_rounds=3").start()
        return answer()

    first = Run(tmp_path, "game.num_rounds=3", meddle=meddle)
    first.start()
    assert [round.round for round in first.rounds] == [0, 1, 2]
    assert (tmp_path / "server" / "results.jsonl").read_text().count("\n") == 4


@pytest.mark.parametrize("lost", ["ledger", "round"])
def test_a_ledger_without_a_finished_round(tmp_path: Path, lost: str) -> None:
    def killed(client: int, message: Message, answer: Answer) -> Message | None:
        if is_training(message) and messages.round_of(message.content) == 2:
            raise KilledError
        return answer()

    with pytest.raises(KilledError):
        Run(tmp_path, "game.num_rounds=3", meddle=killed).start()
    path = tmp_path / "server" / "ledger.sqlite"
    if lost == "ledger":
        path.unlink()
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(
                "DELETE FROM entries WHERE round = 1; DELETE FROM rounds WHERE round = 1"
            )
    again = Run(tmp_path, "game.num_rounds=3")
    with pytest.raises(InputError) as caught:
        again.start()
    assert caught.value.field == ("round 0" if lost == "ledger" else "round 1")
    assert not again.rounds
