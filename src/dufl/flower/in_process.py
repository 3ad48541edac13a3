"""Flower's client and server apps in one process: real messages, real apps, no transport.

As in Flower's simulation, every message is answered by an unpickled copy of the client app.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity

Answer = Callable[[], Message]
Meddle = Callable[[int, Message, Answer], Message | None]


class InProcessGrid(Grid):
    """Nodes of a client app, in this process.

    Args:
        app: the client app.
        num_clients: the number of nodes.
        meddle: called as `meddle(client, message, answer)`; returns the reply, or None for no reply.
        run_config: the run configuration.

    Attributes:
        nodes: the number of the client at every node.
        sent: all messages of the server.
        received: all replies.
    """

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
        """Set the run."""
        self._run = run

    @property
    def run(self) -> FlowerRun:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(
            content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl
        )

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        return sorted(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let the nodes answer messages; returns the ids of the messages."""
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
        """The replies to messages, as far as there are any."""
        return [self._waiting.pop(name) for name in message_ids if name in self._waiting]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies to messages, in no particular order."""
        return self.pull_messages(self.push_messages(messages)[::-1])


def is_training(message: Message) -> bool:
    """Whether a message is a request to train."""
    return message.metadata.message_type.startswith("train")
