"""A user's own data: four arrays, checked where they enter."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Samples
from dufl.errors import InputError

Arrays = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def own_samples(arrays: Any) -> tuple[Samples, Samples]:
    """Samples to train on and to test on, from x_train, y_train, x_test and y_test.

    >>> x, y = np.zeros((4, 8, 8)), [0, 1, 1, 0]
    >>> own_samples((x, y, x, y))[0].shape
    (1, 8, 8)
    """
    if not isinstance(arrays, tuple | list) or len(arrays) != 4:
        got = f"{len(arrays)} of them" if isinstance(arrays, tuple | list) else type(arrays).__name__
        raise InputError.of("it", f"a Dataset or the four arrays {', '.join(ARRAYS)}", got)
    train = _samples("train", arrays[0], arrays[1])
    test = _samples("test", arrays[2], arrays[3])
    if train.shape != test.shape or train.features.dtype != test.features.dtype:
        rule = f"like x_train, {train.features.dtype} {train.shape} a sample"
        raise InputError.of("x_test", rule, f"{test.features.dtype} {test.shape}")
    _check_classes(train, test)
    return train, test


def _samples(split: str, features: npt.ArrayLike, labels: npt.ArrayLike) -> Samples:
    kept, known = _features(f"x_{split}", features), _labels(f"y_{split}", labels)
    if len(kept) != len(known):
        raise InputError.of(f"y_{split}", f"one label for each of {len(kept):,} samples", f"{len(known):,}")
    return Samples(kept, known)


def _array(name: str, given: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(given)
    except Exception as error:  # ragged lists, tensors elsewhere, whatever a user's own type raises
        raise InputError(f"{name} must be an array of numbers: {str(error).partition('. ')[0]}") from error


def _features(name: str, given: npt.ArrayLike) -> npt.NDArray[Any]:
    """Images as (n, channels, height, width), anything else as it is; uint8, or float32 in [0, 1]."""
    array = _array(name, given)
    if array.dtype.kind not in "uif" or array.ndim < 2 or array.size == 0:
        raise InputError.of(name, "numbers of shape (n, ...), not empty", f"{array.dtype} {array.shape}")
    if array.dtype.kind == "f":
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):  # what is not a number fails too
            raise InputError.of(name, "in [0, 1], as floats are", f"{low:g} to {high:g}")
        array = array.astype(np.float32, copy=False)
    elif array.dtype != np.uint8:
        rule = "uint8, which are pixels in 0..255, or floats in [0, 1]"
        raise InputError.of(name, rule, f"{array.dtype}: other integers, such as tokens, are no features")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    return array


def _labels(name: str, given: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = _array(name, given)
    if array.dtype.kind not in "ui" or array.ndim != 1 or array.size == 0:
        raise InputError.of(name, "integers of shape (n,), not empty", f"{array.dtype} {array.shape}")
    if array.min() < 0 or array.max() > np.iinfo(np.int64).max:
        raise InputError.of(name, "labels 0, 1, 2, …", f"{array.min()} to {array.max()}")
    return array.astype(np.int64)


def _check_classes(train: Samples, test: Samples) -> None:
    """Refuse classes that nobody can learn, as a label that is no class makes thousands of them."""
    there = np.unique(train.labels)
    classes = int(there[-1]) + 1
    if len(there) < classes:
        missing = int(np.flatnonzero(there != np.arange(len(there)))[0])
        rule = "labels 0, 1, 2, … with at least one sample each"
        raise InputError.of("y_train", rule, f"{there[0]} to {there[-1]} without a sample of {missing}")
    if test.labels.max() >= classes:
        rule = f"labels that are in y_train, 0 to {classes - 1}"
        raise InputError.of("y_test", rule, int(test.labels.max()))
