"""Calibration: train at a few offers, fit the loss law, and say in words what it means."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from dufl.calibration.course import course_of
from dufl.calibration.fit import LEAST, Fit, fit_laws
from dufl.calibration.measurements import (
    RECORDED,
    SIMULATED,
    Array,
    Measurement,
    Metric,
    columns,
    left_out,
    measure,
)
from dufl.calibration.pilots import Pilot, informative, promising
from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.data.replay import Replay
from dufl.errors import InputError
from dufl.experiment.callbacks import Callback
from dufl.experiment.config import Experiment, as_experiment, law_table
from dufl.experiment.frames import make_frame
from dufl.experiment.train import Run, train
from dufl.game.loss import PARAMETERS, PowerLaw
from dufl.game.parameters import Game, Offer, require_rounds
from dufl.game.plan import equilibrium
from dufl.late import late
from dufl.learning.federation import Record

PILOTS = 24
SPREAD = 2 / 3  # of the pilots are spread; the others follow the law that was fitted to these
SEEDS = 4  # that pilots take in turn, so that the law predicts other seeds too
GOOD, FAIR = 0.8, 0.5  # held-out R²
SMALL = 0.01  # an effect that does not matter: one point of accuracy
OnPilot = Callable[[int, Offer, Record], None]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """What trainings say about the loss law.

    Attributes:
        law: the chosen law with its covariance, for `Game(loss=...)`.
        fit: how well it describes the measurements, and measurements left out.
        candidates: all fitted forms.
        measurements: one per training.
        experiment: what was trained; None if it was fitted to runs of several experiments.
        recorded: whether the data were recorded.
    """

    law: PowerLaw
    fit: Fit
    candidates: tuple[Fit, ...]
    measurements: tuple[Measurement, ...]
    experiment: Experiment | None = None
    recorded: bool = False

    @property
    def r2_heldout(self) -> float:
        """R² on offers that were left out of the fit."""
        return self.fit.heldout_r2

    @property
    def points(self) -> tuple[Array, Array, Array]:
        """Scarcity as the law counts it, staleness and measured value of all trainings."""
        return columns(self.measurements, self.law.memory)

    @property
    def effects(self) -> tuple[float, float]:
        """By how much the loss falls with volume and rises with age, over the range that was tried."""
        scarcity, staleness, _ = self.points
        x, s = float(np.median(scarcity)), float(np.median(staleness))
        law = self.law.replace(oldest=None)
        volume = law(scarcity.max(), s) - law(scarcity.min(), s)
        age = law(x, staleness.max()) - law(x, staleness.min())
        return float(volume), float(age)

    @property
    def trusted(self) -> bool:
        """Whether the law describes the measurements well enough to plan with it."""
        return self._matters_not or self.r2_heldout >= FAIR

    @property
    def _matters_not(self) -> bool:
        """Whether nothing that was tried made a difference beyond noise."""
        values = columns(self.measurements)[2]
        return float(np.ptp(values)) < SMALL

    @property
    def verdict(self) -> str:
        """What the law says, and how far it can be trusted."""
        said = (self._quality(), self._meaning() if self.trusted else "", self._limits())
        return " ".join(filter(None, said))

    def _quality(self) -> str:
        if self._matters_not:
            return "Neither volume nor age made a difference of a point in the trainings."
        error = (
            f"{100 * self.fit.heldout_rmse:.1f} points"
            if self.law.unit == "error"
            else f"{self.fit.heldout_rmse:.3g}"
        )
        found = f"held-out R² {self.r2_heldout:.2f}, typical error {error}"
        if self.r2_heldout >= GOOD:
            return f"The law describes the trainings well ({found})."
        if self.r2_heldout >= FAIR:
            return f"The law describes the trainings roughly ({found})."
        return f"The law does not describe the trainings ({found}): do not plan with it."

    def _meaning(self) -> str:
        volume, age = self.effects
        least = max(SMALL, self.fit.heldout_rmse) if self.law.unit == "error" else self.fit.heldout_rmse
        both = f"volume changes the {self.law.unit} by {volume:.3g} and age by {age:.3g}"
        shown = f"over the range that was tried, {both}"
        if age < least and volume < least:
            return f"Neither matters much: keep everything and pay little ({shown})."
        if age < least:
            return f"Age does not matter here: keep everything and pay little ({shown})."
        if volume < least:
            return f"Only age matters here: keep little, fresh data is enough ({shown})."
        if age > 2 * volume:
            return f"Age matters most: keep little ({shown})."
        return f"Both matter: the plan has to weigh them ({shown})."

    def _limits(self) -> str:
        scarcity, staleness, _ = self.points
        low, high = 1 / scarcity.max(), 1 / scarcity.min()
        return (
            f"It holds for {low:,.0f} to {high:,.0f} samples per client and a mean age of "
            f"{staleness.min():.1f} to {staleness.max():.1f} rounds, and as long as the data drift as before."
        )

    def calibrated(self) -> Experiment:
        """The experiment with the law, planned by it, and with offers limited to the range that was tried."""
        experiment = self.experiment or Experiment()
        return experiment.replace(
            policy="dufl", game=experiment.game.replace(loss=self.law, **self._ranges(experiment.game))
        )

    def _ranges(self, game: Game) -> dict[str, Any]:
        """Conservation rates up to the largest that was tried, and payments from the smallest on.

        The law says nothing about older or fewer data. On recorded data, payments go up to the largest: more
        money cannot buy samples that do not exist.
        """
        least, most = game.conservation_range
        tried = max([m.conservation_rate for m in self.measurements if m.conservation_rate < 1], default=most)
        paid = [m.payment for m in self.measurements if m.payment > 0] or [0.0]
        low, high = game.payment_range
        low = min(max(low, min(paid)), high)
        return {
            "conservation_range": (least, max(least, min(most, tried))),
            "payment_range": (low, max(low, min(high, max(paid)) if self.recorded else high)),
        }

    @property
    def snippet(self) -> str:
        """The law and the ranges in which it holds, as a section of a TOML file."""
        game = (self.experiment or Experiment()).game
        ranges = {name: list(ends) for name, ends in self._ranges(game).items()}
        return tomli_w.dumps({"game": {**ranges, "loss": law_table(self.law)}})

    def summary(self) -> dict[str, Any]:
        """The calibration in plain numbers, ready for JSON."""
        return {
            "law": self.law.model_dump(exclude={"covariance"}),
            "form": self.fit.form.name,
            "r2": self.fit.r2,
            "r2_heldout": self.r2_heldout,
            "rmse_heldout": self.fit.heldout_rmse,
            "trusted": self.trusted,
            "verdict": self.verdict,
            "intervals": {name: list(ends) for name, ends in self.fit.intervals.items()},
            "effect_of_volume": self.effects[0],
            "effect_of_age": self.effects[1],
            "candidates": [
                {
                    "form": fit.form.name,
                    "r2": fit.r2,
                    "r2_heldout": fit.heldout_r2,
                    "law": dict(zip(PARAMETERS, fit.law.parameters.tolist(), strict=True)),
                }
                for fit in self.candidates
            ],
            "pilots": [self._row(m) for m in self.measurements],
            "snippet": self.snippet,
        }

    def _row(self, m: Measurement) -> dict[str, float]:
        return {**m.row(), "fitted": self.fitted(m)}

    def fitted(self, m: Measurement) -> float:
        """What the law says about a training."""
        return float(self.law(m.scarcity_with(self.law.memory), m.staleness))

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with one row per training: offer, scarcity, staleness, measured and fitted."""
        return make_frame([self._row(m) for m in self.measurements])

    def plot(self, **options: Any) -> Any:
        """A matplotlib figure: measured against fitted, and the loss over volume and age."""
        return late("dufl.report.calibration_figure:plot_calibration")(self, **options)

    def __repr__(self) -> str:
        trainings = f"{len(self.measurements)} trainings"
        return f"Calibration({self.fit.form.name}, held-out R² {self.r2_heldout:.3f}, {trainings})"


def calibrate(
    experiment: Experiment | Game | None = None,
    *,
    pilots: int = PILOTS,
    metric: Metric | None = None,
    out: str | Path | None = None,
    callbacks: Iterable[Callback | Callable[[Record], Any]] = (),
    on_pilot: OnPilot = lambda _index, _offer, _record: None,
) -> Calibration | None:
    """Train at some offers and fit the loss law to the results.

    Args:
        experiment: what to train: game, data and training. Its policy and loss law do not matter.
        pilots: the number of trainings; see `dufl.calibration.pilots` for their offers.
        metric: "error" (1 − accuracy), "loss", or "rmse"; by default the error, or the RMSE for regression.
        out: a directory with one run directory per training; trainings in it are not repeated.
        callbacks: of every training.
        on_pilot: called with the number of the training, its offer and the record of every round.

    Returns:
        The calibration; None if a callback paused a training.
    """
    chosen = as_experiment(experiment)
    require_rounds(chosen.game)
    dataset = chosen.data.load()
    plain = chosen.replace(game=chosen.game.replace(loss=None)).fitted(dataset)
    recorded = isinstance(dataset, Recording)
    regression = isinstance(dataset, Recording) and dataset.task == "regression"
    unit: Metric = metric or ("rmse" if regression else "error")
    supply = _supply(plain, dataset)
    first = max(min(LEAST, pilots), round(SPREAD * pilots))
    late = RECORDED if recorded else SIMULATED
    spread = informative(plain.game, first, late, supply)
    if len(spread) < first:
        raise InputError.of(
            "pilots", "possible: no offer in payment_range and conservation_range can be tried", pilots
        )
    runs: list[Run] = []

    def tried(pilot: Pilot) -> bool:
        """Train one pilot; False if a callback paused it."""
        index, game, offer = len(runs), pilot.game(plain.game), pilot.offer
        plan = equilibrium(game, payment=offer.payment, conservation_rate=offer.conservation_rate)
        seed = plain.training.seed + (index + index // 2) % SEEDS  # all of them for both starts
        run = train(
            plain.planned_once().replace(game=game, policy=plan, seed=seed),
            out=None if out is None else Path(out) / f"pilot-{index:02d}",
            resume=out is not None,
            dataset=dataset,
            callbacks=[lambda record: on_pilot(index, offer, record), *callbacks],
        )
        runs.append(run)
        return run.finished

    if not all(map(tried, spread)):
        return None
    so_far = fit_runs(runs, unit, plain, supply=supply)
    if pilots > first:
        paid = [pilot.offer.payment for pilot in spread]
        if not all(map(tried, promising(so_far.calibrated().game, pilots - first, late, paid))):
            return None
        return fit_runs(runs, unit, plain, supply=supply)
    return so_far


def fit_runs(
    runs: Sequence[Run],
    metric: Metric = "error",
    experiment: Experiment | None = None,
    rates: Sequence[float | None] = (),
    supply: float = math.inf,
) -> Calibration:
    """The calibration from runs that exist.

    Args:
        runs: the runs.
        metric: what to describe.
        experiment: what to plan with the law.
        rates: the conservation rates of the runs, if their plans are not known.
        supply: the number of samples per client and round that exist.
    """
    given = rates or [None] * len(runs)
    measured = tuple(measure(run, metric, rate) for run, rate in zip(runs, given, strict=True))
    fit, candidates = fit_laws(measured, metric)
    oldest = max(m.staleness for m in measured)
    law = fit.law.replace(
        measured_from=left_out(runs[0]),
        oldest=oldest,
        most_collected=supply if math.isfinite(supply) else None,
        **course_of(runs, metric),
    )
    recorded = runs[0].records[-1].period is not None
    return Calibration(law, fit, tuple(candidates), measured, experiment, recorded)


def _supply(experiment: Experiment, dataset: Dataset | Recording) -> float:
    """The mean number of samples that a client can collect in a round."""
    data = experiment.data.client_data(dataset, experiment.game, experiment.training.seed)
    if not isinstance(data, Replay):
        return math.inf
    edges = data.timeline.edges
    return float(edges[-1] - edges[0]) / data.timeline.num_rounds / experiment.game.clients.size
