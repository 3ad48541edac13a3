"""The drift of recordings: laws on recordings whose drift is known, and on real ones."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.linear_model import LogisticRegression

from dufl.data.datasets import load_recording
from dufl.data.distance import kolmogorov_smirnov, measure_distances
from dufl.data.recording import Recording, make_recording
from dufl.data.samples import Samples
from dufl.errors import InputError
from dufl.experiment.drift import Drift, measure_drift
from dufl.experiment.files import to_json
from dufl.learning.age import score_matrix
from real_data import real_recording

SIZE = 6_000
Floats = npt.NDArray[np.float64]


def stationary(seed: int = 0, size: int = SIZE) -> tuple[Floats, Floats]:
    """Independent samples: features and a line of labels, which is noisy."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(size, 6))
    return x, x @ [1.0, -1.0, 0.5, 0, 0, 0] + 0.5 * generator.normal(size=size)


def recorded(x: Floats, y: npt.ArrayLike, **more: str) -> Recording:
    return make_recording("made", x, y, np.arange(len(x)), **more)  # type: ignore[arg-type]


def rotating(angle: float) -> Recording:
    """The line between two classes turns by an angle; the features stay as they are."""
    x, turned = stationary()[0], np.linspace(0, angle, SIZE)
    return recorded(x, (np.cos(turned) * x[:, 0] + np.sin(turned) * x[:, 1] > 0).astype(int))


def test_a_stationary_recording_is_at_its_noise_and_flat() -> None:
    x, y = stationary()
    drift = measure_drift(recorded(x, (y > 0).astype(int)))
    away = np.concatenate([drift.distances.from_first[1:], drift.distances.from_previous[2:]])
    assert np.mean(away <= drift.distances.noise) >= 0.75  # 95 % are expected
    assert away.max() < 1.3 * drift.distances.noise
    mean = drift.scores.mean()
    deviation = np.sqrt(mean * (1 - mean) / (drift.used / 2))
    assert 0.8 < mean < 0.99
    assert np.abs(drift.scores - mean).max() < 4.5 * deviation
    assert not drift.drifts
    assert not drift.age_hurts
    assert "do not drift" in drift.sentence()
    assert "does not hurt" in drift.sentence()


@pytest.mark.parametrize("seed", range(6))
def test_noise_is_seldom_called_drift(seed: int) -> None:
    x, y = stationary(seed, 1_200)
    drift = measure_drift(recorded(x, (y > 0).astype(int)), seed=seed)
    assert (drift.drifts, drift.age_hurts) == (False, False)


def test_labels_can_drift_without_the_features() -> None:
    """The distance stays at its noise while models get worse with age, down to the opposite."""
    drift = measure_drift(rotating(np.pi))
    assert not drift.drifts
    assert drift.age_hurts
    assert (np.diff(drift.age_effect) < 0.02).all()
    expected = np.minimum(np.arange(12) / 12, 1)  # two lines at an angle a disagree on a/π of the samples
    np.testing.assert_allclose(-drift.age_effect, expected, atol=0.06)
    assert "do not drift beyond noise" in drift.sentence()
    assert "but age hurts" in drift.sentence()


def test_features_can_drift_without_the_labels() -> None:
    """The means move, and the line between the classes stays: distances grow, old models stay good."""
    x, _ = stationary()
    x += np.linspace(0, 2, SIZE)[:, None] * [0, 0, 1, 1, 1, 1]
    drift = measure_drift(recorded(x, (x[:, 0] > 0).astype(int)))
    assert drift.drifts
    assert not drift.age_hurts
    assert (np.diff(drift.distances.from_first) > 0).all()
    assert drift.distances.from_first[-1] > 5 * drift.distances.noise
    assert (drift.distances.from_previous[2:] < 0.5 * drift.distances.from_first[-1]).all()


def test_a_late_step_is_drift() -> None:
    x, y = stationary()
    x[-SIZE // 12 :, 0] += 3
    drift = measure_drift(recorded(x, (y > 0).astype(int)))
    assert drift.drifts
    assert int(drift.distances.from_previous.argmax()) == 11


def test_outliers_and_units_do_not_count() -> None:
    x, y = stationary()
    labels = (y > 0).astype(int)
    plain = measure_drift(recorded(x, labels))
    other = measure_drift(recorded(np.hstack([x * 1e4 - 7, np.full((SIZE, 2), 3.0)]), labels))
    np.testing.assert_allclose(other.distances.from_first, plain.distances.from_first, atol=2e-3)
    x[::1000] *= 1e12
    wild = measure_drift(recorded(x, labels))
    assert not wild.drifts
    assert np.isfinite(wild.scores).all()


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
)
def test_the_distance_is_its_definition(one: list[int], two: list[int]) -> None:
    """With ties, and with samples of different sizes."""
    first, second = np.array(one), np.array(two)
    expected = max(abs(np.mean(first <= z) - np.mean(second <= z)) for z in range(-4, 5))
    assert kolmogorov_smirnov(first, second) == pytest.approx(expected)


def test_distances_are_means_over_the_features_that_vary() -> None:
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(50, 3)).astype(np.float32) for _ in range(3)]
    for part in parts:
        part[:, 1] = 4
    found = measure_distances(parts, generator)
    for t in (1, 2):
        for before, distance in ((0, found.from_first[t]), (t - 1, found.from_previous[t])):
            each = [ks_2samp(parts[before][:, f], parts[t][:, f], method="asymp").statistic for f in (0, 2)]
            assert distance == pytest.approx(np.mean(each))
    same = measure_distances([np.ones((9, 2), np.float32)] * 3, generator)
    assert same.noise == same.from_first.max() == 0


def test_models_are_as_good_as_those_of_scikit_learn() -> None:
    recording = load_recording("weather")
    halves = [recording.samples.take(slice(a, a + 900)) for a in (0, 900, 9_000, 9_900)]
    found = score_matrix(halves[::2], halves[1::2], 2)
    for i, train in enumerate(halves[::2]):
        mean, scale = train.features.mean(axis=0), train.features.std(axis=0)
        model = LogisticRegression(C=1.0).fit((train.features - mean) / scale, train.labels)
        for j, test in enumerate(halves[1::2]):
            score = model.score((test.features - mean) / scale, test.labels)
            assert found[i, j] == pytest.approx(score, abs=0.015)


def test_the_diagonal_is_honest() -> None:
    """Labels without any relation to the features cannot be predicted, though there are as many features."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2_000, 100)), generator.integers(0, 2, 2_000)
    drift = measure_drift(recorded(x, y), periods=10)
    assert abs(np.diagonal(drift.scores).mean() - 0.5) < 0.06


def test_regression_has_r2() -> None:
    x, y = stationary()
    drift = measure_drift(recorded(x, y, task="regression"))
    np.testing.assert_allclose(drift.scores, 1 - 0.25 / 2.5, atol=0.05)  # noise 0.25 of the variance 2.5
    np.testing.assert_allclose(
        drift.labels[0], [y[:500].mean(), *np.quantile(y[:500], [0.1, 0.9])], rtol=1e-4
    )
    assert not drift.age_hurts
    moved = measure_drift(recorded(x, y + np.linspace(0, 20, SIZE), task="regression"))
    assert moved.age_hurts
    assert not moved.drifts
    assert moved.scores.min() < -1
    assert moved.age_effect.min() >= -2  # R² below −1 counts as −1
    assert "R²" in moved.sentence()


def test_constant_labels_have_no_r2() -> None:
    x, y = stationary()
    y[:500] = 1.0
    drift = measure_drift(recorded(x, y, task="regression"))
    assert np.isnan(drift.scores[:, 0]).all()
    assert np.isfinite(drift.scores[:, 1:]).all()
    assert np.isfinite(drift.age_effect).all()


def test_a_period_with_one_class_is_named() -> None:
    """Its model predicts this class: its accuracy is the share of it."""
    x, y = stationary()
    labels = (y > 0).astype(int)
    labels[500:1_000] = 0
    drift = measure_drift(recorded(x, labels))
    assert any(line.startswith("period 2 has one class only") for line in drift.notes())
    assert drift.scores[1, 1] == 1
    np.testing.assert_allclose(drift.scores[1], drift.labels[:, 0], atol=0.1)


def test_samples_of_the_same_time_are_in_the_same_period() -> None:
    x, y = stationary(size=600)
    times = np.arange(600) // 90
    drift = measure_drift(make_recording("made", x, (y > 0).astype(int), times), periods=3)
    edges = drift.timeline.edges
    assert all(times[edge - 1] < times[edge] for edge in edges[1:-1])
    np.testing.assert_array_equal(drift.timeline.times, [*times[edges[:-1]], times[-1]])


def test_large_periods_are_represented_by_some_samples() -> None:
    x, y = stationary(size=30_000)
    drift = measure_drift(recorded(x, (y > 0).astype(int)), periods=3)
    assert drift.used == 4_000
    assert "4,000 of each" in drift.notes()[0]
    images = np.random.default_rng(0).integers(0, 256, (2_000, 3, 32, 32)).astype(np.uint8)
    wide = measure_drift(make_recording("made", images, np.arange(2_000) % 2, np.arange(2_000)), periods=2)
    assert wide.used * 3 * 32 * 32 <= 2**21


@pytest.mark.parametrize(
    ("size", "periods"), [(30, 4), (30, 31), (11, 2), (300, 1), (300, 0), (300, -3), (3_000, 101)]
)
def test_too_many_or_too_few_periods(size: int, periods: int) -> None:
    x, y = stationary(size=size)
    with pytest.raises(InputError) as raised:
        measure_drift(recorded(x, (y > 0).astype(int)), periods)
    assert raised.value.field == "periods"


def test_many_samples_of_one_time_leave_too_few_periods() -> None:
    x, y = stationary(size=600)
    times = np.where(np.arange(600) < 590, 0, 1)
    recording = make_recording("made", x, (y > 0).astype(int), times)
    with pytest.raises(InputError, match="has 0 samples"):
        measure_drift(recording, 4)


def test_the_smallest_recording_that_can_be_measured() -> None:
    x, y = stationary(size=20)
    drift = measure_drift(recorded(x, (y > 0).astype(int)), periods=2)
    assert drift.scores.shape == (2, 2)
    assert drift.sentence()


def test_the_same_twice_and_the_seed_counts() -> None:
    recording = load_recording("weather")

    def text(seed: int) -> str:
        return to_json(measure_drift(recording, periods=4, seed=seed).to_dict())

    assert text(0) == text(0)
    assert text(0) != text(1)


def test_age_is_measured_on_the_same_samples() -> None:
    """By hand on a small matrix: element a of the effect is the mean of score(j − a, j) − score(j, j)."""
    recording = load_recording("weather")
    whole = measure_drift(recording, periods=3)
    scores = np.array([[0.9, 0.7, 0.5], [0.8, 0.8, 0.6], [0.1, 0.2, 1.0]])
    drift = Drift(recording, whole.timeline, whole.labels, whole.distances, scores, 0.0, whole.used)
    np.testing.assert_allclose(drift.age_effect, [0, (-0.1 - 0.4) / 2, -0.5])


def test_real_recordings() -> None:
    """Insects: age ruins a model. Weather: it matters little."""
    folder = real_recording("insects")
    insects = measure_drift(load_recording("insects", data_dir=folder))
    weather = measure_drift(load_recording("weather"))
    assert insects.age_hurts
    assert insects.age_loss > 0.3
    assert abs(weather.age_loss) < 0.05
    assert insects.age_loss > 8 * weather.age_loss


def test_samples_are_not_changed() -> None:
    x, y = stationary()
    recording = recorded(x, (y > 0).astype(int))
    before = Samples(recording.samples.features.copy(), recording.samples.labels.copy())
    measure_drift(recording, periods=3)
    np.testing.assert_array_equal(recording.samples.features, before.features)
    np.testing.assert_array_equal(recording.samples.labels, before.labels)
