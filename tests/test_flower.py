"""The mechanism on Flower's messages: results as on one machine, private costs, and no trust needed."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from dufl.errors import DuflError
from dufl.experiment.config import load
from dufl.experiment.run_directory import read_metrics
from dufl.experiment.train import train
from dufl.flower import wire
from dufl.flower.app import World, client_app, evaluation, server_app, strategy_of
from dufl.flower.ledger import Ledger
from dufl.flower.server import Round
from dufl.game.plan import solve
from flower_grid import InProcessGrid, Meddle

SMALL = ("game.num_rounds=5", "clients.count=4", "clients.initial_volume=60", "training.epochs=2")


class Run:
    """A run on Flower in this process."""

    def __init__(
        self,
        folder: Path,
        *changes: str,
        negotiated: bool = False,
        meddle: Meddle | None = None,
        patience: int = 3,
    ) -> None:
        config = load(None, [*SMALL, *changes])
        folder.mkdir(exist_ok=True)
        self.path = folder / "config.toml"
        if not self.path.exists():
            self.path.write_text(config.to_toml())
        self.folder = folder
        self.config = config
        self.world = World(config)
        app = client_app(lambda _: (self.path, folder / "clients"))
        self.grid = InProcessGrid(app, config.game.clients.size, meddle)
        self.rounds: list[Round] = []
        self.strategy, self.arrays = strategy_of(
            self.world,
            folder / "server",
            negotiated=negotiated,
            watch=self.rounds.append,
            patience=patience,
        )

    def start(self) -> Any:
        rounds = self.config.game.num_rounds
        return self.strategy.start(
            self.grid, self.arrays, num_rounds=rounds, evaluate_fn=evaluation(self.world)
        )

    def entries(self) -> list[Any]:
        with Ledger(self.folder / "server" / "ledger.sqlite") as ledger:
            ledger.check()
            return ledger.entries()


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "feddyn"])
def test_the_same_as_on_one_machine(tmp_path: Path, algorithm: str) -> None:
    change = f"training.algorithm={algorithm}"
    run = Run(tmp_path, change)
    run.start()
    alone = train(load(None, [*SMALL, change]))
    assert len(run.rounds) == 5
    for round, record in zip(run.rounds, alone.records, strict=True):
        assert [claim.volume for claim in round.claims] == record.volumes
        total = sum(claim.volume for claim in round.claims)
        age = sum(claim.volume * claim.mean_age for claim in round.claims) / total
        assert age == pytest.approx(record.mean_age)
        assert round.metrics["accuracy"] == record.accuracy
        assert round.cents == round_cents(record.payment)


def round_cents(payment: float) -> int:
    return round(100 * payment)


def test_negotiated_in_few_phases_and_as_good_as_known(tmp_path: Path) -> None:
    run = Run(tmp_path, "clients.seed=3", negotiated=True)
    run.strategy.game = run.strategy.game.replace(
        clients=load(None, [*SMALL, "clients.seed=99"]).game.clients
    )
    run.start()
    assert run.strategy.deal is not None
    known = solve(run.config.game)
    assert run.strategy.deal.phases <= 12
    assert run.strategy.deal.residual <= 1e-3
    assert run.strategy.deal.payment == pytest.approx(known.payment, rel=0.05)
    assert run.strategy.deal.conservation_rate == pytest.approx(known.conservation_rate, abs=0.05)


def numbers_in(message: Message) -> list[np.ndarray]:
    found = [
        np.asarray(array.numpy(), float).ravel()
        for r in message.content.array_records.values()
        for array in r.values()
    ]
    plain: list[Any] = [
        *message.content.config_records.values(),
        *message.content.metric_records.values(),
    ]
    for record in plain:
        for value in record.values():
            if isinstance(value, int | float):
                found.append(np.array([float(value)]))
    return found


def test_costs_and_single_volumes_stay_with_the_client(tmp_path: Path) -> None:
    run = Run(tmp_path, negotiated=True)
    run.start()
    people = run.config.game.clients
    private = np.concatenate([people.collection_cost, people.training_cost])
    for message in run.grid.received:
        for values in numbers_in(message):
            for cost in private:
                assert not np.isclose(values, cost, rtol=1e-6, atol=0).any()
    asked = [m for m in run.grid.received if m.metadata.message_type == wire.BEST_RESPONSE]
    assert asked
    for message in asked:
        volumes = wire.Answer.read(message.content).volumes
        assert volumes.dtype == np.uint64
        assert len(np.unique(volumes >> np.uint64(60))) > 8  # noise, not a number of samples


def lie(reply: Message, **more: int) -> None:
    claim: Any = reply.content[wire.RECORD]
    for name, number in more.items():
        claim[name] += number


def test_a_liar_a_nan_and_a_silent_one(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if not message.metadata.message_type.startswith("train") or client == 3:
            return answer()
        if client == 2:
            return None
        reply = answer()
        if client == 0:
            lie(reply, volume=1)
        else:
            arrays = wire.from_arrays(reply.content["arrays"])
            arrays["weights"][5] = np.nan
            reply.content["arrays"] = wire.to_arrays(arrays)
        return reply

    run = Run(tmp_path, meddle=meddle, patience=9)
    run.start()
    paid = run.rounds[0].cents
    for round in run.rounds:
        assert [claim.client for claim in round.claims] == [3]
        assert sorted(round.refused) == [0, 1]
        assert "agreed to" in round.refused[0]
        assert round.refused[1] == "weights that are not a number"
        assert round.missing == [2]
    entries = run.entries()
    assert len(entries) == 20
    assert {entry.client for entry in entries if entry.cents} == {3}
    assert sum(entry.cents for entry in entries) == 5 * paid


def test_who_lies_about_its_commitment_is_refused(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        if message.metadata.message_type.startswith("train") and client == 1:
            lie(reply, volume=10, committed=10)
        return reply

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert all("which it has not" in round.refused[1] for round in run.rounds)
    assert sum(entry.cents for entry in run.entries() if entry.client == 1) == 0


class KilledError(Exception):
    """The server is gone."""


@pytest.mark.parametrize("moment", [0, 7, 13, 19])
def test_a_server_that_was_killed_goes_on(tmp_path: Path, moment: int) -> None:
    trained = 0

    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        nonlocal trained
        if message.metadata.message_type.startswith("train"):
            if trained == moment:
                trained += 1
                raise KilledError
            trained += 1
        return answer()

    whole = Run(tmp_path / "whole")
    first = Run(tmp_path / "killed", meddle=meddle)
    with pytest.raises(KilledError):
        first.start()
    again = Run(tmp_path / "killed")
    result, expected = again.start(), whole.start()
    ours, theirs = wire.from_arrays(result.arrays), wire.from_arrays(expected.arrays)
    assert ours["weights"].tobytes() == theirs["weights"].tobytes()
    assert again.entries() == whole.entries()


def test_a_message_twice_changes_nothing_twice(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        answer()
        return answer()

    once, twice = Run(tmp_path / "once"), Run(tmp_path / "twice", meddle=meddle)
    one, two = once.start(), twice.start()
    ours, theirs = wire.from_arrays(one.arrays), wire.from_arrays(two.arrays)
    assert ours["weights"].tobytes() == theirs["weights"].tobytes()
    assert once.entries() == twice.entries()


def test_who_is_gone_for_good_is_planned_without(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        training = message.metadata.message_type.startswith("train")
        late = training and wire.round_of(message.content) >= 2
        return None if client == 1 and (late or run.strategy.round >= 2) else answer()

    run = Run(tmp_path, "game.num_rounds=12", meddle=meddle)
    run.start()
    assert run.strategy.deal is not None
    assert run.strategy.deal.first_round == 5  # missed 2, 3 and 4
    assert sorted(run.strategy.deal.hashes) == [0, 2, 3]
    assert run.strategy.deal.residual <= 1e-3
    assert [round.missing for round in run.rounds] == [[]] * 2 + [[1]] * 3 + [[]] * 7
    assert [len(round.claims) for round in run.rounds] == [4] * 2 + [3] * 10
    before, after = run.rounds[4], run.rounds[5]
    assert after.cents == round_cents(run.strategy.deal.payment)
    assert {claim.client for claim in after.claims} == {0, 2, 3}
    assert sum(claim.volume for claim in after.claims) > 0.5 * sum(claim.volume for claim in before.claims)
    paid = [entry.cents for entry in run.entries() if entry.client == 1]
    assert [cents > 0 for cents in paid] == [True] * 2 + [False] * 3


def test_who_misses_a_round_comes_back(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        training = message.metadata.message_type.startswith("train")
        return None if client == 1 and training and wire.round_of(message.content) == 2 else answer()

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert [round.missing for round in run.rounds] == [[], [], [1], [], []]
    planned = train(load(None, SMALL)).records
    assert [claim.volume for claim in run.rounds[4].claims] == planned[4].volumes  # made up for
    assert all(not round.refused for round in run.rounds)


def test_a_client_at_another_node(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        training = message.metadata.message_type.startswith("train")
        if training and client == 2 and wire.round_of(message.content) == 1:
            run.grid.move(2, 5555)  # its SuperNode was killed and starts again
            return None
        return answer()

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert [round.missing for round in run.rounds] == [[], [2], [], [], []]


def test_a_node_with_another_key_is_not_that_client(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        if message.metadata.message_type == wire.HELLO and message.metadata.dst_node_id == 5555:
            hello: Any = reply.content[wire.RECORD]
            hello["key"] = b"x" * 32
        if message.metadata.message_type.startswith("train") and wire.round_of(message.content) == 1:
            run.grid.nodes[5555] = 2
            run.grid.move(2, 5555, keep=True)
        return reply

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert all(not round.missing and not round.refused for round in run.rounds)
    assert 5555 not in run.strategy.clients


def test_killed_between_paying_and_keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run(tmp_path / "killed")
    keep = first.strategy._keep

    def killed(arrays: Any) -> None:
        if first.strategy.round == 3:
            raise KilledError
        keep(arrays)

    monkeypatch.setattr(first.strategy, "_keep", killed)
    with pytest.raises(KilledError):
        first.start()
    assert len({entry.round for entry in first.entries()}) == 3  # paid, and not known to be over
    again, whole = Run(tmp_path / "killed"), Run(tmp_path / "whole")
    one, two = again.start(), whole.start()
    assert again.entries() == whole.entries()
    ours, theirs = wire.from_arrays(one.arrays), wire.from_arrays(two.arrays)
    assert ours["weights"].tobytes() == theirs["weights"].tobytes()


def test_a_strategy_of_flower_s_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.strategy.strategy = FedAvg(fraction_evaluate=0.0)
    messages: list[Message] = []
    configure = FedAvg.configure_train

    def with_pull(self: Any, *arguments: Any) -> list[Message]:
        messages[:] = list(configure(self, *arguments))
        for message in messages:  # what DUFL's own client app reads
            message.content["pull"] = wire.to_arrays({})
            config: Any = message.content["config"]
            config["strength"] = 0.0
        return messages

    run.strategy.strategy.configure_train = with_pull.__get__(run.strategy.strategy)  # type: ignore[method-assign]
    result = run.start()
    alone = train(load(None, SMALL))
    ours = wire.from_arrays(result.arrays)["weights"]
    assert run.rounds[-1].metrics["accuracy"] == pytest.approx(alone.accuracy, abs=0.01)
    assert np.abs(ours).max() > 0
    assert sum(entry.cents for entry in run.entries()) == 5 * round_cents(alone.records[0].payment)


def test_who_is_silent_in_the_negotiation_is_left_out(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        return None if client == 1 and message.metadata.message_type == wire.BEST_RESPONSE else answer()

    run = Run(tmp_path, negotiated=True, meddle=meddle)
    run.start()
    assert run.strategy.deal is not None
    assert sorted(run.strategy.deal.hashes) == [0, 2, 3]
    assert run.strategy.deal.residual <= 1e-3
    assert {entry.client for entry in run.entries()} == {0, 2, 3}
    assert all(len(round.claims) == 3 and not round.missing for round in run.rounds)


def test_nobody_answers(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        return None if message.metadata.message_type == wire.BEST_RESPONSE else answer()

    run = Run(tmp_path, negotiated=True, meddle=meddle)
    with pytest.raises(DuflError, match=r"clients .* must answer before training, but did not"):
        run.start()


def test_an_app_directory(tmp_path: Path, dufl_command: Any) -> None:
    code, _, err = dufl_command("flower", "new", str(tmp_path / "My App"), "--set", "clients.count=3")
    assert (code, err) == (0, "")
    project = tomllib.loads((tmp_path / "My App" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    told = project["tool"]["flwr"]["app"]["config"]
    assert load(Path(told["config"])).game.clients.size == 3
    code, _, err = dufl_command("flower", "new", str(tmp_path / "My App"))
    assert (code, err) == (2, f"error: DIR must be new or empty, got {tmp_path / 'My App'}\n")


def test_a_rehearsal(dufl_command: Any) -> None:
    code, out, err = dufl_command("flower", "rehearse", "--draws", "2", "--json", "--set", "num_rounds=20")
    assert (code, err) == (0, "")
    for row in json.loads(out):
        assert row["phases"] <= 12
        assert row["residual"] <= 1e-3
        assert row["server_cost"] == pytest.approx(row["server_cost_known"], rel=5e-3)


def test_the_run_directory_after_a_kill_is_that_of_a_whole_run(tmp_path: Path) -> None:
    trained = 0

    def meddle(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        nonlocal trained
        trained += message.metadata.message_type.startswith("train")
        if trained == 11:
            trained += 1
            raise KilledError
        return answer()

    def go(folder: Path, meddle: Meddle | None = None) -> None:
        (folder / "server").mkdir(parents=True, exist_ok=True)
        path = folder / "config.toml"
        path.write_text(load(None, SMALL).to_toml())
        grid = InProcessGrid(client_app(lambda _: (path, folder / "clients")), 4, meddle)
        app = server_app(lambda _: (path, folder / "server", False, 60.0))
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
