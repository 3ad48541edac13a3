"""What every figure shares: colours that the colour-blind can tell apart, and how it is saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dufl.experiment.files import replacing

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"

_STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "dufl",
}


@contextmanager
def style() -> Iterator[None]:
    """DUFL's look, for the figures made inside the block."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """A figure without a window, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(**subplots)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg, the same bytes for the same figure."""
    paths = []
    for kind, metadata in (("png", {}), ("svg", {"Date": None})):
        path = folder / f"{name}.{kind}"
        with replacing(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=160, metadata=metadata)
        paths.append(path)
    return paths
