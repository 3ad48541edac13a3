"""ψ² and σ² fitted to distances of gradients, with intervals, and the slopes of a law to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.calibration.intervals import expanded_percentiles
from dufl.game.loss import AGE, PowerLaw

Array = npt.NDArray[np.float64]
Interval = tuple[float, float]
RESAMPLED = 200
PASSES = 6  # of reweighting


@dataclass(frozen=True)
class Distance:
    """A measurement: the mean over some draws of a buffer.

    Attributes:
        round: t, of the point w.
        client: whose buffer it is.
        volume: D.
        staleness: S.
        scarcity: 1/D, with the corrections.
        distance: the squared distance of the gradients.
    """

    round: int
    client: int
    volume: float
    staleness: float
    scarcity: float
    distance: float


def fit_noise(measurements: Sequence[Distance]) -> tuple[float, float, float]:
    """ψ², σ² and R²: the non-negative least squares fit to some distances, relative to their size."""
    matrix, distance = _table(measurements)
    psi2, sigma2 = _solve(matrix, distance)
    size = np.maximum(matrix @ [psi2, sigma2], 1e-300)
    mean = np.average(distance, weights=size**-2.0)
    spread = float(np.sum(((distance - mean) / size) ** 2))
    left = float(np.sum((distance / size - 1) ** 2))
    return float(psi2), float(sigma2), 1 - left / spread if spread else float("nan")


def _table(measurements: Sequence[Distance]) -> tuple[Array, Array]:
    rows = np.array([(m.scarcity, m.staleness, m.distance) for m in measurements])
    return rows[:, :2], rows[:, 2]


def _solve(matrix: Array, distance: Array) -> Array:
    """ψ² and σ². A squared distance varies in proportion to its mean, so residuals are divided by the fit."""
    from scipy.optimize import nnls

    scale = np.maximum(matrix.max(axis=0), 1e-300)
    size = np.maximum(distance, 1e-300)
    for _ in range(PASSES):
        found = np.asarray(nnls(matrix / size[:, None] / scale, distance / size)[0] / scale)
        size = np.maximum(matrix @ found, 1e-300)
    return found


def fit_intervals(measured: Sequence[Distance], seed: int) -> dict[str, Interval]:
    """Intervals of ψ and σ. Resampled are pairs of a client and a point, whose distances belong together."""
    groups: dict[tuple[int, int], list[Distance]] = {}
    for m in measured:
        groups.setdefault((m.client, m.round), []).append(m)
    tables = [_table(group) for group in groups.values()]
    generator = np.random.default_rng([seed, 16])
    drawn = []
    for _ in range(RESAMPLED):
        which = generator.integers(len(tables), size=len(tables))
        matrix = np.concatenate([tables[i][0] for i in which])
        drawn.append(_solve(matrix, np.concatenate([tables[i][1] for i in which])))
    low, high = np.sqrt(expanded_percentiles(np.array(drawn), len(tables), 2)).tolist()
    return {"psi": (low[0], high[0]), "sigma": (low[1], high[1])}


def slopes(law: PowerLaw, scarcity: Array, staleness: Array) -> tuple[Array, Array]:
    """∂ℓ/∂(N/D) and ∂ℓ/∂S of a law, from the derivatives of its terms: (x^p)' = p·x^p/x."""
    volume = law.volume_exponent * law.volume_weight * scarcity**law.volume_exponent
    age = law.staleness_exponent * law.staleness_weight * (staleness / AGE) ** law.staleness_exponent
    flow = law.flow_exponent * law.flow_weight * (scarcity * staleness) ** law.flow_exponent
    return (volume + flow) / scarcity, (age + flow) / staleness
