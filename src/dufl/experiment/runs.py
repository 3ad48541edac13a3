"""The runs of a comparison: one after the other in this process, or several at a time in others.

A run is the same wherever it is trained. An error ends its run alone. A run on the disk that has finished is
read, not repeated.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dufl.cores import cores
from dufl.errors import DuflError, InputError
from dufl.experiment.callbacks import Action, Callback
from dufl.experiment.config import Experiment
from dufl.experiment.loader import Loader, source_of
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.train import Run, differs_in_clients, train
from dufl.learning.federation import Record

WORTH = 15.0  # seconds of work that are worth the start of other processes

Result = Run | DuflError


@dataclass(frozen=True, eq=False)
class Job:
    """A run to train.

    Attributes:
        name: of the run, and of its directory.
        cell: the place of its experiment in the comparison.
        seed: the seed of training.
        experiment: what to train, with this seed.
        out: its run directory, if it has one.
    """

    name: str
    cell: int
    seed: int
    experiment: Experiment
    out: Path | None

    @property
    def finished(self) -> bool:
        """Whether the run is on the disk. If it is damaged, training it says so."""
        try:
            return self.out is not None and RunDirectory(self.out).summary is not None
        except InputError:
            return False


class Observer:
    """Follows the runs of a comparison. All methods do nothing by default."""

    @property
    def stopping(self) -> bool:
        """Whether all runs are to pause after their current round."""
        return False

    def on_begin(self, jobs: Sequence[Job]) -> None:
        """Called with all runs before the first one."""

    def on_round(self, job: Job, record: Record) -> None:
        """Called after rounds; not after every round of a run in another process."""

    def on_end(self, job: Job, result: Result) -> None:
        """Called when a run has finished, was paused or has failed."""


@dataclass(frozen=True, eq=False)
class Options:
    """How runs are trained.

    Attributes:
        resume: resume the runs on the disk.
        force: write to directories that hold something else.
        callbacks: of every run.
        processes: how many runs at a time; None chooses.
    """

    resume: bool = False
    force: bool = False
    callbacks: Sequence[Callback | Callable[[Record], Any]] = ()
    processes: int | None = None


class _PausedError(Exception):
    """A run was paused, and the comparison with it."""


def train_all(
    jobs: Sequence[Job], options: Options, observer: Observer, load: Loader
) -> Iterator[tuple[Job, Result]]:
    """Train all runs; yields each with its result when it ends. If one is paused, no other begins."""
    observer.on_begin(jobs)
    with suppress(_PausedError):
        for job, result in _train_all(jobs, options, observer, load):
            observer.on_end(job, result)
            yield job, result


def _train_all(
    jobs: Sequence[Job], options: Options, observer: Observer, load: Loader
) -> Iterator[tuple[Job, Result]]:
    sources = list(dict.fromkeys(source_of(job.experiment.data) for job in jobs))
    ordered = sorted(jobs, key=lambda job: sources.index(source_of(job.experiment.data)))
    over = [job for job in ordered if job.finished]
    left = [job for job in ordered if job not in over]
    processes = options.processes
    yield from _in_this_process(over, options, observer, load, later=left)
    if processes is None and left:
        begin = time.monotonic()
        yield from _in_this_process(left[:1], options, observer, load, later=left)
        left = left[1:]
        processes = choose_processes(left, options, time.monotonic() - begin)
    if processes is not None and min(processes, len(left)) > 1:
        from dufl.experiment.processes import train_in_processes

        load.keep([])
        left = list((yield from train_in_processes(left, min(processes, len(left)), options, observer)))
    yield from _in_this_process(left, options, observer, load)


def choose_processes(jobs: Sequence[Job], options: Options, seconds: float) -> int:
    """How many runs to train at a time, after one of them took some seconds.

    As many as there are cores, if there are as many runs, and if processes are worth it: each loads the
    libraries and the dataset. Models in torch have processes of their own, and callbacks are called here.
    """
    settings = [job.experiment.training for job in jobs]
    if options.callbacks or not all(one.compiled for one in settings) or seconds * len(jobs) < WORTH:
        return 1
    processes = cores() // max(one.workers or 1 for one in settings)
    return processes if len(jobs) >= processes else 1


def _in_this_process(
    jobs: Sequence[Job], options: Options, observer: Observer, load: Loader, later: Sequence[Job] = ()
) -> Iterator[tuple[Job, Result]]:
    for place, job in enumerate(jobs):
        load.keep(one.experiment.data for one in (*jobs[place:], *later))
        result = train_job(job, options, observer, load)
        yield job, result
        if isinstance(result, Run) and not result.finished:
            raise _PausedError


def train_job(job: Job, options: Options, observer: Observer, load: Loader) -> Result:
    """Train a run in this process; returns the error if it fails."""

    class Follow(Callback):
        def on_round_end(self, record: Record) -> Action | None:
            observer.on_round(job, record)
            return Action.PAUSE if observer.stopping else None

    try:
        return train(
            job.experiment,
            out=job.out,
            resume=options.resume,
            force=options.force,
            dataset=load(job.experiment.data) if _needs_samples(job) else None,
            callbacks=[Follow(), *options.callbacks],
        )
    except DuflError as error:
        return error


def _needs_samples(job: Job) -> bool:
    """Whether samples are read: not of a run that has finished, unless its clients depend on them."""
    if job.out is None or not job.finished or job.experiment.leader.goals:
        return True
    return differs_in_clients(job.experiment, RunDirectory(job.out))
