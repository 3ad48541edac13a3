"""The deal between server and clients: how it is negotiated, and how updates are checked against it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dufl.errors import DuflError, InputError
from dufl.experiment.files import from_json, to_json
from dufl.flower import messages
from dufl.flower.ledger import Claim
from dufl.flower.masking import unmask
from dufl.flower.nodes import Nodes, NoReplyError
from dufl.game.dynamics import Array
from dufl.game.leader import Algorithm1Options
from dufl.game.negotiation import Announcement, negotiate
from dufl.game.parameters import Game, Offer
from dufl.game.plan import Method
from dufl.game.population import Clients
from dufl.learning.algorithm import bad_values

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Deal:
    """What server and clients agreed on.

    Attributes:
        announcement: the offer, and φ(t) from `first_round` on.
        first_round: of the plan.
        commitments: the hashes that every client committed to, one per round.
        phases: the number of phases of messages that it took.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
    """

    announcement: Announcement
    first_round: int
    commitments: Mapping[int, tuple[bytes, ...]]
    phases: int
    residual: float

    @property
    def offer(self) -> Offer:
        """(R, θ)."""
        return self.announcement.offer

    @property
    def num_rounds(self) -> int:
        """The number of rounds of the run, those before `first_round` included."""
        return self.first_round + len(self.announcement.announced_volume)

    def is_kept_by(self, claim: Claim, round: int) -> bool:
        """Whether a claim opens the client's commitment for a round."""
        hashes, at = self.commitments.get(claim.client, ()), round - self.first_round
        expected = messages.commitment_hash(claim.committed, claim.nonce)
        return 0 <= at < len(hashes) and expected == hashes[at]

    def to_json(self) -> str:
        """The text of `deal.json`."""
        commitments = {str(client): [h.hex() for h in hashes] for client, hashes in self.commitments.items()}
        values = {
            **self.offer.model_dump(),
            "announced_volume": self.announcement.announced_volume.tolist(),
            "trim_start": self.announcement.trim_start,
            "first_round": self.first_round,
            "commitments": commitments,
            "phases": self.phases,
            "residual": self.residual,
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
            {int(client): tuple(map(bytes.fromhex, h)) for client, h in values["commitments"].items()},
            values["phases"],
            values["residual"],
        )


@dataclass(frozen=True)
class NegotiationOptions:
    """How a deal is negotiated.

    Attributes:
        method: see `dufl.solve`.
        algorithm1: see `dufl.solve`.
        masked: whether the server sees only the sum of the clients' answers.
    """

    method: Method = "stackelberg"
    algorithm1: Algorithm1Options | None = None
    masked: bool = True


def agree(
    nodes: Nodes,
    grid: Grid,
    game: Game,
    first_round: int,
    options: NegotiationOptions,
    plan: Announcement | None = None,
) -> Deal:
    """Find an offer and the clients' plans by asking the clients, and let the clients commit to their plans.

    Clients that do not reply are removed, and the negotiation starts again with the others.

    Args:
        nodes: the clients.
        grid: sends the messages.
        game: the server's view, from `first_round` on.
        first_round: of the plan.
        options: of the negotiation.
        plan: a known plan; clients are then only asked to commit to it.

    Raises:
        DuflError: if no client replies, or if any client does not reply although the plan is known.
    """
    while True:
        try:
            deal = _agree(nodes, grid, game, first_round, options, plan)
        except NoReplyError as error:
            missing = sorted(error.clients)
            if plan is not None or len(missing) == len(nodes.clients):
                raise DuflError(f"no reply from clients {missing} before the first round") from None
            log(WARNING, "no reply from clients %s: negotiating without them", missing)
            nodes.remove(missing)
            game = game.replace(clients=mean_clients(game.clients, len(nodes.clients)))
            continue
        offer = deal.offer
        text = "agreed after %s phases: R = %.2f, θ = %.3f"
        log(INFO, text, deal.phases, offer.payment, offer.conservation_rate)
        return deal


def _agree(
    nodes: Nodes,
    grid: Grid,
    game: Game,
    first_round: int,
    options: NegotiationOptions,
    plan: Announcement | None,
) -> Deal:
    residual, before = 0.0, nodes.phases
    if plan is None:

        def ask(announcements: Sequence[Announcement]) -> Sequence[Array]:
            return _total_answers(nodes, grid, first_round, options.masked, announcements)

        negotiated = negotiate(game, ask, method=options.method, algorithm1=options.algorithm1)
        plan, residual = negotiated.announcement, negotiated.residual
    query = messages.Query(_query_id(), first_round, {}, [plan])
    rounds = len(plan.announced_volume)
    replies = nodes.ask_all(
        grid, messages.COMMIT, query, lambda records: messages.Commitment.read(records, rounds)
    )
    commitments = {reply.client: reply.hashes for reply in replies}
    return Deal(plan, first_round, commitments, nodes.phases - before, residual)


def _total_answers(
    nodes: Nodes, grid: Grid, first_round: int, masked: bool, announcements: Sequence[Announcement]
) -> Sequence[Array]:
    """The sum of all clients' answers to each announcement."""
    roster = {client: nodes.keys[client] for client in nodes.clients.values()} if masked else {}
    query = messages.Query(_query_id(), first_round, roster, announcements)
    shape = len(announcements), len(announcements[0].announced_volume)

    def read(records: RecordDict) -> messages.Answer:
        return messages.Answer.read(records, shape, masked)

    answers = [answer.volumes for answer in nodes.ask_all(grid, messages.BEST_RESPONSE, query, read)]
    total = np.sum(answers, axis=0, dtype=answers[0].dtype)
    volumes = unmask(total) if masked else total
    if not messages.are_volumes(volumes):
        raise InputError(
            "the sum of the clients' answers must be finite and >= 0: at least one masked answer is invalid; "
            "negotiate with masked=False to identify the client",
            field="volumes",
        )
    return list(volumes)


def _query_id() -> str:
    """Unique, also across restarts of the server."""
    return str(time.time_ns())


def mean_clients(clients: Clients, count: int, staleness: float | None = None) -> Clients:
    """`count` equal clients with the mean properties of `clients`: a first guess for a negotiation."""
    weights = clients.multiplicity / clients.multiplicity.sum()
    return Clients(
        float(weights @ clients.initial_volume),
        float(weights @ clients.collection_cost),
        float(weights @ clients.training_cost),
        clients.initial_mean_staleness if staleness is None else staleness,
        count=count,
    )


def check_reply(
    reply: Message, client: int, round: int, deal: Deal, shapes: Shapes
) -> tuple[Claim | None, str]:
    """Check a client's claim and update. The claim is removed from the reply.

    Args:
        reply: of the client.
        client: the number of the client that is registered at the node.
        round: t, from 0.
        deal: what the client agreed to.
        shapes: of the weights that were sent out.

    Returns:
        The claim, if there is one, and why the update is refused; empty if it is accepted.
    """
    try:
        claim = messages.read_claim(reply.content)
    except InputError as error:
        return None, f"no valid claim: {error}"
    del reply.content[messages.RECORD]
    if claim.client != client:
        return claim, f"claims to be client {claim.client}"
    if not deal.is_kept_by(claim, round):
        return claim, f"claims a commitment to {claim.committed} samples that it has not made"
    return claim, claim.refusal or _check_weights(reply, shapes)


def _check_weights(reply: Message, shapes: Shapes) -> str:
    arrays: dict[str, messages.AnyArray] = {}
    try:
        for record in reply.content.array_records.values():
            arrays |= messages.from_arrays(record)
    except InputError:
        return "unreadable weights"
    if {name: array.shape for name, array in arrays.items()} != shapes:
        return "weights of the wrong shape"
    return bad_values(*arrays.values())


def with_claimed_volume(reply: Message, claim: Claim) -> Message:
    """The reply, weighted by the volume that the client claims."""
    for record in reply.content.metric_records.values():
        if "num-examples" in record:
            record["num-examples"] = claim.volume
    return reply
