"""Samples as clients hold them, fresh and as they age, as small pictures inside a page."""

import base64
import io
from html import escape

import numpy as np
import numpy.typing as npt
from PIL import Image

from dufl.data.ageing import Ageing
from dufl.data.datasets import Dataset
from dufl.report.data_figures import choose

COLUMNS = 10
_BETWEEN = 0.12  # of a sample's width


def ages_shown(ageing: Ageing) -> list[int]:
    """Fresh, a few rounds old, and as old as nobody renews it."""
    rounds = ageing.num_rounds
    return sorted({1, *(age for age in (3, 10, rounds // 2, rounds) if 1 < age <= rounds)})


def ageing_samples(dataset: Dataset, ageing: Ageing, seed: int = 0) -> str:
    """Some samples, a row an age, in HTML; of a dataset whose samples are pictures."""
    chosen = dataset.train.take(choose(dataset, COLUMNS)[:COLUMNS])
    names = [dataset.class_names[label].replace("_", " ") for label in chosen.labels]
    images = chosen.to_float()
    rows = []
    for age in ages_shown(ageing):
        aged = ageing.apply(images, np.full(len(images), age), seed, 0, np.arange(len(images)))
        said = "fresh" if age == 1 else f"age {age:,}"
        deviation = float(ageing.deviation([age])[0])
        noise = f"noise ±{deviation:.3f}" if deviation else "no noise"
        alt = f"{', '.join(names)}: {said}, {noise}"
        rows.append(
            f'<tr><th scope="row">{said}<span>{noise}</span></th>'
            f'<td><img src="{_strip(aged)}" alt="{escape(alt)}"></td></tr>\n'
        )
    caption = f"The same {len(images)} samples of {dataset.name}, as they age"
    body = f"<tbody>\n{''.join(rows)}</tbody>"
    return f'<table class="samples"><caption>{escape(caption)}</caption>{body}</table>\n'


def is_picture(dataset: Dataset) -> bool:
    """Whether its samples can be shown."""
    return len(dataset.shape) == 3 and dataset.shape[0] in (1, 3)


def _strip(images: npt.NDArray[np.float32]) -> str:
    """Pictures side by side as the address of a PNG, enlarged if they are small."""
    _, channels, height, width = images.shape
    scale = max(1, 64 // max(height, width))
    gap = max(1, round(_BETWEEN * width * scale))
    sheet = np.zeros((height * scale, len(images) * (width * scale + gap) - gap, channels + 1), np.uint8)
    shown = np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8).transpose(0, 2, 3, 1)
    for place, image in enumerate(np.repeat(np.repeat(shown, scale, axis=1), scale, axis=2)):
        left = place * (width * scale + gap)
        sheet[:, left : left + width * scale] = np.dstack([image, np.full(image.shape[:2], 255, np.uint8)])
    stream = io.BytesIO()
    Image.fromarray(sheet, "LA" if channels == 1 else "RGBA").save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
