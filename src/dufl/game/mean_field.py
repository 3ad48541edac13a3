"""The clients' equilibrium for a given payment and conservation rate.

Every client responds to the total volume φ; at equilibrium their responses add up to φ:

    φ(t) = Σ_k D_k(t; φ)        for every round t.

`mean-field` is the paper's game: a client takes the price R/φ(t) as given. The fixed point is the
maximizer of the strictly concave potential R·Σ_t log φ(t) − Σ_k Σ_t (α_k·Δ_k² + β_k·D_k²), so there is
exactly one. `nash` is the game of N players who see their own influence: a client's marginal price
is R·(φ−D_k)/φ² = R/φ − (R/φ²)·D_k, linear in its own volume once φ is given, so that the same fixed
point in φ describes it. It too has exactly one: the payoffs R·D_k/φ are a strictly monotone game.

In x = log φ the map G(x) = log Σ_k D_k falls at most as fast as x rises (a larger total volume lowers the
price, and each client then holds less). The plain update x ← G(x) therefore oscillates, and the halfway step
x ← (x + G(x))/2 converges from anywhere. Newton's method needs only a few passes, since ∂Σ_k D_k/∂log φ is
computed with the best responses. A step that does not bring the responses closer to φ is replaced by the
halfway step. If there are too many rounds for Newton's equations, only halfway steps are used.

In the mean-field game Newton's step is never longer than the residual, so a small residual means that φ is
found. In the exact game this does not hold: if one client is far cheaper than all others, its response is
close to almost any announced φ. There Newton's step must be short too. For a large population, the derivative
is that of the compressed population.

Capacities change none of this. Prices per sample do: the response of clients that hardly earn their costs is
so elastic that halfway steps may diverge. There, x minimizes the convex function

    W(x) = Σ_k max_D [Σ_t R·e^(−x(t))·D(t) − C_k(D)] + R·Σ_t x(t),    ∇W(t) = R·(1 − Σ_k D_k(t)/φ(t)),

and Newton's step for W is shortened while the slope of W along it shows that it went too far. In the exact
game, where there is no such function, a step has to reduce the residual.

If the clients may begin with less than they have, φ(0) is an unknown like the others. D_k(0) is one more
variable of the same potential, on a convex set, so there is still exactly one equilibrium.
"""

from dataclasses import dataclass, replace

import numpy as np

from dufl.errors import InputError
from dufl.game.client import NOTHING, total_response
from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.parameters import Competition
from dufl.game.population import Clients
from dufl.game.stationary import total_volume
from dufl.game.threads import one_thread
from dufl.inputs import LARGEST

TOLERANCE = 1e-9
MAX_PASSES = 200
LONGEST_STEP = 5.0  # of Newton, in log φ
LONGEST_PRICED_STEP = 1.0  # for clients with prices per sample, which may suddenly stop collecting
SHORTEST_STEP = 1e-12  # as a part of Newton's, in a line search
FLAT = 1e-9  # added to the curvature of W, which is 0 in rounds in which nobody holds anything
SYSTEM = 500  # the largest number of rounds T for which Newton's equations, a T × T matrix, are set up
SETTLED = 1e-7  # the longest Newton step, in log φ, at which the exact game counts as solved
SMALLEST = 1 / LARGEST  # smaller payments count as 0: they would buy volumes indistinguishable from 0
TYPES = 256  # in the compressed population, which is used for searches and for the derivative


@dataclass(frozen=True)
class Equilibrium:
    """The clients' joint response to (R, θ).

    Attributes:
        announced_volume: φ(t), the total to which the clients respond.
        total_volume: Σ_k D_k(t), the sum of their responses.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
        passes: the number of best-response passes over all clients.
        converged: whether the residual is within the tolerance.
    """

    announced_volume: Array
    total_volume: Array
    residual: float
    passes: int
    converged: bool


def price_of(payment: float, announced_volume: Array, competition: Competition) -> tuple[Array, Array]:
    """The price of a sample R/φ(t), and by how much a client's own volume lowers it."""
    nothing = np.zeros_like(announced_volume)
    if payment < SMALLEST:
        return nothing, nothing
    price = payment / announced_volume
    return price, price / announced_volume if competition == "nash" else nothing


def starting_staleness(
    clients: Clients,
    payment: float,
    conservation_rate: float,
    announced_volume: Array,
    competition: Competition,
    trim_start: bool,
) -> float:
    """The mean staleness of all samples that are held in round 0, Σ_k D_k(0)·S_k(0)/φ(0).

    A client that begins with less keeps a sample of what it has, of the same staleness.
    """
    age = clients.initial_staleness
    if not announced_volume[0] > 0:  # nobody holds anything
        return 1.0
    if not trim_start or (age == age[0]).all():
        return clients.initial_mean_staleness
    price, slope = price_of(payment, announced_volume, competition)
    held = total_response(clients, price, slope, conservation_rate, trim_start=True)[0]
    weighted = clients.weighted(clients.multiplicity * age)
    aged = total_response(weighted, price, slope, conservation_rate, trim_start=True)[0]
    return float(aged / held) if held > 0 else clients.initial_mean_staleness


def find_equilibrium(
    clients: Clients,
    num_rounds: int,
    payment: float,
    conservation_rate: float,
    competition: Competition = "mean-field",
    start: Array | None = None,
    tolerance: float = TOLERANCE,
    trim_start: bool = False,
    types: Clients | None = None,
) -> Equilibrium:
    """Solve φ = Σ_k D_k(φ) for the payment R and the conservation rate θ.

    Args:
        clients: the clients of the game.
        num_rounds: T.
        payment: R.
        conservation_rate: θ.
        competition: `mean-field` or `nash`.
        start: an initial guess of φ; the result does not depend on it.
        tolerance: the relative residual at which the search ends.
        trim_start: whether a client may begin with less than its initial volume.
        types: represent a large population in Newton's equations; by default it is compressed.
    """
    if competition == "nash" and clients.num_clients < 2:
        raise InputError(
            "competition must be 'mean-field' with a single client, got 'nash': "
            "it is paid all of R whatever it holds"
        )
    if payment < SMALLEST:
        nothing = np.zeros(num_rounds)
        held = total_response(clients, nothing, nothing, conservation_rate, trim_start=trim_start)
        return Equilibrium(held, held, 0.0, 1, True)
    if types is None:
        types = compress(clients, TYPES) if clients.size > 4 * TYPES else clients
    if start is None and types is not clients:
        rough = find_equilibrium(
            types, num_rounds, payment, conservation_rate, competition, None, tolerance, trim_start
        )
        start = rough.announced_volume
    guess = np.full(num_rounds, clients.initial_total) if start is None else start.copy()
    guess[0] = min(guess[0], clients.initial_total) if trim_start else clients.initial_total
    with one_thread():
        if clients.collection_price.any() or clients.training_price.any():
            offer = payment, conservation_rate
            if start is None or not guess.all():  # unpaid clients that conserve nothing hold nothing
                steady = total_volume(types, payment, min(conservation_rate, 1 - 1 / num_rounds))
                first = min(guess[0], steady) if trim_start else guess[0]
                guess = np.maximum(first * float(conservation_rate) ** np.arange(num_rounds), steady)
                guess[0] = first
                easier = _descend(clients, types, *offer, "mean-field", guess, tolerance, trim_start)
                if competition == "mean-field":
                    return easier
                guess = easier.announced_volume
            return _descend(clients, types, *offer, competition, guess, tolerance, trim_start)
        first = _newton(clients, types, payment, conservation_rate, competition, guess, tolerance, trim_start)
        if first.converged:
            return first
        guess[1:] = total_volume(clients, payment, min(conservation_rate, 1 - 1 / num_rounds))
        guess[0] = min(guess[1], clients.initial_total) if trim_start else clients.initial_total
        second = _newton(
            clients, types, payment, conservation_rate, competition, guess, tolerance, trim_start
        )
        return second if second.residual <= first.residual else first


def _newton(
    clients: Clients,
    types: Clients,
    payment: float,
    conservation_rate: float,
    competition: Competition,
    announced: Array,
    tolerance: float,
    trim_start: bool,
) -> Equilibrium:
    num_rounds = announced.size
    has_system = num_rounds <= SYSTEM
    exact = competition == "nash"
    halfway, smallest = announced, np.inf  # the fallback, and the distance that Newton has to reduce
    result: Equilibrium | None = None
    for passes in range(1, MAX_PASSES + 1):
        price, slope = price_of(payment, announced, competition)
        sensitivity = np.zeros((num_rounds, num_rounds)) if has_system else NOTHING
        own = sensitivity if types is clients else NOTHING
        held = total_response(clients, price, slope, conservation_rate, own, trim_start)
        residual = float(np.abs(held / announced - 1).max())
        near = residual <= tolerance
        settled = near and not (exact and has_system)
        if result is None or residual <= result.residual:
            result = Equilibrium(announced, held, residual, passes, settled)
        if settled:
            break
        step = np.log(held / announced)
        distance = float(np.abs(step).max())
        if distance > smallest and not near:
            announced, smallest = halfway, np.inf  # accepted unconditionally
            continue
        halfway, smallest = announced * np.exp(step / 2), distance
        if not has_system:
            announced, smallest = halfway, np.inf
            continue
        if types is not clients:
            total_response(types, price, slope, conservation_rate, sensitivity, trim_start)
        newton = newton_step(sensitivity, held, step)
        if newton is None:
            announced, smallest = halfway, np.inf
            continue
        if near and float(np.abs(newton).max()) <= max(tolerance, SETTLED):
            result = Equilibrium(announced, held, residual, passes, True)
            break
        announced = announced * np.exp(np.clip(newton, -LONGEST_STEP, LONGEST_STEP))
    assert result is not None
    return replace(result, passes=passes)


def _descend(
    clients: Clients,
    types: Clients,
    payment: float,
    conservation_rate: float,
    competition: Competition,
    announced: Array,
    tolerance: float,
    trim_start: bool,
) -> Equilibrium:
    """Newton's method with a line search, for clients that pay prices per sample."""
    num_rounds, exact = announced.size, competition == "nash"
    has_system = num_rounds <= SYSTEM
    best: Equilibrium | None = None
    base, base_excess, direction, length = announced, np.zeros(num_rounds), np.zeros(num_rounds), 1.0
    for passes in range(1, 5 * MAX_PASSES + 1):
        price, slope = price_of(payment, announced, competition)
        sensitivity = np.zeros((num_rounds, num_rounds)) if has_system else NOTHING
        own = sensitivity if types is clients else NOTHING
        held = total_response(clients, price, slope, conservation_rate, own, trim_start)
        excess = held / announced - 1
        residual = float(np.abs(excess).max())
        if best is None or residual <= best.residual:
            best = Equilibrium(announced, held, residual, passes, residual <= tolerance)
        if residual <= tolerance:
            break
        if passes > 1 and length > SHORTEST_STEP and _too_far(base_excess, excess, direction, exact):
            length /= 2
            announced = base * np.exp(length * direction)
            continue
        if has_system and types is not clients:
            total_response(types, price, slope, conservation_rate, sensitivity, trim_start)
        direction = _direction(sensitivity, held, announced, excess)
        base, base_excess, length = announced, excess, min(1.0, 4 * length)
        announced = base * np.exp(length * direction)
    assert best is not None
    return replace(best, passes=passes)


def _too_far(before: Array, after: Array, direction: Array, exact: bool) -> bool:
    """Whether a step was too long: W rises steeply at its end, or the residual did not fall."""
    if exact:
        return float(np.linalg.norm(after)) > (1 - 1e-4) * float(np.linalg.norm(before))
    return float(after @ direction) < -0.5 * float(before @ direction)


def _direction(sensitivity: Array, held: Array, announced: Array, excess: Array) -> Array:
    """Newton's step for W in log φ; a part of the excess if there are too many rounds for a system."""
    plain = np.clip(excess, -0.5, 0.5)
    if not sensitivity.size:
        return plain
    curvature = np.diag(held / announced + FLAT) - sensitivity / announced[:, None]
    try:
        newton = np.linalg.solve(curvature, excess)
    except np.linalg.LinAlgError:
        return plain
    newton = np.clip(newton, -LONGEST_PRICED_STEP, LONGEST_PRICED_STEP)
    return newton if np.isfinite(newton).all() and newton @ excess > 0 else plain


def newton_step(sensitivity: Array, held: Array, step: Array) -> Array | None:
    """The change of log φ that makes the responses add up to φ, to first order; None if there is none."""
    try:
        newton = np.linalg.solve(np.eye(held.size) - sensitivity / held[:, None], step)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(newton, np.float64) if np.isfinite(newton).all() else None
