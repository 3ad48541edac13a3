"""The deal between server and clients, and how it is negotiated."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import ERROR, INFO, WARNING
from typing import Any

import numpy as np
from flwr.common.logger import log
from flwr.serverapp import Grid

from dufl.errors import DuflError, InputError
from dufl.experiment.files import from_json, to_json
from dufl.flower import messages
from dufl.flower.cost_fit import Bounds
from dufl.flower.ledger import Claim
from dufl.flower.masking import UNIT, unmask
from dufl.flower.nodes import Nodes, NoReplyError
from dufl.flower.verification import (
    ROUNDING,
    TOLERANCE,
    Asked,
    add_up,
    coarse_grids,
    disagreements,
    distrusted,
    false_answers,
    fitted_clients,
    fitting_slack,
    impossible_commitments,
    inconsistent_commitments,
    opened_answers,
)
from dufl.game.client import best_response
from dufl.game.dynamics import Array
from dufl.game.leader import Algorithm1Options
from dufl.game.negotiation import Announcement, negotiate
from dufl.game.parameters import Game, Offer
from dufl.game.plan import Method, solve
from dufl.game.population import Clients

OPEN_PHASES = 4  # of commitments in a deal from open commitments alone


@dataclass(frozen=True, eq=False)
class Deal:
    """What server and clients agreed on.

    Attributes:
        announcement: the offer, and φ(t) from `first_round` on.
        first_round: of the plan.
        commitments: the volumes that every client committed to, one per round.
        phases: the number of phases of messages that it took.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
        left_out: the clients that were left out for good, in this deal or an earlier one, and why.
        disputes: the pairs of clients that disagreed on a key of their masks, in this deal or an earlier one.
    """

    announcement: Announcement
    first_round: int
    commitments: Mapping[int, tuple[int, ...]]
    phases: int
    residual: float
    left_out: Mapping[int, str] = field(default_factory=dict)
    disputes: Collection[tuple[int, int]] = ()

    @property
    def offer(self) -> Offer:
        """(R, θ)."""
        return self.announcement.offer

    @property
    def num_rounds(self) -> int:
        """The number of rounds of the run, those before `first_round` included."""
        return self.first_round + len(self.announcement.announced_volume)

    def volumes(self, round: int) -> dict[int, int]:
        """The volume that every client committed to in a round of the plan."""
        at = round - self.first_round
        return {client: each[at] for client, each in self.commitments.items() if 0 <= at < len(each)}

    def is_kept_by(self, claim: Claim, round: int) -> bool:
        """Whether a claim states the volume that the client committed to in a round."""
        volumes, at = self.commitments.get(claim.client, ()), round - self.first_round
        return 0 <= at < len(volumes) and claim.committed == volumes[at]

    def to_json(self) -> str:
        """The text of `deal.json`."""
        values = {
            **self.offer.model_dump(),
            "announced_volume": self.announcement.announced_volume.tolist(),
            "trim_start": self.announcement.trim_start,
            "first_round": self.first_round,
            "commitments": {str(client): list(volumes) for client, volumes in self.commitments.items()},
            "phases": self.phases,
            "residual": self.residual,
            "left_out": {str(client): reason for client, reason in self.left_out.items()},
            "disputes": sorted(map(list, self.disputes)),
        }
        return to_json(values)

    @classmethod
    def from_json(cls, text: str) -> "Deal":
        """From the text of `deal.json`."""
        values: dict[str, Any] = from_json(text)
        offer = Offer(payment=values["payment"], conservation_rate=values["conservation_rate"])
        return cls(
            Announcement(
                offer, np.array(values["announced_volume"], np.float64), bool(values.get("trim_start"))
            ),
            values["first_round"],
            {int(client): tuple(map(int, each)) for client, each in values["commitments"].items()},
            values["phases"],
            values["residual"],
            {int(client): str(reason) for client, reason in values["left_out"].items()},
            {(int(one), int(other)) for one, other in values.get("disputes", [])},
        )


@dataclass(frozen=True)
class NegotiationOptions:
    """How a deal is negotiated.

    Attributes:
        method: see `dufl.solve`.
        algorithm1: see `dufl.solve`.
        masked: whether the server sees only the sum of the clients' answers. If not, clients must allow it.
        cost_bounds: the lowest and the highest costs that a commitment may imply, as factors of the mean
            costs in the server's view.
        commitment_grid: clients commit to multiples of this number, unless they have a grid of their own.
    """

    method: Method = "stackelberg"
    algorithm1: Algorithm1Options | None = None
    masked: bool = True
    cost_bounds: tuple[float, float] = (1e-6, 1e6)
    commitment_grid: int = 1


class NobodyRepliesError(DuflError):
    """No client replies, or all refuse."""


class LeftOutError(Exception):
    """Some clients sent what cannot be true."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class NobodyToBlameError(Exception):
    """The negotiation failed, and no client is known to have caused it."""


def agree(
    nodes: Nodes,
    grid: Grid,
    game: Game,
    first_round: int,
    options: NegotiationOptions,
    plan: Announcement | None = None,
    capacity: float = math.inf,
) -> Deal:
    """Find an offer and the clients' plans by asking the clients, and let the clients commit to their plans.

    Clients that do not reply are removed, and those that send what cannot be true are left out for good. The
    negotiation then starts again with the others. If too few are left for sums that hide each of them, or if
    the negotiation fails and nobody is to blame, the deal is made from open commitments alone.

    Args:
        nodes: the clients.
        grid: sends the messages.
        game: the server's view, from `first_round` on.
        first_round: of the plan.
        options: of the negotiation.
        plan: a known plan; clients are then only asked to commit to it.
        capacity: the largest number of samples that a client may commit to.

    Raises:
        NobodyRepliesError: if no client replies, or if all refuse the first query.
        DuflError: if no client can be trusted.
    """
    tried: list[str] = []
    openly = False
    while True:
        try:
            make = _agree_openly if openly else _agree
            deal = make(nodes, grid, game, first_round, options, plan, capacity)
        except NoReplyError as error:
            missing = sorted(error.clients)
            if len(missing) < len(nodes.clients):
                level = WARNING if plan is None else ERROR
                log(level, "no reply from clients %s: negotiating without them", missing)
                tried.append(f"negotiated without clients {missing}, which did not reply")
                nodes.remove(missing)
            elif tried and not openly:
                tried.append(_go_on_openly("; ".join(nodes.errors(missing)) or "no client replies"))
                openly = True
            else:
                raise NobodyRepliesError(_nobody_replies(nodes, missing, tried)) from None
        except LeftOutError as error:
            if len(error.reasons) == len(nodes.clients):
                raise DuflError(f"no client can be trusted: {dict(error.reasons)}") from None
            nodes.leave_out(error.reasons)
            tried.append(f"left out clients {sorted(error.reasons)}")
        except NobodyToBlameError as error:
            tried.append(_go_on_openly(str(error)))
            openly = True
        else:
            offer = deal.offer
            text = "agreed after %s phases: R = %.2f, θ = %.3f"
            log(INFO, text, deal.phases, offer.payment, offer.conservation_rate)
            return deal
        plan, game = None, game.replace(clients=mean_clients(game.clients, len(nodes.clients)))


def _go_on_openly(why: str) -> str:
    log(WARNING, "the deal is made from open commitments, because the negotiation failed: %s", why)
    return f"made the deal from open commitments, because the negotiation failed ({why})"


def _nobody_replies(nodes: Nodes, clients: Sequence[int], tried: Sequence[str]) -> str:
    told = [f"no reply from clients {clients} before the first round", *nodes.errors(clients)]
    if tried:
        told.append(f"tried before: {', then '.join(tried)}")
    return "; ".join(told)


def _agree(
    nodes: Nodes,
    grid: Grid,
    game: Game,
    first_round: int,
    options: NegotiationOptions,
    plan: Announcement | None,
    capacity: float,
) -> Deal:
    """A deal on a known plan, or one that is negotiated."""
    before, bounds = nodes.phases, _cost_bounds(game.clients, options.cost_bounds)
    commit = partial(_commit, nodes, grid, first_round, bounds, capacity, options.commitment_grid)
    if plan is not None:
        commitments = commit(plan)
        _check_known(game.clients, plan, commitments, nodes.grids)
        return _deal(nodes, plan, first_round, commitments, before, 0.0)
    asked: list[Asked] = []

    def ask(announcements: Sequence[Announcement]) -> Sequence[Array]:
        asked.append(_ask(nodes, grid, first_round, options.masked, announcements))
        return _total(asked[-1])

    try:
        negotiated = negotiate(game, ask, method=options.method, algorithm1=options.algorithm1)
    except (DuflError, ValueError, ArithmeticError) as error:
        if not asked:
            raise
        # The answers may be false: of the first query, the offers at least make sense.
        commitments = commit(asked[0].query.announcements[0])
        _attribute(nodes, grid, asked[::-1], commitments, bounds)
        raise NobodyToBlameError(str(error)) from error
    commitments = commit(negotiated.announcement)
    if not add_up(commitments, negotiated.total_volume, ROUNDING + UNIT, nodes.grids):
        _attribute(nodes, grid, asked, commitments, bounds)
        raise NobodyToBlameError("the commitments do not add up to the answers")
    plan, residual = negotiated.announcement, negotiated.residual
    return _deal(nodes, plan, first_round, commitments, before, residual)


def _agree_openly(
    nodes: Nodes,
    grid: Grid,
    game: Game,
    first_round: int,
    options: NegotiationOptions,
    plan: Announcement | None,
    capacity: float,
) -> Deal:
    """A deal from commitments alone, which are open and can be checked one by one.

    The first plan is the best one for the server's guess. Each further plan is the best one for the costs
    that fit the commitments so far, so that the commitments add up to the volume that is announced.
    """
    before, bounds = nodes.phases, _cost_bounds(game.clients, options.cost_bounds)
    commit = partial(_commit, nodes, grid, first_round, bounds, capacity, options.commitment_grid)
    plans: list[Announcement] = []
    given: list[dict[int, tuple[int, ...]]] = []
    while True:
        view = game.replace(clients=fitted_clients(game.clients, plans, given, bounds)) if plans else game
        solved = solve(view, method=options.method, algorithm1=options.algorithm1, certified=False)
        plan = Announcement(solved.offer, solved.equilibrium.announced_volume, game.trims)
        plans.append(plan)
        given.append(commit(plan))
        if reasons := inconsistent_commitments(plans, given, bounds, nodes.grids):
            raise LeftOutError(reasons)
        total = np.sum(list(given[-1].values()), axis=0)
        residual = float(np.abs(total / plan.announced_volume - 1).max())
        settled = add_up(given[-1], plan.announced_volume, ROUNDING + TOLERANCE, nodes.grids)
        if settled or len(plans) == OPEN_PHASES:
            return _deal(nodes, plan, first_round, given[-1], before, residual)


def _deal(
    nodes: Nodes,
    plan: Announcement,
    first_round: int,
    commitments: Mapping[int, tuple[int, ...]],
    before: int,
    residual: float,
) -> Deal:
    phases, left_out, disputes = nodes.phases - before, dict(nodes.left_out), frozenset(nodes.disputes)
    return Deal(plan, first_round, commitments, phases, residual, left_out, disputes)


def _cost_bounds(clients: Clients, factors: tuple[float, float]) -> Bounds:
    mean = mean_clients(clients, 1)
    collection = float(mean.collection_cost[0])
    training = max(float(mean.training_cost[0]), factors[0] * collection)
    low, high = factors
    return (low * collection, high * collection), (low * training, high * training)


def _commit(
    nodes: Nodes,
    grid: Grid,
    first_round: int,
    bounds: Bounds,
    capacity: float,
    step: int,
    plan: Announcement,
) -> dict[int, tuple[int, ...]]:
    """The volumes that every client commits to; `nodes` then has the grids of the commitments."""
    records = messages.Query(_query_id(), first_round, {}, [plan], nodes.run, step).to_records()
    rounds = len(plan.announced_volume)
    replies = nodes.ask_all(grid, messages.COMMIT, records, lambda r: messages.Commitment.read(r, rounds))
    commitments = {reply.client: reply.volumes for reply in replies}
    nodes.grids = {reply.client: reply.grid for reply in replies}
    reasons = coarse_grids(plan, nodes.grids, step)
    if reasons := reasons or impossible_commitments(plan, commitments, bounds, capacity, nodes.grids):
        raise LeftOutError(reasons)
    return commitments


def _check_known(
    clients: Clients, plan: Announcement, commitments: Mapping[int, Sequence[int]], grids: Mapping[int, int]
) -> None:
    """If commitments do not add up to a known plan, find the clients whose costs are not the known ones."""
    if add_up(commitments, plan.announced_volume, ROUNDING + TOLERANCE, grids):
        return
    held = np.minimum(np.floor(clients.initial_volume + 0.5), np.floor(clients.capacity))
    known, _ = best_response(
        plan.price,
        held,
        clients.collection_cost,
        clients.training_cost,
        plan.offer.conservation_rate,
        plan.trim_start,
        capacity=clients.capacity,
        collection_price=clients.collection_price,
        training_price=clients.training_price,
    )
    reasons = {}
    for client, volumes in commitments.items():
        difference = np.abs(known[:, client] - np.array(volumes, np.float64)).max()
        if difference > fitting_slack(client, grids):
            reasons[client] = f"its commitment differs from the known plan by {difference:g} samples"
    if 0 < len(reasons) < len(commitments):
        raise LeftOutError(reasons)
    log(
        WARNING,
        "the commitments do not add up to the plan: the server does not have the costs of the clients",
    )


def _ask(
    nodes: Nodes, grid: Grid, first_round: int, masked: bool, announcements: Sequence[Announcement]
) -> Asked:
    """All clients' answers to some announcements."""
    roster = {client: nodes.keys[client] for client in nodes.clients.values()} if masked else {}
    query = messages.Query(_query_id(), first_round, roster, announcements, nodes.run)
    shape = len(announcements), len(announcements[0].announced_volume)
    replies = nodes.ask_all(
        grid, messages.BEST_RESPONSE, query.to_records(), lambda r: messages.Answer.read(r, shape, masked)
    )
    return Asked(query, {reply.client: reply.volumes for reply in replies})


def _total(asked: Asked) -> Sequence[Array]:
    """The sum of all clients' answers to each announcement."""
    answers = list(asked.answers.values())
    total = np.sum(answers, axis=0, dtype=answers[0].dtype)
    volumes: Array = unmask(np.asarray(total)) if asked.query.roster else np.asarray(total)
    if not messages.are_volumes(volumes):
        raise InputError("the sum of the clients' answers must be finite and >= 0", field="volumes")
    return list(volumes)


def _attribute(
    nodes: Nodes,
    grid: Grid,
    asked: Sequence[Asked],
    commitments: Mapping[int, Sequence[int]],
    bounds: Bounds,
) -> None:
    """Raise `LeftOutError` for the clients whose answers are false, if there are any.

    Clients have committed to the first announcement of the last query.
    """
    queries, roster = [each.query for each in asked], asked[-1].query.roster
    if not roster:
        answers = {client: [each.answers[client] for each in asked] for client in commitments}
        reasons = false_answers(queries, answers, commitments, bounds, nodes.grids)
    else:
        request = messages.OpenQueries(tuple(query.mask_id for query in queries), roster)
        log(
            WARNING,
            "the answers of the clients do not make sense: removing the masks of %s queries",
            len(asked),
        )
        replies = nodes.ask_all(
            grid,
            messages.OPEN,
            request.to_records(),
            lambda records: messages.MaskKeys.read(records, len(queries), roster),
        )
        keys = {reply.client: reply.keys for reply in replies}
        nodes.disputes |= (pairs := disagreements(keys))
        if pairs:
            log(WARNING, "pairs of clients disagree on the keys of their masks: %s", sorted(pairs))
        opened = opened_answers(asked, keys)
        reasons = false_answers(queries, opened, commitments, bounds, nodes.grids)
        reasons = reasons or distrusted(nodes.disputes, keys.keys())
    if reasons:
        raise LeftOutError(reasons)


def _query_id() -> str:
    """Unique, also across restarts of the server."""
    return str(time.time_ns())


def mean_clients(
    clients: Clients, count: int, staleness: float | None = None, volume: float | None = None
) -> Clients:
    """`count` equal clients with the mean properties of `clients`: a first guess for a negotiation.

    Args:
        clients: the clients that are known.
        count: of the clients in the guess.
        staleness: of what they hold; None for the mean.
        volume: how much they hold; None for the mean. It fits into their buffers in any case.
    """
    weights = clients.multiplicity / clients.multiplicity.sum()
    held = float(weights @ clients.initial_volume) if volume is None else volume
    return Clients(
        held,
        float(weights @ clients.collection_cost),
        float(weights @ clients.training_cost),
        clients.initial_mean_staleness if staleness is None else staleness,
        max(float(weights @ clients.capacity), held),
        float(weights @ clients.collection_price),
        float(weights @ clients.training_price),
        count=count,
    )
