"""A folder that another program fills, as a stream: `.npz` shards or image files, by name.

A shard holds arrays `x` and `y`. An image's label is the number that names its folder. Names must sort
in the order of arrival. A file that cannot be read yet is taken to be in the making: the stream stops
before it until it can be read, or until it has lain unchanged for `patience` seconds, when it is passed
over for good and named in `skipped`. A shard that is whole but holds something else, such as other arrays
or features that are neither floats nor uint8, is an error. Files whose names begin with a dot or end in
`.part` or `.tmp` are not looked at.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.bounded import refusing
from dufl.data.numpy_files import UnknownArraysError, read_arrays
from dufl.data.samples import Samples, concatenate
from dufl.errors import InputError

SHARD = 1 << 30  # bytes that the arrays of a shard may take
_ARRAYS = ("x", "y")
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}


class FolderStream:
    """The samples in a folder, each once."""

    def __init__(self, folder: str | Path, patience: float = 10.0) -> None:
        self.folder = Path(folder)
        self.skipped: list[Path] = []
        self._patience = patience
        self._done: set[Path] = set()
        self._left: Samples | None = None  # read, but not yet asked for
        if not self.folder.is_dir():
            raise InputError.of("folder", "a folder that exists", self.folder)

    def collect(self, count: int, round: int) -> Samples:
        """The next `count` samples, fewer if there are no more now."""
        taken: list[Samples] = []
        missing = count
        while missing > 0:
            if self._left is None or not len(self._left):
                self._left = next(self._shards(), None)
                if self._left is None:
                    break
            taken.append(self._left.take(slice(0, missing)))
            self._left = self._left.take(slice(missing, None))
            missing -= len(taken[-1])
        return concatenate(taken) if taken else Samples(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))

    def resume(self, collected: int) -> None:
        """Pass over the first samples: those taken before. Shards must not have been removed since."""
        found = len(self.collect(collected, 0))
        if found < collected:
            raise InputError.of(
                f"{self.folder}", f"still holding the {collected} samples taken before", found
            )

    def _shards(self) -> Iterator[Samples]:
        """The next shard that can be read; nothing if the next one is still in the making."""
        for path in sorted(self.folder.rglob("*")):
            hidden = path.name.startswith(".") or path.suffix in (".part", ".tmp")
            known = path.suffix == ".npz" or path.suffix.lower() in IMAGES
            if path in self._done or hidden or not known or not path.is_file():
                continue
            try:
                features, labels = _read(path)
            except InputError as error:
                if isinstance(error, UnknownArraysError) and set(_ARRAYS) <= error.there:
                    raise
                if time.time() - path.stat().st_mtime < self._patience:
                    return
                self._done.add(path)
                self.skipped.append(path)
                continue
            try:
                shard = Samples(features, labels)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            self._done.add(path)
            if len(shard):
                yield shard


def _read(path: Path) -> tuple[npt.NDArray[Any], npt.ArrayLike]:
    """The features and labels of one file; whatever is wrong with it is an `InputError`."""
    if path.suffix == ".npz":
        arrays = read_arrays(path, _ARRAYS, SHARD)
        return arrays["x"], arrays["y"]
    from PIL import Image

    with refusing(path), Image.open(path) as image:
        label = int(path.parent.name)
        pixels = np.asarray(image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB"))
    layers = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return layers[None].astype(np.uint8), [label]
