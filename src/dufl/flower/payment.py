"""Who is paid how much for a round: what clients claim, what the audit says, and how a payment is shared.

Amounts are integers: numbers of units, the smallest amount that is paid. The payment R of a round is shared
among the clients whose updates were used; indivisible units go to the largest remainders. The shares of a
round therefore add up to R, whoever gets them. There are three rules:

volume        in proportion to the volume that each client trained on, as in the paper
audited       the same; but the share of a client under suspicion is held back until it is cleared
contribution  in proportion to what the updates of each client contributed, as measured by an audit
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import get_args

from dufl.errors import InputError
from dufl.experiment.service import PaymentRule

NO_REPLY = "no reply"
NOT_SELECTED = "not selected in this round"
SPENT = "the budget is spent"
NO_CONTRIBUTION = "no contribution to the model"
LARGEST = 2**63 - 1  # the largest integer in a database
LONGEST = 500  # maximum number of characters of a reason
NONE: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class Claim:
    """What a client claims for a round that it trained in.

    Attributes:
        client: the number of the client.
        volume: the number of samples that it trained on.
        committed: the number of samples that it committed to.
        mean_age: of the samples.
        classes: the number of classes among them.
    """

    client: int
    volume: int
    committed: int
    mean_age: float
    classes: int

    @property
    def refusal(self) -> str:
        """Why it is not paid; empty if it is."""
        if self.volume > self.committed:
            return f"claimed {self.volume} samples, committed to {self.committed}"
        return "" if self.volume > 0 else "no samples"


@dataclass(frozen=True)
class Score:
    """What an audit says about a client's updates.

    Attributes:
        mean: the estimate of what its updates contribute.
        low: the lower bound of the estimate.
        high: the upper bound of the estimate.
        suspicion: why its payment is held back; empty if it is not.
        weight: what the client is paid by under the rule "contribution", >= 0.
    """

    mean: float
    low: float
    high: float
    suspicion: str = ""
    weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean", "low", "high"):
            if not math.isfinite(getattr(self, name)):
                raise InputError.of(f"{name} of a score", "a finite number", getattr(self, name))
        if not 0 <= self.weight < math.inf:
            raise InputError.of("weight of a score", "a finite number >= 0", self.weight)


NO_SCORES: Mapping[int, Score] = MappingProxyType({})
NO_ESCROW: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True)
class Entry:
    """What a client is owed for a round, or why it is owed nothing. Amounts are in units.

    Attributes:
        round: t, from 0.
        client: the number of the client.
        committed: the number of samples that it committed to.
        claimed: the number of samples that it claimed.
        owed: the amount for this round that is owed at once.
        held: the amount for this round that is held back in escrow.
        released: the amount of earlier rounds that is released from escrow in this round.
        reason: why it is not paid, or not at once; empty if it is.
        score: the audit's estimate of what its updates contribute; None if there is none.
        low: the lower bound of the estimate.
        high: the upper bound of the estimate.
    """

    round: int
    client: int
    committed: int
    claimed: int
    owed: int
    held: int = 0
    released: int = 0
    reason: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the client's update was refused."""
        others = ("", NO_REPLY, NOT_SELECTED, SPENT, NO_CONTRIBUTION)
        return not self.owed and not self.held and self.reason not in others


def shares(
    round: int,
    units: int,
    claims: Sequence[Claim],
    refused: Mapping[int, str] = NONE,
    *,
    rule: PaymentRule = "volume",
    scores: Mapping[int, Score] = NO_SCORES,
    escrow: Mapping[int, int] = NO_ESCROW,
    spent: bool = False,
) -> list[Entry]:
    """How a payment is shared. All of it goes to the clients that are paid, if there are any.

    Args:
        round: t, from 0.
        units: R, or what the budget leaves of it.
        claims: at most one per client.
        refused: the clients that are not paid, and why; with or without a claim.
        rule: how it is shared. Under "contribution", clients without a score share by volume, and get what
            they would get if all did. If no update contributed anything, nobody is paid.
        scores: of the clients that were audited.
        escrow: what is held back from each client. Under "audited", it is released to clients with a score
            and without suspicion.
        spent: whether nothing is paid because the budget is spent.

    >>> claims = [Claim(client, 5, 5, 1.0, 1) for client in range(3)]
    >>> [entry.owed for entry in shares(0, 100, claims)]
    [34, 33, 33]
    >>> [(entry.client, entry.owed, entry.reason) for entry in shares(0, 100, claims[:1], {1: "no reply"})]
    [(0, 100, ''), (1, 0, 'no reply')]
    >>> scores = {1: Score(-0.1, -0.2, -0.05, "makes the model worse")}
    >>> [(entry.owed, entry.held) for entry in shares(0, 100, claims, rule="audited", scores=scores)]
    [(34, 0), (0, 33), (33, 0)]
    """
    if rule not in get_args(PaymentRule):
        raise InputError.of("rule", f"one of {get_args(PaymentRule)}", rule)
    by_client = {claim.client: claim for claim in claims}
    if len(by_client) < len(claims):
        raise InputError.of("claims", "at most one per client", [claim.client for claim in claims])
    reasons = {client: claim.refusal for client, claim in by_client.items()} | dict(refused)
    payable = {client: by_client[client].volume for client, reason in reasons.items() if not reason}
    weights = _contributions(payable, scores) if rule == "contribution" else payable
    parts = _apportion(units, weights)
    entries = []
    for client in sorted(reasons):
        score, part, reason = scores.get(client), parts.get(client, 0), reasons[client]
        audited = score if rule == "audited" else None
        if not reason and spent:
            reason = SPENT
        elif not reason and not weights[client]:
            reason = NO_CONTRIBUTION
        suspicion = audited.suspicion if audited and not reason else ""
        claim = by_client.get(client) or Claim(client, 0, 0, 1.0, 0)
        released = escrow.get(client, 0) if audited and not audited.suspicion else 0
        estimate = (None, None, None) if score is None else (score.mean, score.low, score.high)
        entries.append(
            Entry(
                round,
                client,
                _within(claim.committed),
                _within(claim.volume),
                0 if suspicion else part,
                part if suspicion else 0,
                released,
                text_of(reason or suspicion),
                *(None if value is None else float(value) + 0.0 for value in estimate),  # SQLite has no −0.0
            )
        )
    return entries


def _contributions(volumes: Mapping[int, int], scores: Mapping[int, Score]) -> dict[int, int]:
    """Weights under the rule "contribution", as integers.

    Clients without a score get their share by volume. Those with a score divide the rest by their weights.
    """
    exact = {client: Fraction(scores[client].weight) for client in volumes if client in scores}
    scale = max((weight.denominator for weight in exact.values()), default=1)  # all are powers of two
    weights = {client: int(weight * scale) for client, weight in exact.items()}
    volume, total = sum(volumes[client] for client in weights), sum(weights.values())
    others = {client: volumes[client] for client in volumes if client not in weights}
    if not total:
        return others | dict.fromkeys(weights, 0)
    return {client: each * total for client, each in others.items()} | {
        client: weight * volume for client, weight in weights.items()
    }


def _apportion(units: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Shares in proportion to weights, by largest remainders; they add up unless all weights are 0."""
    total = sum(weights.values())
    if not total:
        return {}
    parts = {client: divmod(units * weight, total) for client, weight in weights.items()}
    left = units - sum(part for part, _ in parts.values())
    first = set(sorted(parts, key=lambda client: (-parts[client][1], client))[:left])
    return {client: part + (client in first) for client, (part, _) in parts.items()}


def _within(number: int) -> int:
    """An integer that a database can hold. A client may claim any number."""
    return max(-LARGEST, min(int(number), LARGEST))


def text_of(reason: str) -> str:
    """A reason as a database can hold it: it may quote what a client sent."""
    text = reason.encode("utf-8", "replace").decode().replace("\0", "�")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
