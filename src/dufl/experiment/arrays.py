"""Checkpoints: named arrays on disk with a checksum of the whole file.

An `.npz` file is a zip archive, which may end with a comment. The comment of a checkpoint is the checksum of
all bytes before it. NumPy reads the file as usual, and a change of any byte is detected.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.experiment.files import open_regular, replacing

_MARK = b"sha256:"
_SEAL = len(_MARK) + 64  # bytes


def write_sealed(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays atomically, with a checksum at the end of the file."""
    with replacing(path) as temporary, temporary.open("w+b") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        stream.seek(-2, 2)  # a zip archive ends with the length of its comment, here 0
        stream.write(_SEAL.to_bytes(2, "little"))
        stream.seek(0)
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.write(_MARK + checksum.encode())


def read_sealed(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read a file that `write_sealed` wrote. Raises `ValueError` if it has changed since."""
    try:
        with open_regular(path) as stream:
            _check_seal(stream)
            stream.seek(0)
            with np.load(stream) as arrays:
                return dict(arrays)
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"{error or type(error).__name__}") from error


def _check_seal(stream: BinaryIO) -> None:
    content = hashlib.sha256()
    size = stream.seek(0, 2) - _SEAL
    if size < 0:
        raise ValueError("it is truncated")
    stream.seek(0)
    while size > 0:
        part = stream.read(min(size, 1 << 20))
        content.update(part)
        size -= len(part)
    if stream.read() != _MARK + content.hexdigest().encode():
        raise ValueError("its checksum is wrong or missing")
