"""The server's side: negotiates, then runs any Flower strategy on data that is kept fresh, and pays for it.

    strategy = DataUpdateStrategy(FedAvg(...), game, folder)
    result = strategy.start(grid, initial_arrays, num_rounds=game.num_rounds)

`folder` holds all that must outlive the server: the deal, the model after every round and the ledger. A
server that was killed and starts again there goes on with the round that was not over.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dufl.errors import InputError
from dufl.experiment.files import write_text
from dufl.flower import messages
from dufl.flower.checkpoint import keep, recall
from dufl.flower.deal import Deal, NegotiationOptions, agree, mean_clients
from dufl.flower.ledger import Claim as Due
from dufl.flower.ledger import Ledger
from dufl.flower.nodes import Nodes
from dufl.flower.validation import counted, judge
from dufl.game.negotiation import Question
from dufl.game.parameters import Game

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


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
    claims: list[messages.Claim] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    cents: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class OfClients(Protocol):
    """A strategy that treats clients differently, and has to know which node each is at."""

    def wait_for_clients(self, clients: Mapping[int, int]) -> None:
        """Be told the number of the client at every node."""


class DataUpdateStrategy(Strategy):
    """Any strategy, on buffers that are kept fresh and paid for.

    Args:
        strategy: what trains; it sees only updates that make sense, in the order of clients.
        game: the server's view. Of `clients` only the number must be right: the rest is a first guess.
        folder: where the deal, the model and the ledger are kept.
        plan: (R, θ, φ) if it is known already; otherwise it is negotiated.
        how: the plan is negotiated.
        timeout: seconds to wait for the clients in a phase of negotiation.
        arrival: seconds to wait for all clients before the first round.
        patience: a client that misses so many rounds in a row is gone for good, and the server plans again.
        watch: told every round when it is over.
    """

    def __init__(
        self,
        strategy: Strategy,
        game: Game,
        folder: str | Path,
        *,
        plan: Question | None = None,
        how: NegotiationOptions | None = None,
        timeout: float = 600.0,
        arrival: float = 600.0,
        patience: int = 3,
        watch: Callable[[Round], None] = lambda _: None,
    ) -> None:
        self.strategy = strategy
        self.game = game
        self.folder = Path(folder)
        self.deal: Deal | None = None
        self.round = 0
        self.nodes = Nodes(timeout, arrival)
        self._plan = plan
        self._how = how or NegotiationOptions()
        self._patience = patience
        self._watch = watch
        self._missed: dict[int, int] = {}  # rounds in a row, by client
        self._mean_age = 1.0
        self._now = Round(0)
        self._like: dict[str, tuple[int, ...]] = {}

    def summary(self) -> None:
        """Log what is run."""
        self.strategy.summary()

    @property
    def clients(self) -> dict[int, int]:
        """The number of the client at every node."""
        return self.nodes.clients

    def _look(self, grid: Grid) -> None:
        """See who is there; if clients have gone or come for good, plan again for the rounds left."""
        self.nodes.register_nodes(grid)
        self.nodes.leave_out(client for client, missed in self._missed.items() if missed >= self._patience)
        there, left = self.nodes.there, self.game.num_rounds - self.round
        if self.deal is not None and there and there != set(self.deal.hashes) and left >= 2:
            log(INFO, "planning again from round %s on, with clients %s", self.round, sorted(there))
            guess = mean_clients(self.game.clients, len(there), self._mean_age)
            self._missed = dict.fromkeys(there, 0)
            self._agree_again(grid, self.game.replace(clients=guess, num_rounds=left))
        if isinstance(self.strategy, OfClients):
            self.strategy.wait_for_clients(self.clients)

    def _agree_again(self, grid: Grid, game: Game, plan: Question | None = None) -> None:
        self.deal = agree(self.nodes, grid, game, self.round, self._how, plan)
        write_text(self.folder / "deal.json", self.deal.to_json())

    def _agreed(self, num_rounds: int) -> Deal:
        """The deal of the run in the folder, which must be of as many rounds."""
        try:
            deal = Deal.from_json((self.folder / "deal.json").read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self.folder / 'deal.json'} must be undamaged: {error!r}") from None
        planned = deal.first_round + len(deal.announced_volume)
        if planned != num_rounds:
            raise InputError.of(
                "num_rounds", f"{planned}, as in the run that {self.folder} holds", num_rounds
            )
        return deal

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What the strategy sends, with the round that the clients have to enter."""
        self._now = Round(server_round - 1)
        self._like = {name: tuple(array.shape) for name, array in arrays.items()}
        outgoing = list(self.strategy.configure_train(server_round, arrays, config, grid))
        for message in outgoing:
            message.content[messages.RECORD] = ConfigRecord({"round": server_round - 1})
        called = {m.metadata.dst_node_id for m in outgoing}
        there = set(grid.get_node_ids())
        waited = {client for node, client in self.clients.items() if node in called or node not in there}
        absent = set(self.deal.hashes if self.deal else ()) - self.nodes.there
        self._now.missing = sorted(waited | absent)
        return outgoing

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the updates that make sense; each client is paid for its own."""
        used: dict[int, tuple[messages.Claim, Message]] = {}
        due: dict[int, Due] = {}
        for reply in replies:
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None or client not in self._now.missing or reply.has_error():
                continue
            self._now.missing.remove(client)
            claim, reason = judge(reply, client, server_round - 1, self.deal, self._like)
            volume, committed = (claim.volume, claim.committed) if claim else (0, 0)
            due[client] = Due(client, committed, volume, reason)
            if due[client].reason:
                self._now.refused[client] = due[client].reason
            elif claim is not None:
                used[client] = claim, reply
        self._now.claims = [used[client][0] for client in sorted(used)]
        accepted = [counted(*used[client]) for client in sorted(used)]
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

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does it."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does it."""
        return self.strategy.aggregate_evaluate(server_round, replies)

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
        self.nodes.wait_for_clients(grid, self.game.clients.size)
        if (self.folder / "deal.json").exists():
            self.deal = self._agreed(num_rounds)
            self.round, arrays = recall(self.folder, self.strategy, arrays)
            if self.round >= num_rounds:
                log(WARNING, "%s holds a run that is over: to begin anew, give another folder", self.folder)
        else:
            self._agree_again(grid, self.game, self._plan)
        result.arrays = arrays
        for server_round in range(self.round + 1, num_rounds + 1):
            self._look(grid)
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
            keep(self.folder, self.strategy, self.round, arrays)
            self._watch(self._now)
            log(INFO, "round %s of %s: %s", server_round, num_rounds, _said(self._now))
        return result


def _said(now: Round) -> str:
    volume = sum(claim.volume for claim in now.claims)
    problems = f", refused {now.refused}" if now.refused else ""
    problems += f", missing {now.missing}" if now.missing else ""
    numbers = {name: value for name, value in now.metrics.items() if isinstance(value, int | float)}
    tested = "".join(f", {name} {value:.4g}" for name, value in numbers.items())
    return f"{len(now.claims)} updates on {volume} samples, paid {now.cents / 100:.2f}{problems}{tested}"
