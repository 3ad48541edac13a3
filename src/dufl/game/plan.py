"""From a game to a plan: the entry point to the mathematics.

solve        the server's best (R, θ) and the clients' equilibrium there
equilibrium  the clients' equilibrium for a given (R, θ)
certify      an independent certificate for the clients' part of a plan
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dufl.errors import CertificateError, InputError, NegativeUtilityWarning
from dufl.game import leader as leaders
from dufl.game.certificate import CERTIFIED, Certificate
from dufl.game.certify import Answered, certify_response
from dufl.game.client import check_capacity, trajectories
from dufl.game.dynamics import Array, staleness
from dufl.game.endless import endless_offer, with_endless_goal
from dufl.game.leader import Algorithm1Options, Trace, no_update_cost_by_term
from dufl.game.loss import PowerLaw, check_law
from dufl.game.mean_field import SMALLEST, Equilibrium, price_of, starting_staleness
from dufl.game.outcomes import Outcomes, outcomes
from dufl.game.parameters import Competition, Game, require_rounds
from dufl.game.parameters import Offer as Offer
from dufl.game.population import Clients
from dufl.game.prediction import (
    Prediction,
    cheapest,
    has_unit,
    law_of,
    most_accurate,
    predict,
    weight_of_a_point,
)
from dufl.game.robust import check_robust, robust_offer
from dufl.game.robustness import Robust, Robustness
from dufl.game.search import Choice, Progress
from dufl.game.threads import in_order
from dufl.game.utility import ServerCost, server_cost
from dufl.game.voluntary import Mask, respond
from dufl.inputs import Inputs
from dufl.late import late

Method = Literal["stackelberg", "algorithm1"]
FINITE = "'finite' here: `dufl.solve_endless` and `dufl plan` plan an endless service"


class _Method(Inputs):
    """The method of the leader and the competition of the clients."""

    method: Method = "stackelberg"
    competition: Competition = "mean-field"
    robust: Robust | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The server's offer, and how much every client collects in every round.

    Trajectories (`volume`, `collection`, `staleness`, each of shape (rounds, clients)) are computed
    on first access.

    Attributes:
        game: the game that was solved.
        payment: R, per round.
        conservation_rate: θ.
        equilibrium: the clients' joint response, with residual and passes.
        competition: `mean-field` or `nash`.
        method: how (R, θ) was chosen: `stackelberg`, `algorithm1`, or `given`.
        trace: the iterations of Algorithm 1, if it was used.
        robustness: how the offer was chosen under the law's uncertainty, if it was.
        takes_part: which clients take part, of shape (clients,); None if participation is mandatory.
    """

    game: Game
    payment: float
    conservation_rate: float
    equilibrium: Equilibrium
    competition: Competition
    method: str
    trace: Trace | None = None
    robustness: Robustness | None = None
    takes_part: Mask | None = None

    @cached_property
    def playing(self) -> Game:
        """The game of those who take part: all others have multiplicity 0."""
        if self.takes_part is None:
            return self.game
        clients = self.game.clients
        return self.game.replace(clients=clients.weighted(clients.multiplicity * self.takes_part))

    @property
    def staying_away(self) -> int:
        """The number of clients that do not take part."""
        return 0 if self.takes_part is None else int((~self.takes_part).sum())

    @property
    def offer(self) -> Offer:
        """(R, θ)."""
        return Offer(payment=self.payment, conservation_rate=self.conservation_rate)

    @property
    def total_volume(self) -> Array:
        """Σ_k D_k(t)."""
        return self.equilibrium.total_volume

    @property
    def total_payment(self) -> float:
        """R over all rounds."""
        return self.payment * self.game.num_rounds

    @property
    def residual(self) -> float:
        """max_t |Σ_k D_k(t)/φ(t) − 1|."""
        return self.equilibrium.residual

    @property
    def converged(self) -> bool:
        """Whether the residual is within the tolerance."""
        return self.equilibrium.converged

    @property
    def passes(self) -> int:
        """Best-response passes over all clients."""
        return self.equilibrium.passes

    @property
    def server_cost(self) -> float:
        """U, over all rounds."""
        return self.cost_by_term.total

    @cached_property
    def cost_by_term(self) -> ServerCost:
        """U by round and term."""
        rate, start = self.conservation_rate, self.starting_staleness
        return server_cost(self.playing, self.payment, rate, self.total_volume, start)

    @cached_property
    def no_update_cost_by_term(self) -> ServerCost:
        """U by round and term without payment and with everything conserved."""
        return no_update_cost_by_term(self.game)

    @property
    def no_update_cost(self) -> float:
        """U without payment and with everything conserved."""
        return self.no_update_cost_by_term.total

    @cached_property
    def starting_staleness(self) -> float:
        """The mean staleness of all samples that are held in round 0."""
        announced = self.equilibrium.announced_volume
        offer = self.payment, self.conservation_rate
        return starting_staleness(self.playing.clients, *offer, announced, self.competition, self.game.trims)

    @cached_property
    def mean_staleness(self) -> Array:
        """Σ_k D_k(t)·S_k(t)/φ(t)."""
        return staleness(self.total_volume, self.conservation_rate, self.starting_staleness)

    @cached_property
    def prediction(self) -> Prediction | None:
        """What the loss law predicts for training; None unless the law is in a unit."""
        return predict(self.playing, self.conservation_rate, self.total_volume, self.starting_staleness)

    @cached_property
    def endless_offer(self) -> Offer | None:
        """The best offer if the service did not end (`solve_endless`); None if there is no such service."""
        return endless_offer(self.game, self.competition)

    @cached_property
    def _trajectories(self) -> tuple[Array, Array]:
        return self.trajectories_of(self.game.clients, slice(None))

    @property
    def volume(self) -> Array:
        """D_k(t)."""
        return self._trajectories[0]

    @property
    def collection(self) -> Array:
        """Δ_k(t)."""
        return self._trajectories[1]

    @cached_property
    def staleness(self) -> Array:
        """S_k(t)."""
        return staleness(self.volume, self.conservation_rate, self.game.clients.initial_staleness)

    def trajectories_of(self, clients: Clients, part: slice | None = None) -> tuple[Array, Array]:
        """Volume and collection of some clients, as their best response to the announced total.

        If `part` says which clients of the game they are, those that stay away hold nothing.
        """
        announced = self.equilibrium.announced_volume
        if not announced.any() and self.takes_part is not None:  # nobody takes part
            nothing = np.zeros((announced.size, clients.size))
            return nothing, nothing.copy()
        price, slope = price_of(self.payment, announced, self.competition)
        held, collected = trajectories(clients, price, slope, self.conservation_rate, self.game.trims)
        if self.takes_part is not None and part is not None:
            away = ~self.takes_part[part]
            held[:, away] = collected[:, away] = 0.0
        return held, collected

    @cached_property
    def outcomes(self) -> Outcomes:
        """What each client earns, and what it would earn with simpler strategies."""

        def work(part: slice) -> Array:
            some = self.game.clients.take(part)
            exact = self.competition == "nash"
            profile = self.trajectories_of(some, part)
            return outcomes(
                some, self.payment, self.conservation_rate, self.total_volume, *profile, exact, part.start
            )

        return Outcomes(*np.concatenate(in_order(work, self.game.clients.size), axis=1))

    @cached_property
    def nobody_loses(self) -> Any:
        """What it would cost that no client has negative utility (a `NobodyLoses`); None if none has."""
        return late("dufl.game.participation:nobody_loses")(self)

    @cached_property
    def keeping(self) -> Any:
        """What it would cost that clients which stay away take part (a `Keeping`); None if all take part."""
        return late("dufl.game.participation:keeping")(self)

    @cached_property
    def certificate(self) -> Certificate:
        """The independent certificate for the clients' part of the plan."""
        return certify(self)

    def __repr__(self) -> str:
        """The offer and its cost in one line."""
        return (
            f"Plan(payment={self.payment:.6g}, conservation_rate={self.conservation_rate:.6g}, "
            f"server_cost={self.server_cost:.6g}, method={self.method!r}, competition={self.competition!r}, "
            f"clients={self.game.clients.size}, rounds={self.game.num_rounds}, residual={self.residual:.1e})"
        )

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with one row per round: volume, collection, staleness and cost by term."""
        return late("dufl.experiment.frames:plan_frame")(self)

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the plan into a directory of its own, from which `Plan.load` and `dufl certify` read it."""
        late("dufl.experiment.plan_directory:write_plan")(self, Path(folder), force=force)

    @classmethod
    def load(cls, folder: str | Path) -> "Plan":
        """The plan that `save` or `dufl plan --out` wrote into a directory."""
        return late("dufl.experiment.plan_directory:read_plan")(Path(folder))  # type: ignore[no-any-return]

    def plot(self, kind: str = "trajectories", **options: Any) -> Any:
        """A matplotlib figure: "trajectories", "surface" (the server's cost) or "utilities" (of clients)."""
        return late("dufl.report.figures:plot_plan")(self, kind, **options)

    def _repr_html_(self) -> str:
        return str(late("dufl.report.plan_table:plan_html")(self))

    def summary(self) -> dict[str, Any]:
        """The plan as plain Python numbers and lists."""
        return {
            "payment": self.payment,
            "conservation_rate": self.conservation_rate,
            "server_cost": self.server_cost,
            "server_cost_by_term": {
                "payment": float(self.cost_by_term.payment.sum()),
                "volume": float(self.cost_by_term.volume.sum()),
                "staleness": float(self.cost_by_term.staleness.sum()),
            },
            "total_payment": self.total_payment,
            "no_update_cost": self.no_update_cost,
            "num_clients": self.game.clients.size,
            "num_rounds": self.game.num_rounds,
            "total_volume": self.total_volume.tolist(),
            "mean_staleness": self.mean_staleness.tolist(),
            "converged": self.converged,
            "residual": self.residual,
            "passes": self.passes,
            "method": self.method,
            "competition": self.competition,
            **(self.prediction.summary() if self.prediction else {}),
            **({"robust": self.robustness.summary()} if self.robustness else {}),
        }


def solve(
    game: Game | None = None,
    *,
    method: Method = "stackelberg",
    competition: Competition = "mean-field",
    algorithm1: Algorithm1Options | None = None,
    budget: float | None = None,
    accuracy: float | None = None,
    point_worth: float | None = None,
    robust: Robust | None = None,
    certified: bool = True,
    progress: Progress = lambda _: None,
) -> Plan:
    """The server's best payment and conservation rate, and the clients' equilibrium there.

    A goal replaces the weight of money, for a game whose loss law was fitted to trainings. If the payment is
    fixed, there is nothing to weigh: for a law that holds for the late rounds, the conservation rate is then
    the one with the best prediction, and not the one with the least sum over all rounds.

    The certificate judges the equilibrium before it is returned. If some clients have negative utility, a
    `NegativeUtilityWarning` says so: given the offer no client gains by collecting otherwise, but these
    clients would rather not take part at all.

    Args:
        game: the game to solve; the paper's defaults if left out.
        method: `stackelberg` minimizes the cost at the clients' true equilibrium; `algorithm1` is
            the paper's loop.
        competition: `mean-field` (as in the paper, a client takes φ as given) or `nash` (a client sees
            its own influence).
        algorithm1: how the paper's loop searches and stops.
        budget: the most accurate plan whose payments over all rounds are at most this. Clients may begin with
            less than they have, so that a small budget makes no client lose, unless `trim_start` is false.
        accuracy: the cheapest plan whose predicted accuracy is at least this with 90 % confidence, or the
            best one if there is none. Clients may begin with less than they have.
        point_worth: the plan with the best sum of payments and accuracy, if a point of accuracy over the
            whole run is worth this much money.
        robust: plan under the uncertainty of the loss law, which must have a covariance: for the least
            "expected" cost, or for the least cost in the "worst" case; see `Plan.robustness`.
        certified: False leaves out the certificate, which takes most of the time for very many clients.
        progress: called with the share of the work that is done.

    Raises:
        CertificateError: if the certificate refuses the equilibrium.

    >>> plan = solve(Game(num_rounds=20))
    >>> plan  # doctest: +ELLIPSIS
    Plan(payment=51.5..., conservation_rate=0.265..., server_cost=0.471..., method='stackelberg', ...)
    >>> plan.server_cost < plan.no_update_cost
    True
    """
    game = game or Game()
    require_rounds(game, FINITE)
    check_law(game.loss)
    chosen = _Method(method=method, competition=competition, robust=robust)
    goals = {"budget": budget, "accuracy": accuracy, "point_worth": point_worth}
    given = {name: value for name, value in goals.items() if value is not None}
    if len(given) > 1:
        raise InputError.of(" and ".join(given), "given one at a time", ", ".join(map(str, given.values())))
    if robust is not None:
        check_robust(game, chosen.method, tuple(given))
    if given:
        game = with_goal(game, *next(iter(given.items())), competition, robust is not None)
    if not game.trims:
        check_capacity(game.clients)
    done = (0.9 if certified else 1.0) * (0.3 if robust else 1.0)

    def search(share: float) -> None:
        progress(done * share)

    choice: Choice | Offer
    if chosen.method == "algorithm1":
        choice, trace = leaders.algorithm1(game, competition, algorithm1, search)
    elif robust is None and _only_rate_is_free(game):
        rate = most_accurate(game, game.payment_range[0], competition)
        choice, trace = Offer(payment=game.payment_range[0], conservation_rate=rate), None
    else:
        choice, trace = leaders.stackelberg(game, competition, search), None
    plan = _plan(game, choice.payment, choice.conservation_rate, competition, method, trace)
    idle = game.payment_range[0] == 0 and game.conservation_range[1] == 1
    idle = idle and not game.trims and game.participation == "mandatory"  # they would not keep their data
    if method == "stackelberg" and idle and plan.no_update_cost < plan.server_cost:
        plan = _plan(game, 0.0, 1.0, competition, method)
    if robust is not None:
        plan = _robust(plan, robust, lambda share: progress(done * (1 + 2 * share)))
    if certified:
        _check_certificate(plan)
        _warn_of_losses(plan)
    progress(1.0)
    return plan


def _only_rate_is_free(game: Game) -> bool:
    """Whether the payment is fixed, θ is not, and the loss law predicts the late rounds alone."""
    (low, high), (least, most), law = game.payment_range, game.conservation_range, game.loss
    late = isinstance(law, PowerLaw) and has_unit(law) and law.measured_from > 0
    return late and SMALLEST <= low == high and least < most


def _robust(plain: Plan, kind: Robust, progress: Progress) -> Plan:
    """The plan with the robust offer in place of the plain one."""
    found = robust_offer(plain.game, kind, plain.offer, plain.competition, progress)
    offer = found.chosen.payment, found.chosen.conservation_rate
    plan = (
        plain
        if plain.offer == found.chosen.offer
        else _plan(plain.game, *offer, plain.competition, plain.method)
    )
    return replace(plan, robustness=found)


def with_goal(
    game: Game, goal: str, value: float, competition: Competition = "mean-field", robust: bool = False
) -> Game:
    """The game whose solution reaches a goal: "budget", "accuracy" or "point_worth"; see `solve`.

    With a budget the offer is the one with the best prediction; if it has to be robust, only its payment is
    fixed.

    For a budget or an accuracy the offer may be so small that first buffers cost more than they earn. There
    clients may begin with less than they have, unless nothing can be paid or `trim_start` is false.
    """
    if game.horizon == "endless":
        return with_endless_goal(game, goal, value, competition)
    if goal == "point_worth":
        return game.replace(payment_weight=weight_of_a_point(game, value))
    law_of(game, goal)
    if goal == "budget":
        if not 0 <= value < np.inf:
            raise InputError.of("budget", ">= 0", value)
        low, high = game.payment_range
        most = value / game.num_rounds
        if most < low:
            rule = f"at least {low * game.num_rounds:g}, for the payments of payment_range"
            raise InputError.of("budget", rule, value)
        if most == 0:
            return game.replace(payment_weight=0.0, payment_range=(0.0, 0.0))
        payment = min(most, high)
        game = _trimmed(game)
        if robust:
            return game.replace(payment_weight=0.0, payment_range=(low, payment))
        rate = most_accurate(game, payment, competition)
    else:
        game = _trimmed(game)
        reached = cheapest(game, value, competition)
        payment, rate = reached.payment, reached.conservation_rate
    return game.replace(payment_range=(payment, payment), conservation_range=(rate, rate))


def _trimmed(game: Game) -> Game:
    """The game in which clients may begin with less than they have, unless it says otherwise.

    If nothing can be paid, they would begin with nothing.
    """
    is_free = game.trim_start is None and game.payment_range[1] > 0
    return game.replace(trim_start=True) if is_free else game


def algorithm1_baseline(
    game: Game, competition: Competition = "mean-field", progress: Progress = lambda _: None
) -> Plan:
    """The fixed point of Algorithm 1, as a baseline for a plan."""
    return solve(
        game,
        method="algorithm1",
        competition=competition,
        algorithm1=leaders.FIXED_POINT,
        certified=False,
        progress=progress,
    )


def equilibrium(
    game: Game | None = None,
    *,
    payment: float,
    conservation_rate: float,
    competition: Competition = "mean-field",
) -> Plan:
    """The clients' equilibrium for a given payment R per round and conservation rate θ.

    Raises:
        CertificateError: if the certificate refuses it.
    """
    game = game or Game()
    require_rounds(game, FINITE)
    if not game.trims:
        check_capacity(game.clients)
    offer = Offer(payment=payment, conservation_rate=conservation_rate)
    chosen = _Method(competition=competition)
    plan = _plan(game, offer.payment, offer.conservation_rate, chosen.competition, "given")
    _check_certificate(plan)
    return plan


def certify(plan: Plan, progress: Progress = lambda _: None) -> Certificate:
    """Certify a plan client by client, independently of the solvers; see `Certificate`."""
    offer = plan.payment, plan.conservation_rate, plan.competition
    answered = Answered(plan.game, *offer, plan.equilibrium.announced_volume)
    return certify_response(answered, plan.takes_part, progress)


def _plan(
    game: Game,
    payment: float,
    conservation_rate: float,
    competition: Competition,
    method: str,
    trace: Trace | None = None,
) -> Plan:
    response = respond(game, payment, conservation_rate, competition)
    offer, found = (payment, conservation_rate), response.equilibrium
    return Plan(game, *offer, found, competition, method, trace, takes_part=response.takes_part)


def _check_certificate(plan: Plan) -> None:
    """Raise `CertificateError` if the certificate refuses the equilibrium."""
    if plan.certificate.holds():
        return
    raise CertificateError(
        f"the certificate refuses the equilibrium for payment {plan.payment:g} and conservation_rate "
        f"{plan.conservation_rate:g}: its largest residual is {plan.certificate.worst:.1e}, allowed is "
        f"{CERTIFIED:.0e}. Costs or volumes that are many orders of magnitude apart are the usual cause: "
        "bring them closer together"
    )


def _warn_of_losses(plan: Plan) -> None:
    if losing := plan.certificate.losing_clients:
        warnings.warn(
            f"{losing:,} of {plan.game.clients.size:,} clients have negative utility under this plan: they "
            "would rather not take part",
            NegativeUtilityWarning,
            stacklevel=3,
        )
