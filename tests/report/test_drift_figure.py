"""The figure of a recording shows the numbers that were measured."""

from typing import Any

import numpy as np
import pytest

from dufl.data.recording import Recording, make_recording
from dufl.experiment.drift import measure_drift
from dufl.report.drift_figure import MANY, age_line, drift_figure, shown_classes


def recording(classes: int = 3, dated: bool = False, task: str = "classification") -> Recording:
    generator = np.random.default_rng(0)
    size = 1_200
    x = generator.normal(size=(size, 4))
    labels = generator.integers(0, classes, size) if task == "classification" else x[:, 0] + 2
    times = np.arange(size)
    when = np.datetime64("2024-03-01T00:00:00") + times * np.timedelta64(3600, "s") if dated else times
    return make_recording("made", x, labels, when, task=task)  # type: ignore[arg-type]


@pytest.mark.parametrize("periods", [2, 4, 30])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_heat_map_has_the_scores(periods: int, task: str) -> None:
    drift = measure_drift(recording(task=task), periods)
    heat = drift_figure(drift).axes[1]
    drawn: list[Any] = [image.get_array() for image in heat.images]
    past, future = (np.ma.filled(values, np.nan) for values in drawn)
    shown = np.where(np.isnan(future), past, future)
    expected = np.maximum(drift.scores, -1) if task == "regression" else 100 * drift.scores
    np.testing.assert_allclose(shown, expected)
    assert np.isnan(future[np.tril_indices(periods, -1)]).all()
    assert not np.isnan(np.diagonal(future)).any()
    assert age_line(drift) in heat.get_xlabel()
    texts = [text.get_text() for text in heat.texts]
    assert len(texts) == (periods**2 if periods <= 16 else 0)


def test_distances_and_noise_are_drawn() -> None:
    drift = measure_drift(recording(), 5)
    lines = drift_figure(drift).axes[2].lines
    np.testing.assert_allclose(np.asarray(lines[0].get_ydata(), float), drift.distances.from_first[1:])
    np.testing.assert_allclose(np.asarray(lines[1].get_ydata(), float), drift.distances.from_previous[1:])
    np.testing.assert_allclose(np.asarray(lines[2].get_ydata(), float), drift.distances.noise)
    assert lines[2].get_linestyle() == "--"


def test_many_classes_are_the_largest_and_others() -> None:
    drift = measure_drift(recording(classes=40), 3)
    names, shares = shown_classes(drift)
    assert len(names) == len(MANY)
    assert names[-1] == "29 others"
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[:, :-1].mean(axis=0).min() >= np.sort(drift.labels.mean(axis=0))[28] - 1e-12
    few = measure_drift(recording(classes=12), 3)
    assert shown_classes(few)[0] == list(few.recording.class_names)


def test_dates_are_on_the_axis() -> None:
    drift = measure_drift(recording(dated=True), 3)
    axes = drift_figure(drift).axes[0]
    begin, end = (str(np.datetime64(round(86400 * day), "s")) for day in axes.get_xlim())
    assert (begin, end) == ("2024-03-01T00:00:00", "2024-04-19T23:00:00")
    texts = [text.get_text() for text in axes.get_xticklabels()]
    assert "Apr" in texts


def test_names_of_classes_are_no_formulas() -> None:
    made = recording(classes=3)
    names = ("_a$b$", "$x", "a class with a very long name")
    labels = np.array(names)[made.samples.labels]
    drift = measure_drift(make_recording("made", made.samples.features, labels, made.times), 3)
    figure = drift_figure(drift)
    figure.canvas.draw()
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 3
