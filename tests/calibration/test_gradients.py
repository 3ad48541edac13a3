"""Laws of measuring gradients: known ψ, σ, μ and β are found."""

import json
import tomllib
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

import dufl
from dufl.calibration.buffers import Buffers
from dufl.calibration.calibrate import Calibration
from dufl.calibration.gradient_noise import GradientNoise
from dufl.calibration.gradients import measure_gradients
from dufl.calibration.linear_models import extreme_eigenvalues, gradient, hessian_product
from dufl.calibration.measurements import Measurement
from dufl.calibration.noise_fit import fit_noise, slopes
from dufl.data.recording import Recording, make_recording
from dufl.game.loss import ConvergenceBound, PowerLaw
from dufl.learning.logistic import train_logistic
from recordings import recorded

ROUNDS, FEATURES, PERIOD = 40, 48, 2400
STEP = 0.15


def walking(noise: float = 1.0, step: float = STEP, seed: int = 0) -> Recording:
    """A linear law y = θ·x + noise whose coefficients make one step in every period, at right angles.

    With features of unit variance and a model close to θ, the gradient −2·noise·(x, 1) of a sample has the
    variance ψ² = 4·noise²·(features + 1). The gradient of samples of age a is off by 2·(θ(t − a) − θ(t)),
    whose square is 4·step²·a: σ² = 4·step².
    """
    generator = np.random.default_rng(seed)
    period = np.repeat(np.arange(ROUNDS + 1), PERIOD)
    x = generator.standard_normal((len(period), FEATURES)).astype(np.float32)
    moved = np.arange(FEATURES) < period[:, None]
    y = (x * moved).sum(axis=1) * step + noise * generator.standard_normal(len(period))
    return make_recording("walking", x, y, np.arange(len(period)), task="regression")


@cache
def measured(noise: float = 1.0, step: float = STEP, ages: Any = "equal") -> GradientNoise:
    experiment = recorded(
        walking(noise, step),
        rounds=ROUNDS,
        policy="window-2",
        task="regression",
        model="linear",
        normalize="none",
        periods="count",
        warm_up=1 / (ROUNDS + 1),
    )
    return measure_gradients(
        experiment, volumes=(16, 64, 256, 1024), staleness=(1, 2, 4, 8, 16), ages=ages, points=8, clients=4
    )


def test_known_psi_and_sigma_are_found() -> None:
    found = measured()
    assert found.psi**2 == pytest.approx(4 * (FEATURES + 1), rel=0.15)
    assert found.sigma**2 == pytest.approx(4 * STEP**2, rel=0.15)
    assert found.r2 > 0.9


def test_psi_grows_with_the_deviation_and_sigma_with_the_step() -> None:
    found = measured(2.0, 2 * STEP)  # everything is twice as large
    assert found.psi / measured().psi == pytest.approx(2, rel=0.05)
    assert found.sigma / measured().sigma == pytest.approx(2, rel=0.15)


def test_without_steps_there_is_no_sigma() -> None:
    still = measured(step=0.0)
    assert still.sigma**2 < 0.1 * measured().sigma ** 2


def test_mixed_ages_average_the_steps() -> None:
    """Σ_j P(age ≥ j)² = S²/(2S − 1) steps instead of S: between a half of it and all of it."""
    found = measured(ages="mixed")
    assert 0.4 < found.sigma**2 / (4 * STEP**2) < 0.85
    assert found.psi == pytest.approx(measured().psi, rel=0.1)


def digits(sensitivity: float, **training: Any) -> dufl.Experiment:
    settings = dufl.Training(**({"local_epochs": 2} | training))
    game = dufl.Game(time_sensitivity=sensitivity, num_rounds=60)
    return dufl.Experiment(game=game, data=dufl.Data("digits"), training=settings, policy="static")


@cache
def on_digits(sensitivity: float, **training: Any) -> GradientNoise:
    return measure_gradients(digits(sensitivity, **training), clients=4, draws=3)


@pytest.mark.slow
def test_data_that_do_not_age_have_no_sigma() -> None:
    still, ageing = on_digits(0.0), on_digits(1.25)
    assert still.sigma**2 < 0.05 * ageing.sigma**2
    assert 16 * still.sigma**2 < 0.2 * still.psi**2 / 1024  # 16 rounds matter less than any volume
    assert 16 * ageing.intervals["sigma"][0] ** 2 > 0.5 * ageing.psi**2 / 1024
    assert max(m.volume for m in ageing.measurements) < 1437


def test_volumes_close_to_the_whole_stream_are_corrected() -> None:
    still = on_digits(0.0)  # 1,437 samples in all
    for volume in (64, 1024):
        rows = [m for m in still.measurements if m.volume == volume]
        mean = np.mean([m.distance / m.scarcity for m in rows])
        assert mean == pytest.approx(still.psi**2, rel=0.35)
    fresh = [m for m in still.measurements if m.volume == 1024 and m.staleness == 1]
    assert all(m.scarcity == pytest.approx(1 / 1024 - 1 / 1437) for m in fresh)


def test_the_same_seed_measures_the_same_with_any_number_of_workers() -> None:
    one, same, other = (on_digits(1.25, workers=w, seed=s) for w, s in ((1, 0), (3, 0), (1, 1)))
    assert one.summary() == same.summary()
    assert one.psi != other.psi


def test_intervals_contain_the_estimates() -> None:
    for found in (measured(), on_digits(1.25)):
        assert found.intervals["psi"][0] <= found.psi <= found.intervals["psi"][1]
        assert found.intervals["sigma"][0] <= found.sigma <= found.intervals["sigma"][1]


def problem(regression: bool = False) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], int]:
    """Weights, features, labels and the number of outputs of a small problem."""
    generator = np.random.default_rng(3)
    outputs = 1 if regression else 3
    x = generator.standard_normal((40, 5)).astype(np.float32)
    x[:, 4] = 0  # a direction without data
    y = generator.standard_normal(40).astype(np.float32) if regression else generator.integers(3, size=40)
    return generator.standard_normal(outputs * 6).astype(np.float32), x, y, outputs


@pytest.mark.parametrize("regression", [False, True])
def test_the_gradient_is_a_step_of_training(regression: bool) -> None:
    weights, x, y, outputs = problem(regression)
    trained = train_logistic(weights, x, y, np.arange(40)[None], 40, 0.1)
    assert gradient(weights, x, y, outputs) == pytest.approx((weights - trained) / 0.1, abs=1e-5)


@pytest.mark.parametrize("regression", [False, True])
def test_curvature_is_that_of_the_whole_hessian(regression: bool) -> None:
    weights, x, y, outputs = problem(regression)
    weights, x = weights.astype(np.float64), x.astype(np.float64)
    h, size = 1e-6, len(weights)
    steps = [
        gradient(weights + e, x, y, outputs) - gradient(weights - e, x, y, outputs) for e in h * np.eye(size)
    ]
    hessian = np.array(steps) / (2 * h)
    product = hessian_product(weights, x, regression, outputs)
    direction = np.arange(size, dtype=np.float64) - 3
    assert product(direction) == pytest.approx(hessian @ direction, abs=1e-6)
    values = np.linalg.eigvalsh(hessian)
    on_span = values[values > 1e-6 * values[-1]]
    assert len(on_span) < size
    assert extreme_eigenvalues(product, size) == pytest.approx((on_span[0], on_span[-1]), rel=1e-4)


def test_a_matrix_of_zeros_has_no_curvature() -> None:
    assert extreme_eigenvalues(lambda v: 0 * v, 4) == (0.0, 0.0)


def test_the_weights_follow_where_theorem_1_holds() -> None:
    found = on_digits(1.25)
    weights = found.weights
    assert weights is not None
    assert 0 < found.mu < found.beta <= 1 / (2 * found.learning_rate)
    assert dufl.Game(**weights).decay < 1
    assert GradientNoise(**{**vars(found), "learning_rate": 1 / found.beta}).weights is None


def calibration(law: PowerLaw) -> Calibration:
    points = [(0.01, 2.0), (0.05, 5.0), (0.1, 20.0)]
    rows = tuple(Measurement(1.0, 0.5, 0, x, s, float(law(x, s)), 0.0) for x, s in points)
    return Calibration(law, cast("Any", None), (), rows)


def test_theorem_1_weighs_as_its_own_bound_does() -> None:
    found = on_digits(1.25)
    compared = found.compared_with(calibration(ConvergenceBound.of(2 * found.psi**2, 6 * found.sigma**2)))
    assert compared["bound"] == pytest.approx(found.sigma**2 / (2 * found.psi**2))
    assert compared["law_least"] == pytest.approx(compared["law_largest"])
    assert compared["factor"] == pytest.approx(6)
    law = cast("PowerLaw", found.calibrated().game.law)
    assert law(0.5, 3.0) == pytest.approx(
        ConvergenceBound.of(1.0, compared["bound"])(0.5, 3.0) * law(1.0, 0.0)
    )
    assert found.compared_with(calibration(PowerLaw(volume_weight=1.0)))["factor"] == 0
    assert found.compared_with(calibration(PowerLaw(staleness_weight=1.0)))["factor"] == np.inf


def test_slopes_are_derivatives() -> None:
    law = PowerLaw(
        floor=0.1,
        volume_weight=0.3,
        volume_exponent=0.4,
        staleness_weight=0.02,
        staleness_exponent=3.0,
        flow_weight=0.2,
        flow_exponent=0.5,
    )
    x, s, h = np.array([0.02, 0.3]), np.array([3.0, 12.0]), 1e-6
    by_volume, by_staleness = slopes(law, x, s)
    assert by_volume == pytest.approx((law(x + h, s) - law(x - h, s)) / (2 * h), rel=1e-5)
    assert by_staleness == pytest.approx((law(x, s + h) - law(x, s - h)) / (2 * h), rel=1e-5)


def test_the_result_is_json_and_a_frame() -> None:
    found = on_digits(1.25)
    summary = json.loads(json.dumps(found.summary()))
    frame = found.to_frame()
    assert summary["sampling_noise"] == found.psi
    assert len(frame) == len(found.measurements) == len(summary["measurements"])
    assert frame.fitted.tolist() == pytest.approx(
        (found.psi**2 * frame.scarcity + found.sigma**2 * frame.staleness).tolist()
    )
    assert [row["round"] for row in found.by_round()] == sorted(set(frame["round"]))
    assert fit_noise(found.measurements)[:2] == pytest.approx((found.psi**2, found.sigma**2))


def test_the_snippet_plans_with_what_was_measured() -> None:
    for found in (on_digits(1.25), measured()):  # simulated and recorded
        game = found.calibrated().game
        told = dufl.Game(clients=game.clients, **tomllib.loads(found.snippet)["game"])
        weights = found.weights or {"volume_weight": 1.0, "staleness_weight": 1e-2}
        scarce = weights["volume_weight"] * found.psi**2
        for given in (game, told.replace(time_sensitivity=game.time_sensitivity)):
            law = cast("PowerLaw", given.law)
            assert law(1.0, 0.0) == pytest.approx(scarce)
            assert law(0.0, 1.0) == pytest.approx(weights["staleness_weight"] * found.sigma**2)
    assert on_digits(1.25).calibrated().game.time_sensitivity == 1.25  # what is simulated does not change
    assert measured().calibrated().game.time_sensitivity == measured().sigma


def test_points_are_reported() -> None:
    seen: list[tuple[int, float]] = []
    experiment = digits(0.75).replace(game=dufl.Game(num_rounds=8, clients=dufl.Clients.draw(2)))
    measure_gradients(
        experiment, points=2, volumes=(8, 16), staleness=(1, 2), on_point=lambda *now: seen.append(now)
    )
    assert seen == [(0, 0.0), (2, 0.5), (6, 1.0)]


def test_buffers_have_the_ages_and_classes_of_their_rounds() -> None:
    experiment = digits(1.25)
    data = experiment.data.client_data(experiment.data.load(), experiment.game, 0)
    buffers, generator = Buffers(data), np.random.default_rng(0)
    drawn = buffers.draw(2, 50, 1000, 5, generator)
    assert drawn.staleness == pytest.approx(5, rel=0.15)
    assert set(drawn.ages) <= set(range(1, 52))
    for age in (1, 20):
        classes = data.arrival.classes(50 - age)  # type: ignore[attr-defined]
        assert set(drawn.labels[drawn.ages == age]) <= set(classes)
    assert len(set(drawn.labels[drawn.ages < 20])) > len(set(buffers.draw(2, 0, 500, 1, generator).labels))


def test_recorded_buffers_are_of_the_client_and_of_earlier_periods() -> None:
    size = 2000
    who = np.arange(size) % 4
    x = np.random.default_rng(0).standard_normal((size, 3)).astype(np.float32)
    recording = make_recording("known", x, who % 2, np.arange(size), clients=who)
    experiment = recorded(recording, normalize="none")
    data = experiment.data.client_data(recording, experiment.game, 0)
    buffers, generator = Buffers(data), np.random.default_rng(0)
    drawn = buffers.draw(3, 6, 60, 2, generator)
    places = [int(np.flatnonzero((x == row).all(axis=1))[0]) for row in drawn.features]
    edges = data.timeline.edges  # type: ignore[attr-defined]
    assert set(who[places]) == {3}
    assert max(places) < edges[6]
    assert ((edges[6 - drawn.ages] <= places) & (places < edges[7 - drawn.ages]))[drawn.ages <= 6].all()
    assert set(who[buffers.available(3, 6)]) == {3}
    assert measure_gradients(experiment, volumes=(8, 16), staleness=(1, 2)).psi > 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"points": 0}, "points"),
        ({"draws": 0}, "draws"),
        ({"clients": 0}, "clients"),
        ({"volumes": [64]}, "volumes"),
        ({"staleness": [0, 3]}, "staleness"),
        ({"ages": "old"}, "ages"),
    ],
)
def test_invalid_designs_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(dufl.InputError) as refused:
        measure_gradients(digits(0.75), **options)
    assert refused.value.field == field


def own_stream(_samples: Any, _client: int, _seed: int) -> Any:
    return None


def test_what_cannot_be_measured_is_refused() -> None:
    experiment = digits(0.75)
    for changed, field in (
        (experiment.replace(training=dufl.Training(model="cnn")), "training.model"),
        (experiment.replace(data=dufl.Data("digits", stream=own_stream)), "data.stream"),
    ):
        with pytest.raises(dufl.InputError) as refused:
            measure_gradients(changed)
        assert refused.value.field == field
