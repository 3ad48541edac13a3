"""What is left of a run: the game from the present volumes and ages on, as its own records see it."""

from typing import TYPE_CHECKING

import numpy as np

from dufl.errors import InputError
from dufl.experiment.run_directory import RunDirectory
from dufl.game.parameters import Game
from dufl.game.remaining import remaining_game
from dufl.learning.tracking import updated_law

if TYPE_CHECKING:
    from dufl.experiment.train import Run

Held = tuple[list[int], list[int]]  # the number of samples of every client, and the sum of their ages


def remaining_of(run: "Run", num_rounds: int | None = None) -> Game:
    """The game that is left after the last round of a run, or a game of `num_rounds` further rounds.

    After the last round nothing is collected. In further rounds, what the clients hold is one round older.
    """
    game = run.experiment.game
    over, (volumes, ages) = _held(run)
    if over >= game.num_rounds and num_rounds is None:
        rule = "given for a run that has finished: there are no rounds left"
        raise InputError.of("num_rounds", rule, None, text="nothing")
    law = updated_law(game, run.records[:over])
    volume = np.array(volumes, np.float64)
    staleness = np.divide(ages, volume, out=np.ones_like(volume), where=volume > 0)
    older = 1.0 if over >= game.num_rounds else 0.0
    return remaining_game(game, over, volume, staleness + older, law, num_rounds)


def rounds_over(run: "Run") -> int:
    """The number of rounds after which a run can be resumed."""
    return _held(run)[0]


def _held(run: "Run") -> tuple[int, Held]:
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
