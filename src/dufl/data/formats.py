"""The original file formats of the image datasets, read into arrays.

Every reader is told how many samples the file must hold, and reads that many: a file that is cut short, goes
on, says something else in its header or decompresses without end is refused with an `InputError`. Images
come out as uint8 of shape (samples, channels, height, width), labels as int64.

Two formats can hold more than arrays, pickles and `.mat`: of those only files that have passed their checksum
are opened, and of a pickle only the parts that make up a plain array of bytes.
"""

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.bounded import algorithm, compare, contents, refusing, verify
from dufl.data.numpy_files import read_arrays
from dufl.errors import InputError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

RECORDS = 1_000  # of a binary file, read at a time
_CIFAR = (3, 32, 32)


def read_idx(
    path: Path, shape: tuple[int, ...], checksum: str | None = None, out: Images | None = None
) -> Images:
    """An IDX file of unsigned bytes: two zero bytes, type 8, number of axes, the axes, the values.

    Args:
        path: plain, `.gz` or `.xz`.
        shape: what the header must say, e.g. (60000, 28, 28).
        checksum: of the decompressed file, if it has a known one.
        out: where to put the values; a new array if None.
    """
    with contents(path, checksum) as file:
        magic = file.take(4)
        if magic != bytes((0, 0, 8, len(shape))):
            rule = f"an IDX file of bytes with {len(shape)} axes (magic 0 0 8 {len(shape)})"
            raise InputError.of(str(path), rule, " ".join(map(str, magic)))
        said = tuple(int(n) for n in np.frombuffer(file.take(4 * len(shape)), ">u4"))
        if said != shape:
            raise InputError.of(str(path), f"of shape {shape}", f"{said} in its header")
        values = np.empty(shape, np.uint8) if out is None else out
        file.fill(values)
        file.end()
    return values


def read_cifar_binary(
    path: Path, count: int, label_bytes: int, checksum: str | None = None, out: Images | None = None
) -> tuple[Images, Labels]:
    """CIFAR's binary version: records of `label_bytes` labels, the last the one we want, and 3,072 pixels.

    Args:
        path: plain, `.gz` or `.xz`.
        count: how many records it must hold.
        label_bytes: 1 for CIFAR-10; 2 for CIFAR-100 (coarse, then fine).
        checksum: of the decompressed file, if it has a known one.
        out: where to put the images; a new array if None.
    """
    images = np.empty((count, *_CIFAR), np.uint8) if out is None else out
    labels = np.empty(count, np.int64)
    with contents(path, checksum) as file:
        for start in range(0, count, RECORDS):
            some = slice(start, min(start + RECORDS, count))
            records = np.empty((some.stop - start, label_bytes + 3072), np.uint8)
            file.fill(records)
            images[some] = records[:, label_bytes:].reshape(-1, *_CIFAR)
            labels[some] = records[:, label_bytes - 1]
        file.end()
    return images, labels


def read_cifar_python(path: Path, count: int, key: bytes, checksum: str) -> tuple[Images, Labels]:
    """CIFAR's Python version: a pickled dictionary with `data` (n, 3072) and a list of labels.

    Args:
        path: the unpacked file.
        count: how many samples it must hold.
        key: of the labels: ``b"labels"`` or ``b"fine_labels"``.
        checksum: of the file; without it nothing is unpickled.
    """
    limit = count * 3_300 + 65_536  # pixels, a label and a file name each
    with refusing(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InputError.of(str(path), f"at most {limit:,} bytes long", f"{size:,}")
        compare(path, checksum, hashlib.file_digest(file, algorithm(checksum)).hexdigest())
        file.seek(0)
        batch = _PlainArrays(file, encoding="bytes").load()
        if not isinstance(batch, dict) or not isinstance(batch.get(b"data"), _StoredArray):
            raise InputError.of(str(path), "a pickled dictionary with an array 'data'", type(batch).__name__)
        images = batch[b"data"].array()
        labels = np.array([int(label) for label in batch[key]], np.int64)
    return _as_images(path, images, count, (3072,)).reshape(count, *_CIFAR), _as_labels(path, labels, count)


def read_svhn_mat(path: Path, count: int, checksum: str) -> tuple[Images, Labels]:
    """SVHN's `.mat`: `X` of shape (32, 32, 3, n), `y` of shape (n, 1) where digit 0 is written as 10.

    Args:
        path: the file.
        count: how many samples it must hold.
        checksum: of the file; without it nothing is opened.
    """
    verify(path, checksum)
    from scipy.io import loadmat

    with refusing(path):
        held = loadmat(path, variable_names=["X", "y"])
        if not {"X", "y"} <= held.keys():
            raise InputError.of(str(path), "a MATLAB file with X and y", ", ".join(held))
        images, labels = held["X"], held["y"]
        if images.ndim != 4:
            raise InputError.of(str(path), "with X of shape (32, 32, 3, n)", images.shape)
        turned = _as_images(path, images.transpose(3, 2, 0, 1), count, _CIFAR)
        return turned, _as_labels(path, labels.reshape(-1), count) % 10


def read_svhn_npz(path: Path, count: int) -> tuple[Images, Labels]:
    """SVHN as `.npz`, alone or in `.xz`: `X` of shape (n, 32, 32, 3), `y` the digits themselves."""
    held = read_arrays(path, ("X", "y"), limit=count * 3_200 + 65_536)
    images = _as_images(path, held["X"], count, (32, 32, 3))
    return images.transpose(0, 3, 1, 2), _as_labels(path, held["y"], count)


def _as_images(path: Path, found: npt.NDArray[Any], count: int, shape: tuple[int, ...]) -> Images:
    if found.dtype != np.uint8 or found.shape != (count, *shape):
        raise InputError.of(str(path), f"images uint8 {(count, *shape)}", f"{found.dtype} {found.shape}")
    return found


def _as_labels(path: Path, found: npt.NDArray[Any], count: int) -> Labels:
    if found.dtype.kind not in "ui" or found.shape != (count,):
        raise InputError.of(str(path), f"{count:,} whole numbers as labels", f"{found.dtype} {found.shape}")
    return found.astype(np.int64)


class _StoredArray:
    """What a pickle says about an array, noted down; NumPy's own code never sees it."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> npt.NDArray[np.uint8]:
        """The array, if it is one of bytes."""
        _, shape, kind, fortran, data = self.state
        if not isinstance(kind, _StoredType) or kind.code not in ("u1", b"u1") or not isinstance(data, bytes):
            raise pickle.UnpicklingError("its array is not one of unsigned bytes")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _StoredType:
    """What a pickle says about the type of an array."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like mean nothing for bytes."""


def _blank(*_: object) -> _StoredArray:
    return _StoredArray()


def _latin1(text: str, _: str) -> bytes:
    """How Python 3 writes bytes into an old pickle."""
    return text.encode("latin-1")


class _PlainArrays(pickle.Unpickler):
    """Knows the names that make up a plain array and refuses all others."""

    _KNOWN: dict[tuple[str, str], Any] = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _blank,
        ("numpy._core.multiarray", "_reconstruct"): _blank,
        ("numpy", "ndarray"): _StoredArray,
        ("numpy", "dtype"): _StoredType,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str, /) -> Any:
        """The stand-in for a known name."""
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no part of a plain array")
        return self._KNOWN[module, name]
