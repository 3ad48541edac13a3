"""The laws that tests check the solvers against, implemented independently of the solvers."""

import clarabel
import numpy as np
import numpy.typing as npt
from scipy import sparse

from dufl import Clients, Game
from dufl.game.parameters import Competition
from dufl.game.population import Uniform

Array = npt.NDArray[np.float64]


def worth(price: Array, volume: Array, training_cost: Array, conservation_rate: float) -> Array:
    """λ(t+1) for every round t: the sum of Proposition 1, term by term."""
    margin = price.reshape(len(price), -1) - 2 * training_cost * volume
    later = np.zeros_like(volume)
    for t in range(len(volume) - 2, -1, -1):
        later[t] = margin[t + 1] + conservation_rate * later[t + 1]
    return later


def kkt_residual(
    price: Array,
    volume: Array,
    collection: Array,
    collection_cost: Array,
    training_cost: Array,
    conservation_rate: float,
) -> Array:
    """max_t |2α·Δ(t) − [λ(t+1)]^+| of every client, relative to its largest price or marginal cost."""
    gap = 2 * collection_cost * collection - np.maximum(
        worth(price, volume, training_cost, conservation_rate), 0
    )
    scale = np.maximum(
        np.abs(price).max(),
        np.maximum((2 * training_cost * volume).max(axis=0), (2 * collection_cost * collection).max(axis=0)),
    )
    return np.asarray(np.abs(gap).max(axis=0) / np.where(scale > 0, scale, 1.0))


def money(price: Array, volume: Array, collection: Array, alpha: float, beta: float) -> float:
    """The utility of one client at fixed prices."""
    return float(np.sum(price * volume - alpha * collection**2 - beta * volume**2))


def holding(num_rounds: int, conservation_rate: float) -> Array:
    """The matrix L with D = L·Δ + D(0)·θ^t: the share of Δ(s) that is left in round t."""
    lag = np.arange(num_rounds)[:, None] - np.arange(num_rounds)[None, :] - 1
    return np.where(lag >= 0, float(conservation_rate) ** np.maximum(lag, 0), 0.0)


def qp_optimum(
    price: Array, initial: float, alpha: float, beta: float, conservation_rate: float
) -> tuple[Array, Array, float]:
    """Volume and collection of one client by an interior-point QP solver, and its unit of money."""
    num_rounds = len(price)
    kept = initial * float(conservation_rate) ** np.arange(num_rounds)
    held = holding(num_rounds, conservation_rate)
    # Scaled so that money and samples are near 1, as the solver's tolerances assume.
    quadratic = 2 * alpha * np.eye(num_rounds) + 2 * beta * held.T @ held
    linear = -(held.T @ (price - 2 * beta * kept))
    unit = np.abs(linear).max() or 1.0
    size = unit / np.abs(quadratic).max()
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix(np.triu(quadratic * size / unit)),
        linear / unit,
        sparse.csc_matrix(-np.eye(num_rounds)),
        np.zeros(num_rounds),
        [clarabel.NonnegativeConeT(num_rounds)],
        options,
    )
    solution = solver.solve()
    assert str(solution.status) in ("Solved", "AlmostSolved"), solution.status
    collection = np.maximum(np.array(solution.x) * size, 0)
    return held @ collection + kept, collection, float(unit * size)


def qp_optimum_with_start(
    price: Array, owned: float, alpha: float, beta: float, conservation_rate: float
) -> tuple[Array, Array, float]:
    """The same where D(0), from 0 to `owned`, is a variable without a cost: the first column."""
    num_rounds = len(price)
    later = holding(num_rounds, conservation_rate)[:, :-1]  # the last collection changes nothing
    held = np.column_stack([float(conservation_rate) ** np.arange(num_rounds), later])
    costs = np.append(0.0, np.full(num_rounds - 1, 2 * alpha))
    quadratic = np.diag(costs) + 2 * beta * held.T @ held
    linear = -(held.T @ price)
    # Scaled so that money and samples are near 1; D(0) has a scale of its own, what is owned.
    unit = np.abs(linear).max() or 1.0
    size = np.full(num_rounds, unit / np.abs(quadratic).max())
    size[0] = min(size[0], owned) or 1.0
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
    money_unit = float(unit * size.max())
    bound = np.eye(num_rounds)[:1]
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix(np.triu(quadratic * np.outer(size, size) / money_unit)),
        linear * size / money_unit,
        sparse.csc_matrix(np.vstack([-np.eye(num_rounds), bound])),
        np.append(np.zeros(num_rounds), owned / size[0]),
        [clarabel.NonnegativeConeT(num_rounds + 1)],
        options,
    )
    solution = solver.solve()
    assert str(solution.status) in ("Solved", "AlmostSolved"), solution.status
    chosen = np.maximum(np.array(solution.x) * size, 0)
    chosen[0] = min(chosen[0], owned)
    return held @ chosen, np.append(chosen[1:], 0.0), money_unit


def rough_price(generator: np.random.Generator, num_rounds: int) -> Array:
    """A price series unlike any equilibrium's: flat, over many magnitudes, or with many zeros."""
    kind = generator.integers(3)
    if kind == 0:
        return generator.random(num_rounds)
    if kind == 1:
        return np.asarray(10 ** generator.uniform(-6, 3, num_rounds))
    zero = generator.random(num_rounds) < 0.5
    return np.where(zero, 0.0, 10 ** generator.uniform(-4, 4, num_rounds))


def rough_clients(generator: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """Initial volumes, collection costs and training costs over many magnitudes, including zeros."""
    initial = np.where(generator.random(count) < 0.2, 0.0, 10 ** generator.uniform(-2, 4, count))
    alpha = 10 ** generator.uniform(-5, 0, count)
    beta = np.where(generator.random(count) < 0.2, 0.0, 10 ** generator.uniform(-6, 0, count))
    return initial, np.asarray(alpha), beta


def random_game(seed: int) -> Game:
    """A realistic game: sizes, costs and weights over several magnitudes."""
    generator = np.random.default_rng(seed)
    alpha, beta = 10 ** generator.uniform(-5, -2), 10 ** generator.uniform(-7, -3)
    clients = Clients.draw(
        int(generator.integers(2, 40)),
        seed,
        initial_volume=Uniform(low=1, high=10 ** generator.uniform(1, 4)),
        collection_cost=Uniform(low=alpha, high=10 * alpha),
        training_cost=Uniform(low=beta, high=10 * beta),
        initial_staleness=Uniform(low=1, high=generator.uniform(1, 8)),
    )
    return Game(
        clients=clients,
        num_rounds=int(generator.integers(3, 80)),
        time_sensitivity=generator.uniform(0, 1.5),
        sampling_noise=10 ** generator.uniform(-1, 1),
        payment_weight=10 ** generator.uniform(-6, -2),
        decay=generator.uniform(0.9, 1),
        payment_range=(0.0, 10 ** generator.uniform(1, 4)),
    )


def wild_game(seed: int) -> tuple[Game, Competition]:
    """A game over many magnitudes, with ranges that are far too wide, far too low or a single value."""
    generator = np.random.default_rng([seed, 77])

    def magnitude(low: float, high: float) -> float:
        return float(10 ** generator.uniform(low, high))

    size, alpha = int(generator.integers(1, 13)), magnitude(-6, 0)
    unlike = generator.choice([0, 0.5, 1.5]) * generator.standard_normal((3, size))
    beta = 0.0 if generator.random() < 0.1 else alpha * magnitude(-4, 1)
    clients = Clients(
        magnitude(0, 5) * 10 ** (unlike[0] / 2), alpha * 10 ** unlike[1], beta * 10 ** unlike[2]
    )
    high = magnitude(-4, 30) if generator.random() < 0.5 else magnitude(-2, 6)
    low = 0.0 if generator.random() < 0.7 else high * magnitude(-12, 0)
    one, two = sorted((float(generator.random()), 1 - magnitude(-6, 0)))
    rates = [(0.0, 1.0), (0.0, 1.0), (one, one), (1.0, 1.0), (0.0, one), (one, two)]
    game = Game(
        clients=clients,
        num_rounds=int(generator.choice([2, 3, 5, 10, 20, 40, 80])),
        time_sensitivity=magnitude(-3, 1),
        sampling_noise=magnitude(-2, 3),
        payment_weight=magnitude(-8, -0.3),
        decay=float(generator.choice([1.0, generator.uniform(0.3, 1)])),
        staleness_weight=magnitude(-6, 0),
        payment_range=(low, high),
        conservation_range=rates[int(generator.integers(len(rates)))],
    )
    return game, "nash" if size > 1 and generator.random() < 0.25 else "mean-field"


def dense_offers(game: Game, payments: int, rates: int) -> tuple[Array, Array]:
    """Payments over all magnitudes of a range, and conservation rates, denser towards 1."""
    (low, high), (least, most) = game.payment_range, game.conservation_range
    bottom, top = np.clip([1e-10, 1e18], low, high)
    spread = np.geomspace(max(bottom, 1e-300), max(top, 1e-300), payments)
    even = np.linspace(least, most, rates)
    late = 1 - np.geomspace(max(1 - most, 1e-6), max(1 - least, 1e-6), rates)
    return (
        np.unique(np.clip([low, *spread], low, high)),
        np.unique(np.clip([*even, *late], least, most)),
    )
