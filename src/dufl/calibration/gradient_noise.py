"""The noise of gradients as measured: ψ and σ fitted to distances, and what follows from them.

See `dufl.calibration.gradients` for how it is measured.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from dufl.calibration.calibrate import FAIR, GOOD, Calibration
from dufl.calibration.measurements import columns
from dufl.calibration.noise_fit import Distance, Interval, fit_noise, slopes
from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.experiment.frames import make_frame
from dufl.game.parameters import ConvergenceWeights, convergence_weights

CHANGED = 1.5  # the ratio of two values of ψ above which it is not the same number


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
        experiment: what was trained.
        recorded: whether the data were recorded.
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
    experiment: Experiment
    recorded: bool

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

    @property
    def verdict(self) -> str:
        """How well ψ²/D + σ²·S describes the distances, what it means, and whether Theorem 1 applies."""
        parts = (self._quality(), self._constancy(), self._meaning(), self._theorem())
        return " ".join(filter(None, parts))

    def _quality(self) -> str:
        how = f"R² {self.r2:.2f}"
        if self.r2 >= GOOD:
            return f"ψ²/D + σ²·S describes the gradients well ({how})."
        if self.r2 >= FAIR:
            return f"ψ²/D + σ²·S describes the gradients roughly ({how})."
        return f"ψ²/D + σ²·S does not describe the gradients ({how}): do not plan with it."

    def _constancy(self) -> str:
        rows = self.by_round()
        values = [row["psi"] for row in rows]
        if len(rows) < 2 or min(values) * CHANGED >= max(values):
            return ""
        first, last = rows[0], rows[-1]
        return (
            f"ψ is not constant: it is {first['psi']:.3g} after round {first['round']} "
            f"and {last['psi']:.3g} after round {last['round']}."
        )

    def _meaning(self) -> str:
        if not self.psi:
            return "The volume makes no difference to the gradients."
        if not self.sigma:
            return "Age makes no difference to the gradients."
        volume = self.psi**2 / self.sigma**2
        return f"One round of mean age changes the gradient as much as having only {volume:,.0f} samples."

    def _theorem(self) -> str:
        if self.weights is not None:
            return (
                "Theorem 1 applies at the points that were measured. It bounds the loss, and says nothing "
                "about accuracy: for that, fit a law to trainings."
            )
        return (
            f"Theorem 1 does not apply: it requires 0 < μ and η <= 1/(2β) = {0.5 / self.beta:.3g}, "
            f"but μ is {self.mu:.3g} and η is {self.learning_rate:g}."
            if self.beta
            else "Theorem 1 does not apply: the loss has no curvature."
        )

    @property
    def game_values(self) -> dict[str, Any]:
        """What follows for `[game]`: ψ, σ and, if Theorem 1 applies, κ1, κ2 and κ3.

        In a simulation, σ is also what is simulated. It stays, and κ3 is scaled so that κ3·σ² is as measured.
        """
        game = self.experiment.game
        values: dict[str, Any] = {"sampling_noise": self.psi}
        values |= self.weights or {}
        if self.recorded or not game.time_sensitivity:
            return {"time_sensitivity": self.sigma, **values} if self.recorded else values
        weight = values.get("staleness_weight", game.staleness_weight)
        return {**values, "staleness_weight": weight * (self.sigma / game.time_sensitivity) ** 2}

    @property
    def snippet(self) -> str:
        """`game_values` as a section of a TOML file."""
        return tomli_w.dumps({"game": self.game_values})

    def calibrated(self) -> Experiment:
        """The experiment with `game_values`, and without a loss law of its own."""
        game = self.experiment.game.replace(loss=None, **self.game_values)
        return self.experiment.replace(game=game)

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
            "verdict": self.verdict,
            "snippet": self.snippet,
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
