"""Planning without knowing the clients' costs: offers go out, and only the sum of the answers comes back.

The server's cost depends on the clients through φ alone, and a client's answer to (R, θ, φ) is its volume
D_k(t). So a server that asks all clients the same questions, and sees no more than Σ_k D_k(t) for each,
can find the equilibrium as well as one that knows every α_k and β_k. It keeps a guess of a few types of
clients that would answer like the real ones, plans with it, asks what the real ones make of the plan and
of some offers around it, and mends the guess. A question costs nothing compared with a phase of messages,
so every phase carries several.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from dufl.errors import DuflError
from dufl.game.client import total_response
from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.leader import Algorithm1Options, no_update
from dufl.game.mean_field import find_equilibrium, price_of
from dufl.game.parameters import Game
from dufl.game.plan import Method, solve
from dufl.game.population import Clients
from dufl.game.utility import server_cost

TYPES = 4  # in the guess
SETTLED = 1e-3  # by how much an offer may cost more than the best one, as the guess has it
AROUND = ((0.5, 0.0), (2.0, 0.0), (1.0, -0.2), (1.0, 0.2))  # factors of R and shifts of θ


@dataclass(frozen=True, eq=False)
class Question:
    """What every client is asked: how much would you hold, if this were so?

    Attributes:
        payment: R.
        conservation_rate: θ.
        announced_volume: φ(t), what all clients together are said to hold.
    """

    payment: float
    conservation_rate: float
    announced_volume: Array

    def answer(self, clients: Clients) -> Array:
        """Σ_k D_k(t), each D_k the best response."""
        price, slope = price_of(self.payment, self.announced_volume, "mean-field")
        return total_response(clients, price, slope, self.conservation_rate)


Ask = Callable[[Sequence[Question]], Sequence[Array]]


@dataclass(frozen=True, eq=False)
class Agreement:
    """What a negotiation ends with.

    Attributes:
        payment: R.
        conservation_rate: θ.
        announced_volume: φ(t), to which every client's plan is the best response.
        total_volume: Σ_k D_k(t), what the plans add up to.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
        phases: how often the clients were asked.
        server_cost: U at the volumes that were answered.
        no_update_cost: U if nothing were paid and everything kept.
    """

    payment: float
    conservation_rate: float
    announced_volume: Array
    total_volume: Array
    residual: float
    phases: int
    server_cost: float
    no_update_cost: float


def negotiate(
    game: Game,
    ask: Ask,
    *,
    method: Method = "stackelberg",
    algorithm1: Algorithm1Options | None = None,
    tolerance: float = 1e-3,
    most: int = 12,
) -> Agreement:
    """Find the server's best offer and the clients' equilibrium by asking them.

    Args:
        game: the server's view; of `clients` only the number must be right, the rest is a first guess.
        ask: puts questions to all clients and gives the sum of their answers to each; one phase of messages.
        method: see `solve`.
        algorithm1: likewise.
        tolerance: the residual to reach.
        most: phases after which it is given up.

    >>> private = Clients.draw(15, seed=3)
    >>> found = negotiate(Game(), lambda questions: [q.answer(private) for q in questions])
    >>> known = solve(Game(clients=private))
    >>> bool(found.residual < 1e-3 and abs(found.server_cost / known.server_cost - 1) < 5e-3)
    True
    """
    guess, seen, offer = _first_guess(game.clients), [], None
    error = np.ones(game.num_rounds)  # by which factor the answer to the offer differs from the guess
    for phase in range(1, most + 1):
        view = game.replace(clients=guess)
        offer = _choose(view, offer, method, algorithm1)
        questions = [_question(guess, game, *offer, error)]
        questions += [_question(guess, game, *near) for near in _around(game, *offer)]
        answers = ask(questions)
        seen += list(zip(questions, answers, strict=True))
        known = _refit(guess, seen)
        best, answer = questions[0], answers[0]
        residual = float(np.abs(answer / best.announced_volume - 1).max())
        after = game.replace(clients=known)
        if residual <= tolerance and phase > 1 and _choose(after, offer, method, algorithm1) == offer:
            cost = server_cost(after, *offer, answer).total
            idle = no_update(after).total
            return Agreement(*offer, best.announced_volume, answer, residual, phase, cost, idle)
        guess, error = known, answer / best.answer(known)
    raise DuflError(
        f"the negotiation must end within {most} phases of messages, but the planned volumes are still "
        f"{100 * residual:.2g} % off what was announced"
    )


def _first_guess(clients: Clients) -> Clients:
    """A few types, apart even where all clients are thought to be alike."""
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
        multiplicity=clients.num_clients / TYPES,
    )


def _choose(
    view: Game, before: tuple[float, float] | None, method: Method, algorithm1: Algorithm1Options | None
) -> tuple[float, float]:
    """The best offer to the guessed clients; the one before, if it is nearly as good."""
    plan = solve(view, method=method, algorithm1=algorithm1)
    best = plan.payment, plan.conservation_rate
    if before is None or before == best:
        return best
    if method == "algorithm1":
        near = abs(before[0] - best[0]) <= 0.01 * best[0] and abs(before[1] - best[1]) <= 0.01
        return before if near else best
    found = find_equilibrium(view.clients, view.num_rounds, *before)
    cost = server_cost(view, *before, found.total_volume).total
    return before if cost <= (1 + SETTLED) * plan.server_cost else best


def _around(game: Game, payment: float, rate: float) -> list[tuple[float, float]]:
    """Offers near one, from which the guess learns how answers change."""
    if payment == 0:
        payment, rate = 0.1 * game.payment_range[1] or 1.0, 0.5
    return [
        (factor * payment, float(np.clip(rate + shift, *game.conservation_range))) for factor, shift in AROUND
    ]


def _question(
    guess: Clients, game: Game, payment: float, rate: float, error: Array | None = None
) -> Question:
    """An offer with the φ that comes true if the clients answer as guessed, but for a known error."""
    volume = find_equilibrium(guess, game.num_rounds, payment, rate).announced_volume
    if error is not None and payment > 0:
        for _ in range(60):  # halves the distance every time
            answer = Question(payment, rate, volume).answer(guess)
            volume = np.sqrt(volume * error * answer)
    return Question(payment, rate, volume)


def _refit(guess: Clients, seen: Sequence[tuple[Question, Array]]) -> Clients:
    """The types whose answers are nearest to those that were given, in relative terms."""
    first = seen[-1][1][0]  # Σ_k D_k(0), whatever is offered
    size = guess.size
    start = np.log(np.concatenate([guess.collection_cost, np.maximum(guess.training_cost, 1e-12)]))

    def types(logs: Array) -> Clients:
        return Clients(
            guess.initial_volume * (first / guess.initial_total),
            np.exp(logs[:size]),
            np.exp(logs[size:]),
            guess.initial_staleness,
            multiplicity=guess.multiplicity,
        )

    def misses(logs: Array) -> Array:
        clients = types(logs)
        found = [question.answer(clients) / answer - 1 for question, answer in seen]
        return np.concatenate([*found, 1e-4 * (logs - start)])  # of equally good guesses the nearest

    return types(least_squares(misses, start, max_nfev=50, bounds=(start - 5, start + 5)).x)
