"""Readers of foreign files: right on good ones, and an `InputError` on whatever else, at little cost."""

import gzip
import hashlib
import io
import lzma
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from dufl import InputError
from dufl.data.datasets.dataset import ARRAYS
from dufl.data.datasets.image_files import read_cifar, read_idx, read_svhn_mat, read_svhn_npz
from dufl.data.datasets.untrusted_files import read_arrays, verify

COUNT = 4
PLENTY = 48 << 20  # bytes: far above what these small files need, far below what they may claim
GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 256, (COUNT, 3, 32, 32), np.uint8)
GREY = IMAGES[:, 0, :28, :28].copy()
LABELS = np.array([3, 0, 9, 1])

Reader = Callable[[Path], Any]


def idx(values: npt.NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def cifar(label_bytes: int) -> bytes:
    coarse = [np.full(COUNT, 7)] * (label_bytes - 1)
    return np.column_stack([*coarse, LABELS, IMAGES.reshape(COUNT, -1)]).astype(np.uint8).tobytes()


def mat(compressed: bool) -> bytes:
    file = io.BytesIO()
    ten = np.where(LABELS == 0, 10, LABELS).astype(np.uint8)[:, None]
    savemat(file, {"X": IMAGES.transpose(2, 3, 1, 0), "y": ten}, do_compression=compressed)
    return file.getvalue()


def npz(arrays: dict[str, npt.NDArray[Any]], compressed: bool = False) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


SVHN = {"X": IMAGES.transpose(0, 2, 3, 1), "y": LABELS.astype(np.uint8)}
OWN = {"x_train": GREY, "y_train": LABELS, "x_test": GREY, "y_test": LABELS}


MAT, PACKED = mat(False), mat(True)


def md5(data: bytes) -> str:
    return f"md5:{hashlib.md5(data).hexdigest()}"


def checked(read: Callable[..., Any], *arguments: Any) -> Reader:
    """The reader with the checksum of whatever bytes there are: as if a bad file had a good checksum."""
    return lambda path: read(path, *arguments, md5(path.read_bytes()))


# name: the good bytes, how they are read
FORMATS: dict[str, tuple[bytes, Reader]] = {
    "images-idx3-ubyte": (idx(GREY), lambda path: read_idx(path, GREY.shape)),
    "images-idx3-ubyte.gz": (gzip.compress(idx(GREY)), lambda path: read_idx(path, GREY.shape)),
    "images-idx3-ubyte.xz": (lzma.compress(idx(GREY)), lambda path: read_idx(path, GREY.shape)),
    "batch.bin": (cifar(1), lambda path: read_cifar(path, COUNT, 1)),
    "batch.bin.xz": (lzma.compress(cifar(1)), lambda path: read_cifar(path, COUNT, 1)),
    "train.bin.gz": (gzip.compress(cifar(2)), lambda path: read_cifar(path, COUNT, 2)),
    "packed.mat": (PACKED, lambda path: read_svhn_mat(path, COUNT, md5(PACKED))),
    "plain.mat": (MAT, lambda path: read_svhn_mat(path, COUNT, md5(MAT))),
    "svhn.npz": (npz(SVHN), lambda path: read_svhn_npz(path, COUNT)),
    "svhn.npz.xz": (lzma.compress(npz(SVHN)), lambda path: read_svhn_npz(path, COUNT)),
    "own.npz": (npz(OWN, compressed=True), lambda path: read_arrays(path, ARRAYS)),
}


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def cheaply(read: Reader, path: Path) -> Any:
    """What a reader returns; it may not allocate much more than the file could fill."""
    tracemalloc.start()
    try:
        return read(path)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < PLENTY, f"{peak:,} bytes"


def assert_refused(read: Reader, path: Path) -> str:
    with pytest.raises(InputError) as refused:
        cheaply(read, path)
    assert path.name in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", FORMATS)
def test_good_files_give_the_arrays_that_went_in(tmp_path: Path, name: str) -> None:
    data, read = FORMATS[name]
    found = cheaply(read, write(tmp_path, name, data))
    if "idx" in name:
        np.testing.assert_array_equal(found, GREY)
    elif name == "own.npz":
        for key in ARRAYS:
            np.testing.assert_array_equal(found[key], OWN[key])
    else:
        np.testing.assert_array_equal(found[0], IMAGES)
        np.testing.assert_array_equal(found[1], LABELS)
        assert found[1].dtype == np.int64


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, name: str) -> None:
    data, read = FORMATS[name]
    places = {0, 1, 3, 7, 15, 100, len(data) // 2, len(data) - 5, len(data) - 1}
    for place in sorted(places):
        assert_refused(read, write(tmp_path, name, data[:place]))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=100)
@given(data=st.data())
def test_no_damage_crashes_hangs_or_costs_memory(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """Bits flipped, pieces cut out and put in: refused, or read as arrays of the promised shape."""
    good, read = FORMATS[name]
    bad = bytearray(good)
    near = st.one_of(st.integers(0, min(300, len(good) - 1)), st.integers(0, len(good) - 1))
    for place, bit in data.draw(st.lists(st.tuples(near, st.integers(0, 7)), max_size=6)):
        bad[place] ^= 1 << bit
    start, junk = data.draw(near), data.draw(st.binary(max_size=8))
    bad[start : start + data.draw(st.integers(0, 8))] = junk
    path = write(tmp_path_factory.getbasetemp(), name, bytes(bad))
    found = None
    with suppress(InputError):
        found = cheaply(read, path)
    if isinstance(found, tuple):
        assert found[0].shape == IMAGES.shape
        assert found[1].shape == LABELS.shape


@pytest.mark.parametrize(
    "shape", [(2**32 - 1, 28, 28), (COUNT + 1, 28, 28), (COUNT - 1, 28, 28), (COUNT, 29, 28)]
)
@pytest.mark.parametrize("kind", ["", ".gz", ".xz"])
def test_an_idx_header_that_lies(tmp_path: Path, shape: tuple[int, ...], kind: str) -> None:
    plain = bytes((0, 0, 8, 3)) + struct.pack(">3I", *shape) + GREY.tobytes()
    data = {"": plain, ".gz": gzip.compress(plain), ".xz": lzma.compress(plain)}[kind]
    message = assert_refused(lambda path: read_idx(path, GREY.shape), write(tmp_path, f"images{kind}", data))
    assert "in its header" in message


def test_a_wrong_magic(tmp_path: Path) -> None:
    floats = write(tmp_path, "floats", bytes((0, 0, 13, 3)) + idx(GREY)[4:])
    assert "magic 0 0 8 3), got 0 0 13 3" in assert_refused(lambda path: read_idx(path, GREY.shape), floats)
    labels = write(tmp_path, "labels", idx(LABELS.astype(np.uint8)))
    assert "with 3 axes" in assert_refused(lambda path: read_idx(path, GREY.shape), labels)
    unpacked = write(tmp_path, "images.gz", idx(GREY))
    assert "gzip" in assert_refused(lambda path: read_idx(path, GREY.shape), unpacked)


@pytest.mark.parametrize("kind", [".gz", ".xz"])
def test_a_decompression_bomb_is_not_set_off(tmp_path: Path, kind: str) -> None:
    zeros = bytes(200 << 20)
    bomb = gzip.compress(zeros, 1) if kind == ".gz" else lzma.compress(zeros, preset=0)
    del zeros
    path = write(tmp_path, f"bomb{kind}", bomb)
    assert "more" in assert_refused(lambda path: read_cifar(path, COUNT, 1), path)
    with pytest.raises(InputError, match="more"):
        verify(path, "md5:0", size=COUNT * 3073)
    inside = write(tmp_path, "bomb.npz.xz", lzma.compress(bytes(200 << 20), preset=0))
    assert "more" in assert_refused(lambda path: read_svhn_npz(path, COUNT), inside)


def test_an_xz_file_that_asks_for_gigabytes_of_memory(tmp_path: Path) -> None:
    data = bytearray(lzma.compress(cifar(1)))
    size = (data[12] + 1) * 4
    assert data[14] == 0x21  # the LZMA2 filter; the size of its dictionary is two bytes on
    data[16] = 40
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(data[12 : 12 + size - 4]))
    path = write(tmp_path, "greedy.bin.xz", bytes(data))
    assert "limit" in assert_refused(lambda path: read_cifar(path, COUNT, 1), path).lower()


def test_bytes_after_the_end(tmp_path: Path) -> None:
    for name in ("batch.bin", "batch.bin.xz", "images-idx3-ubyte", "images-idx3-ubyte.gz"):
        data, read = FORMATS[name]
        assert_refused(read, write(tmp_path, name, data + b"more"))


def test_a_checksum_is_of_what_is_inside(tmp_path: Path) -> None:
    wanted = f"sha1:{hashlib.sha1(cifar(1)).hexdigest()}"
    for name, data in (("b.bin", cifar(1)), ("b.bin.gz", gzip.compress(cifar(1)))):
        path = write(tmp_path, name, data)
        read_cifar(path, COUNT, 1, wanted)
        verify(path, wanted)
    changed = bytearray(cifar(1))
    changed[-1] ^= 1
    path = write(tmp_path, "b.bin.xz", lzma.compress(changed))
    assert "it is corrupt" in assert_refused(lambda path: read_cifar(path, COUNT, 1, wanted), path)
    with pytest.raises(InputError, match="it is corrupt"):
        verify(path, wanted)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def zipped(member: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ARRAYS:
            archive.writestr(f"{name}.npy", member)
    return file.getvalue()


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000,)}", b"ab"), "at most"),
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4)}", b"abcd"), "at most"),
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}", b"abcd"), "3 bytes long, got more"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"N."), "an array of numbers"),
        (npy("{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}", bytes(16)), "an array of numbers"),
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': __import__('os')}"), "cannot be read"),
        (npy("(" * 90), "cannot be read"),
        (b"nothing", "cannot be read"),
    ],
)
def test_an_npz_whose_headers_lie(tmp_path: Path, member: bytes, words: str) -> None:
    path = write(tmp_path, "own.npz", zipped(member))
    assert words in assert_refused(lambda path: read_arrays(path, ARRAYS), path)


def test_an_npz_that_lacks_an_array_or_is_too_large(tmp_path: Path) -> None:
    path = write(tmp_path, "own.npz", npz({"x_train": GREY}))
    assert "an .npz with y_train, x_test, y_test, got x_train" in assert_refused(
        lambda p: read_arrays(p, ARRAYS), path
    )
    path = write(tmp_path, "large.npz", npz({"x": np.zeros(100 << 20, np.uint8)}, compressed=True))
    assert "at most" in assert_refused(lambda path: read_arrays(path, ["x"], limit=1 << 20), path)


def test_an_npz_directory_that_lies_about_sizes(tmp_path: Path) -> None:
    """The directory of the archive and the header agree on a terabyte that two bytes cannot hold."""
    member = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4000000000,)}", b"ab")
    data = bytearray(zipped(member))
    start = 0
    while (start := data.find(b"PK\x01\x02", start)) >= 0:
        data[start + 24 : start + 28] = struct.pack("<I", 4_000_000_128)
        start += 4
    path = write(tmp_path, "own.npz", bytes(data))
    assert "at most" in assert_refused(lambda path: read_arrays(path, ARRAYS), path)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    assert "No such file" in assert_refused(lambda path: read_idx(path, (1,)), tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    assert "directory" in assert_refused(lambda path: read_idx(path, (1,)), tmp_path / "folder")


def test_a_mat_file_of_other_things(tmp_path: Path) -> None:
    for arrays in ({"A": 1}, {"X": IMAGES, "y": LABELS}, {"X": 3, "y": "text"}, {"X": "text", "y": 1}):
        file = io.BytesIO()
        savemat(file, arrays)
        assert_refused(checked(read_svhn_mat, COUNT), write(tmp_path, "train_32x32.mat", file.getvalue()))
