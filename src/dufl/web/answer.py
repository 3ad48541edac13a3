"""What the page shows, worked out once and remembered: moving a field back costs nothing.

Everything takes a `progress`, which is called often. The page uses it to give way to a newer change.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar

from dufl.experiment.files import to_json
from dufl.experiment.planning import baseline_of, offered, summary
from dufl.game.compression import compress
from dufl.game.dynamics import Array, staleness
from dufl.game.leader import cost_surface
from dufl.game.plan import Plan, algorithm1_baseline
from dufl.game.search import Progress
from dufl.report.plan_charts import offers, right_edge
from dufl.web.choices import Question

GRID = (25, 17)  # payments and conservation rates of the surface
TYPES = 32  # of clients, for the surface of a large population
ROUGH = 1e-2  # the tolerance of its equilibria: an error of 1e-4 in the cost, which no eye sees
KEPT = 200  # answers
ROWS = 200_000  # in the file of trajectories

Result = TypeVar("Result")


def _ignore(_: float) -> None:
    """No progress is shown."""


@dataclass(frozen=True, eq=False)
class Surface:
    """The cost over payments (rows) and conservation rates (columns)."""

    payments: Array
    rates: Array
    costs: Array


class _Memory:
    """The last answers; the one that was not asked for longest is forgotten first."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, Lock()
        self._kept: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any, make: Callable[[], Result]) -> Result:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]  # type: ignore[no-any-return]
        made = make()  # outside the lock: others need not wait
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return made


_memory = _Memory(KEPT)


def plan_of(question: Question, progress: Progress = _ignore) -> Plan:
    """The plan of what is on the page, pins included."""

    def make() -> Plan:
        config, choices = question.config(), question.choices
        given = choices.payment is not None and choices.conservation_rate is not None
        return offered(config) if given else config.solve(progress)

    return _memory.get(("plan", _essential(question)), make)


def optimum_of(question: Question, progress: Progress = _ignore) -> Plan:
    """The plan with the least cost, with nothing pinned."""
    return plan_of(_stackelberg(question), progress)


def baseline_plan(question: Question, progress: Progress = _ignore) -> Plan | None:
    """Algorithm 1's plan, carried through to its fixed point, with nothing pinned."""
    free = _stackelberg(question)

    def make() -> Plan | None:
        game = free.config().game
        low, high = game.payment_range
        return algorithm1_baseline(game, question.choices.competition, progress) if low < high else None

    return _memory.get(("rival", free), make)


def surface_of(question: Question, progress: Progress = _ignore) -> Surface:
    """The cost around the optimum and Algorithm 1's point, wide enough for what is pinned."""
    free, pinned = _stackelberg(question), question.choices.payment
    best, baseline = optimum_of(question), baseline_plan(question)
    high = right_edge(best, baseline)
    if pinned is not None and pinned > high:
        high = max(pinned, best.game.payment_range[1])

    def make() -> Surface:
        payments, rates = offers(high, GRID)
        game = best.game.replace(clients=compress(best.game.clients, TYPES))
        costs = cost_surface(game, payments, rates, best.competition, progress, ROUGH)
        return Surface(payments, rates, costs)

    return _memory.get(("surface", free, high), make)


def plan_json(question: Question) -> str:
    """What `dufl plan --json` prints for the same."""
    plan = plan_of(question)
    return to_json(summary(plan, baseline_of(plan)))


def trajectories_csv(plan: Plan) -> str:
    """Every client's course, a line a client and round, for as many clients as fit into `ROWS` lines."""
    rounds = plan.game.num_rounds
    some = plan.game.clients.take(slice(0, max(1, ROWS // rounds)))
    volume, collection = plan.trajectories_of(some)
    aged = staleness(volume, plan.conservation_rate, some.initial_staleness)

    def lines() -> Iterator[str]:
        yield "client,round,volume,collection,staleness"
        for k in range(some.size):
            for t in range(rounds):
                yield f"{k},{t},{volume[t, k]:.10g},{collection[t, k]:.10g},{aged[t, k]:.10g}"

    return "\n".join(lines()) + "\n"


def warm_up(question: Question, progress: Progress = _ignore) -> None:
    """Work out everything the page will show first, so that its kernels are ready."""
    plan = plan_of(question, lambda share: progress(0.6 * share))
    plan.outcomes  # noqa: B018
    baseline_plan(question)
    surface_of(question, lambda share: progress(0.7 + 0.3 * share))


def _stackelberg(question: Question) -> Question:
    choices = replace(question.choices.unpinned, method="stackelberg")
    return _essential(Question(question.source, choices))


def _essential(question: Question) -> Question:
    """The question without what concerns Algorithm 1 only, where another leads."""
    if question.choices.method == "algorithm1":
        return question
    return replace(question, choices=replace(question.choices, search="bayesian", damping=0.0))
