"""The frontier: which accuracy each payment buys, by the loss law that was fitted to trainings.

For every payment R, the conservation rate θ is the one with the best prediction at the clients' equilibrium.
A law without a unit, such as the paper's bound, has no frontier.
"""

from dataclasses import dataclass

import numpy as np

from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.mean_field import SMALLEST
from dufl.game.parameters import Game
from dufl.game.plan import Plan, equilibrium, solve
from dufl.game.prediction import Prediction, best_rate, predictor
from dufl.game.search import Progress

POINTS = 25
LEAST = 1e-3  # of the plan's payment: the smallest payment shown
BEYOND = 3.0  # times the plan's payment: the largest payment shown if the plan pays all that is allowed
TYPES = 256  # of clients at most; exact for as many clients
STEP = 0.02  # relative change of the payment for the slope


@dataclass(frozen=True, eq=False)
class Frontier:
    """The best prediction for every payment.

    Attributes:
        unit: of the law: "error", "loss" or "rmse".
        payment: R, ascending.
        conservation_rate: the best θ for each R.
        value: the predicted accuracy, or the loss or RMSE if the law is about these.
        low: the lower end of its 90 % interval.
        high: the upper end.
    """

    unit: str
    payment: Array
    conservation_rate: Array
    value: Array
    low: Array
    high: Array

    @property
    def accuracy(self) -> Array:
        """The predicted accuracy; NaN if the law is not about the error."""
        return self.value if self.unit == "error" else np.full_like(self.value, np.nan)

    def at(self, payment: float) -> float:
        """The value at a payment, between the points of the frontier."""
        return float(np.interp(np.log(payment), np.log(self.payment), self.value))


@dataclass(frozen=True)
class Score:
    """A prediction as it is shown: an accuracy in [0, 1], or a loss of at least 0, with its 90 % interval."""

    value: float
    low: float
    high: float


def score_of(prediction: Prediction) -> Score:
    """A prediction as it is shown; a law that is extrapolated can predict an error beyond 1."""
    low, high = prediction.interval
    if prediction.unit != "error":
        return Score(*(max(number, 0.0) for number in (prediction.value, low, high)))
    return Score(*(min(max(1 - number, 0.0), 1.0) for number in (prediction.value, high, low)))


def frontier_of(plan: Plan, progress: Progress = lambda _: None) -> Frontier | None:
    """The frontier of a plan's game, with a point at the plan's payment.

    None if the law has no unit, or nothing may be paid.
    """
    if plan.prediction is None or plan.game.payment_range[1] == 0:
        return None
    game = plan.game.replace(clients=compress(plan.game.clients, TYPES))
    predicted = predictor(game, plan.competition)
    payments, rates, scores = _payments(plan), list[float](), list[Score]()
    for place, payment in enumerate(payments.tolist(), 1):

        def loss(rate: float, payment: float = payment) -> float:
            return predicted(payment, rate).value

        rates.append(best_rate(loss, _conservation_range(game))[0])
        scores.append(score_of(predicted(payment, rates[-1])))
        progress(place / len(payments))
    value, low, high = np.array([(s.value, s.low, s.high) for s in scores]).T
    return Frontier(plan.prediction.unit, payments, np.array(rates), value, low, high)


def _payments(plan: Plan) -> Array:
    """From far below the plan's payment to the largest; the plan's is one of them."""
    low, high = plan.game.payment_range
    if high <= 1.01 * plan.payment:
        high = BEYOND * plan.payment
    high = max(high, 2 * SMALLEST)
    least = max(LEAST * (plan.payment if plan.payment > 0 else high), SMALLEST)
    least = max(least, low) if low < plan.payment else least
    payments = np.geomspace(least, high, POINTS)
    if least < plan.payment < high:
        nearest = 1 + int(np.argmin(np.abs(np.log(payments[1:-1] / plan.payment))))
        payments[nearest] = plan.payment
    return payments


def _conservation_range(game: Game) -> tuple[float, float]:
    """The rates to choose from; all of them if the whole offer is fixed, as there is nothing else to show."""
    is_offer = all(low == high for low, high in (game.payment_range, game.conservation_range))
    return (0.0, 1.0) if is_offer else game.conservation_range


def paper_offer(plan: Plan) -> Plan | None:
    """The clients' response to the offer of the paper's parameters: the game without the loss law.

    None if the plan's law has no unit, or the offer is fixed.
    """
    if plan.prediction is None or plan.game.payment_range[0] == plan.game.payment_range[1]:
        return None
    bound = plan.game.replace(loss=None)
    chosen = solve(bound, competition=plan.competition, certified=False)
    return equilibrium(
        plan.game,
        payment=chosen.payment,
        conservation_rate=chosen.conservation_rate,
        competition=plan.competition,
    )


def payment_per_point(plan: Plan) -> float | None:
    """The slope of the frontier at the plan: payment per round for one more point of accuracy.

    The conservation rate stays the plan's: at the best rate, its change has no first-order effect. If the law
    is not about the error, it is the payment that lowers the loss by 1 %. None if there is no such slope.
    """
    if plan.prediction is None or plan.payment < SMALLEST:
        return None
    game = plan.game.replace(clients=compress(plan.game.clients, TYPES))
    predicted = predictor(game, plan.competition)
    less, more = (predicted(plan.payment * factor, plan.conservation_rate) for factor in (1 - STEP, 1 + STEP))
    gained = less.value - more.value
    point = 0.01 if plan.prediction.unit == "error" else 0.01 * plan.prediction.value
    if not (np.isfinite(gained) and gained > 0 and point > 0):
        return None
    return 2 * STEP * plan.payment * point / gained
