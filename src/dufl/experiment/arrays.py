"""A plan as named arrays."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.experiment.files import replacing
from dufl.game.plan import Plan

MANY = 20_000_000  # client-rounds above which trajectories are written only if asked for


def write_plan_arrays(plan: Plan, path: Path, trajectories: bool | None = None) -> None:
    """Write `plan.npz`; with the trajectories of every client, unless there are very many."""
    size = plan.game.num_rounds * plan.game.clients.size
    arrays: dict[str, Any] = {
        "payment": plan.payment,
        "conservation_rate": plan.conservation_rate,
        "total_volume": plan.total_volume,
        "announced_volume": plan.equilibrium.announced_volume,
        "mean_staleness": plan.mean_staleness,
        "utility": plan.outcomes.utility,
        "collected": plan.outcomes.collected,
    }
    if trajectories if trajectories is not None else size <= MANY:
        arrays |= {
            "volume": plan.volume,
            "collection": plan.collection,
            "staleness": plan.staleness,
        }
    if plan.trace is not None:
        arrays |= {
            "trace_payment": plan.trace.payment,
            "trace_conservation_rate": plan.trace.conservation_rate,
            "trace_cost": plan.trace.cost,
            "trace_total_volume": plan.trace.total_volume,
        }
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
