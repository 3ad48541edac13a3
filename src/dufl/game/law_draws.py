"""Laws that are plausible after a calibration: draws from the uncertainty of a power law.

The covariance Σ of a fitted law says where its parameters may be: normally distributed around the estimate θ̂,

    θ = θ̂ + A·z,   A·Aᵀ = Σ,   z standard normal.

A fixed set of such laws stands for all of them, drawn from the 90 % ellipsoid zᵀz ≤ χ², the 90 % quantile.
The points z are a low-discrepancy sequence and its mirror image: they need no seed, fill the ellipsoid more
evenly than random points, and cancel in whatever is linear. The estimate is the first law.

The ellipsoid is that of an expansion to first order. Where trainings do not tell two terms apart it is long,
and laws at its ends, taken literally, contradict what was measured. So only the exponents are taken
literally, within (0, 50]. Floor and weights are fitted, as a calibration does, to what the expansion predicts
for the draw,

    ℓ(x, S) + g(x, S)ᵀ·(θ − θ̂),   g the gradient of ℓ, at points (x, S) where gᵀΣg is small,

with weights that are not negative. Parameters without variance stay as they are. If a law still leaves the
simultaneous 90 % band of the predictions, ±sqrt(χ²·gᵀΣg) (Scheffé), the draw is moved towards the estimate.

All laws are evaluated at once. Of a trajectory, the server needs the sum over the rounds

    Σ_t w(t)·[c − ĉ + a·x^p + b·(S/10)^q + e·(x·S)^r],   x = N/φ(t),

relative to the estimated floor ĉ. The floor changes no offer, but it belongs to what a law costs: where a
calibration cannot tell floor and volume apart, a law with more of one has less of the other.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.game.loss import AGE, PARAMETERS, Array, PowerLaw

LAWS = 128  # draws, besides the estimate
CONFIDENCE = 0.9
SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-3, 50.0
SCARCITIES, AGES = np.geomspace(1e-4, 1.0, 13), np.geomspace(1.0, 100.0, 9)  # where predictions are compared
CERTAIN = 3.0  # times the least standard deviation of a prediction: where it counts as small
SHRINK, SHRINKS = 0.8, 20
FLOOR = 0
WEIGHTS, EXPONENTS = [1, 3, 5], [2, 4, 6]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LawDraws:
    """Plausible laws.

    Attributes:
        law: the estimate.
        parameters: of all laws, of shape (laws, 7), the estimate first.
    """

    law: PowerLaw
    parameters: Array

    def __len__(self) -> int:
        return len(self.parameters)

    def losses(self, scarcity: Array, staleness: Array, weight: Array) -> Array:
        """Σ_t w(t)·(ℓ(t) − ĉ) under every law; infinite without any data."""
        if not np.isfinite(scarcity).all():
            return np.full(len(self), np.inf)
        total = (self.parameters[:, FLOOR] - self.law.floor) * weight.sum()
        with np.errstate(over="ignore", divide="ignore"):
            volume, age = np.log(scarcity), np.log(staleness / AGE)
            bases = (volume, age, np.log(scarcity * staleness))
            for base, a, p in zip(bases, self.parameters.T[1::2], self.parameters.T[2::2], strict=True):
                if a.any():
                    total = total + a * np.einsum("lt,t->l", np.exp(np.multiply.outer(p, base)), weight)
        if self.law.oldest is not None:
            total = total + float(weight @ np.maximum(staleness / self.law.oldest - 1, 0.0))
        return np.asarray(total)


def draw_laws(law: PowerLaw, laws: int = LAWS) -> LawDraws:
    """Plausible laws: the estimate, and draws from its uncertainty. Only the estimate if that is zero.

    >>> draw_laws(PowerLaw(volume_weight=1.0, covariance=((0.0,) * 7,) * 7)).parameters.shape
    (1, 7)
    """
    root = _root(law)
    if root.shape[1] == 0:
        return LawDraws(law, law.parameters[None])
    points, radius = _points(root.shape[1], laws)
    expansion = _Expansion.of(law)
    drawn = [expansion.plausible(step, radius) for step in points @ root.T]
    return LawDraws(law, np.array([law.parameters, *drawn]))


@dataclass(frozen=True, eq=False)
class _Expansion:
    """The expansion of a law to first order, at points where its predictions are certain."""

    estimate: Array  # θ̂
    free: Flags  # which parameters have a variance
    bases: Array  # x, S/10 and x·S at the points
    prediction: Array  # ℓ at the points
    gradient: Array  # of shape (7, points)
    deviation: Array  # of the predictions

    @classmethod
    def of(cls, law: PowerLaw) -> "_Expansion":
        ages = AGES if law.oldest is None else AGES[max(law.oldest, AGES[0]) >= AGES]
        x, s = (grid.ravel() for grid in np.meshgrid(SCARCITIES, ages))
        gradient, covariance = law.gradient(x, s), np.array(law.covariance)
        deviation = np.sqrt(np.einsum("ir,ij,jr->r", gradient, covariance, gradient).clip(0.0))
        near = deviation <= CERTAIN * deviation.min()
        bases = np.array([x, s / AGE, x * s])[:, near]
        free = np.diag(covariance) > 0
        prediction = np.asarray(law.replace(oldest=None)(x, s))[near]
        width = np.maximum(deviation[near], 1e-12)
        return cls(law.parameters, free, bases, prediction, gradient[:, near], width)

    def plausible(self, step: Array, radius: float) -> Array:
        """The law of a draw θ̂ + step, moved towards the estimate until its predictions are in the band."""
        for shrinks in range(SHRINKS):
            law = self._fitted(SHRINK**shrinks * step)
            away = np.abs(self._terms(law).sum(axis=0) - self.prediction)
            if (away <= radius * self.deviation * (1 + 1e-6)).all():
                return law
        return self.estimate

    def _terms(self, law: Array) -> Array:
        """Floor and terms at the points."""
        powers = law[WEIGHTS, None] * self.bases ** law[EXPONENTS, None]
        return np.concatenate([np.full((1, self.bases.shape[1]), law[FLOOR]), powers])

    def _fitted(self, step: Array) -> Array:
        """The law with the exponents of a draw, whose floor and weights fit the predicted change."""
        from scipy.optimize import nnls

        law = self.estimate.copy()
        law[EXPONENTS] = np.clip((law + step)[EXPONENTS], SMALLEST_EXPONENT, LARGEST_EXPONENT)
        fitted = [j for j in (FLOOR, *WEIGHTS) if self.free[j]]
        if not fitted:
            return law
        law[fitted] = 1.0
        columns = self._terms(law)[[0 if j == FLOOR else 1 + WEIGHTS.index(j) for j in fitted]]
        law[fitted] = 0.0
        target = self.prediction + step @ self.gradient - self._terms(law).sum(axis=0)
        signed = [*columns, -columns[0]] if FLOOR in fitted else [*columns]  # a floor may be negative
        matrix = np.array(signed).T / self.deviation[:, None]
        size = np.linalg.norm(matrix, axis=0)
        found = nnls(matrix / size, target / self.deviation)[0] / size
        law[fitted] = found[: len(fitted)]
        if FLOOR in fitted:
            law[FLOOR] -= found[-1]
        return law


def _root(law: PowerLaw) -> Array:
    """A with A·Aᵀ = Σ, one column per independent direction."""
    if law.covariance is None:
        raise InputError.of("robust", "left out unless the loss law has a covariance", None, text="none")
    covariance = np.array(law.covariance)
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.outer(deviation, deviation)
    relative = np.divide(covariance, scale, out=np.zeros_like(covariance), where=scale > 0)
    values, vectors = np.linalg.eigh((relative + relative.T) / 2)
    sound = np.allclose(relative, relative.T, atol=1e-6) and values.min() > -1e-6
    if not sound or (np.abs(covariance[scale == 0]) > 0).any():
        rule = f"symmetric and positive semidefinite, over {', '.join(PARAMETERS)}"
        raise InputError.of("loss.covariance", rule, law.covariance, text="another matrix")
    kept = values > 1e-10
    return np.asarray(deviation[:, None] * vectors[:, kept] * np.sqrt(values[kept]))


def _points(dimensions: int, count: int) -> tuple[Array, float]:
    """Standard normal points within the 90 % ball, in pairs ±z, and the radius of the ball.

    They come from an additive recurrence: multiples of the powers of 1/g, where g^(d+1) = g + 1, modulo 1.
    """
    from scipy.special import chdtri, ndtri

    golden = 2.0
    for _ in range(64):
        golden = (1 + golden) ** (1 / (dimensions + 1))
    steps = golden ** -np.arange(1.0, dimensions + 1)
    z = ndtri((0.5 + np.multiply.outer(np.arange(1, 2 * count), steps)) % 1.0)
    squared = chdtri(dimensions, 1 - CONFIDENCE)
    inside = z[(z**2).sum(axis=1) <= squared][: count // 2]
    return np.stack([inside, -inside], axis=1).reshape(-1, dimensions), float(np.sqrt(squared))
