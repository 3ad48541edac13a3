"""`DataUpdateStrategy` behaves as Flower's users expect of a strategy: the same app with and without it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result

import dufl
from dufl.data.samples import Samples
from dufl.flower.client_mod import DataUpdateMod
from dufl.flower.client_store import ClientProfile
from dufl.flower.in_process import Answer, InProcessGrid, Meddle, is_training
from dufl.flower.messages import from_arrays, to_arrays
from dufl.flower.run_identity import IfFinished
from dufl.flower.strategy import DataUpdateStrategy
from dufl.game.negotiation import Announcement

CLIENTS, ROUNDS, SAMPLES = 4, 4, 20  # a mean of four is exact in any order
GAME = dufl.Game(clients=dufl.Clients.draw(CLIENTS, initial_volume=float(SAMPLES)), num_rounds=ROUNDS)
STATIC = Announcement(
    dufl.Offer(payment=0.0, conservation_rate=1.0), np.full(ROUNDS, float(CLIENTS * SAMPLES))
)


class Zeros:
    """A stream of equal samples."""

    def collect(self, count: int, round: int) -> Samples:
        return Samples(np.zeros((count, 2), np.float32), np.zeros(count, np.int64))

    def resume(self, round: int) -> None:
        """There is no state."""


def train(message: Message, context: Context) -> Message:
    """Adds its own number to the weights, and says what it was sent."""
    weights = from_arrays(message.content["arrays"])["w"]
    client, config = int(context.node_config["partition-id"]), message.content["config"]
    assert isinstance(config, ConfigRecord)
    metrics = MetricRecord(
        {"num-examples": SAMPLES, "client": client, "told": int(str(config["server-round"]))}
    )
    content = RecordDict({"arrays": to_arrays({"w": weights + client}), "metrics": metrics})
    return Message(content, reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    weights = from_arrays(message.content["arrays"])["w"]
    metrics = MetricRecord({"num-examples": SAMPLES, "size": float(np.abs(weights).sum())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def client_app(folder: Path | None) -> ClientApp:
    """The app as it is without data update, or with the mod of DUFL."""
    app = ClientApp()
    if folder is not None:
        update = DataUpdateMod(
            lambda context: ClientProfile.from_context(context, lambda _: Zeros(), SAMPLES, 1e-3, 1e-4)
        )
        app = update.register(ClientApp(mods=[update]))
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def initial() -> ArrayRecord:
    return to_arrays({"w": np.arange(5.0)})


class Told(FedAvg):
    """Flower's FedAvg, which remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__(min_train_nodes=2, min_evaluate_nodes=2, min_available_nodes=2)
        self.summaries = 0
        self.configs: list[ConfigRecord] = []
        self.errors: list[int] = []

    def summary(self) -> None:
        self.summaries += 1

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        self.configs.append(config)
        config["seen"] = server_round  # what a strategy notes there is there in the next round
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        given = list(replies)
        self.errors.append(sum(reply.has_error() for reply in given))
        return super().aggregate_train(server_round, given)


def run(
    folder: Path | None,
    meddle: Meddle | None = None,
    stop_after: int | None = None,
    if_finished: IfFinished = "error",
) -> tuple[Result, Told, list[int]]:
    inner, evaluated = Told(), []

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(server_round)
        if stop_after is not None and server_round > stop_after:
            raise KeyboardInterrupt
        return MetricRecord({"sum": float(from_arrays(arrays)["w"].sum())})

    config = {} if folder is None else {"folder": str(folder / "clients")}
    grid = InProcessGrid(client_app(folder), CLIENTS, meddle, config)
    strategy = (
        inner
        if folder is None
        else DataUpdateStrategy(
            inner, GAME, folder / "server", plan=STATIC, max_missed_rounds=9, if_finished=if_finished
        )
    )
    result = strategy.start(
        grid,
        initial(),
        ROUNDS,
        train_config=ConfigRecord(),
        evaluate_config=ConfigRecord(),
        evaluate_fn=evaluate_fn,
    )
    return result, inner, evaluated


def plain(result: Result) -> dict[str, Any]:
    kinds = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
    tables = {kind: {r: dict(m) for r, m in getattr(result, kind).items()} for kind in kinds}
    return tables | {"w": from_arrays(result.arrays)["w"].tolist()}


def test_the_same_app_has_the_same_result_with_and_without_the_wrapper(tmp_path: Path) -> None:
    stock, ours = run(None), run(tmp_path)
    assert plain(stock[0]) == plain(ours[0])
    assert sorted(ours[0].evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]
    assert stock[2] == ours[2] == [0, 1, 2, 3, 4]
    assert stock[1].summaries == ours[1].summaries == 1
    assert all(config is ours[1].configs[0] for config in ours[1].configs)
    assert dict(stock[1].configs[0]) == dict(ours[1].configs[0])


def test_errors_reach_the_strategy_as_without_the_wrapper(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        if client == 1 and is_training(message):
            return Message(Error(code=0, reason="out of memory"), reply_to=message)
        return answer()

    stock, ours = run(None, meddle), run(tmp_path, meddle)
    assert stock[1].errors == ours[1].errors == [1] * ROUNDS
    assert plain(ours[0])["w"] == pytest.approx(plain(stock[0])["w"], rel=1e-12)


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_resumed_run_has_the_results_of_all_rounds(tmp_path: Path, stop_after: int) -> None:
    whole = run(tmp_path / "whole")[0]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", stop_after=stop_after)
    result, _, evaluated = run(tmp_path / "parts")
    assert evaluated == list(range(stop_after + 1, ROUNDS + 1))
    assert plain(result) == plain(whole)
    again, inner, evaluated = run(tmp_path / "parts", if_finished="return")
    assert plain(again) == plain(whole)
    assert evaluated == inner.configs == []
