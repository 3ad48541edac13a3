"""Tables of samples: which columns are features, label, time and client, and what their cells mean."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.recording import Recording, Task, make_recording
from dufl.errors import InputError, shown
from dufl.inputs import did_you_mean

CLIENT = "client"  # a column of this name is the client, unless another is named
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LISTED = 12  # names of columns in a message


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes:
        label: the column to predict.
        time: the column of the times: numbers, or dates.
        client: the column that says who recorded a row. None is a column named "client", if there is one.
        features: the columns of the features. None is all other columns.
    """

    label: str = "label"
    time: str = "time"
    client: str | None = None
    features: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.features is not None:
            names = [self.features] if isinstance(self.features, str) else self.features
            object.__setattr__(self, "features", tuple(names))


@dataclass(frozen=True)
class Roles:
    """The positions of label, time, client and features in a table with the columns `names`.

    `where` is the table in messages: its file, or what it is.
    """

    where: str
    names: tuple[str, ...]
    label: int
    time: int
    client: int | None
    features: tuple[int, ...]

    @property
    def used(self) -> tuple[int, ...]:
        """All positions that are read: features, label, time and client."""
        return (*self.features, self.label, self.time, *(() if self.client is None else (self.client,)))

    def column(self, place: int) -> str:
        """A column in a message."""
        return f"column {self.names[place]!r}"

    def error(self, place: int, rule: str, got: str, row: int, advice: str = "") -> InputError:
        """The error of a cell; rows count from 0."""
        error = InputError.of(self.column(place), rule, f"{got} in row {row + 1:,}", advice=advice)
        return prefixed(self.where, error)


def prefixed(where: str, error: InputError) -> InputError:
    """The same error with the file before its message."""
    found = InputError(f"{where}: {error}", field=error.field, rule=error.rule, value=error.value)
    found.advice = error.advice
    return found


def roles_of(names: Sequence[str], columns: Columns, where: str) -> Roles:
    """The roles of the columns of a table; raises if one is missing, named twice or used twice.

    >>> roles_of(["time", "a", "b", "label"], Columns(), "data.csv").features
    (1, 2)
    >>> roles_of(["time", "a", "class"], Columns(label="clas"), "data.csv")
    Traceback (most recent call last):
    dufl.errors.InputError: columns.label must be a column of data.csv, got 'clas': did you mean 'class'?
    """
    places = {name: place for place, name in enumerate(names)}
    if len(places) < len(names):
        twice = next(name for place, name in enumerate(names) if places[name] != place)
        raise InputError.of(f"column names of {where}", "different", f"{shown(twice)} twice")

    def find(role: str, name: str) -> int:
        if name not in places:
            raise _unknown(role, name, names, where)
        return places[name]

    label, time = find("label", columns.label), find("time", columns.time)
    listed = None if columns.features is None else tuple(find("features", n) for n in columns.features)
    client = None if columns.client is None else find("client", columns.client)
    if client is None and CLIENT in places and places[CLIENT] not in {label, time, *(listed or ())}:
        client = places[CLIENT]
    taken = [label, time] if client is None else [label, time, client]
    rest = tuple(place for place in range(len(names)) if place not in taken)
    roles = Roles(where, tuple(names), label, time, client, rest if listed is None else listed)
    repeated = [names[place] for place in roles.used if roles.used.count(place) > 1]
    if repeated:
        raise InputError.of("columns", "different columns", f"{repeated[0]!r} twice")
    if not roles.features:
        rule = "a table with at least one column of numbers besides label, time and client"
        raise InputError.of(where, rule, _listed(names))
    return roles


def _unknown(role: str, name: str, names: Sequence[str], where: str) -> InputError:
    advice = did_you_mean(name, names) or f"its columns are {_listed(names)}"
    return InputError.of(f"columns.{role}", f"a column of {where}", shown(name), advice=advice)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(shown(name, str) for name in names[:_LISTED]) + more


def assemble(
    roles: Roles,
    name: str,
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    times: npt.NDArray[Any],
    clients: npt.NDArray[Any] | None,
    task: Task,
    source: Path | None,
) -> Recording:
    """The recording of a table whose columns have been read."""
    client = CLIENT if roles.client is None else roles.names[roles.client]
    label, time = roles.column(roles.label), roles.column(roles.time)
    called = ("features", label, time, f"column {client!r}")
    chosen = [roles.names[place] for place in roles.features]
    try:
        return make_recording(
            name,
            features,
            labels,
            times,
            clients,
            task=task,
            feature_names=chosen,
            columns=called,
            source=source,
        )
    except InputError as error:
        raise prefixed(roles.where, error) from None


def text_times(roles: Roles, texts: Sequence[str]) -> npt.NDArray[Any]:
    """Times of text: numbers if the first cell is one, otherwise dates in ISO 8601; without a zone in UTC."""
    if texts and _NUMBER.fullmatch(texts[0].strip()):
        return _converted(roles, roles.time, texts, _number, "a number as in row 1", np.float64)
    rule = "a number or a date such as 2024-03-01T12:30:00Z"
    return _converted(roles, roles.time, texts, _microseconds, rule, np.int64).view("datetime64[us]")


def text_numbers(roles: Roles, place: int, texts: Sequence[str], start: int = 0) -> npt.NDArray[np.float64]:
    """Numbers of text, of which `start` rows come before; raises for the first cell that is none."""
    together = "".join(texts)
    if together.isascii() and "_" not in together:  # `float` accepts 1_000 and other alphabets
        try:
            return np.fromiter(map(float, texts), np.float64, len(texts))
        except ValueError:
            pass
    return _converted(roles, place, texts, _number, "a number", np.float64, start)


def text_values(texts: Sequence[str]) -> npt.NDArray[Any]:
    """Classes or clients of text: integers or other numbers if all cells are, otherwise the texts.

    >>> text_values(["2", "10", "2"]).tolist(), text_values(["2", "b"]).tolist()
    ([2, 10, 2], ['2', 'b'])
    """
    cells = [text.strip() for text in texts]
    distinct = set(cells)
    if all(_INTEGER.fullmatch(cell) for cell in distinct):
        return np.array(list(map(int, cells)), np.int64)
    if all(_NUMBER.fullmatch(cell) for cell in distinct):
        return np.array(list(map(float, cells)), np.float64)
    return np.array(cells, object)


def date_times(roles: Roles, values: Sequence[Any]) -> npt.NDArray[Any]:
    """Times from Python objects: `datetime`s, numbers or texts, all of one kind."""
    first = values[0] if len(values) else None
    if isinstance(first, str):
        return text_times(roles, [value if isinstance(value, str) else "" for value in values])
    if hasattr(first, "isoformat"):
        return text_times(
            roles, [value.isoformat() if hasattr(value, "isoformat") else "" for value in values]
        )
    return _converted(roles, roles.time, values, _plain_number, "a number or a date", np.float64)


def _converted(
    roles: Roles,
    place: int,
    cells: Sequence[Any],
    convert: Callable[[Any], Any],
    rule: str,
    dtype: Any,
    start: int = 0,
) -> npt.NDArray[Any]:
    out = np.empty(len(cells), dtype)
    for row, cell in enumerate(cells):
        try:
            out[row] = convert(cell)
        except (ValueError, TypeError, OverflowError):
            raise roles.error(place, rule, cell_text(cell), start + row) from None
    return out


def cell_text(cell: object) -> str:
    """A cell in a message."""
    return "a missing value" if cell is None or (isinstance(cell, str) and not cell.strip()) else shown(cell)


def _number(text: str) -> float:
    if not text.isascii() or "_" in text:
        raise ValueError
    return float(text)


def _plain_number(value: object) -> float:
    if isinstance(value, str | bytes):
        raise TypeError
    return float(value)  # type: ignore[arg-type]


def _microseconds(text: str) -> int:
    time = datetime.fromisoformat(text.strip())
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
