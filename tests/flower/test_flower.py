"""The mechanism on Flower's messages: results as on one machine, and costs that stay private."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from dufl.errors import InputError
from dufl.experiment.train import train
from dufl.flower import messages
from dufl.flower.in_process import Answer, is_training
from dufl.game.plan import solve
from dufl.learning.algorithm import LocalPenalty
from flower_grid import SMALL, Run, in_cents
from loading import load

TRIMMED = ("game.trim_start=true", "game.payment_range=[0,2]", "clients.initial_volume=300")
KEPT = "game.conservation_range=[0.6, 0.6]"
OLD = (*TRIMMED, "clients.initial_staleness=[1, 2.5, 4, 1]")


@pytest.mark.parametrize(
    "changes",
    [
        ("training.algorithm=fedavg",),
        ("training.algorithm=fedprox",),
        ("training.algorithm=feddyn",),
        TRIMMED,
        OLD,
        (*TRIMMED, "data.dirichlet_alpha=0.5", "data.discard=oldest"),
        (KEPT, "data.discard=reservoir", "age_weighting=exponential", "age_scale=1"),
        (KEPT, "data.dirichlet_alpha=0.5", "data.discard=class-balanced", "age_weighting=linear"),
    ],
)
def test_the_same_as_on_one_machine(tmp_path: Path, changes: tuple[str, ...]) -> None:
    run = Run(tmp_path, *changes)
    result = run.start()
    alone = train(load(None, [*SMALL, *changes]))
    assert len(run.rounds) == 5
    weights = messages.from_arrays(result.arrays)["weights"]
    assert alone.weights is not None
    flat = np.concatenate([array.ravel() for array in alone.weights.values()])
    assert weights.tobytes() == flat.tobytes()
    assert (alone.records[0].total_volume < run.config.game.clients.initial_total) == ("trim" in changes[0])
    for round, record in zip(run.rounds, alone.records, strict=True):
        assert [claim.volume for claim in round.claims] == record.volumes
        total = sum(claim.volume for claim in round.claims)
        age = sum(claim.volume * claim.mean_age for claim in round.claims) / total
        assert age == pytest.approx(record.mean_age)
        assert round.metrics["accuracy"] == record.accuracy
        assert round.units == in_cents(record.payment)


def test_negotiated_in_few_phases_and_as_good_as_known(tmp_path: Path) -> None:
    run = Run(tmp_path, "clients.seed=3", negotiate=True)
    run.strategy.game = run.strategy.game.replace(
        clients=load(None, [*SMALL, "clients.seed=99"]).game.clients
    )
    run.start()
    assert run.strategy.deal is not None
    known = solve(run.config.game)
    assert run.strategy.deal.phases <= 12
    assert run.strategy.deal.residual <= 1e-3
    assert run.strategy.deal.offer.payment == pytest.approx(known.payment, rel=0.05)
    assert run.strategy.deal.offer.conservation_rate == pytest.approx(known.conservation_rate, abs=0.05)


@pytest.mark.parametrize("masked", [True, False])
def test_clients_that_begin_with_less_are_negotiated_with(tmp_path: Path, masked: bool) -> None:
    run = Run(tmp_path, *TRIMMED, "clients.seed=3", negotiate=True, masked=masked)
    private = run.config.game
    guess = load(None, [*SMALL, "clients.seed=99", "clients.initial_volume=500"]).game.clients
    run.strategy.game = private.replace(clients=guess)
    run.start()
    deal, known = run.strategy.deal, solve(private)
    assert deal is not None
    assert deal.announcement.trim_start
    assert deal.residual <= 1e-3
    assert deal.offer.conservation_rate == pytest.approx(known.conservation_rate, abs=0.05)
    first = [claim.volume for claim in run.rounds[0].claims]
    assert first == pytest.approx(known.volume[0].tolist(), rel=0.05)
    assert [claim.committed for claim in run.rounds[0].claims] == first
    assert not run.rounds[0].refused


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
    run = Run(tmp_path, negotiate=True)
    run.start()
    people = run.config.game.clients
    private = np.concatenate([people.collection_cost, people.training_cost])
    for message in run.grid.received:
        for values in numbers_in(message):
            for cost in private:
                assert not np.isclose(values, cost, rtol=1e-6, atol=0).any()
    asked = [m for m in run.grid.received if m.metadata.message_type == messages.BEST_RESPONSE]
    assert asked
    for message in asked:
        volumes = messages.from_arrays(message.content["arrays"])["volumes"]
        assert volumes.dtype == np.uint64
        assert len(np.unique(volumes >> np.uint64(60))) > 8  # noise, not a number of samples


def test_a_strategy_of_flower_s_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.strategy.strategy = FedAvg(fraction_evaluate=0.0)
    outgoing: list[Message] = []
    configure = FedAvg.configure_train

    def with_penalty(self: Any, *arguments: Any) -> list[Message]:
        outgoing[:] = list(configure(self, *arguments))
        for message in outgoing:  # what DUFL's own client app reads
            message.content["penalty"] = messages.to_arrays({})
            config: Any = message.content["config"]
            config["strength"] = 0.0
        return outgoing

    run.strategy.strategy.configure_train = with_penalty.__get__(run.strategy.strategy)  # type: ignore[method-assign]
    result = run.start()
    alone = train(load(None, SMALL))
    ours = messages.from_arrays(result.arrays)["weights"]
    assert run.rounds[-1].metrics["accuracy"] == pytest.approx(alone.accuracy, abs=0.01)
    assert np.abs(ours).max() > 0
    assert sum(entry.owed for entry in run.entries()) == 5 * in_cents(alone.records[0].payment)


def test_an_app_directory(tmp_path: Path, dufl_command: Any) -> None:
    app, data = tmp_path / "My-App", tmp_path / "data"
    given = ("flower", "new", str(app), "--data", str(data))
    code, out, err = dufl_command(*given, "--set", "clients.count=3")
    assert (code, err) == (0, "")
    assert f"""--run-config 'data="{data}"'""" in out
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["project"]["name"] == "My-App"
    config = project["tool"]["flwr"]["app"]["config"]
    assert load(data / config["config"]).game.clients.size == 3
    assert config["min-others"] == 1  # two of three can still negotiate
    code, _, err = dufl_command(*given)
    assert (code, err) == (2, f"error: DIR must be new or empty, got {app}\n")
    code, _, err = dufl_command("flower", "new", str(tmp_path / "other"), "--data", str(data))
    assert (code, err) == (2, f"error: --data must be new or empty, got {data}\n")
    assert not (tmp_path / "other").exists()


def test_a_rehearsal(dufl_command: Any) -> None:
    code, out, err = dufl_command("flower", "rehearse", "--draws", "2", "--json", "--set", "num_rounds=20")
    assert (code, err) == (0, "")
    for row in json.loads(out):
        assert row["phases"] <= 12
        assert row["residual"] <= 1e-3
        assert row["server_cost"] == pytest.approx(row["server_cost_known"], rel=5e-3)


class InPlace:
    """An algorithm that changes what it is given."""

    def __init__(self, where: str) -> None:
        self.where = where

    def init(self, weights: Any, num_clients: int, training: Any) -> Any:
        return {"own": np.zeros(1, np.float32)}

    def penalty(self, state: Any, client: int) -> LocalPenalty:
        return LocalPenalty()

    def apply(self, state: Any, weights: Any, updates: Any) -> Any:
        update = next(iter(updates))
        given = {"weights": weights, "state": state["own"], "update": update.weights}
        given[self.where] += 1
        return weights, state


@pytest.mark.parametrize("where", ["weights", "state", "update"])
def test_an_algorithm_cannot_change_what_it_is_given(tmp_path: Path, where: str) -> None:
    run = Run(tmp_path, "game.num_rounds=2", "clients.count=2")
    inner: Any = run.strategy.strategy
    inner._algorithm = InPlace(where)
    inner.restore(inner._algorithm.init(None, 2, None))
    with pytest.raises(ValueError, match="read-only"):
        run.start()
    assert not (tmp_path / "server" / "ledger.sqlite").exists()  # the round is not over, and not paid


class FirstOnly(InPlace):
    """An algorithm that looks at one update and ends."""

    def apply(self, state: Any, weights: Any, updates: Any) -> Any:
        return next(iter(updates)).weights, state


def test_who_is_used_and_paid_does_not_depend_on_the_algorithm(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message:
        reply = answer()
        if client == 2 and is_training(message):
            arrays = messages.from_arrays(reply.content["arrays"])
            reply.content["arrays"] = messages.to_arrays(
                {name: array * np.nan for name, array in arrays.items()}
            )
        return reply

    found = []
    for name in ("all", "first"):
        run = Run(tmp_path / name, "game.num_rounds=2", meddle=meddle)
        if name == "first":
            inner: Any = run.strategy.strategy
            inner._algorithm = FirstOnly("")
        run.start()
        used = [[(claim.client, claim.volume) for claim in round.claims] for round in run.rounds]
        paid = [replace(entry, score=None, low=None, high=None) for entry in run.entries()]
        found.append((paid, used, [(round.refused, round.units) for round in run.rounds]))
    assert found[0] == found[1]
    assert [(entry.client, bool(entry.owed)) for entry in found[0][0][:4]] == [
        *[(0, True), (1, True), (2, False), (3, True)]
    ]


def test_a_state_that_could_not_be_read_again_is_refused_before_it_is_written(tmp_path: Path) -> None:
    run = Run(tmp_path, "game.num_rounds=2", "clients.count=2")
    inner: Any = run.strategy.strategy
    inner.state = lambda: {"own": np.array([{"an": "object"}])}
    with pytest.raises(InputError, match="an array of numbers"):
        run.start()
    assert not (tmp_path / "server" / "server.npz").exists()


@pytest.mark.parametrize("name", ["server.npz", "deal.json"])
@pytest.mark.parametrize(
    "damage", [lambda content: b"", lambda content: content[:-40], lambda content: b"{}"]
)
def test_damaged_files_of_the_server(tmp_path: Path, name: str, damage: Any) -> None:
    Run(tmp_path, "game.num_rounds=2", "clients.count=2").start()
    path = tmp_path / "server" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as caught:
        Run(tmp_path, "game.num_rounds=2", "clients.count=2", if_finished="return").start()
    assert caught.value.field == str(path)
