"""A dataset: training and test samples, of a known dataset or from a user's own arrays."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.datasets.catalogue import CATALOGUE
from dufl.data.samples import Samples
from dufl.errors import InputError

Arrays = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples.

    Attributes:
        name: the name that it was loaded by.
        train: the training samples, in the dataset's own order.
        test: the test samples; they never age.
        class_names: one per label.
        whole: False if it is a part of a larger, known dataset.
        verified: whether every file has matched its published checksum.
        source: the folder or file it was read from; None if there is none.

    >>> from dufl.data.datasets import load_dataset
    >>> load_dataset("digits").describe()
    'digits: 1,437 train and 360 test samples of shape (1, 8, 8), 10 classes'
    """

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    whole: bool = True
    verified: bool = False
    source: Path | None = None

    def __post_init__(self) -> None:
        train, test = self.train, self.test
        for split, samples in (("train", train), ("test", test)):
            if not isinstance(samples, Samples) or not len(samples):
                got = "none" if isinstance(samples, Samples) else type(samples).__name__
                raise InputError.of(f"{split} of dataset {self.name!r}", "Samples, at least one", got)
            if samples.features.dtype == np.float32 and not np.isfinite(samples.features).all():
                raise InputError.of(f"{split} features of dataset {self.name!r}", "finite", "others")
            low, high = int(samples.labels.min()), int(samples.labels.max())
            if low < 0 or high >= self.num_classes:
                rule = f"from 0 to {self.num_classes - 1}, as there are {self.num_classes} class names"
                raise InputError.of(f"{split} labels of dataset {self.name!r}", rule, f"{low} to {high}")
        if train.shape != test.shape or train.features.dtype != test.features.dtype:
            rule = f"like the training samples, {train.features.dtype} {train.shape}"
            got = f"{test.features.dtype} {test.shape}"
            raise InputError.of(f"test samples of dataset {self.name!r}", rule, got)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width) for images."""
        return self.train.shape

    def describe(self) -> str:
        """Name, number of samples, shape and classes in one line; a subset is called one."""
        known = CATALOGUE.get(self.name)
        part = f" (a subset of {known.train:,} and {known.test:,})" if known and not self.whole else ""
        counts = f"{len(self.train):,} train and {len(self.test):,} test samples"
        return f"{self.name}: {counts}{part} of shape {self.shape}, {self.num_classes} classes"


def own_dataset(name: str, made: object, path: Path | None = None) -> Dataset:
    """The dataset that a user's function returned, or the one of four arrays in a file.

    Args:
        name: of the dataset.
        made: a `Dataset`, or x_train, y_train, x_test and y_test.
        path: the file that the arrays were read from, if any.

    >>> x, y = np.zeros((4, 8, 8)), [0, 1, 1, 0]
    >>> own_dataset("mine", (x, y, x, y)).shape
    (1, 8, 8)
    """
    if isinstance(made, Dataset):
        return made
    try:
        train, test = _own_samples(made)
        return Dataset(name, train, test, tuple(map(str, range(train.labels.max() + 1))), source=path)
    except InputError as error:
        where = name if path is None else path
        raise InputError(f"dataset {where}: {error}", field=error.field, rule=error.rule) from None


def _own_samples(arrays: Any) -> tuple[Samples, Samples]:
    if not isinstance(arrays, tuple | list) or len(arrays) != 4:
        got = f"{len(arrays)} of them" if isinstance(arrays, tuple | list) else type(arrays).__name__
        raise InputError.of("it", f"a Dataset or the four arrays {', '.join(ARRAYS)}", got)
    train = _samples("train", arrays[0], arrays[1])
    test = _samples("test", arrays[2], arrays[3])
    if train.shape != test.shape or train.features.dtype != test.features.dtype:
        rule = f"like x_train, {train.features.dtype} {train.shape} per sample"
        raise InputError.of("x_test", rule, f"{test.features.dtype} {test.shape}")
    _check_classes(train, test)
    return train, test


def _samples(split: str, features: npt.ArrayLike, labels: npt.ArrayLike) -> Samples:
    x, y = _features(f"x_{split}", features), _labels(f"y_{split}", labels)
    if len(x) != len(y):
        raise InputError.of(f"y_{split}", f"one label for each of {len(x):,} samples", f"{len(y):,}")
    return Samples(x, y)


def _array(name: str, given: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(given)
    except Exception as error:  # ragged lists, tensors on a device, whatever a user's own type raises
        message = f"{name} must be an array of numbers: {str(error).partition('. ')[0]}"
        raise InputError(message, field=name, rule="an array of numbers") from error


def _features(name: str, given: npt.ArrayLike) -> npt.NDArray[Any]:
    """Images as (n, channels, height, width), anything else unchanged; uint8, or float32 in [0, 1]."""
    array = _array(name, given)
    if array.dtype.kind not in "uif" or array.ndim < 2 or array.size == 0:
        raise InputError.of(name, "numbers of shape (n, ...), not empty", f"{array.dtype} {array.shape}")
    if array.dtype.kind == "f":
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):  # also true for NaN
            raise InputError.of(name, "floats in [0, 1]", f"{low:g} to {high:g}")
        array = array.astype(np.float32, copy=False)
    elif array.dtype != np.uint8:
        rule = "uint8 pixels in 0..255, or floats in [0, 1]"
        raise InputError.of(name, rule, f"{array.dtype}: other integers, such as tokens, are not features")
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
    """Raise for classes without training samples: a label that is no class index creates thousands."""
    present = np.unique(train.labels)
    classes = int(present[-1]) + 1
    if len(present) < classes:
        missing = int(np.flatnonzero(present != np.arange(len(present)))[0])
        rule = "labels 0, 1, 2, … with at least one sample each"
        raise InputError.of("y_train", rule, f"{present[0]} to {present[-1]} without a sample of {missing}")
    if test.labels.max() >= classes:
        rule = f"labels that are in y_train, 0 to {classes - 1}"
        raise InputError.of("y_test", rule, int(test.labels.max()))
