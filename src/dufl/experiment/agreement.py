"""What server and clients agreed on in a run on Flower, from the `deal.json` of its directory."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.experiment.files import read_bytes
from dufl.game.dynamics import Array
from dufl.game.mean_field import Equilibrium
from dufl.game.parameters import Offer
from dufl.game.plan import Plan

DEAL = "deal.json"


@dataclass(frozen=True, eq=False)
class Agreement:
    """An offer, and the total volume that the clients committed to.

    Attributes:
        offer: (R, θ).
        announced_volume: φ(t), from `first_round` on.
        first_round: the round from which on it holds; 0 unless it was negotiated again.
        phases: of messages that it took.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
    """

    offer: Offer
    announced_volume: Array
    first_round: int
    phases: int
    residual: float

    @property
    def negotiated(self) -> bool:
        """Whether clients were asked for more than their consent."""
        return self.phases > 1

    def plan(self, experiment: Experiment) -> Plan | None:
        """The plan, whose totals are known; None if the agreement is about the last rounds only.

        If it was negotiated, the costs of the clients are private. Volumes of single clients are then those
        of the clients in the configuration.
        """
        if self.first_round:
            return None
        totals = self.announced_volume
        solution = Equilibrium(totals, totals, self.residual, self.phases, converged=True)
        payment, rate = self.offer.payment, self.offer.conservation_rate
        return Plan(experiment.game, payment, rate, solution, "mean-field", experiment.leader.method)


def read_agreement(folder: Path, num_rounds: int, endless: bool = False) -> Agreement | None:
    """Read what was agreed on in a run on Flower; None if it is none.

    Args:
        folder: the run directory.
        num_rounds: of the run; of a service, the number of rounds of a plan.
        endless: whether it is a service.
    """
    path = folder / DEAL
    if not path.exists():
        return None
    try:
        values = json.loads(read_bytes(path))
        offer = Offer(payment=float(values["payment"]), conservation_rate=float(values["conservation_rate"]))
        volume = np.array(values["announced_volume"], np.float64)
        first, phases = int(values["first_round"]), int(values["phases"])
        if not (first >= 0 and (endless or first < num_rounds) and phases >= 0):
            raise InputError.of("first_round and phases", "a round and a number >= 0", (first, phases))
        planned = num_rounds if endless else num_rounds - first
        if volume.shape != (planned,) or not (np.isfinite(volume) & (volume >= 0)).all():
            raise InputError.of("announced_volume", f"{planned} numbers >= 0", volume.shape)
        return Agreement(offer, volume, first, phases, float(values["residual"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} must be what server and clients agreed on: {error!r}") from None
