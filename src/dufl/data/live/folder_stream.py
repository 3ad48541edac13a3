"""A folder of `.npz` shards or of images as a stream."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.datasets.untrusted_files import UnknownArraysError, read_arrays, refusing
from dufl.data.live.folders import GrowingFolder, IncompleteError, Part
from dufl.data.samples import Samples
from dufl.errors import InputError

SHARD_LIMIT = 1 << 30  # bytes of the arrays of one shard
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}
_ARRAYS = ("x", "y")


class FolderStream(GrowingFolder):
    """A folder of `.npz` shards with arrays `x` and `y`, or of images in folders named by their label.

    A shard that is complete but has other arrays, or features that are neither floats nor uint8, is an error.
    See `GrowingFolder` for incomplete files.
    """

    def _knows(self, path: Path) -> bool:
        return path.suffix == ".npz" or path.suffix.lower() in IMAGES

    def _read(self, path: Path, start: int, quiet: bool) -> Part:
        try:
            features, labels = _contents(path)
        except InputError as error:
            if isinstance(error, UnknownArraysError) and set(_ARRAYS) <= error.names:
                raise
            raise IncompleteError(str(error), field=error.field) from error
        try:
            if np.asarray(labels).dtype.kind == "f":  # a shard does not say that its labels are numbers
                raise InputError.of("labels", "integers", np.asarray(labels).dtype)
            samples = Samples(features, labels)
        except InputError as error:
            raise InputError(f"{path}: {error}", field=error.field, rule=error.rule) from None
        return Part(samples.take(slice(start, None)), range(start + 1, len(samples) + 1), last=True)


def _contents(path: Path) -> tuple[npt.NDArray[Any], npt.ArrayLike]:
    """The features and labels of one file; any defect is an `InputError`."""
    if path.suffix == ".npz":
        arrays = read_arrays(path, _ARRAYS, SHARD_LIMIT)
        return arrays["x"], arrays["y"]
    from PIL import Image

    with refusing(path), Image.open(path) as image:
        label = int(path.parent.name)
        pixels = np.asarray(image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB"))
    channels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return channels[None].astype(np.uint8), [label]
