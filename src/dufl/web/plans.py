"""The plans and the cost surface of a request, cached: returning to earlier values takes no time.

Every `progress` is called often. The page uses it to give way to a newer change.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock

from cachetools import LRUCache, cached

from dufl.experiment.files import to_json
from dufl.experiment.frontier import Frontier, frontier_of, paper_offer
from dufl.experiment.planning import baseline_of, offered, summary
from dufl.game.compression import compress
from dufl.game.dynamics import Array, staleness
from dufl.game.leader import cost_surface
from dufl.game.plan import Plan, algorithm1_baseline
from dufl.game.search import Progress
from dufl.report.plan_charts import offers, right_edge
from dufl.web.request import Request

SURFACE_SHAPE = (25, 17)  # payments, conservation rates
SURFACE_TYPES = 32  # client types that a large population is compressed to
SURFACE_TOLERANCE = 1e-2  # of the equilibria: a relative error of 1e-4 in the cost, which is invisible
CACHE_SIZE = 100  # results of each kind
CSV_ROWS = 200_000  # of the trajectories


def _no_progress(_: float) -> None:
    """Show no progress."""


@dataclass(frozen=True, eq=False)
class Surface:
    """The server's cost over payments (rows) and conservation rates (columns)."""

    payments: Array
    rates: Array
    costs: Array


def _plan_key(request: Request, _: Progress = _no_progress) -> Request:
    """The request without what does not matter, such as the options of Algorithm 1 for another leader.

    What a point of accuracy is worth is a payment weight.
    """
    if request.values.goal is not None and request.values.goal.name == "point_worth":
        request = request.without_goal()
    if request.values.method == "algorithm1":
        return request
    return replace(request, values=replace(request.values, search="bayesian", damping=0.0))


def _optimum_key(request: Request, progress: Progress = _no_progress) -> Request:
    """The request for the Stackelberg leader with no goal and nothing fixed."""
    request = request.without_goal()
    free = replace(request.values, method="stackelberg", payment=None, conservation_rate=None)
    return _plan_key(replace(request, values=free))


@cached(LRUCache(CACHE_SIZE), key=_plan_key, lock=Lock())
def plan_of(request: Request, progress: Progress = _no_progress) -> Plan:
    """The plan of a request, for its goal or with what the user fixed."""
    experiment, values = request.experiment(), request.values
    is_offer = values.payment is not None and values.conservation_rate is not None
    return offered(experiment) if is_offer else experiment.solve(progress)


def optimum_of(request: Request, progress: Progress = _no_progress) -> Plan:
    """The plan with the lowest cost, with no goal and nothing fixed."""
    return plan_of(_optimum_key(request), progress)


@cached(LRUCache(CACHE_SIZE), key=_optimum_key, lock=Lock())
def baseline_plan(request: Request, progress: Progress = _no_progress) -> Plan | None:
    """The plan of Algorithm 1 at its fixed point, with nothing fixed.

    None if it has no choice, or if clients choose whether to take part: the paper's do not.
    """
    game = _optimum_key(request).experiment().game
    low, high = game.payment_range
    if low >= high or game.participation == "voluntary":
        return None
    return algorithm1_baseline(game, request.values.competition, progress)


@cached(LRUCache(CACHE_SIZE), key=_optimum_key, lock=Lock())
def frontier_around(request: Request, progress: Progress = _no_progress) -> Frontier | None:
    """The frontier of the game with nothing fixed; None if its loss law has no unit."""
    return frontier_of(optimum_of(request), progress)


@cached(LRUCache(CACHE_SIZE), key=_optimum_key, lock=Lock())
def paper_plan(request: Request, progress: Progress = _no_progress) -> Plan | None:
    """The clients' response to the offer of the paper's parameters; None if the loss law has no unit."""
    progress(0.0)
    return paper_offer(optimum_of(request))


def surface_of(request: Request, progress: Progress = _no_progress) -> Surface:
    """The cost surface around the optimum, Algorithm 1's plan and a fixed payment."""
    optimum, fixed = optimum_of(request), request.values.payment
    high = right_edge(optimum, baseline_plan(request))
    if fixed is not None and fixed > high:
        high = max(fixed, optimum.game.payment_range[1])
    return _surface(request, high, progress)


@cached(LRUCache(CACHE_SIZE), key=lambda request, high, _: (_optimum_key(request), high), lock=Lock())
def _surface(request: Request, high: float, progress: Progress) -> Surface:
    optimum = optimum_of(request)
    payments, rates = offers(high, SURFACE_SHAPE)
    game = optimum.game.replace(clients=compress(optimum.game.clients, SURFACE_TYPES))
    costs = cost_surface(game, payments, rates, optimum.competition, progress, SURFACE_TOLERANCE)
    return Surface(payments, rates, costs)


def plan_json(request: Request) -> str:
    """The output of `dufl plan --json` for a request."""
    plan = plan_of(request)
    return to_json(summary(plan, baseline_of(plan)))


def trajectories_csv(plan: Plan) -> str:
    """Volume, collection and staleness as CSV: one line per client and round, up to `CSV_ROWS` lines."""
    rounds = plan.game.num_rounds
    first = slice(0, max(1, CSV_ROWS // rounds))
    clients = plan.game.clients.take(first)
    volume, collection = plan.trajectories_of(clients, first)
    stale = staleness(volume, plan.conservation_rate, clients.initial_staleness)

    def lines() -> Iterator[str]:
        yield "client,round,volume,collection,staleness"
        for k in range(clients.size):
            for t in range(rounds):
                yield f"{k},{t},{volume[t, k]:.10g},{collection[t, k]:.10g},{stale[t, k]:.10g}"

    return "\n".join(lines()) + "\n"


def warm_up(request: Request, progress: Progress = _no_progress) -> None:
    """Compute everything that the page shows first, which also compiles the kernels."""
    plan = plan_of(request, lambda share: progress(0.6 * share))
    plan.outcomes  # noqa: B018
    baseline_plan(request)
    frontier_around(request)
    paper_plan(request)
    surface_of(request, lambda share: progress(0.7 + 0.3 * share))
