"""The run directory of a run on Flower: that of `dufl train`, with deal and ledger beside."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dufl.data.datasets import Dataset
from dufl.experiment.config import Config
from dufl.experiment.output import FLOWER
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.train import Run, data_fingerprint
from dufl.flower.checkpoint import rounds_done
from dufl.flower.deal import Deal
from dufl.flower.server import DataUpdateStrategy, Round
from dufl.game.dynamics import staleness
from dufl.game.parameters import Game
from dufl.game.utility import cost_of_rounds
from dufl.learning.engine import Named
from dufl.learning.federation import Record

Watch = Callable[[Record], None]


class RunRecorder:
    """Writes the run directory of a run on Flower."""

    def __init__(self, config: Config, dataset: Dataset, folder: Path, watch: Watch = lambda _: None) -> None:
        self._config = config
        self._data = data_fingerprint(dataset)
        self._place = RunDirectory(folder, FLOWER)
        self._watch = watch
        self._records: list[Record] = []
        self._began = time.perf_counter()
        self._strategy: DataUpdateStrategy | None = None

    def begin(self, strategy: DataUpdateStrategy) -> None:
        """Write what is known, or take up the run that is there."""
        self._strategy = strategy
        if not self._place.exists:
            self._place.begin(self._config, None, self._data)
            return
        self._place.check_same(self._config)
        self._place.check_data(self._data)
        self._records = self._place.cut(rounds_done(self._place.folder))
        for record in self._records:
            self._watch(record)

    def add(self, round: Round) -> None:
        """A round that is over."""
        game, deal = self._config.game, self._strategy.deal if self._strategy else None
        size = max(game.clients.size, *(claim.client + 1 for claim in round.claims), 1)
        volumes = [0] * size
        for claim in round.claims:
            volumes[claim.client] = claim.volume
        total = sum(volumes)
        age = sum(claim.volume * claim.mean_age for claim in round.claims) / total if total else 1.0
        paid = deal.payment if deal is not None and round.cents else 0.0
        history = [(r.payment, r.total_volume, r.mean_age) for r in self._records] + [(paid, total, age)]
        cost = cost_of_rounds(game, *np.array(history, dtype=np.float64).T)
        now = time.perf_counter()
        record = Record(
            round=round.round,
            accuracy=float(round.metrics.get("accuracy", np.nan)),
            loss=float(round.metrics.get("loss", np.nan)),
            total_volume=total,
            mean_age=age,
            planned_staleness=_planned(game, deal, round.round),
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
        )
        self._began = now
        self._records.append(record)
        self._place.add(record)
        self._watch(record)

    def finish(self, weights: Named) -> None:
        """The run is over."""
        run = Run(self._config, self._records, weights, self._place.folder)
        self._place.finish(weights, run.summary())


def _planned(game: Game, deal: Deal | None, round: int) -> float | None:
    """The mean age that is planned for a round."""
    if deal is None or deal.first_round:
        return None  # planned again in mid-course
    start = game.clients.initial_mean_staleness
    return float(staleness(deal.announced_volume, deal.conservation_rate, start)[round])
