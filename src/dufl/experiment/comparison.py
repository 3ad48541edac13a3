"""The result of a comparison: one cell per experiment, with the runs of all seeds.

A cell is a method on a problem: an algorithm with a policy and a discard rule, on a dataset.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dufl.errors import DuflError
from dufl.experiment.config import Experiment
from dufl.experiment.equal_payment import policy_label
from dufl.experiment.findings import Scored, Statistics, statistics_of
from dufl.experiment.frames import make_frame
from dufl.experiment.recorded import score_of
from dufl.experiment.statistics import standard_deviation
from dufl.experiment.train import Run, short_name
from dufl.late import late
from dufl.plugins import describe

_MEANS = (
    "final_accuracy",
    "final_loss",
    "total_payment",
    "server_cost",
    "mean_age",
    "mean_volume",
    "seconds",
)
_OVER_TIME = (  # means of recorded data
    *("mean_accuracy", "mean_loss", "mean_rmse", "mean_r2", "final_rmse", "final_r2", "shortfall"),
    *("no_change_accuracy", "majority_accuracy", "no_change_rmse", "mean_label_rmse"),
)
_SAME = ("tested", "time_begin", "time_end")  # of recorded data, for all seeds


@dataclass(frozen=True, eq=False, repr=False)
class Cell:
    """One experiment of a comparison, with the runs of all seeds.

    Attributes:
        name: the name of the experiment: of its method, or PROBLEM/METHOD.
        experiment: the experiment; its runs differ only in the seed.
        seeds: the training seeds.
        runs: the finished runs, in the order of the seeds.
        equal_payment: whether it is part of a comparison at equal payment.
    """

    name: str
    experiment: Experiment
    seeds: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    equal_payment: bool = False

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return describe(self.experiment.training.algorithm)

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return describe(self.experiment.policy)

    @property
    def label(self) -> str:
        """The policy in a table; at equal payment, with what sets it apart."""
        policy = self.runs[0].experiment.policy if self.runs else self.experiment.policy
        return policy_label(policy) if self.equal_payment else self.policy

    @property
    def discard(self) -> str:
        """The name of the discard rule."""
        return describe(self.experiment.data.discard)

    @property
    def problem(self) -> str:
        """What is compared on: the first part of the name, or the dataset."""
        return self.name.partition("/")[0] if "/" in self.name else short_name(self.experiment.data.dataset)

    @property
    def method(self) -> str:
        """What is compared: the second part of the name, or the name."""
        return self.name.partition("/")[2] or self.name

    @property
    def finished(self) -> bool:
        """Whether the runs of all seeds have finished."""
        return len(self.runs) == len(self.seeds)

    @property
    def scored(self) -> Scored:
        """The scores of the finished runs, by seed."""
        each = {run.experiment.training.seed: run.summary() for run in self.runs}
        metric = score_of(next(iter(each.values()))) if each else ""
        scores = {seed: float(one[metric]) for seed, one in each.items()}
        parts = (self.algorithm, self.policy, self.discard)
        return Scored(self.name, self.problem, self.method, parts, scores, metric)

    def curve(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """A field of the records, of shape (seeds, rounds), truncated to the shortest run."""
        rounds = min(len(run.records) for run in self.runs)
        return np.array([[getattr(r, name) for r in run.records[:rounds]] for run in self.runs], float)

    @property
    def recorded(self) -> bool:
        """Whether the data is recorded, as far as a run tells."""
        return any(run.recorded for run in self.runs)

    def summary(self) -> dict[str, Any]:
        """Means over the seeds, and the standard deviation of the final accuracy.

        On recorded data, it is the standard deviation of the mean accuracy over the rounds, or of the mean
        RMSE.
        """
        each = [run.summary() for run in self.runs]
        means = (*_MEANS, *(name for name in _OVER_TIME if self.recorded and name in each[0]))
        score = score_of(each[0])
        one_name, all_names = ("rmse_std", "rmses") if "rmse" in score else ("accuracy_std", "accuracies")
        return {
            "name": self.name,
            "algorithm": self.algorithm,
            "policy": self.policy,
            "seeds": list(self.seeds),
            **{name: float(np.mean([one[name] for one in each])) for name in means},
            **{name: each[0][name] for name in _SAME if name in each[0]},
            one_name: standard_deviation([one[score] for one in each]),
            all_names: [one[score] for one in each],
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `compare`: one cell per experiment.

    Attributes:
        cells: in the order of the experiments.
        folder: the output directory, if there is one.
        failures: the errors of runs that failed, by the name of the run.
        baseline: what methods are compared with; see `compare`.
    """

    cells: tuple[Cell, ...]
    folder: Path | None = None
    failures: Mapping[str, DuflError] = field(default_factory=dict)
    baseline: str | None = None

    @property
    def finished(self) -> bool:
        """Whether all runs have finished."""
        return all(cell.finished for cell in self.cells)

    def __getitem__(self, name: str) -> Cell:
        """The cell of an experiment, by name."""
        return next(cell for cell in self.cells if cell.name == name)

    def summary(self) -> list[dict[str, Any]]:
        """One summary per finished cell."""
        return [cell.summary() for cell in self.cells if cell.finished]

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with one row per experiment: means over the seeds."""
        return make_frame([{**row, "seeds": len(row["seeds"])} for row in self.summary()])

    def results(self, baseline: str | None = None) -> Statistics:
        """Means over the seeds, differences to the baseline, tests, and ranks over problems.

        Args:
            baseline: what methods are compared with, if not that of the comparison; see `compare`.
        """
        return statistics_of([cell.scored for cell in self.cells], baseline or self.baseline)

    def statistics(self, baseline: str | None = None) -> Any:
        """The same as a pandas `DataFrame` with one row per experiment."""
        return make_frame([row.flat() for row in self.results(baseline).rows])

    def to_latex(self, baseline: str | None = None) -> str:
        """The same as a table in LaTeX, which needs the package booktabs."""
        return str(late("dufl.report.latex:statistics_latex")(self.results(baseline)))

    def plot(self, **options: Any) -> Any:
        """A matplotlib figure of the accuracy over the rounds."""
        return late("dufl.report.figures:plot_comparison")(self.cells, **options)

    def plot_ranks(self, **options: Any) -> Any:
        """A matplotlib figure of the mean ranks over problems: a critical-difference diagram."""
        return late("dufl.report.rank_diagram:plot_ranks")(self.results().ranks, **options)

    def __repr__(self) -> str:
        parts = [f"{cell.name} {_score(cell)}" for cell in self.cells]
        failed = [f"{name} failed" for name in self.failures]
        return f"Comparison({'; '.join([*parts, *failed])})"

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())


def _score(cell: Cell) -> str:
    if not cell.runs:
        return "not run"
    each = [run.summary() for run in cell.runs]
    score, policy = score_of(each[0]), short_name(cell.experiment.policy)
    mean = float(np.mean([one[score] for one in each]))
    if score == "mean_rmse":
        return f"RMSE {mean:.4g} ({policy})"
    return f"{100 * mean:.2f} % ({policy})"
