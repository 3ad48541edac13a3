"""The figure of a calibration shows its measurements and its law."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.calibration.calibrate import Calibration
from dufl.calibration.measurements import columns
from dufl.report.calibration_figure import plot_calibration, write_calibration_figures
from dufl.report.figures import COLUMN
from measured import calibration, constant_calibration


@pytest.fixture(scope="module")
def calibrated() -> Calibration:
    return calibration()


def points(axes: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What is drawn as single points, by x and y."""
    drawn = [np.asarray(line.get_xydata()) for line in axes.get_lines() if line.get_linestyle() == "None"]
    found = np.concatenate(drawn)
    return found[np.lexsort(found.T)]


def texts(figure: Any) -> list[str]:
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        found += [text.get_text() for text in axes.get_xticklabels() + axes.get_yticklabels()]
        found += [text.get_text() for text in axes.get_legend().get_texts()]
    return found


@pytest.mark.parametrize("width", ["page", "column"])
def test_every_measurement_is_in_every_panel(calibrated: Calibration, width: Any) -> None:
    figure = plot_calibration(calibrated, width)
    scarcity, staleness, value = columns(calibrated.measurements)
    fitted = calibrated.law(scarcity, staleness)
    for axes, along in zip(figure.axes, (100 * fitted, 1 / scarcity, staleness), strict=True):
        expected = np.column_stack([along, 100 * value])
        np.testing.assert_allclose(points(axes), expected[np.lexsort(expected.T)])
    assert (float(figure.get_size_inches()[0]) == COLUMN) is (width == "column")
    sizes = [float(t.get_fontsize()) for axes in figure.axes for t in (axes.title, *axes.get_xticklabels())]
    assert min(sizes) >= 6.5


def test_curves_are_the_law(calibrated: Calibration) -> None:
    _, volume, age = plot_calibration(calibrated).axes
    curves = [line for line in volume.get_lines() if line.get_linestyle() != "None"]
    ages = columns(calibrated.measurements)[1]
    ages = np.geomspace(ages.min(), ages.max(), len(curves))
    assert len(curves) == 3
    for line, level in zip(curves, ages, strict=True):
        x, y = np.asarray(line.get_xydata()).T
        np.testing.assert_allclose(y, 100 * calibrated.law(1 / x, np.full_like(x, level)))
    assert volume.get_xscale() == "log"
    assert age.get_xscale() == "linear"


def test_the_band_is_the_held_out_error(calibrated: Calibration) -> None:
    (band,) = plot_calibration(calibrated).axes[0].collections
    corners = np.asarray(band.get_paths()[0].vertices, float)
    width = np.ptp(corners[np.isclose(corners[:, 0], corners[0, 0]), 1])
    assert width == pytest.approx(2 * 100 * calibrated.fit.heldout_rmse)


def test_units_and_unusual_calibrations(calibrated: Calibration) -> None:
    assert any("%" in text for text in texts(plot_calibration(calibrated)))
    for other in (constant_calibration(), calibration("rmse")):
        found = texts(plot_calibration(other))
        assert "nan" not in " ".join(found).lower()
        assert any("%" in text for text in found) is (other.law.unit == "error")


def test_files(calibrated: Calibration, tmp_path: Path) -> None:
    paths = write_calibration_figures(calibrated, tmp_path)
    assert [path.name for path in paths] == ["calibration.png", "calibration.svg", "calibration.pdf"]
    assert all(path.stat().st_size > 1000 for path in paths)
    assert calibrated.plot(width="column").axes
