"""What little data and old data cost the model: the loss law ℓ(N/D, S) in the server's cost.

D is the total volume, so N/D is how scarce samples are per client, and S is their mean staleness.

    ConvergenceBound    κ2·ψ²·(N/D) + κ3·σ²·S        terms (2) and (3) of Theorem 1: a bound
    PowerLaw            floor + a·(N/D)^p + b·(S/10)^q + e·(N·S/D)^r        a description, fitted to trainings

In the steady state a client collects D/S samples per round, so N·S/D is how scarce *fresh* samples are. A
power law is in units of what was measured: the error 1 − accuracy, the loss, or the RMSE. With p = q = 1,
e = 0 and the weights of the bound it is the bound.

A model also remembers: rounds with much data taught it more, and it does not forget them at once. With a
`memory` of m rounds, D(t) in the law is the mean of all volumes so far, weighted by exp(−age/m); without one
it is the present volume. In the steady state both are the same. Memory distinguishes a federation that begins
with large buffers from one that does not.

The clients' game does not contain the law. Any law keeps the equilibrium, its uniqueness and its certificate;
only the server's choice changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.inputs import Inputs, Interval, NonNegative, Number, Positive, must_be
from dufl.plugins import is_description

Array = npt.NDArray[np.float64]
Unit = Literal["error", "loss", "rmse"]
OwnLaw = Callable[[Array, Array], npt.ArrayLike]  # (N/D, S) → loss of a round
AGE = 10.0  # rounds: the staleness at which the second term of a power law equals its weight
PARAMETERS = (
    "floor",
    "volume_weight",
    "volume_exponent",
    "staleness_weight",
    "staleness_exponent",
    "flow_weight",
    "flow_exponent",
)
LISTS = ("covariance", "course", "course_deviation")
Exponent = Annotated[Number, must_be("in (0, 50]", lambda v: 0 < v <= 50)]
Covariance = Annotated[
    tuple[tuple[Number, ...], ...],
    must_be(
        f"a matrix of {len(PARAMETERS)} × {len(PARAMETERS)} numbers",
        lambda m: len(m) == len(PARAMETERS) and all(len(row) == len(PARAMETERS) for row in m),
    ),
]
Remembered = Annotated[Interval, must_be("two numbers >= 0", lambda v: min(v) >= 0)]


class PowerLaw(Inputs):
    """The loss of a round as a sum of powers of scarcity N/D, staleness S and their product.

    Attributes:
        floor: the loss with any amount of fresh data.
        volume_weight: a, the loss added by one sample per client.
        volume_exponent: p.
        staleness_weight: b, the loss added by a mean staleness of ten rounds.
        staleness_exponent: q.
        flow_weight: e, the loss added by one fresh sample per client and round.
        flow_exponent: r.
        unit: what the loss is: "error" (1 − accuracy), "loss" or "rmse".
        covariance: of the parameters in the order above; None if their uncertainty is not known.
        noise: the standard deviation of a measurement around the law, in the unit of the law.
        oldest: the largest staleness that was tried. Older data may be useless: beyond it, the loss rises by
            1 whenever the staleness rises by this much. None if the law holds for any age.
        most_collected: the largest collection per client and round that exists, on recorded data. A plan that
            asks for more does not get it. None if there is no limit.
        measured_from: the share of the rounds after which it was measured; predictions are means over the
            rounds after it.
        memory: m, for how many rounds the model remembers the volumes that it was trained on; 0 counts only
            the present volume.
        remembered: the weighted sum of earlier volumes and the sum of their weights, if the game begins
            during a run.
        course: by how much the loss of each quarter of these rounds differs from their mean, in most
            trainings; empty if that is not known.
        course_deviation: the standard deviation of it between trainings; empty is 0.

    >>> law = PowerLaw(floor=0.1, volume_weight=0.3, volume_exponent=0.5)
    >>> law(0.01, 1.0)
    0.13
    """

    floor: Number = 0.0
    volume_weight: NonNegative = 0.0
    volume_exponent: Exponent = 1.0
    staleness_weight: NonNegative = 0.0
    staleness_exponent: Exponent = 1.0
    flow_weight: NonNegative = 0.0
    flow_exponent: Exponent = 1.0
    unit: Unit = "error"
    covariance: Covariance | None = None
    noise: NonNegative = 0.0
    oldest: Positive | None = None
    most_collected: Positive | None = None
    measured_from: Annotated[Number, must_be("in [0, 1)", lambda v: 0 <= v < 1)] = 0.0
    memory: NonNegative = 0.0
    remembered: Remembered = (0.0, 0.0)
    course: tuple[Number, ...] = ()
    course_deviation: tuple[NonNegative, ...] = ()

    def model_post_init(self, _: Any) -> None:
        """Check the course and its deviation against each other."""
        if self.course_deviation and len(self.course_deviation) != len(self.course):
            rule = f"as many numbers as course, {len(self.course)}"
            raise InputError.of("course_deviation", rule, len(self.course_deviation))

    @property
    def parameters(self) -> Array:
        """All parameters, in the order of `PARAMETERS`."""
        return np.array([getattr(self, name) for name in PARAMETERS])

    def terms(self, scarcity: npt.ArrayLike, staleness: npt.ArrayLike) -> tuple[Array, Array]:
        """The loss above the floor from too little data, and from old data; infinite without any data."""
        x, s = np.asarray(scarcity, np.float64), np.asarray(staleness, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            little = self.volume_weight * x**self.volume_exponent
            if self.flow_weight:
                little = little + self.flow_weight * (x * s) ** self.flow_exponent
            old = self.staleness_weight * (s / AGE) ** self.staleness_exponent
            if self.oldest is not None:
                old = old + np.maximum(s / self.oldest - 1, 0.0)
        return np.where(np.isinf(x), np.inf, little), np.asarray(old)

    @property
    def has_kinks(self) -> bool:
        """Whether the loss has limits beyond which it rises at once."""
        return self.oldest is not None or self.most_collected is not None

    def __call__(self, scarcity: npt.ArrayLike, staleness: npt.ArrayLike) -> Any:
        """ℓ(N/D, S)."""
        little, old = self.terms(scarcity, staleness)
        total = self.floor + little + old
        return total if total.ndim else float(total)

    def deviation(self, scarcity: npt.ArrayLike, staleness: npt.ArrayLike) -> float:
        """The standard deviation of a measured mean loss: of the law, by its covariance, and of the noise."""
        if self.covariance is None:
            return self.noise
        gradient = self.gradient(scarcity, staleness).reshape(len(PARAMETERS), -1).mean(axis=1)
        variance = float(gradient @ np.array(self.covariance) @ gradient)
        return float(np.sqrt(max(variance, 0.0) + self.noise**2))

    def gradient(self, scarcity: npt.ArrayLike, staleness: npt.ArrayLike) -> Array:
        """The derivative of ℓ with respect to every parameter; of shape (7, ...)."""
        x, s = np.asarray(scarcity, np.float64), np.asarray(staleness, np.float64)
        parts = [np.ones(np.broadcast(x, s).shape)]
        for base, weight, exponent in (
            (x + 0 * s, self.volume_weight, self.volume_exponent),
            (s / AGE + 0 * x, self.staleness_weight, self.staleness_exponent),
            (x * s, self.flow_weight, self.flow_exponent),
        ):
            power = base**exponent
            parts += [power, weight * power * np.log(np.maximum(base, 1e-300))]
        return np.array(parts)


class ConvergenceBound(PowerLaw):
    """Terms (2) and (3) of Theorem 1 as a law: κ2·ψ²·(N/D) + κ3·σ²·S. It is a bound, in no unit."""

    @classmethod
    def of(cls, volume_weight: float, staleness_weight: float) -> "ConvergenceBound":
        """The bound with the weights κ2·ψ² and κ3·σ²."""
        return cls(volume_weight=volume_weight, staleness_weight=AGE * staleness_weight)


@dataclass(frozen=True)
class DescribedLaw:
    """A user's own law as a file describes it: the function itself is not known, and neither is any cost.

    Attributes:
        description: in angle brackets.
    """

    description: str

    def __call__(self, scarcity: npt.ArrayLike, staleness: npt.ArrayLike) -> Any:
        """Raises `InputError`: there is nothing to call."""
        check_law(self)


LossLaw = PowerLaw | OwnLaw


def remember(volume: Array, memory: float, before: tuple[float, float] = (0.0, 0.0)) -> tuple[Array, Array]:
    """The sums of all volumes so far, weighted by exp(−age/memory), and of their weights; by round.

    >>> volume, weight = remember(np.array([100.0, 50.0]), memory=1e9)
    >>> (volume / weight).round(6).tolist()
    [100.0, 75.0]
    """
    kept = float(np.exp(-1 / memory)) if memory > 0 else 0.0
    sums = [
        list(accumulate(now, lambda total, value: kept * total + value, initial=first))[1:]
        for now, first in zip((volume.tolist(), [1.0] * len(volume)), before, strict=True)
    ]
    return np.array(sums[0]), np.array(sums[1])


def scarcity_of(law: object, num_clients: float, total_volume: Array) -> Array:
    """N/D(t) as the law counts D(t); infinite in rounds without any data."""
    volume = total_volume
    if isinstance(law, PowerLaw) and law.memory > 0:
        held, weight = remember(total_volume, law.memory, law.remembered)
        volume = np.where(total_volume > 0, held / weight, 0.0)
    scarcity = np.full_like(volume, np.inf, dtype=np.float64)
    with np.errstate(over="ignore"):  # a tiny volume counts as none
        np.divide(num_clients, volume, out=scarcity, where=volume > 0)
    return scarcity


def check_law(law: object) -> None:
    """Raise `InputError` if a law is needed that is only described."""
    if isinstance(law, DescribedLaw):
        advice = "the file describes it, but cannot store it"
        raise InputError.of("game.loss", "given as a function", law.description, advice=advice)


def checked_law(value: object) -> LossLaw | None:
    """A law from a table or a description of a file, a `PowerLaw`, or a function of (N/D, S)."""
    if value is None or isinstance(value, PowerLaw):
        return value
    if isinstance(value, str) and is_description(value):
        return DescribedLaw(value)
    if isinstance(value, dict):
        table: dict[str, Any] = {n: _tupled(v) if n in LISTS else v for n, v in value.items()}
        return PowerLaw(**table)
    if not callable(value):
        rule = "a table of a power law, a PowerLaw, or a function of (N/D, S)"
        raise InputError.of("loss", rule, value, text=f"{value!r:.80}")
    return value


def _tupled(value: object) -> object:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def terms_of(law: LossLaw, scarcity: Array, staleness: Array) -> tuple[Array, Array]:
    """The loss above the floor from too little and from old data; a user's own law is one term.

    NaN if the law is only described: costs are not known then.
    """
    if isinstance(law, PowerLaw):
        return law.terms(scarcity, staleness)
    if isinstance(law, DescribedLaw):
        return np.full(scarcity.shape, np.nan), np.full(scarcity.shape, np.nan)
    there = np.isfinite(scarcity)
    loss = np.full(scarcity.shape, np.inf)
    made = np.asarray(law(np.where(there, scarcity, 1.0), staleness), np.float64)
    if made.shape not in ((), scarcity.shape) or np.isnan(made).any():
        rule = f"numbers of shape {scarcity.shape}"
        raise InputError.of("what the loss law returns", rule, f"{made.dtype} {made.shape}")
    loss[there] = np.broadcast_to(made, scarcity.shape)[there]
    return loss, np.zeros_like(loss)
