"""A whole run: configuration → plan → rounds → records, in memory or in a run directory."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dufl.data.datasets import Dataset
from dufl.errors import InputError
from dufl.experiment.config import Config
from dufl.experiment.run_directory import RunDirectory
from dufl.learning.engine import Named, make_engine
from dufl.learning.federation import Federation, Record
from dufl.learning.policies import Planned, Policy, make_policy

Watch = Callable[[Record], None]


@dataclass(frozen=True, eq=False)
class Run:
    """What came of training.

    Attributes:
        config: what it was told.
        records: one a round.
        weights: the model, by the names of its parameters; empty if it was stopped.
        folder: its run directory, if it has one.
    """

    config: Config
    records: list[Record]
    weights: Named = field(default_factory=dict)
    folder: Path | None = None

    def __repr__(self) -> str:
        training, total = self.config.training, self.config.game.num_rounds
        what = f"{self.config.data.dataset}, {training.model}, {training.algorithm}, {training.policy}"
        score = f", accuracy {100 * self.accuracy:.2f} %" if self.records else ""
        where = f", in {self.folder}" if self.folder else ""
        return f"Run({what}: {len(self.records)} of {total} rounds{score}{where})"

    @property
    def finished(self) -> bool:
        """Whether all rounds are over."""
        return len(self.records) == self.config.game.num_rounds

    @property
    def accuracy(self) -> float:
        """On the test samples, after the last round."""
        return self.records[-1].accuracy

    def summary(self) -> dict[str, Any]:
        """The run in a few numbers."""
        last, training = self.records[-1], self.config.training
        best = max(self.records, key=lambda record: record.accuracy)
        return {
            "dataset": self.config.data.dataset,
            "model": training.model,
            "algorithm": training.algorithm,
            "policy": training.policy,
            "seed": training.seed,
            "rounds": len(self.records),
            "final_accuracy": last.accuracy,
            "final_loss": last.loss,
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
            "seconds": sum(record.seconds for record in self.records),
            "fingerprint": _fingerprint(self.weights),
        }


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    tensorboard: bool = False,
    dataset: Dataset | None = None,
    watch: Watch = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train a federation.

    Args:
        config: what to do; see `dufl.load_config`.
        out: a run directory to write; without one nothing is kept but what is returned.
        resume: go on with the run that is there.
        force: write there even if the directory holds something else; a run that is there is never replaced.
        tensorboard: write events for TensorBoard into the run directory.
        dataset: the one that the configuration names, if it is loaded already.
        watch: called after every round with its record; when resuming, first with those that are there.
        stop: asked after every round; if it says so, a checkpoint is written and the run is left.
    """
    if out == "":
        raise InputError.of("--out", "the name of a directory", "an empty text")
    place = None if out is None else RunDirectory(Path(out))
    if place is None and (resume or tensorboard):
        raise InputError(f"out must be given with {'resume' if resume else 'tensorboard'}=True")
    if place is not None:
        place.check_free(config, resume, force)
        if place.summary is not None:
            return _over(config, place, watch)
    found = dataset or config.data.load()
    settings, game = config.training, config.game
    simulation = config.data.simulation(found, game, settings.seed)
    policy = make_policy(settings.policy, game, config.solve, settings.seed)
    engine = make_engine(found, simulation, settings, game.clients.size)
    try:
        federation = Federation(game, simulation, policy, settings, engine)
        if place is None:
            return _rounds(config, federation, None, None, [], watch, stop)
        with place.locked():  # all that can be wrong has shown itself: nothing is written before
            records = _begin(config, place, federation, policy, found, force)
            events = _events(place, federation.round) if tensorboard else None
            return _rounds(config, federation, place, events, records, watch, stop)
    finally:
        engine.close()


def _over(config: Config, place: RunDirectory, watch: Watch) -> Run:
    """A run that is over already."""
    records = place.records()
    if len(records) != config.game.num_rounds:
        raise InputError.of(
            f"{place.folder}/metrics.jsonl", f"of {config.game.num_rounds} rounds", len(records)
        )
    for record in records:
        watch(record)
    return Run(config, records, place.weights(), place.folder)


def _begin(
    config: Config,
    place: RunDirectory,
    federation: Federation,
    policy: Policy,
    dataset: Dataset,
    force: bool,
) -> list[Record]:
    """Write what is known, or take up the run that is there; its records so far."""
    data = data_fingerprint(dataset)
    if not place.exists:
        place.begin(config, policy.plan if isinstance(policy, Planned) else None, data, force)
        return []
    place.check_data(data)
    state, records = place.resume()
    if state is not None:
        try:
            federation.restore(state)
        except (KeyError, ValueError, IndexError, TypeError) as fault:
            raise InputError(f"{place.folder}/checkpoint.npz must be of this run: {fault}") from None
    return records


def _rounds(
    config: Config,
    federation: Federation,
    place: RunDirectory | None,
    events: Watch | None,
    records: list[Record],
    watch: Watch,
    stop: Callable[[], bool],
) -> Run:
    folder = None if place is None else place.folder
    for record in records:
        watch(record)
    while not federation.done:
        records.append(federation.play())
        stopping = stop() and not federation.done
        if place is not None:
            place.add(records[-1])
            due = federation.done or federation.round % config.training.checkpoint_every == 0
            if due or stopping:
                place.checkpoint(federation.state())
        if events is not None:
            events(records[-1])
        watch(records[-1])
        if stopping:
            return Run(config, records, folder=folder)
    run = Run(config, records, federation.named(), folder)
    if place is not None:
        place.finish(run.weights, run.summary())
    return run


def _events(place: RunDirectory, begun: int) -> Watch:
    """A writer of TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("tensorboard needs TensorBoard: pip install 'dufl[tensorboard]'") from None
    writer = SummaryWriter(str(place.folder), purge_step=begun)

    def write(record: Record) -> None:
        for name in (
            "accuracy",
            "loss",
            "total_volume",
            "mean_age",
            "planned_staleness",
            "payment",
            "server_cost",
        ):
            value = getattr(record, name)
            if value is not None:
                writer.add_scalar(name, value, record.round)
        writer.flush()

    return write


def _fingerprint(weights: Named) -> str:
    """The same for the same weights, bit for bit."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()[:16] if weights else ""


def data_fingerprint(dataset: Dataset) -> str:
    """The same for the same samples."""
    digest = hashlib.sha256()
    for part in (dataset.train, dataset.test):
        digest.update(np.ascontiguousarray(part.features).data)
        digest.update(part.labels.tobytes())
    return digest.hexdigest()[:16]
