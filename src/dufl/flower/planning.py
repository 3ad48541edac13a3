"""Which clients take part, and under which deal: registers and removes clients, and negotiates when due.

In a run with a last round, a deal covers all rounds that are left. It is negotiated again if clients leave or
return, and after every `replan_every` rounds. In a service, a deal covers a window. Clients that join wait
for the next window; if a client leaves, the others negotiate at once.
"""

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from dufl.errors import DuflError, InputError
from dufl.experiment.service import Unit
from dufl.flower import nodes as polling
from dufl.flower.deal import Deal, NegotiationOptions, NobodyRepliesError, agree, mean_clients
from dufl.flower.nodes import Nodes
from dufl.flower.server_store import Round, ServerStore
from dufl.flower.service import Budget, Range, Schedule
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Game
from dufl.game.population import Clients
from dufl.game.remaining import LEAST_ROUNDS

SPREAD = 0.05  # of first guesses


class SpentError(DuflError):
    """The budget cannot pay for another round."""


@dataclass
class Held:
    """What the clients hold at the beginning of the next round, as far as the server knows.

    Attributes:
        volume: the mean number of samples of a client; 0 if it is not known.
        staleness: the mean age of all samples.
    """

    volume: float = 0.0
    staleness: float = 1.0

    def after(self, current: Round) -> "Held":
        """After a round, by the law of staleness."""
        if not current.volume:
            return self
        announced, at = current.deal.announcement.announced_volume, current.round - current.deal.first_round
        kept = current.deal.offer.conservation_rate
        if at + 1 < len(announced) and announced[at + 1] > 0:
            kept *= float(announced[at] / announced[at + 1])
        return Held(current.volume / len(current.claims), 1 + min(kept, 1.0) * current.mean_age)


class Planning:
    """The clients and the deal of a run.

    Args:
        game: the server's view.
        schedule: the rounds of the run.
        budget: what may be paid.
        nodes: the clients.
        store: keeps the deal.
        options: of the negotiation.
        plan: a known plan for the first deal.
        max_missed_rounds: after how many rounds in a row a silent client is removed.
        unit: of payments; None for that of the ledger in the store.

    Attributes:
        deal: the present one.
        joined: the round of the first deal of every client.
        missed: the number of rounds in a row that every client missed.
        held: what the clients hold.
    """

    def __init__(
        self,
        game: Game,
        schedule: Schedule,
        budget: Budget,
        nodes: Nodes,
        store: Callable[[], ServerStore],
        options: NegotiationOptions,
        plan: Announcement | None,
        max_missed_rounds: int,
        unit: Unit | None,
    ) -> None:
        self.deal: Deal | None = None
        self.joined: dict[int, int] = {}
        self.missed: dict[int, int] = {}
        self.held = Held()
        self._game = game
        self._schedule = schedule
        self._budget = budget
        self._nodes = nodes
        self._store = store
        self._options = options
        self._plan = plan
        self._max_missed_rounds = max_missed_rounds
        self._unit = unit
        self._unwilling: set[int] = set()  # clients that refused to negotiate again
        self._interrupted = False  # the server was killed while clients committed to another deal
        self._capped = False  # whether the budget allowed less than the game
        self._is_spent = False

    def begin(self, grid: Grid) -> None:
        """Wait for the clients, and make the first deal. There is none if the budget pays for no round."""
        try:
            self._begin(grid)
        except SpentError:
            self._is_spent = True

    def _begin(self, grid: Grid) -> None:
        self._nodes.wait_for_clients(grid)
        clients, present = self._game.clients, len(self._nodes.clients)
        if present == clients.size:
            self._negotiate(grid, 0, clients, self._plan)
        else:
            self._negotiate(grid, 0, mean_clients(clients, present))

    def resume(self, grid: Grid, round: int, joined: Mapping[int, int], held: Held | None) -> None:
        """Go on with the deal in the store, before a round, and wait for its clients."""
        deal = self.deal = self._store().load_deal(self._schedule, round)
        self._nodes.left_out |= deal.left_out
        self._nodes.disputes |= set(deal.disputes)
        self._interrupted = self._store().is_negotiating
        self.joined |= dict.fromkeys(deal.commitments, deal.first_round) | dict(joined)
        self.held = held or self.held
        left = self._schedule.left(round)
        if left is None or left:
            self._wait_for(grid, set(deal.commitments) - set(deal.left_out))

    def _wait_for(self, grid: Grid, expected: set[int]) -> None:
        """Wait for the clients of a deal; a service goes on with those that are there."""
        try:
            self._nodes.wait_for_clients(grid, len(expected))
        except InputError:
            if not self._schedule.endless or not self._nodes.clients:
                raise
            log(WARNING, "clients %s have not come back", sorted(expected - self._nodes.present))

    def update(self, grid: Grid, round: int) -> None:
        """Register new clients and remove lost ones before a round; negotiate again if it is due."""
        endless = self._schedule.endless
        if endless and self._is_over(round):
            self._nodes.reconsider(grid)
        self._nodes.register_nodes(grid, once=endless)
        self._nodes.remove(c for c, missed in self.missed.items() if missed >= self._max_missed_rounds)
        if endless and not self._nodes.present:
            log(WARNING, "no client is left: waiting for one")
            self._nodes.reconsider(grid)
            self._nodes.wait_for_clients(grid, 1)
        if self.deal is not None and self._is_due(round):
            self._plan_again(grid, round)

    def runnable(self, round: int) -> int:
        """How many rounds can be run under the deal, from a round on. None can be if the budget is spent."""
        deal, rounds = self.deal, self._schedule.to_run(round)
        if deal is None or self._is_spent:
            return 0
        if not self._schedule.endless:
            return rounds
        if self._capped and not self._unit_of().count(deal.offer.payment):
            return 0
        planned = max(deal.first_round + (self._schedule.every or 1) - round, 1)
        payable = self._payable()
        return min(rounds, planned, planned if payable is None else payable)

    def finish(self, current: Round) -> None:
        """Take note of a round that is over."""
        self.held = self.held.after(current)

    def _is_over(self, round: int) -> bool:
        """Whether the rounds for which a deal was made are over, or can be paid no longer."""
        deal, every = self.deal, self._schedule.every
        if deal is None or self._interrupted:
            return True
        if every is not None and round - deal.first_round >= every:
            return True
        return self._schedule.endless and self._payable() == 0

    def _is_due(self, round: int) -> bool:
        assert self.deal is not None
        present, committed = self._nodes.present, set(self.deal.commitments)
        if self._schedule.planned(round) < LEAST_ROUNDS or not present:
            return False
        if self._is_over(round) and (self._schedule.endless or present != self._unwilling):
            return True
        settled = committed <= present if self._schedule.endless else committed == present
        return not settled and present != self._unwilling

    def _plan_again(self, grid: Grid, round: int) -> None:
        """Negotiate; if it fails, the deal stays, unless it is over or clients have left it already."""
        began = time.monotonic()
        while True:
            present = self._nodes.present
            log(INFO, "negotiating again from round %s on, with clients %s", round, sorted(present))
            self.missed.clear()
            commits = self._nodes.commits
            try:
                self._negotiate(grid, round, self._guess(len(present)))
                return
            except SpentError:
                self._is_spent = True
                return
            except DuflError as error:  # perhaps too few are left for a sum that hides each of them
                if not self._schedule.endless and not isinstance(error, NobodyRepliesError):
                    raise
                if self._stays(round, commits):
                    log(WARNING, "the deal stays as it was: %s", error)
                    self._unwilling = self._nodes.present
                    self._store().end_negotiation()
                    return
                if time.monotonic() - began > self._nodes.arrival_timeout:
                    raise
                log(WARNING, "the negotiation is repeated: %s", error)
            time.sleep(polling.POLL)
            self._nodes.reconsider(grid)
            self._nodes.register_nodes(grid)
            if not self._nodes.present:
                self._nodes.wait_for_clients(grid, 1)

    def _stays(self, round: int, commits: int) -> bool:
        """Whether the deal still holds after a negotiation that failed."""
        assert self.deal is not None
        committed = self._interrupted or self._nodes.commits > commits
        return not committed and round < self.deal.num_rounds and self._payable() != 0

    def _guess(self, count: int) -> Clients:
        """Equal clients that hold what the clients held last: a first guess.

        It depends a little on who they are: a client refuses to answer the same under two rosters.
        """
        clients = self._game.clients
        own = 1 + SPREAD * zlib.crc32(repr(sorted(self._nodes.present)).encode()) / 2**32
        held = self.held.volume or float(mean_clients(clients, 1).initial_volume[0])
        return mean_clients(clients, count, self.held.staleness, own * held)

    def _negotiate(self, grid: Grid, round: int, clients: Clients, plan: Announcement | None = None) -> None:
        payments, rounds = self._payments(round), self._schedule.planned(round)
        view = self._game.replace(
            clients=clients, num_rounds=rounds, horizon="finite", payment_range=payments
        )
        if plan is not None and not plan.offer.payment <= payments[1]:
            rule = f"at most {payments[1]:g} per round, so that the budget can pay for all rounds"
            raise InputError.of("plan", rule, plan.offer.payment)
        capacity = float(self._game.clients.capacity.max())
        self._store().begin_negotiation()
        deal = self.deal = agree(self._nodes, grid, view, round, self._options, plan, capacity)
        self._store().save_deal(deal)
        self._interrupted = False
        self._capped = payments != self._game.payment_range
        self.joined = dict.fromkeys(deal.commitments, round) | self.joined

    def _payments(self, round: int) -> Range:
        """The payments that the budget can pay in all rounds for which a deal is made."""
        allowed, endless = self._game.payment_range, self._schedule.endless
        rounds, spent, unit = self._schedule.to_run(round), self._spent(), self._unit_of()
        payments = self._budget.payment_range(allowed, rounds, spent, unit, fewer=endless)
        if payments is None and endless:
            raise SpentError("the budget is spent")
        if payments is None:
            rule = f"enough for {rounds} rounds of at least {allowed[0]:g}"
            raise InputError.of("service.total_budget", rule, self._budget.total)
        return payments

    def _payable(self) -> int | None:
        """How many rounds of the deal the budget can pay; None for any number."""
        if self._budget.total is None or self.deal is None:
            return None
        return self._budget.payable(self.deal.offer.payment, self._spent(), self._unit_of())

    def _spent(self) -> int:
        """What is paid already, in units."""
        if self._budget.total is None:
            return 0
        with self._store().ledger(self._unit) as ledger:
            return ledger.total()

    def _unit_of(self) -> Unit:
        if self._unit is None and self._budget.total is None:
            return Unit()
        if self._unit is None:
            with self._store().ledger() as ledger:
                self._unit = ledger.unit
        return self._unit
