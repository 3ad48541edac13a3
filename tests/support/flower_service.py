"""A small service on Flower in one process: real messages, apps and files, and a model of three numbers.

Nodes can join, leave and lose messages while it runs. The server can be killed at any message.
"""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import dufl
from dufl.data.samples import Samples
from dufl.flower.client_mod import DataUpdateMod
from dufl.flower.client_store import ClientProfile
from dufl.flower.in_process import InProcessGrid, Meddle
from dufl.flower.ledger import Entry, Ledger
from dufl.flower.messages import from_arrays, round_of, to_arrays
from dufl.flower.server_store import Round
from dufl.flower.strategy import DataUpdateStrategy

SAMPLES = 40  # that a client begins with


class Counting:
    """A stream whose samples are the number of the round in which they were collected."""

    def collect(self, count: int, round: int) -> Samples:
        return Samples(np.full((count, 1), round, np.float32), np.full(count, round % 3 if round > 0 else 0))

    def resume(self, collected: int) -> None:
        """There is no state."""


def profile(context: Context, **others: Any) -> ClientProfile:
    """Clients with other numbers have other costs."""
    client = int(context.node_config["partition-id"])
    costs = 4e-4 * (1 + 0.2 * (client % 5)), 2e-5 * (1 + 0.3 * (client % 3))
    return ClientProfile.from_context(context, lambda _: Counting(), SAMPLES, *costs, **others)


def make_app(**others: Any) -> ClientApp:
    """An app that also checks that every sample is as old as its content says."""
    update = DataUpdateMod(lambda context: profile(context, **others))
    app = update.register(ClientApp(mods=[update]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if "crash" in message.content:
            raise RuntimeError("crashed")
        held, round = update.snapshot, round_of(message.content)
        collected = held.samples.to_float()[:, 0].astype(int)
        wrong = (collected >= 0) & (held.ages != round - collected)
        if wrong.any():
            raise AssertionError(f"round {round}: {held.ages[wrong]} of {collected[wrong]}")
        weights = from_arrays(message.content["arrays"])["w"]
        arrays = to_arrays({"w": weights + 1.0 + int(context.node_config["partition-id"]) % 2})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": SAMPLES})})
        return Message(content, reply_to=message)

    return app


class ServiceGrid(InProcessGrid):
    """Keeps no messages, so that long services need little memory."""

    def __init__(self, app: ClientApp, clients: int, meddle: Meddle | None, config: dict[str, Any]) -> None:
        super().__init__(ClientApp(), clients, meddle, config)
        self._client_app = app
        self._count = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            arrived, node = copy.deepcopy(message), message.metadata.dst_node_id
            self._count += 1
            names.append(f"message-{self._count}")
            arrived.metadata.__dict__["_message_id"] = names[-1]
            if node not in self.nodes:
                continue
            reply = self.meddle(self.nodes[node], arrived, lambda m=arrived, n=node: self._answer(m, n))  # type: ignore[misc]
            if reply is not None:
                self._waiting[names[-1]] = reply
        return names

    def _answer(self, arrived: Message, node: int) -> Message:
        try:
            return self._client_app(arrived, self._contexts[node])
        except Exception as error:  # as a SuperNode does
            return Message(Error(code=0, reason=str(error)), reply_to=arrived)

    def forget(self) -> None:
        """Lose what is on its way, as if the server were killed."""
        self._waiting.clear()

    def leave(self, client: int) -> None:
        """Disconnect the node of a client."""
        self.nodes = {node: k for node, k in self.nodes.items() if k != client}


def service_game(window: int = 6, clients: int = 4, **others: Any) -> dufl.Game:
    known = dufl.Clients.draw(clients, initial_volume=float(SAMPLES))
    return dufl.Game(
        clients=known, num_rounds=window, horizon="endless", **{"payment_range": (0.0, 5.0)} | others
    )


class ServiceRun:
    """A service whose files are in a folder; make another one with the same folder to start it again."""

    def __init__(
        self,
        folder: Path,
        game: dufl.Game,
        *,
        grid: ServiceGrid | None = None,
        meddle: Meddle | None = None,
        app: ClientApp | None = None,
        on_round_end: Callable[[Round], None] = lambda _: None,
        **options: Any,
    ) -> None:
        self.folder = folder
        config = {"folder": str(folder / "clients"), "min-others": 0}
        self.grid = grid or ServiceGrid(app or make_app(), game.clients.size, meddle, config)
        self.rounds: list[Round] = []

        def on_end(round: Round) -> None:
            self.rounds.append(round)
            on_round_end(round)

        inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        options = {"arrival_timeout": 5.0} | options
        self.strategy = DataUpdateStrategy(inner, game, folder / "server", on_round_end=on_end, **options)

    @property
    def arrays(self) -> ArrayRecord:
        """The initial model."""
        return to_arrays({"w": np.zeros(3)})

    def start(self, num_rounds: int = 3) -> Any:
        return self.strategy.start(self.grid, self.arrays, num_rounds)

    def entries(self) -> list[Entry]:
        with Ledger(self.folder / "server" / "ledger.sqlite") as ledger:
            ledger.check()
            return ledger.entries()
