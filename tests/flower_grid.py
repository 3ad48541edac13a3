"""Flower's client and server apps in one process: real messages, real apps, no transport."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Meddle = Callable[[int, Message, Callable[[], Message]], Message | None]


class InProcessGrid(Grid):
    """Nodes of a client app; what `meddle` makes of (client, message, answer) is the reply, or silence."""

    def __init__(
        self,
        app: ClientApp,
        num_clients: int,
        meddle: Meddle | None = None,
        run_config: dict[str, Any] | None = None,
    ) -> None:
        self._run_config = run_config or {}
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.app = app
        self.nodes = {1000 + 7 * ((3 * k) % num_clients): k for k in range(num_clients)}
        self.meddle = meddle or (lambda client, message, answer: answer())
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.phases = 0
        self._contexts = {
            node: Context(1, node, {"partition-id": k}, RecordDict(), self._run_config)
            for node, k in self.nodes.items()
        }

    def move(self, client: int, node: int, keep: bool = False) -> None:
        """A client starts again at another node; with `keep` somebody there only says so."""
        if not keep:
            self.nodes = {old: k for old, k in self.nodes.items() if k != client}
        self.nodes[node] = client
        self._contexts[node] = Context(1, node, {"partition-id": client}, RecordDict(), {})

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self.phases += 1
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            arrived = copy.deepcopy(message)
            arrived.metadata.__dict__["_message_id"] = f"{self.phases}-{node}"
            self.sent.append(arrived)

            def answer(arrived: Message = arrived, node: int = node) -> Message:
                try:
                    return self.app(copy.deepcopy(arrived), self._contexts[node])
                except Exception as fault:  # as a SuperNode does
                    return Message(Error(code=0, reason=str(fault)), reply_to=arrived)

            reply = self.meddle(self.nodes[node], arrived, answer)
            if reply is not None:
                self.received.append(copy.deepcopy(reply))
                replies.append(reply)
        return replies[::-1]  # replies come in any order
