"""A user's own data: four arrays, checked where they enter."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Samples
from dufl.errors import InputError

Arrays = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_MOST_CLASSES = 100_000  # a larger label is no label


def own_samples(name: str, arrays: Any) -> tuple[Samples, Samples]:
    """Samples to train on and to test on, from x_train, y_train, x_test and y_test.

    >>> x, y = np.zeros((4, 8, 8)), [0, 1, 1, 0]
    >>> own_samples("mine", (x, y, x, y))[0].shape
    (1, 8, 8)
    """
    if not isinstance(arrays, tuple | list) or len(arrays) != 4:
        raise InputError.of(name, f"a Dataset or the four arrays {', '.join(ARRAYS)}", type(arrays).__name__)
    train = _samples("train", arrays[0], arrays[1])
    test = _samples("test", arrays[2], arrays[3])
    if train.shape != test.shape or train.features.dtype != test.features.dtype:
        rule = f"like x_train, {train.features.dtype} {train.shape} a sample"
        raise InputError.of("x_test", rule, f"{test.features.dtype} {test.shape}")
    return train, test


def _samples(split: str, features: npt.ArrayLike, labels: npt.ArrayLike) -> Samples:
    kept, known = _features(f"x_{split}", features), _labels(f"y_{split}", labels)
    if len(kept) != len(known):
        raise InputError.of(f"y_{split}", f"one label for each of {len(kept):,} samples", f"{len(known):,}")
    return Samples(kept, known)


def _features(name: str, given: npt.ArrayLike) -> npt.NDArray[Any]:
    """Images as (n, channels, height, width), anything else as it is; uint8, or float32 in [0, 1]."""
    found = np.asarray(given)
    if found.dtype.kind not in "uif" or found.ndim < 2 or found.size == 0:
        raise InputError.of(name, "numbers of shape (n, ...), not empty", f"{found.dtype} {found.shape}")
    low, high = found.min(), found.max()
    real = found.dtype.kind == "f"
    if not (low >= 0 and high <= (1 if real else 255)):  # what is not a number fails too
        rule = "in [0, 1], as floats are" if real else "in 0..255, as whole numbers are"
        raise InputError.of(name, rule, f"{low:g} to {high:g}")
    found = found.astype(np.float32 if real else np.uint8, copy=False)
    if found.ndim == 3:
        return found[:, None]
    if found.ndim == 4 and found.shape[1] not in (1, 3) and found.shape[3] in (1, 3):
        return np.ascontiguousarray(found.transpose(0, 3, 1, 2))
    return found


def _labels(name: str, given: npt.ArrayLike) -> npt.NDArray[np.int64]:
    found = np.asarray(given)
    if found.dtype.kind not in "ui" or found.ndim != 1 or found.size == 0:
        raise InputError.of(name, "whole numbers of shape (n,), not empty", f"{found.dtype} {found.shape}")
    if found.min() < 0 or found.max() >= _MOST_CLASSES:
        raise InputError.of(name, "labels 0, 1, 2, …", f"{found.min()} to {found.max()}")
    return found.astype(np.int64)
