"""Which offers to try: those that tell the candidate laws apart.

A plain grid of offers wastes trainings. In the stationary state an offer (R, θ) is a point (N/D, S). What it
teaches about a law with parameters β is the gradient g = ∂ℓ/∂β there. Trainings at offers 1 … n have the
information matrix Σ gᵢgᵢᵀ. Its determinant says how small the region of parameters is that agrees with them.
The parameters are not known yet. So offers are added one by one, each the candidate that raises the mean of
log det over several plausible laws most (Bayesian D-optimality): slow and fast effects of volume, early and
late effects of age, with and without an effect of the flow of fresh samples.

Candidates are spread by what they buy and not by what they cost: volumes per client from a few samples to
the initial volume, and conservation rates from 0 to nearly 1. The payment follows from the stationary
equilibrium.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.game.dynamics import staleness
from dufl.game.loss import PowerLaw
from dufl.game.mean_field import find_equilibrium
from dufl.game.parameters import Game, Offer
from dufl.game.stationary import response

Array = npt.NDArray[np.float64]
FEWEST, FEWEST_COLLECTED = 8.0, 0.2  # samples per client; and per client and round
VOLUMES, RATES = 7, (0.0, 0.3, 0.5, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97)
OLDEST = 0.35  # of the rounds: the largest mean age that is tried
PLAUSIBLE = tuple(
    PowerLaw(
        floor=0.1,
        volume_weight=0.3,
        volume_exponent=p,
        staleness_weight=b,
        staleness_exponent=q,
        flow_weight=e,
        flow_exponent=0.5,
    )
    for p in (0.25, 0.6)
    for b, q in ((0.02, 1.0), (0.05, 4.0))
    for e in (0.1, 0.3)
)
RIDGE = 1e-6  # of the information before the first offer


@dataclass(frozen=True)
class Candidate:
    """An offer, and the scarcity and staleness that it leads to in the late rounds."""

    offer: Offer
    scarcity: float
    staleness: float


def candidates(game: Game, measured_from: float, supply: float = math.inf) -> list[Candidate]:
    """Offers over all volumes and rates that are worth a training.

    Left out are offers whose clients still hold the initial samples in the late rounds: they say nothing
    about the law that *no update* would not say.

    Args:
        game: the clients, rounds and ranges.
        measured_from: the share of the rounds after which is measured.
        supply: the number of samples per client and round that exist.
    """
    clients, first = game.clients, int(measured_from * game.num_rounds)
    largest = clients.initial_total / clients.num_clients
    smallest = min(max(FEWEST, largest / 60), largest)
    low, high = game.payment_range
    least, most = game.conservation_range
    found = []
    for rate in (rate for rate in RATES if least <= rate <= most):
        for volume in np.geomspace(smallest, largest, VOLUMES):
            collected = volume * (1 - rate)
            payment = 2 * (volume * clients.num_clients) ** 2 / response(clients, rate)
            if not FEWEST_COLLECTED <= collected <= supply or not low <= payment <= high:
                continue
            total = find_equilibrium(
                clients, game.num_rounds, payment, rate, tolerance=1e-4, trim_start=game.trim_start
            ).total_volume
            aged = staleness(total, rate, clients.initial_mean_staleness)
            point = float(np.mean(clients.num_clients / total[first:])), float(np.mean(aged[first:]))
            if point[1] <= OLDEST * game.num_rounds:
                offer = Offer(payment=float(payment), conservation_rate=rate)
                found.append(Candidate(offer, *point))
    return found


def informative(game: Game, count: int, measured_from: float, supply: float = math.inf) -> list[Offer]:
    """`count` offers for pilot trainings; the first ones are the most informative."""
    offered = candidates(game, measured_from, supply)
    if not offered:
        return []
    gradients = [np.array([law.gradient(c.scarcity, c.staleness) for c in offered]) for law in PLAUSIBLE]
    size = gradients[0].shape[1]
    inverses = [np.eye(size) / RIDGE for _ in PLAUSIBLE]
    chosen: list[int] = []
    for _ in range(count):
        gain = np.zeros(len(offered))
        for inverse, rows in zip(inverses, gradients, strict=True):
            gain += np.log1p(np.einsum("ij,jk,ik->i", rows, inverse, rows))
        gain /= 1 + np.bincount(chosen, minlength=len(offered))  # a new offer rather than a repeated one
        best = int(np.argmax(gain))
        chosen.append(best)
        for index, rows in enumerate(gradients):
            row = rows[best]
            step = inverses[index] @ row
            inverses[index] = inverses[index] - np.outer(step, step) / (1 + row @ step)
    return [offered[index].offer for index in chosen]
