"""The server's best offer for a service without a last round.

In the stationary equilibrium the server's cost per round is

    U(R, θ) = γ·R + (1−γ)·ℓ(N/φ, S),    φ = sqrt(R·A(θ)/2),    S = 1/(1−θ),

with A(θ) of `stationary`. A power law without a flow term is a·(N/φ)^p plus a term of θ alone, so for every θ

    R(θ) = (p·c/(2γ))^(2/(p+2)),    c = (1−γ)·a·N^p·(2/A)^(p/2),

which is (c/(2γ))^(2/3) for the paper's bound. With a flow term U is convex in log R, since it is a sum of
exponentials. What is left is a search in θ, on the scale of log S. A(θ) changes slowly there, so a dense grid
shows every valley, and the deepest ones are followed down. A user's own law may have any form: for every θ of
the grid its payment is searched on a grid of magnitudes.

Prices per sample and capacities leave no closed form: φ(R, θ) is that of `stationary_price`. It is no concave
function of R then. A price at which many clients begin to collect makes further payments worth more, so U has
several valleys in R as well. The payment is searched on a grid of magnitudes, and then once more on the part
of it that can matter: φ ≤ sqrt(R·A/2) bounds U from below, by the closed form. The deepest valleys of this
grid are followed down.

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
from dufl.game.stationary import SMALLEST_SHARE, has_closed_form, has_prices, holdings, responses, unlimited
from dufl.game.stationary_price import total_volumes
from dufl.game.valleys import FINER, ZOOMS, around_valleys, lowest, sectioned

OLDEST = 1e6  # rounds: the largest staleness that is considered, so θ is at most 1 − 1e-6
AGES = 401  # values of S on the grid, by magnitude
PAYMENTS = 241  # payments on the grid, by magnitude
MAGNITUDES = 61  # payments on the grid that shows which of them can matter
PAYMENT_VALLEYS = 3  # for every θ


def best_offer(game: Game, competition: Competition = "mean-field") -> Offer:
    """The payment R and the conservation rate θ with the least cost per round.

    θ = 1 is no endless service: nobody collects, and the data grow old without limit. The largest θ is
    1 − 1e-6, or the lower end of the range if that is larger.

    Capacities only lower volumes. If the best offer without them leaves room in every buffer, it is the best.
    """
    service, clients = Service.of(game, competition), game.clients
    if all(low == high for low, high in (game.payment_range, game.conservation_range)):
        return Offer(payment=game.payment_range[0], conservation_rate=game.conservation_range[0])
    if not has_prices(clients) and not has_closed_form(clients):
        free = game.replace(clients=unlimited(clients))
        offer = best_offer(free, competition)
        held = holdings(free.clients, offer.payment, offer.conservation_rate, competition)
        if (held.volume <= clients.capacity).all():
            return offer
    ages = np.linspace(*service.ages, AGES)
    _, costs = service.paid(service.rates(ages))
    left, right = around_valleys(ages, costs)
    follow = lowest if has_closed_form(service.clients) else sectioned
    age, _ = follow(lambda x: service.paid(service.rates(x))[1], left, right, FINER)
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
        if game.participation == "voluntary":
            rule = "'mandatory' in an endless service: voluntary participation needs a finite horizon"
            raise InputError.of("participation", rule, game.participation, text="'voluntary'")
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

    def total_volume(self, payments: Array, rates: Array, answers: Array | None = None) -> Array:
        """φ, by the closed form from A(θ) if there is one."""
        if not has_closed_form(self.clients):
            return total_volumes(self.clients, payments, rates, self.competition == "nash")
        if answers is None:
            answers = responses(self.clients, rates.ravel(), self.competition).reshape(rates.shape)
        with np.errstate(over="ignore"):
            return np.asarray(np.sqrt(payments * answers / 2))

    def costs(self, payments: Array, rates: Array, answers: Array) -> Array:
        """U(R, θ)."""
        if self.game.payment_weight == 1:
            return payments + np.zeros_like(rates)
        return self._costs_of(payments, rates, self.total_volume(payments, rates, answers))

    def _costs_of(self, payments: Array, rates: Array, totals: Array) -> Array:
        weight, scarcity = self.game.payment_weight, self._scarcity(totals)
        law = self.game.law
        if isinstance(law, PowerLaw) and law.most_collected is not None:  # no more is collected than there is
            scarcity = np.maximum(scarcity, (1 - rates) / law.most_collected)
        staleness = np.broadcast_to(1 / (1 - rates), scarcity.shape)
        with np.errstate(over="ignore"):
            little, old = terms_of(law, scarcity, staleness)
            return np.asarray(weight * payments + (1 - weight) * (little + old))

    def _scarcity(self, totals: Array) -> Array:
        """N/φ; infinite without payment."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(self.game.clients.num_clients / totals)

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
        if not has_closed_form(self.clients):
            return self._searched(rates, answers)
        if isinstance(law, PowerLaw) and not law.flow_weight and law.most_collected is None:
            floor = max(low, SMALLEST)
            return np.clip(self._closed_form(law, answers), floor, max(high, floor))
        left, right = (np.full(rates.shape, edge) for edge in self.magnitudes)

        def costs(magnitudes: Array) -> Array:
            payments = np.clip(np.exp(magnitudes), low, high)
            return self.costs(payments, rates[:, None], answers[:, None])

        return np.clip(np.exp(lowest(costs, left, right, PAYMENTS)[0]), low, high)

    def _searched(self, rates: Array, answers: Array) -> Array:
        """R(θ) of clients with prices or capacities, by the valleys of U in log R."""

        def costs(magnitudes: Array, times: int = 1) -> Array:
            payments = np.clip(np.exp(magnitudes), *self.game.payment_range)
            rows = np.repeat(rates, times)[:, None], np.repeat(answers, times)[:, None]
            return self.costs(payments, *rows)

        left, right = self._worthwhile(rates, answers, costs)
        x = np.linspace(left, right, PAYMENTS, axis=1)
        values = costs(x)
        walled = np.pad(values, ((0, 0), (1, 1)), constant_values=np.inf)
        valley = (values <= walled[:, :-2]) & (values <= walled[:, 2:])
        at = np.argsort(np.where(valley, values, np.inf), axis=1, kind="stable")[:, :PAYMENT_VALLEYS]
        left, right = (np.take_along_axis(x, np.clip(at + side, 0, PAYMENTS - 1), axis=1) for side in (-1, 1))
        found, least = sectioned(lambda x: costs(x, PAYMENT_VALLEYS), left.ravel(), right.ravel(), 3)
        best = least.reshape(at.shape).argmin(axis=1)[:, None]
        chosen = np.take_along_axis(found.reshape(at.shape), best, axis=1)[:, 0]
        return np.clip(np.exp(chosen), *self.game.payment_range)

    def _worthwhile(
        self, rates: Array, answers: Array, costs: Callable[[Array], Array]
    ) -> tuple[Array, Array]:
        """For every θ the range of log R outside of which U is larger than somewhere on a coarse grid."""
        x = np.linspace(*self.magnitudes, MAGNITUDES)
        if not isinstance(self.game.law, PowerLaw):
            return np.full(rates.shape, x[0]), np.full(rates.shape, x[-1])
        payments = np.clip(np.exp(x), *self.game.payment_range)[None]
        least = self._costs_of(payments, rates[:, None], np.sqrt(payments * answers[:, None] / 2))
        possible = least <= costs(np.broadcast_to(x, least.shape)).min(axis=1, keepdims=True)
        first, last = possible.argmax(axis=1), x.size - 1 - possible[:, ::-1].argmax(axis=1)
        return x[np.maximum(first - 1, 0)], x[np.minimum(last + 1, x.size - 1)]

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
            scarcity = self._scarcity(self.total_volume(payments[:, None], rates))
            staleness = 1 / (1 - rates)
            with np.errstate(over="ignore", invalid="ignore"):
                slopes = law.gradient(scarcity, staleness)
                variance = np.einsum("i...,ij,j...->...", slopes, covariance, slopes)
                spread = np.sqrt(np.maximum(variance, 0.0) + law.noise**2)
                bound = law(scarcity, staleness) + NINETY_ONE_SIDED * spread
            return np.where(np.isnan(bound), np.inf, bound)

        low, high = (np.full(payments.shape, edge) for edge in self.ages)
        ages, values = lowest(bounds, low, high, AGES)
        return self.rates(ages), values
