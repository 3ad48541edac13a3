"""A policy that plans again: on a schedule, or when measurements leave the predicted interval.

    after every m rounds:  update the loss law with what the run has measured (`dufl.game.update`)
                           solve the remaining game from the present volumes and staleness
                           follow the new plan, if it costs less than the old offer there

All of it follows from the records. So a resumed run continues with the same plan, bit for bit: the
offers are in the records, and the clients' response to an offer is unique.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dufl.errors import InputError
from dufl.game.dynamics import Array, collection
from dufl.game.loss import PARAMETERS
from dufl.game.parameters import Game, Offer
from dufl.game.plan import Plan
from dufl.game.prediction import has_unit
from dufl.game.remaining import LEAST_ROUNDS, Choice, remaining_game, replan, response
from dufl.learning.federation import Record, Replan
from dufl.learning.policies import Planned
from dufl.learning.tracking import Stage, compared_blocks, observations, updated_law
from dufl.plugins import Spec, describe

Every = int | Literal["drift"]
KEY = "leader.replan_every"


class Replanned:
    """Follows a plan, and then each new plan from its first round on.

    Unlike other policies it has state: the plans so far. `review` adds one, and `follow` restores them.

    Args:
        plan: the plan of the whole run.
        seed: see `Planned`.
        every: after how many rounds to plan again, or "drift".
        solve: solves a remaining game.
    """

    def __init__(self, plan: Plan, seed: int, every: Every, solve: Callable[[Game], Plan]) -> None:
        self.plan = plan
        self.stages = [Stage(0, plan)]
        self._seed, self._every, self._solve = seed, every, solve
        self._steps = [Planned(plan, seed)]

    def __repr__(self) -> str:
        return f"Replanned({self.plan!r}, every={self._every!r})"

    def payment(self, round: int) -> float:
        """R of the plan of the round."""
        return self._at(round).payment(round)

    def size(self, client: int) -> int:
        """D_k(0), rounded to an integer."""
        return self._steps[0].size(client)

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """θ·D_k(t) and Δ_k(t), rounded to integers."""
        return self._at(round).step(client, round, size)

    def planned_staleness(self, round: int) -> float:
        """S(t)."""
        return self._at(round).planned_staleness(round)

    def _at(self, round: int) -> Planned:
        return next(steps for steps in reversed(self._steps) if steps.first_round <= round)

    def follow(self, records: Sequence[Record]) -> None:
        """Follow the plans that are in the records of a run."""
        for stage in stages_of(self.plan, records)[1:]:
            self._add(stage)

    def _add(self, stage: Stage) -> None:
        self.stages.append(stage)
        self._steps.append(Planned(stage.plan, self._seed, stage.first_round))

    def review(
        self, records: Sequence[Record], held: Callable[[], tuple[list[int], list[int]]]
    ) -> Replan | None:
        """Plan the remaining rounds again, if it is time to.

        Args:
            records: of all rounds so far.
            held: the number of samples of every client in the next round, and the sum of their ages.
        """
        if not self._is_due(records):
            return None
        volumes, ages = held()
        if not sum(volumes):
            return None
        game = _remaining(self.plan.game, records, volumes, sum(ages) / sum(volumes))
        choice = replan(game, self.stages[-1].plan.offer, self.plan.competition, self._solve)
        if choice is None:
            return None
        self._add(Stage(len(records), choice.plan))
        return _event(choice, len(observations(self.plan.game, records)), self._every == "drift")

    def _is_due(self, records: Sequence[Record]) -> bool:
        over = len(records)
        if not 0 < over <= self.plan.game.num_rounds - LEAST_ROUNDS or self.stages[-1].first_round == over:
            return False
        if self._every != "drift":
            return over % self._every == 0
        blocks = compared_blocks(self.stages, records)
        return bool(blocks) and blocks[-1].rounds.stop == over and not blocks[-1].inside


def stages_of(plan: Plan, records: Sequence[Record]) -> list[Stage]:
    """The plans that a run followed, from its records."""
    stages = [Stage(0, plan)]
    for record in records:
        if record.replan is not None:
            game = _remaining(plan.game, records[: record.round], record.volumes, record.mean_age)
            offer = Offer(payment=record.replan.payment, conservation_rate=record.replan.conservation_rate)
            stages.append(Stage(record.round, response(game, offer, plan.competition, certified=False)))
    return stages


@dataclass(frozen=True, eq=False)
class Course:
    """What was planned for every round of a run, by the plan that it followed then.

    Attributes:
        total_volume: φ(t).
        mean_staleness: S(t).
        collection: of all clients, in every round but the last.
    """

    total_volume: Array
    mean_staleness: Array
    collection: Array


def course_of(plan: Plan, records: Sequence[Record]) -> Course:
    """The planned totals of a run; those of the plan if it was never planned again."""
    parts = (plan.total_volume, plan.mean_staleness, collection(plan.total_volume, plan.conservation_rate))
    total, aged, joined = (np.array(part) for part in parts)
    for stage in stages_of(plan, records)[1:]:
        first, new = stage.first_round, stage.plan
        total[first:], aged[first:] = new.total_volume, new.mean_staleness
        joined[first:] = collection(new.total_volume, new.conservation_rate)
    return Course(total, aged, joined)


def following(plan: Plan, records: Sequence[Record], seed: int) -> Planned | Replanned:
    """The policy that a run with these records followed."""
    if all(record.replan is None for record in records):
        return Planned(plan, seed)
    policy = Replanned(plan, seed, "drift", lambda _: plan)
    policy.follow(records)
    return policy


def _remaining(game: Game, records: Sequence[Record], volumes: Sequence[int], mean_age: float) -> Game:
    """The remaining game after some rounds, as the updated law sees it."""
    law, before = updated_law(game, records), [record.total_volume for record in records]
    return remaining_game(game, len(records), volumes, mean_age, law, before=before)


def _event(choice: Choice, number: int, drift: bool) -> Replan:
    plan, old = choice.plan, choice.old
    law = plan.game.loss
    return Replan(
        payment=plan.payment,
        conservation_rate=plan.conservation_rate,
        old_payment=old.payment,
        old_conservation_rate=old.conservation_rate,
        cost=plan.server_cost,
        old_cost=old.server_cost,
        law=dict(zip(PARAMETERS, law.parameters.tolist(), strict=True)),
        observations=number,
        losing_clients=plan.certificate.losing_clients,
        drift=drift,
    )


def check_replanning(every: Every, policy: Spec, game: Game) -> None:
    """Raise an error if a run cannot be planned again."""
    if policy != "dufl":
        raise InputError.of(
            KEY, "left out unless policy is 'dufl'", every, text=f"policy {describe(policy)!r}"
        )
    if game.participation == "voluntary":
        rule = "left out if participation is 'voluntary': clients choose once, before the first round"
        raise InputError.of(KEY, rule, every)
    if not has_unit(game.loss):
        rule = "left out unless game.loss is a law in a unit: run `dufl calibrate` first"
        raise InputError.of(KEY, rule, every, text="no such law")
    most = game.num_rounds - LEAST_ROUNDS
    if every != "drift" and every > most:
        rule = f"at most {most}, so that {LEAST_ROUNDS} of the {game.num_rounds} rounds are left"
        raise InputError.of(KEY, rule, every)
