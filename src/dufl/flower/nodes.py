"""Which client is at which Flower node, and how clients are queried."""

import time
from collections.abc import Callable, Iterable, Sequence
from logging import ERROR, WARNING
from typing import Protocol, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dufl.errors import InputError
from dufl.flower import messages

POLL = 1.0  # seconds between two requests for the list of nodes


class FromClient(Protocol):
    """A reply that states the number of its client."""

    @property
    def client(self) -> int:
        """The number of the client."""


Reply = TypeVar("Reply")
ClientReply = TypeVar("ClientReply", bound=FromClient)


class NoReplyError(Exception):
    """Some clients did not reply."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__(clients)
        self.clients = clients


class Nodes:
    """The clients that the server knows.

    Args:
        timeout: seconds to wait for replies in a phase of messages.
        arrival_timeout: seconds to wait for all clients before the first round.

    Attributes:
        clients: the number of the client at every node.
        keys: the public key of every client that was ever registered.
        phases: the number of phases of messages so far.
    """

    def __init__(self, timeout: float, arrival_timeout: float) -> None:
        self.clients: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}
        self.phases = 0
        self._timeout = timeout
        self._arrival_timeout = arrival_timeout
        self._ignored: set[int] = set()  # nodes
        self._errors: dict[int, str] = {}  # the last error of every node whose last reply failed

    @property
    def present(self) -> set[int]:
        """The numbers of the clients that are registered at some node."""
        return set(self.clients.values())

    def wait_for_clients(self, grid: Grid, count: int) -> None:
        """Wait until `count` clients are registered."""
        began = time.monotonic()
        while True:
            self.register_nodes(grid)
            if len(self.clients) >= count:
                return
            if time.monotonic() - began > self._arrival_timeout:
                rule = f"{count} within {self._arrival_timeout:g} s"
                found = "; ".join([str(len(self.clients)), *dict.fromkeys(self._errors.values())])
                raise InputError.of("the number of clients", rule, found)
            time.sleep(POLL)

    def register_nodes(self, grid: Grid) -> None:
        """Register the clients at new nodes. A client may move to another node if it has the same key."""
        nodes = set(grid.get_node_ids())
        self._ignored &= nodes  # a node that disconnects and returns is asked again
        new = sorted(nodes - self._ignored - set(self.clients))
        for node, hello in self.ask(grid, new, messages.HELLO, RecordDict(), messages.Hello.read).items():
            if self.keys.setdefault(hello.client, hello.key) != hello.key:
                log(WARNING, "node %s ignored: its key is not that of client %s", node, hello.client)
                self._ignored.add(node)
                continue
            self.clients = {old: client for old, client in self.clients.items() if client != hello.client}
            self.clients[node] = hello.client

    def remove(self, clients: Iterable[int]) -> None:
        """Remove clients until they return at a node that was disconnected."""
        removed = set(clients)
        self._ignored |= {node for node, client in self.clients.items() if client in removed}
        self.clients = {node: client for node, client in self.clients.items() if client not in removed}

    def ask(
        self,
        grid: Grid,
        nodes: Sequence[int],
        kind: str,
        records: RecordDict,
        read: Callable[[RecordDict], Reply],
    ) -> dict[int, Reply]:
        """Send one message to every node; returns the replies that `read` accepts, by node."""
        if not nodes:
            return {}
        self.phases += 1
        outgoing = [Message(records, dst_node_id=node, message_type=kind) for node in nodes]
        replies = {}
        for reply in grid.send_and_receive(outgoing, timeout=self._timeout):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise InputError(root_cause(reply.error.reason or ""))
                replies[node] = read(reply.content)
                self._errors.pop(node, None)
            except InputError as error:
                self._report(node, str(error))
        return {node: replies[node] for node in nodes if node in replies}

    def _report(self, node: int, error: str) -> None:
        """Log the error of a node, unless it was logged before, for this node or another."""
        if error not in self._errors.values():
            log(ERROR, "node %s: %s", node, error)
        self._errors[node] = error

    def ask_all(
        self, grid: Grid, kind: str, query: messages.Query, read: Callable[[RecordDict], ClientReply]
    ) -> list[ClientReply]:
        """The replies of all clients.

        Raises:
            NoReplyError: if clients did not reply, or replied with an invalid message or another number.
        """
        replies = self.ask(grid, list(self.clients), kind, query.to_records(), read)
        valid = [reply for node, reply in replies.items() if reply.client == self.clients[node]]
        if missing := sorted(self.present - {reply.client for reply in valid}):
            raise NoReplyError(missing)
        return valid


def root_cause(reason: str) -> str:
    """The last line of an error at a node, without what Flower and Ray put around it.

    >>> root_cause("Exception ClientAppException occurred. Message: disk full'>")
    'disk full'
    >>> root_cause("disk full")
    'disk full'
    """
    lines = reason.strip().splitlines() or ["unknown error"]
    return lines[-1].rpartition("Message: ")[2].removesuffix("'>")
