"""How the loss changes during the late rounds of a training, whatever the offer.

A law is about the mean over the late rounds. In most trainings the model still learns there, or the periods
of a recording differ. So each quarter of the late rounds has a mean of its own: by how much it differs from
the mean over all of them is measured in the pilots, with its standard deviation between them.
"""

from collections.abc import Sequence

import numpy as np

from dufl.calibration.measurements import Metric, left_out
from dufl.experiment.train import Run
from dufl.game.loss import PowerLaw
from dufl.learning.tracking import late_blocks, measured_loss

LEAST = 2  # trainings


def course_of(runs: Sequence[Run], metric: Metric) -> dict[str, tuple[float, ...]]:
    """The fields `course` and `course_deviation` of a law; empty if the trainings do not tell."""
    lengths = {len(run.records) for run in runs}
    if len(runs) < LEAST or len(lengths) > 1:
        return {}
    law = PowerLaw(measured_from=left_out(runs[0]))
    blocks = late_blocks(law, lengths.pop())
    rows = []
    for run in runs:
        losses = np.array([measured_loss(record, metric) for record in run.records])
        means = np.array([_mean(losses[block.start : block.stop]) for block in blocks])
        rows.append(means - _mean(losses[blocks[0].start :]))
    known = np.array([row for row in rows if np.isfinite(row).all()])
    if len(known) < LEAST:
        return {}
    return {
        "course": tuple(known.mean(axis=0).tolist()),
        "course_deviation": tuple(known.std(axis=0, ddof=1).tolist()),
    }


def _mean(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> float:
    """The mean of the values that are known; NaN if none is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
