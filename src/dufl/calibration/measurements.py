"""What a run says about the loss law: its scarcity, its staleness, and what the model was worth there.

A run is one point (N/D, S) with the error, the loss or the RMSE that was measured there. Early rounds are
left out: the model has not learned yet, and the first buffers are still dying out.

How much of earlier rounds the model remembers is not known before the fit. So a measurement has N/D for
several memories; see `dufl.game.loss`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.experiment.train import Run
from dufl.game.loss import PowerLaw, scarcity_of

Array = npt.NDArray[np.float64]
Metric = Literal["error", "loss", "rmse"]
SIMULATED, RECORDED = 0.8, 0.2  # the share of the rounds that is left out
COUNTED = 0.25  # of the range of all values: a measurement that is worse by this much counts half
MEMORIES = (0.0, 0.1, 0.25, 0.5, 1.0)  # of the rounds: the memories that are compared


@dataclass(frozen=True)
class Measurement:
    """A run as a measurement of the loss law.

    Attributes:
        payment: R of the run, per round.
        conservation_rate: θ; NaN if the policy has none.
        seed: of the run.
        scarcity: the mean of N/D(t) over the late rounds.
        staleness: the mean age of the samples in the late rounds.
        value: the mean of the metric over the late rounds.
        final: the metric in the last round.
        first_volume: the samples per client in the first round.
        remembered: the mean of N/D(t) over the late rounds by memory, in rounds; the present volume alone if
            it is empty.
    """

    payment: float
    conservation_rate: float
    seed: int
    scarcity: float
    staleness: float
    value: float
    final: float
    first_volume: float = 0.0
    remembered: Mapping[float, float] = field(default_factory=dict)

    @property
    def memories(self) -> tuple[float, ...]:
        """The memories for which the scarcity is known, ascending."""
        return tuple(self.remembered) or (0.0,)

    def scarcity_with(self, memory: float) -> float:
        """The mean of N/D(t) over the late rounds with a memory."""
        return self.remembered.get(memory, self.scarcity)

    def row(self) -> dict[str, float]:
        """The measurement in plain numbers."""
        return {name: value for name, value in vars(self).items() if name != "remembered"}


def left_out(run: Run) -> float:
    """The share of the first rounds that is left out: more in simulation, where classes arrive first."""
    return RECORDED if run.records[-1].period is not None else SIMULATED


def measure(run: Run, metric: Metric = "error", conservation_rate: float | None = None) -> Measurement:
    """The measurement of a finished run; its conservation rate is that of its plan, if it is not given."""
    first = int(left_out(run) * len(run.records))
    late = [record for record in run.records[first:] if record.total_volume > 0]
    values = np.array([_value(record, metric) for record in late])
    known = np.isfinite(values)
    if not known.any():
        raise InputError.of("metric", f"one that was measured in {run!r}", metric, text=repr(metric))
    remembered = _remembered(run, first)
    ages = np.array([record.mean_age for record in late])
    rate = conservation_rate
    if rate is None:
        rate = run.plan.conservation_rate if run.plan is not None else float("nan")
    payment = float(np.mean([record.payment for record in run.records]))
    return Measurement(
        payment=payment,
        conservation_rate=rate,
        seed=run.experiment.training.seed,
        scarcity=remembered[0.0],
        staleness=float(ages.mean()),
        value=float(values[known].mean()),
        final=_value(run.records[-1], metric),
        first_volume=run.records[0].total_volume / run.experiment.game.clients.size,
        remembered=remembered,
    )


def _remembered(run: Run, first: int) -> dict[float, float]:
    """The mean scarcity of the late rounds with data, by memory."""
    volume = np.array([record.total_volume for record in run.records], np.float64)
    clients, rounds = run.experiment.game.clients.size, run.experiment.game.num_rounds
    late = volume[first:] > 0
    memories = [share * rounds for share in MEMORIES]
    return {m: float(scarcity_of(PowerLaw(memory=m), clients, volume)[first:][late].mean()) for m in memories}


def _value(record: Any, metric: Metric) -> float:
    if metric == "error":
        return 1 - float(record.accuracy)
    return float(record.metrics.get("rmse", np.nan)) if metric == "rmse" else float(record.loss)


def columns(measurements: Sequence[Measurement], memory: float = 0.0) -> tuple[Array, Array, Array]:
    """Scarcity with a memory, staleness and value of all measurements, as arrays."""
    rows = [(m.scarcity_with(memory), m.staleness, m.value) for m in measurements]
    scarcity, staleness, value = np.array(rows, np.float64).T
    return scarcity, staleness, value


def relevance(measurements: Sequence[Measurement]) -> Array:
    """How much each measurement counts in a fit, from 0 to 1: less if nobody would make its offer.

    A training that is worse than another one, which paid no more and began with no more samples, was at an
    offer that no plan will choose. It counts 1/(1 + (x/c)²) if it is worse by x, where c is a quarter of the
    range of all values.

    >>> cheap, good, bad = ((1.0, 0.3), (2.0, 0.1), (2.5, 0.5))
    >>> made = [Measurement(paid, 0.5, 0, 0.01, 2.0, value, value) for paid, value in (cheap, good, bad)]
    >>> relevance(made).round(2).tolist()
    [1.0, 1.0, 0.06]
    """
    value = np.array([m.value for m in measurements])
    spent = np.array([(m.payment, m.first_volume) for m in measurements])
    no_dearer = (spent[None, :] <= spent[:, None] * (1 + 1e-9)).all(axis=2)
    worse = value - np.where(no_dearer, value, np.inf).min(axis=1)
    return np.asarray(1 / (1 + (worse / max(COUNTED * float(np.ptp(value)), 1e-12)) ** 2))
