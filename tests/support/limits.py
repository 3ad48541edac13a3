"""The laws of clients with capacities and prices per sample, implemented independently of the solvers."""

import clarabel
import numpy as np
from scipy import sparse

from laws import Array, holding


def limited_kkt_residual(
    price: Array,
    volume: Array,
    collection: Array,
    collection_cost: Array,
    training_cost: Array,
    conservation_rate: float,
    capacity: Array,
    collection_price: Array,
    training_price: Array,
) -> Array:
    """The largest violation of the KKT conditions of every client, relative to its largest marginal value.

    Δ(t) = [λ(t+1) − a]^+/(2α) and λ(t) = p(t) − b − 2β·D(t) + θ·λ(t+1) − μ(t), with a multiplier
    μ(t) ≥ 0 that is 0 where D(t) < C. In a full round it is chosen so that λ(t) fits what was collected.
    """
    later, wrong = np.zeros(volume.shape[1]), np.zeros(volume.shape[1])
    scale = np.maximum(np.abs(price).max(), collection_price + training_price)
    for t in range(len(volume) - 1, 0, -1):
        worth = price[t] - training_price - 2 * training_cost * volume[t] + conservation_rate * later
        paid = collection_price + 2 * collection_cost * collection[t - 1]
        full = volume[t] >= capacity * (1 - 1e-12)
        worth = np.where(full, np.minimum(worth, paid), worth)
        wrong = np.maximum(
            wrong, np.abs(2 * collection_cost * collection[t - 1] - np.maximum(worth - collection_price, 0))
        )
        scale = np.maximum.reduce(
            [scale, 2 * training_cost * volume[t], 2 * collection_cost * collection[t - 1]]
        )
        later = worth
    return np.asarray(wrong / np.where(scale > 0, scale, 1.0))


def limited_money(
    price: Array, volume: Array, collection: Array, costs: tuple[float, float, float, float]
) -> float:
    """The utility of one client at fixed prices; `costs` are α, β, a and b."""
    alpha, beta, paid, held = costs
    spent = alpha * collection**2 + beta * volume**2 + paid * collection + held * volume
    return float(np.sum(price * volume - spent))


def limited_qp_optimum(
    price: Array,
    initial: float,
    costs: tuple[float, float, float, float],
    conservation_rate: float,
    capacity: float,
    trim_start: bool = False,
) -> tuple[Array, Array, float]:
    """Volume and collection of one client by an interior-point QP solver, and its unit of money.

    The variables are D(0), which is fixed unless `trim_start`, and all collections but the last.
    """
    alpha, beta, paid, charged = costs
    num_rounds = len(price)
    later = holding(num_rounds, conservation_rate)[:, :-1]
    held = np.column_stack([float(conservation_rate) ** np.arange(num_rounds), later])
    quadratic = np.diag(np.append(0.0, np.full(num_rounds - 1, 2 * alpha))) + 2 * beta * held.T @ held
    linear = -(held.T @ (price - charged)) + np.append(0.0, np.full(num_rounds - 1, paid))
    size = np.full(num_rounds, np.abs(linear).max() / np.abs(quadratic).max() or 1.0)
    size = np.minimum(size, capacity) if np.isfinite(capacity) else size
    if initial > 0:
        size[0] = initial if not trim_start else min(size[0], initial)
    unit = float((np.abs(linear) * size).max() or 1.0)
    limits = [-np.eye(num_rounds), np.eye(num_rounds)[:1]]
    bounds = [np.zeros(num_rounds), np.array([initial / size[0]])]
    if not trim_start:
        limits.append(-np.eye(num_rounds)[:1])
        bounds.append(np.array([-initial / size[0]]))
    if np.isfinite(capacity):
        limits.append(held * size / capacity)
        bounds.append(np.ones(num_rounds))
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix(np.triu(quadratic * np.outer(size, size) / unit)),
        linear * size / unit,
        sparse.csc_matrix(np.vstack(limits)),
        np.concatenate(bounds),
        [clarabel.NonnegativeConeT(sum(map(len, bounds)))],
        options,
    )
    solution = solver.solve()
    assert str(solution.status) in ("Solved", "AlmostSolved"), solution.status
    chosen = np.maximum(np.array(solution.x) * size, 0)
    return held @ chosen, np.append(chosen[1:], 0.0), unit


def rough_limits(generator: np.random.Generator, initial: Array, price: Array) -> tuple[Array, Array, Array]:
    """Capacities, prices of collection and of training over many magnitudes; a part of them has no effect."""
    count = initial.size
    above = 10 ** generator.uniform(-3, 3, count)
    capacity = np.where(initial > 0, initial * (1 + above), above)
    capacity = np.where(
        generator.random(count) < 0.1, np.maximum(initial, 1e-3), capacity
    )  # nothing more fits
    capacity = np.where(generator.random(count) < 0.2, np.inf, capacity)
    top = float(price.max()) or 1.0
    paid, charged = top * 10 ** generator.uniform(-4, 0.5, (2, count))
    nothing = generator.random((2, count)) < 0.4
    return capacity, np.where(nothing[0], 0.0, paid), np.where(nothing[1], 0.0, charged)
