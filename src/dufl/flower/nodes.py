"""Which client is at which Flower node, and how clients are queried."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import ERROR, WARNING
from typing import Protocol, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dufl.errors import InputError
from dufl.flower import messages

POLL = 1.0  # seconds between two requests for the list of nodes
MOST_CLIENTS = 10_000  # that a service may have: numbers are 0 … 9,999


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

    A number belongs to the key that registered with it first, and a key has one number.

    Args:
        count: the number of clients that are expected before the first round.
        timeout: seconds to wait for replies in a phase of messages.
        arrival_timeout: seconds to wait for all clients before the first round.
        open: whether other clients than the expected ones may join. If not, numbers are 0 … count − 1.

    Attributes:
        clients: the number of the client at every node.
        keys: the public key of every client that was ever registered.
        left_out: the clients that are left out for good, and why.
        disputes: the pairs of clients that disagreed on a key of their masks.
        grids: the number that the volumes of every client's last commitment are multiples of.
        phases: the number of phases of messages so far.
        commits: how many of them asked for commitments.
        run: the id of the server's run.
    """

    def __init__(self, count: int, timeout: float, arrival_timeout: float, open: bool = False) -> None:
        self.count = count
        self.arrival_timeout = arrival_timeout
        self.clients: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}
        self.left_out: dict[int, str] = {}
        self.disputes: set[tuple[int, int]] = set()
        self.grids: dict[int, int] = {}
        self.phases = 0
        self.commits = 0
        self._numbers = MOST_CLIENTS if open else count
        self.run = ""
        self._timeout = timeout
        self._ignored: set[int] = set()  # nodes
        self._errors: dict[int, str] = {}  # the last error of every node whose last reply failed
        self._invalid: set[int] = set()  # nodes whose last reply could not be read
        self._homes: dict[int, int] = {}  # the last node of every client

    @property
    def present(self) -> set[int]:
        """The numbers of the clients that are registered at some node."""
        return set(self.clients.values())

    def errors(self, clients: Iterable[int]) -> list[str]:
        """The last errors of clients, each once."""
        nodes = [self._homes[client] for client in clients if client in self._homes]
        return list(dict.fromkeys(self._errors[node] for node in nodes if node in self._errors))

    def wait_for_clients(self, grid: Grid, count: int | None = None) -> None:
        """Wait until all expected clients are registered, except for those that are left out.

        When the time is over, clients whose registration is invalid are not waited for any longer.

        Args:
            grid: sends the messages.
            count: the number of clients to wait for, if not all that are expected.
        """
        began = time.monotonic()
        count = self.count - len(self.left_out) if count is None else count
        while True:
            self.register_nodes(grid)
            if len(self.clients) >= count:
                return
            if time.monotonic() - began > self.arrival_timeout:
                break
            time.sleep(POLL)
        invalid = sorted(self._invalid - set(self.clients))
        if self.clients and len(self.clients) + len(invalid) >= count:
            log(WARNING, "nodes %s are left out: their registration is invalid", invalid)
            return
        rule = f"{count} within {self.arrival_timeout:g} s"
        found = "; ".join([str(len(self.clients)), *dict.fromkeys(self._errors.values())])
        raise InputError.of("the number of clients", rule, len(self.clients), text=found)

    def reconsider(self, grid: Grid) -> None:
        """Ask nodes again that were refused, removed or silent: they may have become clients by now."""
        self._ignored.clear()
        connected = set(grid.get_node_ids()) | set(self._homes.values())
        self._errors = {node: error for node, error in self._errors.items() if node in connected}

    def register_nodes(self, grid: Grid, once: bool = False) -> None:
        """Register the clients at new nodes. A client may move to another node if it has the same key.

        Args:
            grid: sends the messages.
            once: whether nodes that do not reply are ignored until they return or are reconsidered.
        """
        nodes = set(grid.get_node_ids())
        self._ignored &= nodes  # a node that disconnects and returns is asked again
        self._invalid &= nodes
        new = sorted(nodes - self._ignored - set(self.clients))
        hellos = self.ask(grid, new, messages.HELLO, RecordDict(), messages.Hello.read)
        if once:
            self._ignored |= set(new) - set(hellos)
        for node, hello in hellos.items():
            if error := self._refusal(hello, node):
                self._report(node, error)
                self._ignored.add(node)
                continue
            self.keys[hello.client] = hello.key
            self.clients = {old: client for old, client in self.clients.items() if client != hello.client}
            self.clients[node] = hello.client
            self._homes[hello.client] = node

    def _refusal(self, hello: messages.Hello, node: int) -> str:
        """Why a client cannot be registered; empty if it can."""
        client = hello.client
        if client >= self._numbers:
            return f"client {client} is not expected and is refused: the numbers are 0 … {self._numbers - 1}"
        if client in self.left_out:
            return f"client {client} is left out: {self.left_out[client]}"
        if self.keys.get(client, hello.key) != hello.key:
            home = f"at node {self._homes[client]}" if client in self._homes else "known"
            return f"client {client} is {home}; node {node} has another key and is refused"
        other = next((number for number, key in self.keys.items() if key == hello.key), client)
        if other != client:
            return f"client {client} at node {node} has the key of client {other} and is refused"
        return ""

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Remove clients for good, and log why."""
        for client, reason in sorted(reasons.items()):
            log(WARNING, "client %s at node %s is left out: %s", client, self._homes.get(client), reason)
        self.left_out |= reasons
        self.remove(reasons)

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
        self.commits += kind == messages.COMMIT
        outgoing = [Message(records, dst_node_id=node, message_type=kind) for node in nodes]
        replies = {}
        for reply in grid.send_and_receive(outgoing, timeout=self._timeout):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise InputError(root_cause(reply.error.reason or ""))
                replies[node] = read(reply.content)
                self._errors.pop(node, None)
                self._invalid.discard(node)
            except InputError as error:
                self._invalid = self._invalid - {node} if reply.has_error() else self._invalid | {node}
                self._report(node, str(error))
        return {node: replies[node] for node in nodes if node in replies}

    def _report(self, node: int, error: str) -> None:
        """Log the error of a node, unless it was logged before, for this node or another."""
        if error not in self._errors.values():
            log(ERROR, "node %s: %s", node, error)
        self._errors[node] = error

    def ask_all(
        self, grid: Grid, kind: str, records: RecordDict, read: Callable[[RecordDict], ClientReply]
    ) -> list[ClientReply]:
        """The replies of all clients.

        Raises:
            NoReplyError: if clients did not reply, or replied with an invalid message or another number.
        """
        replies = self.ask(grid, list(self.clients), kind, records, read)
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
