"""Plans of both leaders for all combinations of some values of a game."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from dufl.errors import InputError, NegativeUtilityWarning
from dufl.experiment.config import Experiment, as_experiment
from dufl.experiment.frames import make_frame
from dufl.experiment.keys import split_key
from dufl.game.parameters import Game
from dufl.game.plan import algorithm1_baseline, solve

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]


def sweep(
    experiment: Experiment | Game | None = None, *, seeds: int = 1, **values: Sequence[Any]
) -> "pandas.DataFrame":
    """Solve a game for all combinations of some values. One row per combination and draw of the clients.

    Args:
        experiment: the experiment or the game to solve.
        seeds: the number of draws of the clients; only for clients from `Clients.draw`.
        values: one sequence per field of `Game`.

    >>> frame = sweep(Game(num_rounds=10), time_sensitivity=[0.5, 1.5])
    >>> frame.time_sensitivity.tolist(), bool(frame.payment[0] <= frame.payment[1])
    ([0.5, 1.5], True)
    """
    base = as_experiment(experiment)
    game = base.game
    for name in values:
        if name == "clients" or name not in Game.model_fields:
            known = ", ".join(field for field in Game.model_fields if field != "clients")
            raise InputError.of("values", f"of fields of Game ({known})", name, text=repr(name))

    def variant(combination: Mapping[str, Any], seed: int) -> Experiment:
        clients = {"clients": game.clients.redraw(seed)} if seeds > 1 else {}
        return base.replace(game=game.replace(**combination, **clients))

    return make_frame(sweep_rows(values, seeds, variant))


def sweep_rows(
    values: Mapping[str, Sequence[Any]],
    seeds: int,
    variant: Callable[[Mapping[str, Any], int], Experiment],
    progress: Callable[[float], None] = lambda _: None,
) -> list[Row]:
    """Plans for all combinations of values and several draws of the clients.

    Args:
        values: one sequence per key.
        seeds: the number of draws.
        variant: returns the experiment for a combination and a seed.
        progress: called with the fraction of the work that is done.
    """
    rows: list[Row] = []
    combinations = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    for combination in combinations:
        for seed in range(seeds):
            rows.append({**combination, "seed": seed, **_plans(variant(combination, seed))})
            progress(len(rows) / (len(combinations) * seeds))
    return rows


def check_axes(keys: Iterable[str], seeds: int) -> None:
    """Raise an error for keys that the sweep sets itself."""
    if seeds > 1 and ("clients", "seed") in map(split_key, keys):
        raise InputError.of("seeds", "left out when clients.seed varies", seeds)


def _plans(experiment: Experiment) -> Row:
    competition = experiment.leader.competition
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NegativeUtilityWarning)  # a sweep looks at many plans
        best = solve(experiment.game, competition=competition, robust=experiment.leader.robust)
    baseline = algorithm1_baseline(experiment.game, competition)
    return {
        "payment": best.payment,
        "conservation_rate": best.conservation_rate,
        "server_cost": best.server_cost,
        "algorithm1_payment": baseline.payment if baseline else None,
        "algorithm1_conservation_rate": baseline.conservation_rate if baseline else None,
        "algorithm1_cost": baseline.server_cost if baseline else None,
        "no_update_cost": best.no_update_cost,
        "influence_gain": best.certificate.influence,
    }
