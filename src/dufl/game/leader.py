"""The server's choice of payment R and conservation rate θ.

`stackelberg` solves the Stackelberg game by its definition: minimize U(R, θ, φ*(R, θ)) where φ* is
the clients' true equilibrium.

`algorithm1` is the paper's loop: with φ held fixed the server minimizes its cost over (R, θ), the
clients respond to the price R/φ, their responses become the new φ, and so on. The server's search
does not anticipate how φ will change. It therefore ends at another point, in general with a higher cost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from dufl.game.client import total_response
from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.loss import PowerLaw
from dufl.game.mean_field import SMALLEST, TYPES, price_of, starting_staleness
from dufl.game.parameters import Competition, Game
from dufl.game.search import COARSE, FINE, Choice, Cost, Progress, Square, minimize, polished, scanned
from dufl.game.stationary import likely_offer
from dufl.game.threads import one_thread
from dufl.game.utility import ServerCost, server_cost
from dufl.game.voluntary import require_mandatory, respond
from dufl.inputs import Count, Inputs, Seed, Share

Result = TypeVar("Result")
Judge = Callable[[Game, float, float, Array, float], Result]  # of R, θ, φ(t) and the staleness in round 0
FEW = 64  # types of clients, where a cost need not be exact: on the grid of a search


class Algorithm1Options(Inputs):
    """How the paper's loop searches and stops.

    Attributes:
        search: `bayesian` is the paper's; `direct` finds the optimum of each step exactly.
        evaluations: of the cost in one Bayesian search (the paper's M).
        max_iterations: of the loop (the paper's J).
        tolerance: ε, the largest relative change of φ that ends the loop.
        damping: the weight of the old φ, in logarithms: 0 is the paper's plain update, with which φ
            oscillates; 0.5 converges.
        seed: of the Bayesian search.
    """

    search: Literal["bayesian", "direct"] = "bayesian"
    evaluations: Count = 30
    max_iterations: Count = 20
    tolerance: Share = 1e-4
    damping: Share = 0.0
    seed: Seed = 0


FIXED_POINT = Algorithm1Options(search="direct", damping=0.5)  # the fixed point of the paper's loop


@dataclass(frozen=True)
class Trace:
    """Every iteration of Algorithm 1: what the server chose and how φ moved.

    Attributes:
        payment: R_j, one per iteration.
        conservation_rate: θ_j.
        cost: the server's cost with φ_j fixed, as the search sees it.
        total_volume: φ_0 … φ_J, of shape (iterations + 1, rounds).
        converged: whether φ converged within the tolerance.
    """

    payment: Array
    conservation_rate: Array
    cost: Array
    total_volume: Array
    converged: bool


def _server_cost(game: Game, payment: float, rate: float, total_volume: Array, aged: float) -> float:
    return server_cost(game, payment, rate, total_volume, aged).total


def stackelberg(
    game: Game,
    competition: Competition = "mean-field",
    progress: Progress = lambda _: None,
    judge: Judge[float] = _server_cost,
) -> Choice:
    """The (R, θ) with the least cost at the clients' equilibrium; no update if that costs less.

    `judge` returns the cost of an equilibrium, by default U; another one must not be less than the payments.
    """
    known = _judged(likely_offer(game), anticipated(game, competition, judge))
    return _minimized(game, anticipated(game, competition, judge), known, progress)


def cost_surface(
    game: Game,
    payments: Array,
    conservation_rates: Array,
    competition: Competition = "mean-field",
    progress: Progress = lambda _: None,
    tolerance: float = 1e-6,
) -> Array:
    """U at the clients' equilibrium for every pair; of shape (payments, conservation rates)."""
    cost = anticipated(game, competition, _server_cost)
    surface = np.empty((payments.size, conservation_rates.size))
    for i, payment in enumerate(payments):
        # back and forth, so that each equilibrium starts from that of a neighbour
        for j in range(conservation_rates.size)[:: 1 if i % 2 == 0 else -1]:
            surface[i, j] = cost(float(payment), float(conservation_rates[j]), tolerance)
        progress((i + 1) / payments.size)
    return surface


def algorithm1(
    game: Game,
    competition: Competition = "mean-field",
    options: Algorithm1Options | None = None,
    progress: Progress = lambda _: None,
) -> tuple[Choice, Trace]:
    """The paper's Strategy Decision Phase: the final choice and the trace of all iterations."""
    require_mandatory(game, "with method = 'algorithm1': the paper's clients have no choice")
    options = options or Algorithm1Options()
    sample = game.replace(clients=compress(game.clients, TYPES))
    totals = [np.full(game.num_rounds, sample.clients.initial_total)]
    likely = likely_offer(game)
    choices: list[Choice] = []
    settled = False
    while not settled and len(choices) < options.max_iterations:
        believed, answer = _believed_cost(sample, totals[-1], competition)
        chosen = _search(game, believed, options, likely, choices[-1] if choices else None)
        choices.append(chosen)
        held = answer(chosen.payment, chosen.conservation_rate)
        totals.append(totals[-1] ** options.damping * held ** (1 - options.damping))
        change = np.abs(totals[-1] - totals[-2]).max() / totals[-2].max()
        settled = bool(change <= options.tolerance)
        progress(1.0 if settled else len(choices) / options.max_iterations)
    trace = Trace(
        payment=np.array([c.payment for c in choices]),
        conservation_rate=np.array([c.conservation_rate for c in choices]),
        cost=np.array([c.cost for c in choices]),
        total_volume=np.array(totals),
        converged=settled,
    )
    return choices[-1], trace


def no_update_cost_by_term(game: Game) -> ServerCost:
    """U by round and term without payment and with everything conserved: R = 0, θ = 1.

    Everybody keeps its whole first buffer. Clients that may begin with less would not, so with `trim_start`
    this is a baseline and not an offer that can be chosen.
    """
    total = np.full(game.num_rounds, game.clients.initial_total)
    return server_cost(game, 0.0, 1.0, total)


def anticipated(
    game: Game, competition: Competition, judge: Judge[Result]
) -> Callable[[float, float, float], Result]:
    """What a judge says of the clients' true equilibrium for an offer, on a compressed population."""
    types = compress(game.clients, TYPES)
    fine, coarse = (game.replace(clients=clients) for clients in (types, compress(types, FEW)))
    last: list[Array] = []  # the previous equilibrium, from which the next search starts

    def cost(payment: float, rate: float, tolerance: float) -> Result:
        sample = coarse if tolerance >= COARSE else fine
        response = respond(sample, payment, rate, competition, last[0] if last else None, tolerance)
        equilibrium, trim = response.equilibrium, game.trims
        if payment >= SMALLEST:
            last[:] = [equilibrium.total_volume]
        clients, announced = response.game.clients, equilibrium.announced_volume
        aged = starting_staleness(clients, payment, rate, announced, competition, trim)
        return judge(response.game, payment, rate, equilibrium.total_volume, aged)

    return cost


def _believed_cost(
    game: Game, announced: Array, competition: Competition
) -> tuple[Callable[[float, float], float], Callable[[float, float], Array]]:
    """The server's cost, and the clients' answers, for prices at a fixed φ."""
    believed = np.maximum(announced, 1e-9)  # with φ = 0 the price would be infinite
    clients, trim = game.clients, game.trims

    def answer(payment: float, rate: float) -> Array:
        price, slope = price_of(payment, believed, competition)
        return total_response(clients, price, slope, rate, trim_start=trim)

    def cost(payment: float, rate: float) -> float:
        aged = starting_staleness(clients, payment, rate, believed, competition, trim)
        return server_cost(game, payment, rate, answer(payment, rate), aged).total

    return cost, answer


def _search(
    game: Game,
    cost: Callable[[float, float], float],
    options: Algorithm1Options,
    likely: tuple[float, float],
    before: Choice | None,
) -> Choice:
    if options.search == "bayesian":
        from dufl.game import bayesian  # imports scikit-learn

        known = (before.payment, before.conservation_rate) if before else None
        with one_thread():
            return bayesian.minimize(
                cost,
                game.payment_range,
                game.conservation_range,
                options.evaluations,
                options.seed,
                known,
            )

    def direct(payment: float, rate: float, _: float) -> float:
        return cost(payment, rate)

    return _minimized(game, direct, _judged(likely, direct))


def _judged(offer: tuple[float, float], cost: Cost) -> Choice:
    """An offer with its cost in the finite game."""
    payment, rate = offer
    return Choice(payment, rate, cost(payment, rate, FINE), 1)


def _minimized(game: Game, cost: Cost, known: Choice, progress: Progress = lambda _: None) -> Choice:
    """The best offer, or no update if that is as good."""
    square = Square(game.payment_range, game.conservation_range)
    if game.participation == "voluntary":  # the cost jumps where a client leaves or enters
        return _or_no_payment(game, cost, scanned(cost, square, known, progress))
    best = minimize(cost, square, known, game.payment_weight * game.num_rounds, progress)
    if isinstance(game.loss, PowerLaw) and game.loss.has_kinks and best.payment >= SMALLEST:
        best = polished(cost, square.around(best.payment), best)
    return _or_no_payment(game, cost, best)


def _or_no_payment(game: Game, cost: Cost, best: Choice) -> Choice:
    """The better of a choice and the least payment with the most conservation: no update, if allowed."""
    payment, rate = game.payment_range[0], game.conservation_range[1]
    idle = cost(payment, rate, 1e-9)
    if idle <= best.cost:
        return Choice(payment, rate, idle, best.evaluations + 1)
    return best
