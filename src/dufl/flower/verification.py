"""Whether commitments and answers can be true, and whose cannot.

A client's plan is its best response to the announced price, a formula in a few unknowns: its costs. The
server does not know them, but most lists of volumes are a best response for no costs at all; see `cost_fit`.
The plans must also add up to the sum of the answers in the negotiation. If they do not, clients reveal the
keys of their masks, and every single answer is compared with the client's commitment.

A commitment is a volume that is rounded to the nearest integer, or down where the nearest does not fit into
the buffer. It is therefore at most half a sample more than the volume, and less than one sample less.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

import numpy as np

from dufl.flower.cost_fit import Bounds, fit_costs, is_best_response
from dufl.flower.masking import UNIT, unmask_answer
from dufl.flower.messages import AnyArray, Query
from dufl.game.dynamics import Array
from dufl.game.negotiation import Announcement
from dufl.game.population import Clients

ROUNDING = 0.5  # samples: by how much a commitment may be more than the volume
DOWN = 0.5  # samples: how much farther it may be less, at the capacity of a buffer
TOLERANCE = 0.5  # samples: the least-squares fit to rounded volumes is not the best fit of their maximum
ANSWERS = 0.05  # samples: answers are not rounded, and honest ones fit to a thousandth of a sample
COARSEST = 0.5  # of the mean volume of a client: the coarsest grid that a client may have of its own

Grids = Mapping[int, int]
NO_GRIDS: Grids = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Asked:
    """A query, and the answer of every client to it, masked or not."""

    query: Query
    answers: Mapping[int, AnyArray]


def impossible_commitments(
    announcement: Announcement,
    commitments: Mapping[int, Sequence[int]],
    bounds: Bounds,
    capacity: float,
    grids: Grids = NO_GRIDS,
) -> dict[int, str]:
    """The clients whose commitments cannot be true, and why."""
    reasons = {}
    for client, volumes in commitments.items():
        if max(volumes) > capacity + (grids.get(client, 1) - 1) / 2:
            reasons[client] = f"committed to {max(volumes)} samples, more than the capacity of {capacity:g}"
            continue
        planned = np.array(volumes, np.float64)
        if not is_best_response([announcement], [planned], bounds, fitting_slack(client, grids)):
            shown = ", ".join(map(str, volumes[:4])) + (", …" if len(volumes) > 4 else "")
            reasons[client] = f"its commitment is a best response for no costs: {shown} samples"
    return reasons


def coarse_grids(announcement: Announcement, grids: Grids, announced: int) -> dict[int, str]:
    """The clients whose grids are too coarse to check anything: more than half of the mean volume."""
    mean = float(np.mean(announcement.announced_volume)) / len(grids)
    most = max(announced, int(mean * COARSEST), 1)
    return {
        client: f"its grid of {grid} samples is coarser than {most}, the largest that the server accepts"
        for client, grid in grids.items()
        if grid > most
    }


def fitting_slack(client: int, grids: Grids) -> float:
    """How much a commitment may differ from a best response for the costs that fit it best, in samples."""
    return (ROUNDING + TOLERANCE) * grids.get(client, 1)


def inconsistent_commitments(
    announcements: Sequence[Announcement],
    commitments: Sequence[Mapping[int, Sequence[int]]],
    bounds: Bounds,
    grids: Grids = NO_GRIDS,
) -> dict[int, str]:
    """The clients whose commitments to several announcements are not best responses for the same costs."""
    reasons = {}
    for client in commitments[-1] if len(announcements) > 1 else ():
        given = [np.array(each[client], np.float64) for each in commitments]
        if not is_best_response(announcements, given, bounds, fitting_slack(client, grids)):
            reasons[client] = "its commitments to several plans are best responses for no costs"
    return reasons


def fitted_clients(
    guess: Clients,
    announcements: Sequence[Announcement],
    commitments: Sequence[Mapping[int, Sequence[int]]],
    bounds: Bounds,
) -> Clients:
    """Clients whose best responses are the commitments to some announcements; `guess` has their staleness."""
    fits = []
    for client in commitments[-1]:
        given = [np.array(each[client], np.float64) for each in commitments]
        fits.append(fit_costs(announcements, given, bounds, ROUNDING))
    return Clients(
        np.array([fit.held for fit in fits]),
        np.array([fit.collection_cost for fit in fits]),
        np.array([fit.training_cost for fit in fits]),
        guess.initial_mean_staleness,
        np.array([fit.capacity for fit in fits]),
        np.array([fit.collection_price for fit in fits]),
        np.array([fit.training_price for fit in fits]),
    )


def add_up(
    commitments: Mapping[int, Sequence[int]], total: Array, slack: float, grids: Grids = NO_GRIDS
) -> bool:
    """Whether commitments add up to a total, within `slack` samples per client without a grid.

    They may be less by `DOWN` more: a client whose buffer is full rounds down.
    """
    more = np.sum([np.array(volumes, np.float64) for volumes in commitments.values()], axis=0) - total
    coarser = sum(grids.get(client, 1) - 1 for client in commitments) / 2
    allowed = slack * len(commitments) + coarser
    return bool(((more <= allowed) & (more >= -allowed - DOWN * len(commitments))).all())


def false_answers(
    queries: Sequence[Query],
    answers: Mapping[int, Sequence[Array]],
    commitments: Mapping[int, Sequence[int]],
    bounds: Bounds,
    grids: Grids = NO_GRIDS,
) -> dict[int, str]:
    """The clients whose answers are not what they committed to, or cannot be true.

    Args:
        queries: of the negotiation. The clients committed to the first announcement of the last one.
        answers: of every client to every query.
        commitments: of every client.
        bounds: of the costs; see `is_best_response`.
        grids: of the clients that have one.
    """
    announcements = [announcement for query in queries for announcement in query.announcements]
    reasons = {}
    for client, given in answers.items():
        more = np.array(commitments[client], np.float64) - given[-1][0]
        last, grid = np.abs(more).max(), grids.get(client, 1)
        up, down = (ROUNDING, ROUNDING + DOWN) if grid == 1 else (grid, grid)
        if not (more.max() <= up + UNIT and more.min() >= -down - UNIT):
            reasons[client] = f"its last answer differs from its commitment by {last:g} samples"
        elif not is_best_response(announcements, [row for rows in given for row in rows], bounds, ANSWERS):
            reasons[client] = "its answers are best responses for no costs"
    return reasons


def opened_answers(
    asked: Sequence[Asked], keys: Mapping[int, Sequence[Mapping[int, bytes]]]
) -> dict[int, list[Array]]:
    """Every client's answers, without the masks that it says it used."""
    return {
        client: [
            unmask_answer(each.answers[client], client, shared)
            for each, shared in zip(asked, own, strict=True)
        ]
        for client, own in keys.items()
    }


def disagreements(keys: Mapping[int, Sequence[Mapping[int, bytes]]]) -> set[tuple[int, int]]:
    """The pairs of clients that reveal different keys of the masks that they share."""
    return {
        (one, other)
        for one, other in combinations(sorted(keys), 2)
        if [shared[other] for shared in keys[one]] != [shared[one] for shared in keys[other]]
    }


def distrusted(disputes: Iterable[tuple[int, int]], clients: Collection[int]) -> dict[int, str]:
    """The clients that more than half of the others disagree with on a key, and why they are left out.

    Of a pair that disagrees, one client lies, and nobody can tell which. As long as most clients are honest,
    a client that most of the others disagree with is not. Of two clients, neither is left out.

    Args:
        disputes: the pairs that disagreed, in this deal or an earlier one.
        clients: those that take part now.
    """
    among = [pair for pair in disputes if set(pair) <= set(clients)]
    counts = Counter(client for pair in among for client in pair)
    return {
        client: f"{count} other clients have other keys of the masks that it shares with them"
        for client, count in counts.items()
        if count > max((len(clients) - 1) / 2, 1)
    }
