"""The plan behind some runs, and what it is compared with, from what their run directories hold."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dufl.errors import InputError
from dufl.experiment.files import read_bytes
from dufl.experiment.plan_directory import read_offer
from dufl.experiment.planning import baseline_of
from dufl.experiment.stored import Group, Stored
from dufl.game.compression import compress
from dufl.game.dynamics import Array
from dufl.game.leader import cost_surface
from dufl.game.plan import Offer, Plan, equilibrium
from dufl.game.search import Progress
from dufl.learning.policies import no_update
from dufl.report.plan_figures import offers, right_edge

SURFACE = (21, 17)  # payments, conservation rates
TYPES = 256  # of clients on which the surface is worked out; with fewer clients it is exact
SHOWN = 4  # plans shown in full at most
_DEAL = ("payment", "conservation_rate", "first_round", "phases")


@dataclass(frozen=True, eq=False)
class Planning:
    """A federation's plan, and the runs of that federation.

    Attributes:
        plan: the server's.
        baseline: Algorithm 1's for the same game; None if there is nothing to compare.
        groups: the runs.
        replanned: the round from which on it was planned again; 0 if it never was.
    """

    plan: Plan
    baseline: Plan | None
    groups: list[Group]
    replanned: int = 0

    @property
    def followers(self) -> list[Group]:
        """The groups that follow the plan."""
        return [found for found in self.groups if found.policy == "dufl"]

    def followed_by(self, group: Group) -> Plan | None:
        """The plan that a group of these follows; none if its policy is a user's own."""
        if group.policy == "static":
            return no_update(self.plan.game)
        return self.plan if group.policy == "dufl" else None

    def surface(self, progress: Progress = lambda _: None) -> tuple[Array, Array, Array]:
        """Payments, conservation rates, and the server's cost at every pair of them."""
        game = self.plan.game
        payments, rates = offers(right_edge(self.plan, self.baseline), SURFACE)
        few = game.replace(clients=compress(game.clients, TYPES))
        return payments, rates, cost_surface(few, payments, rates, self.plan.competition, progress)


def plannings(groups: Sequence[Group], progress: Progress = lambda _: None) -> list[Planning]:
    """The plans behind the groups, in their order; groups with the same game share one."""
    together: dict[str, list[Group]] = {}
    for found in groups:
        together.setdefault(_key(found), []).append(found)
    made = []
    for part in together.values():
        made.append(_planning(part))
        progress(len(made) / len(together))
    return made


def _key(group: Group) -> str:
    """What a plan depends on."""
    sections = ("game.", "clients.", "leader.")
    told = {key: value for key, value in group.every[0].settings.items() if key.startswith(sections)}
    negotiated = [_offer(stored) for stored in group.every if is_negotiated(stored)]
    return json.dumps([told, negotiated[:1]], sort_keys=True)


def _planning(groups: list[Group]) -> Planning:
    config = groups[0].config
    runs = [stored for found in groups for stored in found.every]
    offer = next(filter(None, map(_offer, runs)), None)
    deals = [deal for deal in map(_agreed, runs) if deal]
    again = max((int(deal["first_round"]) for deal in deals), default=0)
    if offer is None:
        plan = config.solve()
    else:
        given = equilibrium(
            config.game,
            payment=offer[0],
            conservation_rate=offer[1],
            competition=config.leader.competition,
        )
        plan = replace(given, method=config.leader.method)
    return Planning(plan, baseline_of(plan), groups, again)


def _offer(stored: Stored) -> tuple[float, float] | None:
    """R and θ as the run was given them, if its directory says so."""
    if stored.run.experiment.policy != "dufl":
        return None
    deal = _agreed(stored)
    if deal is not None:
        return None if deal["first_round"] else (deal["payment"], deal["conservation_rate"])
    if "plan.npz" not in stored.place.manifest.files:
        return None
    offer = read_offer(stored.place.manifest)
    return offer.payment, offer.conservation_rate


def is_on_flower(stored: Stored) -> bool:
    """Whether it is a run on Flower."""
    return (stored.folder / "deal.json").exists()


def is_negotiated(stored: Stored) -> bool:
    """Whether clients were asked for more than their consent."""
    deal = _agreed(stored)
    return deal is not None and deal["phases"] > 1


def _agreed(stored: Stored) -> dict[str, float] | None:
    """What server and clients agreed on in a run on Flower."""
    if not is_on_flower(stored):
        return None
    path = stored.folder / "deal.json"
    try:
        deal = json.loads(read_bytes(path))
        found = {name: float(deal[name]) for name in _DEAL}
        Offer(payment=found["payment"], conservation_rate=found["conservation_rate"])
        if not (0 <= found["first_round"] < stored.run.experiment.game.num_rounds and found["phases"] >= 0):
            raise InputError.of("first_round and phases", "a round and a number >= 0", found)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as fault:
        raise InputError(f"{path} must be what server and clients agreed on: {fault!r}") from None
    return found
