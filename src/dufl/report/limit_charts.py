"""Full buffers and clients that stay away, on the charts of a plan; charts without them stay as they are."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dufl.experiment.limits import has_capacities, limit_columns
from dufl.formatting import count
from dufl.game.certificate import FULL
from dufl.game.plan import Plan
from dufl.report.chart_spec import ORANGE, RED, Chart, Column, Series

Integers = npt.NDArray[np.intp]


def with_capacities(plan: Plan, chart: Chart, clients: Integers) -> Chart:
    """The chart of volumes with full buffers, and the capacity if all that are ever full have the same.

    Args:
        plan: the plan.
        chart: volumes over the rounds.
        clients: which are drawn one by one.
    """
    if not has_capacities(plan) or not plan.certificate.full_rounds.any():
        return chart
    full, capacity = plan.certificate.full_rounds > 0, plan.game.clients.capacity
    rounds, series = np.arange(plan.game.num_rounds), list(chart.series)
    if (some := clients[full[clients]]).size:
        series.insert(1, _full_parts(plan, some, rounds))
    if np.ptp(capacity[full]) == 0:
        level = np.full(rounds.size, capacity[full][0])
        series.append(Series("capacity", rounds, level, RED, width=1.5, dash="dash"))
    note = f"{int(full.sum()):,} of {count(full.size, 'client')} with a full buffer in some round."
    return replace(chart, series=series, note=note)


def _full_parts(plan: Plan, clients: Integers, rounds: npt.NDArray[np.int64]) -> Series:
    """The volumes of clients in the rounds in which they are full: one line with gaps."""
    chosen = plan.game.clients.take(clients)
    held = plan.trajectories_of(chosen)[0]
    full = np.where(held >= chosen.capacity * (1 - FULL), held, np.nan)
    values = np.vstack([full, np.full((1, clients.size), np.nan)]).T.ravel()
    times = np.tile(np.append(rounds, rounds[-1]), clients.size)
    return Series("full buffer", times, values, ORANGE, width=2.5, hover="")


def with_limits(plan: Plan, chart: Chart, clients: Integers) -> Chart:
    """The chart of utilities with marks at clients that are ever full, and how many stay away.

    Args:
        plan: the plan.
        chart: utilities; the first series is that of the plan.
        clients: in the order of the chart.
    """
    limits, series = limit_columns(plan), list(chart.series)
    shown = ("full_rounds", "shadow_price")
    data: dict[str, Column] = {name: limits[name][clients] for name in shown if name in limits}
    if chart.x.names and data and (full := np.flatnonzero(data["full_rounds"]).tolist()):
        x, y = ([column[i] for i in full] for column in (series[0].x, series[0].y))
        series.append(Series("full buffer in some round", x, y, RED, "points", marker="diamond"))
    verb = "stays" if plan.staying_away == 1 else "stay"
    note = f"{count(plan.staying_away, 'client')} {verb} away." if plan.staying_away else ""
    return replace(chart, series=series, data={**chart.data, **data}, note=note)
