"""The figure of a calibration: measured against fitted, and the loss over volume and age."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dufl.calibration.calibrate import Calibration
from dufl.report.chart_spec import BLUE, DASHES, GREEN, GREY, ORANGE
from dufl.report.figures import COLUMN, Width, new_figure, save, style

Array = npt.NDArray[np.float64]
CURVES = 3  # of the law in a panel, from the least to the largest age or volume
COLORS = (BLUE, ORANGE, GREEN)
MARKERS = ("o", "s", "D")
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_UNITS = {"error": "error (%)", "loss": "loss", "rmse": "RMSE"}


def plot_calibration(calibration: Calibration, width: Width = "page") -> Figure:
    """A calibration as a figure.

    Measured against fitted, with the held-out error as a band; the measurements over the volume per client,
    with the law at a few ages; and over the mean age, with the law at a few volumes.
    """
    with style(width):
        if width == "page":
            figure, (fit, volume, age) = new_figure(10.5, 3.4, ncols=3)
        else:
            figure, (fit, volume, age) = new_figure(COLUMN, 7.2, nrows=3)
        _draw_fit(fit, calibration)
        _draw_volume(volume, calibration)
        _draw_age(age, calibration)
    return figure


def write_calibration_figures(calibration: Calibration, folder: Path) -> list[Path]:
    """Write calibration.png, .svg and .pdf; returns the paths."""
    return save(plot_calibration(calibration), folder, "calibration")


def _scale(calibration: Calibration) -> float:
    """Errors are shown in percent."""
    return 100.0 if calibration.law.unit == "error" else 1.0


def _draw_fit(axes: Axes, calibration: Calibration) -> None:
    scarcity, staleness, value = calibration.points
    scale = _scale(calibration)
    fitted = scale * calibration.law(scarcity, staleness) * np.ones_like(value)
    measured, error = scale * value, scale * calibration.fit.heldout_rmse
    low, high = float(min(fitted.min(), measured.min())), float(max(fitted.max(), measured.max()))
    around = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    ends = np.array([low - around, high + around])
    amount = f"{error:.2g} points" if calibration.law.unit == "error" else f"{error:.2g}"
    axes.fill_between(
        ends,
        ends - error,
        ends + error,
        color=GREY,
        alpha=0.25,
        linewidth=0,
        label=f"held-out error, ± {amount}",
    )
    axes.plot(ends, ends, color=GREY, linewidth=1)
    axes.plot(fitted, measured, "o", color=BLUE, markersize=4.5, markeredgecolor="white")
    unit = _UNITS[calibration.law.unit]
    axes.set(
        xlabel=f"fitted {unit}",
        ylabel=f"measured {unit}",
        xlim=ends,
        ylim=ends,
        title=_fit_title(calibration),
    )
    axes.legend(loc="upper left")


def _fit_title(calibration: Calibration) -> str:
    """The name of the panel, with the held-out R² if it is defined."""
    quality = calibration.r2_heldout
    number = f"{quality:.2f}".replace("-", "−")
    return f"Fit, held-out R² = {number}" if np.isfinite(quality) else "Fit"


def _draw_volume(axes: Axes, calibration: Calibration) -> None:
    scarcity, staleness, value = calibration.points
    law, scale = calibration.law, _scale(calibration)
    volumes = np.geomspace(0.85 / scarcity.max(), 1.18 / scarcity.min(), 100)
    _draw_panel(
        axes,
        (1 / scarcity, staleness, scale * value),
        volumes,
        lambda age: scale * law(1 / volumes, np.full_like(volumes, age)),
        lambda age: f"age {age:.1f}",
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    if volumes[-1] / volumes[0] < 20:  # fewer than two powers of ten would be on the axis
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="samples per client D", ylabel=_UNITS[law.unit], title="Volume, at some ages")


def _draw_age(axes: Axes, calibration: Calibration) -> None:
    scarcity, staleness, value = calibration.points
    law, scale = calibration.law, _scale(calibration)
    ages = np.linspace(max(0.9 * staleness.min(), 1e-9), staleness.max(), 100)  # no older than was tried
    _draw_panel(
        axes,
        (staleness, 1 / scarcity, scale * value),
        ages,
        lambda volume: scale * law(np.full_like(ages, 1 / volume), ages),
        lambda volume: f"{volume:,.0f} samples" if volume >= 1 else f"{volume:.2g} samples",
    )
    axes.set(xlabel="mean age S (rounds)", ylabel=_UNITS[law.unit], title="Age, at some volumes")


def _draw_panel(
    axes: Axes,
    points: tuple[Array, Array, Array],
    positions: Array,
    curve: Callable[[float], Array],
    name: Callable[[float], str],
) -> None:
    """Measurements and curves of the law; a measurement has the colour of the curve that is closest to it.

    Args:
        axes: where to draw.
        points: the axis of the panel, the other quantity, and the value, of every measurement.
        positions: where the curves are computed.
        curve: the law at the positions, for a value of the other quantity.
        name: of such a value.
    """
    along, other, value = points
    levels = np.unique(np.geomspace(max(other.min(), 1e-9), max(other.max(), 1e-9), CURVES))
    nearest = np.abs(np.log(np.maximum(other, 1e-9)[:, None] / levels)).argmin(axis=1)
    for place, level in enumerate(levels.tolist()):
        color, mine = COLORS[place], nearest == place
        axes.plot(positions, curve(level), color=color, linestyle=_DASHES[DASHES[place]], label=name(level))
        axes.plot(
            along[mine], value[mine], MARKERS[place], color=color, markersize=4.5, markeredgecolor="white"
        )
    axes.legend(loc="best")
