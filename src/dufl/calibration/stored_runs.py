"""Calibration from run directories, of `dufl train` and of runs on Flower."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dufl.calibration.calibrate import Calibration, fit_runs
from dufl.calibration.measurements import Metric
from dufl.errors import InputError
from dufl.experiment.agreement import read_agreement
from dufl.experiment.config import Experiment
from dufl.experiment.stored import Stored, read_runs
from dufl.game.parameters import Game, require_rounds


def calibrate_stored(places: Iterable[Path], metric: Metric | None = None) -> Calibration:
    """Fit the loss law to the finished runs in some directories.

    Args:
        places: run directories, or directories of run directories.
        metric: by default the error, or the RMSE for regression.
    """
    stored = [one for one in read_runs(places) if one.run.finished]
    if not stored:
        raise InputError.of("RUN_DIR", "at least one finished run", None, text="none")
    unit: Metric = metric or ("rmse" if stored[0].run.regression else "error")
    rates = [_conservation_rate(one) for one in stored]
    return fit_runs([one.run for one in stored], unit, _experiment(stored), rates)


def _conservation_rate(stored: Stored) -> float | None:
    """θ of the plan that a run followed, or of what was agreed on Flower; None if there is none."""
    experiment = stored.run.experiment
    require_rounds(experiment.game, "'finite' for a calibration: a service makes many offers")
    agreement = read_agreement(stored.folder, experiment.game.num_rounds)
    if agreement is not None:
        return agreement.offer.conservation_rate
    plan = stored.place.plan(experiment)
    return None if plan is None else plan.conservation_rate


def _experiment(stored: Sequence[Stored]) -> Experiment:
    """The first experiment without its law, and with the offers that any of the runs could make."""
    first = stored[0].run.experiment
    games = [one.run.experiment.game for one in stored]
    ranges = {name: _joined(games, name) for name in ("payment_range", "conservation_range")}
    return first.replace(game=first.game.replace(loss=None, **ranges))


def _joined(games: Sequence[Game], name: str) -> tuple[float, float]:
    ranges = [getattr(game, name) for game in games]
    return min(low for low, _ in ranges), max(high for _, high in ranges)
