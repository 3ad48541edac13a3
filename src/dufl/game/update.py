"""A loss law, updated with what one run has measured.

A run is mostly at one point (N/D, S). It cannot tell the parameters β of a law apart, so the law is not
fitted again. What a calibration knows, β ~ N(β₀, Σ), is the prior. Block i of the run's rounds has the
measured mean loss

    yᵢ = mean_t ℓ_β(N/D(t), S(t)) + r + eᵢ,    r ~ N(0, s²),    eᵢ ~ N(0, s² + dᵢ²)

where s is the noise of the law, and dᵢ is what the block scatters beyond it. r is what the run has of its
own, such as its seed, in all of its rounds; the floor takes it. So the prior of this run is P = Σ + s²·e₀e₀ᵀ,
with e₀ the floor. Rounds of a block are correlated: their mean is one measurement. With the rows
gᵢ = mean_t ∂ℓ/∂β at β₀ in G, the posterior is

    β = β₀ + K·(y − ℓ(β₀)),    K = P·Gᵀ·(G·P·Gᵀ + diag(s² + dᵢ²))⁻¹,    covariance P − K·G·P

(generalized least squares with a ridge, to first order). A weight or exponent that would leave its bounds is
measured to be at the bound, without noise. If the covariance is 0 or not known, only the floor moves; if the
noise is 0 too, nothing does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dufl.game.loss import PARAMETERS, Array, PowerLaw

LEAST_EXPONENT, LARGEST_EXPONENT = 0.01, 50.0
KNOWN = 1e-12  # the share of a variance at which something is known exactly
Seen = tuple[Array, float, float]  # the gradient, how much the law missed, and the variance of the noise


@dataclass(frozen=True, eq=False)
class Observation:
    """The mean loss of some rounds.

    Attributes:
        scarcity: N/D of the rounds.
        staleness: their mean staleness S.
        value: the mean loss that was measured in them, in the unit of the law.
        deviation: the standard deviation of the measurement beyond the noise of the law.
    """

    scarcity: Array
    staleness: Array
    value: float
    deviation: float = 0.0


def updated(law: PowerLaw, observations: Sequence[Observation]) -> PowerLaw:
    """The law of a run, given what its rounds measured.

    >>> law = PowerLaw(floor=0.1, volume_weight=0.3, noise=0.01)
    >>> seen = Observation(np.array([0.1]), np.array([2.0]), value=0.15)
    >>> round(updated(law, [seen]).floor, 3)
    0.11
    """
    seen = [
        (
            law.gradient(o.scarcity, o.staleness).mean(axis=1),
            o.value - float(np.mean(law(o.scarcity, o.staleness))),
            law.noise**2 + o.deviation**2,
        )
        for o in observations
    ]
    if not seen:
        return law
    low, high = _bounds(law)
    pinned: dict[int, float] = {}
    while True:
        pins = [(np.eye(len(PARAMETERS))[i], step, 0.0) for i, step in pinned.items()]
        change, covariance = _posterior(_prior(law), seen + pins)
        outside = [i for i in np.flatnonzero((change < low) | (change > high)).tolist() if i not in pinned]
        if not outside:
            break
        pinned[outside[0]] = float(np.clip(change, low, high)[outside[0]])
    moved = law.parameters + np.clip(change, low, high)
    rows = tuple(tuple(row) for row in covariance.tolist())
    return law.replace(**dict(zip(PARAMETERS, moved.tolist(), strict=True)), covariance=rows)


def _prior(law: PowerLaw) -> Array:
    """P: the covariance of the law, and the noise as one of the floor."""
    size = len(PARAMETERS)
    prior = np.zeros((size, size)) if law.covariance is None else np.array(law.covariance)
    prior[0, 0] += law.noise**2
    return prior


def _bounds(law: PowerLaw) -> tuple[Array, Array]:
    """By how much the parameters may fall and rise: weights stay >= 0, and exponents in their range."""
    low = np.array([_least(name, getattr(law, name)) for name in PARAMETERS])
    high = np.array([LARGEST_EXPONENT if name.endswith("exponent") else np.inf for name in PARAMETERS])
    return low - law.parameters, high - law.parameters


def _least(name: str, value: float) -> float:
    if name.endswith("exponent"):
        return min(LEAST_EXPONENT, value)
    return -np.inf if name == "floor" else 0.0


def _posterior(prior: Array, seen: Sequence[Seen]) -> tuple[Array, Array]:
    """The change of the parameters and their covariance, one measurement after the other.

    That is the same as all at once. A measurement of what is known exactly by now is left out.
    """
    change, covariance = np.zeros(len(prior)), prior
    for row, missed, noise in seen:
        gain = covariance @ row
        variance = float(row @ gain) + noise
        if variance <= KNOWN * float(row @ prior @ row):
            continue
        change = change + gain / variance * (missed - float(row @ change))
        covariance = covariance - np.outer(gain, gain) / variance
    return change, covariance
