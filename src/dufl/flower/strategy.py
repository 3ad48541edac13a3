"""The server's side: negotiates, runs any Flower strategy on data that is kept fresh, and pays for the data.

    strategy = DataUpdateStrategy(FedAvg(...), game, folder)
    result = strategy.start(grid, initial_arrays, num_rounds=game.num_rounds)

`folder` holds everything that must outlive the server: the deal, the model after every round and the ledger.
A server that was killed and is started again with the same folder resumes with the unfinished round. With
`game.horizon = "endless"` the run is a service, which goes on until it is stopped; see `planning`. A folder
belongs to one run of one configuration; see `run_identity`.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dufl.errors import DuflError, InputError
from dufl.experiment.output import FLOWER
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.service import PaymentRule, Unit
from dufl.flower import messages
from dufl.flower.audit import Audit
from dufl.flower.bounds import bound_updates, returned_arrays, update_size
from dufl.flower.deal import Deal, NegotiationOptions
from dufl.flower.ledger import Claim
from dufl.flower.memory import Memory
from dufl.flower.monitoring import Observer, entered, notify
from dufl.flower.nodes import Nodes
from dufl.flower.payment import NO_REPLY, NOT_SELECTED
from dufl.flower.planning import Planning
from dufl.flower.replies import check_reply, odd_replies, weight_key, with_claimed_volume
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
from dufl.flower.server_store import Round, ServerStore, forget
from dufl.flower.service import Budget, Schedule
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Game
from dufl.game.voluntary import require_mandatory

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
AUDIT = "audit "  # before the names of its arrays in a checkpoint
KEPT_RESULTS = 1000  # rounds of a service whose metrics are in its result; the others are on disk


@runtime_checkable
class PerClient(Protocol):
    """A strategy that treats clients differently, and must know which node each of them is at."""

    def set_clients(self, clients: Mapping[int, int]) -> None:
        """Set the number of the client at every node."""


@runtime_checkable
class SelectsClients(Protocol):
    """A strategy that selects clients by their volumes and by when they last replied."""

    def set_volumes(self, volumes: Mapping[int, int]) -> None:
        """Set the volume that every client committed to for the next round."""

    def add_replies(self, round: int, clients: Iterable[int]) -> None:
        """Remember who replied in a round, also with updates that are not used."""


class DataUpdateStrategy(Strategy):
    """Any strategy, on buffers that are kept fresh and paid for.

    Args:
        strategy: trains the model. It receives valid updates only, ordered by client.
        game: the server's view. Of `clients`, only the number must be right; the rest is a first guess. With
            `horizon = "endless"`, it is that of one window of `num_rounds` rounds, and others may join later.
        folder: where the deal, the model and the ledger are stored.
        plan: a known plan; if omitted, a plan is negotiated.
        negotiation: options of the negotiation.
        timeout: seconds to wait for clients in a phase of the negotiation.
        arrival_timeout: seconds to wait for all clients before the first round.
        max_missed_rounds: a client that misses this number of rounds in a row is removed, and the server
            negotiates again with the others.
        max_update: how many times the median size of a round's updates an update may have; larger ones are
            scaled down. None allows any size.
        audit: measures what each update brings; see `dufl.flower.audit`. None measures nothing.
        payment_rule: how a payment is shared; see `dufl.flower.payment`. All but "volume" need an audit.
        unit: the smallest amount that is paid; if omitted, that of the ledger in `folder`, or 0.01.
        total_budget: the amount that is paid at most, over all rounds and restarts; None for any amount.
        replan_every: after how many rounds server and clients negotiate again: for the remaining rounds or,
            in a service, for the next window. None is never; in a service, half a window.
        max_rounds: the number of rounds after which a service ends; None if it ends when it is stopped.
        on_round_end: called with every finished round.
        observers: also called with every finished round, such as `JsonLog`. They are entered before the first
            round if they are context managers, and their errors do not stop the run.
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
        audit: Audit | None = None,
        payment_rule: PaymentRule = "volume",
        unit: Unit | None = None,
        total_budget: float | None = None,
        replan_every: int | None = None,
        max_rounds: int | None = None,
        on_round_end: Callable[[Round], None] = lambda _: None,
        observers: Sequence[Observer] = (),
        run_config: Mapping[str, Any] | None = None,
        if_finished: IfFinished = "error",
    ) -> None:
        require_mandatory(game, "on Flower")
        if max_update is not None and not 1 <= max_update < math.inf:
            raise InputError.of("max_update", "None or a number >= 1", max_update)
        if payment_rule != "volume" and audit is None:
            raise InputError.of("payment_rule", "'volume' without an audit", payment_rule)
        if payment_rule == "contribution" and audit is not None and not audit.measures_influence:
            raise InputError.of("audit", "one with a loss, to pay by contribution", "one without")
        self.strategy = strategy
        self.game = game
        self.folder = Path(folder).expanduser()
        self.round = 0
        self._schedule = Schedule.of(game, replan_every, max_rounds)
        self._budget = Budget(total_budget)
        self.nodes = Nodes(game.clients.size, timeout, arrival_timeout, open=self._schedule.endless)
        self._on_round_end = on_round_end
        self._observers = observers
        self._store = ServerStore(self.folder)
        self._plan, self._negotiation = plan, negotiation or NegotiationOptions()
        self._planning = Planning(
            game,
            self._schedule,
            self._budget,
            self.nodes,
            lambda: self._store,
            self._negotiation,
            self._plan,
            max_missed_rounds,
            unit,
        )
        self._accepted: dict[int, tuple[int, Claim]] = {}  # the last round and claim, by client
        self._current: Round | None = None
        self._max_update = max_update
        self._audit = audit
        self._payment_rule = payment_rule
        self._sent_at = 0.0  # when the messages of this round were sent
        self._unit = unit
        self._run_config = dict(run_config or {})
        self._if_finished = check_if_finished(if_finished)
        self._resumed_after = 0  # rounds that Flower's loop does not count
        self._results = Result()
        self._summarized = False
        self._model: dict[str, messages.AnyArray] = {}  # as sent out in this round

    def summary(self) -> None:
        """Log the configuration of the strategy; in a service once, and not again for every window."""
        if not self._summarized:
            self.strategy.summary()
        self._summarized = self._schedule.endless

    @property
    def deal(self) -> Deal | None:
        """What server and clients agreed on last."""
        return self._planning.deal

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
        server_round += self._resumed_after
        self._update_clients(grid)
        self._model = messages.from_arrays(arrays)
        if isinstance(self.strategy, SelectsClients):
            self.strategy.set_volumes(self.deal.volumes(server_round - 1))
        outgoing = [
            message
            for message in self.strategy.configure_train(server_round, arrays, config, grid)
            if self.clients.get(message.metadata.dst_node_id) in self.deal.commitments
        ]
        for message in outgoing:
            message.content[messages.RECORD] = messages.train_record(server_round - 1, self.nodes.run)
        called, connected = {m.metadata.dst_node_id for m in outgoing}, set(grid.get_node_ids())
        expected = {c for node, c in self.clients.items() if node in called or node not in connected}
        committed = set(self.deal.commitments)
        absent = committed - self.nodes.present
        missing = expected & committed | absent
        unselected = sorted(committed - missing)
        self._current = Round(server_round - 1, self.deal, missing=sorted(missing), unselected=unselected)
        self._sent_at = time.perf_counter()
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
        key = weight_key(self.strategy)
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
                updates |= {} if reason else {client: with_claimed_volume(reply, claim, key)}
        current.refused |= (odd := odd_replies(updates, key))
        updates = {client: update for client, update in updates.items() if client not in odd}
        if self._max_update is not None:
            accepted = {client: sizes[client] for client in updates}
            current.bounded = bound_updates(updates, accepted, self._model, self._max_update)
        current.claims = [claims[client] for client in sorted(updates)]
        self._accepted |= {claim.client: (current.round, claim) for claim in current.claims}
        if self._audit is not None:
            current.scores = self._audit.assess(
                current.round,
                self._model,
                {client: returned_arrays(update) for client, update in updates.items()},
                {claim.client: claim.volume for claim in current.claims},
                time.perf_counter() - self._sent_at,
            )
        valid = [updates[client] for client in sorted(updates)]
        server_round += self._resumed_after
        if isinstance(self.strategy, SelectsClients):
            self.strategy.add_replies(current.round, sorted({*claims, *current.refused}))
        arrays, metrics = self.strategy.aggregate_train(server_round, valid + errors)
        if metrics is not None:
            self._results.train_metrics_clientapp[server_round] = metrics
        unpaid = current.refused | dict.fromkeys(current.missing, NO_REPLY)
        unpaid |= dict.fromkeys(current.unselected, NOT_SELECTED)
        with self._store.ledger(self._unit) as ledger:
            current.entries = ledger.pay(
                current.round,
                current.deal.offer.payment,
                claims.values(),
                unpaid,
                rule=self._payment_rule,
                scores=current.scores,
                budget=self._budget.total,
            )
            current.ledger_head, current.unit = ledger.head(), ledger.unit
        for client in set(self.clients.values()) - set(current.unselected):
            missed = client in current.missing
            self._planning.missed[client] = self._planning.missed.get(client, 0) + 1 if missed else 0
        return arrays, metrics

    def _max_age(self, claim: Claim) -> float:
        """The largest mean age that is possible after the client's last claim.

        A sample that was held then is older by the rounds since; any other is younger than these rounds.
        Hence D(t)·S(t) <= D(s)·S(s) + (t − s)·D(t), where s is the round of the last claim. Equality is the
        law of staleness with everything conserved. Of a first claim, only the order of magnitude is known. In
        a service, the rounds since the client joined count too.
        """
        round, last = self._accepted.get(claim.client, (0, None))
        if last is None or self._current is None or not claim.volume:
            oldest = float(self.game.clients.initial_staleness.max()) + self.game.num_rounds
            if not self._schedule.endless or self._current is None:
                return oldest
            return oldest + self._current.round - self._planning.joined.get(claim.client, 0)
        return self._current.round - round + last.volume * last.mean_age / claim.volume

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy."""
        return self.strategy.configure_evaluate(server_round + self._resumed_after, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the strategy, from replies of clients that it can use."""
        server_round += self._resumed_after
        known = {self.clients.get(reply.metadata.src_node_id): reply for reply in replies}
        given = {client: reply for client, reply in known.items() if client is not None}
        answered = {client: reply for client, reply in given.items() if reply.has_content()}
        if odd := odd_replies(answered, weight_key(self.strategy)):
            log(WARNING, "evaluations that are not used: %s", odd)
        used = [reply for client, reply in given.items() if client not in odd]
        metrics = self.strategy.aggregate_evaluate(server_round, used)
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
        left and counts them from 1; the strategy, `evaluate_fn` and the result count all rounds. A service
        runs the loop once per window. Its number of rounds is `max_rounds`, not `num_rounds`, and its result
        contains the metrics of the last 1,000 rounds.
        """
        if not self._schedule.endless and num_rounds != self.game.num_rounds:
            raise InputError.of("num_rounds", f"that of the game, {self.game.num_rounds}", num_rounds)
        self._open_folder(initial_arrays, train_config)
        configs = train_config, evaluate_config
        with RunDirectory(self.folder, FLOWER).locked(), entered(self._observers):
            return self._run(grid, initial_arrays, num_rounds, timeout, configs, evaluate_fn)

    def _run(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        timeout: float,
        configs: tuple[ConfigRecord | None, ConfigRecord | None],
        evaluate_fn: Evaluate | None,
    ) -> Result:
        """Run or resume, while the observers watch."""
        arrays = self._begin(grid, initial_arrays)
        self._results = self._store.load_results(self.round, KEPT_RESULTS if self._schedule.endless else None)
        evaluate = partial(self._evaluate, evaluate_fn)
        if not self._schedule.endless:
            self._resumed_after = self.round
            left = num_rounds - self.round
            looped = super().start(grid, arrays, left, timeout, *configs, evaluate)
            arrays = looped.arrays or arrays
        else:
            configs = configs[0] or ConfigRecord(), configs[1] or ConfigRecord()
            while rounds := self._next_rounds(grid):
                self._resumed_after = self.round
                looped = super().start(grid, arrays, rounds, timeout, *configs, evaluate)
                arrays = looped.arrays or arrays
        self._results.arrays = arrays
        return self._results

    def _evaluate(
        self, evaluate_fn: Evaluate | None, looped: int, arrays: ArrayRecord
    ) -> MetricRecord | None:
        """What Flower's loop calls before its first round and after every round."""
        if looped == 0 and self._resumed_after:
            return None
        server_round = looped + self._resumed_after
        metrics = evaluate_fn(server_round, arrays) if evaluate_fn else None
        if metrics is not None:
            self._results.evaluate_metrics_serverapp[server_round] = metrics
        if looped:
            self._finish_round(server_round, arrays, metrics)
        elif metrics is not None:
            self._store.add_results(0, self._results)
        return metrics

    def _open_folder(self, arrays: ArrayRecord, train_config: ConfigRecord | None) -> None:
        """Find the folder of the run, which must be new or hold the same run, unfinished."""
        given = str(self.folder)
        if self._if_finished == "new":
            self.folder = unfinished(self.folder, self._is_finished)
            self._store = ServerStore(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = facts_of(
            self.strategy,
            self.game,
            self._plan,
            negotiation=options_facts(self._negotiation),
            max_update=self._max_update,
            payment_rule=self._payment_rule,
            model=model_facts(arrays),
            train_config=train_config or {},
            run_config={name: value for name, value in self._run_config.items() if value != given},
        )
        self.nodes.run = identify(self.folder, facts)
        if self._if_finished == "error" and self._is_finished(self.folder):
            raise finished_error(self.folder)

    def _is_finished(self, folder: Path) -> bool:
        """Whether a folder holds a run that is finished; a service whose budget is spent is not."""
        return self._schedule.left(ServerStore(folder).rounds_done) == 0

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord) -> ArrayRecord:
        """Wait for the clients; then negotiate, or resume. Returns the model to start from."""
        if not self._store.has_deal:
            self._planning.begin(grid)
            return initial_arrays
        self.round, arrays, known = self._store.load_checkpoint(self.strategy, initial_arrays)
        self._check_ledger()
        audited = {name: known.pop(name) for name in list(known) if name.startswith(AUDIT)}
        if self._audit is not None and audited:
            self._audit.restore({name.removeprefix(AUDIT): array for name, array in audited.items()})
        memory = Memory.from_arrays(known)
        self._accepted |= memory.accepted
        self.nodes.keys |= memory.keys
        self._planning.resume(grid, self.round, memory.joined, memory.held)
        return arrays

    def _check_ledger(self) -> None:
        """Raise an error if a finished round is not in the ledger: it would never be paid, nor counted."""
        with self._store.ledger(self._unit) as ledger:
            lost = sorted(set(range(self.round)) - set(ledger.rounds()))
        if lost:
            rule = f"in {ledger.path}, because it is finished: a backup of the whole folder must be restored"
            raise InputError.of(f"round {lost[0]}", rule, "none")

    def _next_rounds(self, grid: Grid) -> int:
        """The number of rounds of a service to run before it is planned again; 0 if it ends."""
        if self._schedule.left(self.round) == 0:
            return 0
        self._update_clients(grid)
        rounds = self._planning.runnable(self.round)
        if not rounds:
            log(INFO, "the service ends after %s rounds: the budget is spent", self.round)
        return rounds

    def _update_clients(self, grid: Grid) -> None:
        """Register new clients and remove lost ones; if it is due, negotiate again."""
        if self.deal is None:
            return
        self._planning.update(grid, self.round)
        if isinstance(self.strategy, PerClient):
            committed = self.deal.commitments
            chosen = {node: client for node, client in self.clients.items() if client in committed}
            self.strategy.set_clients(chosen)

    def _finish_round(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> None:
        """Report the round, then store the model: a server that is killed in between repeats the round."""
        assert self._current is not None
        self._current.metrics = dict(metrics or {})
        self.round = server_round
        self._planning.finish(self._current)
        self._store.add_results(server_round, self._results)
        memory = Memory(self.nodes.keys, self._planning.joined, self._accepted, self._planning.held)
        audited = {} if self._audit is None else self._audit.state()
        known = memory.to_arrays() | {AUDIT + name: array for name, array in audited.items()}
        self._on_round_end(self._current)
        notify(self._observers, self._current)
        self._store.save_checkpoint(self.strategy, self.round, arrays, known)
        total = "" if self._schedule.total is None else f" of {self._schedule.total}"
        log(INFO, "round %s%s: %s", server_round, total, _log_line(self._current))
        log(INFO, "ledger: %s", self._current.ledger_head)
        if self._schedule.endless:
            forget(self._results, server_round - KEPT_RESULTS)


def _log_line(round: Round) -> str:
    refused = f", refused {round.refused}" if round.refused else ""
    for client, ratio in round.bounded.items():
        refused += f", update of client {client} scaled down: {ratio:.3g} times the median size"
    for entry in round.entries:
        if entry.held:
            refused += f", payment of client {entry.client} held back: {entry.reason}"
    missing = f", no reply from {round.missing}" if round.missing else ""
    numbers = {name: value for name, value in round.metrics.items() if isinstance(value, int | float)}
    metrics = "".join(f", {name} {value:.4g}" for name, value in numbers.items())
    updates = f"{len(round.claims)} updates on {round.volume} samples, paid {round.unit.text(round.units)}"
    return f"{updates}{refused}{missing}{metrics}"
