"""Planning without knowing the clients' costs, from the sums of their answers alone.

The server's cost depends on the clients through φ alone, and a client's answer to (R, θ, φ) is its volume
D_k(t). A server that sends the same announcements to all clients, and sees no more than Σ_k D_k(t) for each,
can therefore find the equilibrium as well as one that knows every α_k and β_k. It models the clients by a few
types. In every phase it plans for these types, sends the plan and some offers around it, and fits the types
to the answers. The cost of a phase hardly depends on what it carries, so every phase carries several offers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dufl.errors import DuflError, InputError
from dufl.game.client import NOTHING, total_response
from dufl.game.client_types import first_types, has_other_costs, refit
from dufl.game.dynamics import Array
from dufl.game.leader import Algorithm1Options, no_update_cost_by_term
from dufl.game.mean_field import SMALLEST, SYSTEM, find_equilibrium, newton_step, price_of
from dufl.game.parameters import Game, Offer
from dufl.game.plan import Method, solve
from dufl.game.population import Clients
from dufl.game.utility import server_cost
from dufl.game.voluntary import require_mandatory

SETTLED = 1e-3  # relative excess cost at which the previous offer is kept
AROUND = ((0.5, 0.0), (2.0, 0.0), (1.0, -0.2), (1.0, 0.2))  # factors of R and shifts of θ


@dataclass(frozen=True, eq=False)
class Announcement:
    """What the server announces to every client.

    Attributes:
        offer: (R, θ).
        announced_volume: φ(t), the total volume of all clients.
        trim_start: whether a client may begin with less than it holds. Then φ(0) is a sum of answers too.
    """

    offer: Offer
    announced_volume: Array
    trim_start: bool = False

    @property
    def price(self) -> Array:
        """p(t), what is paid for a sample."""
        return price_of(self.offer.payment, self.announced_volume, "mean-field")[0]

    def response(self, clients: Clients, sensitivity: Array = NOTHING) -> Array:
        """Σ_k D_k(t), where each D_k is the client's best response; see `total_response`."""
        price, slope = price_of(self.offer.payment, self.announced_volume, "mean-field")
        rate, trim = self.offer.conservation_rate, self.trim_start
        return total_response(clients, price, slope, rate, sensitivity, trim)


Ask = Callable[[Sequence[Announcement]], Sequence[Array]]


@dataclass(frozen=True, eq=False)
class NegotiatedPlan:
    """The result of a negotiation.

    Attributes:
        announcement: the offer, and the φ(t) to which every client's plan is the best response.
        total_volume: Σ_k D_k(t), the sum of the clients' plans.
        residual: max_t |Σ_k D_k(t)/φ(t) − 1|.
        phases: how often the clients were asked.
        server_cost: U at the volumes that the clients answered.
        no_update_cost: U without payment and with everything conserved.
    """

    announcement: Announcement
    total_volume: Array
    residual: float
    phases: int
    server_cost: float
    no_update_cost: float

    @property
    def offer(self) -> Offer:
        """(R, θ)."""
        return self.announcement.offer


def negotiate(
    game: Game,
    ask: Ask,
    *,
    method: Method = "stackelberg",
    algorithm1: Algorithm1Options | None = None,
    tolerance: float = 1e-3,
    max_phases: int = 12,
) -> NegotiatedPlan:
    """Find the server's best offer and the clients' equilibrium by asking the clients.

    Args:
        game: the server's view. Of `clients`, only the number must be right; the rest is a first guess.
        ask: sends announcements to all clients and returns the sum of their answers to each, in one phase of
            messages.
        method: see `solve`.
        algorithm1: see `solve`.
        tolerance: the largest residual that ends the negotiation.
        max_phases: the number of phases after which the negotiation fails.

    Raises:
        DuflError: if the negotiation does not converge within `max_phases`.

    >>> private = Clients.draw(15, seed=3)
    >>> negotiated = negotiate(Game(), lambda announcements: [a.response(private) for a in announcements])
    >>> known = solve(Game(clients=private))
    >>> bool(negotiated.residual < 1e-3 and abs(negotiated.server_cost / known.server_cost - 1) < 5e-3)
    True
    """
    require_mandatory(game, "in a negotiation, where everybody answers")
    _check_payment(game)
    types, history, offer = first_types(game.clients), [], None
    error = np.ones(game.num_rounds)  # ratio of the last answer to the one that the types predict
    for phase in range(1, max_phases + 1):
        view = game.replace(clients=types)
        offer = _choose(view, offer, method, algorithm1)
        announcements = [_announce(types, game, offer, error)]
        announcements += [_announce(types, game, near) for near in _around(game, offer)]
        answers = ask(announcements)
        history += list(zip(announcements, answers, strict=True))
        fitted = _refit(types, history)
        best, answer = announcements[0], answers[0]
        residual = float(np.abs(answer / best.announced_volume - 1).max())
        after = game.replace(clients=fitted)
        if residual <= tolerance and phase > 1 and _choose(after, offer, method, algorithm1) == offer:
            cost = server_cost(after, offer.payment, offer.conservation_rate, answer).total
            idle = no_update_cost_by_term(after).total
            return NegotiatedPlan(best, answer, residual, phase, cost, idle)
        types, error = fitted, _ratio(answer, best.response(fitted))
    raise DuflError(
        f"the negotiation did not converge within {max_phases} phases of messages: the planned volumes still "
        f"differ by {100 * residual:.2g} % from the announced ones"
    )


def _ratio(answer: Array, predicted: Array) -> Array:
    """The ratio of two answers; 1 in a round in which one of them is 0."""
    fine = (answer > 0) & (predicted > 0)
    return np.divide(answer, predicted, out=np.ones_like(answer), where=fine)


def _check_payment(game: Game) -> None:
    """Raise `InputError` if nothing can be paid and clients may begin with nothing: there is no plan."""
    if game.trims and game.payment_range[1] < SMALLEST:
        rule = "[low, high] with high > 0 if trim_start is true: unpaid clients begin with nothing"
        raise InputError.of("payment_range", rule, list(game.payment_range))


def _choose(
    view: Game, previous: Offer | None, method: Method, algorithm1: Algorithm1Options | None
) -> Offer:
    """The best offer to the types; the previous one if it is nearly as good."""
    # No certificate: it would judge the types, while the clients' own answers judge the plan.
    plan = solve(view, method=method, algorithm1=algorithm1, certified=False)
    best = plan.offer
    if previous is None or previous == best:
        return best
    payment, rate = previous.payment, previous.conservation_rate
    if method == "algorithm1":
        near = abs(payment - best.payment) <= 0.01 * best.payment
        return previous if near and abs(rate - best.conservation_rate) <= 0.01 else best
    trim = view.trims
    total = find_equilibrium(view.clients, view.num_rounds, payment, rate, trim_start=trim).total_volume
    cost = server_cost(view, payment, rate, total).total
    return previous if cost <= (1 + SETTLED) * plan.server_cost else best


def _around(game: Game, offer: Offer) -> list[Offer]:
    """Offers near one, which show how answers change with the offer."""
    payment, rate = offer.payment, offer.conservation_rate
    if payment == 0:
        payment, rate = 0.1 * game.payment_range[1] or 1.0, 0.5
    return [
        Offer(
            payment=factor * payment,
            conservation_rate=float(np.clip(rate + shift, *game.conservation_range)),
        )
        for factor, shift in AROUND
    ]


def _announce(types: Clients, game: Game, offer: Offer, error: Array | None = None) -> Announcement:
    """An offer with the φ at which the types' answer, corrected by a known error, is φ itself."""
    payment, rate, trim = offer.payment, offer.conservation_rate, game.trims
    volume = find_equilibrium(types, game.num_rounds, payment, rate, trim_start=trim).announced_volume
    if error is not None and payment > 0 and has_other_costs(types):
        volume = _corrected(types, Announcement(offer, volume, trim), error)
    elif error is not None and payment > 0:
        for _ in range(60):  # every pass halves the distance
            volume = np.sqrt(volume * error * Announcement(offer, volume, trim).response(types))
    return Announcement(offer, volume, trim)


def _corrected(types: Clients, start: Announcement, error: Array) -> Array:
    """The φ at which the types' answer, corrected by a known error, is φ itself.

    Prices per sample make answers so elastic that halfway steps may diverge. Newton's steps are shortened
    while the distance does not fall. If there are too many rounds for a system, steps are short instead.
    """
    volume, rounds = start.announced_volume, start.announced_volume.size
    has_system = rounds <= SYSTEM
    best, least, step, length = volume, np.inf, np.zeros(rounds), 1.0
    for _ in range(60):
        sensitivity = np.zeros((rounds, rounds)) if has_system else NOTHING
        held = Announcement(start.offer, volume, start.trim_start).response(types, sensitivity)
        apart = np.log(np.maximum(error * held, SMALLEST) / volume)
        distance = float(np.abs(apart).max())
        if distance < least:
            best, least, length = volume, distance, 1.0
            newton = newton_step(sensitivity, held, apart) if has_system and (held > 0).all() else None
            step = np.clip(0.2 * apart if newton is None else newton, -1.0, 1.0)
        else:
            length /= 2
        if least < 1e-9 or length < 1e-3:
            break
        volume = best * np.exp(length * step)
    return best


def _refit(types: Clients, history: Sequence[tuple[Announcement, Array]]) -> Clients:
    """The types whose answers are nearest to all answers so far."""
    asked = [(announcement.response, answer) for announcement, answer in history]
    highest = max(float(announcement.price.max()) for announcement, _ in history)
    return refit(types, asked, highest, history[-1][0].trim_start)
