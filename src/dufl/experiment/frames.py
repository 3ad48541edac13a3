"""Results as pandas data frames. pandas is imported when a frame is created."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dufl.errors import InputError
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
    """One row per round. Custom metrics are separate columns; lists of clients are single values."""
    rows = []
    for record in records:
        row = asdict(record)
        rows.append({**{name: value for name, value in row.items() if name != "metrics"}, **row["metrics"]})
    return make_frame(rows)


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
