"""What the server keeps on disk: the deal, a checkpoint after every round, and the directory of the run."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import INFO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp.strategy import Result, Strategy

from dufl.data.client_data import ClientData
from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.errors import InputError
from dufl.experiment.arrays import read_sealed, write_sealed
from dufl.experiment.config import Experiment
from dufl.experiment.files import from_json, to_json, write_text
from dufl.experiment.output import FLOWER
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.train import Run, data_fingerprint
from dufl.flower.deal import Deal
from dufl.flower.ledger import Claim, Ledger
from dufl.flower.messages import AnyArray, from_arrays, to_arrays
from dufl.game.dynamics import staleness
from dufl.game.mean_field import starting_staleness
from dufl.game.parameters import Game
from dufl.game.utility import cost_of_rounds
from dufl.learning.engine import Named
from dufl.learning.federation import Record

_METRICS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
OnRecord = Callable[[Record], None]


@runtime_checkable
class Stateful(Protocol):
    """A strategy with state besides the model, which must survive a restart of the server."""

    def state(self) -> Mapping[str, AnyArray]:
        """The state, as arrays by name."""

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from a state."""


@dataclass
class Round:
    """The outcome of a round.

    Attributes:
        round: t, from 0.
        deal: the deal that applies to it.
        claims: of the clients whose updates were used, by client.
        refused: the clients whose updates were refused, and why.
        missing: the clients that did not reply.
        unselected: the clients that the strategy did not select.
        bounded: the clients whose updates were scaled down, with their size relative to the median.
        cents: the amount paid.
        metrics: of the server's own evaluation.
    """

    round: int
    deal: Deal
    claims: list[Claim] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    unselected: list[int] = field(default_factory=list)
    bounded: dict[int, float] = field(default_factory=dict)
    cents: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def volume(self) -> int:
        """The number of samples of all claims."""
        return sum(claim.volume for claim in self.claims)

    @property
    def mean_age(self) -> float:
        """The mean age of the samples of all claims; 1 if there are none."""
        aged = sum(round(claim.volume * claim.mean_age) for claim in self.claims)  # ages are integers
        return aged / self.volume if self.volume else 1.0


class ServerStore:
    """The directory in which a server that was killed finds everything to resume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._deal = folder / "deal.json"
        self._checkpoint = folder / "server.npz"
        self._results = folder / "results.json"

    @property
    def has_deal(self) -> bool:
        """Whether a deal has been made."""
        return self._deal.exists()

    def save_deal(self, deal: Deal) -> None:
        """Write a deal."""
        write_text(self._deal, deal.to_json())

    def load_deal(self, num_rounds: int) -> Deal:
        """Read the deal, which must be for a run of `num_rounds` rounds."""
        try:
            deal = Deal.from_json(self._deal.read_text(encoding="utf-8"))
            planned = deal.num_rounds
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self._deal} must be undamaged: {error!r}", field=str(self._deal)) from None
        if planned != num_rounds:
            raise InputError.of("num_rounds", f"{planned}, as in the run in {self.folder}", num_rounds)
        return deal

    def ledger(self) -> Ledger:
        """The ledger, open."""
        return Ledger(self.folder / "ledger.sqlite")

    def save_checkpoint(self, strategy: Strategy, rounds: int, arrays: ArrayRecord) -> None:
        """Write the model and the state of the strategy after `rounds` rounds."""
        state = strategy.state() if isinstance(strategy, Stateful) else {}
        values = {f"array {name}": value for name, value in from_arrays(arrays).items()}
        values |= {f"state {name}": _without_objects(name, value) for name, value in state.items()}
        write_sealed(self._checkpoint, values | {"round": np.array(rounds)})

    def load_checkpoint(self, strategy: Strategy, initial: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Restore the strategy; returns the number of finished rounds and the model after them."""
        values = self._read()
        rounds = int(values.pop("round"))
        if not rounds:
            return 0, initial
        state = {name.removeprefix("state "): values[name] for name in values if name.startswith("state ")}
        model = {name.removeprefix("array "): values[name] for name in values if name.startswith("array ")}
        if set(model) != set(initial):
            path = str(self._checkpoint)
            raise InputError.of(path, f"a checkpoint of a model with {sorted(initial)}", sorted(model))
        if isinstance(strategy, Stateful):
            strategy.restore(state)
        log(INFO, "resumed after round %s", rounds)
        return rounds, to_arrays({name: model[name] for name in initial})

    def save_results(self, results: Result) -> None:
        """Write the metrics of all rounds so far."""
        tables = {
            kind: {str(round): dict(metrics) for round, metrics in getattr(results, kind).items()}
            for kind in _METRICS
        }
        write_text(self._results, to_json(tables))

    def load_results(self, rounds: int) -> Result:
        """The metrics of the first rounds; none if there are none yet."""
        results = Result()
        if not rounds or not self._results.exists():
            return results
        try:
            tables = from_json(self._results.read_text(encoding="utf-8"))
            for kind in _METRICS:
                known = {int(round): MetricRecord(metrics) for round, metrics in tables[kind].items()}
                getattr(results, kind).update({r: known[r] for r in sorted(known) if r <= rounds})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = self._results
            raise InputError(f"{path} must be undamaged: {error!r}", field=str(path)) from None
        return results

    @property
    def rounds_done(self) -> int:
        """The number of finished rounds in the checkpoint."""
        return int(self._read()["round"])

    def _read(self) -> dict[str, AnyArray]:
        if not self._checkpoint.exists():
            return {"round": np.array(0)}
        try:
            values = read_sealed(self._checkpoint)
            int(values["round"])
        except (ValueError, KeyError, TypeError) as error:
            path = self._checkpoint
            raise InputError(f"{path} must be an undamaged checkpoint: {error}", field=str(path)) from None
        return values


def _without_objects(name: str, value: Any) -> AnyArray:
    """An array that can be read without running code."""
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise InputError.of(f"{name!r} in the state of the strategy", "an array of numbers", repr(value))
    return array


class RunRecorder:
    """Writes the run directory of `dufl train` for a run on Flower.

    Args:
        config: of the run.
        dataset: of the run; only its fingerprint is stored.
        data: the streams of the run, which know its periods.
        folder: the run directory.
        on_record: called with the record of every round.
    """

    def __init__(
        self,
        config: Experiment,
        dataset: Dataset | Recording,
        data: ClientData,
        folder: Path,
        on_record: OnRecord = lambda _: None,
    ) -> None:
        self._config = config
        self._fingerprint = data_fingerprint(dataset)
        self._data = data
        self._directory = RunDirectory(folder, FLOWER)
        self._on_record = on_record
        self._records: list[Record] = []
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Start a run directory, or resume the run in it."""
        if not self._directory.exists:
            self._directory.begin(self._config, None, self._fingerprint)
            return
        self._directory.check_same(self._config)
        self._directory.check_data(self._fingerprint)
        self._records = self._directory.cut(ServerStore(self._directory.folder).rounds_done)
        for record in self._records:
            self._on_record(record)

    def add(self, round: Round) -> None:
        """Record a finished round."""
        game = self._config.game
        size = max(game.clients.size, *(claim.client + 1 for claim in round.claims), 1)
        volumes = [0] * size
        for claim in round.claims:
            volumes[claim.client] = claim.volume
        paid = round.deal.offer.payment if round.cents else 0.0
        history = [(r.payment, r.total_volume, r.mean_age) for r in self._records]
        history.append((paid, round.volume, round.mean_age))
        cost = cost_of_rounds(game, *np.array(history, dtype=np.float64).T)
        now = time.perf_counter()
        record = Record(
            round=round.round,
            accuracy=float(round.metrics.get("accuracy", np.nan)),
            loss=float(round.metrics.get("loss", np.nan)),
            total_volume=round.volume,
            mean_age=round.mean_age,
            planned_staleness=_planned_staleness(game, round),
            payment=paid,
            server_cost=cost.total,
            cost_of_payment=float(cost.payment.sum()),
            cost_of_volume=float(cost.volume.sum()),
            cost_of_staleness=float(cost.staleness.sum()),
            classes=max((claim.classes for claim in round.claims), default=0),
            volumes=volumes,
            participants=len(round.claims),
            dropped=round.missing,
            refused={str(client): reason for client, reason in round.refused.items()},
            seconds=now - self._began,
            metrics={name: float(round.metrics[name]) for name in ("rmse", "r2") if name in round.metrics},
            shortfall=sum(max(claim.committed - claim.volume, 0) for claim in round.claims),
            period=self._data.period(round.round),
            bounded={str(client): ratio for client, ratio in round.bounded.items()} or None,
        )
        self._began = now
        self._records.append(record)
        self._directory.add(record)
        self._on_record(record)

    def finish(self, weights: Named) -> None:
        """Write the model and the summary."""
        agreed = self._directory.agreed_plan(self._config)
        run = Run(self._config, self._records, weights, self._directory.folder, agreed=agreed)
        self._directory.finish(weights, run.summary())


def _planned_staleness(game: Game, round: Round) -> float | None:
    """The planned mean age in a round; None if the deal was renegotiated during the run."""
    deal = round.deal
    if deal.first_round:
        return None
    announced, trim = deal.announcement.announced_volume, deal.announcement.trim_start
    payment, rate = deal.offer.payment, deal.offer.conservation_rate
    start = starting_staleness(game.clients, payment, rate, announced, "mean-field", trim)
    return float(staleness(announced, rate, start)[round.round])
