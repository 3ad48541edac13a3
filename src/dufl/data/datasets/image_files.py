"""The original files of the image datasets: read, compared with their checksums, into preallocated arrays.

Every reader is given the number of samples that the file must hold and reads that many. It raises
`InputError` for a file that is truncated, continues, contradicts its header or decompresses without end.
Images are uint8 of shape (samples, channels, height, width), labels int64.

CIFAR is read from its binary version, which is nothing but bytes. A `.mat` file (SVHN) can hold more than
arrays: it is opened only after its published checksum has been verified.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.cores import cores
from dufl.data.datasets.location import Found, Piece
from dufl.data.datasets.untrusted_files import contents, read_arrays, refusing, verify
from dufl.data.samples import Samples
from dufl.errors import InputError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

RECORDS = 1_000  # of a binary file, read at a time
_CIFAR = (3, 32, 32)


def read_dataset(found: Found) -> tuple[Samples, Samples]:
    """The training and the test samples of the files that were found."""
    jobs: list[Callable[[], None]] = []
    splits = []
    for split in ("train", "test"):
        images = np.empty((found.count(split), *found.description.shape), np.uint8)
        labels = np.empty(len(images), np.int64)
        start = 0
        for piece in found.pieces:
            if piece.file.split == split:
                part = slice(start, start + piece.count)
                jobs.append(partial(_read_piece, found, piece, images[part], labels[part]))
                start += 0 if found.edition.kind == "idx" else piece.count  # images and labels side by side
        splits.append((images, labels))
    _run(jobs)
    classes = len(found.description.class_names)
    for _, labels in splits:
        if labels.max() >= classes:
            rule = f"{found.description.title} with labels below {classes}"
            raise InputError.of(str(found.folder), rule, int(labels.max()))
    return Samples(*splits[0]), Samples(*splits[1])


def verify_dataset(found: Found) -> None:
    """Compare every file that has a published checksum with it; nothing is kept in memory."""

    def one(piece: Piece) -> None:
        if piece.original and piece.file.checksum:
            with _advice(found, piece):
                verify(piece.path, piece.file.checksum, piece.file.size)

    _run([partial(one, piece) for piece in found.pieces])


def _run(jobs: list[Callable[[], None]]) -> None:
    """Run all jobs in threads: decompressing and hashing release the interpreter lock."""
    with ThreadPoolExecutor(min(4, cores())) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


@contextmanager
def _advice(found: Found, piece: Piece) -> Iterator[None]:
    """Append what to do about a file that is not what its name promises."""
    try:
        yield
    except InputError as error:
        fetch = f"delete it and run `dufl data fetch {found.description.name}`"
        advice = fetch if piece.original else "the file name states another number of samples"
        raise InputError(f"{error}; {advice}", field=error.field, advice=advice) from error


def _read_piece(found: Found, piece: Piece, images: Images, labels: Labels) -> None:
    known, edition = found.description, found.edition
    checksum = piece.file.checksum if piece.original else None
    with _advice(found, piece):
        if edition.kind == "idx" and "images" in piece.file.name:
            read_idx(piece.path, (piece.count, *known.shape[1:]), checksum, out=images)
        elif edition.kind == "idx":
            labels[:] = read_idx(piece.path, (piece.count,), checksum)
        elif edition.kind == "cifar-binary":
            _, labels[:] = read_cifar(piece.path, piece.count, edition.label_bytes, checksum, out=images)
        elif edition.kind == "svhn-npz":
            images[:], labels[:] = read_svhn_npz(piece.path, piece.count)
        elif checksum is None:
            raise InputError.of(str(piece.path), "the original, which has a known checksum", "another file")
        else:
            images[:], labels[:] = read_svhn_mat(piece.path, piece.count, checksum)


def read_idx(
    path: Path, shape: tuple[int, ...], checksum: str | None = None, out: Images | None = None
) -> Images:
    """An IDX file of unsigned bytes: two zero bytes, type 8, number of axes, the axes, the values.

    Args:
        path: plain, `.gz` or `.xz`.
        shape: what the header must say, e.g. (60000, 28, 28).
        checksum: of the decompressed file, if known.
        out: the array to fill; a new one if None.
    """
    with contents(path, checksum) as file:
        magic = file.take(4)
        if magic != bytes((0, 0, 8, len(shape))):
            rule = f"an IDX file of bytes with {len(shape)} axes (magic 0 0 8 {len(shape)})"
            raise InputError.of(str(path), rule, " ".join(map(str, magic)))
        stated = tuple(int(n) for n in np.frombuffer(file.take(4 * len(shape)), ">u4"))
        if stated != shape:
            raise InputError.of(str(path), f"of shape {shape}", f"{stated} in its header")
        values = np.empty(shape, np.uint8) if out is None else out
        file.fill(values)
        file.end()
    return values


def read_cifar(
    path: Path, count: int, label_bytes: int, checksum: str | None = None, out: Images | None = None
) -> tuple[Images, Labels]:
    """CIFAR's binary version: records of `label_bytes` labels, of which the last is used, and 3,072 pixels.

    Args:
        path: plain, `.gz` or `.xz`.
        count: the number of records that it must hold.
        label_bytes: 1 for CIFAR-10; 2 for CIFAR-100 (coarse, then fine).
        checksum: of the decompressed file, if known.
        out: the array for the images; a new one if None.
    """
    images = np.empty((count, *_CIFAR), np.uint8) if out is None else out
    labels = np.empty(count, np.int64)
    with contents(path, checksum) as file:
        for start in range(0, count, RECORDS):
            part = slice(start, min(start + RECORDS, count))
            records = np.empty((part.stop - start, label_bytes + 3072), np.uint8)
            file.fill(records)
            images[part] = records[:, label_bytes:].reshape(-1, *_CIFAR)
            labels[part] = records[:, label_bytes - 1]
        file.end()
    return images, labels


def read_svhn_mat(path: Path, count: int, checksum: str) -> tuple[Images, Labels]:
    """SVHN's `.mat`: `X` of shape (32, 32, 3, n), `y` of shape (n, 1) where digit 0 is written as 10.

    Args:
        path: the file.
        count: the number of samples that it must hold.
        checksum: of the file; it is verified before the file is parsed.
    """
    verify(path, checksum)
    from scipy.io import loadmat

    with refusing(path):
        arrays = loadmat(path, variable_names=["X", "y"])
        if not {"X", "y"} <= arrays.keys():
            raise InputError.of(str(path), "a MATLAB file with X and y", ", ".join(arrays))
        images, labels = arrays["X"], arrays["y"]
        if images.ndim != 4:
            raise InputError.of(str(path), "with X of shape (32, 32, 3, n)", images.shape)
        turned = _as_images(path, images.transpose(3, 2, 0, 1), count, _CIFAR)
        return turned, _as_labels(path, labels.reshape(-1), count) % 10


def read_svhn_npz(path: Path, count: int) -> tuple[Images, Labels]:
    """SVHN as `.npz` or `.npz.xz`: `X` of shape (n, 32, 32, 3), `y` the digits themselves."""
    arrays = read_arrays(path, ("X", "y"), limit=count * 3_200 + 65_536)
    images = _as_images(path, arrays["X"], count, (32, 32, 3))
    return images.transpose(0, 3, 1, 2), _as_labels(path, arrays["y"], count)


def _as_images(path: Path, array: npt.NDArray[Any], count: int, shape: tuple[int, ...]) -> Images:
    if array.dtype != np.uint8 or array.shape != (count, *shape):
        raise InputError.of(str(path), f"images uint8 {(count, *shape)}", f"{array.dtype} {array.shape}")
    return array


def _as_labels(path: Path, array: npt.NDArray[Any], count: int) -> Labels:
    if array.dtype.kind not in "ui" or array.shape != (count,):
        raise InputError.of(str(path), f"{count:,} integers as labels", f"{array.dtype} {array.shape}")
    return array.astype(np.int64)
