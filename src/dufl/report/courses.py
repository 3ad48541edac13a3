"""What is drawn of a plan over the rounds: collection, volume and staleness, of clients and on average."""

from typing import NamedTuple

from dufl.game.dynamics import Array, staleness
from dufl.game.plan import Plan

SHOWN = 400  # clients at most, evenly chosen


class Course(NamedTuple):
    """A quantity over the rounds.

    Attributes:
        each: of some clients, in columns.
        mean: over all clients.
    """

    each: Array
    mean: Array


def courses(plan: Plan) -> tuple[Course, Course, Course]:
    """Δ(t), D(t) and S(t)."""
    clients = plan.game.clients
    some = clients.take(slice(None, None, -(-clients.size // SHOWN)))
    volume, collection = plan.trajectories_of(some)
    aged = staleness(volume, plan.conservation_rate, some.initial_staleness)
    total, people = plan.total_volume, clients.num_clients
    collected = (total[1:] - plan.conservation_rate * total[:-1]) / people
    return (
        Course(collection[:-1], collected),
        Course(volume, total / people),
        Course(aged, plan.mean_staleness),
    )
