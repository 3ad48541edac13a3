"""Whether commitments and answers can be true, and whose cannot.

A client's plan is its best response to the announced price, a formula in two unknowns: α_k and β_k. The
server does not know them, but most lists of volumes are a best response for no costs at all. The plans must
also add up to the sum of the answers in the negotiation. If they do not, clients reveal the keys of their
masks, and every single answer is compared with the client's commitment.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

import numpy as np

from dufl.flower.masking import UNIT, unmask_answer
from dufl.flower.messages import AnyArray, Query, are_volumes
from dufl.game.client import best_response
from dufl.game.dynamics import Array
from dufl.game.mean_field import price_of
from dufl.game.negotiation import Announcement
from dufl.game.population import Clients

ROUNDING = 0.5  # samples: a commitment is a rounded volume
TOLERANCE = 0.5  # samples: the least-squares fit to rounded volumes is not the best fit of their maximum
ANSWERS = 0.05  # samples: answers are not rounded, and honest ones fit to a thousandth of a sample
RELATIVE = 1e-5  # of the largest volume, in addition
GRID = 25  # costs in each direction from which a fit may start
STARTS = 4
EXACT = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}

COARSEST = 0.5  # of the mean volume of a client: the coarsest grid that a client may have of its own

Bounds = tuple[tuple[float, float], tuple[float, float]]
Grids = Mapping[int, int]
NO_GRIDS: Grids = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Asked:
    """A query, and the answer of every client to it, masked or not."""

    query: Query
    answers: Mapping[int, AnyArray]


@dataclass(frozen=True)
class Fit:
    """The costs for which volumes are nearest to best responses.

    Attributes:
        held: the number of samples before the first round.
        collection_cost: α_k.
        training_cost: β_k.
        misfit: the largest difference from the best response, in samples, beyond numerical errors.
    """

    held: float
    collection_cost: float
    training_cost: float
    misfit: float


def fit_costs(
    announcements: Sequence[Announcement], volumes: Sequence[Array], bounds: Bounds, slack: float = 0.0
) -> Fit:
    """Find costs within bounds for which volumes are best responses.

    Args:
        announcements: one or more.
        volumes: of one client, for every announcement.
        bounds: the lowest and the highest α_k, and the lowest and the highest β_k.
        slack: the misfit at which the search ends.
    """
    from scipy.optimize import least_squares

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
    best: Fit | None = None
    for start in grid[:, nearest].T:
        found = least_squares(lambda logs: differences(logs)[:, 0], start, bounds=(low, high), **EXACT)
        collection, training = np.exp(found.x)
        misfit = max(np.abs(found.fun).max() * scale - RELATIVE * scale, 0.0)
        fit = Fit(held, float(collection), max(float(training) - bounds[1][0], 0.0), float(misfit))
        best = fit if best is None or fit.misfit < best.misfit else best
        if best.misfit <= slack:
            break
    assert best is not None
    return best


def is_best_response(
    announcements: Sequence[Announcement], volumes: Sequence[Array], bounds: Bounds, slack: float
) -> bool:
    """Whether there are costs within bounds for which all volumes are best responses, within `slack`."""
    if not all(are_volumes(each) for each in volumes):
        return False
    return fit_costs(announcements, volumes, bounds, slack).misfit <= slack


def _response(announcement: Announcement, held: float, collection: Array, training: Array) -> Array:
    offer = announcement.offer
    price, _ = price_of(offer.payment, announcement.announced_volume, "mean-field")
    trim = announcement.trim_start
    return best_response(price, held, collection, training, offer.conservation_rate, trim)[0]


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
    )


def add_up(
    commitments: Mapping[int, Sequence[int]], total: Array, slack: float, grids: Grids = NO_GRIDS
) -> bool:
    """Whether commitments add up to a total, within `slack` samples per client without a grid."""
    found = np.sum([np.array(volumes, np.float64) for volumes in commitments.values()], axis=0)
    coarser = sum(grids.get(client, 1) - 1 for client in commitments) / 2
    return bool((np.abs(found - total) <= slack * len(commitments) + coarser).all())


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
        last = np.abs(given[-1][0] - np.array(commitments[client], np.float64)).max()
        grid = grids.get(client, 1)
        if not last <= (ROUNDING + UNIT if grid == 1 else grid):  # a capacity may round down on a grid
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
