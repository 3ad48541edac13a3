"""Samples of a dataset as images, fresh and aged: on a sheet of their own, and inside a page."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from dufl.data.ageing import Ageing
from dufl.data.datasets import Dataset
from dufl.data.datasets.catalogue import CATALOGUE
from dufl.data.samples import Samples
from dufl.errors import InputError
from dufl.experiment.files import replacing
from dufl.experiment.output import check_file
from dufl.report.chart_spec import GREY
from dufl.report.figures import style
from dufl.report.page import Samples as SampleRows

COLUMNS, ROWS = 10, 3
_CELL = 0.78  # inches
_LINE = _CELL + 0.05
_LEFT, _RIGHT = 0.95, 0.15
_HEAD, _LABEL, _BETWEEN = 0.66, 0.2, 0.46
_GAP = 0.12  # between images of a strip, in widths of an image


def data_figure(dataset: Dataset, ageing: Ageing, seed: int = 0) -> Figure:
    """Samples with their labels, and the first row of them as it ages.

    The ages are 1 and a quarter, half and all of the rounds. Noisy values are clipped to [0, 1].

    Args:
        dataset: images of shape (channels, height, width).
        ageing: the noise law.
        seed: of the noise.
    """
    if not is_image(dataset):
        raise InputError.of(
            dataset.name, "images of shape (1 or 3, height, width) to be shown", dataset.shape
        )
    columns = dataset.num_classes if 5 <= dataset.num_classes <= COLUMNS else COLUMNS
    by_column = columns == dataset.num_classes  # one heading per column, or one label per sample
    ages = sorted({1, *(max(1, round(ageing.num_rounds * share)) for share in (0.25, 0.5, 1))})
    height = _HEAD + ROWS * _LINE + (1 if by_column else ROWS) * _LABEL + _BETWEEN + len(ages) * _LINE + 0.15
    with style():
        sheet = _Sheet(_LEFT + columns * _LINE + _RIGHT, height)
        chosen = dataset.train.take(choose(dataset, columns))
        top = _draw_samples(sheet, dataset, chosen, columns, by_column)
        _draw_ages(sheet, ageing, chosen.take(slice(columns)).to_float(), ages, top, seed)
    return sheet.figure


def _draw_samples(sheet: "_Sheet", dataset: Dataset, chosen: Samples, columns: int, by_column: bool) -> float:
    """The heading and the grid; returns where the grid ends."""
    known = CATALOGUE.get(dataset.name)
    sheet.text(_LEFT, 0.26, known.title if known else dataset.name, size=12, weight="bold")
    sheet.text(_LEFT, 0.48, dataset.describe().partition(": ")[2], size=9, color=GREY)
    top = _HEAD
    for cell, (image, label) in enumerate(zip(chosen.to_float(), chosen.labels, strict=True)):
        row, column = divmod(cell, columns)
        labelled = row == 0 or not by_column
        if column == 0:
            top += _LABEL * labelled + _LINE * (row > 0)
        name = dataset.class_names[label].replace("_", " ")
        sheet.image(image, _LEFT + column * _LINE, top, name if labelled else "")
    return top + _LINE


def _draw_ages(
    sheet: "_Sheet",
    ageing: Ageing,
    images: npt.NDArray[np.float32],
    ages: Sequence[int],
    top: float,
    seed: int,
) -> None:
    """The same images, one row per age."""
    law = f"σ = {ageing.time_sensitivity:g}, noise scale {ageing.noise_scale:g}"
    sheet.text(_LEFT, top + 0.28, "The first row as it ages", size=10)
    sheet.text(_LEFT + 1.75, top + 0.28, f"{law}, {ageing.num_rounds:,} rounds", size=9, color=GREY)
    for row, age in enumerate(ages):
        corner = top + _BETWEEN + row * _LINE
        aged = ageing.apply(images, np.full(len(images), age), seed, 0, np.arange(len(images)))
        deviation = float(ageing.deviation([age])[0])
        noise = f"noise ±{deviation:.2f}" if deviation else "no noise"
        sheet.text(_LEFT - 0.12, corner + _CELL / 2 - 0.08, f"age {age:,}", size=9, align="right")
        sheet.text(_LEFT - 0.12, corner + _CELL / 2 + 0.1, noise, size=8, color=GREY, align="right")
        for column, image in enumerate(aged):
            sheet.image(image, _LEFT + column * _LINE, corner)


def check_image_file(path: Path) -> None:
    """Refuse, before any work is done, a place where no image can be written."""
    if path.suffix != ".png" or not path.parent.is_dir():
        raise InputError.of("out", "a .png in a folder that exists", path)
    check_file(path, "out")


def save_image(figure: Figure, path: Path) -> None:
    """Write a `.png`, completely or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=160)


class _Sheet:
    """A page measured in inches from its top left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height))
        FigureCanvasAgg(self.figure)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float,
        color: str = "black",
        align: str = "left",
        **more: Any,
    ) -> None:
        place = x / self.width, 1 - y / self.height
        self.figure.text(*place, text, fontsize=size, color=color, ha=align, va="center", **more)

    def image(self, features: npt.NDArray[np.float32], x: float, y: float, title: str = "") -> None:
        bottom = 1 - (y + _CELL) / self.height
        axes = self.figure.add_axes((x / self.width, bottom, _CELL / self.width, _CELL / self.height))
        shown = np.clip(features.transpose(1, 2, 0), 0, 1)
        axes.imshow(shown if shown.shape[2] == 3 else shown[:, :, 0], cmap="gray", vmin=0, vmax=1)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set(visible=True, color="#DDDDDD", linewidth=0.5)  # a white image has an edge too
        if title:
            self.text(x + _CELL / 2, y - 0.09, title, size=8, align="center")


def choose(dataset: Dataset, columns: int) -> npt.NDArray[np.int64]:
    """Which training samples: the classes in turn, or evenly spread over them where there are many."""
    cells = ROWS * columns
    classes: Sequence[int] = [cell % dataset.num_classes for cell in range(cells)]
    if dataset.num_classes > cells:
        classes = [int(c) for c in np.linspace(0, dataset.num_classes - 1, cells).round()]
    used: dict[int, int] = {}
    chosen = []
    for cell, wanted in enumerate(classes):
        at = np.flatnonzero(dataset.train.labels == wanted)
        nth = used.get(wanted, 0)
        used[wanted] = nth + 1
        chosen.append(int(at[nth % len(at)]) if len(at) else cell % len(dataset.train))
    return np.array(chosen, np.int64)


def is_image(dataset: Dataset) -> bool:
    """Whether its samples can be shown."""
    return len(dataset.shape) == 3 and dataset.shape[0] in (1, 3)


def ageing_samples(dataset: Dataset, ageing: Ageing, seed: int = 0) -> SampleRows:
    """Some samples of a dataset of images, one row per age, for a page."""
    chosen = dataset.train.take(choose(dataset, COLUMNS)[:COLUMNS])
    names = ", ".join(dataset.class_names[label].replace("_", " ") for label in chosen.labels)
    images, rounds = chosen.to_float(), ageing.num_rounds
    rows = []
    for age in sorted({1, *(age for age in (3, 10, rounds // 2, rounds) if 1 < age <= rounds)}):
        aged = ageing.apply(images, np.full(len(images), age), seed, 0, np.arange(len(images)))
        label = "fresh" if age == 1 else f"age {age:,}"
        deviation = float(ageing.deviation([age])[0])
        noise = f"noise ±{deviation:.3f}" if deviation else "no noise"
        rows.append((label, noise, _strip(aged), f"{names}: {label}, {noise}"))
    return SampleRows(f"The same {len(images)} samples of {dataset.name} at different ages", rows)


def _strip(images: npt.NDArray[np.float32]) -> str:
    """Images side by side as the address of a PNG, enlarged if they are small."""
    _, channels, height, width = images.shape
    scale = max(1, 64 // max(height, width))
    gap = max(1, round(_GAP * width * scale))
    sheet = np.zeros((height * scale, len(images) * (width * scale + gap) - gap, channels + 1), np.uint8)
    shown = np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8).transpose(0, 2, 3, 1)
    for place, image in enumerate(np.repeat(np.repeat(shown, scale, axis=1), scale, axis=2)):
        left = place * (width * scale + gap)
        sheet[:, left : left + width * scale] = np.dstack([image, np.full(image.shape[:2], 255, np.uint8)])
    stream = io.BytesIO()
    Image.fromarray(sheet, "LA" if channels == 1 else "RGBA").save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
