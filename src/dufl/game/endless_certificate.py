"""Measures how far any constant profile is from an equilibrium of a service without a last round.

A client holds D ≤ C and collects Δ in every round, which costs a·Δ + α·Δ² + b·D + β·D². The certificate
bounds what it could gain per round by any other policy, also one that changes from round to round, by weak
duality. Let p be the price of a sample. For every number λ ≥ 0 and every policy, the volume law
D(t+1) = θ·D(t) + Δ(t) gives over T rounds

    Σ_t [(p − b)·D − β·D² − a·Δ − α·Δ²]
        =  Σ_t [(p − b − λ·(1−θ))·D − β·D²]  +  Σ_t [(λ − a)·Δ − α·Δ²]  +  λ·(D(0) − D(T))
        ≤  T·B(λ) + λ·D(0),        B(λ) = max_{0≤D≤C} [(p − b − λ·(1−θ))·D − β·D²] + [λ − a]₊²/(4α).

The maximum is [p − b − λ·(1−θ)]₊²/(4β), unless it is beyond C. So no policy earns more than B(λ) per round in
the long run, whatever λ is. What the client has at first adds at most λ·D(0) in all, not per round. With a
good λ the bound is sharp; with a bad one the certificate refuses more than it must. Two are tried: the
marginal cost of collecting the best constant volume, and (p − b)/(1−θ), which is right for clients without
training costs. Let g = α·(1−θ)² + β and h = b + (1−θ)·a. If the capacity does not bind, the first of them is
a + α·(1−θ)·(p − h)/g, and its B is (p − h)²/(4g). This formula is used too, since differences of prices are
lost in rounding just above p = h.

With influence, the payment R·D/(F+D) against the others' volume F is concave in D, so it is at most its
tangent at any volume V: R·(V/(F+V))² + D·R·F/(F+V)². The bound then holds with that price. The tangent is
taken at the best constant volume.

What a sample earns beyond its marginal costs, ν = p − b − 2β·D − (1−θ)·(a + 2α·Δ), is 0 if 0 < D < C. It may
be negative at D = 0 and positive at D = C, where the client would hold more if it could.

If the price rises by a share ε, a client holds ε·p/(2g) more. Just above p = h that is far more than ε of
what it holds. So that the rounding of volumes and prices does not count as a deviation, the distance of φ
from the sum of best responses is divided by how much more prices make them react: it is the share by which φ
itself is wrong. And (ε·p)²/(4g), what a rounding error ε of the price can be worth, is no gain.

This module may not import the formulas that it judges; import-linter enforces it.
"""

import numpy as np

from dufl.game.certificate import Certificate
from dufl.game.dynamics import Array
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients
from dufl.game.utility import client_cost

NEWTON = 200  # steps at most
ROUNDING = 1e-14  # so that p/(1−θ)·(1−θ) is not below p
FULL = 1e-9  # the share of the capacity that may be left in a full buffer
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
    spent = client_cost(clients, volume, collection)
    if payment > 0 and not total > 0:
        gain, none = np.full(clients.size, np.inf), np.zeros(clients.size)  # one sample is paid everything
        return Certificate(competition, none, none, gain, gain, spent, -spent, 0.0)
    paid = payment * (volume / total) if payment > 0 else np.zeros(clients.size)
    others = _volume_of_others(clients, volume)
    price = np.full(clients.size, payment / total if payment > 0 else 0.0)
    known, best_known = _bound_with_influence(clients, payment, conservation_rate, others)
    fixed, best_fixed = _bound(clients, price, conservation_rate)
    exact = competition == "nash"
    marginal = price * (others / total) if exact and payment > 0 else price
    best = best_known if exact else best_fixed
    rounded = _worth_of_rounding(clients, conservation_rate, price)
    influence = 2 * marginal / total if exact and payment > 0 else np.zeros(clients.size)
    return Certificate(
        competition,
        _law(clients, conservation_rate, volume, collection),
        _kkt(clients, marginal, conservation_rate, volume, collection),
        np.maximum(fixed - (paid - spent) - rounded, 0.0),
        np.maximum(known - (paid - spent) - rounded, 0.0),
        paid + spent,
        paid - spent,
        _distance(clients, influence, conservation_rate, volume, best) if total > 0 else 0.0,
    )


def _volume_of_others(clients: Clients, volume: Array) -> Array:
    """F_k = Σ_{j≠k} D_j, as a sum and not as a difference: one client may hold nearly everything."""
    held = clients.multiplicity * volume
    before = np.concatenate([[0.0], np.cumsum(held[:-1])])
    after = np.concatenate([[0.0], np.cumsum(held[:0:-1])])[::-1]
    return np.asarray(before + after + (clients.multiplicity - 1) * volume)


def _distance(clients: Clients, influence: Array, theta: float, volume: Array, best: Array) -> float:
    """|Σ_k D*_k/φ − 1| for the best constant volumes D*, over how much more prices make them react.

    `influence` is by how much a client's own volume lowers its marginal price.
    """
    total, wanted = (float((clients.multiplicity * held).sum()) for held in (volume, best))
    reaction = _entry_price(clients, theta) / (2 * _curvature(clients, theta) + influence)
    free = (np.maximum(volume, best) > 0) & (np.minimum(volume, best) < clients.capacity)
    more = float((clients.multiplicity * np.where(free, reaction, 0.0)).sum()) / total
    return abs(wanted / total - 1) / (1 + more)


def _law(clients: Clients, theta: float, volume: Array, collection: Array) -> Array:
    """|Δ − (1−θ)·D|, negative values and D beyond the capacity, relative to the volume."""
    beyond = np.maximum(volume - clients.capacity, np.maximum(-collection, -volume))
    wrong = np.maximum(np.abs(collection - (1 - theta) * volume), beyond)
    return np.asarray(wrong / np.maximum(np.abs(volume), 1e-300))


def _kkt(clients: Clients, price: Array, theta: float, volume: Array, collection: Array) -> Array:
    """|ν|, or its forbidden part at D = 0 and D = C, relative to the price or the largest marginal cost."""
    collecting = 2 * clients.collection_cost * collection
    terms = price, 2 * clients.training_cost * volume, (1 - theta) * collecting
    linear = _entry_price(clients, theta)
    scale = np.maximum.reduce([*(np.abs(term) for term in terms), linear])
    surplus = terms[0] - linear - terms[1] - terms[2]
    wrong = np.where(volume <= 0, np.maximum(surplus, 0.0), np.abs(surplus))
    wrong = np.where(volume >= clients.capacity * (1 - FULL), np.maximum(-surplus, 0.0), wrong)
    return np.asarray(wrong / np.where(scale > 0, scale, 1.0))


def _bound(clients: Clients, price: Array, theta: float) -> tuple[Array, Array]:
    """The most that any policy earns per round at a price, B(λ), and the best constant volume."""
    alpha, beta, capacity = clients.collection_cost, clients.training_cost, clients.capacity
    left = price - _entry_price(clients, theta)
    volume = np.minimum(np.maximum(left, 0.0) / (2 * _curvature(clients, theta)), capacity)
    bounds = []
    for beyond in (2 * alpha * (1 - theta) * volume, left / (1 - theta) * (1 + ROUNDING)):
        worth = np.maximum(beyond, 0.0)  # λ − a
        held = np.maximum(left - (1 - theta) * worth, 0.0)
        with np.errstate(divide="ignore", over="ignore"):
            earned = np.divide(held**2, 4 * beta, out=np.full(held.shape, np.inf), where=beta > 0)
        with np.errstate(invalid="ignore"):  # β·C without training costs and capacities
            earned = np.where(held > 2 * beta * capacity, capacity * (held - beta * capacity), earned)
        earned = np.where(held > 0, earned, 0.0)
        bounds.append(earned + worth * (worth / (4 * alpha)))
    priced = _entry_price(clients, theta) > 0
    exact = np.maximum(left, 0.0) ** 2 / (4 * _curvature(clients, theta))
    return np.minimum(np.minimum(*bounds), np.where(priced, exact, np.inf)), volume


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
    """The constant volume V at which (2·g·V + h)·(F+V)² = R·F, or the capacity; by Newton's method.

    The left side is convex in V and the start is too large, so every step goes down to the root.
    """
    if payment <= 0:
        return np.zeros_like(others)
    twice = 2 * _curvature(clients, theta)
    linear = _entry_price(clients, theta) / twice
    with np.errstate(divide="ignore", over="ignore"):
        far = np.cbrt(payment / twice * others)
        near = np.maximum(payment / twice / others - linear, 0.0)
        volume = np.where(others > 0, np.minimum(far, near), 0.0)
    for _ in range(NEWTON):
        total = others + volume
        aim = np.divide(payment / twice * others, total, out=np.zeros_like(total), where=total > 0)
        aim = np.divide(aim, total, out=np.zeros_like(total), where=total > 0)
        costs = volume + linear
        slope = 1 + 2 * np.divide(costs, total, out=np.zeros_like(total), where=total > 0)
        after = np.maximum(volume - (costs - aim) / slope, 0.0)
        settled = bool((np.abs(after - volume) <= CLOSE * volume + ROUNDING * linear / slope).all())
        volume = after
        if settled:
            break
    return np.minimum(volume, clients.capacity)


def _curvature(clients: Clients, theta: float) -> Array:
    """Of what a constant volume D costs per round, g·D² + h·D: g = α·(1−θ)² + β."""
    return np.asarray(clients.collection_cost * (1 - theta) ** 2 + clients.training_cost)


def _worth_of_rounding(clients: Clients, theta: float, price: Array) -> Array:
    """What a rounding error of the price is worth to clients that begin to collect near it."""
    priced = _entry_price(clients, theta) > 0
    return np.where(priced, (ROUNDING * price) ** 2 / (4 * _curvature(clients, theta)), 0.0)


def _entry_price(clients: Clients, theta: float) -> Array:
    """The price below which a client holds nothing, h = b + (1−θ)·a."""
    return np.asarray(clients.training_price + (1 - theta) * clients.collection_price)
