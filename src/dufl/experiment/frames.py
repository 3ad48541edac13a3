"""Results as pandas data frames. pandas is imported when a frame is created."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dufl.errors import InputError
from dufl.experiment.recorded import FREE_SCORES, periods_of, times_of
from dufl.game.plan import Plan
from dufl.learning.federation import Record

if TYPE_CHECKING:
    import pandas


def make_frame(columns: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> "pandas.DataFrame":
    """A data frame from columns or rows."""
    try:
        import pandas
    except ImportError:
        raise InputError("data frames need pandas: pip install 'dufl[frames]'") from None
    return pandas.DataFrame(columns)


def records_frame(records: Sequence[Record]) -> "pandas.DataFrame":
    """One row per round. Custom metrics are separate columns; lists of clients are single values.

    Recorded data also has `time_begin`, `time_end`, `tested`, `no_change`, `majority` and `shortfall`.
    """
    periods = periods_of(records)
    hidden = {"metrics", "period", "shortfall", "replan"} - ({"shortfall"} if periods else set())
    rows = []
    for record in records:
        row = asdict(record)
        own = row["metrics"]
        rows.append({name: value for name, value in row.items() if name not in hidden} | own)
    frame = make_frame(rows)
    if periods:
        frame["time_begin"], frame["time_end"] = times_of(periods, "begin"), times_of(periods, "end")
        frame["tested"] = [period.samples for period in periods]
        for name in FREE_SCORES:
            frame[name] = [getattr(period, name) for period in periods]
    return frame


def plan_frame(plan: Plan) -> "pandas.DataFrame":
    """One row per round: the totals of a plan and the server's cost by term."""
    cost = plan.cost_by_term
    return make_frame(
        {
            "round": range(plan.game.num_rounds),
            "total_volume": plan.total_volume,
            "total_collection": (plan.collection * plan.game.clients.multiplicity).sum(axis=1),
            "mean_staleness": plan.mean_staleness,
            "payment": plan.payment,
            "cost_of_payment": cost.payment,
            "cost_of_volume": cost.volume,
            "cost_of_staleness": cost.staleness,
        }
    )
