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

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from dufl.calibration.buffers import Ages, Buffers, Drawn
from dufl.calibration.gradient_noise import Curvature, GradientNoise
from dufl.calibration.linear_models import extreme_eigenvalues, gradient, hessian_product
from dufl.calibration.noise_fit import Distance, fit_intervals, fit_noise
from dufl.data.client_data import ClientData
from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.errors import InputError
from dufl.experiment.config import Experiment, as_experiment
from dufl.game.parameters import Game
from dufl.game.threads import one_thread
from dufl.learning.engine import make_engine
from dufl.learning.federation import Federation

Vector = npt.NDArray[np.float32]
OnPoint = Callable[[int, float], object]  # a round, and the share of the work that is done

VOLUMES = (16, 64, 256, 1024)
STALENESS = (1, 2, 4, 8, 16, 32)
POINTS, CLIENTS, DRAWS = 4, 6, 4
FEWEST = 8  # samples that can stand for a stream
LEFT = 0.1  # the least share of the sampling variance that is left by the size of the stream
CURVED = 1024  # samples that the curvature is measured on


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
    on_point: OnPoint = lambda _round, _done: None,
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
        on_point: called with the round of a point that was measured, and the share of points that are done.
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
        on_point(round, max(len(curved) - 1, 0) / points)
    if len({m.staleness for m in measured}) < 2:
        raise InputError.of("the data", f"at least {FEWEST} samples of a client in a round", "fewer")
    return _result(measured, curved, chosen, isinstance(samples, Recording))


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
    policy = experiment.make_policy(data)
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


def _result(
    measured: list[Distance], curved: list[Curvature], experiment: Experiment, recorded: bool
) -> GradientNoise:
    psi2, sigma2, r2 = fit_noise(measured)
    return GradientNoise(
        psi=psi2**0.5,
        sigma=sigma2**0.5,
        intervals=fit_intervals(measured, experiment.training.seed),
        r2=r2,
        mu=min(c.mu for c in curved),
        beta=max(c.beta for c in curved),
        learning_rate=experiment.training.learning_rate,
        measurements=tuple(measured),
        curvature=tuple(curved),
        experiment=experiment,
        recorded=recorded,
    )
