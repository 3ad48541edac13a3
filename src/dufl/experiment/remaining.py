"""What is left of a run: the game from the present volumes and ages on, as its own records see it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dufl.errors import InputError
from dufl.experiment.config import Changes, Experiment
from dufl.experiment.limits import joined
from dufl.experiment.plan_directory import read_offer
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.train import Held, Run
from dufl.game.loss import PARAMETERS, PowerLaw
from dufl.game.parameters import Game, Offer
from dufl.game.remaining import Choice, remaining_game, replan
from dufl.game.search import Progress
from dufl.learning.federation import Record
from dufl.learning.tracking import course_at, observations, updated_law


def remaining_of(run: Run, num_rounds: int | None = None) -> Game:
    """The game that is left after the last round of a run, or a game of `num_rounds` further rounds.

    After the last round nothing is collected. In further rounds, what the clients hold is one round older.
    """
    game = run.experiment.game
    over, (volumes, ages) = _held(run)
    if over >= game.num_rounds and num_rounds is None:
        rule = "given for a run that has finished: there are no rounds left"
        raise InputError.of("num_rounds", rule, None, text="nothing")
    law = _onwards(updated_law(_playing(run), run.records[:over]), game.num_rounds, over, num_rounds)
    volume = np.array(volumes, np.float64)
    staleness = np.divide(ages, volume, out=np.ones_like(volume), where=volume > 0)
    older = 1.0 if over >= game.num_rounds else 0.0
    before = [record.total_volume for record in run.records[:over]]
    return remaining_game(game, over, volume, staleness + older, law, num_rounds, before)


def _playing(run: Run) -> Game:
    """The game of those who took part in a run: its records are about them."""
    return joined(run.experiment.game, run.plan.takes_part if run.plan else None)


def _onwards(law: PowerLaw | None, num_rounds: int, over: int, planned: int | None) -> PowerLaw | None:
    """The law with the floor of the rounds that are planned, by the course of the law."""
    if law is None or not law.course:
        return law
    first = max(over, int(law.measured_from * num_rounds))
    rounds = range(first, max(num_rounds if planned is None else over + planned, first + 1))
    moved = float(np.mean([course_at(law, num_rounds, t)[0] for t in rounds]))
    return law.replace(floor=law.floor + moved)


@dataclass(frozen=True, eq=False)
class Remaining:
    """What is left of a run in a run directory.

    Attributes:
        experiment: of the remaining rounds; its law is updated with the run's records.
        round: the number of rounds that are over.
        observations: the number of measurements that the law was updated with.
        offer: the one that the run made last; None if its policy makes none.
    """

    experiment: Experiment
    round: int
    observations: int
    offer: Offer | None

    def replan(self, progress: Progress = lambda _: None) -> Choice | None:
        """The plan of the remaining rounds, and that of the old offer; None if there is no old offer."""
        if self.offer is None:
            return None
        game, competition = self.experiment.game, self.experiment.leader.competition
        return replan(game, self.offer, competition, lambda _: self.experiment.solve(progress))


def read_remaining(folder: Path, changes: Changes | None = None, num_rounds: int | None = None) -> Remaining:
    """What is left of the run in a run directory, or a game of `num_rounds` further rounds.

    Args:
        folder: the run directory.
        changes: of its configuration.
        num_rounds: how many rounds to plan; by default those that are left.
    """
    place = RunDirectory(folder)
    if not place.exists:
        raise InputError.of("RUN_DIR", "a run directory of `dufl train`", folder)
    if changes and "game.num_rounds" in changes:
        rule = "that of the run: use --rounds for another number"
        raise InputError.of("game.num_rounds", rule, changes["game.num_rounds"])
    run = replace(Run.load(folder), experiment=place.load(changes))
    over = _held(run)[0]
    experiment = run.experiment.planned_once()
    return Remaining(
        experiment.replace(game=remaining_of(run, num_rounds)),
        over,
        len(observations(_playing(run), run.records[:over])),
        _last_offer(place, run.records[:over]),
    )


def _last_offer(place: RunDirectory, records: Sequence[Record]) -> Offer | None:
    """The offer of the last new plan, or of the plan of the run."""
    events = [record.replan for record in records if record.replan is not None]
    if events:
        return Offer(payment=events[-1].payment, conservation_rate=events[-1].conservation_rate)
    return read_offer(place.manifest) if "plan.npz" in place.manifest.files else None


def _held(run: Run) -> tuple[int, Held]:
    """After how many rounds it is known what the clients hold, and what that is."""
    if run.held is not None:
        return len(run.records), run.held
    place = None if run.folder is None else RunDirectory(run.folder)
    if place is None or not place.exists or not place.has_checkpoint:
        what = "a run of `dufl train` with a checkpoint: it has what the clients hold"
        raise InputError.of("run", what, run.folder, text=str(run.folder or "none"))
    state = place.state()
    try:
        over, edges = int(state["round"]), np.cumsum(state["sizes"])[:-1]
        ages = [int(part.sum()) for part in np.split(state["ages"], edges)]
        volumes = [int(size) for size in state["sizes"]]
        if not 0 < over <= len(run.records) or len(volumes) != run.experiment.game.clients.size:
            raise ValueError(f"of {over} rounds and {len(volumes)} clients")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run.folder}/checkpoint.npz must be of this run: {error}") from None
    return over, (volumes, ages)


def remaining_summary(rest: Remaining, choice: Choice | None) -> dict[str, Any]:
    """What `dufl plan --from --json` adds to the summary of the plan."""
    law = rest.experiment.game.loss
    facts: dict[str, Any] = {"rounds_over": rest.round, "observations": rest.observations}
    if isinstance(law, PowerLaw):
        facts["law"] = dict(zip(PARAMETERS, law.parameters.tolist(), strict=True))
    if rest.offer is not None:
        facts["old_payment"] = rest.offer.payment
        facts["old_conservation_rate"] = rest.offer.conservation_rate
    if choice is not None:
        facts["old_cost"] = choice.old.server_cost
    return facts
