"""Clients as a CSV file: a header with the names in `COLUMNS`, then one line per client."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dufl.errors import InputError

COLUMNS = (
    *("initial_volume", "collection_cost", "training_cost", "initial_staleness", "capacity"),
    *("collection_price", "training_price", "reservation"),
)
_REQUIRED = COLUMNS[:3]
_ZERO = COLUMNS[5:]  # 0 by default; not written if they are 0 for all clients


def write_columns(columns: Mapping[str, Sequence[float]]) -> str:
    """The text of the file, with numbers in full precision; an infinite capacity is an empty cell."""
    names = [name for name in COLUMNS if name not in _ZERO or any(columns[name])]
    lines = [",".join(names)]
    for row in zip(*(columns[name] for name in names), strict=True):
        lines.append(",".join("" if value == math.inf else repr(value) for value in row))
    return "\n".join(lines) + "\n"


def read_columns(path: Path) -> dict[str, Any]:
    """The columns of a file; raises `InputError` if a cell is not a number."""
    try:
        return parse_columns(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} must be a readable CSV file: {error}") from None


def parse_columns(content: bytes, path: str) -> dict[str, Any]:
    """The columns of a file named `path`, from its content."""
    try:
        rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} must be a readable CSV file: {error}") from None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise InputError(f"{path} must have a header and at least one client, got {len(rows)} lines")
    header = [name.strip() for name in rows[0]]
    _check_header(path, header)
    table: dict[str, list[float]] = {name: [] for name in header}
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"{path} line {line} must have {len(header)} cells, got {len(row)}")
        for name, cell in zip(header, row, strict=True):
            table[name].append(_cell(path, line, name, cell))
    return table


def _cell(path: str, line: int, name: str, cell: str) -> float:
    if name == "capacity" and not cell.strip():
        return math.inf  # an empty cell: no limit
    try:
        return float(cell)
    except ValueError:
        field = f"{path} line {line}: {name}"
        raise InputError(f"{field} must be a number, got {cell!r}", field=field, value=cell) from None


def _check_header(path: str, header: list[str]) -> None:
    for name in _REQUIRED:
        if name not in header:
            raise InputError(f"{path} must have a column {name}, got {', '.join(header)}")
    for name in header:
        if name not in COLUMNS:
            raise InputError(f"{path} must have no column but {', '.join(COLUMNS)}, got {name!r}")
    if len(set(header)) < len(header):
        raise InputError(f"{path} must name each column once, got {', '.join(header)}")
