"""Rows of CSV and Parquet files, some at a time. CSV needs no extra; Parquet needs the extra `tables`."""

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.datasets.untrusted_files import refusing
from dufl.data.live.folders import IncompleteError
from dufl.errors import InputError

Numbers = npt.NDArray[np.float64]
CHUNK = 4 << 20  # bytes of a CSV file read at a time; no line may be longer
GROUP_LIMIT = 1 << 30  # bytes of a row group of a Parquet file


class Rows(ABC):
    """Some rows of a table, in order.

    Attributes:
        names: the columns of the file.
        ends: one integer per row: from where to read on after it.
        last: whether the file has no more rows, now and later.
    """

    names: tuple[str, ...] = ()
    ends: Sequence[int] = ()
    last: bool = False

    def __len__(self) -> int:
        return len(self.ends)

    @abstractmethod
    def numeric(self) -> list[str]:
        """The columns that have numbers."""

    @abstractmethod
    def numbers(self, name: str) -> Numbers:
        """A column; NaN where there is no number."""

    @abstractmethod
    def text(self, name: str, index: int) -> str:
        """What is in a column instead of a number."""

    @abstractmethod
    def row(self, index: int) -> int:
        """The number of a row in the file; 1 is the first below the names of the columns."""


class CsvRows(Rows):
    """The lines of a CSV file in UTF-8, from a place in bytes on. One line is one row.

    A line without an end is not read, because it may be incomplete, unless `quiet` says that the file has not
    changed for long. If it then has too few fields, it is not read either, and `torn` is true.
    """

    def __init__(self, path: Path, start: int, quiet: bool) -> None:
        self._path, self.torn = path, False
        try:
            with path.open("rb") as file:
                header = file.readline(CHUNK)
                self._start = max(start, len(header))
                file.seek(self._start)
                content = file.read(CHUNK)
        except OSError as error:
            raise IncompleteError(f"{path} cannot be read: {error.strerror}", field=str(path)) from error
        if not header.endswith(b"\n"):
            _check_length(path, header)
            return  # no row without all names
        self.names = tuple(name.strip() for name in _fields([header], "utf-8-sig")[0])
        lines = _lines(content)
        rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if not lines:
            _check_length(path, rest)
        cells = _fields(lines)
        if rest.strip() and quiet and len(content) < CHUNK:
            (final,) = _fields([rest])
            self.torn = len(final) != len(self.names)
            lines, cells = (lines, cells) if self.torn else ([*lines, rest], [*cells, final])
        places = self._start + np.cumsum([len(line) for line in lines], dtype=np.int64)
        filled = [index for index, line in enumerate(lines) if line.strip()]
        self._cells = [cells[index] for index in filled]
        self.ends = places[filled].tolist()
        self._check_fields()

    def _check_fields(self) -> None:
        """Stop before a row with another number of fields; raise if it is the first."""
        for index, row in enumerate(self._cells):
            if len(row) != len(self.names):
                if not index:
                    where = f"row {self.row(0)} of {self._path}"
                    raise InputError.of(where, f"{len(self.names)} fields, as the header has", len(row))
                self._cells, self.ends = self._cells[:index], self.ends[:index]
                return

    def numeric(self) -> list[str]:
        """The columns with a number in the first of these rows."""
        return [name for name in self.names if np.isfinite(_number(self.text(name, 0)))]

    def numbers(self, name: str) -> Numbers:
        """A column; NaN where the text is no number."""
        place = self.names.index(name)
        try:
            return np.array([float(row[place]) for row in self._cells], np.float64)
        except ValueError:
            return np.array([_number(row[place]) for row in self._cells], np.float64)

    def text(self, name: str, index: int) -> str:
        """The text of a field."""
        return self._cells[index][self.names.index(name)]

    def row(self, index: int) -> int:
        """The number of a row, counted from the beginning of the file."""
        with self._path.open("rb") as file:
            before = _lines(file.read(self._start))
        return sum(1 for line in before[1:] if line.strip()) + index + 1


class ParquetRows(Rows):
    """The rows of a row group of a Parquet file, from the row with an index on."""

    def __init__(self, path: Path, start: int) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise InputError("Parquet files need pyarrow: pip install 'dufl[tables]'") from None
        try:
            with refusing(path), parquet.ParquetFile(path) as file:
                self._load(path, file, start)
        except InputError as error:
            if error.rule:
                raise
            raise IncompleteError(str(error), field=error.field) from error

    def _load(self, path: Path, file: Any, start: int) -> None:
        self._start, total = start, file.metadata.num_rows
        self.names = tuple(file.schema_arrow.names)
        sizes = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.last = start >= total
        if self.last:
            return
        group = int(np.searchsorted(edges, start, side="right")) - 1
        size = file.metadata.row_group(group).total_byte_size
        if size > GROUP_LIMIT:
            raise InputError.of(str(path), f"of row groups of at most {GROUP_LIMIT:,} bytes", f"{size:,}")
        self._table = file.read_row_group(group).slice(start - int(edges[group]))
        self.ends = range(start + 1, int(edges[group + 1]) + 1)
        self.last = self.ends[-1] == total

    def numeric(self) -> list[str]:
        """The columns of integers and floats."""
        from pyarrow import types

        kinds = ((field.name, field.type) for field in self._table.schema)
        return [name for name, kind in kinds if types.is_integer(kind) or types.is_floating(kind)]

    def numbers(self, name: str) -> Numbers:
        """A column; NaN where it has no value, and everywhere if it is not a column of numbers."""
        if name not in self.numeric():
            return np.full(len(self), np.nan)
        return np.asarray(self._table.column(name).to_numpy(), np.float64)

    def text(self, name: str, index: int) -> str:
        """The value in a field as text."""
        value = self._table.column(name)[index].as_py()
        return "" if value is None else str(value)

    def row(self, index: int) -> int:
        """The number of a row of the file."""
        return self._start + index + 1


def _lines(content: bytes) -> list[bytes]:
    """The lines with their ends; the last one may have none."""
    return [line for line in re.split(rb"(?<=\n)", content) if line]


def _fields(lines: list[bytes], encoding: str = "utf-8") -> list[list[str]]:
    """The fields of each line. A quotation mark that is never closed ends with its line."""
    texts = [line.decode(encoding, "replace").rstrip("\r\n") for line in lines]
    fields = list(csv.reader(texts))
    return fields if len(fields) == len(texts) else [next(csv.reader([text]), []) for text in texts]


def _check_length(path: Path, line: bytes) -> None:
    if len(line) >= CHUNK:
        raise InputError.of(str(path), f"of lines of less than {CHUNK:,} bytes", "a longer one")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
