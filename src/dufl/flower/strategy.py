"""The server's side: negotiates, runs any Flower strategy on data that is kept fresh, and pays for the data.

    strategy = DataUpdateStrategy(FedAvg(...), game, folder)
    result = strategy.start(grid, initial_arrays, num_rounds=game.num_rounds)

`folder` holds everything that must outlive the server: the deal, the model after every round and the ledger.
A server that was killed and is started again with the same folder resumes with the unfinished round. A folder
belongs to one run of one configuration; see `run_identity`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dufl.errors import DuflError, InputError
from dufl.flower import messages
from dufl.flower.bounds import bound_updates, update_size
from dufl.flower.deal import (
    Deal,
    NegotiationOptions,
    NobodyRepliesError,
    agree,
    check_reply,
    mean_clients,
    with_claimed_volume,
)
from dufl.flower.ledger import NOT_SELECTED, Claim
from dufl.flower.nodes import Nodes
from dufl.flower.run_identity import (
    IfFinished,
    check_if_finished,
    facts_of,
    finished_error,
    identify,
    model_facts,
    options_facts,
    unfinished,
)
from dufl.flower.server_store import Round, ServerStore
from dufl.formatting import cents
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Game

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@runtime_checkable
class PerClient(Protocol):
    """A strategy that treats clients differently, and must know which node each of them is at."""

    def set_clients(self, clients: Mapping[int, int]) -> None:
        """Set the number of the client at every node."""


class DataUpdateStrategy(Strategy):
    """Any strategy, on buffers that are kept fresh and paid for.

    Args:
        strategy: trains the model. It receives valid updates only, ordered by client.
        game: the server's view. Of `clients`, only the number must be right; the rest is a first guess.
        folder: where the deal, the model and the ledger are stored.
        plan: a known plan; if omitted, a plan is negotiated.
        negotiation: options of the negotiation.
        timeout: seconds to wait for clients in a phase of the negotiation.
        arrival_timeout: seconds to wait for all clients before the first round.
        max_missed_rounds: a client that misses this number of rounds in a row is removed, and the server
            negotiates again with the others.
        max_update: how many times the median size of a round's updates an update may have; larger ones are
            scaled down. None allows any size.
        on_round_end: called with every finished round.
        run_config: the run configuration of the app, `context.run_config`. A run that was begun with another
            one is not resumed.
        if_finished: what `start` does if the run in `folder` is finished: "error"; "new" starts a new run in
            `folder-2`, `folder-3` and so on; "return" returns its result.
    """

    def __init__(
        self,
        strategy: Strategy,
        game: Game,
        folder: str | Path,
        *,
        plan: Announcement | None = None,
        negotiation: NegotiationOptions | None = None,
        timeout: float = 600.0,
        arrival_timeout: float = 600.0,
        max_missed_rounds: int = 3,
        max_update: float | None = 10.0,
        on_round_end: Callable[[Round], None] = lambda _: None,
        run_config: Mapping[str, Any] | None = None,
        if_finished: IfFinished = "error",
    ) -> None:
        if max_update is not None and not 1 <= max_update < math.inf:
            raise InputError.of("max_update", "None or a number >= 1", max_update)
        self.strategy = strategy
        self.game = game
        self.folder = Path(folder)
        self.deal: Deal | None = None
        self.round = 0
        self.nodes = Nodes(game.clients.size, timeout, arrival_timeout)
        self._plan = plan
        self._negotiation = negotiation or NegotiationOptions()
        self._max_missed_rounds = max_missed_rounds
        self._on_round_end = on_round_end
        self._store = ServerStore(self.folder)
        self._missed: dict[int, int] = {}  # rounds in a row, by client
        self._accepted: dict[int, tuple[int, Claim]] = {}  # the last round and claim, by client
        self._unwilling: set[int] = set()  # clients that refused to negotiate again
        self._mean_age = 1.0
        self._current: Round | None = None
        self._max_update = max_update
        self._run_config = dict(run_config or {})
        self._if_finished = check_if_finished(if_finished)
        self._resumed_after = 0  # rounds that Flower's loop does not count
        self._results = Result()
        self._model: dict[str, messages.AnyArray] = {}  # as sent out in this round

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        self.strategy.summary()

    @property
    def clients(self) -> dict[int, int]:
        """The number of the client at every node."""
        return self.nodes.clients

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy, with the number of the round that clients must enter."""
        if self.deal is None:
            raise DuflError("DataUpdateStrategy has no deal: call start(), which negotiates one")
        self._update_clients(grid)
        server_round += self._resumed_after
        self._model = messages.from_arrays(arrays)
        outgoing = list(self.strategy.configure_train(server_round, arrays, config, grid))
        for message in outgoing:
            message.content[messages.RECORD] = messages.train_record(server_round - 1, self.nodes.run)
        called, connected = {m.metadata.dst_node_id for m in outgoing}, set(grid.get_node_ids())
        expected = {c for node, c in self.clients.items() if node in called or node not in connected}
        absent = set(self.deal.commitments) - self.nodes.present
        missing, committed = expected | absent, set(self.deal.commitments)
        unselected = sorted(committed - missing)
        self._current = Round(server_round - 1, self.deal, missing=sorted(missing), unselected=unselected)
        return outgoing

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the valid updates with the strategy, which also gets errors, and pay their clients."""
        current = self._current
        if current is None:
            raise DuflError("aggregate_train() must follow configure_train()")
        claims: dict[int, Claim] = {}
        updates: dict[int, Message] = {}
        errors: list[Message] = []
        sizes: dict[int, float] = {}
        shapes = {name: array.shape for name, array in self._model.items()}
        for reply in replies:
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None or client not in current.missing:
                continue
            if reply.has_error():
                errors.append(reply)
                continue
            current.missing.remove(client)
            claim, reason = check_reply(reply, client, current.round, current.deal, shapes, self._max_age)
            if not reason:
                sizes[client] = update_size(reply, self._model)
                reason = "" if math.isfinite(sizes[client]) else "weights that are too large"
            if reason:
                current.refused[client] = reason
            if claim is not None and claim.client == client:
                claims[client] = claim
                updates |= {} if reason else {client: with_claimed_volume(reply, claim)}
        if self._max_update is not None:
            accepted = {client: sizes[client] for client in updates}
            current.bounded = bound_updates(updates, accepted, self._model, self._max_update)
        current.claims = [claims[client] for client in sorted(updates)]
        self._accepted |= {claim.client: (current.round, claim) for claim in current.claims}
        valid = [updates[client] for client in sorted(updates)]
        server_round += self._resumed_after
        arrays, metrics = self.strategy.aggregate_train(server_round, valid + errors)
        if metrics is not None:
            self._results.train_metrics_clientapp[server_round] = metrics
        unpaid = current.refused | dict.fromkeys(current.missing, "no reply")
        unpaid |= dict.fromkeys(current.unselected, NOT_SELECTED)
        with self._store.ledger() as ledger:
            entries = ledger.pay(current.round, current.deal.offer.payment, claims.values(), unpaid)
        current.cents = sum(entry.cents for entry in entries)
        for client in set(self.clients.values()) - set(current.unselected):
            missed = client in current.missing
            self._missed[client] = self._missed.get(client, 0) + 1 if missed else 0
        if current.volume:
            self._mean_age = current.mean_age + 1
        return arrays, metrics

    def _max_age(self, claim: Claim) -> float:
        """The largest mean age that is possible after the client's last claim.

        A sample that was held then is older by the rounds since; any other is younger than these rounds.
        Hence D(t)·S(t) <= D(s)·S(s) + (t − s)·D(t), where s is the round of the last claim. Equality is the
        law of staleness with everything conserved. Of a first claim, only the order of magnitude is known.
        """
        round, last = self._accepted.get(claim.client, (0, None))
        if last is None or self._current is None or not claim.volume:
            return float(self.game.clients.initial_staleness.max()) + self.game.num_rounds
        return self._current.round - round + last.volume * last.mean_age / claim.volume

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy."""
        return self.strategy.configure_evaluate(server_round + self._resumed_after, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the strategy."""
        server_round += self._resumed_after
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            self._results.evaluate_metrics_clientapp[server_round] = metrics
        return metrics

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
        """Negotiate and train, or resume the run in `folder`; see `start` of Flower's `Strategy`.

        The rounds are those of Flower's own loop. Of a run that is resumed, the loop runs the rounds that are
        left and counts them from 1; the strategy, `evaluate_fn` and the result count all rounds.
        """
        if num_rounds != self.game.num_rounds:
            raise InputError.of("num_rounds", f"that of the game, {self.game.num_rounds}", num_rounds)
        self._open_folder(initial_arrays, train_config)
        arrays = self._begin(grid, initial_arrays)
        self._resumed_after = self.round
        self._results = self._store.load_results(self.round)

        def evaluate(looped: int, arrays: ArrayRecord) -> MetricRecord | None:
            """What Flower's loop calls before the first round and after every round."""
            if looped == 0 and self._resumed_after:
                return None
            server_round = looped + self._resumed_after
            metrics = evaluate_fn(server_round, arrays) if evaluate_fn else None
            if metrics is not None:
                self._results.evaluate_metrics_serverapp[server_round] = metrics
            if looped:
                self._finish_round(server_round, arrays, metrics)
            return metrics

        left = num_rounds - self.round
        looped = super().start(grid, arrays, left, timeout, train_config, evaluate_config, evaluate)
        self._results.arrays = looped.arrays or arrays
        return self._results

    def _open_folder(self, arrays: ArrayRecord, train_config: ConfigRecord | None) -> None:
        """Find the folder of the run, which must be new or hold the same run, unfinished."""
        given, rounds = str(self.folder), self.game.num_rounds
        if self._if_finished == "new":
            self.folder = unfinished(self.folder, lambda folder: ServerStore(folder).rounds_done >= rounds)
            self._store = ServerStore(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = facts_of(
            self.strategy,
            self.game,
            self._plan,
            negotiation=options_facts(self._negotiation),
            max_update=self._max_update,
            model=model_facts(arrays),
            train_config=train_config or {},
            run_config={name: value for name, value in self._run_config.items() if value != given},
        )
        self.nodes.run = identify(self.folder, facts)
        if self._if_finished == "error" and self._store.rounds_done >= rounds:
            raise finished_error(self.folder)

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord) -> ArrayRecord:
        """Wait for the clients; then negotiate, or resume. Returns the model to start from."""
        if not self._store.has_deal:
            self.nodes.wait_for_clients(grid)
            clients, present = self.game.clients, len(self.clients)
            if present == clients.size:
                self._negotiate(grid, self.game, self._plan)
            else:
                self._negotiate(grid, self.game.replace(clients=mean_clients(clients, present)))
            return initial_arrays
        self.deal = self._store.load_deal(self.game.num_rounds)
        self.nodes.left_out |= self.deal.left_out
        self.nodes.disputes |= set(self.deal.disputes)
        self.nodes.wait_for_clients(grid)
        self.round, arrays = self._store.load_checkpoint(self.strategy, initial_arrays)
        return arrays

    def _negotiate(self, grid: Grid, game: Game, plan: Announcement | None = None) -> None:
        capacity = float(self.game.clients.capacity.max())
        self.deal = agree(self.nodes, grid, game, self.round, self._negotiation, plan, capacity)
        self._store.save_deal(self.deal)

    def _update_clients(self, grid: Grid) -> None:
        """Register new clients and remove lost ones; if any, negotiate again for the remaining rounds."""
        self.nodes.register_nodes(grid)
        self.nodes.remove(c for c, missed in self._missed.items() if missed >= self._max_missed_rounds)
        present, left = self.nodes.present, self.game.num_rounds - self.round
        settled = self.deal is None or present in (set(self.deal.commitments), self._unwilling, set())
        if not settled and left >= 2:
            log(INFO, "negotiating again from round %s on, with clients %s", self.round, sorted(present))
            guess = mean_clients(self.game.clients, len(present), self._mean_age)
            self._missed = dict.fromkeys(present, 0)
            try:
                self._negotiate(grid, self.game.replace(clients=guess, num_rounds=left))
            except NobodyRepliesError as error:  # perhaps too few are left for a sum that hides each of them
                log(WARNING, "the deal stays as it was: %s", error)
                self._unwilling = present
        if isinstance(self.strategy, PerClient):
            self.strategy.set_clients(self.clients)

    def _finish_round(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> None:
        """Store the model, then report the round."""
        assert self._current is not None
        self._current.metrics = dict(metrics or {})
        self.round = server_round
        self._store.save_results(self._results)
        self._store.save_checkpoint(self.strategy, self.round, arrays)
        self._on_round_end(self._current)
        log(INFO, "round %s of %s: %s", server_round, self.game.num_rounds, _log_line(self._current))


def _log_line(round: Round) -> str:
    refused = f", refused {round.refused}" if round.refused else ""
    for client, ratio in round.bounded.items():
        refused += f", update of client {client} scaled down: {ratio:.3g} times the median size"
    missing = f", no reply from {round.missing}" if round.missing else ""
    numbers = {name: value for name, value in round.metrics.items() if isinstance(value, int | float)}
    metrics = "".join(f", {name} {value:.4g}" for name, value in numbers.items())
    updates = f"{len(round.claims)} updates on {round.volume} samples, paid {cents(round.cents)}"
    return f"{updates}{refused}{missing}{metrics}"
