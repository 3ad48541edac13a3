"""Datasets in memory: each is loaded once by a process, and kept while runs need it."""

from collections.abc import Iterable
from typing import Any

from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.experiment.sections import SOURCE, Data

Key = tuple[Any, ...]


def source_of(data: Data) -> Key:
    """The same for data that `Data.load` reads from the same place; objects are themselves."""
    values = [getattr(data, name) for name in SOURCE]
    return tuple(repr(v) if v is None or isinstance(v, str | list) else f"object {id(v)}" for v in values)


class Loader:
    """Loads datasets and keeps them."""

    def __init__(self) -> None:
        self._loaded: dict[Key, Dataset | Recording] = {}

    def __call__(self, data: Data) -> Dataset | Recording:
        """The dataset, loaded when it is first asked for."""
        key = source_of(data)
        if key not in self._loaded:
            self._loaded[key] = data.load()
        return self._loaded[key]

    def keep(self, wanted: Iterable[Data]) -> None:
        """Forget all datasets but some."""
        keys = {source_of(data) for data in wanted}
        self._loaded = {key: dataset for key, dataset in self._loaded.items() if key in keys}
