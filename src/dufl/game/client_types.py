"""A few types of clients that answer as all clients together do, fitted to sums of answers.

A type has a collection cost α and a training cost β, like the paper's clients. Where such types cannot give
the answers, the clients have other costs too. Then every type also has prices a and b per sample and a
capacity C. These are unknowns only then: the more unknowns there are, the less each of them is known, and
clients with quadratic costs alone are fitted as if there were no others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.population import Clients
from dufl.game.threads import one_thread

TYPES = 4  # of clients in the server's model
MISFIT = 0.01  # root mean square of relative errors, above which types may have prices and capacities
TRIMMED_MISFIT = 0.2  # the same where clients may begin with less: quadratic types leave up to 0.1 there
BETTER = 2.0  # the factor by which prices and capacities must lower the misfit
FIRST_PRICE = 0.1  # of the largest price that is paid for a sample: where the search for prices begins
HIGHEST_PRICE = 10.0  # the same: where it ends
ROOM = 10.0  # times its largest volume: a capacity that does not limit a type
NOTHING = 1e-2  # of the largest answer: the error of smaller ones counts as if they were as large

Response = Callable[[Clients], Array]
History = Sequence[tuple[Response, Array]]


def first_types(clients: Clients) -> Clients:
    """The types before any answer; they differ even if all clients are assumed to be equal."""
    few = compress(clients, TYPES)
    if few.size == TYPES:
        return few
    spread = np.geomspace(0.5, 2.0, TYPES)
    mean = few.multiplicity / few.multiplicity.sum()
    return Clients(
        clients.initial_total / clients.num_clients,
        float(mean @ few.collection_cost) * spread,
        float(mean @ few.training_cost) * spread[::-1],
        clients.initial_mean_staleness,
        float(mean @ few.capacity),
        float(mean @ few.collection_price),
        float(mean @ few.training_price),
        multiplicity=clients.num_clients / TYPES,
    )


def has_other_costs(clients: Clients) -> bool:
    """Whether some client pays a price per sample or has a capacity."""
    priced = clients.collection_price.any() or clients.training_price.any()
    return bool(priced or np.isfinite(clients.capacity).any())


def refit(types: Clients, history: History, highest_price: float, trim: bool) -> Clients:
    """The types whose answers are nearest to the given ones, in relative terms.

    Args:
        types: those of the last fit. Once they have prices and capacities, they keep them.
        history: for every announcement, the answer of some clients to it, and the sum of the answers.
        highest_price: the largest price per sample that was announced.
        trim: whether clients may begin with less than they hold.
    """
    if has_other_costs(types):
        return _fit_all(types, history, highest_price, trim)
    possible = all((answer > 0).all() for _, answer in history)
    if possible:
        types = _fit_quadratic(types, history, trim)
    found = misfit(types, history) if possible else np.inf
    if found <= (TRIMMED_MISFIT if trim else MISFIT):
        return types
    richer = _fit_all(types, history, highest_price, trim)
    return richer if misfit(richer, history) * BETTER <= found else types


def misfit(types: Clients, history: History) -> float:
    """The root mean square of the relative errors of the types' answers."""
    return float(np.sqrt(np.mean(_errors(types, history) ** 2)))


def _errors(types: Clients, history: History) -> Array:
    least = NOTHING * max(float(answer.max()) for _, answer in history)
    return np.concatenate([(ask(types) - answer) / np.maximum(answer, least) for ask, answer in history])


def _fit_quadratic(types: Clients, history: History, trim: bool) -> Clients:
    """Types with α and β alone.

    Without trimming, Σ_k D_k(0) is in every answer. With it, an answer in round 0 is at most what the clients
    hold. What they hold is one more unknown, and at least the largest of these answers.
    """
    from scipy.optimize import least_squares

    first, size = history[-1][1][0], types.size
    start = np.log(np.concatenate([types.collection_cost, np.maximum(types.training_cost, 1e-12)]))
    low, high = start - 5, start + 5
    if trim:
        start, low, high = _with_held(types, history, start, low, high)

    def from_logs(logs: Array) -> Clients:
        held = float(np.exp(logs[2 * size])) if trim else first / types.initial_total
        return Clients(
            types.initial_volume * held,
            np.exp(logs[:size]),
            np.exp(logs[size : 2 * size]),
            types.initial_staleness,
            multiplicity=types.multiplicity,
        )

    def residuals(logs: Array) -> Array:
        clients = from_logs(logs)
        misfits = [ask(clients) / answer - 1 for ask, answer in history]
        return np.concatenate([*misfits, 1e-4 * (logs - start)])  # of equally good fits, the nearest

    with one_thread():
        return from_logs(least_squares(residuals, start, max_nfev=50, bounds=(low, high)).x)


def _with_held(
    types: Clients, history: History, start: Array, low: Array, high: Array
) -> tuple[Array, Array, Array]:
    """One more unknown: the logarithm of what clients hold, relative to what the types hold."""
    least = float(np.log(max(answer[0] for _, answer in history) / types.initial_total))
    start = np.append(start, max(least, 0.0))
    return start, np.append(low, least - 1e-9), np.append(high, start[-1] + 5)


def _fit_all(types: Clients, history: History, highest_price: float, trim: bool) -> Clients:
    """Types with α, β, prices and capacities.

    The unknowns are the logarithms of α, β and of the room C − D(0) in a buffer, and the prices in units of
    the highest price.
    """
    from scipy.optimize import least_squares

    first, size, unit = history[-1][1][0], types.size, max(highest_price, 1e-300)
    most = max(float(answer.max()) for _, answer in history) / types.num_clients
    costs = np.log(np.concatenate([types.collection_cost, np.maximum(types.training_cost, 1e-12)]))
    prices = np.concatenate([types.collection_price, types.training_price]) / unit
    limits = np.log(np.minimum(types.capacity, ROOM * most))
    if not has_other_costs(types):
        prices = np.full(2 * size, FIRST_PRICE)
    start = np.concatenate([costs, prices, limits])
    ends = np.concatenate([np.full(2 * size, HIGHEST_PRICE), np.maximum(limits, np.log(ROOM * most)) + 1e-9])
    low = np.concatenate([costs - 5, np.zeros(2 * size), np.minimum(limits, np.log(1e-3 * most)) - 1e-9])
    high = np.concatenate([costs + 5, ends])
    if trim:
        start, low, high = _with_held(types, history, start, low, high)

    def from_unknowns(values: Array) -> Clients:
        held = types.initial_volume * (np.exp(values[-1]) if trim else first / types.initial_total)
        collecting, training, collected, hold, limit = values[: 5 * size].reshape(5, size)
        capacity = np.exp(limit)
        return Clients(
            held,
            np.exp(collecting),
            np.exp(training),
            types.initial_staleness,
            np.where(capacity < 0.999 * ROOM * most, np.maximum(capacity, held), np.inf),
            unit * collected,
            unit * hold,
            multiplicity=types.multiplicity,
        )

    def residuals(values: Array) -> Array:
        errors = _errors(from_unknowns(values), history)
        return np.concatenate([errors, 1e-4 * (values - start)])

    start = np.clip(start, low, high)
    with one_thread():
        return from_unknowns(least_squares(residuals, start, max_nfev=50, bounds=(low, high)).x)
