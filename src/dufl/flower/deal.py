"""What server and clients agree on, and how they come to it over the messages."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from logging import INFO, WARNING

import numpy as np
from flwr.app import RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dufl.errors import DuflError, InputError
from dufl.experiment.files import from_json, to_json
from dufl.flower import messages
from dufl.flower.masking import unmasked
from dufl.flower.nodes import Nodes, SilentError
from dufl.game.dynamics import Array
from dufl.game.leader import Algorithm1Options
from dufl.game.negotiation import Question, negotiate
from dufl.game.parameters import Game
from dufl.game.plan import Method
from dufl.game.population import Clients


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
        found = from_json(text)
        hashes = {int(client): tuple(map(bytes.fromhex, h)) for client, h in found["hashes"].items()}
        return cls(**found | {"announced_volume": np.array(found["announced_volume"]), "hashes": hashes})


@dataclass(frozen=True)
class NegotiationOptions:
    """How a deal is found.

    Attributes:
        method: see `dufl.solve`.
        algorithm1: likewise.
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
    how: NegotiationOptions,
    plan: Question | None = None,
) -> Deal:
    """Find payment, conservation rate and the clients' plans, by asking them.

    Clients that do not answer are left out, and the others are asked again.

    Args:
        nodes: who is asked.
        grid: the way to them.
        game: the server's view, from `first_round` on.
        first_round: of the plan.
        how: it is found.
        plan: (R, θ, φ), if it is known already; then clients are only asked to commit themselves.
    """
    while True:
        try:
            deal = _agree(nodes, grid, game, first_round, how, plan)
        except SilentError as silent:
            if plan is not None or len(silent.clients) == len(nodes.clients):
                names = sorted(silent.clients)
                raise DuflError(f"clients {names} must answer before training, but did not") from None
            log(WARNING, "clients %s do not answer: negotiating without them", silent.clients)
            nodes.leave_out(silent.clients)
            game = game.replace(clients=mean_clients(game.clients, len(nodes.clients)))
            continue
        said = "agreed after %s phases: R = %.2f, θ = %.3f"
        log(INFO, said, deal.phases, deal.payment, deal.conservation_rate)
        return deal


def _agree(
    nodes: Nodes, grid: Grid, game: Game, first_round: int, how: NegotiationOptions, plan: Question | None
) -> Deal:
    residual, before = 0.0, nodes.phases
    if plan is None:

        def ask(questions: Sequence[Question]) -> Sequence[Array]:
            return _sums(nodes, grid, first_round, how.masked, questions)

        found = negotiate(game, ask, method=how.method, algorithm1=how.algorithm1)
        plan = Question(found.payment, found.conservation_rate, found.announced_volume)
        residual = found.residual
    asked = messages.Questions(_name(), first_round, {}, [plan])
    rounds = len(plan.announced_volume)
    said = nodes.ask_all(
        grid, messages.COMMIT, asked, lambda records: messages.Commitment.read(records, rounds)
    )
    hashes = {commitment.client: commitment.hashes for commitment in said}
    phases = nodes.phases - before
    return Deal(
        plan.payment, plan.conservation_rate, plan.announced_volume, first_round, hashes, phases, residual
    )


def _sums(
    nodes: Nodes, grid: Grid, first_round: int, masked: bool, questions: Sequence[Question]
) -> Sequence[Array]:
    """The sum of all clients' answers to each question."""
    roster = {client: nodes.keys[client] for client in nodes.clients.values()} if masked else {}
    asked = messages.Questions(_name(), first_round, roster, questions)
    shape = len(questions), len(questions[0].announced_volume)

    def read(records: RecordDict) -> messages.Answer:
        return messages.Answer.read(records, shape, masked)

    answers = [answer.volumes for answer in nodes.ask_all(grid, messages.BEST_RESPONSE, asked, read)]
    total = np.sum(answers, axis=0, dtype=answers[0].dtype)
    volumes = unmasked(total) if masked else total
    if not messages.are_volumes(volumes):
        raise InputError(
            "the sum of the clients' answers must be volumes, but some client's answer is nonsense: "
            "negotiate with masked=False to see whose"
        )
    return list(volumes)


def _name() -> str:
    """For questions; no others have it, also after a restart."""
    return str(time.time_ns())


def mean_clients(people: Clients, count: int, staleness: float | None = None) -> Clients:
    """So many clients, all like the mean of some: a first guess."""
    shares = people.multiplicity / people.multiplicity.sum()
    return Clients(
        float(shares @ people.initial_volume),
        float(shares @ people.collection_cost),
        float(shares @ people.training_cost),
        people.initial_mean_staleness if staleness is None else staleness,
        count=count,
    )
