"""Who is at which node of Flower, and how they are asked."""

import time
from collections.abc import Callable, Iterable, Sequence
from logging import ERROR, WARNING
from typing import Protocol, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dufl.errors import InputError
from dufl.flower import messages

POLL = 1.0  # seconds between two looks at which nodes are there


class OfClient(Protocol):
    """What a client says, with its number."""

    @property
    def client(self) -> int:
        """Who says it."""


Said = TypeVar("Said")
Named = TypeVar("Named", bound=OfClient)


class SilentError(Exception):
    """Some clients did not answer."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__(clients)
        self.clients = clients


class Nodes:
    """The clients that the server knows.

    Args:
        timeout: seconds that a phase of messages waits for answers.
        arrival: seconds to wait for all clients before the first round.

    Attributes:
        clients: the number of the client at every node.
        keys: the public key of every client that has ever been there.
        phases: how many phases of messages there were.
    """

    def __init__(self, timeout: float, arrival: float) -> None:
        self.clients: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}
        self.phases = 0
        self._timeout = timeout
        self._arrival = arrival
        self._strangers: set[int] = set()
        self._faults: dict[int, str] = {}  # why a node did not answer when it was asked last

    @property
    def there(self) -> set[int]:
        """The clients that are known to be somewhere."""
        return set(self.clients.values())

    def wait_for_clients(self, grid: Grid, wanted: int) -> None:
        """Wait until so many clients are there."""
        began = time.monotonic()
        while True:
            self.register_nodes(grid)
            if len(self.clients) >= wanted:
                return
            if time.monotonic() - began > self._arrival:
                rule = f"{wanted} within {self._arrival:g} s"
                found = "; ".join([str(len(self.clients)), *dict.fromkeys(self._faults.values())])
                raise InputError.of("the number of clients that are there", rule, found)
            time.sleep(POLL)

    def register_nodes(self, grid: Grid) -> None:
        """Learn who is at the nodes that are new; a client may come back at another, with its own key."""
        there = set(grid.get_node_ids())
        self._strangers &= there  # who goes and comes again is asked again
        new = sorted(there - self._strangers - set(self.clients))
        for node, hello in self.ask(grid, new, messages.HELLO, RecordDict(), messages.Hello.read).items():
            if self.keys.setdefault(hello.client, hello.key) != hello.key:
                log(WARNING, "node %s is not client %s, whose key is another", node, hello.client)
                self._strangers.add(node)
                continue
            self.clients = {old: client for old, client in self.clients.items() if client != hello.client}
            self.clients[node] = hello.client

    def leave_out(self, clients: Iterable[int]) -> None:
        """Go on without some clients, until they come back at a node that was away."""
        gone = set(clients)
        self._strangers |= {node for node, client in self.clients.items() if client in gone}
        self.clients = {node: client for node, client in self.clients.items() if client not in gone}

    def ask(
        self,
        grid: Grid,
        nodes: Sequence[int],
        kind: str,
        records: RecordDict,
        read: Callable[[RecordDict], Said],
    ) -> dict[int, Said]:
        """One phase of messages: what each node answered, if it did and `read` makes sense of it."""
        if not nodes:
            return {}
        self.phases += 1
        messages = [Message(records, dst_node_id=node, message_type=kind) for node in nodes]
        answered = {}
        for reply in grid.send_and_receive(messages, timeout=self._timeout):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise InputError(essence(reply.error.reason or ""))
                answered[node] = read(reply.content)
                self._faults.pop(node, None)
            except InputError as fault:
                self._blame(node, str(fault))
        return {node: answered[node] for node in nodes if node in answered}

    def _blame(self, node: int, fault: str) -> None:
        """Say what is wrong with a node's answer; once, though it is asked again and others fail alike."""
        if fault not in self._faults.values():
            log(ERROR, "node %s: %s", node, fault)
        self._faults[node] = fault

    def ask_all(
        self, grid: Grid, kind: str, asked: messages.Questions, read: Callable[[RecordDict], Named]
    ) -> list[Named]:
        """What every client answers; who says nothing, nonsense or another's number is silent."""
        said = self.ask(grid, list(self.clients), kind, asked.to_records(), read)
        right = [found for node, found in said.items() if found.client == self.clients[node]]
        if silent := sorted(self.there - {found.client for found in right}):
            raise SilentError(silent)
        return right


def essence(reason: str) -> str:
    """What went wrong at a node, without the way that the message took through Flower and Ray.

    >>> essence("Exception ClientAppException occurred. Message: disk full'>")
    'disk full'
    >>> essence("disk full")
    'disk full'
    """
    found = reason.strip().splitlines() or ["an error without a word"]
    return found[-1].rpartition("Message: ")[2].removesuffix("'>")
