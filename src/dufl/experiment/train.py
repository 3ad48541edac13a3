"""A whole run: experiment → plan → rounds → records, in memory or in a run directory."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dufl.data.datasets import Dataset
from dufl.data.datasets.recordings import SUFFIXES
from dufl.data.recording import Recording
from dufl.errors import InputError
from dufl.experiment.callbacks import Action, Callback, Callbacks
from dufl.experiment.config import Experiment, as_experiment
from dufl.experiment.limits import joined
from dufl.experiment.predicted import Outcome, Tracking, outcome_of, tracking_of
from dufl.experiment.recorded import over_time
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.sections import Data, Leader
from dufl.game.loss import check_law
from dufl.game.parameters import Game, require_rounds
from dufl.game.plan import Plan
from dufl.late import late
from dufl.learning.engine import Named, make_engine
from dufl.learning.federation import Federation, Record
from dufl.learning.policies import Planned, Policy, RandomStrategy, Window, ZeroStrategy
from dufl.learning.replanning import Replanned
from dufl.learning.settings import Training
from dufl.plugins import Spec, describe

Held = tuple[list[int], list[int]]  # the number of samples of every client, and the sum of their ages


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A training run and its results.

    Attributes:
        experiment: what was trained.
        records: one per round.
        weights: the model, by the names of its parameters; empty while the run is paused.
        folder: its run directory, if it has one.
        stopped_early: whether a callback finished it before its last round.
        plan: the plan that its policy followed, if it followed one; with replans, the first one.
        data: the fingerprint of the samples.
        held: what the clients hold after the last round, if it is known; see `remaining_game`.
        agreed: the plan that server and clients agreed on in a run on Flower, if its loss law predicts
            something. Its totals are known, but the volumes of single clients are not.
    """

    experiment: Experiment
    records: list[Record]
    weights: Named = field(default_factory=dict)
    folder: Path | None = None
    stopped_early: bool = False
    plan: Plan | None = None
    data: str = ""
    held: Held | None = None
    agreed: Plan | None = None

    def __repr__(self) -> str:
        experiment, training = self.experiment, self.experiment.training
        total = "" if experiment.total_rounds is None else f" of {experiment.total_rounds}"
        parts = (experiment.data.dataset, training.model, training.algorithm, experiment.policy)
        what = ", ".join(short_name(part) for part in parts)
        score = f", {self._score()}" if self.records else ""
        where = f", in {self.folder}" if self.folder else ""
        return f"Run({what}: {len(self.records)}{total} rounds{score}{where})"

    def _score(self) -> str:
        over = over_time(self.records, self.regression)
        if "mean_rmse" in over:
            return f"mean RMSE {over['mean_rmse']:.4g}"
        if np.isnan(over.get("mean_accuracy", self.accuracy)):
            return "accuracy unknown"
        return f"{'mean ' if over else ''}accuracy {100 * over.get('mean_accuracy', self.accuracy):.2f} %"

    @property
    def finished(self) -> bool:
        """Whether all rounds are over, or a callback finished the run."""
        return self.stopped_early or len(self.records) == self.experiment.total_rounds

    @property
    def accuracy(self) -> float:
        """On the test samples, after the last round."""
        return self.records[-1].accuracy

    def summary(self) -> dict[str, Any]:
        """The run in a few numbers."""
        last, training = self.records[-1], self.experiment.training
        best = max(self.records, key=_performance)
        return {
            "dataset": _name(self.experiment.data.dataset),
            "model": describe(training.model),
            "algorithm": describe(training.algorithm),
            "policy": describe(self.experiment.policy),
            "seed": training.seed,
            "rounds": len(self.records),
            "stopped_early": self.stopped_early,
            "final_accuracy": last.accuracy,
            "final_loss": last.loss,
            "final_metrics": last.metrics,
            "best_accuracy": best.accuracy,
            "best_round": best.round,
            "total_payment": float(sum(record.payment for record in self.records)),
            "server_cost": last.server_cost,
            "cost_of_payment": last.cost_of_payment,
            "cost_of_volume": last.cost_of_volume,
            "cost_of_staleness": last.cost_of_staleness,
            "mean_age": float(np.mean([record.mean_age for record in self.records])),
            "mean_volume": float(np.mean([record.total_volume for record in self.records])),
            "dropped": sum(len(record.dropped) for record in self.records),
            "refused": sum(len(record.refused) for record in self.records),
            "shortfall": sum(record.shortfall for record in self.records),
            "seconds": sum(record.seconds for record in self.records),
            "fingerprint": _fingerprint(self.weights),
            **over_time(self.records, self.regression),
            **self._participation(),
            **(self.outcome.summary() if self.outcome else {}),
            **(self.tracking.summary() if self.tracking else {}),
            **({"replans": self.replans} if self.experiment.leader.replan_every is not None else {}),
        }

    def _participation(self) -> dict[str, Any]:
        is_free = self.plan is not None and self.plan.takes_part is not None
        return {"staying_away": self.plan.staying_away} if self.plan and is_free else {}

    @cached_property
    def outcome(self) -> Outcome | None:
        """What the plan's loss law predicted, and what was measured; None if nothing was predicted."""
        return outcome_of(self.plan or self.agreed, self.records)

    @cached_property
    def tracking(self) -> Tracking | None:
        """What was predicted and measured round by round; None if nothing was predicted."""
        return tracking_of(self.plan, self.records)

    @property
    def replans(self) -> list[dict[str, Any]]:
        """When the remaining rounds were planned again: the round, both offers, their costs and the law."""
        return [{"round": r.round} | asdict(r.replan) for r in self.records if r.replan is not None]

    def remaining_game(self, num_rounds: int | None = None) -> Game:
        """The game that is left after the last round, or a game of further rounds.

        Clients begin with what they hold, and the loss law is updated with what the run has measured. Solve
        it with `dufl.solve`.

        Args:
            num_rounds: how many rounds to plan; by default those that are left.
        """
        from dufl.experiment.remaining import remaining_of

        return remaining_of(self, num_rounds)

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return any("rmse" in record.metrics and np.isnan(record.accuracy) for record in self.records)

    @property
    def recorded(self) -> bool:
        """Whether the data is recorded."""
        return any(record.period is not None for record in self.records)

    def to_frame(self) -> Any:
        """The records as a pandas `DataFrame`, one row per round; your own metrics are columns too."""
        from dufl.experiment.frames import records_frame

        return records_frame(self.records)

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """The run in a run directory, as far as it has come. Code that it names is not run."""
        from dufl.experiment.stored import read_run

        return read_run(Path(folder)).run

    def plot(self, **options: Any) -> Any:
        """A matplotlib figure of accuracy, volume, age and cost over the rounds."""
        return late("dufl.report.figures:plot_run")(self, **options)

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write a finished run into a run directory of its own, from which `Run.load` reads it."""
        if not self.finished:
            raise InputError("the run must be finished to be saved: train with out= to keep a paused run")
        place = RunDirectory(Path(folder))
        place.check_free(self.experiment, resume=False, force=force)
        with place.locked():
            place.begin(self.experiment, self.plan, self.data, force)
            for record in self.records:
                place.add(record)
            place.finish(self.weights, self.summary())

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report; returns its path.

        Args:
            path: of the page; by default `report.html` in the run directory, if there is one.
        """
        write_report = late("dufl.report.training_report:write_report")
        target = None if path is None else Path(path)
        if self.folder is not None:
            return Path(write_report([self.folder], target).path)
        if target is None:
            raise InputError(
                "path must be given for the report of a run without a run directory", field="path"
            )
        with TemporaryDirectory() as folder:
            self.save(Path(folder) / "run")
            return Path(write_report([Path(folder) / "run"], target).path)

    def _repr_html_(self) -> str:
        return str(late("dufl.report.tables:run_html")(self))


def train(
    experiment: Experiment | Game | None = None,
    *,
    data: Data | None = None,
    training: Training | None = None,
    policy: Spec | None = None,
    leader: Leader | None = None,
    baseline_payment: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    callbacks: Iterable[Callback | Callable[[Record], Any]] = (),
    dataset: Dataset | Recording | None = None,
) -> Run:
    """Train a federation.

    Args:
        experiment: what to train, or the game alone; the paper's game by default.
        data: see `Experiment`; likewise `training`, `policy` and `leader`.
        training: how clients train.
        policy: how data is updated.
        leader: how the offer of the policy "dufl" is chosen.
        baseline_payment: what a policy without a price of its own spends per round; see `Experiment`.
        out: a run directory to write; without one the result is only returned.
        resume: resume the run in `out`.
        force: write to `out` even if it holds something else; a run is never replaced.
        callbacks: called after every round; see `Callback`.
        dataset: the one that `data` names, if it is loaded already.

    >>> run = train(Game(num_rounds=3), training=Training(local_epochs=1), policy="static")
    >>> len(run.records), run.finished
    (3, True)
    """
    parts = {"data": data, "training": training, "policy": policy, "leader": leader}
    experiment = as_experiment(experiment, **parts, baseline_payment=baseline_payment)
    require_rounds(experiment.game)
    if out == "":
        raise InputError.of("out", "the name of a directory", "", text="an empty text")
    if out is None and resume:
        raise InputError("out must be given with resume=True", field="out")
    place, hooks = None if out is None else RunDirectory(Path(out)), Callbacks(callbacks)
    if place is not None and not experiment.leader.goals and not differs_in_clients(experiment, place):
        place.check_free(experiment, resume, force)
        if place.summary is not None:
            return _finished(experiment, place, hooks)
    samples = dataset or experiment.data.load()
    experiment = experiment.fitted(samples).for_goal()
    if place is not None:
        place.check_free(experiment, resume, force)
        if place.summary is not None:
            return _finished(experiment, place, hooks)
    experiment.check_replanning()
    settings, game = experiment.training, experiment.game
    check_law(game.loss)
    source = experiment.data.client_data(samples, game, settings.seed)
    update: Policy = experiment.make_policy(source)
    if isinstance(update, Planned) and experiment.leader.replan_every is not None:
        every = experiment.leader.replan_every
        update = Replanned(update.plan, settings.seed, every, experiment.solve_game)
    source = source.discarding(getattr(update, "discard", None))
    engine = make_engine(source, settings, game.clients.size)
    try:
        federation = Federation(_playing(game, update), source, update, settings, engine)
        plan = update.plan if isinstance(update, Planned | Replanned) else None
        folder, data_digest = place.folder if place else None, data_fingerprint(samples)
        run = Run(experiment, [], folder=folder, plan=plan, data=data_digest)
        if place is None or not place.exists:
            federation.begin()
        if place is None:
            return _rounds(run, federation, None, hooks, update)
        with place.locked():  # everything has been checked: nothing is written before
            begun = _begin(run, place, federation, force)
            if isinstance(update, Replanned):
                update.follow(begun.records)
            return _rounds(begun, federation, place, hooks, update)
    finally:
        engine.close()


def _playing(game: Game, policy: Policy) -> Game:
    """The game of the clients that take part, if the policy's plan says which."""
    if isinstance(policy, Planned | ZeroStrategy | RandomStrategy | Window):
        return joined(game, policy.plan.takes_part)
    return game


def differs_in_clients(experiment: Experiment, place: RunDirectory) -> bool:
    """Whether a run may be the same once its clients hold what they have recorded."""
    if not place.exists:
        return False
    return set(place.differences(experiment)) in ({"clients.initial_volume"}, {"clients.file"})


def _finished(experiment: Experiment, place: RunDirectory, callbacks: Callbacks) -> Run:
    """A run that has finished already."""
    records, summary = place.records(), place.summary or {}
    early = summary.get("stopped_early") is True
    rounds = summary.get("rounds") if early else experiment.game.num_rounds
    if len(records) != rounds:
        raise InputError.of(f"{place.folder}/metrics.jsonl", f"of {rounds} rounds", len(records))
    callbacks.begin(experiment, place.folder)
    for record in records:
        callbacks.round_end(record)
    run = Run(experiment, records, place.weights(), place.folder, early, place.plan(experiment))
    callbacks.end(run)
    return run


def _begin(run: Run, place: RunDirectory, federation: Federation, force: bool) -> Run:
    """Write what is known before the first round, or resume the run that is there."""
    if not place.exists:
        place.begin(run.experiment, run.plan, run.data, force)
        return run
    place.check_data(run.data)
    state, records = place.resume()
    if state is not None:
        try:
            federation.restore(state)
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise InputError(f"{place.folder}/checkpoint.npz must be of this run: {error}") from None
    return replace(run, records=records)


def _rounds(
    run: Run, federation: Federation, place: RunDirectory | None, callbacks: Callbacks, policy: Policy
) -> Run:
    records, every = run.records, run.experiment.training.checkpoint_every
    callbacks.begin(run.experiment, run.folder)
    action = None
    for record in records:
        action = callbacks.round_end(record)
    while not federation.done and action is not Action.FINISH:
        again = policy.review(records, federation.held) if isinstance(policy, Replanned) else None
        record = federation.play()
        records.append(record if again is None else replace(record, replan=again))
        if place is not None:
            place.add(records[-1])
        action = callbacks.round_end(records[-1])
        ends = federation.done or action is not None
        if place is not None and (ends or federation.round % every == 0):
            place.checkpoint(federation.state())
        if action is Action.PAUSE and not federation.done:
            run = replace(run, held=federation.held())
            callbacks.end(run)
            return run
    early, held = not federation.done, federation.held()
    run = replace(run, weights=federation.named(), stopped_early=early, held=held)
    if place is not None:
        place.finish(run.weights, run.summary())
    callbacks.end(run)
    return run


def short_name(spec: Spec) -> str:
    """The name of a plugin without its module or directory, for tables."""
    text = _name(spec)
    return Path(text).name if text.endswith(SUFFIXES) else text.rpartition(":")[2].strip("<>")


def _performance(record: Record) -> float:
    """The accuracy of a round, or the negative loss of regression; less than any number if it is unknown."""
    score = -record.loss if np.isnan(record.accuracy) else record.accuracy
    return -np.inf if np.isnan(score) else score


def _name(spec: Spec) -> str:
    return spec.name if isinstance(spec, Dataset | Recording) else describe(spec)


def _fingerprint(weights: Named) -> str:
    """The same for the same weights, bit for bit."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()[:16] if weights else ""


def data_fingerprint(dataset: Dataset | Recording) -> str:
    """The same for the same samples, times and clients."""
    digest = hashlib.sha256()
    for part in (dataset.samples,) if isinstance(dataset, Recording) else (dataset.train, dataset.test):
        digest.update(np.ascontiguousarray(part.features).data)
        digest.update(part.labels.tobytes())
    if isinstance(dataset, Recording):
        digest.update(dataset.times.tobytes())
        digest.update(b"" if dataset.clients is None else dataset.clients.tobytes())
    return digest.hexdigest()[:16]
