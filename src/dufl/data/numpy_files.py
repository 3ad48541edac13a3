"""Arrays from an `.npz` file that nobody vouches for: no pickles, no more memory than the file can fill."""

import io
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dufl.data.bounded import CHUNK, contents, refusing
from dufl.errors import InputError

LIMIT = 8 << 30  # bytes of the arrays of one file, together
_DEFLATE = 1_100  # nothing in a zip file grows by more


class UnknownArraysError(InputError):
    """A file whose arrays are not those that are read; `there` are their names."""

    def __init__(self, message: object, there: set[str]) -> None:
        super().__init__(str(message))
        self.there = there


def read_arrays(
    path: Path, names: Iterable[str], limit: int = LIMIT, *, only: bool = True
) -> dict[str, npt.NDArray[Any]]:
    """Arrays of numbers from an `.npz`, plain or in `.xz`.

    Args:
        path: the file.
        names: which arrays; one that is missing is an error.
        limit: the most bytes that the arrays may take together.
        only: whether any other array in the file is an error too.
    """
    if path.suffix != ".xz":
        with refusing(path), path.open("rb") as file:
            return _from_zip(path, file, names, limit, only)
    with contents(path) as inside:
        unpacked = inside.rest(limit)
    with refusing(path):
        return _from_zip(path, io.BytesIO(unpacked), names, limit, only)


def _from_zip(
    path: Path, file: IO[bytes], names: Iterable[str], limit: int, only: bool
) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        there = {name.removesuffix(".npy") for name in archive.namelist()}
        if not there >= set(names) or (only and there != set(names)):
            raise _unknown(path, there, names)
        for name in names:
            info = archive.getinfo(f"{name}.npy")
            room = min(limit, info.file_size, _DEFLATE * info.compress_size + 1024)
            with archive.open(info) as member:
                arrays[name] = _from_npy(path, name, member, room)
            limit -= arrays[name].nbytes
    return arrays


def _unknown(path: Path, there: set[str], names: Iterable[str]) -> UnknownArraysError:
    missing = [name for name in names if name not in there]
    if missing:
        rule, got = f"an .npz with {', '.join(missing)}", ", ".join(sorted(there)) or "nothing"
    else:
        rule = f"an .npz with {', '.join(names)} and no other arrays, which would not be read"
        got = f"also {', '.join(sorted(there.difference(names)))}"
    return UnknownArraysError(InputError.of(str(path), rule, got), there)


def _from_npy(path: Path, name: str, member: IO[bytes], room: int) -> npt.NDArray[Any]:
    """One array: its header is checked against the room there is before anything is allocated."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(member)
    if kind.kind not in "uif":
        raise InputError.of(f"{name} in {path}", "an array of numbers", kind)
    size = math.prod(shape) * kind.itemsize
    if not 0 <= size <= room:
        raise InputError.of(
            f"{name} in {path}", f"at most {room:,} bytes, as the file is", f"{size:,}: {shape}"
        )
    flat = np.empty(math.prod(shape), kind)
    view, place = flat.view(np.uint8).data, 0
    while place < size:
        part = member.read(min(CHUNK, size - place))
        if not part:
            raise InputError.of(f"{name} in {path}", f"{size:,} bytes long", f"{place:,}: it is cut short")
        view[place : place + len(part)] = part
        place += len(part)
    if member.read(1):  # and now the archive has checked its own checksum
        raise InputError.of(f"{name} in {path}", f"{size:,} bytes long", "more")
    return flat.reshape(shape, order="F" if fortran else "C")
