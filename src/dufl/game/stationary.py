"""The equilibrium away from both ends of the horizon, in closed form.

In the middle of a long horizon the mean-field equilibrium is constant. A client collects what it discards,
Δ_k = (1−θ)·D_k; a sample is worth λ_k = (p − 2β_k·D_k)/(1−θ) to it, and Δ_k = λ_k/(2α_k). Hence

    D_k = p / (2·(α_k·(1−θ)² + β_k))      φ = sqrt(R·A(θ)/2)      S = 1/(1−θ)
    A(θ) = Σ_k 1/(α_k·(1−θ)² + β_k)

and the server's cost per round is γ·R + c/sqrt(R) + a term of θ alone, with c = (1−γ)·κ2·N·ψ²/sqrt(A/2). Its
least value over R is at R(θ) = (c/(2γ))^(2/3).

In the Nash game the marginal price is R·(φ−D_k)/φ² instead of p = R/φ. With g_k = α_k·(1−θ)² + β_k, the same
conditions give 2·g_k·D_k = R·(φ−D_k)/φ², so D_k = φ/(1 + g_k·A) with A = 2φ²/R. That the volumes add up to φ,

    Σ_k 1/(1 + g_k·A) = 1,

determines A(θ), whatever the payment. So φ = sqrt(R·A(θ)/2) holds in both games; in the mean field
D_k = φ/(g_k·A).

With prices per sample or capacities there is no closed form: see `stationary_price`. Both only lower volumes.

This optimum does not depend on the range of payments. The search in the finite game starts there, so a wide
range cannot hide it. Two corrections make it a good start for short horizons too: samples that are never
discarded serve T rounds, so 1−θ is at least 1/T; and if early rounds are forgotten (κ1 < 1), the loss of a
round is weighted by the mean of κ1^(T−1−t).
"""

from dataclasses import dataclass

import numpy as np

from dufl.game.clients_file import COLUMNS
from dufl.game.compression import compress
from dufl.game.loss import Array, terms_of
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients
from dufl.game.stationary_price import total_volumes, volumes

RATES = 101  # conservation rates that are compared
PAYMENTS = 241  # payments that are compared under a general loss law
SMALLEST_SHARE = 1e-12  # of the largest payment
NEWTON = 100  # steps at most; about six in practice
TYPES = 64  # that represent clients with prices or capacities in the search for a likely offer


@dataclass(frozen=True)
class Holdings:
    """What clients hold in the stationary state.

    Attributes:
        total_volume: φ.
        volume: D_k, of shape (clients,).
        shadow_price: what one more unit of capacity would earn each client per round; 0 if it is not full.
    """

    total_volume: float
    volume: Array
    shadow_price: Array


def has_prices(clients: Clients) -> bool:
    """Whether a client has a price per sample."""
    return bool(clients.collection_price.any() or clients.training_price.any())


def has_closed_form(clients: Clients) -> bool:
    """Whether no client has a price per sample or a capacity."""
    return not has_prices(clients) and bool(np.isinf(clients.capacity).all())


def unlimited(clients: Clients) -> Clients:
    """The same clients without capacities."""
    columns = {name: getattr(clients, name) for name in (*COLUMNS, "multiplicity")}
    return Clients(**{**columns, "capacity": np.inf}, allow_empty=True)


def holdings(
    clients: Clients, payment: float, conservation_rate: float, competition: Competition
) -> Holdings:
    """What every client holds for an offer with θ < 1."""
    if not has_prices(clients):
        answer, share = shares(clients, conservation_rate, competition)
        total = float(np.sqrt(payment * answer / 2))
        if (total * share <= clients.capacity).all():
            return Holdings(total, total * share, np.zeros(clients.size))
    total, held, excess = volumes(clients, payment, conservation_rate, competition == "nash")
    return Holdings(total, held, np.where(held >= clients.capacity, np.maximum(excess, 0.0), 0.0))


def response(clients: Clients, conservation_rate: float) -> float:
    """A(θ), how strongly the clients as a whole respond to a price."""
    fresh = (1 - conservation_rate) ** 2
    return float((clients.multiplicity / (clients.collection_cost * fresh + clients.training_cost)).sum())


def total_volume(clients: Clients, payment: float, conservation_rate: float) -> float:
    """φ, the samples that all clients hold together in the mean field: sqrt(R·A(θ)/2) in closed form."""
    if _is_free(clients, payment, conservation_rate):
        return float(np.sqrt(payment * response(clients, conservation_rate) / 2))
    return float(total_volumes(clients, np.array(payment), np.array(conservation_rate), nash=False))


def _is_free(clients: Clients, payment: float, conservation_rate: float) -> bool:
    """Whether the closed form holds for an offer: no prices, and every client has room for its volume."""
    if has_closed_form(clients) or has_prices(clients):
        return not has_prices(clients)
    marginal = clients.collection_cost * (1 - conservation_rate) ** 2 + clients.training_cost
    price = np.sqrt(2 * payment / response(clients, conservation_rate))
    return bool((price <= 2 * marginal * clients.capacity).all())


def responses(clients: Clients, conservation_rates: Array, competition: Competition) -> Array:
    """A(θ) in either game, for several θ < 1."""
    fresh = (1 - conservation_rates[:, None]) ** 2
    marginal = clients.collection_cost * fresh + clients.training_cost
    if competition == "mean-field":
        return np.asarray((clients.multiplicity / marginal).sum(axis=1))
    return _nash_responses(marginal, clients.multiplicity)


def shares(clients: Clients, conservation_rate: float, competition: Competition) -> tuple[float, Array]:
    """A(θ), and the share of the total volume that each client holds."""
    answer = float(responses(clients, np.array([conservation_rate]), competition)[0])
    marginal = clients.collection_cost * (1 - conservation_rate) ** 2 + clients.training_cost
    own = 1.0 if competition == "nash" else 0.0
    return answer, 1 / (own + marginal * answer)


def _nash_responses(marginal: Array, weight: Array) -> Array:
    """The root A of Σ_k w_k/(1 + g_k·A) = 1, for every row of g.

    With the cheapest client's g_1, ratios ρ_k = g_k/g_1 ≥ 1 and y = g_1·A, one client less of the cheapest
    type and all terms times 1 + y, the equation is without cancellation

        y = L(y) = Σ_k w_k·(1 + y)/(1 + ρ_k·y),    L(∞) ≤ y ≤ L(0) = N − 1.

    L falls, and log y − log L(y) has a slope from 1 to 2 in log y: there is one root, and Newton's method in
    log y finds it in a few steps. A step that leaves the bracket is replaced by its middle.
    """
    cheapest = marginal.min(axis=1, keepdims=True)
    ratio = marginal / cheapest
    others = np.broadcast_to(weight, ratio.shape).copy()
    np.put_along_axis(
        others, ratio.argmin(axis=1)[:, None], weight[ratio.argmin(axis=1)][:, None] - 1, axis=1
    )
    low, high = np.log((others / ratio).sum(axis=1)), np.log(others.sum(axis=1))
    x = (low + high) / 2
    for _ in range(NEWTON):
        y = np.exp(x)[:, None]
        part = others / (1 + ratio * y)
        value = (1 + y[:, 0]) * part.sum(axis=1)
        excess = x - np.log(value)
        slope = 1 + y[:, 0] * (part * ((1 - ratio) / (1 + ratio * y))).sum(axis=1) / -value
        low, high = np.where(excess <= 0, x, low), np.where(excess >= 0, x, high)
        newton = x - excess / slope
        after = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        moved, x = np.abs(after - x).max(), after
        if moved <= 4e-16 * (1 + np.abs(x).max()):
            break
    return np.asarray(np.exp(x) / cheapest[:, 0])


def likely_offer(game: Game) -> tuple[float, float]:
    """The payment and the conservation rate with the least stationary cost, within the game's ranges.

    If the best offer without capacities leaves room in every buffer, it is the best with them.
    """
    if not has_prices(game.clients):
        payment, rate = (_likely_offer_by_bound if game.loss is None else _likely_offer_by_law)(game)
        if _is_free(game.clients, payment, min(rate, 1 - 1 / game.num_rounds)):
            return payment, rate
    return _likely_offer_by_law(game, free=False)


def _likely_offer_by_bound(game: Game) -> tuple[float, float]:
    """The same with the paper's bound, in closed form."""
    low, high = game.payment_range
    rates = np.linspace(*game.conservation_range, RATES)
    fresh = np.maximum(1 - rates, 1 / game.num_rounds)
    answers = np.array([response(game.clients, 1 - share) for share in fresh])
    weight = game.payment_weight
    counted = (1 - weight) * float(np.mean(game.decay ** np.arange(game.num_rounds)))
    noise = counted * game.volume_weight * game.clients.num_clients * game.sampling_noise**2
    scarcity = noise / np.sqrt(answers / 2)
    with np.errstate(divide="ignore", over="ignore"):
        payments = np.clip(
            (scarcity / (2 * weight)) ** (2 / 3) if weight else np.full_like(rates, high), low, high
        )
        aged = counted * game.staleness_weight * game.time_sensitivity**2 / fresh
        lost = np.divide(scarcity, np.sqrt(payments), out=np.zeros_like(scarcity), where=scarcity > 0)
    best = int(np.argmin(weight * payments + lost + aged))
    return float(payments[best]), float(rates[best])


def _likely_offer_by_law(game: Game, free: bool = True) -> tuple[float, float]:
    """The same for any loss law, by comparing payments of many magnitudes; in closed form if `free`."""
    low, high = game.payment_range
    rates = np.linspace(*game.conservation_range, RATES)
    fresh = np.maximum(1 - rates, 1 / game.num_rounds)
    payments = np.clip(
        np.geomspace(max(low, high * SMALLEST_SHARE, 1e-300), max(high, 1e-300), PAYMENTS), low, high
    )
    if free:
        answers = np.array([response(game.clients, 1 - share) for share in fresh])
        held = np.sqrt(payments[:, None] * answers / 2)
    else:
        held = total_volumes(compress(game.clients, TYPES), payments[:, None], 1 - fresh, nash=False)
    with np.errstate(divide="ignore", over="ignore"):
        scarcity = game.clients.num_clients / held
    little, old = terms_of(game.law, scarcity, np.broadcast_to(1 / fresh, scarcity.shape))
    weight = game.payment_weight
    counted = (1 - weight) * float(np.mean(game.decay ** np.arange(game.num_rounds)))
    with np.errstate(invalid="ignore"):
        cost = weight * payments[:, None] + (counted * (little + old) if counted else np.zeros_like(little))
    i, j = np.unravel_index(int(np.nanargmin(cost)), cost.shape)
    return float(payments[i]), float(rates[j])
