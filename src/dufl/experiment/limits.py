"""Limits of clients, one value per client: full buffers, and who takes part.

A value is there only if it says something: full buffers if a client has a capacity, participation if it is
voluntary. So nothing changes for the paper's clients.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.game.parameters import Game
from dufl.game.plan import Plan
from dufl.game.voluntary import Mask

LISTED = 5000  # clients up to which a summary lists them one by one
Columns = dict[str, npt.NDArray[Any]]


def has_capacities(plan: Plan) -> bool:
    """Whether the buffer of some client can be full."""
    return bool(np.isfinite(plan.game.clients.capacity).any())


def joined(game: Game, takes_part: Mask | None) -> Game:
    """The game of those who take part: all others have multiplicity 0."""
    if takes_part is None:
        return game
    return game.replace(clients=game.clients.weighted(game.clients.multiplicity * takes_part))


def taking_part(plan: Plan) -> npt.NDArray[np.intp]:
    """The clients that take part."""
    return np.flatnonzero(np.ones(plan.game.clients.size) if plan.takes_part is None else plan.takes_part)


def limit_columns(plan: Plan) -> Columns:
    """Values of every client: `full_rounds`, `shadow_price`, `takes_part` and `keeping_cost`.

    Keeping a client that takes part costs nothing.
    """
    columns: Columns = {}
    if has_capacities(plan):
        found = plan.certificate
        columns |= {"full_rounds": found.full_rounds, "shadow_price": found.shadow_price}
    if plan.takes_part is not None:
        cost = np.zeros(plan.game.clients.size)
        if plan.keeping is not None:
            cost[plan.keeping.clients] = plan.keeping.cost
        columns |= {"takes_part": plan.takes_part, "keeping_cost": cost}
    return columns


def limits_summary(plan: Plan) -> dict[str, Any]:
    """The values in plain numbers: counts, and lists of up to `LISTED` clients."""
    columns, facts = limit_columns(plan), dict[str, Any]()
    if has_capacities(plan):
        facts["full_clients"] = int((columns["full_rounds"] > 0).sum())
        facts["largest_shadow_price"] = float(columns["shadow_price"].max())
    if plan.takes_part is not None:
        facts["staying_away"] = plan.staying_away
        facts["participation_gain"] = plan.certificate.participation_gain
        facts["keeping_estimated"] = bool(plan.keeping and plan.keeping.estimated)
    if plan.game.clients.size <= LISTED:
        facts |= {name: values.tolist() for name, values in columns.items()}
    return facts
