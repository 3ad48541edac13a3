"""A folder of CSV or Parquet files as a stream."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dufl.data.live.folders import GrowingFolder, Part
from dufl.data.live.table_files import CsvRows, Numbers, ParquetRows, Rows
from dufl.data.recording import Task
from dufl.data.samples import Labels, Samples
from dufl.errors import InputError

SUFFIXES = (".csv", ".parquet")
_EXACT = 2.0**53  # integers up to here are exact as floats


class TableStream(GrowingFolder):
    """A folder of `.csv` or `.parquet` files, one sample per row.

    The rows of a CSV file are collected as they are written: a line counts when it has its end, or when the
    file has not changed for `patience` seconds. A file is left when it has not changed for as long and there
    is a later one in the same folder. A Parquet file can be read when it is complete. See `GrowingFolder` for
    the names of files and for files that cannot be read.

    A missing column, or a field that is not a finite number, is an error that names the file, the column and
    the row. The rows before it are collected.

    Args:
        folder: with the files.
        label: the column of labels.
        features: the columns of features; by default all other columns that have numbers in the first row.
        time: a column that is not a feature, if it is there.
        task: "classification", with integers as labels, or "regression", with any numbers.
        patience: seconds without a change after which a file counts as finished.
    """

    def __init__(
        self,
        folder: str | Path,
        label: str = "label",
        features: Sequence[str] | None = None,
        *,
        time: str = "time",
        task: Task = "classification",
        patience: float = 10.0,
    ) -> None:
        super().__init__(folder, patience)
        if task not in ("classification", "regression"):
            raise InputError.of("task", "'classification' or 'regression'", repr(task))
        if features is not None and (isinstance(features, str) or not len(features) or label in features):
            raise InputError.of("features", "columns other than the label", repr(features))
        self.label, self.time, self.task = label, time, task
        self._given = None if features is None else list(features)

    @property
    def features(self) -> list[str]:
        """The columns of features; empty if they are not known yet."""
        return list(self._given or self._facts.get("features", []))

    def _knows(self, path: Path) -> bool:
        return path.suffix in SUFFIXES

    def _read(self, path: Path, start: int, quiet: bool) -> Part:
        rows: Rows = CsvRows(path, start, quiet) if path.suffix == ".csv" else ParquetRows(path, start)
        if isinstance(rows, CsvRows) and rows.torn and path not in self.skipped:
            self.skipped.append(path)
        if rows.names:
            self._check_names(path, rows, [self.label, *self.features])
        if not len(rows):
            return Part(self._no_samples(), (), rows.last)
        if not self.features:
            self._facts = {"features": self._choose(path, rows)}
        names = [self.label, *self.features]
        numbers = np.stack([rows.numbers(name) for name in names], axis=1)
        good = self._good(path, rows, names, numbers)
        samples = Samples(numbers[:good, 1:].astype(np.float32), self._labels(numbers[:good, 0]))
        return Part(samples, rows.ends[:good], rows.last and good == len(rows))

    def _check_names(self, path: Path, rows: Rows, names: list[str]) -> None:
        missing = [name for name in names if name not in rows.names]
        if missing:
            rule = f"a table with the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
            raise InputError.of(str(path), rule, ", ".join(rows.names))

    def _choose(self, path: Path, rows: Rows) -> list[str]:
        names = [name for name in rows.numeric() if name not in (self.label, self.time)]
        if not names:
            raise InputError.of(str(path), "a table with a column of numbers", ", ".join(rows.names))
        return names

    def _good(self, path: Path, rows: Rows, names: list[str], numbers: Numbers) -> int:
        """How many rows come before the first bad one; raises if that is the first."""
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(numbers.astype(np.float32))
        label = numbers[:, 0]
        if self.task == "classification":
            bad[:, 0] |= (label != np.rint(label)) | (np.abs(label) > _EXACT)
        if not bad.any():
            return len(numbers)
        index = int(np.flatnonzero(bad.any(axis=1))[0])
        if not index:
            name = names[int(np.flatnonzero(bad[0])[0])]
            integer = name == self.label and self.task == "classification"
            rule = "an integer (for regression, set task)" if integer else "a finite number"
            where = f"column {name} in row {rows.row(0)} of {path}"
            raise InputError.of(where, rule, repr(rows.text(name, 0)))
        return index

    def _labels(self, numbers: Numbers) -> Labels:
        return numbers.astype(np.int64 if self.task == "classification" else np.float32)

    def _no_samples(self) -> Samples:
        return Samples(np.zeros((0, len(self.features) or 1), np.float32), self._labels(np.zeros(0)))
