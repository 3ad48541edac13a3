"""Measure ψ and σ: how far the gradient on a buffer is from the gradient on the whole stream.

Assumption 7 bounds the squared distance for a buffer of D samples with staleness S:

    E‖∇F_k(w | buffer) − ∇F_k(w)‖² ≤ ψ²/D + σ²·S

It is measured at several points w of a training run, for buffers of different sizes and ages. ψ² and σ² are
the non-negative least squares fit to all measurements, relative to their size: the squared distance of small
buffers is large and varies most. 1/D is corrected for what the sample that stands for
the stream and the size of the stream add; see `dufl.calibration.buffers`.

The curvature at these points gives μ and β of Theorem 1, and with them κ1, κ2 and κ3. The loss of the
logistic model is not strongly convex: in directions without data it does not change. μ is the smallest
eigenvalue on the span of the data.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.calibration.buffers import Ages, Buffers, Drawn
from dufl.calibration.calibrate import Calibration
from dufl.calibration.intervals import expanded_percentiles
from dufl.calibration.linear_models import extreme_eigenvalues, gradient, hessian_product
from dufl.calibration.measurements import columns
from dufl.data.client_data import ClientData
from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.errors import InputError
from dufl.experiment.config import Experiment, as_experiment
from dufl.experiment.frames import make_frame
from dufl.game.loss import AGE, PowerLaw
from dufl.game.parameters import ConvergenceWeights, Game, convergence_weights
from dufl.game.threads import one_thread
from dufl.learning.engine import make_engine
from dufl.learning.federation import Federation
from dufl.learning.policies import make_policy

Array = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float32]
Interval = tuple[float, float]

VOLUMES = (16, 64, 256, 1024)
STALENESS = (1, 2, 4, 8, 16, 32)
POINTS, CLIENTS, DRAWS = 4, 6, 4
FEWEST = 8  # samples that can stand for a stream
LEFT = 0.1  # the least share of the sampling variance that is left by the size of the stream
CURVED = 1024  # samples that the curvature is measured on
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


def measure_gradients(
    experiment: Experiment | Game | None = None,
    *,
    volumes: Sequence[int] = VOLUMES,
    staleness: Sequence[int] = STALENESS,
    ages: Ages = "mixed",
    points: int = POINTS,
    clients: int = CLIENTS,
    draws: int = DRAWS,
    dataset: Dataset | Recording | None = None,
) -> GradientNoise:
    """Measure ψ, σ, μ and β of an experiment with the logistic or the linear model.

    Args:
        experiment: what to train: game, data and training, with its policy and seed.
        volumes: the sizes of buffers.
        staleness: the mean ages of buffers; in early rounds, those that are possible.
        ages: "mixed", as buffers have them in the steady state; or "equal" for all samples of a buffer.
        points: the number of rounds, spread evenly over the run, after which the model is used.
        clients: the number of clients whose data is used, at most.
        draws: of every buffer.
        dataset: the one that `experiment.data` names, if it is loaded already.
    """
    chosen = as_experiment(experiment)
    design = Design(tuple(volumes), tuple(staleness), ages, points, clients, draws)
    samples = dataset or chosen.data.load()
    chosen = chosen.fitted(samples)
    data = chosen.data.client_data(samples, chosen.game, chosen.training.seed)
    _check(chosen, data)
    buffers = Buffers(data, ages)
    measured: list[Distance] = []
    curved: list[Curvature] = []
    for round, weights in _points(chosen, data, points):
        streams = _streams(buffers, round, chosen.game.clients.size, clients)
        with _one_core_each(chosen.training.num_workers) as threads:
            curving = [threads.submit(_curvature, round, weights, stream, data) for _, stream in streams[:1]]
            distances = [  # before round 1, all samples have the same age
                threads.submit(_distances, design, round, client, weights, stream, buffers, data)
                for client, stream in (streams if round else [])
            ]
            curved += [future.result() for future in curving]
            measured += [m for future in distances for m in future.result()]
    if len({m.staleness for m in measured}) < 2:
        raise InputError.of("the data", f"at least {FEWEST} samples of a client in a round", "fewer")
    return _result(measured, curved, chosen)


@dataclass(frozen=True)
class Design:
    """What is measured; see `measure_gradients`."""

    volumes: tuple[int, ...]
    staleness: tuple[int, ...]
    ages: Ages
    points: int
    clients: int
    draws: int

    def __post_init__(self) -> None:
        for field, least in (("points", 1), ("clients", 1), ("draws", 1)):
            if getattr(self, field) < least:
                raise InputError.of(field, f">= {least}", getattr(self, field))
        for field in ("volumes", "staleness"):
            values = getattr(self, field)
            if len(set(values)) < 2 or min(values) < 1:
                raise InputError.of(field, "at least two different numbers >= 1", values)
        if self.ages not in ("mixed", "equal"):
            raise InputError.of("ages", "'mixed' or 'equal'", self.ages)

    def possible(self, round: int) -> list[int]:
        """The mean ages that a buffer can have in a round: its oldest samples have age t + 1."""
        oldest = round + 1 if self.ages == "equal" else (round + 2) / 2
        return [old for old in self.staleness if old <= oldest]


@contextmanager
def _one_core_each(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that each compute on one core: many small products of matrices are slower on several."""
    with one_thread(), ThreadPoolExecutor(workers) as threads:
        yield threads


def _check(experiment: Experiment, data: ClientData) -> None:
    if not experiment.training.compiled:
        rule = "'logistic' or 'linear' with its own loss, whose gradients are known in closed form"
        raise InputError.of("training.model", rule, experiment.training.model)
    if data.make_stream is not None:
        rule = "left out to measure gradients: a stream of your own cannot be drawn from repeatedly"
        raise InputError.of("data.stream", rule, experiment.data.stream)


def _points(experiment: Experiment, data: ClientData, points: int) -> Iterator[tuple[int, Vector]]:
    """Rounds t with the model w(t) of a training: before the first round, then spread evenly."""
    game, settings = experiment.game, experiment.training
    policy = make_policy(experiment.policy, game, experiment.solve, settings.seed, data)
    source = data.discarding(getattr(policy, "discard", None))
    engine = make_engine(source, settings, game.clients.size)
    wanted = {int((i + 0.5) / points * game.num_rounds) for i in range(points)}
    try:
        federation = Federation(game, source, policy, settings, engine)
        yield 0, federation.weights
        while federation.round < max(wanted):
            federation.play()
            if federation.round in wanted:
                yield federation.round, federation.weights
    finally:
        engine.close()


def _streams(buffers: Buffers, round: int, num_clients: int, most: int) -> list[tuple[int, Drawn]]:
    """Some clients, spread evenly, and what stands for their streams."""
    which = np.unique(np.linspace(0, num_clients - 1, min(most, num_clients)).astype(int)).tolist()
    streams = [(client, buffers.stream(client, round)) for client in which]
    return [(client, stream) for client, stream in streams if len(stream) >= FEWEST]


def _curvature(round: int, weights: Vector, stream: Drawn, data: ClientData) -> Curvature:
    times = hessian_product(weights, stream.features[:CURVED], data.regression, data.num_classes)
    return Curvature(round, *extreme_eigenvalues(times, len(weights), data.seed))


def _distances(
    design: Design,
    round: int,
    client: int,
    weights: Vector,
    stream: Drawn,
    buffers: Buffers,
    data: ClientData,
) -> list[Distance]:
    """The distances of one client's gradients at one point, for all volumes and ages."""
    generator = np.random.default_rng([data.seed, client, round + 1, 15])
    target = gradient(weights, stream.features, stream.labels, data.num_classes)
    population = buffers.population(client, round)
    found = []
    for old, volume in product(design.possible(round), design.volumes):
        rows = []
        for _ in range(design.draws):
            drawn = buffers.draw(client, round, volume, old, generator)
            if not len(drawn):
                continue
            scarcity = 1 / len(drawn) + 1 / len(stream) - (1 + drawn.concentration) / population
            if scarcity * len(drawn) < LEFT:
                continue  # the buffer is nearly the whole stream: there is nothing to measure
            gap = gradient(weights, drawn.features, drawn.labels, data.num_classes) - target
            rows.append((len(drawn), drawn.staleness, scarcity, float(gap @ gap)))
        if rows:
            found.append(Distance(round, client, *np.mean(rows, axis=0).tolist()))
    return found


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


def _result(measured: list[Distance], curved: list[Curvature], experiment: Experiment) -> GradientNoise:
    psi2, sigma2, r2 = fit_noise(measured)
    return GradientNoise(
        psi=psi2**0.5,
        sigma=sigma2**0.5,
        intervals=_intervals(measured, experiment.training.seed),
        r2=r2,
        mu=min(c.mu for c in curved),
        beta=max(c.beta for c in curved),
        learning_rate=experiment.training.learning_rate,
        measurements=tuple(measured),
        curvature=tuple(curved),
    )


def _intervals(measured: Sequence[Distance], seed: int) -> dict[str, Interval]:
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
