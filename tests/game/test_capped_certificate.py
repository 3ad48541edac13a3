"""Capacities and prices per sample: the certificate agrees with a QP solver, and it can say no."""

from typing import Any, NamedTuple

import clarabel
import numpy as np
import pytest
from scipy import sparse

from dufl import Certificate, Clients, Game, certify_profile
from dufl.game.certificate import conclude, examine
from dufl.game.clients_file import COLUMNS
from dufl.game.deviation import best_deviation
from dufl.game.dynamics import volume as volume_law
from dufl.game.parameters import Competition
from dufl.game.utility import client_utility
from laws import Array, rough_clients, rough_price

BOTH: list[Competition] = ["mean-field", "nash"]
PAYMENT = 200.0  # at which most clients of a `capped_game` are full in some round
NEGLIGIBLE = 1e-250  # stands for a price of 0, which no total volume gives


class Problem(NamedTuple):
    """Clients that share prices, a conservation rate and whether they may begin with less."""

    price: Array
    theta: float
    clients: Clients
    trim: bool


def changed(clients: Clients, **columns: Any) -> Clients:
    """The same clients with some columns replaced."""
    given: dict[str, Any] = {name: getattr(clients, name) for name in COLUMNS}
    return Clients(**{**given, **columns}, allow_empty=True)


def best(problem: Problem, k: int = 0, capacity: float | None = None) -> tuple[Array, Array]:
    """Volume and collection of a client by dynamic programming."""
    price, theta, clients, trim = problem
    held, collected = np.empty_like(price), np.empty_like(price)
    best_deviation(
        price,
        np.full_like(price, 2 * clients.training_cost[k]),
        theta,
        clients.collection_cost[k],
        clients.initial_volume[k],
        trim,
        held,
        collected,
        clients.capacity[k] if capacity is None else capacity,
        clients.collection_price[k],
        clients.training_price[k],
    )
    return held, collected


def best_of_all(problem: Problem) -> tuple[Array, Array]:
    held, collected = zip(*(best(problem, k) for k in range(problem.clients.size)), strict=True)
    return np.column_stack(held), np.column_stack(collected)


def earned(problem: Problem, held: Array, collected: Array, k: int = 0) -> float:
    """The utility of a client at fixed prices."""
    price, _, c, _ = problem
    cost = c.collection_price[k] * collected + c.collection_cost[k] * collected**2
    cost = cost + c.training_price[k] * held + c.training_cost[k] * held**2
    return float(np.sum(price * held - cost))


def turnover(problem: Problem, held: Array, collected: Array, k: int = 0) -> float:
    """What it is paid plus what it spends."""
    return 2 * float(np.abs(problem.price) @ held) - earned(
        problem._replace(price=np.abs(problem.price)), held, collected, k
    )


def judge(problem: Problem, held: Array, collected: Array) -> Certificate:
    """The certificate of clients that are too small to move the prices, which must not be negative."""
    price, theta, clients, trim = problem
    total = 1 / price
    found = examine(clients, 1.0, theta, total, held, collected, "mean-field", trim)
    return conclude([found], total, "mean-field")


def prices(generator: np.random.Generator, most_rounds: int = 121, negative: bool = False) -> Array:
    """Rough prices of 2 or more rounds, not all of them 0."""
    price = rough_price(generator, int(generator.integers(2, most_rounds)))
    if not price.any():
        price = np.ones_like(price)
    return price - generator.random() * price.max() if negative else np.maximum(price, NEGLIGIBLE)


def rough_problem(generator: np.random.Generator, price: Array, count: int = 1) -> Problem:
    """Costs and capacities over many magnitudes: often binding, at what is owned, or infinite."""
    owned, alpha, beta = rough_clients(generator, count)
    theta = float(generator.choice([0.0, 1.0, generator.random()]))
    trim = bool(generator.integers(2))

    def some(values: Array) -> Array:
        return np.where(generator.random(count) < 0.4, 0.0, values)

    typical = max(np.abs(price).mean(), 1e-6)
    paying = some(typical * 10 ** generator.uniform(-3, 0.5, count))
    holding = some(typical * 10 ** generator.uniform(-3, 0.3, count))
    free = Problem(
        price,
        theta,
        Clients(owned, alpha, beta, 1.0, np.inf, paying, holding, allow_empty=True),
        trim,
    )
    largest = best_of_all(free)[0].max(axis=0)
    capacity = np.where(largest > 0, largest * generator.uniform(0.05, 1.2, count), 1.0)
    capacity = np.where(generator.random(count) < 0.2, np.inf, capacity)
    if not trim:
        capacity = np.maximum(capacity, owned)
    return free._replace(clients=changed(free.clients, capacity=capacity))


def qp(problem: Problem) -> tuple[Array, Array, float, bool]:
    """What an interior-point solver finds for the first client, its unit of money, and whether it is done."""
    price, theta, clients, trim = problem
    owned, alpha, beta = (
        v[0] for v in (clients.initial_volume, clients.collection_cost, clients.training_cost)
    )
    a, b = clients.collection_price[0], clients.training_price[0]
    num_rounds = len(price)
    move = sparse.eye(num_rounds, k=1) - theta * sparse.eye(num_rounds)
    move = sparse.csc_matrix(move)[:-1]  # Δ = move · D
    quadratic = 2 * beta * sparse.eye(num_rounds) + 2 * alpha * move.T @ move
    linear = move.T @ np.full(num_rounds - 1, a) - (price - b)
    first = sparse.csc_matrix(([1.0], ([0], [0])), shape=(1, num_rounds))
    # Scaled so that money and samples are near 1, as the solver's tolerances assume.
    size = max(best(problem)[0].max(), min(1e-3 * owned, clients.capacity[0])) or 1.0
    unit = np.abs(linear).max() * size or 1.0
    capacity = min(clients.capacity[0], 1e3 * size)
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-11
    options.max_iter = 500
    constraints = [-move, sparse.eye(num_rounds), first, -first]
    bounds = np.zeros(2 * num_rounds + 1)
    bounds[num_rounds - 1 : -2] = capacity / size
    bounds[-2:] = owned / size, 0.0 if trim else -owned / size
    solution = clarabel.DefaultSolver(
        sparse.csc_matrix(sparse.triu(quadratic * (size * size / unit))),
        linear * (size / unit),
        sparse.csc_matrix(sparse.vstack(constraints)),
        bounds,
        [clarabel.NonnegativeConeT(len(bounds))],
        options,
    ).solve()
    is_solved = str(solution.status) in ("Solved", "AlmostSolved")
    held = np.minimum(np.array(solution.x) * size, capacity)
    held[0] = np.clip(held[0], 0.0, owned) if trim else owned
    collected = np.append(np.maximum(held[1:] - theta * held[:-1], 0.0), 0.0)
    return volume_law(held[0], collected, theta), collected, float(unit), is_solved


def capped_game(seed: int, theta: float, trim: bool, num_clients: int = 8) -> Game:
    """Clients of which most are full in some round, with prices per sample for half of them."""
    generator = np.random.default_rng(seed)
    capacity = generator.uniform(60, 300, num_clients)
    owned = generator.uniform(0.1, 1.0, num_clients) * (500 if trim else capacity)
    clients = Clients(
        owned,
        generator.uniform(1e-4, 1e-3, num_clients),
        np.where(generator.random(num_clients) < 0.2, 0.0, generator.uniform(5e-6, 5e-5, num_clients)),
        capacity=capacity * generator.choice([1.0, 1.0, np.inf], num_clients),
        collection_price=generator.choice([0.0, 0.02], num_clients),
        training_price=generator.choice([0.0, 0.01], num_clients),
    )
    return Game(clients=clients, num_rounds=int(generator.integers(2, 15)), trim_start=trim)


def equilibrium_of(game: Game, payment: float, theta: float, competition: Competition) -> tuple[Array, Array]:
    """The equilibrium by halfway steps φ ← sqrt(φ·ΣD); with influence the price falls by R/φ² per sample."""
    clients, total = game.clients, np.full(game.num_rounds, 500.0)
    held = np.empty((game.num_rounds, clients.size))
    collected = np.empty_like(held)
    for _ in range(300):
        for k in range(clients.size):
            bend = payment / total**2 if competition == "nash" else np.zeros_like(total)
            volume, collection = np.empty_like(total), np.empty_like(total)
            best_deviation(
                payment / total,
                2 * clients.training_cost[k] + bend,
                theta,
                clients.collection_cost[k],
                clients.initial_volume[k],
                game.trims,
                volume,
                collection,
                clients.capacity[k],
                clients.collection_price[k],
                clients.training_price[k],
            )
            held[:, k], collected[:, k] = volume, collection
        total = np.sqrt(total * held.sum(axis=1))
    return held, collected


def test_dynamic_programming_finds_what_a_qp_solver_finds() -> None:
    generator = np.random.default_rng(0)
    limited = solved = 0
    for case in range(400):
        problem = rough_problem(generator, prices(generator, 60, negative=bool(case % 2)))
        held, collected = best(problem)
        assert (held <= problem.clients.capacity).all()
        assert (collected >= 0).all()
        ours = earned(problem, held, collected)
        theirs_held, theirs_collected, unit, is_solved = qp(problem)
        theirs = earned(problem, theirs_held, theirs_collected)
        scale = turnover(problem, held, collected) + unit
        assert ours >= theirs - 1e-9 * scale
        assert theirs >= ours - 1e-6 * scale or not is_solved
        limited += bool((held == problem.clients.capacity).any())
        solved += is_solved
    assert limited > 100
    assert solved > 360


def test_what_a_qp_solver_finds_satisfies_the_conditions() -> None:
    """To the accuracy of the solver, and what it finds without the capacity does not."""
    generator = np.random.default_rng(1)
    refused = solved = 0
    for _ in range(200):
        problem = rough_problem(generator, generator.uniform(0.5, 1.5, int(generator.integers(2, 40))))
        held, collected, unit, is_solved = qp(problem)
        if not is_solved:
            continue
        solved += 1
        certificate = judge(problem, held[:, None], collected[:, None])
        assert certificate.law_residual.max() <= 1e-7
        assert certificate.kkt_residual.max() <= 1e-4
        assert certificate.fixed_gain[0] <= 1e-6 * (certificate.turnover[0] + unit)
        free = best(problem, capacity=np.inf)
        if free[0].max() > 1.01 * problem.clients.capacity[0]:
            refused += 1
            assert judge(problem, free[0][:, None], free[1][:, None]).law_residual.max() > 1e-3
    assert refused > 50
    assert solved > 180


def solve_rough_problems(seed: int, batches: int) -> int:
    """The conditions of optimality of best deviations; returns how many were full in some round."""
    generator = np.random.default_rng(seed)
    full = 0
    for _ in range(batches):
        problem = rough_problem(generator, prices(generator), 16)
        held, collected = best_of_all(problem)
        assert (held <= problem.clients.capacity).all()
        assert (collected >= 0).all()
        certificate = judge(problem, held, collected)
        assert certificate.law_residual.max() <= 1e-12
        assert certificate.kkt_residual.max() <= 1e-8
        full += int((certificate.full_rounds > 0).sum())
    return full


def test_the_conditions_hold_on_twenty_thousand_rough_problems() -> None:
    assert solve_rough_problems(2, 1250) > 10_000


@pytest.mark.slow
def test_the_conditions_hold_on_a_million_rough_problems() -> None:
    assert solve_rough_problems(3, 62_500) > 500_000


@pytest.mark.parametrize("limit", [np.inf, 1e300])
def test_no_limit_and_no_prices_change_no_digit(limit: float) -> None:
    generator = np.random.default_rng(4)
    for case in range(2000):
        problem = rough_problem(generator, prices(generator, negative=bool(case % 2)))
        price, theta, clients, trim = problem
        bend = np.full_like(price, 2 * clients.training_cost[0])
        given = price, bend, theta, clients.collection_cost[0], clients.initial_volume[0], trim
        plain, same = np.empty((2, len(price))), np.empty((2, len(price)))
        best_deviation(*given, plain[0], plain[1])
        best_deviation(*given, same[0], same[1], limit, 0.0, 0.0)
        np.testing.assert_array_equal(plain, same)


def test_shadow_prices_are_the_slope_of_what_is_earned() -> None:
    """V is concave in C, so a difference quotient to the right lies between the slopes at its ends."""
    generator = np.random.default_rng(5)
    full = close = 0
    for _ in range(150):
        problem = rough_problem(generator, prices(generator, 60), 8)
        clients = problem.clients
        held, collected = best_of_all(problem)
        wider = problem._replace(clients=changed(clients, capacity=clients.capacity * (1 + 1e-5)))
        more_held, more_collected = best_of_all(wider)
        here = judge(problem, held, collected).shadow_price
        there = judge(wider, more_held, more_collected).shadow_price
        for k in range(clients.size):
            capacity, scale = clients.capacity[k], turnover(problem, held[:, k], collected[:, k], k)
            if not np.isfinite(capacity):
                assert here[k] == 0
                continue
            rise = earned(problem, more_held[:, k], more_collected[:, k], k)
            rise -= earned(problem, held[:, k], collected[:, k], k)
            slope, rounding = rise / (1e-5 * capacity), 1e-13 * scale / (1e-5 * capacity)
            assert there[k] - rounding <= slope <= here[k] + rounding
            full += here[k] > 0
            close += here[k] > 0 and slope == pytest.approx(here[k], rel=1e-2, abs=rounding)
    assert close > 0.95 * full > 200


@pytest.mark.parametrize(("collection_price", "worth"), [(0.5, 1.0), (2.0, 0.0)])
def test_the_shadow_price_of_a_buffer_that_is_full_from_the_start(
    collection_price: float, worth: float
) -> None:
    """θ = 1 and D⁰ = C: one more sample is collected once, for a, and held for T − 1 rounds."""
    clients = Clients(10.0, 0.1, 0.01, capacity=10.0, collection_price=collection_price, training_price=0.2)
    problem = Problem(np.full(6, 0.7), 1.0, clients, trim=False)
    held, collected = best_of_all(problem)
    assert held.ravel().tolist() == [10.0] * 6
    certificate = judge(problem, held, collected)
    assert certificate.kkt_residual.max() <= 1e-15
    assert certificate.shadow_price[0] == pytest.approx(max(5 * (0.7 - 0.2 - 0.2) - collection_price, 0.0))
    assert certificate.shadow_price[0] == pytest.approx(worth)
    assert certificate.full_rounds.tolist() == [6]


@pytest.mark.parametrize(
    ("owned", "trim", "full"),
    [(4.0, False, 1), (4.0, True, 1), (8.0, False, 2), (8.0, True, 2), (9.0, True, 2)],
)
def test_the_shadow_price_of_two_rounds(owned: float, trim: bool, full: int) -> None:
    """By hand; room in round 0 is worth something only to a client that owns more than fits."""
    clients = Clients(owned, 0.1, 0.01, capacity=8.0, collection_price=0.3, training_price=0.1)
    first = min(owned, 8.0)
    cost_of_one_more = 0.3 + 2 * 0.1 * (8 - 0.5 * first)
    expected = 3.0 - 0.1 - 2 * 0.01 * 8 - cost_of_one_more
    if owned > 8:  # half of a sample kept need not be collected
        expected += 2.0 - 0.1 - 2 * 0.01 * 8 + 0.5 * cost_of_one_more
    problem = Problem(np.array([2.0, 3.0]), 0.5, clients, trim)
    held, collected = best_of_all(problem)
    assert held.ravel().tolist() == [first, 8.0]
    certificate = judge(problem, held, collected)
    assert certificate.shadow_price[0] == pytest.approx(expected)
    assert certificate.full_rounds[0] == full


@pytest.mark.parametrize("competition", BOTH)
@pytest.mark.parametrize("theta", [0.0, 0.4, 0.95, 1.0])
@pytest.mark.parametrize("trim", [False, True])
def test_equilibria_with_capacities_and_prices_hold(
    competition: Competition, theta: float, trim: bool
) -> None:
    full = 0
    for seed in range(6):
        game = capped_game(seed, theta, trim)
        held, collected = equilibrium_of(game, PAYMENT, theta, competition)
        certificate = certify_profile(game, PAYMENT, theta, held, collected, competition)
        assert certificate.worst <= 1e-8
        total = held.sum(axis=1)
        utility = client_utility(game.clients, PAYMENT, held, collected, total)
        np.testing.assert_allclose(certificate.utility, utility, rtol=1e-12)
        paid = PAYMENT * (held / total[:, None]).sum(axis=0)
        np.testing.assert_allclose(certificate.turnover, 2 * paid - utility, rtol=1e-12)
        never = certificate.full_rounds == 0
        assert not certificate.shadow_price[never].any()
        np.testing.assert_array_equal(
            certificate.full_rounds, (held >= game.clients.capacity * (1 - 1e-9)).sum(axis=0)
        )
        full += int((certificate.shadow_price > 0).sum())
    assert full > 10


def test_the_equilibrium_maximizes_the_potential() -> None:
    """Φ = R·Σ log φ − Σ costs on D ≤ C, by a conic solver that knows nothing of best responses."""
    theta, payment = 0.6, PAYMENT
    game = capped_game(3, theta, trim=False)
    num_rounds, clients = game.num_rounds, game.clients
    size = num_rounds * clients.size + num_rounds  # D by client, then log φ
    move = sparse.csc_matrix(sparse.eye(num_rounds, k=1) - theta * sparse.eye(num_rounds))[:-1]
    blocks, linear = [], []
    for k in range(clients.size):
        bend = 2 * clients.training_cost[k] * sparse.eye(num_rounds)
        blocks.append(bend + 2 * clients.collection_cost[k] * move.T @ move)
        each = np.full(num_rounds, clients.training_price[k])
        linear.append(each + move.T @ np.full(num_rounds - 1, clients.collection_price[k]))
    blocks.append(sparse.csc_matrix((num_rounds, num_rounds)))
    linear.append(np.full(num_rounds, -payment))
    volumes = sparse.eye(size - num_rounds, size)
    firsts = sparse.csc_matrix(volumes)[::num_rounds]
    moves = sparse.block_diag([move] * clients.size)
    moves.resize(moves.shape[0], size)
    sums = sparse.hstack([sparse.hstack([sparse.eye(num_rounds)] * clients.size), 0 * sparse.eye(num_rounds)])
    logs = sparse.eye(num_rounds, size, k=size - num_rounds)
    cone_rows, cone_bounds = [], []
    for t in range(num_rounds):  # (log φ, 1, φ) is in the exponential cone
        cone_rows += [-sparse.csc_matrix(logs)[t], sparse.csc_matrix((1, size)), -sparse.csc_matrix(sums)[t]]
        cone_bounds += [0.0, 1.0, 0.0]
    capacity = np.repeat(np.minimum(clients.capacity, 1e5), num_rounds)
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-9
    cones = [clarabel.ZeroConeT(clients.size), clarabel.NonnegativeConeT(moves.shape[0] + len(capacity))]
    solution = clarabel.DefaultSolver(
        sparse.csc_matrix(sparse.triu(sparse.block_diag(blocks))),
        np.concatenate(linear),
        sparse.csc_matrix(sparse.vstack([firsts, -moves, volumes, *cone_rows])),
        np.concatenate([clients.initial_volume, np.zeros(moves.shape[0]), capacity, cone_bounds]),
        cones + [clarabel.ExponentialConeT()] * num_rounds,
        options,
    ).solve()
    assert str(solution.status) in ("Solved", "AlmostSolved"), solution.status
    found = np.array(solution.x)[: size - num_rounds].reshape(clients.size, num_rounds).T
    held, _ = equilibrium_of(game, payment, theta, "mean-field")
    np.testing.assert_allclose(found, held, rtol=1e-4, atol=1e-4)
    assert (held == clients.capacity).any()


def _shifted(
    held: Array, collected: Array, theta: float, k: int, t: int, share: float
) -> tuple[Array, Array]:
    """The same with another volume in one round, and the collections before and after it moved along."""
    held, collected = held.copy(), collected.copy()
    change = share * held[t, k]
    held[t, k] += change
    collected[t - 1, k] += change
    if t + 1 < len(held):
        collected[t, k] -= theta * change
    return held, collected


@pytest.mark.parametrize("competition", BOTH)
@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_it_refuses_full_buffers_with_a_little_less_or_more(competition: Competition, theta: float) -> None:
    changed = 0
    for seed in range(6):
        game = capped_game(seed, theta, trim=False)
        held, collected = equilibrium_of(game, PAYMENT, theta, competition)
        full = (held == game.clients.capacity) & (np.arange(len(held)) > 0)[:, None]
        for t, k in np.argwhere(full)[::5]:
            for share, fine in ((-1e-12, True), (-1e-3, False), (1e-3, False)):
                profile = _shifted(held, collected, theta, k, t, share)
                if profile[1].min() < 0:
                    continue
                certificate = certify_profile(game, PAYMENT, theta, *profile, competition)
                assert certificate.holds() == fine
                assert fine or certificate.law_residual.argmax() == k or share < 0
                changed += not fine
    assert changed > 20


@pytest.mark.parametrize("competition", BOTH)
def test_it_refuses_the_best_profile_of_another_game(competition: Competition) -> None:
    """Without the capacities, with them where there are none, with other prices, and cut off at C."""
    game = capped_game(1, 0.5, trim=False)
    c = game.clients
    held, collected = equilibrium_of(game, PAYMENT, 0.5, competition)
    for name, other in (("capacity", np.inf), ("collection_price", 0.05), ("training_price", 0.05)):
        another = game.replace(clients=changed(c, **{name: other}))
        assert not certify_profile(another, PAYMENT, 0.5, held, collected, competition).holds()
        theirs = equilibrium_of(another, PAYMENT, 0.5, competition)
        assert certify_profile(another, PAYMENT, 0.5, *theirs, competition).holds()
        assert not certify_profile(game, PAYMENT, 0.5, *theirs, competition).holds()
    wide, _ = equilibrium_of(game.replace(clients=changed(c, capacity=np.inf)), PAYMENT, 0.5, competition)
    cut = np.minimum(wide, c.capacity)
    gathered = np.append(cut[1:] - 0.5 * cut[:-1], np.zeros((1, c.size)), axis=0)
    certificate = certify_profile(game, PAYMENT, 0.5, cut, gathered, competition)
    assert certificate.law_residual.max() <= 1e-12
    assert not certificate.holds()


@pytest.mark.parametrize("competition", BOTH)
@pytest.mark.parametrize("theta", [0.0, 0.7, 1.0])
def test_more_owned_than_fits_is_a_violation_of_the_law(competition: Competition, theta: float) -> None:
    """D(0) = D⁰ > C, with whatever comes after it; the client may have room again later, or never."""
    generator = np.random.default_rng(6)
    for _ in range(200):
        owned, alpha, beta = rough_clients(generator, 4)
        owned = np.maximum(owned, 0.01)
        clients = Clients(owned, alpha, beta, capacity=owned * generator.uniform(1e-3, 0.99, 4))
        game = Game(clients=clients, num_rounds=int(generator.integers(2, 30)))
        price = rough_price(generator, game.num_rounds) + 1e-3
        held, collected = best_of_all(Problem(price, theta, clients, trim=False))
        assert (held[0] == owned).all()
        assert (held[1:] <= np.maximum(clients.capacity, theta * held[:-1])).all()
        certificate = certify_profile(game, 10.0, theta, held, collected, competition)
        assert (certificate.law_residual >= 0.009).all()
        assert np.isfinite(certificate.influence_gain).all()
        assert not certificate.holds()


def test_the_gain_from_influence_is_reached_and_not_exceeded() -> None:
    """The upper bound against a general solver in the true utility, with a capacity and with prices."""
    from scipy.optimize import minimize

    theta, payment = 0.6, 20.0
    clients = Clients(
        [300.0, 500.0, 800.0],
        [4e-4, 6e-4, 2e-4],
        [2e-5, 1e-5, 0.0],
        capacity=[350.0, np.inf, 900.0],
        collection_price=[0.0, 0.001, 0.002],
        training_price=[0.001, 0.0, 0.001],
    )
    game = Game(num_rounds=8, clients=clients)
    volume, collection = equilibrium_of(game, payment, theta, "mean-field")
    certificate = certify_profile(game, payment, theta, volume, collection)
    assert certificate.holds()
    for k in range(3):
        others = volume.sum(axis=1) - volume[:, k]

        def lost(gathered: Array, others: Array = others, k: int = k) -> float:
            held = volume_law(clients.initial_volume[k], np.append(gathered, 0.0), theta)
            fixed = clients.collection_price[k] * gathered.sum() + clients.training_price[k] * held.sum()
            square = clients.collection_cost[k] * gathered @ gathered + clients.training_cost[k] * held @ held
            return float(fixed + square - payment * (held / (held + others)).sum())

        def room(gathered: Array, k: int = k) -> Array:
            held = volume_law(clients.initial_volume[k], np.append(gathered, 0.0), theta)
            return np.asarray(min(clients.capacity[k], 1e6) - held)

        start = collection[:-1, k]
        limits = {"type": "ineq", "fun": room}
        found = minimize(
            lost,
            start,
            bounds=[(0, None)] * 7,
            constraints=limits,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        gain = lost(start) - found.fun
        assert gain > 0
        assert certificate.influence_gain[k] == pytest.approx(gain, rel=1e-3)
        assert certificate.influence_gain[k] >= gain * (1 - 1e-6)
