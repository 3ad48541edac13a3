"""The plans behind some runs, and what they are compared with, from what the run directories hold."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dufl.experiment.agreement import DEAL, Agreement, read_agreement
from dufl.experiment.config import Experiment
from dufl.experiment.plan_directory import read_plan_arrays
from dufl.experiment.planning import baseline_of
from dufl.experiment.predicted import Outcome, Tracking, mean_outcome, outcome_of, tracking_of
from dufl.experiment.stored import Group, Stored
from dufl.experiment.train import Run
from dufl.game.loss import DescribedLaw
from dufl.game.plan import Plan, equilibrium
from dufl.game.search import Progress
from dufl.learning.policies import no_update, parse_name
from dufl.learning.replanning import KEY as REPLAN

SHOWN = 4  # plans at most that are shown in full


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
    def endless(self) -> bool:
        """Whether it is a service, which makes one plan after the other: this one is of a first window."""
        return self.groups[0].config.game.horizon == "endless"

    @property
    def followers(self) -> list[Group]:
        """The groups that follow the plan."""
        return [group for group in self.groups if group.policy == "dufl"]

    @property
    def law_known(self) -> bool:
        """Whether costs of offers can be computed: a user's own law is only described in a run directory."""
        return not isinstance(self.plan.game.loss, DescribedLaw)

    @property
    def outcomes(self) -> list[tuple[float, Outcome]]:
        """Payment per round, and what was predicted and measured, of every run that follows the plan."""
        runs = [run for group in self.followers for run in group.runs if not self.endless]
        known = [(run, outcome_of(self.plan, run.records)) for run in runs]
        return [(sum(r.payment for r in run.records) / len(run.records), o) for run, o in known if o]

    @cached_property
    def tracked(self) -> list[tuple[Run, Tracking]]:
        """The runs that follow the plan, with what was predicted and measured round by round."""
        if self.replanned or self.endless:
            return []
        runs = [run for group in self.followers for run in group.runs]
        known = [(run, tracking_of(self.plan, run.records)) for run in runs]
        return [(run, tracking) for run, tracking in known if tracking is not None]

    @property
    def outcome(self) -> Outcome | None:
        """What was predicted, and the mean of what the runs that follow the plan measured."""
        return mean_outcome([outcome for _, outcome in self.outcomes])

    @property
    def is_negotiated(self) -> bool:
        """Whether it was found by asking clients whose costs stayed private."""
        return any(is_negotiated(stored) for group in self.groups for stored in group.every)

    def followed_by(self, group: Group) -> Plan | None:
        """The plan that a group of these follows; none if its policy follows none, or if it has many."""
        if self.endless:
            return None
        if group.policy == "static":
            return _stored_plan(group.every) or no_update(self.plan.game)
        if group.policy == "dufl" or parse_name(group.policy) is None:
            return self.plan if group.policy == "dufl" else None
        return _agreed_plan(group.every) or _stored_plan(group.every)


def plannings(groups: Sequence[Group], progress: Progress = lambda _: None) -> list[Planning]:
    """The plans behind the groups, in their order; groups with the same game share one."""
    together: dict[str, list[Group]] = {}
    for group in groups:
        together.setdefault(_key(group), []).append(group)
    plans = []
    for part in together.values():
        plans.append(_planning(part))
        progress(len(plans) / len(together))
    return plans


def planned_runs(group: Group) -> list[Run]:
    """The runs of a group to show, on recorded data with the plans that they followed."""
    stored = [one for one in group.every if one.run in group.runs]
    return [replace(s.run, plan=_stored_plan([s])) if s.run.recorded else s.run for s in stored]


def _key(group: Group) -> str:
    """What a plan depends on."""
    sections = ("game.", "clients.", "leader.")
    every = group.every[0].settings
    settings = {key: v for key, v in every.items() if key.startswith(sections) and key != REPLAN}
    negotiated = [_agreed(stored) for stored in group.every if is_negotiated(stored)]
    offers = [deal.offer.model_dump() for deal in negotiated[:1] if deal and not deal.first_round]
    return json.dumps([settings, offers], sort_keys=True)


def _planning(groups: list[Group]) -> Planning:
    runs = [stored for group in groups for stored in group.every]
    deals = [deal for deal in map(_agreed, runs) if deal]
    following = [stored for stored in runs if stored.run.experiment.policy == "dufl"]
    plan = _agreed_plan(following) or _stored_plan(following) or _solved(groups[0].config)
    again = max((deal.first_round for deal in deals), default=0)
    # Run directories do not hold Algorithm 1's plan, which the report compares with: it is solved here.
    return Planning(plan, baseline_of(plan), groups, again)


def _solved(experiment: Experiment) -> Plan:
    """The plan that nobody followed; without a law to plan with, the one that pays nothing."""
    game = experiment.game.replace(horizon="finite")
    return no_update(game) if isinstance(game.loss, DescribedLaw) else experiment.solve_game(game)


def _stored_plan(runs: Sequence[Stored]) -> Plan | None:
    """The plan in a run directory, without solving it again."""
    for stored in runs:
        if "plan.npz" in stored.place.manifest.files and _agreed(stored) is None:
            experiment = stored.run.experiment
            leader = experiment.leader
            return read_plan_arrays(stored.place.manifest, experiment.game, leader.method, leader.competition)
    return None


def _agreed_plan(runs: Sequence[Stored]) -> Plan | None:
    """The clients' equilibrium for what was agreed on Flower, where only the offer is stored."""
    known = [(stored.run.experiment, deal) for stored in runs if (deal := _agreed(stored))]
    deals = [(one, deal) for one, deal in known if not deal.first_round or one.game.horizon == "endless"]
    if not deals:
        return None
    config, offer = deals[0][0], deals[0][1].offer
    plan = equilibrium(
        config.game.replace(horizon="finite"),
        payment=offer.payment,
        conservation_rate=offer.conservation_rate,
        competition=config.leader.competition,
    )
    return replace(plan, method=config.leader.method)


def is_on_flower(stored: Stored) -> bool:
    """Whether it is a run on Flower."""
    return (stored.folder / DEAL).exists()


def is_negotiated(stored: Stored) -> bool:
    """Whether clients were asked for more than their consent."""
    deal = _agreed(stored)
    return deal is not None and deal.negotiated


def _agreed(stored: Stored) -> Agreement | None:
    game = stored.run.experiment.game
    return read_agreement(stored.folder, game.num_rounds, game.horizon == "endless")
