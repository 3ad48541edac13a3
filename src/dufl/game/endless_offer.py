"""The server's best offer for a service without a last round.

In the stationary equilibrium the server's cost per round is

    U(R, θ) = γ·R + (1−γ)·ℓ(N/φ, S),    φ = sqrt(R·A(θ)/2),    S = 1/(1−θ),

with A(θ) of `stationary`. A power law without a flow term is a·(N/φ)^p plus a term of θ alone, so for every θ

    R(θ) = (p·c/(2γ))^(2/(p+2)),    c = (1−γ)·a·N^p·(2/A)^(p/2),

which is (c/(2γ))^(2/3) for the paper's bound. With a flow term U is convex in log R, since it is a sum of
exponentials. What is left is a search in θ, on the scale of log S. A(θ) changes slowly there, so a dense grid
shows every valley, and the deepest ones are followed down. A user's own law may have any form: for every θ of
the grid its payment is searched on a grid of magnitudes.

Everything works on arrays over offers. A large population is represented by `TYPES` types in the search.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dufl.errors import InputError
from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.loss import PowerLaw, terms_of
from dufl.game.mean_field import SMALLEST, TYPES
from dufl.game.parameters import Competition, Game, Offer
from dufl.game.population import Clients
from dufl.game.prediction import NINETY_ONE_SIDED, Reached, law_of
from dufl.game.stationary import SMALLEST_SHARE, responses

OLDEST = 1e6  # rounds: the largest staleness that is considered, so θ is at most 1 − 1e-6
AGES = 401  # values of S on the grid, by magnitude
PAYMENTS = 241  # payments on the grid, by magnitude
VALLEYS = 5
FINER = 21  # points between the neighbours of the best point
ZOOMS = 8  # each makes the grid ten times finer


def best_offer(game: Game, competition: Competition = "mean-field") -> Offer:
    """The payment R and the conservation rate θ with the least cost per round.

    θ = 1 is no endless service: nobody collects, and the data grow old without limit. The largest θ is
    1 − 1e-6, or the lower end of the range if that is larger.
    """
    service = Service.of(game, competition)
    ages = np.linspace(*service.ages, AGES)
    _, costs = service.paid(service.rates(ages))
    left, right = _around_valleys(ages, costs)
    age, _ = _lowest(lambda x: service.paid(service.rates(x))[1], left, right, FINER)
    rates = service.rates(np.concatenate([age, ages[[0, -1]]]))
    payments, costs = service.paid(rates)
    best = int(np.argmin(costs))
    return Offer(payment=float(payments[best]), conservation_rate=float(rates[best]))


def cheapest_offer(game: Game, accuracy: float, competition: Competition = "mean-field") -> Reached:
    """The least payment per round whose predicted accuracy is at least this with 90 % confidence.

    For each payment, the conservation rate is the one with the best bound. Nothing is assumed about how the
    bound depends on the payment. If no payment reaches the accuracy, it is the offer with the best bound.
    """
    law_of(game, "accuracy")
    if not 0 < accuracy < 1:
        raise InputError.of("accuracy", "in (0, 1)", accuracy)
    service, wanted = Service.of(game, competition), 1 - accuracy
    payments = np.exp(np.linspace(*service.magnitudes, PAYMENTS))
    reached: Reached | None = None
    for _ in range(ZOOMS):
        rates, bounds = service.safest(payments)
        enough = bool((bounds <= wanted).any())
        at = int(np.argmax(bounds <= wanted) if enough else np.argmin(bounds))
        if enough or reached is None:
            payment = float(np.clip(payments[at], *game.payment_range))
            missing = 0.0 if enough else float(bounds[at] - wanted)
            reached = Reached(payment, float(rates[at]), enough, missing)
        if at == 0 or not enough:
            break
        payments = np.geomspace(payments[at - 1], payments[at], FINER)
    assert reached is not None
    return reached


@dataclass(frozen=True)
class Service:
    """An endless service as the server sees it: its cost per round for arrays of offers.

    Attributes:
        game: the game, of which the clients are only counted.
        clients: the clients, or types that represent them.
        competition: `mean-field` or `nash`.
    """

    game: Game
    clients: Clients
    competition: Competition

    @classmethod
    def of(cls, game: Game, competition: Competition) -> "Service":
        """The service, with a large population as types."""
        if game.conservation_range[0] == 1:
            rule = "a range that begins below 1 in an endless service: with θ = 1 nobody collects"
            raise InputError.of("conservation_range", rule, list(game.conservation_range))
        if competition == "nash" and game.clients.num_clients < 2:
            rule = "'mean-field' with a single client: it is paid all of R whatever it holds"
            raise InputError.of("competition", rule, competition)
        return cls(game, compress(game.clients, TYPES), competition)

    @property
    def ages(self) -> tuple[float, float]:
        """The range of log S."""
        low, high = (-np.log1p(-min(rate, 1 - 1e-16)) for rate in self.game.conservation_range)
        return float(low), float(max(low, min(high, np.log(OLDEST))))

    @property
    def magnitudes(self) -> tuple[float, float]:
        """The range of log R. A user's own law need not hold for payments of any magnitude."""
        low, high = self.game.payment_range
        least = SMALLEST if isinstance(self.game.law, PowerLaw) else high * SMALLEST_SHARE
        low = max(low, least, SMALLEST)
        return float(np.log(low)), float(np.log(max(low, high)))

    def rates(self, ages: Array) -> Array:
        """θ = 1 − 1/S, within its range."""
        return np.clip(-np.expm1(-ages), *self.game.conservation_range)

    def scarcity(self, payments: Array, answers: Array) -> Array:
        """N/φ; infinite without payment."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(self.game.clients.num_clients / np.sqrt(payments * answers / 2))

    def costs(self, payments: Array, rates: Array, answers: Array) -> Array:
        """U(R, θ)."""
        weight = self.game.payment_weight
        if weight == 1:
            return payments + np.zeros_like(rates)
        scarcity = self.scarcity(payments, answers)
        law = self.game.law
        if isinstance(law, PowerLaw) and law.most_collected is not None:  # no more is collected than there is
            scarcity = np.maximum(scarcity, (1 - rates) / law.most_collected)
        staleness = np.broadcast_to(1 / (1 - rates), scarcity.shape)
        with np.errstate(over="ignore"):
            little, old = terms_of(law, scarcity, staleness)
            return np.asarray(weight * payments + (1 - weight) * (little + old))

    def paid(self, rates: Array) -> tuple[Array, Array]:
        """R(θ) and U(R(θ), θ), for rates of any shape."""
        flat = rates.ravel()
        answers = responses(self.clients, flat, self.competition)
        payments = self._payments(flat, answers)
        costs = self.costs(payments, flat, answers)
        return payments.reshape(rates.shape), costs.reshape(rates.shape)

    def _payments(self, rates: Array, answers: Array) -> Array:
        game, law = self.game, self.game.law
        low, high = game.payment_range
        if high < SMALLEST or game.payment_weight == 1:
            return np.full(rates.shape, low)
        if isinstance(law, PowerLaw) and not law.flow_weight and law.most_collected is None:
            floor = max(low, SMALLEST)
            return np.clip(self._closed_form(law, answers), floor, max(high, floor))
        left, right = (np.full(rates.shape, edge) for edge in self.magnitudes)

        def costs(magnitudes: Array) -> Array:
            payments = np.clip(np.exp(magnitudes), low, high)
            return self.costs(payments, rates[:, None], answers[:, None])

        return np.clip(np.exp(_lowest(costs, left, right, PAYMENTS)[0]), low, high)

    def _closed_form(self, law: PowerLaw, answers: Array) -> Array:
        """R(θ) = (p·c/(2γ))^(2/(p+2)), in logarithms."""
        weight, p = self.game.payment_weight, law.volume_exponent
        with np.errstate(divide="ignore", over="ignore"):
            odds = np.log(p * (1 - weight) / 2) + np.log(law.volume_weight) - np.log(weight)
            scarce = p * np.log(self.game.clients.num_clients) - p / 2 * np.log(answers / 2)
            return np.asarray(np.exp(2 / (p + 2) * (odds + scarce)))

    def safest(self, payments: Array) -> tuple[Array, Array]:
        """For every payment the θ whose loss, exceeded with a probability of 10 %, is the least."""
        law = law_of(self.game, "accuracy")
        covariance = np.zeros((7, 7)) if law.covariance is None else np.array(law.covariance)

        def bounds(ages: Array) -> Array:
            rates = self.rates(ages)
            answers = responses(self.clients, rates.ravel(), self.competition).reshape(rates.shape)
            scarcity, staleness = self.scarcity(payments[:, None], answers), 1 / (1 - rates)
            with np.errstate(over="ignore", invalid="ignore"):
                slopes = law.gradient(scarcity, staleness)
                variance = np.einsum("i...,ij,j...->...", slopes, covariance, slopes)
                spread = np.sqrt(np.maximum(variance, 0.0) + law.noise**2)
                bound = law(scarcity, staleness) + NINETY_ONE_SIDED * spread
            return np.where(np.isnan(bound), np.inf, bound)

        low, high = (np.full(payments.shape, edge) for edge in self.ages)
        ages, values = _lowest(bounds, low, high, AGES)
        return self.rates(ages), values


def _around_valleys(points: Array, values: Array) -> tuple[Array, Array]:
    """The neighbours of the lowest local minima."""
    walled = np.pad(values, 1, constant_values=np.inf)
    lowest = np.flatnonzero((values <= walled[:-2]) & (values <= walled[2:]))
    lowest = lowest[np.argsort(values[lowest], kind="stable")[:VALLEYS]]
    return points[np.maximum(lowest - 1, 0)], points[np.minimum(lowest + 1, points.size - 1)]


def _lowest(cost: Callable[[Array], Array], left: Array, right: Array, first: int) -> tuple[Array, Array]:
    """The x with the least cost in every row [left, right]: a grid, then finer ones around its best point."""
    rows = np.arange(left.size)
    best, least = left, np.full(left.shape, np.inf)
    for zoom in range(ZOOMS + 1):
        x = np.linspace(left, right, first if zoom == 0 else FINER, axis=1)
        values = cost(x)
        at = values.argmin(axis=1)
        better = values[rows, at] < least
        best, least = np.where(better, x[rows, at], best), np.where(better, values[rows, at], least)
        left, right = x[rows, np.maximum(at - 1, 0)], x[rows, np.minimum(at + 1, x.shape[1] - 1)]
    return best, least
