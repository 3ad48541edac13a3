"""From files that were found to samples: read, compared with their checksums, into arrays allocated once."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt

from dufl.data.bounded import verify
from dufl.data.catalogue import Description, Edition
from dufl.data.formats import (
    read_cifar_binary,
    read_cifar_python,
    read_idx,
    read_svhn_mat,
    read_svhn_npz,
)
from dufl.data.places import Found, Piece
from dufl.data.samples import Samples
from dufl.errors import InputError


def read(found: Found) -> tuple[Samples, Samples]:
    """The samples to train on and those to test on."""
    jobs: list[Callable[[], None]] = []
    splits = []
    for split in ("train", "test"):
        images = np.empty((found.count(split), *found.description.shape), np.uint8)
        labels = np.empty(len(images), np.int64)
        start = 0
        for piece in found.pieces:
            if piece.file.split == split:
                place = slice(start, start + piece.count)
                jobs.append(partial(_fill, found, piece, images[place], labels[place]))
                start += 0 if found.edition.kind == "idx" else piece.count  # images and labels side by side
        splits.append((images, labels))
    _run(jobs, 1 if found.edition.kind == "cifar-python" else _workers())  # a pickle needs thrice its size
    for _, labels in splits:
        _check_labels(found, labels)
    return Samples(*splits[0]), Samples(*splits[1])


def check(found: Found) -> None:
    """Compare every file that has a published checksum with it; nothing is kept in memory."""

    def one(piece: Piece) -> None:
        if piece.original and piece.file.checksum:
            with _advice(found, piece):
                verify(piece.path, piece.file.checksum, piece.file.size)

    _run([partial(one, piece) for piece in found.pieces], _workers())


def _workers() -> int:
    return min(4, os.cpu_count() or 1)


def _run(jobs: list[Callable[[], None]], workers: int) -> None:
    """All jobs, in threads: decompressing and hashing leave the interpreter free."""
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


@contextmanager
def _advice(found: Found, piece: Piece) -> Iterator[None]:
    """Say what to do about an original that is not what it should be."""
    try:
        yield
    except InputError as fault:
        fetch = f"delete it and run `dufl data fetch {found.description.name}`"
        raise InputError(f"{fault}; {fetch if piece.original else 'its name says otherwise'}") from fault


def _fill(found: Found, piece: Piece, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> None:
    with _advice(found, piece):
        _read_piece(found.description, found.edition, piece, images, labels)


def _read_piece(
    known: Description,
    edition: Edition,
    piece: Piece,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
) -> None:
    checksum = piece.file.checksum if piece.original else None
    if edition.kind == "idx" and "images" in piece.file.name:
        read_idx(piece.path, (piece.count, *known.shape[1:]), checksum, out=images)
    elif edition.kind == "idx":
        labels[:] = read_idx(piece.path, (piece.count,), checksum)
    elif edition.kind == "cifar-binary":
        _, labels[:] = read_cifar_binary(piece.path, piece.count, edition.label_bytes, checksum, out=images)
    elif edition.kind == "svhn-npz":
        images[:], labels[:] = read_svhn_npz(piece.path, piece.count)
    elif checksum is None:
        raise InputError.of(str(piece.path), "the original, whose checksum is known", "another file")
    elif edition.kind == "svhn-mat":
        images[:], labels[:] = read_svhn_mat(piece.path, piece.count, checksum)
    else:
        key = b"labels" if edition.label_bytes == 1 else b"fine_labels"
        images[:], labels[:] = read_cifar_python(piece.path, piece.count, key, checksum)


def _check_labels(found: Found, labels: npt.NDArray[np.int64]) -> None:
    classes = len(found.description.class_names)
    if labels.max() >= classes:
        rule = f"{found.description.title} with labels below {classes}"
        raise InputError.of(str(found.folder), rule, int(labels.max()))
