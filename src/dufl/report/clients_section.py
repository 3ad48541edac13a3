"""The clients of the report: payment and utility of each, as planned and as measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.experiment.limits import Columns, limit_columns
from dufl.experiment.recorded import collected_by_client
from dufl.experiment.train import Run
from dufl.formatting import count, money, number
from dufl.game.dynamics import Array, collection
from dufl.game.plan import Plan
from dufl.game.population import Clients
from dufl.game.utility import client_cost, client_payment
from dufl.report.chart_spec import BLUE, GREEN, ORANGE, Axis, Chart, Series
from dufl.report.page import Block, Cell, Charts, Heading, Paragraph, Section, Table
from dufl.report.plan_charts import client_axis
from dufl.report.planning import SHOWN, Planning, planned_runs

KEPT = 5000  # clients at most whose payment and utility are computed
ROWS = 100  # of the table of clients at most
_LIMITS: dict[str, tuple[str, Callable[[Any], str]]] = {  # heads of the table, and how a value is written
    "full_rounds": ("full rounds", lambda value: f"{value:,}"),
    "shadow_price": ("shadow price", lambda value: number(float(value))),
    "takes_part": ("takes part", lambda value: "yes" if value else "no"),
    "keeping_cost": ("cost of keeping", lambda value: money(float(value))),
}


@dataclass(frozen=True, eq=False)
class Earnings:
    """Payment and utility of some clients over the rounds played, by descending planned utility.

    Attributes:
        client: their numbers; of very many clients, evenly chosen ones.
        of: the number of clients there are.
        payment: Σ_t P_k(t), as planned.
        utility: the payment less the client's costs, as planned.
        measured_payment: from the volumes in the records, the mean over the runs.
        measured_utility: likewise.
        limits: full rounds, shadow prices and who takes part, where they say something; see `limit_columns`.
    """

    client: npt.NDArray[np.int64]
    of: int
    payment: Array
    utility: Array
    measured_payment: Array
    measured_utility: Array
    limits: Columns = field(default_factory=dict)


def clients_section(plannings: Sequence[Planning]) -> list[Section]:
    """Payment and utility of every client, one part per plan; nothing where no plan is followed."""
    blocks = [
        block for place, one in enumerate(plannings[:SHOWN], 1) for block in _part(one, place, plannings)
    ]
    return [Section("Clients", "Clients: payment and utility", blocks)] if blocks else []


def _part(planning: Planning, place: int, plannings: Sequence[Planning]) -> Iterator[Block]:
    followers = planning.followers or [group for group in planning.groups if group.policy == "static"]
    plan = planning.followed_by(followers[0]) if followers else None
    if plan is None:
        return
    runs = [run for group in followers for run in planned_runs(group)]
    earned = earnings(plan, runs)
    name, prefix = (f"Plan {place}", f"plan_{place}_") if len(plannings) > 1 else ("", "")
    if name:
        yield Heading(name)
    yield Paragraph(_summary(earned, min(group.rounds for group in followers), len(runs)))
    yield Charts([replace(chart, name=prefix + chart.name) for chart in earnings_charts(earned)])
    yield _table(earned, f"{name}: " if name else "")


def earnings(plan: Plan, runs: Sequence[Run]) -> Earnings:
    """What clients earn if they follow a plan, and what they earned in runs that did."""
    clients = plan.game.clients
    every = slice(None, None, -(-clients.size // KEPT))
    which, some = np.arange(clients.size, dtype=np.int64)[every], clients.take(every)
    rounds = min(len(run.records) for run in runs)
    volume = plan.trajectories_of(some, every)[0][:rounds]
    payment = np.full(rounds, plan.payment)
    planned = _earned(plan, some, payment, volume, plan.total_volume[:rounds])
    measured = np.mean([_measured(plan, some, which, run, rounds) for run in runs], axis=0)
    order = np.argsort(-planned[1], kind="stable")
    paid, earned, measured_payment, measured_utility = (v[order] for v in (*planned, *measured))
    limits = {name: column[which[order]] for name, column in limit_columns(plan).items()}
    values = paid, earned, measured_payment, measured_utility
    return Earnings(which[order], clients.size, *values, limits)


def _measured(
    plan: Plan, some: Clients, which: npt.NDArray[np.int64], run: Run, rounds: int
) -> tuple[Array, Array]:
    records = run.records[:rounds]
    held = np.zeros((rounds, which.size))
    for t, record in enumerate(records):
        volumes = np.asarray(record.volumes, float)
        known = which < volumes.size
        held[t, known] = volumes[which[known]]
    payment = np.array([record.payment for record in records])
    total = np.array([record.total_volume for record in records], float)
    joined = None
    if run.recorded and run.plan is not None and which.max() < len(records[0].volumes):
        seed = run.experiment.training.seed
        joined = np.array(collected_by_client(records, run.plan, seed, which.tolist()), float)
    return _earned(plan, some, payment, held, total, joined)


def _earned(
    plan: Plan, some: Clients, payment: Array, volume: Array, total: Array, joined: Array | None = None
) -> tuple[Array, Array]:
    """Σ_t P_k(t) and U_k; nothing is collected after the last round.

    `joined` is what was collected in the other rounds, if that is known better than from the volumes.
    """
    paid = client_payment(1.0, volume, total) * payment[:, None]
    collected = np.zeros_like(volume)
    if len(volume) > 1:
        collected[:-1] = collection(volume, plan.conservation_rate) if joined is None else joined
    utility = paid - client_cost(some, volume, collected)
    return paid.sum(axis=0), utility.sum(axis=0)


def earnings_charts(earned: Earnings) -> list[Chart]:
    """Payment and utility of the clients, planned and measured."""
    size = earned.client.size
    note = f"{size:,} of {earned.of:,} clients, evenly chosen." if size < earned.of else ""
    return [
        _chart("payment", "Payment per client", BLUE, earned, earned.payment, earned.measured_payment, note),
        _chart("utility", "Utility per client", GREEN, earned, earned.utility, earned.measured_utility, note),
    ]


def _chart(
    name: str, title: str, color: str, earned: Earnings, planned: Array, measured: Array, note: str
) -> Chart:
    """Bars for the plan and marks for the measurement; of many clients, a line and points."""
    x, positions, some = client_axis(earned.client)
    plan = Series("planned", positions, planned[some], color, "bar", opacity=0.75, hover=",.2f")
    marks = Series("measured", positions, measured[some], ORANGE, "points", marker="diamond", hover=",.2f")
    series = [plan, marks] if x.names else [marks, replace(plan, kind="line", opacity=1.0)]
    y = Axis(f"{name} over all rounds", from_zero=True)
    data = {"client": earned.client, "planned": planned, "measured": measured}
    return Chart(name, title, x, y, series, data, note)


def _summary(earned: Earnings, rounds: int, runs: int) -> str:
    negative = int((earned.measured_utility < 0).sum())
    mean = "" if runs == 1 else f" Measured values are the mean of {runs} runs."
    return (
        f"Payment over {count(rounds, 'round')}, shared by the volume that each client holds, and utility: "
        "the payment less the costs of collecting and training. Clients with negative utility: "
        f"{negative:,} of {earned.client.size:,}.{mean}"
    )


def _table(earned: Earnings, prefix: str) -> Table:
    """The clients; of many, evenly chosen ones."""
    total = earned.client.size
    few = min(total, ROWS)
    places = [round(i * (total - 1) / max(few - 1, 1)) for i in range(few)]
    columns = (earned.payment, earned.measured_payment, earned.utility, earned.measured_utility)
    limits = [(*_LIMITS[name], column) for name, column in earned.limits.items()]
    rows: list[list[Cell]] = [
        [
            (f"{earned.client[i]}", float(earned.client[i])),
            *((money(column[i]), float(column[i])) for column in columns),
            *((cell(column[i]), float(column[i])) for _, cell, column in limits),
        ]
        for i in places
    ]
    part = "" if few == earned.of else f"; {few:,} of {earned.of:,} clients, evenly chosen"
    heads = ("client", "payment, planned", "payment, measured", "utility, planned", "utility, measured")
    more = tuple(head for head, _, _ in limits)
    return Table(f"{prefix}Payment and utility per client over all rounds{part}", heads + more, rows)
