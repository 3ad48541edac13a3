"""Several runs side by side: every algorithm with every policy, for some seeds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dufl.experiment.config import Config
from dufl.experiment.output import COMPARISON, claim
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.train import Run, train
from dufl.learning.federation import Record
from dufl.learning.policies import make_policy, no_update

_MEANS = (
    "final_accuracy",
    "final_loss",
    "total_payment",
    "server_cost",
    "mean_age",
    "mean_volume",
    "seconds",
)


def standard_deviation(values: Sequence[float]) -> float | None:
    """Over seeds, as of a sample (n − 1 below the sum of squares); None of fewer than two.

    >>> standard_deviation([0.9, 0.92]), standard_deviation([0.9])
    (0.014142135623730963, None)
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(eq=False)
class Cell:
    """One algorithm with one policy, over all seeds, as far as it has come."""

    algorithm: str
    policy: str
    seeds: list[int]
    runs: list[Run] = field(default_factory=list)
    record: Record | None = None  # the last round of the run under way

    @property
    def finished(self) -> bool:
        """Whether every seed is done."""
        return len(self.runs) == len(self.seeds)

    def curve(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What a field of the records was, of shape (seeds, rounds)."""
        return np.array([[getattr(record, name) for record in run.records] for run in self.runs], float)

    def summary(self) -> dict[str, Any]:
        """Means over the seeds, and the standard deviation of the final accuracy."""
        each = [run.summary() for run in self.runs]
        return {
            "algorithm": self.algorithm,
            "policy": self.policy,
            "seeds": self.seeds,
            **{name: float(np.mean([one[name] for one in each])) for name in _MEANS},
            "accuracy_std": standard_deviation([one["final_accuracy"] for one in each]),
            "accuracies": [one["final_accuracy"] for one in each],
        }


def cells(algorithms: Iterable[str], policies: Sequence[str], seeds: list[int]) -> list[Cell]:
    """Every algorithm with every policy."""
    return [Cell(algorithm, policy, seeds) for algorithm in algorithms for policy in policies]


def compare(
    config: Config,
    wanted: list[Cell],
    out: Path | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    watch: Callable[[Cell], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run all cells one after the other, each run with all workers; False if it was stopped.

    Args:
        config: what is common to all.
        wanted: the cells, which are filled.
        out: a directory that gets one run directory for each run.
        resume: go on with the runs that are there.
        force: write there even if the directories hold something else; a run that is there is never replaced.
        watch: called after every round of a cell.
        stop: asked after every round.
    """
    runs = [
        (cell, config.replace(algorithm=cell.algorithm, policy=cell.policy, seed=seed))
        for cell in wanted
        for seed in cell.seeds
    ]
    for cell, told in runs:  # everything is checked before anything runs
        told.training.make_algorithm()
        make_policy(told.training.policy, told.game, partial(no_update, told.game), told.training.seed)
        if folder := _folder(out, cell, told):
            RunDirectory(folder).check_free(told, resume, force)
    dataset = config.data.load()
    for cell, told in runs:
        folder = _folder(out, cell, told)

        def seen(record: Record, cell: Cell = cell) -> None:
            if out and not any(one.record for one in wanted):
                claim(out, COMPARISON, force)  # a first round is over: all that can be wrong has shown itself
            cell.record = record
            watch(cell)

        run = train(told, folder, resume=resume, force=force, dataset=dataset, watch=seen, stop=stop)
        if not run.finished:
            return False
        cell.runs.append(run)
        watch(cell)
    return True


def _folder(out: Path | None, cell: Cell, told: Config) -> Path | None:
    """The run directory of a run."""
    return out / f"{slug(cell.algorithm)}-{slug(cell.policy)}-{told.training.seed}" if out else None


def slug(name: str) -> str:
    """A name as part of a file name."""
    return name.replace(":", ".")
