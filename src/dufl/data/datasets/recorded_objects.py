"""Recordings from Python objects: arrays, data frames, Hugging Face datasets and PyTorch datasets.

The objects are recognized by their methods. None of these libraries is imported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.datasets.tables import Columns, Roles, assemble, cell_text, date_times, roles_of
from dufl.data.recording import Recording, Task, first_not_finite, make_recording
from dufl.data.samples import max_samples
from dufl.errors import InputError, shown

ARRAYS = ("x", "y", "time", "client")
_HUGGING_FACE_ROWS = 1 << 14


def is_frame(source: Any) -> bool:
    """Whether an object is a data frame of pandas."""
    return not isinstance(source, type) and hasattr(source, "iloc") and hasattr(source, "columns")


def is_hugging_face(source: Any) -> bool:
    """Whether an object is a `datasets.Dataset`."""
    return isinstance(getattr(source, "column_names", None), list) and hasattr(source, "with_format")


def is_map_style(source: Any) -> bool:
    """Whether an object is a map-style dataset of PyTorch, or a list of samples."""
    known = isinstance(source, str | bytes | bytearray | tuple | Mapping | np.ndarray | type)
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not known


def from_arrays(arrays: Any, name: str, task: Task) -> Recording:
    """The recording of a tuple or dictionary of the arrays x, y, time and, optionally, client."""
    parts = _parts(arrays, "the arrays")
    try:
        return make_recording(name, *map(np.asarray, parts), task=task)
    except InputError:
        raise
    except Exception as error:  # ragged lists, tensors on a device, whatever a user's own type raises
        message = f"x, y and time must be arrays: {str(error).partition('. ')[0]}"
        raise InputError(message, field="x", rule="an array") from error


def from_frame(frame: Any, name: str, columns: Columns, task: Task) -> Recording:
    """The recording in a data frame of pandas."""
    roles = roles_of([str(column) for column in frame.columns], columns, "the data frame")
    if not len(frame):
        raise InputError.of(roles.where, "a table with rows", "none")
    x = np.empty((len(frame), len(roles.features)), np.float32)
    for position, place in enumerate(roles.features):
        values = _series(roles, place, frame)
        if values.dtype.kind not in "uifb":
            values = _numbers(roles, place, values)
        with np.errstate(over="ignore"):
            x[:, position] = values
    bad = first_not_finite(x)
    if bad:
        place = roles.features[bad[1]]
        value = _series(roles, place, frame)[bad[0]]
        raise roles.error(place, "finite numbers of float32", f"{value:g}", bad[0])
    times = _series(roles, roles.time, frame)
    times = times if times.dtype.kind != "O" else date_times(roles, times.tolist())
    clients = None if roles.client is None else _series(roles, roles.client, frame)
    return assemble(roles, name, x, _series(roles, roles.label, frame), times, clients, task, None)


def from_hugging_face(source: Any, name: str, columns: Columns, task: Task) -> Recording:
    """The recording in a `datasets.Dataset`; the names of a `ClassLabel` become the class names."""
    from dufl.data.datasets.arrow_tables import from_batches

    roles = roles_of(source.column_names, columns, "the dataset")
    used = source.select_columns([roles.names[place] for place in roles.used]).with_format("arrow")

    def batches() -> Iterator[Any]:
        for start in range(0, len(source), _HUGGING_FACE_ROWS):
            yield used[start : start + _HUGGING_FACE_ROWS]

    recording = from_batches(roles, name, batches(), len(source), task, None)
    names = getattr(source.features[roles.names[roles.label]], "names", None)
    if not names or task == "regression":
        return recording
    return replace(recording, class_names=tuple(names[int(label)] for label in recording.class_names))


def from_map_style(source: Any, name: str, task: Task) -> Recording:
    """The recording in a dataset of (x, y, time[, client]), or of dictionaries with these keys."""
    count = len(source)
    if not count:
        raise InputError.of("the dataset", "a dataset with samples", "none")
    x, *rest = _parts(source[0], "sample 1 of the dataset")
    features = _room(_sample(x, 0), count)
    others: list[list[Any]] = [[] for _ in rest]
    for row in range(count):
        x, *rest = _parts(source[row], f"sample {row + 1:,} of the dataset")
        array = _sample(x, row)
        if array.shape != features.shape[1:] or len(rest) != len(others):
            rule = f"like sample 1, x of shape {features.shape[1:]} and {len(others)} other values"
            raise InputError.of(f"sample {row + 1:,}", rule, f"{array.shape} and {len(rest)}")
        with np.errstate(over="ignore"):
            features[row] = array
        for values, value in zip(others, rest, strict=True):
            values.append(_plain(value))
    roles = Roles("the dataset", ARRAYS, 1, 2, 3, (0,))
    times = date_times(roles, others[1])
    labels, *clients = (_column(values) for values in (others[0], *others[2:]))
    return make_recording(name, features, labels, times, *clients, task=task)


def _parts(sample: Any, what: str) -> list[Any]:
    """x, y, time and, if it is there, client."""
    rule = "(x, y, time) or (x, y, time, client), or a dictionary with these keys"
    if isinstance(sample, Mapping):
        unknown = [str(key) for key in sample if key not in ARRAYS]
        missing = [key for key in ARRAYS[:3] if key not in sample]
        if unknown or missing:
            raise InputError.of(what, rule, ", ".join(map(str, sample)) or "nothing")
        return [sample[key] for key in ARRAYS if key in sample]
    if not isinstance(sample, tuple | list) or len(sample) not in (3, 4):
        got = f"{len(sample)} values" if isinstance(sample, tuple | list) else type(sample).__name__
        raise InputError.of(what, rule, got)
    return list(sample)


def _sample(x: Any, row: int) -> npt.NDArray[Any]:
    try:
        array = np.asarray(x)
    except Exception as error:  # a tensor that requires gradients, or whatever a user's own type raises
        message = f"x of sample {row + 1:,} must be an array of numbers: {error}"
        raise InputError(message, field="x", rule="an array of numbers") from error
    if array.dtype.kind not in "uifb":
        raise InputError.of(f"x of sample {row + 1:,}", "an array of numbers", shown(x))
    return array.reshape(1) if array.ndim == 0 else array


def _room(first: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """An array for all samples: pixels if the first one is an image of them, otherwise float32."""
    most = max_samples(first.size)
    if count > most:
        raise InputError.of("the dataset", f"at most {most:,} samples, what fits into memory", f"{count:,}")
    pixels = first.dtype == np.uint8 and first.ndim >= 2
    return np.empty((count, *first.shape), np.uint8 if pixels else np.float32)


def _plain(value: Any) -> Any:
    """A scalar of NumPy or PyTorch as a number of Python; dates and texts unchanged."""
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "size", None) is not None else value


def _column(values: Sequence[Any]) -> npt.NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    kinds = {type(value) for value in values}
    if kinds <= {int, bool}:
        return array.astype(np.int64)
    return array.astype(np.float64) if kinds <= {int, float, bool} else array


def _series(roles: Roles, place: int, frame: Any) -> npt.NDArray[Any]:
    """One column of a frame as an array, without missing cells; dates with a zone are in UTC."""
    series = frame.iloc[:, place]
    missing = np.flatnonzero(np.asarray(series.isna()))
    if len(missing):
        raise roles.error(place, "given in every row", "a missing value", int(missing[0]))
    zone = getattr(series.dtype, "tz", None)
    return np.asarray(series.to_numpy(dtype="datetime64[us]") if zone else series.to_numpy())


def _numbers(roles: Roles, place: int, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    out = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        if isinstance(value, str) or not hasattr(value, "__float__"):
            advice = "name the columns to use in `features`"
            raise roles.error(place, "numbers", cell_text(value), row, advice)
        out[row] = float(value)
    return out
