"""What a run says about the loss law: its scarcity, its staleness, and what the model was worth there.

A run is one point (N/D, S) with the error, the loss or the RMSE that was measured there. Early rounds are
left out: the model has not learned yet, and the first buffers are still dying out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.experiment.train import Run

Array = npt.NDArray[np.float64]
Metric = Literal["error", "loss", "rmse"]
SIMULATED, RECORDED = 0.6, 0.2  # the share of the rounds that is left out


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
    """

    payment: float
    conservation_rate: float
    seed: int
    scarcity: float
    staleness: float
    value: float
    final: float


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
    clients = run.experiment.game.clients.size
    scarcity = np.array([clients / record.total_volume for record in late])
    ages = np.array([record.mean_age for record in late])
    rate = conservation_rate
    if rate is None:
        rate = run.plan.conservation_rate if run.plan is not None else float("nan")
    payment = float(np.mean([record.payment for record in run.records]))
    return Measurement(
        payment=payment,
        conservation_rate=rate,
        seed=run.experiment.training.seed,
        scarcity=float(scarcity.mean()),
        staleness=float(ages.mean()),
        value=float(values[known].mean()),
        final=_value(run.records[-1], metric),
    )


def _value(record: Any, metric: Metric) -> float:
    if metric == "error":
        return 1 - float(record.accuracy)
    return float(record.metrics.get("rmse", np.nan)) if metric == "rmse" else float(record.loss)


def columns(measurements: Sequence[Measurement]) -> tuple[Array, Array, Array]:
    """Scarcity, staleness and value of all measurements, as arrays."""
    rows = [(m.scarcity, m.staleness, m.value) for m in measurements]
    scarcity, staleness, value = np.array(rows, np.float64).T
    return scarcity, staleness, value
