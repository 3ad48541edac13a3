"""Who takes part if nobody has to, together with the total volume of those who do.

A client takes part if its utility is at least its reservation r_k. Whoever stays away is not paid, has no
costs, and does not count in N. A set of clients is stable if

    nobody inside wants to leave     U_k(φ) ≥ r_k, at the equilibrium φ of the set,
    nobody outside wants to enter    U_k(φ') ≤ r_k, at the equilibrium φ' of the set with this client.

If somebody leaves, the total falls and the price rises, so all others gain. Hence the set is found from
above: as long as somebody loses, those who lose most leave, half of the losers at a time. Then those who gain
by entering enter, the one that gains most first. A client's utility at φ is an upper bound of its utility
after it has entered, since φ' ≥ φ. Only for clients whose bound exceeds their reservation is φ' computed.
Those who enter may drive others out, who then enter again. Each time that somebody leaves after an entry, the
number of clients that may change at once is halved, at last to one. If several sets are stable, this is the
one that is reached from all clients in this way.

For a large population, the search begins with the set that is stable for its types.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.game.client import trajectories
from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.mean_field import TOLERANCE, TYPES, Equilibrium, find_equilibrium, price_of
from dufl.game.parameters import Competition, Game
from dufl.game.population import Clients
from dufl.game.threads import in_order
from dufl.game.utility import client_cost

Mask = npt.NDArray[np.bool_]
FEW = 16  # clients that may want to enter, up to which each is asked alone
MANY = 4 * TYPES  # clients up to which everything is computed for all of them in every step
CAREFUL = 4.0  # times the change of a margin that is expected: clients beyond it need not be asked again
STEPS = 400  # changes of the set at most; a set that is still changing is refused by the certificate
EVEN = 1e-9  # relative to what is paid and spent: utilities this close to the reservation are equal to it


@dataclass(frozen=True, eq=False)
class Response:
    """The clients' joint response to an offer.

    Attributes:
        game: the game of those who take part: the others have multiplicity 0.
        equilibrium: of this game.
        takes_part: which clients take part; None if participation is mandatory.
    """

    game: Game
    equilibrium: Equilibrium
    takes_part: Mask | None = None


def respond(
    game: Game,
    payment: float,
    conservation_rate: float,
    competition: Competition = "mean-field",
    start: Array | None = None,
    tolerance: float = TOLERANCE,
) -> Response:
    """The equilibrium for an offer, with the set of clients that take part.

    Args:
        game: the game.
        payment: R.
        conservation_rate: θ.
        competition: `mean-field` or `nash`.
        start: an initial guess of φ.
        tolerance: the relative residual at which the search of an equilibrium ends.
    """
    offer = payment, conservation_rate, competition
    if game.participation == "mandatory":
        found = find_equilibrium(game.clients, game.num_rounds, *offer, start, tolerance, game.trims)
        return Response(game, found)
    search = Search(game, *offer, tolerance)
    return search.run(start)


@dataclass(frozen=True, eq=False)
class Margins:
    """What clients have at an equilibrium above their reservation, U_k − r_k, and what they are paid."""

    margin: Array
    paid: Array


@dataclass(frozen=True, eq=False)
class Search:
    """The search of a stable set for one offer."""

    game: Game
    payment: float
    conservation_rate: float
    competition: Competition
    tolerance: float

    def run(self, start: Array | None = None) -> Response:
        """A stable set, from above."""
        clients = self.game.clients
        inside, most, entered = self._first(start), clients.size, False
        found = self.equilibrium(inside, start)
        known = _Known(self, found, inside)
        for _ in range(STEPS):
            if self.competition == "nash" and not found.total_volume.any():
                break  # a client alone is paid everything whatever it holds: there is no such game
            margin = known.margins(found, inside)
            leaving = self._leave(inside, margin, found, most)
            changed = leaving or self._enter(inside, margin, found, most)
            if changed is not None:
                most = max(most // 2, 1) if leaving and entered else most
                entered = leaving is None
                inside, found = changed
            elif known.exact:
                break
            else:
                known = _Known(self, found, inside)
        if not found.total_volume.any():
            inside = np.zeros(clients.size, bool)
        joined = self.game.replace(clients=clients.weighted(clients.multiplicity * inside))
        return Response(joined, found, inside)

    def equilibrium(self, inside: Mask, start: Array | None = None) -> Equilibrium:
        """The equilibrium of some clients; nothing is held if there are none."""
        clients, rounds = self.game.clients, self.game.num_rounds
        weight = clients.multiplicity * inside
        few = weight.sum() < (2 if self.competition == "nash" else 1)
        if few or not clients.initial_volume[inside].any():
            nothing = np.zeros(rounds)
            return Equilibrium(nothing, nothing, 0.0, 0, True)
        offer = self.payment, self.conservation_rate, self.competition
        guess = start if start is not None and (start > 0).all() else None
        some = clients if inside.all() else clients.weighted(weight)
        types = None
        if clients.size > MANY:  # the same types for all sets, in proportion
            types = compress(clients, TYPES)
            types = types.weighted(types.multiplicity * (weight.sum() / clients.num_clients))
        return find_equilibrium(some, rounds, *offer, guess, self.tolerance, self.game.trims, types)

    def margins(self, found: Equilibrium, inside: Mask, which: Clients | None = None) -> Margins:
        """U_k − r_k of clients at an equilibrium of those inside; an upper bound for those outside."""
        offer = self.payment, self.conservation_rate, self.competition
        return margins(which or self.game.clients, *offer, found, inside, self.game.trims)

    def _first(self, start: Array | None) -> Mask:
        """All clients; those that take part if types represented them, if there are many."""
        clients = self.game.clients
        everybody = np.ones(clients.size, bool)
        if clients.size <= MANY:
            return everybody
        types = self.game.replace(clients=compress(clients, TYPES))
        offer = self.payment, self.conservation_rate, self.competition
        rough = Search(types, *offer, self.tolerance).run(start).equilibrium
        return self.margins(rough, everybody).margin >= 0 if rough.total_volume.any() else everybody

    def _leave(
        self, inside: Mask, margin: Array, found: Equilibrium, most: int
    ) -> tuple[Mask, Equilibrium] | None:
        """The set without the half of the losers that loses most, `most` at most; None if nobody loses."""
        losing = np.flatnonzero(inside & (margin < 0))
        if not losing.size:
            return None
        worst = losing[np.argsort(margin[losing], kind="stable")]
        less = inside.copy()
        less[worst[: min((worst.size + 1) // 2, most)]] = False
        return less, self.equilibrium(less, found.total_volume)

    def _enter(
        self, inside: Mask, margin: Array, found: Equilibrium, most: int
    ) -> tuple[Mask, Equilibrium] | None:
        """The set with those who gain by entering, `most` at most; None if nobody does."""
        tempted = np.flatnonzero(~inside & (margin > 0))
        tempted = tempted[np.argsort(-margin[tempted], kind="stable")]
        if tempted.size > FEW and most > 1:
            more = inside.copy()
            more[tempted[: min(tempted.size // 2, most)]] = True
            return more, self.equilibrium(more, found.total_volume)
        for k in tempted:
            more = inside.copy()
            more[k] = True
            together = self.equilibrium(more, found.total_volume)
            one = self.margins(together, more[[k]], self.game.clients.take(np.array([k])))
            if one.margin[0] > 0:
                return more, together
        return None


class _Known:
    """Margins at one equilibrium, which are computed anew only for clients that a change of φ could decide.

    If log φ changes by δ at most, a margin changes by about δ times what the client is paid.
    """

    def __init__(self, search: Search, found: Equilibrium, inside: Mask) -> None:
        self._search, self._at = search, found.announced_volume
        self._values = search.margins(found, inside)
        self.exact = True  # whether the last margins were computed for all clients

    def margins(self, found: Equilibrium, inside: Mask) -> Array:
        """The margins at another equilibrium."""
        announced, search = found.announced_volume, self._search
        if announced is self._at:
            return self._values.margin
        self.exact = search.game.clients.size <= MANY or not (announced.any() and self._at.any())
        if self.exact:
            return search.margins(found, inside).margin
        change = float(np.abs(np.log(announced / self._at)).max())
        open_ = np.flatnonzero(np.abs(self._values.margin) <= CAREFUL * change * self._values.paid)
        margin = self._values.margin.copy()
        margin[open_] = search.margins(found, inside[open_], search.game.clients.take(open_)).margin
        return margin


def margins(
    clients: Clients,
    payment: float,
    conservation_rate: float,
    competition: Competition,
    found: Equilibrium,
    inside: Mask,
    trim_start: bool,
) -> Margins:
    """U_k − r_k of some clients at an equilibrium; for those that are not inside, at the same total.

    A client outside takes the total as given, in either game. The total would not be smaller with it, so this
    is an upper bound of what it would have inside. Differences within rounding are 0. If nobody holds
    anything, whoever holds one sample is paid everything.
    """
    announced = found.announced_volume
    if not announced.any():
        alone = np.where(clients.initial_volume > 0, np.inf if payment > 0 else 0.0, 0.0)
        return Margins(alone - clients.reservation, alone)

    def part_of(part: slice) -> Array:
        chosen, there = clients.take(part), inside[part]
        values = _margin(chosen, payment, conservation_rate, announced, "mean-field", trim_start)
        if competition == "nash" and there.any():
            own = _margin(chosen, payment, conservation_rate, announced, "nash", trim_start)
            values = np.where(there, own, values)
        return values

    return Margins(*np.concatenate(in_order(part_of, clients.size), axis=1)) if clients.size else _NONE


_NONE = Margins(np.empty(0), np.empty(0))


def _margin(
    clients: Clients, payment: float, rate: float, announced: Array, competition: Competition, trim: bool
) -> Array:
    """What some clients earn with their best responses, less their reservations; and what they are paid."""
    price, slope = price_of(payment, announced, competition)
    held, collected = trajectories(clients, price, slope, rate, trim)
    paid = np.asarray((price[:, None] * held).sum(axis=0))
    spent = client_cost(clients, held, collected).sum(axis=0)
    margin = paid - spent - clients.reservation
    scale = paid + spent + np.abs(clients.reservation)
    return np.stack([np.where(np.abs(margin) <= EVEN * scale, 0.0, margin), paid])


def require_mandatory(game: Game, where: str) -> None:
    """Raise `InputError` where clients cannot choose whether to take part."""
    if game.participation != "mandatory":
        raise InputError.of("participation", f"'mandatory' {where}", game.participation)
