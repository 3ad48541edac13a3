"""The mechanism on Flower's messages: results as on one machine, private costs, and no trust needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from dufl.experiment.config import load
from dufl.experiment.train import train
from dufl.flower import wire
from dufl.flower.app import World, client_app, evaluation, strategy_of
from dufl.flower.ledger import Ledger
from dufl.flower.server import Round
from dufl.game.plan import solve
from flower_grid import InProcessGrid, Meddle

SMALL = ("game.num_rounds=5", "clients.count=4", "clients.initial_volume=60", "training.epochs=2")


class Run:
    """A run on Flower in this process."""

    def __init__(
        self, folder: Path, *changes: str, negotiated: bool = False, meddle: Meddle | None = None
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
            self.world, folder / "server", negotiated=negotiated, watch=self.rounds.append
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

    run = Run(tmp_path, meddle=meddle)
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
