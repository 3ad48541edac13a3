"""Compare several experiments, each trained with several seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.errors import InputError
from dufl.experiment.callbacks import Callback
from dufl.experiment.config import Experiment
from dufl.experiment.equal_payment import EqualPayment, policy_label
from dufl.experiment.frames import make_frame
from dufl.experiment.output import COMPARISON, claim
from dufl.experiment.recorded import score_of
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.sections import SOURCE, Data
from dufl.experiment.train import Run, differs_in_clients, short_name, train
from dufl.late import late
from dufl.learning.federation import Record
from dufl.learning.policies import make_policy, no_update, parse_name
from dufl.plugins import Spec, describe

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


def standard_deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation over seeds (n − 1 in the denominator); None for fewer than two values.

    >>> standard_deviation([0.9, 0.92]), standard_deviation([0.9])
    (0.014142135623730963, None)
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True, eq=False, repr=False)
class Cell:
    """One experiment of a comparison, with the runs of all seeds.

    Attributes:
        name: the name of the experiment.
        experiment: the experiment; its runs differ only in the seed.
        seeds: the training seeds.
        runs: the finished runs, in the order of the seeds.
        record: the last round of the current run, if any.
        equal_payment: whether it is part of a comparison at equal payment.
    """

    name: str
    experiment: Experiment
    seeds: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    record: Record | None = None
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
    def finished(self) -> bool:
        """Whether the runs of all seeds have finished."""
        return len(self.runs) == len(self.seeds)

    def curve(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """A field of the records, of shape (seeds, rounds), truncated to the shortest run."""
        rounds = min(len(run.records) for run in self.runs)
        return np.array([[getattr(r, name) for r in run.records[:rounds]] for run in self.runs], float)

    @property
    def recorded(self) -> bool:
        """Whether the data is recorded, as far as a round tells."""
        current = self.record is not None and self.record.period is not None
        return current or any(run.recorded for run in self.runs)

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
    """The result of `compare`: one cell per experiment."""

    cells: tuple[Cell, ...]
    folder: Path | None = None

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

    def plot(self, **options: Any) -> Any:
        """A matplotlib figure of the accuracy over the rounds."""
        return late("dufl.report.figures:plot_comparison")(self.cells, **options)

    def __repr__(self) -> str:
        parts = [f"{cell.name} {_score(cell)}" for cell in self.cells]
        return f"Comparison({'; '.join(parts)})"

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())


def grid(
    experiment: Experiment, algorithms: Iterable[Spec] = (), policies: Iterable[Spec] = ("static", "dufl")
) -> dict[str, Experiment]:
    """All combinations of algorithms and policies, by name. Default: the algorithm of the experiment.

    >>> list(grid(Experiment(), ["fedavg", "feddyn"]))
    ['fedavg-static', 'fedavg-dufl', 'feddyn-static', 'feddyn-dufl']
    """
    own = [experiment.training.algorithm]
    made = [
        _planned_as(experiment, policy).replace(algorithm=algorithm, policy=policy)
        for algorithm in (list(algorithms) or own)
        for policy in policies
    ]
    return named(made)


def _planned_as(experiment: Experiment, policy: Spec) -> Experiment:
    """The experiment, planned once and without a goal unless its policy needs the plan for it."""
    if policy == "dufl":
        return experiment
    goals = experiment.leader.goals if isinstance(policy, str) and parse_name(policy) else {}
    once = experiment.planned_once()
    return once if policy == "static" or not goals else once.replace(leader=once.leader.replace(**goals))


def compare(
    experiments: Mapping[str, Experiment] | Iterable[Experiment] | Experiment,
    *,
    seeds: int | Iterable[int] = 1,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    equal_payment: bool = False,
    callbacks: Iterable[Callback | Callable[[Record], Any]] = (),
) -> Comparison:
    """Train several experiments with several seeds. Runs are sequential and use all workers.

    Args:
        experiments: a mapping by name, or a list; one experiment is compared with and without data update.
        seeds: the number of seeds, starting at the seed of each experiment; or a list of seeds.
        out: the directory in which each run gets a run directory.
        resume: resume the runs in `out`.
        force: write to `out` even if it holds something else; a run is never replaced.
        equal_payment: whether every policy that collects pays the same per round: the payment of the plan of
            its experiment; see `equal_payment`.
        callbacks: the callbacks of every run; see `Callback`. Pausing a run ends the comparison.

    >>> from dufl import Game, Training
    >>> short = Experiment(game=Game(num_rounds=3), training=Training(local_epochs=1))
    >>> compare(short, seeds=2)["fedavg-dufl"].curve("accuracy").shape
    (2, 3)
    """
    if isinstance(experiments, Experiment):
        experiments = grid(experiments)
    by_name = dict(experiments) if isinstance(experiments, Mapping) else named(experiments)
    folder, hooks = None if out is None else Path(out), list(callbacks)
    cells = [
        Cell(name, one, _seeds(one, seeds), equal_payment=equal_payment) for name, one in by_name.items()
    ]
    load, equal = _Loader(), EqualPayment()

    def seeded(one: Experiment, seed: int) -> Experiment:
        one = one.replace(seed=seed)
        return equal(one, load(one.data)) if equal_payment else one

    for cell in cells:  # validate everything before the first run
        _check(cell, folder, resume, force, load, seeded)
    marker = _Claim(folder, force)
    for index, cell in enumerate(cells):
        for seed in cell.seeds:
            run = train(
                seeded(cell.experiment, seed),
                out=_place(folder, cell, seed),
                resume=resume,
                force=force,
                dataset=load(cell.experiment.data),
                callbacks=[marker, *hooks],
            )
            if not run.finished:
                return Comparison(tuple(cells), folder)
            cells[index] = cell = replace(cell, runs=(*cell.runs, run))
    return Comparison(tuple(cells), folder)


class _Loader:
    """Loads datasets, and keeps the last one in memory."""

    def __init__(self) -> None:
        self._loaded: dict[str, Dataset | Recording] = {}

    def __call__(self, data: Data) -> Dataset | Recording:
        key = repr([getattr(data, name) for name in SOURCE])
        if key not in self._loaded:
            self._loaded = {key: data.load()}
        return self._loaded[key]


class _Claim(Callback):
    """Claims the directory of a comparison after the first round, when all inputs have been validated."""

    def __init__(self, folder: Path | None, force: bool) -> None:
        self._folder, self._force = folder, force

    def on_round_end(self, record: Record) -> None:
        """Claim the directory once."""
        if self._folder is not None:
            claim(self._folder, COMPARISON, self._force)
            self._folder = None


def named(experiments: Iterable[Experiment]) -> dict[str, Experiment]:
    """Experiments by name, made of the algorithm and the policy."""
    made: dict[str, Experiment] = {}
    for experiment in experiments:
        name = f"{slug(experiment.training.algorithm)}-{slug(experiment.policy)}"
        if name in made:
            rule = "of different algorithms or policies, or given by name"
            raise InputError.of("experiments", rule, name, text=f"{name} twice")
        made[name] = experiment
    return made


def slug(spec: Spec) -> str:
    """The name of a plugin in a form that is valid in a file name.

    >>> slug("fedavg"), slug("my.module:Own"), slug("<Own(0.7)>")
    ('fedavg', 'my.module.Own', 'Own-0.7')
    """
    text = describe(spec).replace(":", ".")
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
    return "-".join(part for part in kept.split("-") if part)[:80]


def _seeds(experiment: Experiment, seeds: int | Iterable[int]) -> tuple[int, ...]:
    first = experiment.training.seed
    listed = tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(int(s) for s in seeds)
    if not listed or len(set(listed)) < len(listed):
        raise InputError.of("seeds", "at least one, all different", seeds, text=f"{seeds!r:.80}")
    return listed


def _check(
    cell: Cell,
    folder: Path | None,
    resume: bool,
    force: bool,
    load: _Loader,
    seeded: Callable[[Experiment, int], Experiment],
) -> None:
    experiment, seed, policy = cell.experiment, cell.seeds[0], cell.experiment.policy
    experiment.training.make_algorithm()
    if not isinstance(policy, str) or parse_name(policy) is None:  # a plan, or of the user's own
        make_policy(policy, experiment.game, partial(no_update, experiment.game), seed)
    experiment.check_replanning()
    for seed in cell.seeds:
        if place := _place(folder, cell, seed):
            directory, one = RunDirectory(place), seeded(experiment, seed)
            if one.leader.goals or differs_in_clients(one, directory):
                one = one.fitted(load(experiment.data)).for_goal()
            directory.check_free(one, resume, force)


def _place(folder: Path | None, cell: Cell, seed: int) -> Path | None:
    """The run directory of a cell and a seed."""
    return folder / f"{slug(cell.name)}-{seed}" if folder else None


def _score(cell: Cell) -> str:
    if not cell.runs:
        return "not run"
    each = [run.summary() for run in cell.runs]
    score, policy = score_of(each[0]), short_name(cell.experiment.policy)
    mean = float(np.mean([one[score] for one in each]))
    if score == "mean_rmse":
        return f"RMSE {mean:.4g} ({policy})"
    return f"{100 * mean:.2f} % ({policy})"
