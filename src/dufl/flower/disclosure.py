"""What a client discloses to a server during one deal, and which queries it refuses.

Masks hide an answer only in a sum over enough clients. Two sums over rosters that differ by one client hide
nothing from their difference, and enough answers reveal costs. A client therefore remembers what it answered
until its data changes: an answer depends on the samples that it holds.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dufl.errors import InputError
from dufl.flower.messages import OpenQueries, Query, announcement_digest
from dufl.game.dynamics import Array as Volumes
from dufl.game.negotiation import Announcement

if TYPE_CHECKING:
    from dufl.flower.client_store import ClientProfile

MAX_PLANS = 10  # that a client commits to on a grid until its data changes
SAME = 1e-4  # relative difference below which two announcements count as the same


@dataclass(frozen=True)
class Answered:
    """An announcement that a client answered.

    Attributes:
        mask_id: of the query.
        roster: a hash of the roster; empty if the answer was not masked.
        digest: a hash of the announcement.
        numbers: R, θ and the mean of φ(t).
    """

    mask_id: str
    roster: str
    digest: str
    numbers: tuple[float, float, float]


@dataclass(frozen=True)
class Disclosed:
    """What a client answered since its data changed last.

    Attributes:
        round: of the buffer.
        answered: the announcements.
        committed: whether the client committed to a plan after the last answer.
        plans: hashes of the announcements that it committed to on a grid.
    """

    round: int
    answered: tuple[Answered, ...] = ()
    committed: bool = False
    plans: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As text, for the client's file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None, round: int) -> "Disclosed":
        """From the client's file; nothing if the data has changed since."""
        values: dict[str, Any] = {"round": None} if text is None else json.loads(text)
        if values["round"] != round:
            return cls(round)
        rows = (Answered(**row | {"numbers": tuple(row["numbers"])}) for row in values["answered"])
        return cls(round, tuple(rows), values["committed"], tuple(values.get("plans", ())))


def after_query(profile: "ClientProfile", before: Disclosed, query: Query) -> Disclosed:
    """What is disclosed after a query is answered.

    Raises:
        InputError: if the client refuses to answer.
    """
    others = len(set(query.roster) - {profile.client})
    if not query.roster and not profile.allow_unmasked:
        _refuse(profile, "masked", "an unmasked query", "allow_unmasked")
    if query.roster and others < profile.min_others:
        _refuse(
            profile, f"about a sum with at least {profile.min_others} other clients", others, "min_others"
        )
    roster = _roster_digest(query.roster)
    new = tuple(_answered(query.mask_id, roster, announcement) for announcement in query.announcements)
    for row in new:
        if any(_same(row, old) and row.roster != old.roster for old in before.answered):
            _refuse(profile, "new", "an announcement that it answered under another roster", "roster")
    known = {(old.roster, old.digest) for old in before.answered}
    budget = len(known | {(row.roster, row.digest) for row in new})
    if budget > profile.max_questions:
        _refuse(profile, f"one of at most {profile.max_questions} per deal", budget, "max_questions")
    answered = before.answered + tuple(row for row in new if row not in before.answered)
    return replace(before, answered=answered, committed=False)


def on_grid(volume: Volumes, grid: int, held: int, capacity: float = math.inf) -> Volumes:
    """A plan in multiples of a grid, to the nearest.

    What the client begins with stays as it is, because it says nothing about costs, unless the client begins
    with less than it holds.

    >>> on_grid(np.array([64.0, 71.2, 77.9]), 10, held=64).tolist()
    [64.0, 70.0, 80.0]
    """
    if grid == 1:
        return volume
    rounded = np.floor(volume / grid + 0.5) * grid
    rounded = np.where(rounded > capacity, rounded - grid, rounded)
    rounded[0] = min(rounded[0], held) if volume[0] < held else volume[0]
    return rounded


def after_commitment(
    profile: "ClientProfile", before: Disclosed, announcement: Announcement, grid: int
) -> Disclosed:
    """What is disclosed after a commitment.

    Rounding to a grid hides less the more plans are rounded: the errors average out.

    Raises:
        InputError: if the client refuses to commit to yet another plan.
    """
    if grid == 1:
        return replace(before, committed=True)
    plans = dict.fromkeys([*before.plans, announcement_digest(announcement).hex()])
    if len(plans) > MAX_PLANS:
        rule = f"one of at most {MAX_PLANS} plans that it commits to on a grid"
        _refuse(profile, rule, len(plans), "commitment_grid")
    return replace(before, committed=True, plans=tuple(plans))


def check_opening(profile: "ClientProfile", before: Disclosed, request: OpenQueries) -> None:
    """Raise `InputError` unless the client answered the queries under this roster, and then committed."""
    roster = _roster_digest(request.roster)
    answered = {row.mask_id for row in before.answered if row.roster == roster}
    if not before.committed or not set(request.mask_ids) <= answered:
        _refuse(profile, "opened after a commitment, and answered before it", "another one", "mask_ids")


def _refuse(profile: "ClientProfile", rule: str, found: object, field: str) -> None:
    text = f"client {profile.client} refuses to answer: a query must be {rule}, got {found} ({field})"
    raise InputError(text, field=field)


def _answered(mask_id: str, roster: str, announcement: Announcement) -> Answered:
    offer, mean = announcement.offer, float(np.mean(announcement.announced_volume))
    numbers = offer.payment, offer.conservation_rate, mean
    return Answered(mask_id, roster, announcement_digest(announcement).hex(), numbers)


def _same(one: Answered, other: Answered) -> bool:
    return bool(np.allclose(one.numbers, other.numbers, rtol=SAME, atol=1e-12))


def _roster_digest(roster: Mapping[int, bytes]) -> str:
    return hashlib.sha256(repr(sorted(roster.items())).encode()).hexdigest() if roster else ""
