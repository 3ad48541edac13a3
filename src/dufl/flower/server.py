"""The server's side: negotiates, then runs any Flower strategy on data that is kept fresh, and pays for it.

    strategy = WithDataUpdate(FedAvg(...), game, folder)
    result = strategy.start(grid, initial_arrays, num_rounds=game.num_rounds)

`folder` holds all that must outlive the server: the deal, the model after every round and the ledger. A
server that was killed and starts again there goes on with the round that was not over.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dufl.errors import DuflError, InputError
from dufl.experiment.files import replacing, to_json, write_text
from dufl.flower import wire
from dufl.flower.ledger import Claim as Due
from dufl.flower.ledger import Ledger
from dufl.flower.masking import unmasked
from dufl.game.dynamics import Array
from dufl.game.leader import Algorithm1
from dufl.game.negotiation import Question, negotiate
from dufl.game.parameters import Game
from dufl.game.plan import Leader
from dufl.game.population import Clients

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
POLL = 1.0  # seconds between two looks at which nodes are there


@dataclass(frozen=True, eq=False)
class Deal:
    """What server and clients agreed on.

    Attributes:
        payment: R.
        conservation_rate: θ.
        announced_volume: φ(t), from `first_round` on.
        first_round: of the plan.
        hashes: what every client committed itself to, a hash a round.
        phases: how many phases of messages it took.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
    """

    payment: float
    conservation_rate: float
    announced_volume: Array
    first_round: int
    hashes: dict[int, tuple[bytes, ...]]
    phases: int
    residual: float

    def to_json(self) -> str:
        """For `deal.json`."""
        hashes = {str(client): [h.hex() for h in hashes] for client, hashes in self.hashes.items()}
        return to_json(vars(self) | {"announced_volume": self.announced_volume.tolist(), "hashes": hashes})

    @classmethod
    def from_json(cls, text: str) -> "Deal":
        """From `deal.json`."""
        found = json.loads(text)
        hashes = {int(client): tuple(map(bytes.fromhex, h)) for client, h in found["hashes"].items()}
        return cls(**found | {"announced_volume": np.array(found["announced_volume"]), "hashes": hashes})


@dataclass
class Round:
    """What is known of a round once it is over.

    Attributes:
        round: t, from 0.
        claims: of the clients whose updates were used, in the order of clients.
        refused: the clients whose update was not used, and why.
        missing: the clients that did not answer.
        cents: paid in all.
        metrics: of the server's own evaluation.
    """

    round: int
    claims: list[wire.Claim] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    cents: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class OfClients(Protocol):
    """A strategy that treats clients differently, and has to know which node each is at."""

    def meet(self, clients: Mapping[int, int]) -> None:
        """Be told the number of the client at every node."""


@runtime_checkable
class WithState(Protocol):
    """A strategy that remembers more than the model, and can go on in another process."""

    def state(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """What it remembers."""

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on where another was."""


class WithDataUpdate(Strategy):
    """Any strategy, on buffers that are kept fresh and paid for.

    Args:
        strategy: what trains; it sees only updates that make sense, in the order of clients.
        game: the server's view. Of `clients` only the number must be right: the rest is a first guess.
        folder: where the deal, the model and the ledger are kept.
        plan: (R, θ, φ) if it is known already; otherwise it is negotiated.
        leader: see `dufl.solve`.
        algorithm1: likewise.
        masked: whether the server sees only the sum of the clients' answers.
        timeout: seconds to wait for the clients in a phase of negotiation.
        patience: a client that misses so many rounds in a row is gone for good, and the server plans again.
        watch: told every round when it is over.
    """

    def __init__(
        self,
        strategy: Strategy,
        game: Game,
        folder: str | Path,
        *,
        plan: tuple[float, float, Array] | None = None,
        leader: Leader = "anticipating",
        algorithm1: Algorithm1 | None = None,
        masked: bool = True,
        timeout: float = 600.0,
        patience: int = 3,
        watch: Callable[[Round], None] = lambda _: None,
    ) -> None:
        self.strategy = strategy
        self.game = game
        self.folder = Path(folder)
        self.deal: Deal | None = None
        self.round = 0
        self.clients: dict[int, int] = {}  # the number of the client at every node
        self._keys: dict[int, bytes] = {}
        self._plan = plan
        self._how: dict[str, Any] = {"leader": leader, "algorithm1": algorithm1}
        self._masked = masked
        self._timeout = timeout
        self._patience = patience
        self._watch = watch
        self._missed: dict[int, int] = {}  # rounds in a row, by client
        self._phases = 0
        self._mean_age = 1.0
        self._strangers: set[int] = set()
        self._now = Round(0)
        self._like: dict[str, tuple[int, ...]] = {}

    def summary(self) -> None:
        """Log what is run."""
        self.strategy.summary()

    # ----- before the first round

    def meet(self, grid: Grid) -> None:
        """Wait until every client is there, and learn which node it is at."""
        wanted, began = self.game.clients.size, time.monotonic()
        while True:
            self._greet(grid)
            if len(self.clients) >= wanted:
                return
            if time.monotonic() - began > self._timeout:
                rule = f"{wanted} within {self._timeout:g} s"
                raise InputError.of("the number of clients that are there", rule, len(self.clients))
            time.sleep(POLL)

    def _greet(self, grid: Grid) -> None:
        """Learn who is at the nodes that are new; a client may come back at another, with its own key."""
        there = set(grid.get_node_ids())
        self._strangers &= there  # who goes and comes again is asked again
        new = sorted(there - self._strangers - set(self.clients))
        if not new:
            return
        for node, records in self._ask(grid, new, wire.HELLO, RecordDict()).items():
            hello = wire.Hello.read(records)
            before = [old for old, client in self.clients.items() if client == hello.client]
            if self._keys.setdefault(hello.client, hello.key) != hello.key:
                log(WARNING, "node %s is not client %s, whose key is another", node, hello.client)
                self._strangers.add(node)
                continue
            for old in before:
                del self.clients[old]
            self.clients[node] = hello.client
        if isinstance(self.strategy, OfClients):
            self.strategy.meet(self.clients)

    def _plan_again(self, grid: Grid) -> None:
        """If clients have gone or come for good: a new deal with those there are, for the rounds left."""
        gone = {client for client, missed in self._missed.items() if missed >= self._patience}
        self._leave_out(gone)
        there = set(self.clients.values())
        left = self.game.num_rounds - self.round
        if self.deal is None or there == set(self.deal.hashes) or not there or left < 2:
            return
        log(INFO, "planning again for rounds %s on, with clients %s", self.round, sorted(there))
        self._keys = {client: key for client, key in self._keys.items() if client in there}
        self._missed = dict.fromkeys(there, 0)
        self._plan = None
        self.deal = self.negotiate(grid, self.game.replace(clients=self._guess(), num_rounds=left))

    def _guess(self) -> Clients:
        """As many clients as are there, all like the mean of those that were expected."""
        people = self.game.clients
        shares = people.multiplicity / people.multiplicity.sum()
        return Clients(
            float(shares @ people.initial_volume),
            float(shares @ people.collection_cost),
            float(shares @ people.training_cost),
            self._mean_age,
            count=len(self.clients),
        )

    def negotiate(self, grid: Grid, game: Game) -> Deal:
        """Find payment, conservation rate and the clients' plans, by asking them.

        Clients that do not answer are left out, and the others are asked again.
        """
        while True:
            try:
                deal = self._agree(grid, game)
            except _SilentError as silent:
                names = [self.clients[node] for node in silent.nodes]
                if self._plan is not None or len(names) == len(self.clients):
                    raise DuflError(f"clients {names} must answer before training, but did not") from None
                log(WARNING, "clients %s do not answer: negotiating without them", names)
                self._leave_out(names)
                game = game.replace(clients=self._guess())
                continue
            said = "agreed after %s phases: R = %.2f, θ = %.3f"
            log(INFO, said, self._phases, deal.payment, deal.conservation_rate)
            write_text(self.folder / "deal.json", deal.to_json())
            return deal

    def _agree(self, grid: Grid, game: Game) -> Deal:
        if self._plan is not None:
            payment, rate, volume = self._plan
            residual = 0.0
        else:
            found = negotiate(game, lambda questions: self._sums(grid, questions), **self._how)
            payment, rate, volume = found.payment, found.conservation_rate, found.announced_volume
            residual = found.residual
        asked = wire.Questions(self._name(), self.round, {}, [Question(payment, rate, volume)])
        replies = self._all(grid, wire.COMMIT, asked)
        said = [wire.Commitment.read(records) for records in replies]
        hashes = {commitment.client: commitment.hashes for commitment in said}
        return Deal(payment, rate, volume, self.round, hashes, self._phases, residual)

    def _sums(self, grid: Grid, questions: Sequence[Question]) -> Sequence[Array]:
        """The sum of all clients' answers to each question."""
        keys = {client: self._keys[client] for client in self.clients.values()}
        asked = wire.Questions(self._name(), self.round, keys if self._masked else {}, questions)
        replies = self._all(grid, wire.BEST_RESPONSE, asked)
        total = wire.total([wire.Answer.read(records).volumes for records in replies])
        volumes = unmasked(total) if self._masked else total
        wire.check_volumes(volumes)
        return list(volumes)

    def _all(self, grid: Grid, kind: str, asked: wire.Questions) -> list[RecordDict]:
        """What every client answers."""
        replies = self._ask(grid, list(self.clients), kind, asked.to_records())
        if silent := [node for node in self.clients if node not in replies]:
            raise _SilentError(silent)
        return list(replies.values())

    def _leave_out(self, clients: Iterable[int]) -> None:
        """Go on without some clients, until they come back at a node that was away."""
        gone = set(clients)
        self._strangers |= {node for node, client in self.clients.items() if client in gone}
        self.clients = {node: client for node, client in self.clients.items() if client not in gone}
        if isinstance(self.strategy, OfClients):
            self.strategy.meet(self.clients)

    def _ask(self, grid: Grid, nodes: Sequence[int], kind: str, records: RecordDict) -> dict[int, RecordDict]:
        """One phase of messages: what each node answered, if it did."""
        self._phases += 1
        messages = [Message(records, dst_node_id=node, message_type=kind) for node in nodes]
        replies = grid.send_and_receive(messages, timeout=self._timeout)
        answered = {}
        for reply in replies:
            if reply.has_error():
                log(WARNING, "node %s: %s", reply.metadata.src_node_id, reply.error.reason)
            else:
                answered[reply.metadata.src_node_id] = reply.content
        return {node: answered[node] for node in nodes if node in answered}

    def _name(self) -> str:
        """For a question; no other has it, also after a restart."""
        return f"{time.time_ns()}-{self._phases}"

    # ----- in a round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What the strategy sends, with the round that the clients have to enter."""
        self._now = Round(server_round - 1)
        self._like = {name: tuple(array.shape) for name, array in arrays.items()}
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content[wire.RECORD] = ConfigRecord({"round": server_round - 1})
        called = {m.metadata.dst_node_id for m in messages}
        there = set(grid.get_node_ids())
        waited = {client for node, client in self.clients.items() if node in called or node not in there}
        self._now.missing = sorted(
            waited | (set(self.deal.hashes if self.deal else ()) - set(self.clients.values()))
        )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the updates that make sense; each client is paid for its own."""
        used: dict[int, tuple[wire.Claim, Message]] = {}
        due: dict[int, Due] = {}
        for reply in replies:
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None or client not in self._now.missing or reply.has_error():
                continue
            self._now.missing.remove(client)
            claim, reason = self._judge(client, server_round - 1, reply)
            volume, committed = (claim.volume, claim.committed) if claim else (0, 0)
            due[client] = Due(client, committed, volume, reason)
            if due[client].reason:
                self._now.refused[client] = due[client].reason
            elif claim is not None:
                used[client] = claim, reply
        self._now.claims = [used[client][0] for client in sorted(used)]
        accepted = [_counted(*used[client]) for client in sorted(used)]
        made = self.strategy.aggregate_train(server_round, accepted)
        for client in self._now.missing:
            due[client] = Due(client, 0, 0, "did not answer")
        with Ledger(self.folder / "ledger.sqlite") as ledger:
            payment = self.deal.payment if self.deal else 0.0
            entries = ledger.pay(server_round - 1, payment, [due[client] for client in sorted(due)])
        self._now.cents = sum(entry.cents for entry in entries)
        for client in self.clients.values():
            missed = client in self._now.missing
            self._missed[client] = self._missed.get(client, 0) + 1 if missed else 0
        volume = sum(claim.volume for claim in self._now.claims)
        if volume:
            aged = sum(claim.volume * claim.mean_age for claim in self._now.claims)
            self._mean_age = aged / volume + 1
        return made

    def _judge(self, client: int, round: int, reply: Message) -> tuple[wire.Claim | None, str]:
        """A client's claim, and why its update must not be used; empty if it may."""
        try:
            claim = wire.Claim.read(reply.content)
        except InputError as fault:
            return None, f"no claim: {fault}"
        del reply.content[wire.RECORD]
        hashes = self.deal.hashes.get(client, ()) if self.deal else ()
        at = round - (self.deal.first_round if self.deal else 0)
        if claim.client != client:
            return claim, f"claims to be client {claim.client}"
        if not 0 <= at < len(hashes) or wire.commitment(claim.committed, claim.nonce) != hashes[at]:
            return claim, f"claims to have agreed to {claim.committed} samples, which it has not"
        arrays = {
            name: array for record in reply.content.array_records.values() for name, array in record.items()
        }
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        if shapes != self._like:
            return claim, "weights of another shape"
        values = [array.numpy() for array in arrays.values()]
        if any(np.isnan(value).any() for value in values):
            return claim, "weights that are not a number"
        if any(np.isinf(value).any() for value in values):
            return claim, "infinite weights"
        return claim, ""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does it."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does it."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    # ----- all of it

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Negotiate and train, or go on where a server that was killed has been; see Flower's own `start`."""
        if num_rounds != self.game.num_rounds:
            raise InputError.of("num_rounds", f"that of the game, {self.game.num_rounds}", num_rounds)
        self.folder.mkdir(parents=True, exist_ok=True)
        result, arrays = Result(), initial_arrays
        self.meet(grid)
        if (self.folder / "deal.json").exists():
            self.deal = Deal.from_json((self.folder / "deal.json").read_text(encoding="utf-8"))
            arrays = self._resume(arrays)
        else:
            self.deal = self.negotiate(grid, self.game)
        result.arrays = arrays
        for server_round in range(self.round + 1, num_rounds + 1):
            self._greet(grid)
            self._plan_again(grid)
            sent = self.configure_train(server_round, arrays, train_config or ConfigRecord(), grid)
            replies = grid.send_and_receive(sent, timeout=timeout)
            made, metrics = self.aggregate_train(server_round, replies)
            arrays = arrays if made is None else made
            result.arrays = arrays
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            asked = list(
                self.configure_evaluate(server_round, arrays, evaluate_config or ConfigRecord(), grid)
            )
            if asked:
                tested = self.aggregate_evaluate(server_round, grid.send_and_receive(asked, timeout=timeout))
                if tested is not None:
                    result.evaluate_metrics_clientapp[server_round] = tested
            found = evaluate_fn(server_round, arrays) if evaluate_fn else None
            if found is not None:
                result.evaluate_metrics_serverapp[server_round] = found
                self._now.metrics = dict(found)
            self.round = server_round
            self._keep(arrays)
            self._watch(self._now)
            log(INFO, "round %s of %s: %s", server_round, num_rounds, _said(self._now))
        return result

    def _keep(self, arrays: ArrayRecord) -> None:
        """The model and the state of the strategy after a round."""
        own = self.strategy.state() if isinstance(self.strategy, WithState) else {}
        values = {f"array {name}": value for name, value in wire.from_arrays(arrays).items()}
        values |= {f"state {name}": value for name, value in own.items()}
        with replacing(self.folder / "server.npz") as temporary, temporary.open("wb") as stream:
            np.savez(stream, round=np.array(self.round), **values)  # type: ignore[arg-type]

    def _resume(self, arrays: ArrayRecord) -> ArrayRecord:
        path = self.folder / "server.npz"
        if not path.exists():
            return arrays
        with np.load(path) as kept:
            self.round = int(kept["round"])
            own = {n.removeprefix("state "): kept[n] for n in kept.files if n.startswith("state ")}
            found = {n.removeprefix("array "): kept[n] for n in kept.files if n.startswith("array ")}
        if isinstance(self.strategy, WithState):
            self.strategy.restore(own)
        log(INFO, "going on after round %s", self.round)
        return wire.to_arrays({name: found[name] for name in arrays})


class _SilentError(Exception):
    """Some nodes did not answer."""

    def __init__(self, nodes: Sequence[int]) -> None:
        super().__init__(nodes)
        self.nodes = nodes


def rounds_done(folder: Path) -> int:
    """How many rounds of a run are over and kept."""
    path = folder / "server.npz"
    if not path.exists():
        return 0
    with np.load(path) as kept:
        return int(kept["round"])


def _counted(claim: wire.Claim, reply: Message) -> Message:
    """An update that weighs as much as the client's claim."""
    for record in reply.content.metric_records.values():
        if "num-examples" in record:
            record["num-examples"] = claim.volume
    return reply


def _said(now: Round) -> str:
    volume = sum(claim.volume for claim in now.claims)
    problems = f", refused {now.refused}" if now.refused else ""
    problems += f", missing {now.missing}" if now.missing else ""
    return f"{len(now.claims)} updates on {volume} samples, paid {now.cents / 100:.2f}{problems}"
