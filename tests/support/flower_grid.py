"""Flower's client and server apps in one process: real messages, real apps, no transport.

As in Flower's simulation, every message is answered by an unpickled copy of the client app.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity
from ray import cloudpickle as ray_cloudpickle

from dufl.flower.app import Runtime, client_app, evaluation, make_strategy
from dufl.flower.ledger import Entry, Ledger
from dufl.flower.monitoring import Observer
from dufl.flower.run_identity import IfFinished
from dufl.flower.server_store import Round
from loading import load

cloudpickle: Any = ray_cloudpickle  # Flower pickles apps with it
Answer = Callable[[], Message]
Meddle = Callable[[int, Message, Answer], Message | None]

SMALL = ("game.num_rounds=5", "clients.count=4", "clients.initial_volume=60", "training.local_epochs=2")


class InProcessGrid(Grid):
    """Nodes of a client app; `meddle(client, message, answer)` returns the reply, or None for no reply."""

    def __init__(
        self,
        app: ClientApp,
        num_clients: int,
        meddle: Meddle | None = None,
        run_config: dict[str, Any] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self._app = cloudpickle.dumps(app)
        self.nodes = {1000 + 7 * (num_clients - k): k for k in range(num_clients)}
        self.meddle = meddle or (lambda client, message, answer: answer())
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self._waiting: dict[str, Message] = {}  # replies that have not been pulled yet
        self._run = FlowerRun.create_empty(run_id=1)
        self._run_config = run_config or {}
        self._contexts = {node: self._context(node, k) for node, k in self.nodes.items()}

    def move(self, client: int, node: int, keep: bool = False) -> None:
        """Restart a client at another node; with `keep` both nodes claim to be this client."""
        if not keep:
            self.nodes = {old: k for old, k in self.nodes.items() if k != client}
        self.nodes[node] = client
        self._contexts[node] = self._context(node, client)

    def _context(self, node: int, client: int) -> Context:
        return Context(1, node, {"partition-id": client}, RecordDict(), self._run_config)

    def set_run(self, run: FlowerRun) -> None:
        self._run = run

    @property
    def run(self) -> FlowerRun:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(
            content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl
        )

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            arrived = copy.deepcopy(message)
            names.append(f"message-{len(self.sent)}")
            arrived.metadata.__dict__["_message_id"] = names[-1]
            self.sent.append(arrived)
            node = message.metadata.dst_node_id
            reply = self.meddle(self.nodes[node], arrived, lambda m=arrived, n=node: self._answer(m, n))  # type: ignore[misc]
            if reply is not None:
                self.received.append(copy.deepcopy(reply))
                self._waiting[names[-1]] = reply
        return names

    def _answer(self, arrived: Message, node: int) -> Message:
        try:
            app: ClientApp = cloudpickle.loads(self._app)
            return app(copy.deepcopy(arrived), self._contexts[node])
        except Exception as error:  # as a SuperNode does
            return Message(Error(code=0, reason=str(error)), reply_to=arrived)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._waiting.pop(name) for name in message_ids if name in self._waiting]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages)[::-1])  # replies come in any order


class Run:
    """A run on Flower in this process."""

    def __init__(
        self,
        folder: Path,
        *changes: str,
        negotiate: bool = False,
        masked: bool = True,
        min_others: int = 0,
        meddle: Meddle | None = None,
        max_missed_rounds: int = 3,
        arrival_timeout: float = 600.0,
        observers: Sequence[Observer] = (),
        if_finished: IfFinished = "error",
    ) -> None:
        config = load(None, [*SMALL, *changes])
        folder.mkdir(exist_ok=True)
        path = folder / "config.toml"
        if not path.exists():
            path.write_text(config.to_toml())
        self.path = path
        self.folder = folder
        self.config = config
        self.runtime = Runtime(config)
        app = client_app(lambda _: (path, folder / "clients"))
        privacy = {"min-others": min_others, "allow-unmasked": not masked}
        self.grid = InProcessGrid(app, config.game.clients.size, meddle, privacy)
        self.rounds: list[Round] = []
        self.strategy, self.arrays = make_strategy(
            self.runtime,
            folder / "server",
            negotiate=negotiate,
            masked=masked,
            on_round_end=self.rounds.append,
            max_missed_rounds=max_missed_rounds,
            arrival_timeout=arrival_timeout,
            observers=observers,
            if_finished=if_finished,
        )

    def start(self) -> Any:
        rounds = self.config.game.num_rounds
        return self.strategy.start(
            self.grid, self.arrays, num_rounds=rounds, evaluate_fn=evaluation(self.runtime)
        )

    def entries(self) -> list[Entry]:
        with Ledger(self.folder / "server" / "ledger.sqlite") as ledger:
            ledger.check()
            return ledger.entries()


def is_training(message: Message) -> bool:
    """Whether a message is a request to train."""
    return message.metadata.message_type.startswith("train")


def in_cents(payment: float) -> int:
    """A payment in cents."""
    return round(100 * payment)
