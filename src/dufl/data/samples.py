"""Labelled samples, many at a time: what files hold, streams yield and buffers keep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError

Features = npt.NDArray[Any]  # uint8 as stored in files, or float32 in [0, 1]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples: `features` of shape (n, ...) and `labels` of shape (n,).

    Features of type uint8 are pixels, 0 to 255, and are scaled to [0, 1] when they are used; any float is
    kept as float32, as it is. Other integers are refused: nothing says what they stand for.

    >>> some = Samples(np.zeros((3, 28, 28), np.uint8), [7, 1, 7])
    >>> len(some), some.shape, some.labels.tolist()
    (3, (28, 28), [7, 1, 7])
    """

    features: Features
    labels: Labels

    def __init__(self, features: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        kept, known = np.asarray(features), np.asarray(labels)
        if kept.dtype != np.uint8 and kept.dtype.kind != "f":
            raise InputError.of("features", "uint8, which are pixels in 0..255, or floats", kept.dtype)
        if known.dtype.kind not in "ui" and known.size:
            raise InputError.of("labels", "integers", known.dtype)
        if kept.dtype.kind == "f":
            kept = kept.astype(np.float32, copy=False)
        if known.ndim != 1 or kept.ndim < 2 or len(kept) != len(known):
            raise InputError.of(
                "samples",
                "features of shape (n, ...) and n labels",
                f"shapes {kept.shape} and {known.shape}",
            )
        object.__setattr__(self, "features", kept)
        object.__setattr__(self, "labels", known.astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's features."""
        return tuple(self.features.shape[1:])

    def take(self, which: npt.NDArray[Any] | slice) -> "Samples":
        """The samples at some places."""
        return Samples(self.features[which], self.labels[which])

    def to_float(self) -> npt.NDArray[np.float32]:
        """The features as float32 in [0, 1]: normalised when they are used, not when they are kept."""
        if self.features.dtype == np.uint8:
            return self.features.astype(np.float32) / np.float32(255)
        return np.array(self.features, dtype=np.float32)


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Some samples after the others."""
    return Samples(
        np.concatenate([part.features for part in parts]), np.concatenate([part.labels for part in parts])
    )
