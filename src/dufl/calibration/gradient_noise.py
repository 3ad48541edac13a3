"""The noise of gradients as measured: ψ and σ fitted to distances, and what follows from them.

See `dufl.calibration.gradients` for how it is measured.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.calibration.calibrate import Calibration
from dufl.calibration.intervals import expanded_percentiles
from dufl.calibration.measurements import columns
from dufl.errors import InputError
from dufl.experiment.frames import make_frame
from dufl.game.loss import AGE, PowerLaw
from dufl.game.parameters import ConvergenceWeights, convergence_weights

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


@dataclass(frozen=True)
class Curvature:
    """The smallest (on the span of the data) and the largest eigenvalue of the Hessian in a round."""

    round: int
    mu: float
    beta: float


@dataclass(frozen=True, eq=False, repr=False)
class GradientNoise:
    """The constants of Assumption 7 and Theorem 1, as measured.

    Attributes:
        psi: ψ, for `Game(sampling_noise=...)`.
        sigma: σ, for `Game(time_sensitivity=...)`.
        intervals: of `psi` and `sigma`, with a probability of 90 %, by resampling clients and points.
        r2: the share of the variance of the distances, relative to their size, that the fit explains;
            negative if a constant describes them better, and the assumption does not.
        mu: μ, the smallest eigenvalue of the Hessian on the span of the data; an upper bound if the model is
            large.
        beta: β, its largest eigenvalue.
        learning_rate: η of the experiment.
        measurements: the distances.
        curvature: by point; the first is the model before training.
    """

    psi: float
    sigma: float
    intervals: dict[str, Interval]
    r2: float
    mu: float
    beta: float
    learning_rate: float
    measurements: tuple[Distance, ...]
    curvature: tuple[Curvature, ...]

    @property
    def weights(self) -> ConvergenceWeights | None:
        """κ1, κ2 and κ3 of Theorem 1; None if its conditions on μ, β and η do not hold."""
        try:
            return convergence_weights(self.mu, self.beta, self.learning_rate)
        except InputError:
            return None

    @property
    def ratio(self) -> float:
        """κ3·σ²/(κ2·ψ²): the weight of S relative to that of N/D. In Theorem 1, κ3/κ2 = 1/2."""
        return 0.5 * self.sigma**2 / self.psi**2 if self.psi else float("nan")

    def fitted(self, scarcity: npt.ArrayLike, staleness: npt.ArrayLike) -> Any:
        """ψ²·(1/D) + σ²·S."""
        return self.psi**2 * np.asarray(scarcity) + self.sigma**2 * np.asarray(staleness)

    def by_round(self) -> list[dict[str, float]]:
        """ψ, σ and R² of the measurements of each point alone: how much they depend on the model."""
        rows = []
        for point in sorted({m.round for m in self.measurements}):
            psi2, sigma2, r2 = fit_noise([m for m in self.measurements if m.round == point])
            rows.append({"round": point, "psi": psi2**0.5, "sigma": sigma2**0.5, "r2": r2})
        return rows

    def compared_with(self, calibration: Calibration) -> dict[str, float]:
        """The ratio of weights in Theorem 1 and in a law that was fitted to trainings.

        The ratio of a law is (∂ℓ/∂S)/(∂ℓ/∂(N/D)), which is constant in Theorem 1. It is computed at every
        pilot training: the median, the least and the largest. `factor` is by how much the law weighs
        staleness more than the bound does; NaN or infinite if an effect is zero.
        """
        scarcity, staleness, _ = columns(calibration.measurements)
        by_volume, by_staleness = slopes(calibration.law, scarcity, staleness)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = by_staleness / by_volume
            factor = np.median(ratios) / np.float64(self.ratio)
        return {
            "bound": self.ratio,
            "law": float(np.median(ratios)),
            "law_least": float(ratios.min()),
            "law_largest": float(ratios.max()),
            "factor": float(factor),
            "scarcity": float(np.median(scarcity)),
            "staleness": float(np.median(staleness)),
        }

    def summary(self) -> dict[str, Any]:
        """The measurement in plain numbers, ready for JSON."""
        return {
            "sampling_noise": self.psi,
            "time_sensitivity": self.sigma,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "r2": self.r2,
            "strong_convexity": self.mu,
            "smoothness": self.beta,
            "learning_rate": self.learning_rate,
            "weights": self.weights,
            "ratio": self.ratio if self.psi else None,
            "by_round": self.by_round(),
            "curvature": [asdict(c) for c in self.curvature],
            "measurements": [self._row(m) for m in self.measurements],
        }

    def _row(self, m: Distance) -> dict[str, float]:
        return {**asdict(m), "fitted": float(self.fitted(m.scarcity, m.staleness))}

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with one row per measurement: measured and fitted distance."""
        return make_frame([self._row(m) for m in self.measurements])

    def __repr__(self) -> str:
        return f"GradientNoise(psi={self.psi:.4g}, sigma={self.sigma:.4g}, R² {self.r2:.3f})"


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
