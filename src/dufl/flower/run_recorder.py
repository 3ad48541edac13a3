"""Writes the directory of a run on Flower, which is that of `dufl train`.

Of a service, nothing in memory grows with the number of rounds: costs are added up, and records are on disk.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dufl.data.client_data import ClientData
from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.experiment.config import Experiment
from dufl.experiment.output import FLOWER
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.train import Run, data_fingerprint
from dufl.flower.deal import Deal
from dufl.flower.server_store import Round, ServerStore
from dufl.game.dynamics import staleness
from dufl.game.loss import PowerLaw, remember
from dufl.game.mean_field import starting_staleness
from dufl.game.parameters import Game
from dufl.game.utility import cost_of_rounds
from dufl.learning.engine import Named
from dufl.learning.federation import Record

OnRecord = Callable[[Record], None]


@dataclass(frozen=True)
class Costs:
    """The server's cost of the rounds so far, by term.

    Attributes:
        payment: the payment term.
        volume: the loss from too little data.
        staleness: the loss from old data.
        remembered: what a loss law with a memory has counted before.
        whole: the sum of the terms, if it was not added up term by term.
    """

    payment: float = 0.0
    volume: float = 0.0
    staleness: float = 0.0
    remembered: tuple[float, float] | None = None
    whole: float | None = None

    def after(self, game: Game, payment: float, volume: int, mean_age: float) -> "Costs":
        """With one more round of a service, where all rounds count the same."""
        law, remembered = game.loss, None
        if isinstance(law, PowerLaw) and law.memory:
            before = law.remembered if self.remembered is None else self.remembered
            game = game.replace(loss=law.replace(remembered=before))
            held, weight = remember(np.array([float(volume)]), law.memory, before)
            remembered = float(held[-1]), float(weight[-1])
        cost = cost_of_rounds(game, np.array([payment]), np.array([float(volume)]), np.array([mean_age]))
        return Costs(
            self.payment + float(cost.payment[0]),
            self.volume + float(cost.volume[0]),
            self.staleness + float(cost.staleness[0]),
            remembered,
        )

    @property
    def total(self) -> float:
        """The cost of all rounds."""
        return self.payment + self.volume + self.staleness if self.whole is None else self.whole


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
        self._endless = config.game.horizon == "endless"
        self._directory = RunDirectory(folder, FLOWER, in_memory=not self._endless)
        self._on_record = on_record
        self._records: list[Record] = []  # of a service, the last one only
        self._costs = Costs()
        self._began = time.perf_counter()
        self._deal: Deal | None = None  # that of the last round
        self._planned: Sequence[float] = ()  # the mean ages according to the deal

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
        if self._endless and self._records:
            self._costs = _costs_of(self._config.game, self._records)
            self._records = self._records[-1:]

    def add(self, round: Round) -> None:
        """Record a finished round."""
        game = self._config.game
        size = max(game.clients.size, *(claim.client + 1 for claim in round.claims), 1)
        volumes = [0] * size
        for claim in round.claims:
            volumes[claim.client] = claim.volume
        paid = round.payment
        costs = self._costs_after(paid, round)
        now = time.perf_counter()
        record = Record(
            round=round.round,
            accuracy=float(round.metrics.get("accuracy", np.nan)),
            loss=float(round.metrics.get("loss", np.nan)),
            total_volume=round.volume,
            mean_age=round.mean_age,
            planned_staleness=self._planned_staleness(round),
            payment=paid,
            server_cost=costs.total,
            cost_of_payment=costs.payment,
            cost_of_volume=costs.volume,
            cost_of_staleness=costs.staleness,
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
            scores={str(k): [score.mean, score.low, score.high] for k, score in round.scores.items()} or None,
            held={str(entry.client): entry.reason for entry in round.entries if entry.held} or None,
        )
        self._began = now
        self._costs = costs
        self._records = [record] if self._endless else [*self._records, record]
        self._directory.add(record, durable=True)
        self._on_record(record)

    def _costs_after(self, paid: float, round: Round) -> Costs:
        game = self._config.game
        if self._endless:
            return self._costs.after(game, paid, round.volume, round.mean_age)
        history = [(r.payment, r.total_volume, r.mean_age) for r in self._records]
        history.append((paid, round.volume, round.mean_age))
        cost = cost_of_rounds(game, *np.array(history, dtype=np.float64).T)
        payment, volume, age = (float(term.sum()) for term in (cost.payment, cost.volume, cost.staleness))
        return Costs(payment, volume, age, whole=cost.total)

    def _planned_staleness(self, round: Round) -> float | None:
        """The planned mean age in a round; None if it is not known what the deal began with."""
        deal, before = round.deal, self._deal
        if deal is not before:
            start = self._starting_staleness(round, before)
            announced, rate = deal.announcement.announced_volume, deal.offer.conservation_rate
            self._planned = () if start is None else staleness(announced, rate, start).tolist()
            self._deal = deal
        return self._planned[round.round - deal.first_round] if self._planned else None

    def _starting_staleness(self, round: Round, before: Deal | None) -> float | None:
        """The mean age in the first round of a deal, by the law of staleness from the round before."""
        deal = round.deal
        announced, payment, rate = (
            deal.announcement.announced_volume,
            deal.offer.payment,
            deal.offer.conservation_rate,
        )
        if not deal.first_round:
            trim, clients = deal.announcement.trim_start, self._config.game.clients
            return starting_staleness(clients, payment, rate, announced, "mean-field", trim)
        if not self._endless or before is None or round.round != deal.first_round or not self._records:
            return None
        last = self._records[-1]
        kept = before.offer.conservation_rate * last.total_volume
        share = min(kept / float(announced[0]), 1.0) if announced[0] > 0 else 0.0
        return 1 + share * last.mean_age

    def finish(self, weights: Named) -> None:
        """Write the model and the summary."""
        agreed, records = self._directory.agreed_plan(self._config), self._records
        if self._endless:
            records = self._directory.records()
        if not records:
            return  # the budget pays for no round
        early = self._endless and len(records) != self._config.total_rounds
        run = Run(self._config, records, weights, self._directory.folder, early, agreed=agreed)
        self._directory.finish(weights, run.summary())


def _costs_of(game: Game, records: Sequence[Record]) -> Costs:
    """The costs of the rounds of a service so far."""
    last, law, remembered = records[-1], game.loss, None
    if isinstance(law, PowerLaw) and law.memory:
        volumes = np.array([record.total_volume for record in records], np.float64)
        held, weight = remember(volumes, law.memory, law.remembered)
        remembered = float(held[-1]), float(weight[-1])
    return Costs(last.cost_of_payment, last.cost_of_volume, last.cost_of_staleness, remembered)
