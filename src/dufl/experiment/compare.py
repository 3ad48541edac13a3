"""Compare several experiments, each trained with several seeds."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dufl.errors import DuflError, InputError
from dufl.experiment.callbacks import Callback
from dufl.experiment.comparison import Cell, Comparison
from dufl.experiment.config import Experiment
from dufl.experiment.equal_payment import EqualPayment
from dufl.experiment.findings import baseline_of
from dufl.experiment.loader import Loader
from dufl.experiment.output import COMPARISON, claim
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.runs import Job, Observer, Options, train_all
from dufl.experiment.train import Run, differs_in_clients, short_name
from dufl.learning.federation import Record
from dufl.learning.policies import make_policy, no_update, parse_name
from dufl.plugins import Spec, describe


def grid(
    experiment: Experiment | Mapping[str, Experiment],
    algorithms: Iterable[Spec] = (),
    policies: Iterable[Spec] = ("static", "dufl"),
    discards: Iterable[Spec] = (),
    datasets: Iterable[Spec] = (),
) -> dict[str, Experiment]:
    """All combinations of algorithms, policies, discard rules and datasets, by name.

    Names are ALGORITHM-POLICY, with -DISCARD if there are several rules. With several datasets or
    experiments they begin with PROBLEM/.

    Args:
        experiment: what they have in common; or several experiments by name, such as those of several files.
        algorithms: by default the algorithm of the experiment.
        policies: by default with and without data update.
        discards: the rules by which buffers discard samples; by default the rule of the experiment.
        datasets: by default the dataset of the experiment.

    >>> list(grid(Experiment(), ["fedavg", "feddyn"]))
    ['fedavg-static', 'fedavg-dufl', 'feddyn-static', 'feddyn-dufl']
    >>> list(grid(Experiment(), policies=["dufl"], discards=["uniform", "oldest"]))
    ['fedavg-dufl-uniform', 'fedavg-dufl-oldest']
    >>> list(grid(Experiment(), datasets=["digits", "weather"]))
    ['digits/fedavg-static', 'digits/fedavg-dufl', 'weather/fedavg-static', 'weather/fedavg-dufl']
    """
    algorithms, policies, discards = list(algorithms), list(policies), list(discards)
    problems = _problems(experiment, list(datasets))
    made: dict[str, Experiment] = {}
    for problem, one in problems.items():
        for algorithm, policy, discard in product(
            algorithms or [one.training.algorithm], policies, discards or [one.data.discard]
        ):
            parts = [algorithm, policy, *([discard] if len(discards) > 1 else [])]
            method = "-".join(map(slug, parts))
            name = f"{problem}/{method}" if len(problems) > 1 else method
            _add(made, name, _variant(one, algorithm, policy, discard))
    return made


def _variant(experiment: Experiment, algorithm: Spec, policy: Spec, discard: Spec) -> Experiment:
    planned, data = _planned_as(experiment, policy), experiment.data
    if describe(discard) != describe(data.discard):
        data = data.replace(discard=discard)
    return planned.replace(algorithm=algorithm, policy=policy, data=data)


def _planned_as(experiment: Experiment, policy: Spec) -> Experiment:
    """The experiment, planned once and without a goal unless its policy needs the plan for it."""
    if policy == "dufl":
        return experiment
    goals = experiment.leader.goals if isinstance(policy, str) and parse_name(policy) else {}
    once = experiment.planned_once()
    return once if policy == "static" or not goals else once.replace(leader=once.leader.replace(**goals))


def _problems(
    experiment: Experiment | Mapping[str, Experiment], datasets: list[Spec]
) -> dict[str, Experiment]:
    """The experiments that methods are compared on, by name."""
    given = {"": experiment} if isinstance(experiment, Experiment) else dict(experiment)
    made: dict[str, Experiment] = {}
    for name, one in given.items():
        for dataset in datasets or [None]:
            changed = one if dataset is None else one.replace(data=one.data.replace(dataset=dataset))
            parts = [name] if dataset is None else [*[name] * (len(given) > 1), short_name(dataset)]
            _add(made, "-".join(map(slug, parts)), changed)
    return made


def compare(
    experiments: Mapping[str, Experiment] | Iterable[Experiment] | Experiment,
    *,
    seeds: int | Iterable[int] = 1,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    equal_payment: bool = False,
    callbacks: Iterable[Callback | Callable[[Record], Any]] = (),
    baseline: str | None = None,
    jobs: int | None = None,
) -> Comparison:
    """Train several experiments with several seeds.

    Results do not depend on how many runs are trained at a time. If a run fails, the others are trained
    nevertheless, and `Comparison.failures` has its error.

    Args:
        experiments: a mapping by name, or a list; one experiment is compared with and without data update.
            A name is that of a method, or PROBLEM/METHOD; see `grid`.
        seeds: the number of seeds, starting at the seed of each experiment; or a list of seeds.
        out: the directory in which each run gets a run directory.
        resume: resume the runs in `out`.
        force: write to `out` even if it holds something else; a run is never replaced.
        equal_payment: whether every policy that collects pays the same per round: the payment of the plan of
            its experiment; see `equal_payment`.
        callbacks: the callbacks of every run; see `Callback`. Pausing a run ends the comparison.
        baseline: a method, with which all others are compared; or an algorithm, a policy or a discard rule:
            every method is compared with the one that has it and is else the same. Default: "static", or the
            first method.
        jobs: how many runs to train at a time, each in a process of its own with its share of the cores. 1
            trains them one after the other in this process, on all cores. By default one per core, if there
            are enough runs, their model is logistic or linear, they take long enough, and there are no
            callbacks.

    >>> from dufl import Game, Training
    >>> short = Experiment(game=Game(num_rounds=3), training=Training(local_epochs=1))
    >>> compare(short, seeds=2)["fedavg-dufl"].curve("accuracy").shape
    (2, 3)
    """
    if isinstance(experiments, Experiment):
        experiments = grid(experiments)
    by_name = dict(experiments) if isinstance(experiments, Mapping) else named(experiments)
    options = Options(resume, force, list(callbacks), jobs)
    folder = None if out is None else Path(out)
    comparison = run_comparison(by_name, seeds, folder, options, baseline, equal_payment=equal_payment)
    if comparison.failures:
        listed = "; ".join(f"{name}: {error}" for name, error in comparison.failures.items())
        warnings.warn(f"runs failed: {listed}", RuntimeWarning, stacklevel=2)
    return comparison


def run_comparison(
    experiments: Mapping[str, Experiment],
    seeds: int | Iterable[int],
    folder: Path | None,
    options: Options,
    baseline: str | None = None,
    observer: Observer | None = None,
    equal_payment: bool = False,
) -> Comparison:
    """Train experiments by name; see `compare`. An observer follows the runs.

    If no run finishes, the first error is raised.
    """
    cells = [
        Cell(name, one, _seeds(one, seeds), equal_payment=equal_payment) for name, one in experiments.items()
    ]
    baseline_of([cell.scored for cell in cells], baseline)
    if options.processes is not None and options.processes < 1:
        raise InputError.of("jobs", ">= 1", options.processes)
    for cell in cells:  # validate everything before the first run
        _check_parts(cell)
    load, equal = Loader(), EqualPayment()

    def seeded(one: Experiment, seed: int) -> Experiment:
        one = one.replace(seed=seed)
        return equal(one, load(one.data)) if equal_payment else one

    jobs = _jobs(cells, folder, seeded)
    for job in jobs:
        _check_place(job, options.resume, options.force, load)
    claiming = _Claim(folder, options.force, observer or Observer())
    results = {job.name: result for job, result in train_all(jobs, options, claiming, load)}
    failures = {name: result for name, result in results.items() if isinstance(result, DuflError)}
    for job in jobs:
        result, cell = results.get(job.name), cells[job.cell]
        if isinstance(result, Run) and result.finished:
            cells[job.cell] = replace(cell, runs=(*cell.runs, result))
    if failures and not any(cell.runs for cell in cells):
        raise next(iter(failures.values()))
    return Comparison(tuple(cells), folder, failures, baseline)


def _jobs(
    cells: Sequence[Cell], folder: Path | None, seeded: Callable[[Experiment, int], Experiment]
) -> list[Job]:
    """All runs, in the order of the cells and their seeds."""
    jobs: dict[str, Job] = {}
    for place, cell in enumerate(cells):
        for seed in cell.seeds:
            name = f"{slug(cell.name)}-{seed}"
            if name in jobs:
                rule = "of names that differ in letters or digits"
                raise InputError.of("experiments", rule, cell.name, text=f"{name} twice")
            out = folder / name if folder else None
            jobs[name] = Job(name, place, seed, seeded(cell.experiment, seed), out)
    return list(jobs.values())


class _Claim(Observer):
    """Claims the directory of a comparison after the first round, when all inputs have been validated."""

    def __init__(self, folder: Path | None, force: bool, other: Observer) -> None:
        self._folder, self._force, self._other = folder, force, other
        self.on_begin, self.on_end = other.on_begin, other.on_end  # type: ignore[method-assign]

    @property
    def stopping(self) -> bool:
        """Whether all runs are to pause."""
        return self._other.stopping

    def on_round(self, job: Job, record: Record) -> None:
        """Claim the directory once."""
        if self._folder is not None:
            claim(self._folder, COMPARISON, self._force)
            self._folder = None
        self._other.on_round(job, record)


def named(experiments: Iterable[Experiment]) -> dict[str, Experiment]:
    """Experiments by name, made of the algorithm and the policy; of the dataset too, if there are several."""
    listed = list(experiments)
    problems = [slug(short_name(experiment.data.dataset)) for experiment in listed]
    made: dict[str, Experiment] = {}
    for experiment, problem in zip(listed, problems, strict=True):
        method = f"{slug(experiment.training.algorithm)}-{slug(experiment.policy)}"
        _add(made, f"{problem}/{method}" if len(set(problems)) > 1 else method, experiment)
    return made


def _add(made: dict[str, Experiment], name: str, experiment: Experiment) -> None:
    if name in made:
        rule = "of different algorithms, policies, discard rules or datasets, or given by name"
        raise InputError.of("experiments", rule, name, text=f"{name} twice")
    made[name] = experiment


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


def _check_parts(cell: Cell) -> None:
    """Raise if the algorithm or the policy of an experiment cannot be made."""
    experiment, seed, policy = cell.experiment, cell.seeds[0], cell.experiment.policy
    experiment.training.make_algorithm()
    if not isinstance(policy, str) or parse_name(policy) is None:  # a plan, or of the user's own
        make_policy(policy, experiment.game, partial(no_update, experiment.game), seed)
    experiment.check_replanning()


def _check_place(job: Job, resume: bool, force: bool, load: Loader) -> None:
    """Raise if a run cannot be written to its directory."""
    if job.out is None:
        return
    directory, experiment = RunDirectory(job.out), job.experiment
    if experiment.leader.goals or differs_in_clients(experiment, directory):
        experiment = experiment.fitted(load(experiment.data)).for_goal()
    directory.check_free(experiment, resume, force)
