"""Replies with other records or metrics than those of most clients: refused, and the run goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, FedMedian, Result
from test_flower_contract import CLIENTS, GAME, ROUNDS, STATIC, client_app, initial

from dufl.flower import messages
from dufl.flower.in_process import Answer, InProcessGrid, Meddle, is_training
from dufl.flower.messages import from_arrays, to_arrays
from dufl.flower.strategy import DataUpdateStrategy
from flower_grid import Run

CHEAT = 1
Spoil = Callable[[Message], None]


def metrics(reply: Message) -> MetricRecord:
    (record,) = reply.content.metric_records.values()
    return record


def without_metrics(reply: Message) -> None:
    del reply.content["metrics"]


def two_records_of_metrics(reply: Message) -> None:
    reply.content["more"] = MetricRecord({"num-examples": 5})


def without_a_number_of_examples(reply: Message) -> None:
    del metrics(reply)["num-examples"]


def one_metric_more(reply: Message) -> None:
    metrics(reply)["extra"] = 1.0


def a_list(reply: Message) -> None:
    metrics(reply)["num-steps"] = [1, 2]


def another_name(reply: Message) -> None:
    reply.content["model"] = reply.content["arrays"]
    del reply.content["arrays"]


def one_record_per_array(reply: Message) -> None:
    arrays = from_arrays(reply.content["arrays"])
    del reply.content["arrays"]
    for name, array in arrays.items():
        reply.content[f"the {name}"] = to_arrays({name: array})


def no_number_before_numbers(reply: Message) -> None:
    """The weights that are checked last are valid; those that would be aggregated are not."""
    arrays = from_arrays(reply.content["arrays"])
    reply.content["arrays"] = to_arrays({name: np.full_like(array, np.nan) for name, array in arrays.items()})
    reply.content["valid"] = to_arrays(arrays)


def wide_numbers(reply: Message) -> None:
    arrays = from_arrays(reply.content["arrays"])
    reply.content["arrays"] = to_arrays({n: array.astype(np.longdouble) for n, array in arrays.items()})


ALL = [
    *(without_metrics, two_records_of_metrics, without_a_number_of_examples, one_metric_more, a_list),
    *(another_name, one_record_per_array, no_number_before_numbers, wide_numbers),
]


def spoiling(spoil: Spoil, is_meant: Callable[[Message], bool] = is_training) -> Meddle:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == CHEAT and is_meant(message):
            spoil(reply)
        return reply

    return meddle


@pytest.mark.parametrize("inner", [None, FedAvg, FedMedian])
@pytest.mark.parametrize("spoil", ALL)
def test_an_odd_reply_is_refused_and_the_run_goes_on(tmp_path: Path, spoil: Spoil, inner: Any) -> None:
    run = Run(tmp_path, "game.num_rounds=2", meddle=spoiling(spoil))
    if inner is not None:
        run.strategy.strategy = inner(fraction_evaluate=0.0)
    result = run.start()
    assert [list(round.refused) for round in run.rounds] == [[CHEAT], [CHEAT]]
    assert all(len(round.claims) == 3 for round in run.rounds)
    assert not any(entry.owed for entry in run.entries() if entry.client == CHEAT)
    assert np.isfinite(from_arrays(result.arrays)["weights"]).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5, 2**62])
def test_a_number_of_steps_that_cannot_be(tmp_path: Path, value: float) -> None:
    def spoil(reply: Message) -> None:
        metrics(reply)["num-steps"] = value

    run = Run(tmp_path, "game.num_rounds=2", meddle=spoiling(spoil))
    run.start()
    assert [len(round.claims) for round in run.rounds] == [4, 4]


@pytest.mark.parametrize("inner", [None, FedAvg])
def test_the_only_reply_of_a_round_is_odd(tmp_path: Path, inner: Any) -> None:
    """There are no others to compare it with."""

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        alone = is_training(message) and messages.round_of(message.content) == 1
        return spoiling(without_metrics)(client, message, answer) if client == CHEAT or not alone else None

    run = Run(tmp_path, "game.num_rounds=3", meddle=meddle)
    if inner is not None:
        run.strategy.strategy = inner(fraction_evaluate=0.0)
    run.start()
    assert [len(round.claims) for round in run.rounds] == [3, 0, 3]


def start(folder: Path, inner: FedAvg, meddle: Meddle) -> Result:
    """The app of a user who has never heard of DUFL, with its mod."""
    grid = InProcessGrid(client_app(folder), CLIENTS, meddle, {"folder": str(folder / "clients")})
    strategy = DataUpdateStrategy(inner, GAME, folder / "server", plan=STATIC)
    configs: Any = {"train_config": ConfigRecord(), "evaluate_config": ConfigRecord()}
    return strategy.start(grid, initial(), ROUNDS, **configs)


def test_whatever_a_strategy_weights_by_is_the_claimed_volume(tmp_path: Path) -> None:
    def spoil(reply: Message) -> None:
        metrics(reply)["client"] = 10**9

    result = start(tmp_path, FedAvg(weighted_by_key="client", fraction_evaluate=0.0), spoiling(spoil))
    moved = from_arrays(result.arrays)["w"] - from_arrays(initial())["w"]
    assert moved == pytest.approx(ROUNDS * np.mean(range(CLIENTS)))


def is_evaluation(message: Message) -> bool:
    return message.metadata.message_type.startswith("evaluate")


def without_any_weight(reply: Message) -> None:
    """The weights of all add up to 0."""
    metrics(reply)["num-examples"] = -60


def weights_as_evaluation(reply: Message) -> None:
    reply.content["metrics"] = ArrayRecord({})


@pytest.mark.parametrize(
    "spoil",
    [
        *(without_metrics, two_records_of_metrics, without_a_number_of_examples, one_metric_more),
        *(without_any_weight, weights_as_evaluation),
    ],
)
def test_an_odd_evaluation_is_not_used(tmp_path: Path, spoil: Spoil) -> None:
    inner = FedAvg(min_train_nodes=2, min_evaluate_nodes=2, min_available_nodes=2)
    result = start(tmp_path, inner, spoiling(spoil, is_evaluation))
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3, 4]
    assert all("size" in each for each in result.evaluate_metrics_clientapp.values())
