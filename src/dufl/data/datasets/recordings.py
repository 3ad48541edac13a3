"""Load a recording by name, from a file, from a Python object or from a function."""

from pathlib import Path
from typing import Any

from dufl.data.datasets.known_recordings import RECORDINGS, load_known
from dufl.data.datasets.recorded_objects import (
    ARRAYS,
    from_arrays,
    from_frame,
    from_hugging_face,
    from_map_style,
    is_frame,
    is_hugging_face,
    is_map_style,
)
from dufl.data.datasets.tables import Columns, prefixed
from dufl.data.datasets.untrusted_files import UnknownArraysError, read_arrays, refusing
from dufl.data.recording import Recording, Task, make_recording
from dufl.errors import InputError
from dufl.inputs import did_you_mean

SUFFIXES = (".npz", ".csv", ".csv.gz", ".parquet")
_KINDS = "uifbUM"  # of the arrays of an .npz: numbers, texts and dates


def load_recording(
    source: Any,
    columns: Columns = Columns(),  # noqa: B008, it is frozen
    task: Task = "classification",
    data_dir: str | Path | None = None,
) -> Recording:
    """Load a recording: samples with times.

    Args:
        source: a known name (weather, insects, elec2, keystroke, rialto, outdoor); the path of an `.npz` with
            x, y, time and, optionally, client, or of a `.csv`, `.csv.gz` or `.parquet` table; a data frame of
            pandas; a `datasets.Dataset` of Hugging Face; a map-style dataset of PyTorch whose samples are
            (x, y, time) or (x, y, time, client), or dictionaries with these keys; a tuple or dictionary of
            these arrays; a `Recording`; or a function without arguments that returns one of them.
        columns: which columns of a table are label, time, client and features.
        task: "classification", or "regression" if labels are numbers.
        data_dir: searched for a known recording before `$DUFL_DATA` and the user's cache folder.

    Raises:
        InputError: the source cannot be used. The message names the file, the column and the row.

    >>> load_recording("weather").describe()
    'weather: 18,159 recorded samples of shape (8,), 2 classes, time 0 to 18,158'
    """
    if isinstance(source, str | Path):
        return _by_name(source, columns, task, data_dir)
    return _from_object(source, "own", columns, task, data_dir)


def recording_suffix(path: Path) -> str:
    """The suffix of a file that can be a recording; empty for others.

    >>> recording_suffix(Path("a.csv.gz")), recording_suffix(Path("a.txt"))
    ('.csv.gz', '')
    """
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def is_recording_source(made: object) -> bool:
    """Whether an object that a function returned is a recording, and not the arrays of a dataset."""
    objects = is_frame(made) or is_hugging_face(made) or (is_map_style(made) and not isinstance(made, list))
    return isinstance(made, Recording) or objects


def _by_name(source: str | Path, columns: Columns, task: Task, data_dir: str | Path | None) -> Recording:
    name = str(source)
    if name in RECORDINGS and columns != Columns():
        raise InputError.of("columns", f"left out for {name}, which has no columns to choose", columns)
    if name in RECORDINGS:
        if task != "classification":
            raise InputError.of("task", f"'classification' for {name}", task)
        return load_known(name, data_dir)
    path = Path(source).expanduser()
    suffix = recording_suffix(path)
    if not suffix:
        known = f"known are {', '.join(RECORDINGS)}, or give a file of type {', '.join(SUFFIXES)}"
        advice = known if path.suffix else did_you_mean(name, RECORDINGS) or known
        raise InputError(f"unknown recording {name!r}: {advice}", field="source", value=name)
    stem = path.name[: -len(suffix)]
    if suffix == ".npz":
        return _from_npz(path, stem, columns, task)
    if suffix == ".parquet":
        from dufl.data.datasets.arrow_tables import read_parquet

        return read_parquet(path, stem, columns, task)
    from dufl.data.datasets.csv_files import read_csv

    return read_csv(path, stem, columns, task)


def _from_object(
    source: Any, name: str, columns: Columns, task: Task, data_dir: str | Path | None
) -> Recording:
    if isinstance(source, Recording):
        return source
    if isinstance(source, tuple | dict):
        return from_arrays(source, name, task)
    if is_hugging_face(source):
        return from_hugging_face(source, name, columns, task)
    if is_frame(source):
        return from_frame(source, name, columns, task)
    if is_map_style(source):
        return from_map_style(source, name, task)
    if callable(source):
        made, called = source(), getattr(source, "__name__", name)
        if isinstance(made, str | Path):
            return _by_name(made, columns, task, data_dir)
        if not callable(made):
            return _from_object(made, called, columns, task, data_dir)
    rule = "a name, a file, a data frame, a dataset, arrays, a Recording or a function that returns one"
    raise InputError.of("source", rule, type(source).__name__)


def _from_npz(path: Path, name: str, columns: Columns, task: Task) -> Recording:
    if columns != Columns() and columns != Columns(client=ARRAYS[3]):
        rule = f"left out for an .npz, whose arrays are {', '.join(ARRAYS)}"
        raise InputError.of("columns", rule, columns)
    try:
        arrays = read_arrays(path, ARRAYS[:3], kinds=_KINDS)
    except UnknownArraysError as error:
        if error.names != set(ARRAYS):
            raise _other_arrays(path, error) from None
        arrays = read_arrays(path, ARRAYS, kinds=_KINDS)
    if columns.client and ARRAYS[3] not in arrays:
        raise InputError.of(str(path), f"an .npz with {', '.join(ARRAYS)}", ", ".join(arrays))
    with refusing(path):  # texts of an .npz may have characters that do not exist
        try:
            return make_recording(
                name, *(arrays[key] for key in ARRAYS if key in arrays), task=task, source=path
            )
        except InputError as error:
            raise prefixed(str(path), error) from None


def _other_arrays(path: Path, error: UnknownArraysError) -> InputError:
    rule = "an .npz with x, y, time and, optionally, client, and no other arrays"
    return InputError.of(str(path), rule, ", ".join(sorted(error.names)) or "nothing")
