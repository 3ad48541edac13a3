"""Recordings from CSV files: a header, then one row per sample."""

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dufl.data.datasets.tables import (
    Columns,
    Roles,
    assemble,
    cell_text,
    roles_of,
    text_numbers,
    text_times,
    text_values,
)
from dufl.data.datasets.untrusted_files import refusing
from dufl.data.recording import Recording, Task, first_not_finite
from dufl.data.samples import max_samples
from dufl.errors import InputError

ROWS = 8192  # converted at a time
LONGEST_LINE = 1 << 22  # characters


def read_csv(path: Path, name: str, columns: Columns, task: Task) -> Recording:
    """The recording in a `.csv` or `.csv.gz`: commas, and UTF-8 with or without a byte order mark."""
    with refusing(path), path.open("rb") as file:
        plain = gzip.GzipFile(fileobj=file, mode="rb") if path.suffix == ".gz" else file
        _check_mark(path, plain.peek(2)[:2])
        text = io.TextIOWrapper(plain, "utf-8-sig", newline="")
        try:
            return _read(path, name, _rows(path, text), columns, task)
        except UnicodeDecodeError as error:
            got = f"a byte {error.object[error.start]:#04x} that is not"
            raise InputError.of(str(path), "text in UTF-8", got, advice="save it as UTF-8") from None
        except csv.Error as error:
            raise InputError.of(str(path), "a CSV file", str(error)) from None


def _check_mark(path: Path, begin: bytes) -> None:
    if begin in (b"\xff\xfe", b"\xfe\xff"):  # byte order marks
        raise InputError.of(str(path), "text in UTF-8", "UTF-16", advice="save it as UTF-8")


def _rows(path: Path, text: io.TextIOWrapper) -> Iterator[list[str]]:
    """The rows of a file without blank lines."""

    def lines() -> Iterator[str]:
        while line := text.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise InputError.of(str(path), f"lines of less than {LONGEST_LINE:,} characters", "more")
            yield line

    return filter(None, csv.reader(lines(), strict=True))


def _read(path: Path, name: str, rows: Iterator[list[str]], columns: Columns, task: Task) -> Recording:
    header = [cell.strip() for cell in next(rows, [])]
    if not header:
        raise InputError.of(str(path), "a header and rows", "an empty file")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        advice = "separate the columns by commas"
        raise InputError.of(str(path), "a CSV file with several columns", f"{header[0]!r}", advice=advice)
    roles = roles_of(header, columns, str(path))
    most, count = max_samples(len(roles.features)), 0
    blocks: list[npt.NDArray[np.float32]] = []
    texts: dict[int, list[str]] = {place: [] for place in roles.used if place not in roles.features}
    while chunk := list(islice(rows, ROWS)):
        _check_lengths(roles, chunk, count)
        cells = list(zip(*chunk, strict=True))
        blocks.append(_block(roles, cells, count))
        for place, column in texts.items():
            column += cells[place]
        count += len(chunk)
        if count > most:
            raise InputError.of(str(path), f"at most {most:,} rows, what fits into memory", "more")
    if not count:
        raise InputError.of(str(path), "a header and rows", "a header without rows")
    return _recording(path, name, roles, np.concatenate(blocks), texts, task)


def _check_lengths(roles: Roles, chunk: Sequence[Sequence[str]], start: int) -> None:
    expected = len(roles.names)
    if set(map(len, chunk)) != {expected}:
        row = next(row for row, cells in enumerate(chunk) if len(cells) != expected)
        got = f"{len(chunk[row])} in row {start + row + 1:,}"
        raise InputError.of(roles.where, f"a table with {expected} cells in every row", got)


def _block(roles: Roles, cells: Sequence[Sequence[str]], start: int) -> npt.NDArray[np.float32]:
    """The features of some rows, of which `start` rows come before."""
    block = np.empty((len(cells[0]), len(roles.features)), np.float32)
    for position, place in enumerate(roles.features):
        with np.errstate(over="ignore"):
            block[:, position] = text_numbers(roles, place, cells[place], start)
    bad = first_not_finite(block)
    if bad:
        row, place = bad[0], roles.features[bad[1]]
        cell = "a missing value" if np.isnan(block[bad]) else cell_text(cells[place][row])
        raise roles.error(place, "finite numbers of float32", cell, start + row)
    return block


def _recording(
    path: Path,
    name: str,
    roles: Roles,
    features: npt.NDArray[np.float32],
    texts: dict[int, list[str]],
    task: Task,
) -> Recording:
    for place in texts:
        row = next((row for row, cell in enumerate(texts[place]) if not cell.strip()), None)
        if row is not None:
            raise roles.error(place, "given in every row", "a missing value", row)
    times = text_times(roles, texts[roles.time])
    if task == "regression":
        labels = text_numbers(roles, roles.label, texts[roles.label])
    else:
        labels = text_values(texts[roles.label])
    clients = None if roles.client is None else text_values(texts[roles.client])
    return assemble(roles, name, features, labels, times, clients, task, path)
