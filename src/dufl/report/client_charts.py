"""What each client is paid and what is left after its costs, as planned and as measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.experiment.train import Run
from dufl.game.dynamics import Array
from dufl.game.plan import Plan
from dufl.game.population import Clients
from dufl.game.utility import client_cost, client_payment
from dufl.report.courses import SHOWN
from dufl.report.data_charts import collected
from dufl.report.figures import BLUE, GREEN, ORANGE
from dufl.report.interactive import Chart, Column, Trace, axes, line, plain
from dufl.report.plan_charts import EACH

Drawn = tuple[list[Trace], dict[str, Any]]
Who = npt.NDArray[np.int64]

KEPT = 5000  # clients that are looked at


@dataclass(frozen=True, eq=False)
class Earnings:
    """What some clients earn over the rounds that were played; from the one who was to earn most.

    Attributes:
        client: who; of very many, evenly chosen ones.
        of: how many clients there are.
        paid: as planned.
        utility: what is left of it after the client's costs, as planned.
        measured_paid: by the volumes in the records, the mean over the runs.
        measured_utility: likewise.
    """

    client: Who
    of: int
    paid: Array
    utility: Array
    measured_paid: Array
    measured_utility: Array

    @property
    def columns(self) -> Mapping[str, Column]:
        """As a table."""
        names = ("client", "paid", "measured_paid", "utility", "measured_utility")
        return {name: getattr(self, name) for name in names}


def earnings(plan: Plan, runs: Sequence[Run]) -> Earnings:
    """What clients earn if they follow a plan, and what they earned in some runs that did."""
    everyone = plan.game.clients
    every = slice(None, None, -(-everyone.size // KEPT))
    which, some = np.arange(everyone.size, dtype=np.int64)[every], everyone.take(every)
    rounds = min(len(run.records) for run in runs)
    volume = plan.trajectories_of(some)[0][:rounds]
    payment = np.full(rounds, plan.payment)
    planned = _earned(plan, some, payment, volume, plan.total_volume[:rounds])
    each = [_measured(plan, some, which, run, rounds) for run in runs]
    found = np.stack([*planned, *np.mean(each, axis=0)])
    order = np.argsort(-planned[1], kind="stable")
    return Earnings(which[order], everyone.size, *found[:, order])


def _measured(plan: Plan, some: Clients, which: Who, run: Run, rounds: int) -> tuple[Array, Array]:
    records = run.records[:rounds]
    held = np.zeros((rounds, which.size))
    for t, record in enumerate(records):
        volumes = np.asarray(record.volumes, float)
        known = which < volumes.size
        held[t, known] = volumes[which[known]]
    payment = np.array([record.payment for record in records])
    total = np.array([record.total_volume for record in records], float)
    return _earned(plan, some, payment, held, total)


def _earned(plan: Plan, some: Clients, payment: Array, volume: Array, total: Array) -> tuple[Array, Array]:
    """Σ_t P_k(t), and what is left of it after costs; nothing is collected after the last round."""
    paid = client_payment(1.0, volume, total) * payment[:, None]
    fresh = np.zeros_like(volume)
    fresh[:-1] = collected(volume.T, plan.conservation_rate).T
    left = paid - client_cost(some, volume, fresh)
    return paid.sum(axis=0), left.sum(axis=0)


def earnings_charts(found: Earnings) -> list[Chart]:
    """Payment and utility of the clients, planned and measured."""
    many = (
        f" Drawn from {found.client.size:,} of {found.of:,} clients." if found.client.size < found.of else ""
    )
    return [
        _chart("paid", "What each client is paid", BLUE, found, found.paid, found.measured_paid, many),
        _chart(
            "utility",
            "What is left after its costs: utility",
            GREEN,
            found,
            found.utility,
            found.measured_utility,
            many,
        ),
    ]


def _chart(
    name: str, title: str, colour: str, found: Earnings, planned: Array, measured: Array, note: str
) -> Chart:
    if found.client.size <= EACH:
        traces, layout = _bars(found, planned, measured, colour)
    else:
        traces, layout = _lines(found, planned, measured, colour)
    data = {"client": found.client, "planned": planned, "measured": measured}
    return Chart(name, title, traces, layout, data, note.strip())


def _bars(found: Earnings, planned: Array, measured: Array, colour: str) -> Drawn:
    """A bar a client for the plan, and a mark for what came true."""
    who = [str(client) for client in found.client]
    hover = "%{y:,.2f}"
    bars = {"type": "bar", "name": "planned", "x": who, "y": plain(planned), "hovertemplate": hover}
    marks = {"type": "scatter", "mode": "markers", "name": "measured", "x": who, "y": plain(measured)}
    diamond = {"color": ORANGE, "symbol": "diamond", "size": 9, "line": {"color": "white", "width": 1}}
    layout = axes(
        "client, from the one who was to earn most",
        "money",
        yaxis={"tickformat": ",", "rangemode": "tozero"},
        xaxis={"type": "category"},
        bargap=0.35,
    )
    return [
        {**bars, "marker": {"color": colour, "opacity": 0.75}},
        {**marks, "marker": diamond, "hovertemplate": hover},
    ], layout


def _lines(found: Earnings, planned: Array, measured: Array, colour: str) -> Drawn:
    some = np.unique(np.linspace(0, found.client.size - 1, SHOWN).astype(int))
    share = 100 * (some + 0.5) / found.client.size
    marks = {"mode": "markers", "marker": {"color": ORANGE, "size": 4}}
    return [
        line("measured", share, measured[some], ORANGE, hovertemplate="%{y:,.2f}", **marks),
        line("planned", share, planned[some], colour, hovertemplate="%{y:,.2f}"),
    ], axes(
        "clients, from those who were to earn most (%)",
        "money",
        yaxis={"tickformat": ",", "rangemode": "tozero"},
    )
