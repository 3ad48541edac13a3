"""Rounds in which only some clients train: what each is paid on average; every round adds up to R."""

import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from test_flower_contract import Zeros

import dufl
from dufl.flower.algorithm_strategy import AlgorithmStrategy
from dufl.flower.client_mod import DataUpdateMod
from dufl.flower.client_store import ClientProfile
from dufl.flower.in_process import Answer, InProcessGrid, Meddle, is_training
from dufl.flower.ledger import Entry, Ledger
from dufl.flower.ledger_tables import ledger_summary
from dufl.flower.messages import from_arrays, round_of, to_arrays
from dufl.flower.payment import NOT_SELECTED
from dufl.flower.server_store import Round
from dufl.flower.strategy import DataUpdateStrategy
from dufl.game.negotiation import Announcement
from dufl.learning.settings import Training

ROUNDS, PAYMENT = 80, 10.0
UNEQUAL, EQUAL = (10, 20, 30, 40, 50, 30), (30,) * 6
DEAR = 100.0  # a collection cost at which nobody collects: volumes stay as they are


def client_app(volumes: Sequence[int], folder: Path) -> ClientApp:
    def profile(context: Context) -> ClientProfile:
        client = int(context.node_config["partition-id"])
        return ClientProfile(client, folder / f"client-{client}.sqlite", Zeros(), volumes[client], DEAR, 0.0)

    def train(message: Message, context: Context) -> Message:
        arrays = from_arrays(message.content["arrays"])
        records = RecordDict({"arrays": to_arrays(arrays), "metrics": MetricRecord({"num-examples": 1})})
        return Message(records, reply_to=message)

    update = DataUpdateMod(profile)
    app = update.register(ClientApp(mods=[update]))
    app.train()(train)
    return app


def strategy_of(kind: str, count: int) -> Strategy:
    if kind == "fedavg":
        random.seed(1)  # Flower samples with it
        return FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    selection: Any = "age" if kind == "age" else "random"
    training = Training(fraction_train=0.5, client_selection=selection, seed=1)
    return AlgorithmStrategy(training, np.zeros(2, np.float32), count)


def run(
    folder: Path, kind: str, volumes: Sequence[int], meddle: Meddle | None = None, rounds: int = ROUNDS
) -> tuple[list[Entry], list[Round]]:
    count, found = len(volumes), []
    clients = dufl.Clients(list(map(float, volumes)), DEAR, 0.0)
    game = dufl.Game(clients=clients, num_rounds=rounds)
    offer = dufl.Offer(payment=PAYMENT, conservation_rate=1.0)
    plan = Announcement(offer, np.full(rounds, float(sum(volumes))))
    strategy = DataUpdateStrategy(
        strategy_of(kind, count), game, folder / "server", plan=plan, on_round_end=lambda r: found.append(r)
    )
    grid = InProcessGrid(client_app(volumes, folder / "clients"), count, meddle)
    arrays = {"weights": np.zeros(2, np.float32), "model_buffers": np.zeros(1, np.float32)}
    strategy.start(grid, to_arrays(arrays), rounds)
    with Ledger(folder / "server" / "ledger.sqlite") as ledger:
        ledger.check()
        return ledger.entries(), found


def expected(volumes: Sequence[int], size: int) -> np.ndarray:
    """The mean payment of a round in cents, by counting all selections of `size` clients."""
    every = list(combinations(range(len(volumes)), size))
    total = np.zeros(len(volumes))
    for chosen in every:
        for client in chosen:
            total[client] += 100 * PAYMENT * volumes[client] / sum(volumes[c] for c in chosen)
    return total / len(every)


@pytest.mark.parametrize("kind", ["own", "fedavg"])
def test_every_round_adds_up_and_the_means_are_as_announced(tmp_path: Path, kind: str) -> None:
    entries, rounds = run(tmp_path, kind, UNEQUAL)
    paid = np.zeros((ROUNDS, len(UNEQUAL)))
    for entry in entries:
        paid[entry.round, entry.client] = entry.owed
        assert (entry.reason == NOT_SELECTED) == (entry.owed == 0) == (entry.claimed == 0)
    assert (paid.sum(axis=1) == 100 * PAYMENT).all()
    assert ((paid > 0).sum(axis=1) == 3).all()
    assert all(len(round.unselected) == 3 and not round.missing for round in rounds)
    error = paid.std(axis=0, ddof=1) / np.sqrt(ROUNDS)
    assert (np.abs(paid.mean(axis=0) - expected(UNEQUAL, 3)) < 4 * error).all()
    announced = 100 * PAYMENT * np.array(UNEQUAL) / sum(UNEQUAL)
    assert (np.abs(paid.mean(axis=0) - announced) < 4 * error + 0.2 * announced).all()
    assert not ledger_summary(entries)["refused"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("volumes", [UNEQUAL, EQUAL])
def test_the_bias_of_a_ratio(volumes: Sequence[int], size: int) -> None:
    """About m/(m + d − 1) of what was announced, where d is the client's volume relative to the mean."""
    announced = 100 * PAYMENT * np.array(volumes) / sum(volumes)
    relative = announced / announced.mean()
    others = (len(volumes) - relative) / (len(volumes) - 1)
    found = expected(volumes, size)
    assert found.sum() == pytest.approx(100 * PAYMENT)
    assert found / announced == pytest.approx(size / (relative + (size - 1) * others), rel=0.15)
    if volumes == EQUAL or size == len(volumes):
        assert found == pytest.approx(announced)


def test_who_was_not_selected_in_between_has_still_missed_its_rounds(tmp_path: Path) -> None:
    """A client that is gone is removed after three rounds that it was selected for."""

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        if client == 2 and is_training(message):
            asked.append(round_of(message.content))
            return None
        return answer()

    asked: list[Any] = []
    entries, rounds = run(tmp_path, "own", EQUAL, meddle, rounds=20)
    assert len(asked) == 3
    assert asked != list(range(asked[0], asked[0] + 3))  # not in a row
    reasons = [entry.reason for entry in entries if entry.client == 2 and entry.round <= asked[-1]]
    assert reasons.count("no reply") == 3
    assert set(reasons) == {"no reply", NOT_SELECTED}
    assert all(round.units == 100 * PAYMENT for round in rounds[: asked[-1] + 1])


def by_index(volumes: Sequence[int], rounds: int, size: int = 3) -> list[list[int]]:
    """Who is selected in every round: the highest volume·age·(age + 1), in plain Python."""
    last, chosen = dict.fromkeys(range(len(volumes)), -1), []
    for t in range(rounds):
        order = sorted(last, key=lambda k: (-volumes[k] * (t - last[k]) * (t - last[k] + 1), k))
        chosen.append(sorted(order[:size]))
        last |= dict.fromkeys(order[:size], t)
    return chosen


def selected(rounds: list[Round], number: int) -> list[list[int]]:
    return [[k for k in range(number) if k not in round.unselected] for round in rounds]


@pytest.mark.parametrize("volumes", [UNEQUAL, EQUAL])
def test_selection_by_age_is_that_of_the_committed_volumes(tmp_path: Path, volumes: Sequence[int]) -> None:
    entries, rounds = run(tmp_path, "age", volumes, rounds=20)
    assert selected(rounds, len(volumes)) == by_index(volumes, 20)
    assert all(round.units == 100 * PAYMENT for round in rounds)
    paid = {entry.client for entry in entries if entry.owed}
    assert paid == set(range(len(volumes)))


def test_a_client_whose_updates_are_refused_does_not_keep_others_from_training(tmp_path: Path) -> None:
    """It has replied: it is selected as often as others are."""

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == 2 and is_training(message):
            broken = {name: array * np.nan for name, array in from_arrays(reply.content["arrays"]).items()}
            reply.content["arrays"] = to_arrays(broken)
        return reply

    _, rounds = run(tmp_path, "age", EQUAL, meddle, rounds=20)
    assert selected(rounds, len(EQUAL)) == by_index(EQUAL, 20)
    assert sum(2 in round.refused for round in rounds) == 10


def test_a_client_that_is_gone_is_selected_again_until_it_is_removed(tmp_path: Path) -> None:
    asked: list[Any] = []

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        if client == 2 and is_training(message):
            asked.append(round_of(message.content))
            return None
        return answer()

    _, rounds = run(tmp_path, "age", EQUAL, meddle, rounds=20)
    assert asked == [0, 1, 2]
    later = [round.claims for round in rounds[3:]]
    assert all(len(claims) == 3 for claims in later)
    for begin in range(len(later) - 1):
        trained = {claim.client for claims in later[begin : begin + 2] for claim in claims}
        assert trained == {0, 1, 3, 4, 5}


def test_a_client_that_is_not_connected_is_not_selected() -> None:
    """Otherwise it would take the place of others for as long as it is away."""

    class Nodes:
        def get_node_ids(self) -> list[int]:
            return [10, 11, 13]

    strategy: Any = strategy_of("age", 4)
    strategy.set_clients({10: 0, 11: 1, 12: 2, 13: 3})
    arrays = to_arrays({"weights": np.zeros(2, np.float32), "model_buffers": np.zeros(1, np.float32)})
    called = []
    for server_round in range(1, 4):
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), Nodes())
        called.append([message.metadata.dst_node_id for message in messages])
        strategy.add_replies(server_round - 1, [node - 10 for node in called[-1]])
    assert called == [[10, 11], [10, 13], [10, 11]]
