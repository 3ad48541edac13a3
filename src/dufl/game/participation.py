"""What it costs the server that no client loses by taking part.

A client loses if its utility is negative: it is paid less than it spends. Usually it must carry a first
buffer that is too large for the offer. Two changes end this, each at the same conservation rate:

    trimmed buffers    Clients may begin with less than they have. At any prices a client can then earn 0 by
                       holding nothing, so its best response earns at least 0. It costs the server volume in
                       the first rounds, and no money.
    a larger payment   The least one at which the smallest utility is 0, by bisection.

If participation is voluntary, whoever would lose stays away instead. What it would cost to keep such a client
is what it misses of its reservation if it takes part. For a large population it is what it misses at the
present prices, which is a little less.

For a large population, totals are those of the compressed population. The payment is then found for the
clients that lose most, relative to their turnover.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.mean_field import SMALLEST, TOLERANCE, TYPES
from dufl.game.parameters import Game
from dufl.game.plan import Plan
from dufl.game.population import Clients
from dufl.game.utility import client_cost, client_utility
from dufl.game.voluntary import Search, respond
from dufl.inputs import LARGEST

EXACT = 5000  # clients up to which everything is exact, and clients that are watched if there are more
CLOSE = 1e-5  # relative precision of the payment
STEPS = 200
KEPT = 200  # clients that stay away, up to which keeping each is solved exactly


@dataclass(frozen=True)
class Change:
    """An offer with which nobody loses, compared with the plan.

    Attributes:
        payment: R, per round.
        extra_payment: over all rounds.
        extra_cost: of the server, U.
        extra_loss: of the predicted loss; None if the loss law has no unit.
        predicted: the predicted loss; None if the loss law has no unit.
    """

    payment: float
    extra_payment: float
    extra_cost: float
    extra_loss: float | None
    predicted: float | None

    def summary(self, unit: str | None) -> dict[str, Any]:
        """The change in plain numbers, with the accuracy if the law is about the error."""
        result = {
            "payment": self.payment,
            "extra_payment": self.extra_payment,
            "extra_cost": self.extra_cost,
        }
        if self.predicted is None or self.extra_loss is None:
            return result
        if unit == "error":
            return result | {"predicted_accuracy": 1 - self.predicted, "extra_accuracy": -self.extra_loss}
        return result | {f"predicted_{unit}": self.predicted, f"extra_{unit}": self.extra_loss}


@dataclass(frozen=True)
class NobodyLoses:
    """What it would cost that nobody loses.

    Attributes:
        losing_clients: the number of clients with negative utility.
        trim_start: clients may begin with less than they have; None if nothing is paid, as nobody would then
            keep any data.
        larger_payment: the least payment at the same conservation rate; None if no payment is enough.
        estimated: whether the numbers are those of a compressed population.
        unit: of the loss law; None if it has no unit.
    """

    losing_clients: int
    trim_start: Change | None
    larger_payment: Change | None
    estimated: bool
    unit: str | None

    @property
    def cheapest(self) -> str | None:
        """The change that costs the server least: "trim_start" or "larger_payment"."""
        ways = {"trim_start": self.trim_start, "larger_payment": self.larger_payment}
        costs = {name: change.extra_cost for name, change in ways.items() if change}
        return min(costs, key=lambda name: costs[name]) if costs else None

    def summary(self) -> dict[str, Any]:
        """Both changes in plain numbers."""
        trimmed, paid = self.trim_start, self.larger_payment
        return {
            "cheapest": self.cheapest,
            "trim_start": trimmed.summary(self.unit) if trimmed else None,
            "larger_payment": paid.summary(self.unit) if paid else None,
            "estimated": self.estimated,
        }


@dataclass(frozen=True, eq=False)
class Keeping:
    """What it would cost that clients which stay away take part.

    Attributes:
        clients: those that stay away.
        cost: what each of them would have to be paid in addition, over all rounds, if it alone were kept.
        estimated: whether the costs are those at the present prices, which the client would lower.
    """

    clients: npt.NDArray[np.intp]
    cost: Array
    estimated: bool

    def summary(self) -> dict[str, Any]:
        """In plain numbers."""
        return {"clients": self.clients.tolist(), "cost": self.cost.tolist(), "estimated": self.estimated}


def keeping(plan: Plan) -> Keeping | None:
    """What it would cost that clients which stay away take part; None if all take part."""
    if plan.takes_part is None or plan.takes_part.all():
        return None
    game, away = plan.game, np.flatnonzero(~plan.takes_part)
    search = Search(game, plan.payment, plan.conservation_rate, plan.competition, TOLERANCE)
    estimated = away.size > KEPT
    if estimated:
        margin = search.margins(plan.equilibrium, plan.takes_part).margin[away]
    else:
        margin = np.array([_margin_inside(search, plan, int(k)) for k in away])
    return Keeping(away, np.maximum(-margin, 0.0), estimated)


def _margin_inside(search: Search, plan: Plan, k: int) -> float:
    """U_k − r_k of a client that stays away, if it took part."""
    assert plan.takes_part is not None
    more = plan.takes_part.copy()
    more[k] = True
    start = plan.total_volume if plan.total_volume.all() else None
    found = search.equilibrium(more, start)
    one = plan.game.clients.take(np.array([k]))
    return float(search.margins(found, np.ones(1, bool), one).margin[0])


def nobody_loses(plan: Plan) -> NobodyLoses | None:
    """What it would cost that nobody loses; None if nobody does."""
    losing = plan.certificate.losing_clients
    if not losing:
        return None
    clients = plan.game.clients
    many = clients.size > EXACT
    game = plan.game.replace(clients=compress(clients, TYPES)) if many else plan.game
    base = _at(plan, game, plan.payment) if many else plan
    trimmed = None
    if plan.payment >= SMALLEST:
        trimmed = _at(plan, game.replace(trim_start=True), plan.payment)
    enough = _enough_for(base, _watched(plan) if many else clients)
    unit = base.prediction.unit if base.prediction else None
    changes = [_compared(base, other) if other else None for other in (trimmed, enough)]
    return NobodyLoses(losing, changes[0], changes[1], many, unit)


def _watched(plan: Plan) -> Clients:
    """The clients that lose most, relative to their turnover."""
    turnover = np.maximum(plan.certificate.turnover, 1 / LARGEST)
    order = np.argsort(plan.certificate.utility / turnover, kind="stable")
    return plan.game.clients.take(np.sort(order[:EXACT]))


def _at(plan: Plan, game: Game, payment: float, start: Array | None = None) -> Plan:
    """The clients' response to another payment, or in another game."""
    rate = plan.conservation_rate
    forced = game.replace(participation="mandatory")  # what it costs that nobody wants to leave
    found = respond(forced, payment, rate, plan.competition, start).equilibrium
    return Plan(forced, payment, rate, found, plan.competition, "given")


def _compared(base: Plan, other: Plan) -> Change:
    before, after = base.prediction, other.prediction
    return Change(
        payment=other.payment,
        extra_payment=other.total_payment - base.total_payment,
        extra_cost=other.server_cost - base.server_cost,
        extra_loss=after.value - before.value if before and after else None,
        predicted=after.value if after else None,
    )


def _enough_for(plan: Plan, watched: Clients) -> Plan | None:
    """The plan with the least payment at which none of the clients loses, between it and the plan's."""
    last = plan.total_volume if plan.payment >= SMALLEST else None

    def respond(payment: float) -> Plan:
        nonlocal last
        made = _at(plan, plan.game, payment, last)
        last = made.total_volume
        return made

    low, high = plan.payment, max(2 * plan.payment, _spending(plan) / plan.game.num_rounds, 2 * SMALLEST)
    made = respond(high)
    while least_utility(made, watched) < 0:
        low, high = high, 2 * high
        if high > LARGEST:
            return None
        made = respond(high)
    return _bisected(respond, watched, low, made)


def _bisected(respond: Callable[[float], Plan], watched: Clients, low: float, enough: Plan) -> Plan:
    """The least payment that is enough, above one that is not."""
    for _ in range(STEPS):
        high = enough.payment
        if high <= low * (1 + CLOSE) or high <= 2 * SMALLEST:
            break
        middle = respond(float(np.sqrt(low * high)) if low > 0 else high / 2)
        if least_utility(middle, watched) < 0:
            low = middle.payment
        else:
            enough = middle
    return enough


def least_utility(plan: Plan, clients: Clients) -> float:
    """The smallest utility of some clients under a plan."""
    held, collected = plan.trajectories_of(clients)
    return float(client_utility(clients, plan.payment, held, collected, plan.total_volume).min())


def _spending(plan: Plan) -> float:
    """What all clients spend over all rounds: a payment of this size pays for it."""
    clients = plan.game.clients
    held, collected = plan.trajectories_of(clients)
    return float((client_cost(clients, held, collected) * clients.multiplicity).sum())
