"""A client's exact best response to a price, and two simpler strategies for comparison.

Proposition 1. Paid p(t) for every sample it holds in round t, a client maximizes the concave

    Σ_t [ p(t)·D(t) − α·Δ(t)² − β·D(t)² ],    D(t+1) = θ·D(t) + Δ(t),  Δ(t) ≥ 0,

whose optimum is Δ(t) = [λ(t+1)]^+ / (2α), where λ(t) = p(t) − 2β·D(t) + θ·λ(t+1) is what one more
sample is worth in round t, and Δ(T−1) = 0. That formula is implicit: λ depends on later volumes.

It is solved by sweeps. For a set of blocked rounds (Δ = 0), λ(t) = b(t) − a(t)·D(t) with

    f = 2α/(2α + a')  in a free round,  1 in a blocked one;    a', b' of round t+1
    a(t) = 2β + θ²·f·a',    b(t) = p(t) + θ·f·b',    Δ(t) = (b' − a'·θ·D(t))/(2α + a') if free,

backwards for a and b, forwards for D. Start with every round free, block the rounds with a negative
Δ, and repeat. A blocked round never has to be freed again: as a linear complementarity
problem in the multipliers of Δ ≥ 0, this one has the matrix Q⁻¹ = (I − (I + (α/β)·B)⁻¹)/(2α) with B
tridiagonal and its off-diagonal −θ, so Q⁻¹ is an M-matrix, for which the multipliers only ever rise
from one such step to the next (Howard's monotone policy iteration). Hence no cycle, at most T
sweeps, and two or three in practice.

If a client may begin with less than it has, D(0) ≤ D⁰ is one more variable, whose worth is
λ(0) = b(0) − a(0)·D(0). Hence D(0) = min(D⁰, b(0)/a(0)) in every sweep, or 0 if b(0) < 0. Blocking a round
lowers b(0)/a(0), so D(0) only ever falls from one sweep to the next, and a blocked round still never has to
be freed: in that problem D(0) is a collection without a cost, whose matrix Q⁻¹ is an M-matrix too.

If a client sees its own influence on the total, its marginal price falls with its own volume,
p(t) − slope(t)·D(t): the same problem with 2β + slope(t) in place of 2β.

The paper's client has costs that are pure squares, and unlimited storage. Beyond it, a client may also pay a
price for every sample that it collects or holds, and a capacity may limit what it holds, D(t) ≤ C. `sweeps`
says how these are solved. Clients without them respond with the same bits as without this extension.
"""

import math

import numpy as np
import numpy.typing as npt

from dufl.errors import CapacityError, InputError
from dufl.game.dynamics import Array, volume
from dufl.game.population import Clients, Values
from dufl.game.sweeps import respond
from dufl.game.threads import in_order

NOTHING = np.empty((0, 0))
_ROWS = (  # of the columns that `sweeps.respond` reads
    *("initial_volume", "collection_cost", "training_cost"),
    *("capacity", "collection_price", "training_price", "multiplicity"),
)


def best_response(
    price: npt.ArrayLike,
    initial_volume: Values,
    collection_cost: Values,
    training_cost: Values,
    conservation_rate: float,
    trim_start: bool = False,
    *,
    capacity: Values = math.inf,
    collection_price: Values = 0.0,
    training_price: Values = 0.0,
) -> tuple[Array, Array]:
    """Each client's optimal volume D_k(t) and collection Δ_k(t) at a given price per sample.

    Args:
        price: p(t) = R/φ(t), one per round.
        initial_volume: D_k(0), one per client or one for all; likewise the costs.
        collection_cost: α_k > 0.
        training_cost: β_k >= 0.
        conservation_rate: θ in [0, 1].
        trim_start: whether a client may begin with less than `initial_volume`.
        capacity: C_k, the most that a client can hold; at least its initial volume, unless it may begin with
            less.
        collection_price: money per sample collected, beside the quadratic cost.
        training_price: money per sample held in a round, beside the quadratic cost.

    Returns:
        `volume` and `collection`, each of shape (rounds, clients).

    >>> volume, collection = best_response([0.0, 1.0], 0.0, 0.5, 0.5, conservation_rate=1.0)
    >>> volume.ravel().tolist(), collection.ravel().tolist()
    ([0.0, 0.5], [0.5, 0.0])
    >>> best_response([1.0, 1.0], 9.0, 0.5, 0.5, conservation_rate=0.0, trim_start=True)[0].ravel().tolist()
    [1.0, 0.5]
    >>> best_response([0.0, 1.0, 1.0], 0.0, 0.5, 0.0, 1.0, capacity=1.0)[1].ravel().tolist()
    [1.0, 0.0, 0.0]
    """
    prices = np.ascontiguousarray(price, dtype=np.float64)
    if prices.ndim != 1 or prices.size < 2 or not np.isfinite(prices).all():
        raise InputError.of("price", "two or more finite numbers, one per round", f"{price!r:.80}")
    if not 0 <= conservation_rate <= 1:
        raise InputError.of("conservation_rate", "in [0, 1]", conservation_rate)
    clients = Clients(
        initial_volume,
        collection_cost,
        training_cost,
        capacity=capacity,
        collection_price=collection_price,
        training_price=training_price,
        allow_empty=True,
    )
    if not trim_start:
        check_capacity(clients)
    return trajectories(clients, prices, np.zeros_like(prices), conservation_rate, trim_start)


def trajectories(
    clients: Clients, price: Array, slope: Array, conservation_rate: float, trim_start: bool = False
) -> tuple[Array, Array]:
    """`volume` and `collection` of every client, each as one array in memory."""
    shape = (price.size, clients.size)
    held, collected = np.empty(shape), np.empty(shape)

    def answer(part: slice) -> None:
        _answer(clients, part, price, slope, conservation_rate, trim_start, held, collected)

    in_order(answer, clients.size)
    return held, collected


def total_response(
    clients: Clients,
    price: Array,
    slope: Array,
    conservation_rate: float,
    sensitivity: Array = NOTHING,
    trim_start: bool = False,
) -> Array:
    """Σ_k D_k(t), with every client weighted by its multiplicity; one best-response pass.

    Args:
        clients: the clients that respond.
        price: p(t).
        slope: by how much a client's own volume lowers its price.
        conservation_rate: θ.
        sensitivity: if of shape (rounds, rounds), receives ∂Σ_k D_k(t)/∂log φ(s), for a price
            that is proportional to 1/φ and a slope proportional to 1/φ².
        trim_start: whether a client may begin with less than its initial volume.
    """

    def answer(part: slice) -> tuple[Array, Array]:
        change = np.zeros_like(sensitivity)
        held = _answer(clients, part, price, slope, conservation_rate, trim_start, sensitivity=change)
        return held, change

    total = np.zeros_like(price)
    for held, change in in_order(answer, clients.size):
        total += held
        sensitivity += change
    return total


def zero_strategy(initial_volume: Array, num_rounds: int, conservation_rate: float) -> tuple[Array, Array]:
    """Collect nothing: `volume` and `collection`."""
    nothing = np.zeros((num_rounds, initial_volume.size))
    return volume(initial_volume, nothing, conservation_rate), nothing


def random_strategy(
    initial_volume: Array,
    collection: Array,
    conservation_rate: float,
    seed: int = 0,
    capacity: float | Array = math.inf,
) -> tuple[Array, Array]:
    """Collect at random, with the same expected total as `collection`: `volume` and `collection`.

    In every round but the last, a client collects an independent uniform draw from [0, 2·mean], or what still
    fits into its buffer if that is less.
    """
    num_rounds = len(collection)
    mean = collection.sum(axis=0) / (num_rounds - 1)
    drawn = np.random.default_rng(seed).uniform(0.0, 2.0, (num_rounds, collection.shape[1])) * mean
    drawn[-1] = 0.0
    held = volume(initial_volume, drawn, conservation_rate)
    if not (held > capacity).any():
        return held, drawn
    for t in range(1, num_rounds):
        kept = conservation_rate * held[t - 1]
        drawn[t - 1] = np.minimum(drawn[t - 1], np.maximum(capacity - kept, 0.0))
        held[t] = kept + drawn[t - 1]
    return held, drawn


def check_capacity(clients: Clients) -> None:
    """Raise `CapacityError` if the initial volume of a client does not fit into its buffer."""
    fits = clients.initial_volume <= clients.capacity
    if not fits.all():
        k = int(np.argmin(fits))
        raise CapacityError.of(
            "initial_volume",
            f"<= capacity = {clients.capacity[k]:g} of client {k}",
            float(clients.initial_volume[k]),
            advice="or clients must be allowed to begin with less (trim_start)",
        )


def _answer(
    clients: Clients,
    part: slice,
    price: Array,
    slope: Array,
    conservation_rate: float,
    trim_start: bool,
    held: Array = NOTHING,
    collected: Array = NOTHING,
    sensitivity: Array = NOTHING,
) -> Array:
    total = np.zeros_like(price)
    limited = bool(np.isfinite(clients.capacity[part]).any())
    columns = np.stack([getattr(clients, name)[part] for name in _ROWS])
    respond(
        price,
        slope,
        float(conservation_rate),
        bool(trim_start),
        limited,
        columns,
        part.start,
        total,
        held,
        collected,
        sensitivity,
    )
    return total
