"""A recording: samples in the order of their time, and optionally the client that recorded each of them.

Nothing in a recording is simulated. Its samples are used when they became known, and an old sample is simply
old. `dufl.data.replay` divides the recorded time into rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Samples
from dufl.errors import InputError

Task = Literal["classification", "regression"]
Times = npt.NDArray[np.float64]
BLOCK = 1 << 20  # numbers checked at a time
MOST_CLASSES = 10_000  # more distinct labels than this are numbers, not classes


@dataclass(frozen=True, eq=False)
class Recording:
    """Samples with times.

    Attributes:
        name: the name that it was loaded by.
        samples: in the order of time. Their labels are classes (int64), or numbers (float32) for regression.
        times: one per sample, in ascending order: numbers, or seconds since 1970 (UTC) if they are dates.
        clients: who recorded each sample, as a position in `client_names`; None if it is not known.
        class_names: one per label; empty for regression.
        client_names: one per client; empty if the clients are not known.
        feature_names: one per feature; empty if they have no names.
        dated: whether the times are dates.
        source: the file it was read from; None if there is none.

    >>> x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 1, 0])
    >>> make_recording("mine", x, y, [1.0, 2.0, 2.0, 4.0]).describe()
    'mine: 4 recorded samples of shape (2,), 2 classes, time 1 to 4'
    >>> make_recording("mine", x, y, [1.0, 3.0, 2.0, 4.0])
    Traceback (most recent call last):
    dufl.errors.InputError: time must be in ascending order, got 2 after 3 in row 3: sort the rows by time
    """

    name: str
    samples: Samples
    times: Times
    clients: npt.NDArray[np.int64] | None = None
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    dated: bool = False
    source: Path | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def task(self) -> Task:
        """Whether the labels are classes or numbers."""
        return "regression" if self.samples.labels.dtype.kind == "f" else "classification"

    @property
    def num_classes(self) -> int:
        """The number of classes; 1 for regression, the number of outputs of a model."""
        return len(self.class_names) or 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.samples.shape

    def describe(self) -> str:
        """Name, number of samples, shape, classes, clients and recorded time in one line."""
        labels = "regression" if self.task == "regression" else f"{self.num_classes} classes"
        clients = f", {len(self.client_names)} clients" if self.client_names else ""
        begin, end = (time_text(t, self.dated) for t in self.times[[0, -1]])
        what = f"{len(self):,} recorded samples of shape {self.shape}, {labels}{clients}"
        return f"{self.name}: {what}, time {begin} to {end}"

    def renamed(self, name: str, source: Path | None) -> "Recording":
        """The same recording with another name and source."""
        return replace(self, name=name, source=source)


def make_recording(
    name: str,
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    times: npt.ArrayLike,
    clients: npt.ArrayLike | None = None,
    *,
    task: Task = "classification",
    feature_names: Sequence[str] = (),
    columns: tuple[str, str, str, str] = ("x", "y", "time", "client"),
    source: Path | None = None,
) -> Recording:
    """A recording from arrays in the order of time. Times may be equal, but must not descend.

    An array of float32 or of pixels is not copied.

    Args:
        name: of the recording.
        features: numbers of shape (n, ...): floats, integers or booleans, or uint8 images of at least three
            axes, which are pixels and are scaled by 1/255 when they are used.
        labels: one per sample. Classes are integers, texts or booleans; numbers for regression.
        times: one per sample: numbers, or dates (datetime64).
        clients: who recorded each sample: integers or texts; None if it is not known.
        task: "classification", or "regression" if labels are numbers.
        feature_names: one per feature, if they have names.
        columns: what messages call features, labels, times and clients.
        source: the file that the arrays were read from.
    """
    x_name, y_name, time_name, client_name = columns
    x = _features(x_name, features, feature_names)
    seconds, dated = _times(time_name, times, len(x))
    y, class_names = _labels(y_name, labels, len(x), task)
    who, client_names = (None, ()) if clients is None else _clients(client_name, clients, len(x))
    _check_order(time_name, seconds, dated)
    if seconds[0] == seconds[-1]:
        raise InputError.of(time_name, "at least two different times", f"only {time_text(seconds[0], dated)}")
    return Recording(
        name, Samples(x, y), seconds, who, class_names, client_names, tuple(feature_names), dated, source
    )


def time_text(time: float, dated: bool) -> str:
    """A time as a date, or as a number.

    >>> time_text(0.5, False), time_text(86400.0, True), time_text(86460.0, True)
    ('0.5', '1970-01-02', '1970-01-02 00:01')
    """
    if not dated:
        return f"{time:,.6g}" if time != round(time) else f"{round(time):,}"
    text = str(np.datetime64(round(time), "s")).replace("T", " ")
    return text.removesuffix(":00").removesuffix(" 00:00")


def _features(name: str, given: npt.ArrayLike, names: Sequence[str]) -> npt.NDArray[Any]:
    array = np.asarray(given)
    if array.dtype.kind not in "uifb" or array.ndim < 2 or array.size == 0:
        raise InputError.of(name, "numbers of shape (n, ...), not empty", f"{array.dtype} {array.shape}")
    if array.dtype == np.uint8 and array.ndim >= 3:
        return array[:, None] if array.ndim == 3 else array
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    bad = first_not_finite(numbers)
    if bad:
        row, place = bad
        column = f"column {names[place]!r}" if names else f"feature {place} of {name}"
        value = array.reshape(len(array), -1)[row, place]
        got = "a missing value" if np.isnan(value) else f"{value:g}"
        raise InputError.of(column, "finite numbers of float32", f"{got} in row {row + 1}")
    return numbers


def first_not_finite(numbers: npt.NDArray[np.float32]) -> tuple[int, int] | None:
    """Row and feature of the first number that is infinite or NaN; None if there is none.

    >>> first_not_finite(np.array([[1, 2], [3, np.nan]], np.float32))
    (1, 1)
    """
    flat = numbers.reshape(len(numbers), -1)
    step = max(1, BLOCK // max(1, flat.shape[1]))
    for start in range(0, len(flat), step):
        finite = np.isfinite(flat[start : start + step])
        if not finite.all():
            row, place = np.argwhere(~finite)[0]
            return start + int(row), int(place)
    return None


def _times(name: str, given: npt.ArrayLike, count: int) -> tuple[Times, bool]:
    """Times as numbers, and whether they are dates."""
    array = np.asarray(given)
    if array.shape != (count,) or array.dtype.kind not in "uifM":
        rule = f"{count:,} numbers or dates, one per sample"
        raise InputError.of(name, rule, f"{array.dtype} {array.shape}")
    dated = array.dtype.kind == "M"
    missing = np.isnat(array) if dated else ~np.isfinite(array.astype(np.float64))
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise InputError.of(name, "a finite number or a date in every row", f"none in row {row + 1}")
    if not dated:
        return array.astype(np.float64), False
    day = array.astype("datetime64[D]")  # exact, whatever the unit: a date is days and a part of a day
    return day.astype(np.float64) * 86400 + (array - day) / np.timedelta64(1, "s"), True


def _check_order(name: str, seconds: Times, dated: bool) -> None:
    descents = np.flatnonzero(seconds[1:] < seconds[:-1])
    if len(descents):
        row = int(descents[0]) + 1
        later, earlier = (time_text(seconds[at], dated) for at in (row - 1, row))
        got = f"{earlier} after {later} in row {row + 1}"
        raise InputError.of(name, "in ascending order", got, advice="sort the rows by time")


def _labels(
    name: str, given: npt.ArrayLike, count: int, task: Task
) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    array = np.asarray(given)
    if array.shape != (count,):
        raise InputError.of(name, f"{count:,} labels, one per sample", f"{array.dtype} {array.shape}")
    if task == "regression":
        if array.dtype.kind not in "uif":
            raise InputError.of(name, "numbers, for regression", array.dtype)
        numbers = array.astype(np.float32)
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise InputError.of(name, "finite numbers of float32", f"{array[row]} in row {row + 1}")
        return numbers, ()
    return _positions(name, array, "classes: integers, texts or booleans", least=2)


def _clients(name: str, given: npt.ArrayLike, count: int) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    array = np.asarray(given)
    if array.shape != (count,):
        raise InputError.of(name, f"{count:,} clients, one per sample", f"{array.dtype} {array.shape}")
    return _positions(name, array, "integers or texts", least=1)


def _positions(
    name: str, array: npt.NDArray[Any], rule: str, least: int
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """The position of every value among the distinct ones, in ascending order, and their names."""
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.rint(array))
        if not whole.all():
            row = int(np.flatnonzero(~whole)[0])
            advice = " (for regression, set task)" if least > 1 else ""
            raise InputError.of(name, f"{rule}{advice}", f"{array[row]} in row {row + 1}")
        array = array.astype(np.int64)
    if array.dtype.kind not in "uibUO":
        raise InputError.of(name, rule, array.dtype)
    if array.dtype.kind in "UO":
        distinct, positions = _texts(name, rule, array)
    else:
        distinct, positions = np.unique(array, return_inverse=True)
    if len(distinct) < least:
        raise InputError.of(name, f"of at least {least} classes", f"only {distinct[0]}")
    if len(distinct) > MOST_CLASSES and least > 1:
        rule = f"at most {MOST_CLASSES:,} classes (for regression, set task)"
        raise InputError.of(name, rule, f"{len(distinct):,}")
    return positions.astype(np.int64), tuple(map(str, distinct.tolist()))


def _texts(name: str, rule: str, array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The distinct values of texts or objects in ascending order, and the position of every value in them.

    Objects that are all integers are ordered as numbers. A dictionary is faster here than sorting all texts.
    """
    values = array.tolist()
    try:
        distinct = set(values)
    except TypeError:  # lists or other containers
        raise InputError.of(name, rule, "other objects") from None
    if any(_is_missing(value) for value in distinct):
        row = next(row for row, value in enumerate(values) if _is_missing(value))
        raise InputError.of(name, rule, f"a missing value in row {row + 1}")
    if not all(isinstance(value, int) for value in distinct):
        values = list(map(str, values))
        distinct = set(values)
    places = {value: place for place, value in enumerate(sorted(distinct))}
    return np.array(list(places), object), np.fromiter(map(places.__getitem__, values), np.int64, len(values))


def _is_missing(value: object) -> bool:
    """Whether a cell is empty: None, an empty text, NaN, or what data frames have in their place."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value == "" or value != value
