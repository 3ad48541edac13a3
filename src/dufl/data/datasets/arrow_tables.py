"""Recordings from Arrow tables: Parquet files, and whatever else yields record batches.

Batches are converted one after another into arrays that are allocated once. pyarrow is imported only here.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.datasets.tables import Columns, Roles, assemble, cell_text, date_times, roles_of, text_values
from dufl.data.datasets.untrusted_files import refusing
from dufl.data.recording import Recording, Task, first_not_finite
from dufl.data.samples import max_samples
from dufl.errors import InputError

ROWS = 1 << 15  # in a batch
BUFFER = 1 << 16  # bytes of a column that are read ahead; without it, whole columns are


def read_parquet(path: Path, name: str, columns: Columns, task: Task) -> Recording:
    """The recording in a Parquet file. Only the columns that are used are read."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(
            "a .parquet file needs pyarrow: pip install 'dufl[tables]'", field=str(path)
        ) from None
    with refusing(path), parquet.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER) as file:
        roles = roles_of(file.schema_arrow.names, columns, str(path))
        used = [roles.names[place] for place in roles.used]
        batches = file.iter_batches(ROWS, columns=used, use_threads=False)
        return from_batches(roles, name, batches, file.metadata.num_rows, task, path)


def from_batches(
    roles: Roles, name: str, batches: Iterable[Any], count: int, task: Task, source: Path | None
) -> Recording:
    """The recording in `count` rows of Arrow record batches or tables that have the columns in use."""
    if not count:
        raise InputError.of(roles.where, "a table with rows", "none")
    most = max_samples(len(roles.features))
    if count > most:
        raise InputError.of(roles.where, f"at most {most:,} rows, what fits into memory", f"{count:,}")
    features = np.empty((count, len(roles.features)), np.float32)
    others: dict[int, list[npt.NDArray[Any]]] = {p: [] for p in roles.used if p not in roles.features}
    start = 0
    for batch in _within(roles, batches, count):
        _fill(roles, batch, features[start : start + batch.num_rows], start)
        for place, parts in others.items():
            parts.append(_values(roles, place, _column(roles, place, batch, start)))
        start += batch.num_rows
    if start < count:
        raise InputError.of(roles.where, f"a table with {count:,} rows", f"{start:,}: it is truncated")
    joined = {place: np.concatenate(parts) for place, parts in others.items()}
    times = joined[roles.time]
    if times.dtype.kind == "O":
        times = date_times(roles, times.tolist())
    clients = None if roles.client is None else _classes(joined[roles.client])
    labels = joined[roles.label]
    labels = labels if task == "regression" else _classes(labels)
    return assemble(roles, name, features, labels, times, clients, task, source)


def _within(roles: Roles, batches: Iterable[Any], count: int) -> Iterator[Any]:
    """The batches; raises if they have more rows than they should."""
    left = count
    for batch in batches:
        left -= batch.num_rows
        if left < 0:
            raise InputError.of(roles.where, f"a table with {count:,} rows", "more")
        yield batch


def _column(roles: Roles, place: int, batch: Any, start: int) -> Any:
    """One column of a batch as one array, without missing cells."""
    column = batch.column(batch.schema.get_field_index(roles.names[place]))
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise roles.error(place, "given in every row", "a missing value", start + row)
    return column


def _fill(roles: Roles, batch: Any, out: npt.NDArray[np.float32], start: int) -> None:
    """Write the features of a batch, of which `start` rows come before."""
    import pyarrow.types as types

    for position, place in enumerate(roles.features):
        column = _column(roles, place, batch, start)
        kind = column.type
        if types.is_decimal(kind):
            column = column.cast("float64")
        elif not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
            got = f"{kind} {cell_text(column[0].as_py())}" if len(column) else str(kind)
            raise roles.error(place, "numbers", got, start, "name the columns to use in `features`")
        with np.errstate(over="ignore"):
            out[:, position] = column.to_numpy(zero_copy_only=False)
    bad = first_not_finite(out)
    if bad:
        place = roles.features[bad[1]]
        value = _column(roles, place, batch, start)[bad[0]].as_py()
        got = "a missing value" if np.isnan(out[bad]) else f"{value:g}"
        raise roles.error(place, "finite numbers of float32", got, start + bad[0])


def _values(roles: Roles, place: int, column: Any) -> npt.NDArray[Any]:
    """Labels, times or clients; equal texts are one object."""
    import pyarrow.types as types

    if types.is_string(column.type) or types.is_large_string(column.type):
        column = column.dictionary_encode()
    if types.is_dictionary(column.type):
        distinct = np.empty(len(column.dictionary), object)
        distinct[:] = column.dictionary.to_pylist()
        return np.asarray(distinct[column.indices.to_numpy(zero_copy_only=False)])
    if types.is_decimal(column.type):
        column = column.cast("float64")
    if types.is_nested(column.type) or types.is_binary(column.type):
        raise InputError.of(f"{roles.where}: {roles.column(place)}", "numbers, texts or dates", column.type)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _classes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Texts that are all numbers are numbers, as in a CSV file."""
    texts = values.dtype.kind == "O" and all(isinstance(value, str) for value in set(values.tolist()))
    return text_values(values.tolist()) if texts else values
