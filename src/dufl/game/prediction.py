"""What a plan is predicted to reach, in the unit of its loss law, and plans that reach a goal.

A law that was fitted to trainings predicts the mean loss over the rounds after the share `measured_from`:

    ℓ̄ = mean_t ℓ(N/φ(t), S(t)),    with the standard deviation s of the law and of a measurement.

A point of accuracy is worth V units of money over the whole run if the server minimizes

    Σ_t R + (100·V/T)·Σ_t ℓ(t),    so    γ/(1 − γ) = T/(100·V)    and    γ = T/(T + 100·V).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dufl.errors import InputError
from dufl.game.dynamics import Array, staleness
from dufl.game.loss import ConvergenceBound, PowerLaw, scarcity_of
from dufl.game.mean_field import SMALLEST, starting_staleness
from dufl.game.parameters import Competition, Game
from dufl.game.utility import available
from dufl.game.voluntary import respond

NINETY_TWO_SIDED, NINETY_ONE_SIDED = 1.645, 1.2816  # quantiles of the normal distribution
RATES = 13  # conservation rates that are compared first
NEARLY = 1e-4  # how far below an accuracy still counts as reached
CLOSE = 1e-3  # relative precision of the payment that reaches an accuracy
STEPS = 40


@dataclass(frozen=True)
class Prediction:
    """What a loss law predicts for a plan.

    Attributes:
        unit: "error", "loss" or "rmse".
        value: the predicted mean loss.
        deviation: its standard deviation, as a prediction of a measurement.
    """

    unit: str
    value: float
    deviation: float

    @property
    def accuracy(self) -> float:
        """The predicted accuracy; NaN if the law is not about the error."""
        return 1 - self.value if self.unit == "error" else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The 90 % interval of the loss; the loss itself if it has no bound."""
        if not np.isfinite(self.value):
            return self.value, self.value
        return (
            self.value - NINETY_TWO_SIDED * self.deviation,
            self.value + NINETY_TWO_SIDED * self.deviation,
        )

    def missing(self, accuracy: float) -> float:
        """By how much an accuracy is missed with 90 % confidence; 0 if it is reached."""
        least = self.accuracy - NINETY_ONE_SIDED * self.deviation
        missing = accuracy - least
        return missing if missing > NEARLY else 0.0

    def summary(self) -> dict[str, Any]:
        """The prediction in plain numbers: an accuracy, or a loss, with its 90 % interval."""
        low, high = self.interval
        if self.unit == "error":
            low, high = max(low, 0.0), min(high, 1.0)
            return {"predicted_accuracy": self.accuracy, "predicted_low": 1 - high, "predicted_high": 1 - low}
        return {f"predicted_{self.unit}": self.value, "predicted_low": low, "predicted_high": high}


def has_unit(law: object) -> bool:
    """Whether a law was fitted to trainings, so that it predicts something."""
    return isinstance(law, PowerLaw) and not isinstance(law, ConvergenceBound)


def predict(
    game: Game, conservation_rate: float, total_volume: Array, starting_staleness: float | None = None
) -> Prediction | None:
    """What the game's loss law predicts for an equilibrium; None if the law has no unit.

    `starting_staleness` is the mean staleness of what is held in round 0; by default of all that clients own.
    """
    law = game.loss
    if not isinstance(law, PowerLaw) or isinstance(law, ConvergenceBound):
        return None
    first = int(law.measured_from * game.num_rounds)
    start = game.clients.initial_mean_staleness if starting_staleness is None else starting_staleness
    held = available(game, conservation_rate, total_volume)
    aged = staleness(held, conservation_rate, start)[first:]
    scarcity = scarcity_of(law, game.clients.num_clients, held)[first:]
    value = float(np.mean(law(scarcity, aged)))
    deviation = law.deviation(scarcity, aged) if np.isfinite(scarcity).all() else float("inf")
    return Prediction(law.unit, value, deviation)


def weight_of_a_point(game: Game, worth: float) -> float:
    """γ if a point of accuracy is worth this much money: T/(T + 100·V)."""
    law_of(game, "point_worth")
    if not 0 < worth < np.inf:
        raise InputError.of("point_worth", "> 0", worth)
    return game.num_rounds / (game.num_rounds + 100 * worth)


def law_of(game: Game, goal: str) -> PowerLaw:
    """The calibrated law of a game; raises if a goal has no meaning without it."""
    law = game.loss
    if not isinstance(law, PowerLaw) or isinstance(law, ConvergenceBound):
        rule = "left out unless game.loss is a law in a unit: run `dufl calibrate` first"
        raise InputError.of(goal, rule, None, text="no such law")
    if goal == "accuracy" and law.unit != "error":
        raise InputError.of(goal, f"left out: the loss law is about {law.unit}, not the error", law.unit)
    return law


@dataclass(frozen=True)
class Reached:
    """The cheapest offer for a goal: R, θ, and whether the goal is reached with 90 % confidence."""

    payment: float
    conservation_rate: float
    reached: bool
    missing: float  # by how much the goal is missed, in the unit of the law


def cheapest(game: Game, accuracy: float, competition: Competition = "mean-field") -> Reached:
    """The least payment whose predicted accuracy is at least this with 90 % confidence.

    The bound falls with the payment, so the payment is found by bisection of its logarithm. For each payment,
    the conservation rate is the one with the best bound.
    """
    law_of(game, "accuracy")
    if not 0 < accuracy < 1:
        raise InputError.of("accuracy", "in (0, 1)", accuracy)
    wanted, (low, high) = 1 - accuracy, game.payment_range
    bound = _bound(game, competition)

    def best(payment: float) -> tuple[float, float]:
        return best_rate(lambda rate: bound(payment, rate), game.conservation_range)

    rate, reached = best(high)
    if reached > wanted:
        return Reached(high, rate, False, reached - wanted)
    low = min(max(low, SMALLEST, 1e-9 * high), high)
    least_rate, least = best(low)
    if least <= wanted:
        return Reached(low, least_rate, True, 0.0)
    for _ in range(STEPS):
        if high / low - 1 <= CLOSE:
            break
        middle = float(np.sqrt(low * high))
        middle_rate, value = best(middle)
        if value <= wanted:
            high, rate = middle, middle_rate
        else:
            low = middle
    return Reached(high, rate, True, 0.0)


def most_accurate(game: Game, payment: float, competition: Competition = "mean-field") -> float:
    """The conservation rate with the least predicted loss at a payment."""
    predicted = predictor(game, competition)
    return best_rate(lambda rate: predicted(payment, rate).value, game.conservation_range)[0]


def _bound(game: Game, competition: Competition) -> Callable[[float, float], float]:
    """The predicted loss that is exceeded with a probability of 10 %, at the clients' equilibrium."""
    predicted = predictor(game, competition)

    def bound(payment: float, rate: float) -> float:
        prediction = predicted(payment, rate)
        return prediction.value + NINETY_ONE_SIDED * prediction.deviation

    return bound


def predictor(game: Game, competition: Competition) -> Callable[[float, float], Prediction]:
    """The prediction for an offer at the clients' equilibrium, which is searched from the previous one."""
    last: list[Array] = []

    def predicted(payment: float, rate: float) -> Prediction:
        response = respond(game, payment, rate, competition, last[0] if last else None, 1e-6)
        found, clients = response.equilibrium, response.game.clients
        if payment >= SMALLEST:
            last[:] = [found.total_volume]
        aged = starting_staleness(clients, payment, rate, found.announced_volume, competition, game.trims)
        prediction = predict(response.game, rate, found.total_volume, aged)
        assert prediction is not None
        return prediction

    return predicted


def best_rate(cost: Callable[[float], float], rates: tuple[float, float]) -> tuple[float, float]:
    """The conservation rate with the least cost: a coarse scan, denser towards 1, then golden sections."""
    least, most = rates
    if least == most:
        return least, cost(least)
    away = np.linspace((1 - least) ** 0.5, (1 - most) ** 0.5, RATES)
    scanned = (1 - away**2).tolist()
    costs = [cost(rate) for rate in scanned]
    at = int(np.argmin(costs))
    left, right = scanned[max(at - 1, 0)], scanned[min(at + 1, RATES - 1)]
    best = scanned[at], costs[at]
    golden = (5**0.5 - 1) / 2
    inner = [right - golden * (right - left), left + golden * (right - left)]
    values = [cost(rate) for rate in inner]
    for _ in range(8):
        if values[0] <= values[1]:
            right, inner, values = inner[1], [0.0, inner[0]], [0.0, values[0]]
            inner[0] = right - golden * (right - left)
            values[0] = cost(inner[0])
        else:
            left, inner, values = inner[0], [inner[1], 0.0], [values[1], 0.0]
            inner[1] = left + golden * (right - left)
            values[1] = cost(inner[1])
    return min([best, *zip(inner, values, strict=True)], key=lambda pair: pair[1])
