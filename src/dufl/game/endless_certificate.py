"""Measures how far any constant profile is from an equilibrium of a service without a last round.

A client holds D and collects Δ in every round. The certificate bounds what it could gain per round by any
other policy, also one that changes from round to round, by weak duality. Let p be the price of a sample. For
every number λ ≥ 0 and every policy, the volume law D(t+1) = θ·D(t) + Δ(t) gives over T rounds

    Σ_t [p·D − β·D² − α·Δ²]  =  Σ_t [(p − λ·(1−θ))·D − β·D²]  +  Σ_t [λ·Δ − α·Δ²]  +  λ·(D(0) − D(T))
                             ≤  T·B(λ) + λ·D(0),        B(λ) = [p − λ·(1−θ)]₊²/(4β) + λ²/(4α).

So no policy earns more than B(λ) per round in the long run, whatever λ is. What the client has at first adds
at most λ·D(0) in all, not per round. With a good λ the bound is sharp; with a bad one the certificate refuses
more than it must. Two are tried: the marginal cost of collecting the best constant volume, and p/(1−θ), which
is right for clients without training costs.

With influence, the payment R·D/(F+D) against the others' volume F is concave in D, so it is at most its
tangent at any volume V: R·(V/(F+V))² + D·R·F/(F+V)². The bound then holds with that price. The tangent is
taken at the best constant volume.

This module may not import the formulas that it judges; import-linter enforces it.
"""

import numpy as np

from dufl.game.certificate import Certificate
from dufl.game.dynamics import Array
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients

NEWTON = 200  # steps at most
ROUNDING = 1e-14  # so that p/(1−θ)·(1−θ) is not below p
CLOSE = 1e-12  # the relative step that ends it; a tangent elsewhere only makes the bound less sharp


def certify_stationary(
    game: Game,
    payment: float,
    conservation_rate: float,
    volume: Array,
    collection: Array,
    competition: Competition = "mean-field",
) -> Certificate:
    """Certify a constant profile; `volume` and `collection` of shape (clients,). Everything is per round.

    >>> game = Game(horizon="endless")
    >>> held = np.full(15, 100.0)
    >>> certify_stationary(game, 60.0, 0.5, held, held / 2).holds()
    False
    """
    clients = game.clients
    total = float((clients.multiplicity * volume).sum())
    spent = clients.collection_cost * collection**2 + clients.training_cost * volume**2
    if payment > 0 and not total > 0:
        gain, none = np.full(clients.size, np.inf), np.zeros(clients.size)  # one sample is paid everything
        return Certificate(competition, none, none, gain, gain, spent, -spent, 0.0)
    paid = payment * (volume / total) if payment > 0 else np.zeros(clients.size)
    others = _volume_of_others(clients, volume)
    price = np.full(clients.size, payment / total if payment > 0 else 0.0)
    known, best_known = _bound_with_influence(clients, payment, conservation_rate, others)
    fixed, best_fixed = _bound(clients, price, conservation_rate)
    exact = competition == "nash"
    best = float((clients.multiplicity * (best_known if exact else best_fixed)).sum())
    marginal = price * (others / total) if exact and payment > 0 else price
    return Certificate(
        competition,
        _law(conservation_rate, volume, collection),
        _kkt(clients, marginal, conservation_rate, volume, collection),
        np.maximum(fixed - (paid - spent), 0.0),
        np.maximum(known - (paid - spent), 0.0),
        paid + spent,
        paid - spent,
        abs(best / total - 1) if total > 0 else 0.0,
    )


def _volume_of_others(clients: Clients, volume: Array) -> Array:
    """F_k = Σ_{j≠k} D_j, as a sum and not as a difference: one client may hold nearly everything."""
    held = clients.multiplicity * volume
    before = np.concatenate([[0.0], np.cumsum(held[:-1])])
    after = np.concatenate([[0.0], np.cumsum(held[:0:-1])])[::-1]
    return np.asarray(before + after + (clients.multiplicity - 1) * volume)


def _law(theta: float, volume: Array, collection: Array) -> Array:
    """|Δ − (1−θ)·D|, and negative values, relative to the volume."""
    wrong = np.maximum(np.abs(collection - (1 - theta) * volume), np.maximum(-collection, -volume))
    return np.asarray(wrong / np.maximum(np.abs(volume), 1e-300))


def _kkt(clients: Clients, price: Array, theta: float, volume: Array, collection: Array) -> Array:
    """|p − 2β·D − (1−θ)·λ| with λ = 2α·Δ, relative to the largest of the three."""
    worth = 2 * clients.collection_cost * collection
    terms = price, 2 * clients.training_cost * volume, (1 - theta) * worth
    scale = np.maximum.reduce([np.abs(term) for term in terms])
    return np.asarray(np.abs(terms[0] - terms[1] - terms[2]) / np.where(scale > 0, scale, 1.0))


def _bound(clients: Clients, price: Array, theta: float) -> tuple[Array, Array]:
    """The most that any policy earns per round at a price, B(λ), and the best constant volume."""
    alpha, beta = clients.collection_cost, clients.training_cost
    volume = price / (2 * _curvature(clients, theta))
    bounds = []
    for worth in (2 * alpha * (1 - theta) * volume, price / (1 - theta) * (1 + ROUNDING)):
        held = np.maximum(price - (1 - theta) * worth, 0.0)
        with np.errstate(divide="ignore", over="ignore"):
            earned = np.divide(held**2, 4 * beta, out=np.full(held.shape, np.inf), where=beta > 0)
        earned = np.where(held > 0, earned, 0.0)
        bounds.append(earned + worth * (worth / (4 * alpha)))
    return np.minimum(*bounds), volume


def _bound_with_influence(
    clients: Clients, payment: float, theta: float, others: Array
) -> tuple[Array, Array]:
    """The same for a client that knows its influence, by the tangent at its best constant volume."""
    volume = _best_with_influence(clients, payment, theta, others)
    total = others + volume
    there = total > 0
    share = np.divide(volume, total, out=np.zeros_like(total), where=there)
    rest = np.divide(others, total, out=np.zeros_like(total), where=there)
    price = np.divide(payment * rest, total, out=np.zeros_like(total), where=there)
    earned, _ = _bound(clients, price, theta)
    alone = (others == 0) & (payment > 0)  # nobody else holds anything: the smallest sample earns all of R
    return np.where(alone, payment, payment * share**2 + earned), volume


def _best_with_influence(clients: Clients, payment: float, theta: float, others: Array) -> Array:
    """The constant volume V at which 2·g·V·(F+V)² = R·F, with g = α·(1−θ)² + β; by Newton's method.

    The left side is convex in V and the start is too large, so every step goes down to the root.
    """
    if payment <= 0:
        return np.zeros_like(others)
    twice = 2 * _curvature(clients, theta)
    with np.errstate(divide="ignore", over="ignore"):
        far = np.cbrt(payment / twice * others)
        volume = np.where(others > 0, np.minimum(far, payment / twice / others), 0.0)
    for _ in range(NEWTON):
        total = others + volume
        aim = np.divide(payment / twice * others, total, out=np.zeros_like(total), where=total > 0)
        aim = np.divide(aim, total, out=np.zeros_like(total), where=total > 0)
        slope = 1 + 2 * np.divide(volume, total, out=np.zeros_like(total), where=total > 0)
        after = np.maximum(volume - (volume - aim) / slope, 0.0)
        settled = bool((np.abs(after - volume) <= CLOSE * volume).all())
        volume = after
        if settled:
            break
    return volume


def _curvature(clients: Clients, theta: float) -> Array:
    """α·(1−θ)² + β: what a constant volume D costs per round is this times D²."""
    return np.asarray(clients.collection_cost * (1 - theta) ** 2 + clients.training_cost)
