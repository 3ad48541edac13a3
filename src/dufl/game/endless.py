"""Plans for a service without a last round: the stationary equilibrium.

Training does not end, and every client holds the same volume in every round. Costs, payments and utilities
are per round. What clients have at first is discarded sooner or later, so it does not matter. See
`stationary` for the equilibrium, `endless_offer` for the server's choice, `endless_certificate` for the
certificate.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.errors import CertificateError, InputError
from dufl.game.certificate import CERTIFIED, Certificate
from dufl.game.dynamics import Array
from dufl.game.endless_certificate import certify_stationary
from dufl.game.endless_offer import best_offer, cheapest_offer
from dufl.game.loss import PowerLaw
from dufl.game.parameters import Competition, Game, Offer
from dufl.game.prediction import Prediction, has_unit, law_of
from dufl.game.stationary import Holdings, holdings
from dufl.game.utility import ServerCost, cost_of_rounds
from dufl.late import late

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class StationaryPlan:
    """The server's offer for an endless service, and what every client holds and collects in every round.

    Attributes:
        game: the game that was solved.
        payment: R, per round.
        conservation_rate: θ.
        competition: `mean-field` or `nash`.
        method: how (R, θ) was chosen: `stackelberg`, or `given` if its ranges are single values.
    """

    game: Game
    payment: float
    conservation_rate: float
    competition: Competition = "mean-field"
    method: str = "stackelberg"

    @property
    def offer(self) -> Offer:
        """(R, θ)."""
        return Offer(payment=self.payment, conservation_rate=self.conservation_rate)

    @cached_property
    def _holdings(self) -> Holdings:
        return holdings(self.game.clients, self.payment, self.conservation_rate, self.competition)

    @property
    def total_volume(self) -> float:
        """φ; sqrt(R·A(θ)/2) without prices per sample and capacities."""
        return self._holdings.total_volume

    @property
    def volume(self) -> Array:
        """D_k, of shape (clients,)."""
        return self._holdings.volume

    @property
    def full(self) -> Flags:
        """Which clients hold as much as their capacity allows, of shape (clients,)."""
        return np.asarray(self.volume >= self.game.clients.capacity)

    @property
    def shadow_price(self) -> Array:
        """What one more unit of capacity would earn a client per round; 0 if it is not full."""
        return self._holdings.shadow_price

    @cached_property
    def collection(self) -> Array:
        """Δ_k = (1−θ)·D_k, of shape (clients,)."""
        return (1 - self.conservation_rate) * self.volume

    @property
    def staleness(self) -> float:
        """S = 1/(1−θ), the same for every client."""
        return 1 / (1 - self.conservation_rate)

    @cached_property
    def cost_by_term(self) -> ServerCost:
        """U of one round, by term."""
        values = self.payment, self.total_volume, self.staleness
        return cost_of_rounds(self.game, *(np.array([value]) for value in values))

    @property
    def server_cost(self) -> float:
        """U per round."""
        return self.cost_by_term.total

    @property
    def utility(self) -> Array:
        """What each client is paid less what it spends, per round."""
        return self.certificate.utility

    @property
    def residual(self) -> float:
        """|Σ_k D_k/φ − 1|."""
        if self.total_volume == 0:
            return 0.0
        return abs(float((self.game.clients.multiplicity * self.volume).sum()) / self.total_volume - 1)

    @cached_property
    def prediction(self) -> Prediction | None:
        """What the loss law predicts for training; None unless the law is in a unit."""
        law = self.game.loss
        if not isinstance(law, PowerLaw) or not has_unit(law):
            return None
        if self.total_volume == 0:
            return Prediction(law.unit, np.inf, np.inf)
        point = self.game.clients.num_clients / self.total_volume, self.staleness
        return Prediction(law.unit, law(*point), law.deviation(*point))

    @cached_property
    def certificate(self) -> Certificate:
        """The independent certificate for the clients' part of the plan; per round."""
        offer = self.payment, self.conservation_rate
        return certify_stationary(self.game, *offer, self.volume, self.collection, self.competition)

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the plan into a directory of its own, which `dufl certify` reads."""
        late("dufl.experiment.endless_directory:write_endless")(self, Path(folder), force=force)

    def __repr__(self) -> str:
        """The offer and its cost in one line."""
        return (
            f"StationaryPlan(payment={self.payment:.6g}, conservation_rate={self.conservation_rate:.6g}, "
            f"server_cost={self.server_cost:.6g}, method={self.method!r}, competition={self.competition!r}, "
            f"clients={self.game.clients.size})"
        )

    def _repr_html_(self) -> str:
        return str(late("dufl.report.endless_table:endless_html")(self))

    def summary(self) -> dict[str, Any]:
        """The plan as plain Python numbers; costs, payments and utilities are per round."""
        cost, certificate = self.cost_by_term, self.certificate
        return {
            "horizon": "endless",
            "payment": self.payment,
            "conservation_rate": self.conservation_rate,
            "server_cost": self.server_cost,
            "server_cost_by_term": {
                "payment": float(cost.payment.sum()),
                "volume": float(cost.volume.sum()),
                "staleness": float(cost.staleness.sum()),
            },
            "num_clients": self.game.clients.size,
            "total_volume": self.total_volume,
            "total_collection": (1 - self.conservation_rate) * self.total_volume,
            "mean_staleness": self.staleness,
            "residual": self.residual,
            "method": self.method,
            "competition": self.competition,
            **(self.prediction.summary() if self.prediction else {}),
            "deviation_gain": certificate.deviation_gain,
            "influence_gain": certificate.influence,
            "certificate_holds": certificate.holds(),
            "losing_clients": certificate.losing_clients,
            "full_clients": int(self.full.sum()),
            "largest_shadow_price": float(self.shadow_price.max()),
        }


def solve_endless(
    game: Game | None = None,
    *,
    competition: Competition = "mean-field",
    budget: float | None = None,
    accuracy: float | None = None,
    point_worth: float | None = None,
) -> StationaryPlan:
    """The server's best offer for a service without a last round, and the clients' equilibrium there.

    A goal replaces the weight of money, for a game whose loss law was fitted to trainings.

    Args:
        game: the game to solve; its number of rounds and initial volumes do not matter.
        competition: `mean-field` (a client takes φ as given) or `nash` (a client sees its own influence).
        budget: the most accurate plan that pays at most this per round.
        accuracy: the cheapest plan whose predicted accuracy is at least this with 90 % confidence, or the
            most accurate one if there is none.
        point_worth: the plan with the best sum of payments and accuracy, if one more point of accuracy is
            worth this much money in every round.

    Raises:
        CertificateError: if the certificate refuses the equilibrium.

    >>> plan = solve_endless()
    >>> plan  # doctest: +ELLIPSIS
    StationaryPlan(payment=53.3..., conservation_rate=0.304..., server_cost=0.0240..., ...)
    """
    game = (game or Game()).replace(horizon="endless")
    goals = {"budget": budget, "accuracy": accuracy, "point_worth": point_worth}
    given = {name: value for name, value in goals.items() if value is not None}
    if len(given) > 1:
        raise InputError.of(" and ".join(given), "given one at a time", ", ".join(map(str, given.values())))
    if given:
        game = with_endless_goal(game, *next(iter(given.items())), competition)
    fixed = all(low == high for low, high in (game.payment_range, game.conservation_range))
    offer = best_offer(game, competition)
    method = "given" if fixed else "stackelberg"
    plan = StationaryPlan(game, offer.payment, offer.conservation_rate, competition, method)
    _check(plan)
    return plan


def with_endless_goal(game: Game, goal: str, value: float, competition: Competition = "mean-field") -> Game:
    """The game whose endless solution reaches a goal: "budget", "accuracy" or "point_worth".

    A point of accuracy is worth V per round if the server minimizes R + 100·V·ℓ, so γ = 1/(1 + 100·V).
    """
    law_of(game, goal)
    if goal == "point_worth":
        if not 0 < value < np.inf:
            raise InputError.of(goal, "> 0", value)
        return game.replace(payment_weight=1 / (1 + 100 * value))
    low, high = game.payment_range
    if goal == "budget":
        if not max(low, 0) <= value < np.inf or value == 0:
            raise InputError.of(goal, f">= {low:g}, the least of payment_range" if low else "> 0", value)
        return game.replace(payment_weight=0.0, payment_range=(low, min(value, high)))
    found = cheapest_offer(game, value, competition)
    rates = (found.conservation_rate, found.conservation_rate)
    return game.replace(payment_range=(found.payment, found.payment), conservation_range=rates)


def endless_offer(game: Game, competition: Competition = "mean-field") -> Offer | None:
    """The best offer if the service of a finite game did not end.

    None if there is no such service: with a decay below 1, at θ = 1, with voluntary participation, or with a
    user's own loss law, which need not hold for data of any age.
    """
    alone = competition == "nash" and game.clients.num_clients < 2
    voluntary = game.participation == "voluntary"
    ends = game.decay != 1 or game.conservation_range[0] == 1
    if ends or alone or voluntary or not isinstance(game.law, PowerLaw):
        return None
    return best_offer(game, competition)


def _check(plan: StationaryPlan) -> None:
    """Raise if the certificate refuses the plan."""
    if not plan.certificate.holds():
        raise CertificateError(
            f"the certificate refuses the stationary equilibrium for payment {plan.payment:g} and "
            f"conservation_rate {plan.conservation_rate:g}: its largest residual is "
            f"{plan.certificate.worst:.1e}, allowed is {CERTIFIED:.0e}. Costs that are many orders of "
            "magnitude apart are the usual cause: bring them closer together"
        )
