"""The rest of a game, planned again.

After n rounds the clients hold D_k(n) samples of mean staleness S(n). What is left is a game of T − n rounds
that begins there. Its first buffers are what a run holds, so nobody trims them. The weights κ1^{T−1−t} of its
rounds are those they had before. At the same offer, its equilibrium is the rest of the old one: a client's
best response from D_k(n) on is the rest of its best response from the start.

The server keeps its old offer unless another one costs less. So on the remaining game a new plan never costs
more than the old offer does. With few rounds left, the cheapest offer may be to pay nothing: clients have
collected already. Such an offer is not made: with a new plan, no more clients lose than with the old offer.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.errors import CertificateError, InputError, NegativeUtilityWarning
from dufl.game.loss import LossLaw, PowerLaw, remember
from dufl.game.parameters import Competition, Game, Offer
from dufl.game.plan import Plan, equilibrium
from dufl.game.population import Clients
from dufl.game.voluntary import respond

LEAST_ROUNDS = 2  # of a game


@dataclass(frozen=True, eq=False)
class Choice:
    """The new plan of a remaining game, and that of the old offer.

    Attributes:
        plan: the new one, if it costs less and no more clients lose; the old one otherwise.
        old: the clients' equilibrium at the old offer.
    """

    plan: Plan
    old: Plan

    @property
    def changed(self) -> bool:
        """Whether the offer is another one."""
        return self.plan is not self.old


def remaining_game(
    game: Game,
    round: int,
    volume: npt.ArrayLike,
    staleness: npt.ArrayLike,
    law: LossLaw | None = None,
    num_rounds: int | None = None,
    before: npt.ArrayLike = (),
) -> Game:
    """What is left of a game.

    Args:
        game: the whole game.
        round: n, the number of rounds that are over.
        volume: D_k(n), what each client holds.
        staleness: the mean staleness of it, of each client or of all.
        law: the loss law of the remaining rounds; by default that of the game.
        num_rounds: how many rounds to plan; by default those that are left.
        before: φ(0) … φ(n−1), which a law with a memory still counts.
    """
    left = game.num_rounds - round if num_rounds is None else num_rounds
    if left < LEAST_ROUNDS:
        raise InputError.of("the number of remaining rounds", f">= {LEAST_ROUNDS}", left)
    clients = game.clients
    held = Clients(
        np.minimum(np.asarray(volume, np.float64), clients.capacity),  # volumes in integers may exceed it
        clients.collection_cost,
        clients.training_cost,
        np.maximum(np.asarray(staleness, np.float64), 1.0),
        clients.capacity,
        clients.collection_price,
        clients.training_price,
        clients.reservation,
        multiplicity=clients.multiplicity,
    )
    loss = game.loss if law is None else law
    if isinstance(loss, PowerLaw):
        late = _measured_from(loss, game.num_rounds, round, left)
        course: dict[str, Any] = {"course": (), "course_deviation": ()}  # those are of the whole game
        loss = loss.replace(measured_from=late, remembered=_remembered(loss, before), **course)
    return game.replace(clients=held, num_rounds=left, trim_start=False, loss=loss)


def _measured_from(law: PowerLaw, num_rounds: int, round: int, left: int) -> float:
    """The share of the remaining rounds before the late rounds of the whole game begin."""
    first = int(law.measured_from * num_rounds) - round
    return 0.0 if first <= 0 else min((first + 0.5) / left, 1 - 0.5 / left)


def _remembered(law: PowerLaw, before: npt.ArrayLike) -> tuple[float, float]:
    """What a law with a memory has counted before the remaining game."""
    volume = np.asarray(before, np.float64)
    if not volume.size or law.memory == 0:
        return law.remembered
    held, weight = remember(volume, law.memory, law.remembered)
    return float(held[-1]), float(weight[-1])


def replan(
    game: Game, offer: Offer, competition: Competition, solve: Callable[[Game], Plan]
) -> Choice | None:
    """Plan a remaining game again: the offer that `solve` finds, or the old one if that is not better.

    None if the certificate refuses the equilibrium for the old offer.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NegativeUtilityWarning)  # the certificate says how many lose
        try:
            old = response(game, offer, competition)
        except CertificateError:
            return None
        try:
            new = solve(game)
        except CertificateError:
            return Choice(old, old)
    better = new.server_cost < old.server_cost
    fair = better and new.certificate.losing_clients <= old.certificate.losing_clients
    return Choice(new if fair else old, old)


def response(game: Game, offer: Offer, competition: Competition, certified: bool = True) -> Plan:
    """The clients' equilibrium for an offer; without its certificate if it had one before."""
    if not certified:
        pair = offer.payment, offer.conservation_rate
        found = respond(game, *pair, competition)
        return Plan(game, *pair, found.equilibrium, competition, "given", takes_part=found.takes_part)
    return equilibrium(
        game,
        payment=offer.payment,
        conservation_rate=offer.conservation_rate,
        competition=competition,
    )
