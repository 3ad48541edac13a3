"""Labelled samples, many at a time: what files contain, streams yield and buffers store.

`Samples` have features. `IndexedSamples` are samples of a dataset, given by their indices in it; in
simulation they are what streams yield and buffers store.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError

Features = npt.NDArray[Any]  # uint8 as stored in files, or float32
Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]  # classes as int64, or numbers as float32 for regression

RECORD = 96  # bytes per stored sample besides its features: index, label, round of birth, id, and copies


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples: `features` of shape (n, ...) and `labels` of shape (n,).

    Features of type uint8 are pixels, 0 to 255, and are scaled to [0, 1] when they are used. Floats are
    stored as float32 and not scaled. Other integers are refused, because their meaning is unknown. Labels
    are classes (integers), or numbers (floats) for regression.

    >>> some = Samples(np.zeros((3, 28, 28), np.uint8), [7, 1, 7])
    >>> len(some), some.shape, some.labels.tolist()
    (3, (28, 28), [7, 1, 7])
    """

    features: Features
    labels: Labels

    def __init__(self, features: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        x, y = np.asarray(features), np.asarray(labels)
        if x.dtype != np.uint8 and x.dtype.kind != "f":
            raise InputError.of("features", "uint8 pixels in 0..255, or floats", x.dtype)
        if y.dtype.kind not in "uif" and y.size:
            raise InputError.of("labels", "integers, or floats for regression", y.dtype)
        if x.dtype.kind == "f":
            x = x.astype(np.float32, copy=False)
        if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
            rule = "features of shape (n, ...) and n labels"
            raise InputError.of("samples", rule, f"shapes {x.shape} and {y.shape}")
        object.__setattr__(self, "features", x)
        object.__setattr__(self, "labels", _labels(y))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def content(self) -> Features:
        """The features: the array that a buffer stores beside the labels."""
        return self.features

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's features."""
        return tuple(self.features.shape[1:])

    def take(self, which: npt.NDArray[Any] | slice) -> "Samples":
        """The samples at some positions."""
        return Samples(self.features[which], self.labels[which])

    def to_float(self) -> npt.NDArray[np.float32]:
        """The features as new float32; pixels are scaled to [0, 1]."""
        if self.features.dtype == np.uint8:
            return self.features.astype(np.float32) / np.float32(255)
        return np.array(self.features, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class IndexedSamples:
    """Samples of a dataset: their `indices` in it (int64) and their `labels`, both of shape (n,).

    >>> some = IndexedSamples([40, 2, 11], [7, 1, 7])
    >>> len(some), some.indices.dtype, some.take(slice(1, None)).indices.tolist()
    (3, dtype('int64'), [2, 11])
    """

    indices: Indices
    labels: Labels

    def __init__(self, indices: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        i, y = np.asarray(indices), np.asarray(labels)
        if (i.dtype.kind not in "ui" and i.size) or i.ndim != 1:
            raise InputError.of("indices", "integers of shape (n,)", f"{i.dtype} {i.shape}")
        if (y.dtype.kind not in "uif" and y.size) or y.shape != i.shape:
            raise InputError.of("labels", f"numbers of shape {i.shape}", f"{y.dtype} {y.shape}")
        object.__setattr__(self, "indices", i.astype(np.int64, copy=False))
        object.__setattr__(self, "labels", _labels(y))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def content(self) -> Indices:
        """The indices: the array that a buffer stores beside the labels."""
        return self.indices

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one index: ()."""
        return ()

    def take(self, which: npt.NDArray[Any] | slice) -> "IndexedSamples":
        """The samples at some positions."""
        return IndexedSamples(self.indices[which], self.labels[which])


class Pool(Samples):
    """Samples to which others can be added: the positions of the earlier ones do not change.

    >>> pool = Pool(Samples(np.zeros((3, 2), np.float32), [0, 1, 0]))
    >>> pool.add(Samples(np.ones((2, 2), np.float32), [1, 1])).tolist(), len(pool), len(pool.added)
    ([3, 4], 5, 2)
    """

    def __init__(self, base: Samples) -> None:
        super().__init__(base.features, base.labels)
        object.__setattr__(self, "base", len(base))
        object.__setattr__(self, "_room", (self.features, self.labels))

    def add(self, samples: Samples) -> Indices:
        """Add samples and return their positions."""
        if samples.shape != self.shape or samples.features.dtype != self.features.dtype:
            rule = f"of shape {self.shape} and type {self.features.dtype}, as in the dataset"
            raise InputError.of("samples", rule, f"{samples.shape} and {samples.features.dtype}")
        begin, end = len(self), len(self) + len(samples)
        room = self._room  # type: ignore[attr-defined]
        if end > len(room[1]):
            wanted = end + end // 2
            room = tuple(np.empty((wanted, *array.shape[1:]), array.dtype) for array in room)
            room[0][:begin], room[1][:begin] = self.features, self.labels
            object.__setattr__(self, "_room", room)
        room[0][begin:end], room[1][begin:end] = samples.features, samples.labels
        object.__setattr__(self, "features", room[0][:end])
        object.__setattr__(self, "labels", room[1][:end])
        return np.arange(begin, end)

    @property
    def added(self) -> Samples:
        """The samples that were added."""
        return Samples(self.features[self.base :], self.labels[self.base :])  # type: ignore[attr-defined]


def _labels(given: npt.NDArray[Any]) -> Labels:
    """Classes as int64, numbers as float32; an empty list has no type of its own."""
    number = (given.dtype.kind == "f" and given.size > 0) or given.dtype == np.float32
    return given.astype(np.float32 if number else np.int64, copy=False)


AnySamples = TypeVar("AnySamples", Samples, IndexedSamples)


def concatenate(parts: Sequence[AnySamples]) -> AnySamples:
    """Several batches of samples as one."""
    content, labels = (np.concatenate([getattr(part, n) for part in parts]) for n in ("content", "labels"))
    return type(parts[0])(content, labels)


def samples_of(content: npt.NDArray[Any], labels: npt.ArrayLike) -> Any:
    """`IndexedSamples` if the stored content is indices, otherwise `Samples`.

    >>> type(samples_of(np.arange(2), [0, 1])).__name__
    'IndexedSamples'
    """
    kind = IndexedSamples if content.dtype == np.int64 and content.ndim == 1 else Samples
    return kind(content, labels)


@cache
def memory() -> int:
    """The bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def max_samples(num_features: int = 0) -> int:
    """How many samples of `num_features` float32 each fit into memory; 0 is for indexed samples."""
    return memory() // (4 * num_features + RECORD)
