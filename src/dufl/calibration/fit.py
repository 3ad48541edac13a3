"""Fit loss laws to measurements, and choose among them by what they predict for offers left out.

A law is linear in its floor and weights once the exponents are given. So the exponents are searched, from
several starts, and for each of them the floor and the weights are the best non-negative ones (variable
projection with non-negative least squares). Nothing can run away, and no term can have a negative weight.
Outliers count less: squared residuals beyond 1.35 standard deviations grow linearly (Huber). So do trainings
at offers that no plan will choose (`relevance`): no form is exact everywhere, and it has to be right where
plans are made.

The candidates are nested. Each is judged by its mean absolute error on offers that were left out of its fit,
with the same weights: squared errors would be those of the few trainings that no form describes. The simplest
form within 10 % of the least error is chosen: a term that does not predict is left out.

The memory is chosen first, by how well volume and staleness then describe the measurements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.calibration.intervals import expanded_percentiles
from dufl.calibration.measurements import Measurement, columns, relevance
from dufl.errors import InputError
from dufl.game.loss import AGE, PARAMETERS, PowerLaw, Unit

Array = npt.NDArray[np.float64]
VOLUME, STALENESS, FLOW = "volume", "staleness", "flow"
BOUNDS = {VOLUME: (0.05, 2.0), STALENESS: (0.25, 12.0), FLOW: (0.05, 2.0)}
STARTS = {VOLUME: (0.2, 0.5, 1.0), STALENESS: (1.0, 4.0), FLOW: (0.3, 1.0)}
SEARCH = {"xatol": 1e-3, "fatol": 1e-12, "maxiter": 120}
GRID = {0: 1, 1: 400, 2: 100, 3: 24}  # exponents per term in the bootstrap, by the number of terms
HUBER = 1.35
ALLOWED = 1.1  # times the least held-out error, for a simpler form
BOOTSTRAP, LEVEL = 300, 0.95
LEAST = 6  # measurements


@dataclass(frozen=True)
class Form:
    """A candidate: which terms it has, and whether their exponents are free or 1."""

    name: str
    terms: tuple[str, ...]
    free: bool = True

    @property
    def size(self) -> int:
        """The number of parameters."""
        return 1 + len(self.terms) * (2 if self.free else 1)


FORMS = (
    Form("constant", ()),
    Form("volume", (VOLUME,)),
    Form("staleness", (STALENESS,)),
    Form("paper", (VOLUME, STALENESS), free=False),
    Form("volume and staleness", (VOLUME, STALENESS)),
    Form("volume and flow", (VOLUME, FLOW)),
    Form("volume, staleness and flow", (VOLUME, STALENESS, FLOW)),
)
REMEMBERING = FORMS[4]  # with which the memory is chosen


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted candidate.

    Attributes:
        form: the candidate.
        law: its parameters.
        rmse: on the measurements it was fitted to, by their relevance.
        heldout_rmse: on offers that were left out.
        heldout_mae: the mean absolute error on offers that were left out, by their relevance.
        r2: on the measurements it was fitted to.
        heldout_r2: on offers that were left out.
        intervals: the 95 % intervals of the parameters; empty for candidates that were not chosen.
    """

    form: Form
    law: PowerLaw
    rmse: float
    heldout_rmse: float
    heldout_mae: float
    r2: float
    heldout_r2: float
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def fit_form(
    form: Form,
    scarcity: Array,
    staleness: Array,
    value: Array,
    unit: Unit = "error",
    near: PowerLaw | None = None,
    relevant: Array | None = None,
) -> PowerLaw:
    """The law of one form that is closest to the measurements; searched only near a law, if one is given.

    `relevant` says how much each measurement counts; by default all count the same.
    """
    used = _bases(form, scarcity, staleness)
    counted = np.ones_like(value) if relevant is None else relevant
    exponents = _search(form, used, value, counted, near) if form.free and form.terms else [1.0] * len(used)
    weights = _weights(used, exponents, value, counted)[0]
    parameters: dict[str, Any] = {"floor": float(weights[0])}
    for term, weight, exponent in zip(form.terms, weights[1:], exponents, strict=True):
        parameters |= {f"{term}_weight": float(weight), f"{term}_exponent": float(exponent)}
    return PowerLaw(unit=unit, **parameters)


def _bases(form: Form, scarcity: Array, staleness: Array) -> list[Array]:
    """What the terms of a form are powers of."""
    bases = {VOLUME: scarcity, STALENESS: staleness / AGE, FLOW: scarcity * staleness}
    return [bases[term] for term in form.terms]


def _search(
    form: Form, bases: Sequence[Array], value: Array, relevant: Array, near: PowerLaw | None
) -> list[float]:
    """The exponents with the least loss, from several starts."""
    from scipy.optimize import minimize

    bounds = [BOUNDS[term] for term in form.terms]
    lows, highs = (np.log([bound[i] for bound in bounds]) for i in (0, 1))

    def loss(logs: Array) -> float:
        return _weights(bases, np.exp(np.clip(logs, lows, highs)), value, relevant)[1]

    best = None
    starts = product(*(STARTS[term] for term in form.terms))
    for start in starts if near is None else [[getattr(near, f"{term}_exponent") for term in form.terms]]:
        found = minimize(loss, np.log(start), method="Nelder-Mead", options=SEARCH)
        if best is None or found.fun < best.fun:
            best = found
    assert best is not None
    return np.exp(np.clip(best.x, lows, highs)).tolist()  # type: ignore[no-any-return]


def _weights(
    bases: Sequence[Array], exponents: Sequence[float] | Array, value: Array, relevant: Array
) -> tuple[Array, float]:
    """The best floor and weights for some exponents, all non-negative, and the robust loss."""
    from scipy.optimize import nnls

    matrix = np.column_stack([np.ones_like(value), *(b**e for b, e in zip(bases, exponents, strict=True))])
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    counted = relevant
    for _ in range(2):
        root = np.sqrt(counted)
        weights = nnls(root[:, None] * matrix / scale, root * value)[0] / scale
        residual = value - matrix @ weights
        size = np.sqrt(relevant) * np.abs(residual)
        spread = max(1.4826 * float(np.sort(size)[len(size) // 2]), 1e-9)
        counted = relevant * np.minimum(1.0, HUBER * spread / np.maximum(size, 1e-300))
    return weights, float(np.sum(counted * residual**2))


def judge(form: Form, measurements: Sequence[Measurement], unit: Unit, memory: float = 0.0) -> Fit:
    """Fit one form, to all measurements and without each training of an offer in turn."""
    scarcity, staleness, value = columns(measurements, memory)
    counted = relevance(measurements)
    law = fit_form(form, scarcity, staleness, value, unit, relevant=counted).replace(memory=memory)
    offers = [(m.payment, m.conservation_rate, m.scarcity) for m in measurements]
    missed = np.empty_like(value)
    for offer in dict.fromkeys(offers):
        out = np.array([o == offer for o in offers])
        if out.all():
            missed[out] = value[out] - value.mean()
            continue
        kept = scarcity[~out], staleness[~out], value[~out]
        other = fit_form(form, *kept, unit, near=law, relevant=counted[~out])
        missed[out] = value[out] - other(scarcity[out], staleness[out])
    spread = float(np.mean((value - value.mean()) ** 2))
    squares = missed**2
    residual = value - law(scarcity, staleness)
    return Fit(
        form,
        law,
        rmse=float(np.sqrt(np.average(residual**2, weights=counted))),
        heldout_rmse=float(np.sqrt(squares.mean())),
        heldout_mae=float(np.average(np.abs(missed), weights=np.sqrt(counted))),
        r2=_r2(float(np.mean(residual**2)), spread),
        heldout_r2=_r2(float(squares.mean()), spread),
    )


def _r2(error: float, spread: float) -> float:
    return 1 - error / spread if spread > 0 else float("nan")


def choose(fits: Sequence[Fit]) -> Fit:
    """The simplest form whose mean absolute held-out error is nearly the least."""
    allowed = ALLOWED * min(fit.heldout_mae for fit in fits)
    good = [fit for fit in fits if fit.heldout_mae <= allowed]
    return min(good, key=lambda fit: (fit.form.size, fit.heldout_mae))


def choose_memory(measurements: Sequence[Measurement], form: Form = REMEMBERING) -> float:
    """The memory with which a form fits best; none unless it is better by Bayes' information criterion.

    The criterion compares n·log(Σ residual²). One more parameter has to lower it by log n.
    """
    criteria, counted = {}, relevance(measurements)
    for memory in measurements[0].memories:
        scarcity, staleness, value = columns(measurements, memory)
        law = fit_form(form, scarcity, staleness, value, relevant=counted)
        residual = np.sqrt(counted) * (value - law(scarcity, staleness))
        criteria[memory] = len(value) * np.log(max(float(residual @ residual), 1e-300))
    best = min(criteria, key=lambda memory: criteria[memory] + (np.log(len(measurements)) if memory else 0.0))
    return float(best)


def fit_laws(
    measurements: Sequence[Measurement], unit: Unit = "error", seed: int = 0
) -> tuple[Fit, list[Fit]]:
    """The chosen law with its uncertainty, and all candidates."""
    if len(measurements) < LEAST:
        raise InputError.of("pilots", f"at least {LEAST} measurements", len(measurements))
    forms = [form for form in FORMS if form.size < len(measurements)]
    memory = choose_memory(measurements)
    fits = [judge(form, measurements, unit, memory) for form in forms]
    chosen = choose(fits)
    law = chosen.law.replace(covariance=covariance(chosen, measurements), noise=noise(chosen, measurements))
    return replace(chosen, law=law, intervals=intervals(chosen, measurements, seed)), fits


def free_parameters(form: Form) -> list[int]:
    """The positions of the parameters that a form fits."""
    names = ["floor", *(f"{t}_weight" for t in form.terms)]
    names += [f"{term}_exponent" for term in form.terms] if form.free else []
    return [PARAMETERS.index(name) for name in names]


def noise(fit: Fit, measurements: Sequence[Measurement]) -> float:
    """s, the standard deviation of a relevant measurement around the law, from the residuals."""
    spent = len(free_parameters(fit.form)) + (fit.law.memory > 0)
    return fit.rmse * float(np.sqrt(len(measurements) / max(len(measurements) - spent, 1)))


def covariance(fit: Fit, measurements: Sequence[Measurement]) -> tuple[tuple[float, ...], ...]:
    """The covariance of the parameters to first order: s²·(JᵀWJ)⁻¹, with J the gradients at the trainings.

    Parameters that the trainings do not tell apart have large, opposite entries. They cancel in predictions
    between the trainings, where the gradients are spanned by J.
    """
    scarcity, staleness, _ = columns(measurements, fit.law.memory)
    free = free_parameters(fit.form)
    rows = fit.law.gradient(scarcity, staleness)[free].T * np.sqrt(relevance(measurements))[:, None]
    size = np.maximum(np.linalg.norm(rows, axis=0), 1e-12)
    inner = np.linalg.pinv((rows / size).T @ (rows / size), rcond=1e-8, hermitian=True)
    whole = np.zeros((len(PARAMETERS), len(PARAMETERS)))
    whole[np.ix_(free, free)] = noise(fit, measurements) ** 2 * inner / np.outer(size, size)
    return tuple(tuple(float(number) for number in row) for row in whole)


def intervals(fit: Fit, measurements: Sequence[Measurement], seed: int = 0) -> dict[str, tuple[float, float]]:
    """Intervals of the parameters, by fitting the form to resampled residuals.

    With a probability of 95 % they cover all exponents together (Bonferroni). Exponents trade off against
    weights and the floor, so a search near the fit would not leave its valley. Here the exponents of every
    sample are the best on a grid, for which all samples are projected at once.
    """
    scarcity, staleness, value = columns(measurements, fit.law.memory)
    fitted = np.asarray(fit.law(scarcity, staleness)) * np.ones_like(value)
    root = np.sqrt(relevance(measurements))
    residual = root * (value - fitted) * np.sqrt(len(value) / max(len(value) - fit.form.size, 1))
    generator = np.random.default_rng([seed, 11])
    drawn = generator.choice(residual - residual.mean(), (len(value), BOOTSTRAP))
    rows = _on_grid(fit.form, scarcity, staleness, fitted[:, None] + drawn / root[:, None], root)
    level = 1 - (1 - LEVEL) / max(len(fit.form.terms), 1)
    low, high = expanded_percentiles(rows, len(value), fit.form.size, level)
    cells = _cells(fit.form)
    ends = zip(low / cells, high * cells, strict=True)
    return {
        PARAMETERS[i]: (float(a), float(b)) for i, (a, b) in zip(free_parameters(fit.form), ends, strict=True)
    }


def _cells(form: Form) -> Array:
    """By which factor a parameter on the grid may be off: half a cell for exponents."""
    count = max(GRID[len(form.terms)] - 1, 1)
    half = [(BOUNDS[term][1] / BOUNDS[term][0]) ** (0.5 / count) for term in form.terms]
    return np.array([1.0] * (1 + len(form.terms)) + (half if form.free else []))


def _on_grid(form: Form, scarcity: Array, staleness: Array, samples: Array, root: Array) -> Array:
    """The free parameters that fit each sample best, exponents on a grid; of shape (samples, parameters)."""
    bases = _bases(form, scarcity, staleness)
    axes = [np.geomspace(*BOUNDS[term], GRID[len(form.terms)]) for term in form.terms] if form.free else []
    exponents = np.array(list(product(*axes)) if axes else [[1.0] * len(bases)])
    columns_ = [np.ones((len(exponents), len(scarcity)))]
    columns_ += [base[None, :] ** exponents[:, [n]] for n, base in enumerate(bases)]
    orthogonal, triangle = np.linalg.qr(np.stack(columns_, axis=2) * root[:, None])
    projected = np.swapaxes(orthogonal, 1, 2) @ (root[:, None] * samples)
    weights = np.linalg.solve(triangle + 1e-12 * np.eye(triangle.shape[1]), projected)
    explained = np.where((weights >= 0).all(axis=1), (projected**2).sum(axis=1), -np.inf)
    best = explained.argmax(axis=0)
    found = weights[best, :, np.arange(samples.shape[1])]
    return np.hstack([np.maximum(found, 0.0), exponents[best]]) if form.free else np.maximum(found, 0.0)
