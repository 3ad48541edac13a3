"""Prices per sample and capacities in a service without a last round."""

from decimal import Decimal, localcontext
from typing import Any

import clarabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import brentq

from dufl.errors import InputError
from dufl.game import endless_offer
from dufl.game.dynamics import Array
from dufl.game.endless import StationaryPlan, solve_endless
from dufl.game.endless import endless_offer as offer_without_end
from dufl.game.endless_certificate import certify_stationary
from dufl.game.endless_offer import Service, cheapest_offer
from dufl.game.loss import PowerLaw
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients, Uniform
from dufl.game.stationary import holdings, likely_offer, response, responses, total_volume, unlimited
from dufl.game.stationary_price import total_volumes

BOTH: list[Competition] = ["mean-field", "nash"]
LAW = PowerLaw(
    floor=0.1, volume_weight=0.3, volume_exponent=0.25, staleness_weight=0.02, staleness_exponent=3
)
LIMITS: dict[str, Any] = {
    "capacity": Uniform(low=20, high=300),
    "collection_price": Uniform(low=0, high=0.1),
    "training_price": Uniform(low=0, high=0.05),
}
both = pytest.mark.parametrize("competition", BOTH)


def offered(clients: Clients, payment: float, rate: float, competition: Competition) -> StationaryPlan:
    game = Game(clients=clients, payment_range=(payment, payment), conservation_range=(rate, rate))
    return solve_endless(game, competition=competition)


def columns(draw: np.random.Generator, count: int, wide: float) -> Clients:
    """Clients whose parameters differ by 2·wide magnitudes; some have no training cost, price or capacity."""
    alpha, beta, a, b, capacity = 10 ** draw.uniform(-wide, wide, (5, count))
    zero = draw.random((4, count)) < draw.random((4, 1))
    return Clients(
        1.0,
        alpha,
        np.where(zero[0], 0.0, beta),
        capacity=np.where(zero[1], np.inf, capacity),
        collection_price=np.where(zero[2], 0.0, a),
        training_price=np.where(zero[3], 0.0, b),
    )


def wild(seed: int) -> tuple[Game, Competition]:
    """A game whose parameters and ranges differ by many magnitudes, with prices and capacities."""
    draw = np.random.default_rng(seed)

    def magnitude(low: float, high: float) -> float:
        return float(10 ** draw.uniform(low, high))

    def column(low: float, high: float) -> Array:
        return magnitude(low, high) * np.exp(draw.uniform(0, 3) * draw.standard_normal(count))

    count = int(draw.integers(2, 30))
    alpha, beta = column(-7, 1), column(-7, 1)
    prices = [column(-5, 2) * (draw.random(count) < draw.random()) for _ in range(2)]
    capacity = np.where(draw.random(count) < draw.random(), np.inf, column(-2, 5))
    low, rate = magnitude(-9, 2) * draw.integers(2), float(draw.uniform(0, 0.9)) * draw.integers(2)
    game = Game(
        clients=Clients(1.0, alpha, beta, 1.0, capacity, *prices),
        horizon="endless",
        payment_weight=min(1.0, magnitude(-8, 0)),
        time_sensitivity=magnitude(-4, 1),
        sampling_noise=magnitude(-3, 2),
        payment_range=(low, max(low, magnitude(-3, 20))),
        conservation_range=(rate, float(draw.uniform(rate, 1)) if draw.integers(2) else 1.0),
    )
    if seed % 3 == 1:
        law: dict[str, Any] = {}
        for name in ("volume", "staleness", "flow"):
            law |= {f"{name}_exponent": float(draw.uniform(0.1, 6)), f"{name}_weight": magnitude(-4, 0)}
        game = game.replace(loss=PowerLaw(**law))
    return game, BOTH[seed % 2]


def by_bisection(clients: Clients, payment: float, rate: float, nash: bool) -> tuple[Decimal, list[Decimal]]:
    """φ and D_k from the definition, with 200 digits and nothing but bisection."""
    with localcontext() as context:
        context.prec = 200
        fresh, paid = 1 - Decimal(rate), Decimal(payment)
        rows = [
            (fresh**2 * Decimal(alpha) + Decimal(beta), fresh * Decimal(a) + Decimal(b), Decimal(capacity))
            for alpha, beta, a, b, capacity in zip(
                *(clients.collection_cost, clients.training_cost),
                *(clients.collection_price, clients.training_price, clients.capacity),
                strict=True,
            )
        ]

        def held(total: Decimal) -> list[Decimal]:
            price = paid / total
            own = price / total if nash else Decimal(0)
            return [min(c, max(price - h, Decimal(0)) / (2 * g + own)) for g, h, c in rows]

        low, high = Decimal("1e-300"), Decimal("1e300")
        while high / low > 1 + Decimal("1e-190"):
            middle = (low * high).sqrt()
            low, high = (middle, high) if sum(held(middle)) > middle else (low, middle)
        return low, held(low)


def best_volume(clients: Clients, k: int, payment: float, rate: float, others: float, total: float) -> float:
    """Client k's best constant volume; `total` is φ if it takes the price as given, 0 if it does not."""
    alpha, beta = clients.collection_cost[k], clients.training_cost[k]
    a, b, capacity = clients.collection_price[k], clients.training_price[k], clients.capacity[k]

    def marginal(held: float) -> float:
        price = payment / total if total else payment * others / (others + held) ** 2
        return float(price - b - 2 * beta * held - (1 - rate) * (a + 2 * alpha * (1 - rate) * held))

    highest = min(capacity, 1e9)
    if marginal(0.0) <= 0:
        return 0.0
    if marginal(highest) >= 0:
        return float(highest)
    return float(brentq(marginal, 0.0, highest, xtol=1e-14, rtol=1e-14))


def solve_qp(curvature: list[float], linear: list[float], rows: Array, low: Array, high: Array) -> Array:
    """The minimum of Σ c·x² + l·x subject to low ≤ rows·x ≤ high, by an interior-point method."""
    below, above = np.isfinite(high), np.isfinite(low)
    matrix = sparse.csc_matrix(np.concatenate([rows[below], -rows[above]]))
    limits = np.concatenate([high[below], -low[above]])
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-13
    hessian = sparse.diags_array(2 * np.array(curvature), format="csc")
    cones = [clarabel.NonnegativeConeT(len(limits))]
    return np.array(
        clarabel.DefaultSolver(hessian, np.array(linear), matrix, limits, cones, options).solve().x
    )


@both
@pytest.mark.parametrize("seed", range(8))
def test_every_client_holds_what_a_general_solver_finds(seed: int, competition: Competition) -> None:
    draw = np.random.default_rng(seed)
    clients = Clients.draw(6, seed, **LIMITS)
    payment, rate = float(draw.uniform(5, 120)), float(draw.uniform(0, 0.95))
    plan = offered(clients, payment, rate, competition)
    assert plan.volume.sum() == pytest.approx(plan.total_volume, rel=1e-12)
    for k in range(6):
        total = plan.total_volume if competition == "mean-field" else 0.0
        best = best_volume(clients, k, payment, rate, plan.total_volume - plan.volume[k], total)
        assert plan.volume[k] == pytest.approx(best, rel=1e-8, abs=1e-8 * plan.total_volume)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_over_many_rounds_leaves_the_constant_volume(seed: int) -> None:
    """At the plan's price the best response over 80 rounds is constant in their middle, full or not."""
    clients, rounds, rate = Clients.draw(5, seed, **LIMITS), 80, 0.6
    plan = offered(clients, 60.0, rate, "mean-field")
    price = 60.0 / plan.total_volume
    for k in range(5):
        alpha, beta = clients.collection_cost[k], clients.training_cost[k]
        volume = np.eye(rounds, 2 * rounds)  # x holds D(1..T) and Δ(0..T−1)
        law = volume - rate * np.eye(rounds, 2 * rounds, k=-1) - np.eye(rounds, 2 * rounds, k=rounds)
        start = np.zeros(rounds)
        start[0] = rate * plan.volume[k]
        x = solve_qp(
            [beta] * rounds + [alpha] * rounds,
            [clients.training_price[k] - price] * rounds + [clients.collection_price[k]] * rounds,
            np.concatenate([law, np.eye(2 * rounds)]),
            np.concatenate([start, np.zeros(2 * rounds)]),
            np.concatenate([start, np.full(rounds, clients.capacity[k]), np.full(rounds, np.inf)]),
        )
        assert x[rounds // 2] == pytest.approx(plan.volume[k], rel=1e-6, abs=1e-6)


@both
@pytest.mark.parametrize("seed", range(60))
def test_the_definition_holds_to_the_last_digits(seed: int, competition: Competition) -> None:
    """Costs, prices, capacities and payments of up to 60 magnitudes, against 200 digits."""
    draw = np.random.default_rng(seed)
    wide = (3, 10, 30)[seed % 3]
    clients = columns(draw, int(draw.integers(2, 8)), wide)
    payment, rate = float(10 ** draw.uniform(-wide, wide)), float(draw.choice([0.0, 0.5, 0.99]))
    found = holdings(clients, payment, rate, competition)
    total, held = by_bisection(clients, payment, rate, competition == "nash")
    assert found.total_volume == pytest.approx(float(total), rel=1e-13)
    np.testing.assert_allclose(found.volume, [float(v) for v in held], rtol=1e-11, atol=1e-13 * float(total))
    nash = competition == "nash"
    alone = total_volumes(clients, np.array([payment]), np.array([rate]), nash)
    assert alone[0] == pytest.approx(float(total), rel=1e-13)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 40),
    st.sampled_from([2.0, 8.0, 20.0]),
    st.floats(-20, 20),
    st.sampled_from([0.0, 0.3, 0.9, 1 - 1e-6]),
    st.sampled_from(BOTH),
)
def test_every_equilibrium_is_certified(
    seed: int, count: int, wide: float, magnitude: float, rate: float, competition: Competition
) -> None:
    clients = columns(np.random.default_rng(seed), count, wide)
    plan = offered(clients, 10**magnitude, rate, competition)
    assert plan.total_volume > 0
    assert plan.residual < 1e-12
    assert plan.certificate.holds(1e-9)
    assert (plan.volume <= clients.capacity).all()
    assert (plan.volume >= 0).all()
    assert (plan.utility >= -1e-9 * plan.certificate.turnover).all()
    assert (plan.shadow_price[~plan.full] == 0).all()
    assert (plan.shadow_price >= 0).all()


def test_without_limits_the_closed_form_is_exact() -> None:
    """Bit for bit: φ = sqrt(R·A/2) and D = φ/(g·A), and as if no client had ever had a limit."""
    clients = Clients.draw(9, seed=4)
    free = Clients(1000.0, clients.collection_cost, clients.training_cost, 1.0, np.inf, 0.0, 0.0)
    for rate in (0.0, 0.4, 0.99):
        answer = response(clients, rate)
        assert total_volume(free, 60.0, rate) == float(np.sqrt(60.0 * answer / 2))
        marginal = clients.collection_cost * (1 - rate) ** 2 + clients.training_cost
        closed = float(responses(clients, np.array([rate]), "mean-field")[0])
        held = float(np.sqrt(60.0 * closed / 2)) * (1 / (marginal * closed))
        np.testing.assert_array_equal(holdings(free, 60.0, rate, "mean-field").volume, held)


@both
@pytest.mark.parametrize("law", [None, LAW])
def test_a_capacity_that_nobody_reaches_changes_no_bit(
    law: PowerLaw | None, competition: Competition
) -> None:
    game = Game(loss=law)
    free = solve_endless(game, competition=competition)
    room = 1.001 * max(float(solve_endless(game, competition=c).volume.max()) for c in BOTH)
    roomy = game.replace(clients=Clients.draw(capacity=room))
    plan = solve_endless(roomy, competition=competition)
    assert plan.offer == free.offer
    np.testing.assert_array_equal(plan.volume, free.volume)
    assert not plan.full.any()
    assert likely_offer(roomy) == likely_offer(game)
    assert total_volume(roomy.clients, 20.0, 0.5) == total_volume(game.clients, 20.0, 0.5)


@both
def test_limits_that_fade_end_in_the_closed_form(competition: Competition) -> None:
    """The numerical root, with a limit too weak to matter, is the closed form."""
    clients = Clients.draw(7, seed=2)
    free = holdings(clients, 60.0, 0.5, competition)
    tiny = Clients(1.0, clients.collection_cost, clients.training_cost, 1.0, 1e40, 1e-40, 1e-45)
    found = holdings(tiny, 60.0, 0.5, competition)
    np.testing.assert_allclose(found.volume, free.volume, rtol=1e-13)
    assert found.total_volume == pytest.approx(free.total_volume, rel=1e-14)


def test_one_client_that_is_cheap_enough() -> None:
    """All others ask for more than it is paid: p·(p − h) = 2g·R for it alone."""
    clients = Clients(1.0, 1e-3, 1e-5, training_price=[0.5, 1e3, 1e4, 1e5])
    plan = offered(clients, 60.0, 0.5, "mean-field")
    g = 1e-3 * 0.25 + 1e-5
    price = (0.5 + np.sqrt(0.25 + 8 * g * 60)) / 2
    np.testing.assert_allclose(plan.volume, [60 / price, 0, 0, 0], rtol=1e-13)
    assert plan.certificate.holds(1e-12)
    nash = offered(clients, 60.0, 0.5, "nash")
    assert (nash.volume[:2] > 0).all()  # alone it would be paid everything for one sample
    assert (nash.volume[2:] == 0).all()


@both
def test_all_buffers_are_full(competition: Competition) -> None:
    capacity = np.array([3.0, 5.0, 7.0])
    clients = Clients(1.0, 1e-3, 1e-5, capacity=capacity, collection_price=0.1)
    plan = offered(clients, 1e6, 0.5, competition)
    np.testing.assert_array_equal(plan.volume, capacity)
    assert plan.total_volume == pytest.approx(15.0, rel=1e-14)
    assert plan.full.all()
    assert plan.summary()["full_clients"] == 3
    best = solve_endless(Game(clients=clients, payment_weight=1e-12), competition=competition)
    assert best.full.all()  # nobody can hold more, so the server pays no more than that takes
    assert best.shadow_price.min() == pytest.approx(0, abs=1e-6 * best.payment)


@both
@pytest.mark.parametrize("seed", range(5))
def test_the_shadow_price_is_what_a_little_more_room_earns(seed: int, competition: Competition) -> None:
    """At a given φ, or given volumes of the others in the Nash game."""
    clients = Clients.draw(8, seed, **{**LIMITS, "capacity": Uniform(low=1, high=30)})
    payment, rate = 80.0, 0.4
    plan = offered(clients, payment, rate, competition)
    assert plan.full.any()
    for k in np.flatnonzero(plan.full):
        others = plan.total_volume - plan.volume[k]

        def earned(room: float, k: int = int(k), others: float = others) -> float:
            held = plan.volume[k] + room
            total = plan.total_volume if competition == "mean-field" else others + held
            costs = clients.collection_price[k] * (1 - rate) * held + clients.training_price[k] * held
            costs += (clients.collection_cost[k] * (1 - rate) ** 2 + clients.training_cost[k]) * held**2
            return float(payment * held / total - costs)

        slope = (earned(1e-4) - earned(-1e-4)) / 2e-4
        assert plan.shadow_price[k] == pytest.approx(slope, rel=1e-6, abs=1e-9)


@both
@pytest.mark.parametrize(
    "change", ["more", "less", "beyond", "room", "idle", "payment", "busy", "competition"]
)
def test_the_certificate_refuses_what_is_not_an_equilibrium(change: str, competition: Competition) -> None:
    clients = Clients(
        1.0, 1e-3, 1e-5, capacity=[np.inf, 40.0, 50.0, np.inf], training_price=[0.01, 0, 0.02, 9.0]
    )
    plan = offered(clients, 60.0, 0.5, competition)
    assert plan.full.tolist() == [False, True, True, False]
    assert plan.volume[3] == 0
    assert plan.certificate.holds(1e-12)
    volume = plan.volume.copy()
    if change in ("more", "less"):
        volume[0] *= 1.001 if change == "more" else 0.999
    elif change in ("beyond", "room"):
        volume[1] = 40.1 if change == "beyond" else 39.9
    elif change == "idle":
        volume[2] = 0.0
    elif change == "busy":
        volume[3] = 0.1
    payment = plan.payment * (1.001 if change == "payment" else 1)
    played: Competition = competition
    if change == "competition":
        played = "nash" if competition == "mean-field" else "mean-field"
    assert not certify_stationary(plan.game, payment, 0.5, volume, volume / 2, played).holds()


@both
def test_no_policy_over_many_rounds_beats_the_bound(competition: Competition) -> None:
    clients = Clients.draw(4, seed=2, **{**LIMITS, "capacity": [30.0, 1e3, 50.0, np.inf]})
    plan = offered(clients, 40.0, 0.7, competition)
    assert plan.full[0]
    draw = np.random.default_rng(0)
    for k, scale in ((k, scale) for k in range(4) for scale in (0.3, 1.0, 1.7)):
        others = plan.total_volume - plan.volume[k]
        held, earned, rounds = float(plan.volume[k]), 0.0, 500
        start = held
        for wanted in scale * max(plan.collection[k], 1.0) * draw.uniform(0, 2, rounds):
            total = plan.total_volume if competition == "mean-field" else others + held
            gathered = min(wanted, clients.capacity[k] - 0.7 * held)
            earned += plan.payment * held / total - clients.training_cost[k] * held**2
            earned -= clients.training_price[k] * held + clients.collection_price[k] * gathered
            earned -= clients.collection_cost[k] * gathered**2
            held = 0.7 * held + gathered
        worth = clients.collection_price[k] + 2 * clients.collection_cost[k] * plan.collection[k]
        assert earned <= rounds * plan.utility[k] + 1e-9 * rounds + worth * start


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40))]
)
def test_no_offer_of_a_dense_grid_is_better(seed: int) -> None:
    game, competition = wild(seed)
    plan = solve_endless(game, competition=competition)
    assert plan.certificate.holds(1e-9)
    service = Service(game, game.clients, competition)
    rates = service.rates(np.linspace(*service.ages, 301))
    payments = np.exp(np.linspace(*service.magnitudes, 701))
    answers = responses(game.clients, rates, competition)
    near = np.clip(plan.payment * np.exp(np.linspace(-0.5, 0.5, 201)), *game.payment_range)
    for some in (payments, near[near > 0]):
        costs = service.costs(some[:, None], rates[None], answers[None])
        assert plan.server_cost <= costs.min() * (1 + 1e-9)
    low, high = game.payment_range
    assert low <= plan.payment <= high
    assert game.conservation_range[0] <= plan.conservation_rate <= game.conservation_range[1]


def test_two_valleys_in_the_payment() -> None:
    """A few cheap clients, or a crowd that begins at a higher price: whichever suits γ."""
    crowd = Clients(
        1.0,
        [1e-3] * 3 + [1e-6] * 50,
        1e-7,
        capacity=[5.0] * 3 + [np.inf] * 50,
        training_price=[0.0] * 3 + [1.0] * 50,
    )
    payments = []
    for weight in (1e-4, 0.2):
        game = Game(clients=crowd, payment_weight=weight, payment_range=(0.0, 1e6))
        plan = solve_endless(game)
        payments.append(plan.payment)
        rates = np.full((1, 1), plan.conservation_rate)
        costs = Service(game, crowd, "mean-field").costs(np.geomspace(1e-3, 1e6, 4001), rates, rates)
        assert plan.server_cost <= costs.min() * (1 + 1e-9)
    assert payments[0] > 100 * payments[1]


@both
def test_goals_per_round(competition: Competition) -> None:
    game = Game(clients=Clients.draw(10, **LIMITS), loss=LAW.replace(noise=0.004))
    spent = solve_endless(game, budget=30.0, competition=competition)
    assert 0 < spent.payment <= 30.0 * (1 + 1e-12)
    assert spent.prediction is not None
    accuracy = spent.prediction.accuracy - 1.2816 * spent.prediction.deviation
    found = cheapest_offer(game, accuracy, competition)
    assert found.reached
    assert found.payment == pytest.approx(spent.payment, rel=1e-3)
    reached = solve_endless(game, accuracy=accuracy, competition=competition)
    assert reached.payment == found.payment
    free = solve_endless(game.replace(clients=Clients.draw(10)), budget=30.0, competition=competition)
    assert free.prediction is not None
    assert free.prediction.accuracy > spent.prediction.accuracy


@both
@pytest.mark.parametrize("name", ["capacity", "collection_price", "training_price"])
def test_a_limit_never_makes_the_service_cheaper(name: str, competition: Competition) -> None:
    game = Game(clients=Clients.draw(6, seed=1))
    before = solve_endless(game, competition=competition).server_cost
    for value in (1e-3, 1e-1, 10.0):
        size = 1 / value if name == "capacity" else value
        limited = game.replace(clients=Clients.draw(6, seed=1, **{name: size}))
        cost = solve_endless(limited, competition=competition).server_cost
        assert cost >= before * (1 - 1e-12)
        before = cost


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", [None, LAW])
def test_a_likely_offer_is_nearly_the_best(seed: int, loss: PowerLaw | None) -> None:
    """The start of the search in a long finite game costs little more than the best endless offer."""
    clients = Clients.draw(12, seed, **LIMITS)
    game = Game(clients=clients, num_rounds=10_000, loss=loss, payment_range=(0.0, 1e5))
    payment, rate = likely_offer(game)
    fixed = game.replace(payment_range=(payment, payment), conservation_range=(rate, rate))
    assert solve_endless(fixed).server_cost <= 1.02 * solve_endless(game).server_cost
    ignorant = likely_offer(game.replace(clients=Clients.draw(12, seed)))
    assert abs(np.log(ignorant[0] / payment)) > 0.05


def test_unlimited_clients_are_the_same_otherwise() -> None:
    clients = Clients.draw(5, seed=1, **LIMITS)
    free = unlimited(clients)
    assert np.isinf(free.capacity).all()
    np.testing.assert_array_equal(free.collection_price, clients.collection_price)
    np.testing.assert_array_equal(free.multiplicity, clients.multiplicity)


@both
def test_a_type_stands_for_its_clients(competition: Competition) -> None:
    few = Clients.draw(4, seed=3, **LIMITS)
    many = few.take(np.repeat(np.arange(4), [1, 2, 3, 4]))
    types = few.weighted(np.array([1.0, 2.0, 3.0, 4.0]))
    for payment in (1e-6, 50.0, 1e4):
        expected = holdings(many, payment, 0.6, competition)
        found = holdings(types, payment, 0.6, competition)
        assert found.total_volume == pytest.approx(expected.total_volume, rel=1e-13)
        np.testing.assert_allclose(np.repeat(found.volume, [1, 2, 3, 4]), expected.volume, rtol=1e-12)


@pytest.mark.parametrize("competition", ["mean-field", pytest.param("nash", marks=pytest.mark.slow)])
def test_a_million_clients(competition: Competition, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search sees types; all clients are summed over for the result alone."""
    seen: list[int] = []

    def counted(clients: Clients, *offers: Any) -> Array:
        seen.append(clients.size)
        return total_volumes(clients, *offers)

    monkeypatch.setattr(endless_offer, "total_volumes", counted)
    game = Game(clients=Clients.draw(1_000_000, **LIMITS), payment_range=(0.0, 1e7))
    fixed = solve_endless(game.replace(payment_range=(1e6, 1e6)), competition=competition)
    assert all(size <= 256 for size in seen)
    assert fixed.residual < 1e-12
    assert fixed.certificate.holds(1e-9)
    assert 0 < fixed.full.sum() < game.clients.size
    assert (fixed.volume == 0).any()


def test_voluntary_participation_needs_an_end() -> None:
    game = Game(participation="voluntary")
    for accuracy in (None, 0.5):
        with pytest.raises(InputError, match="finite horizon") as caught:
            solve_endless(game.replace(loss=LAW), accuracy=accuracy)
        assert caught.value.field == "participation"
    assert offer_without_end(game) is None
