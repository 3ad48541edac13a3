"""Which offers to try: first those whose results are hardest to predict from the others, then promising ones.

In the stationary state an offer (R, θ) is a point (N/D, S). A plain grid of points wastes trainings. So do
offers that are optimal for one form of the law: D-optimality puts nearly all of them at the extremes, where
no form is exact. So the error is seen as a smooth function of log N/D and log S, a Gaussian process, and
offers are added one by one, each the candidate with the largest variance given those before it: first the
extremes, then the gaps between them.

A third of the pilots comes after a first fit, at offers that plans would make by it: several payments, each
with the conservation rate that the law so far finds best. So the final law is checked, and right, where it is
used.

Every second pilot begins with all that the clients have, as a plan does by default. The others begin with
what clients hold in the stationary state of their offer, as with `trim_start`. Both kinds together show what
the model remembers of its first rounds.

Pilots are spread by what they buy and not by what they cost: volumes per client from a few samples to
the initial volume, or to what a recording can fill, and conservation rates from 0 to nearly 1. The payment
follows from the stationary equilibrium. Payments far beyond what the paper's bound asks for are left out:
nobody will plan with them, and they would draw the law away from those that matter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from dufl.game.dynamics import staleness
from dufl.game.mean_field import find_equilibrium
from dufl.game.parameters import Game, Offer
from dufl.game.prediction import most_accurate
from dufl.game.stationary import likely_offer, response, total_volume

Array = npt.NDArray[np.float64]
FEWEST, FEWEST_COLLECTED = 8.0, 0.2  # samples per client; and per client and round
DEAREST = 3.0  # times the payment that the paper's bound asks for is the largest
RANGE = 20  # times the smallest volume is the largest
VOLUMES, RATES = 6, (0.0, 0.3, 0.5, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97)
OLDEST = 0.45  # of the rounds: the largest mean age that is tried
SMOOTH = 0.4  # of the range of log N/D and of log S: how far apart two results tell little about each other
ALIKE = 0.7  # the correlation of two results that differ in the start alone
NOISE = 0.01  # the variance of a training, relative to that of the function


@dataclass(frozen=True)
class Pilot:
    """A training that measures the loss law, and the scarcity and staleness that its late rounds will have.

    Attributes:
        offer: (R, θ).
        scarcity: N/D.
        staleness: S.
        steady: whether clients begin in the stationary state of the offer.
    """

    offer: Offer
    scarcity: float
    staleness: float
    steady: bool = True

    def game(self, game: Game) -> Game:
        """The game of the pilot."""
        return steady_start(game, self.offer) if self.steady else game


def pilot_at(game: Game, offer: Offer, measured_from: float, steady: bool = True) -> Pilot:
    """The pilot with an offer, measured after a share of the rounds."""
    begun = (steady_start(game, offer) if steady else game).clients
    payment, rate, first = offer.payment, offer.conservation_rate, int(measured_from * game.num_rounds)
    total = find_equilibrium(
        begun, game.num_rounds, payment, rate, tolerance=1e-4, trim_start=game.trims
    ).total_volume
    aged = staleness(total, rate, begun.initial_mean_staleness)
    scarcity = game.clients.num_clients / total[first:]
    return Pilot(offer, float(np.mean(scarcity)), float(np.mean(aged[first:])), steady)


def candidates(
    game: Game, measured_from: float, supply: float = math.inf, steady: bool = True
) -> list[Pilot]:
    """Offers over all volumes and rates that are worth a training.

    Left out are offers with which buffers hold mostly first samples in the late rounds.

    Args:
        game: the clients, rounds and ranges.
        steady: whether clients begin in the stationary state of the offer.
        measured_from: the share of the rounds after which is measured.
        supply: the number of samples per client and round that exist.
    """
    clients = game.clients
    largest = owned = clients.initial_total / clients.num_clients
    if math.isfinite(supply):
        largest = max(owned, supply / (1 - RATES[-1]))
    smallest = min(max(FEWEST, largest / RANGE), owned, supply)
    low, high = game.payment_range
    high = max(low, min(high, DEAREST * likely_offer(game)[0]) or high)
    least, most = game.conservation_range
    found = []
    for rate in (rate for rate in RATES if least <= rate <= most):
        for volume in np.geomspace(smallest, largest, VOLUMES):
            collected = volume * (1 - rate)
            payment = 2 * (volume * clients.num_clients) ** 2 / response(clients, rate)
            if not FEWEST_COLLECTED <= collected <= supply or not low <= payment <= high:
                continue
            offer = Offer(payment=float(payment), conservation_rate=rate)
            pilot = pilot_at(game, offer, measured_from, steady)
            if pilot.staleness <= OLDEST * game.num_rounds:
                found.append(pilot)
    return found


def steady_start(game: Game, offer: Offer) -> Game:
    """The game whose clients begin with what they hold in the stationary state of an offer, if they have it.

    A pilot is then at one point (N/D, S) in nearly all of its rounds. From the full initial buffers it would
    wander for as long as they take to die out.
    """
    clients, fresh = game.clients, (1 - offer.conservation_rate) ** 2
    price = offer.payment / total_volume(clients, offer.payment, offer.conservation_rate)
    steady = price / (2 * (clients.collection_cost * fresh + clients.training_cost))
    return game.replace(clients=clients.holding(np.minimum(clients.initial_volume, steady)))


def informative(game: Game, count: int, measured_from: float, supply: float = math.inf) -> list[Pilot]:
    """`count` pilot trainings; the first ones are the most informative."""
    steady = candidates(game, measured_from, supply)
    full = [] if game.trims else candidates(game, measured_from, supply, steady=False)
    offered = steady + full
    if not offered:
        return []
    covariance = _covariance(offered)
    chosen: list[int] = []
    kinds = [np.array([c.steady == kind for c in offered]) for kind in (True, False)]
    for turn in range(count):
        kind = kinds[turn % 2] if kinds[turn % 2].any() else kinds[(turn + 1) % 2]
        best = int(np.argmax(np.where(kind, np.diag(covariance), -np.inf)))
        chosen.append(best)
        column = covariance[:, best]
        covariance = covariance - np.outer(column, column) / (column[best] + NOISE)
    return [offered[index] for index in chosen]


def promising(game: Game, count: int, measured_from: float, paid: Sequence[float]) -> list[Pilot]:
    """`count` pilot trainings at offers that plans would make by the game's loss law.

    Args:
        game: with the law that was fitted so far, and the ranges in which it holds.
        count: the number of trainings.
        measured_from: the share of the rounds after which is measured.
        paid: the payments that were tried.
    """
    starts = (True,) if game.trims else (True, False)
    parts = math.ceil(count / len(starts))
    low, high = np.log([min(paid), max(paid)])
    payments = np.exp(low + (high - low) * (np.arange(parts) + 0.5) / parts).tolist()
    found = []
    for payment, steady in product(payments, starts):
        rate = most_accurate(game.replace(trim_start=steady), payment)
        offer = Offer(payment=payment, conservation_rate=rate)
        found.append(pilot_at(game, offer, measured_from, steady))
    return found[:count]


def _covariance(offered: list[Pilot]) -> Array:
    """The covariance of the results of all candidates before any training."""
    points = np.log([(c.scarcity, c.staleness) for c in offered])
    scaled = (points - points.min(axis=0)) / (SMOOTH * np.maximum(np.ptp(points, axis=0), 1e-9))
    distance = ((scaled[:, None] - scaled[None, :]) ** 2).sum(axis=2)
    steady = np.array([c.steady for c in offered])
    return np.asarray(np.exp(-distance / 2) * np.where(steady[:, None] == steady[None, :], 1.0, ALIKE))
