"""Whether commitments and answers can be true, and whose cannot.

A client's plan is its best response to the announced price, a formula in two unknowns: α_k and β_k. The
server does not know them, but most lists of volumes are a best response for no costs at all. The plans must
also add up to the sum of the answers in the negotiation. If they do not, clients reveal the keys of their
masks, and every single answer is compared with the client's commitment.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dufl.flower.masking import UNIT, unmask_answer
from dufl.flower.messages import AnyArray, Query, are_volumes
from dufl.game.client import best_response
from dufl.game.dynamics import Array
from dufl.game.mean_field import price_of
from dufl.game.negotiation import Announcement

ROUNDING = 0.5  # samples: a commitment is a rounded volume
TOLERANCE = 0.5  # samples: the least-squares fit to rounded volumes is not the best fit of their maximum
RELATIVE = 1e-5  # of the largest volume, in addition
GRID = 25  # costs in each direction from which a fit may start
STARTS = 4
EXACT = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}

Bounds = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Asked:
    """A query, and the answer of every client to it, masked or not."""

    query: Query
    answers: Mapping[int, AnyArray]


def is_best_response(
    announcements: Sequence[Announcement], volumes: Sequence[Array], bounds: Bounds, slack: float
) -> bool:
    """Whether there are costs within bounds for which all volumes are best responses.

    Args:
        announcements: one or more.
        volumes: of one client, for every announcement.
        bounds: the lowest and the highest α_k, and the lowest and the highest β_k.
        slack: the largest difference from a best response, in samples.
    """
    from scipy.optimize import least_squares

    if not all(are_volumes(each) for each in volumes):
        return False
    held = max(float(each[0]) for each in volumes)
    scale = 1.0 + max(float(each.max()) for each in volumes)

    def differences(logs: Array) -> Array:
        """In units of `scale`, of shape (volumes, costs)."""
        collection, training = np.exp(np.atleast_2d(logs.T).T)
        training = np.maximum(training - bounds[1][0], 0.0)  # no training costs at the lower end
        pairs = zip(announcements, volumes, strict=True)
        return np.concatenate(
            [(_response(a, held, collection, training) - v[:, None]) / scale for a, v in pairs]
        )

    low, high = np.log(bounds).T
    grid = np.array(np.meshgrid(*np.linspace(low, high, GRID).T)).reshape(2, -1)
    nearest = np.argsort((differences(grid) ** 2).sum(axis=0), kind="stable")[:STARTS]
    for start in grid[:, nearest].T:
        found = least_squares(lambda logs: differences(logs)[:, 0], start, bounds=(low, high), **EXACT)
        if np.abs(found.fun).max() * scale <= slack + RELATIVE * scale:
            return True
    return False


def _response(announcement: Announcement, held: float, collection: Array, training: Array) -> Array:
    offer = announcement.offer
    price, _ = price_of(offer.payment, announcement.announced_volume, "mean-field")
    trim = announcement.trim_start
    return best_response(price, held, collection, training, offer.conservation_rate, trim)[0]


def impossible_commitments(
    announcement: Announcement, commitments: Mapping[int, Sequence[int]], bounds: Bounds, capacity: float
) -> dict[int, str]:
    """The clients whose commitments cannot be true, and why."""
    reasons = {}
    for client, volumes in commitments.items():
        if max(volumes) > capacity:
            reasons[client] = f"committed to {max(volumes)} samples, more than the capacity of {capacity:g}"
            continue
        planned = np.array(volumes, np.float64)
        if not is_best_response([announcement], [planned], bounds, ROUNDING + TOLERANCE):
            reasons[client] = f"its commitment is a best response for no costs: {list(volumes)!r:.60}"
    return reasons


def add_up(commitments: Mapping[int, Sequence[int]], total: Array, slack: float) -> bool:
    """Whether commitments add up to a total, within `slack` samples per client."""
    found = np.sum([np.array(volumes, np.float64) for volumes in commitments.values()], axis=0)
    return bool((np.abs(found - total) <= slack * len(commitments)).all())


def false_answers(
    queries: Sequence[Query],
    answers: Mapping[int, Sequence[Array]],
    commitments: Mapping[int, Sequence[int]],
    bounds: Bounds,
) -> dict[int, str]:
    """The clients whose answers are not what they committed to, or cannot be true.

    Args:
        queries: of the negotiation. The clients committed to the first announcement of the last one.
        answers: of every client to every query.
        commitments: of every client.
        bounds: of the costs; see `is_best_response`.
    """
    announcements = [announcement for query in queries for announcement in query.announcements]
    reasons = {}
    for client, given in answers.items():
        last = np.abs(given[-1][0] - np.array(commitments[client], np.float64)).max()
        if not last <= ROUNDING + UNIT:
            reasons[client] = f"its last answer differs from its commitment by {last:g} samples"
        elif not is_best_response(announcements, [row for rows in given for row in rows], bounds, TOLERANCE):
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


def disagreeing(keys: Mapping[int, Sequence[Mapping[int, bytes]]]) -> dict[int, str]:
    """The clients that most others disagree with on the key of a mask, and why they are left out."""
    pairs = [
        (one, other)
        for one, other in combinations(sorted(keys), 2)
        if [shared[other] for shared in keys[one]] != [shared[one] for shared in keys[other]]
    ]
    counts = Counter(client for pair in pairs for client in pair)
    most = max(counts.values(), default=0)
    return {
        client: f"{count} other clients have other keys of the masks that it shares with them"
        for client, count in counts.items()
        if count == most
    }
