"""Readers for files that nobody vouches for.

A file is decompressed as a stream and hashed on the way. A reader never allocates more than the caller
expects or the file can fill, and never unpickles. Whatever is wrong with a file is an `InputError`.
"""

import gzip
import hashlib
import io
import lzma
import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError

CHUNK = 1 << 20  # bytes decompressed at a time
NUMBERS = "uif"  # the kinds of NumPy types that are numbers
NPZ_LIMIT = 8 << 30  # bytes of the arrays of one .npz, together
_XZ_MEMORY = 128 << 20  # twice what `xz -9` needs; a header may ask for gigabytes
_DEFLATE = 1_100  # the largest compression ratio of a zip member


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn any exception that a damaged file provokes into an `InputError` that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # parsers of foreign bytes raise anything: no list of types is complete
        message = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{path} cannot be read: {message}", field=str(path)) from error


class _Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill some of the buffer; returns 0 at the end."""


class Contents:
    """The decompressed contents of a file, read in order from start to end."""

    def __init__(self, path: Path, stream: _Readable, checksum: str | None) -> None:
        self._path, self._stream, self._checksum = path, stream, checksum
        self._hash = hashlib.new(algorithm(checksum)) if checksum else None
        self._read = 0

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Fill a contiguous array with the next bytes; raises if the file has fewer."""
        view = out.reshape(-1).view(np.uint8).data
        position = 0
        while position < len(view):
            count = self._stream.readinto(view[position : position + CHUNK])
            if not count:
                rule = f"at least {self._read + len(view):,} bytes long"
                raise InputError.of(str(self._path), rule, f"{self._read + position:,}: it is truncated")
            if self._hash:
                self._hash.update(view[position : position + count])
            position += count
        self._read += position

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        out = np.empty(count, np.uint8)
        self.fill(out)
        return out.tobytes()

    def rest(self, limit: int) -> bytes:
        """The remaining bytes; raises if there are more than `limit`."""
        rest, buffer = bytearray(), memoryview(bytearray(CHUNK))
        while count := self._stream.readinto(buffer):
            rest += buffer[:count]
            if len(rest) > limit:
                raise InputError.of(str(self._path), f"at most {limit:,} bytes after decompression", "more")
        return bytes(rest)

    def end(self) -> None:
        """Raise if the file continues, or if its contents do not match the checksum."""
        if self._stream.readinto(memoryview(bytearray(1))):
            raise InputError.of(str(self._path), f"{self._read:,} bytes long", "more")
        if self._hash and self._checksum:
            _compare(self._path, self._checksum, self._hash.hexdigest())


@contextmanager
def contents(path: Path, checksum: str | None = None) -> Iterator[Contents]:
    """The contents of a plain, `.gz` or `.xz` file; any exception inside becomes an `InputError`.

    Args:
        path: the file.
        checksum: of the decompressed contents, as ``sha1:…``, ``md5:…`` or ``sha256:…``, or None.
    """
    with refusing(path), path.open("rb") as file:
        yield Contents(path, _decompressed(file, path.suffix), checksum)


def verify(path: Path, checksum: str, size: int | None = None) -> None:
    """Raise if the decompressed contents of a file do not match their checksum.

    Args:
        path: the file, read once as a stream.
        checksum: of its contents.
        size: of its contents; nothing beyond is decompressed.
    """
    found, position, buffer = hashlib.new(algorithm(checksum)), 0, memoryview(bytearray(CHUNK))
    with refusing(path), path.open("rb") as file:
        stream = _decompressed(file, path.suffix)
        while count := stream.readinto(buffer):
            found.update(buffer[:count])
            position += count
            if size is not None and position > size:
                raise InputError.of(str(path), f"{size:,} bytes long", "more: it is corrupt")
    _compare(path, checksum, found.hexdigest())


def algorithm(checksum: str) -> str:
    """The name before the colon."""
    return checksum.partition(":")[0]


def digest(path: Path, name: str) -> str:
    """The digest of a file as it is stored."""
    with refusing(path), path.open("rb") as file:
        return hashlib.file_digest(file, name).hexdigest()


def _compare(path: Path, checksum: str, found: str) -> None:
    name, _, expected = checksum.partition(":")
    if found != expected:
        raise InputError.of(
            str(path), f"the published file with {name} {expected}", f"{found}: it is corrupt"
        )


def _decompressed(file: IO[bytes], suffix: str) -> _Readable:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=file, mode="rb")
    return _Xz(file) if suffix == ".xz" else file  # type: ignore[return-value]


class _Xz(io.RawIOBase):
    """An xz stream under a memory limit, which `lzma.open` cannot set."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def readinto(self, buffer: Any, /) -> int:
        while not self._decompressor.eof:
            packed = self._file.read(CHUNK) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not packed:
                raise EOFError("the xz stream is truncated")
            if plain := self._decompressor.decompress(packed, len(buffer)):
                buffer[: len(plain)] = plain
                return len(plain)
        if self._decompressor.unused_data or self._file.read(1):
            raise lzma.LZMAError("there are bytes after the xz stream")
        return 0


class UnknownArraysError(InputError):
    """An `.npz` whose arrays are not the expected ones; `names` are those in the file."""

    def __init__(self, error: InputError, names: set[str]) -> None:
        super().__init__(str(error), field=error.field, rule=error.rule, value=error.value)
        self.names = names


def read_arrays(
    path: Path, names: Iterable[str], limit: int = NPZ_LIMIT, *, only: bool = True, kinds: str = NUMBERS
) -> dict[str, npt.NDArray[Any]]:
    """Arrays from an `.npz`, plain or compressed as `.npz.xz`.

    Args:
        path: the file.
        names: which arrays; raises if one is missing.
        limit: the most bytes that the arrays may take together.
        only: whether to raise if the file has other arrays too.
        kinds: the kinds of values that are read, as in `numpy.dtype.kind`; never objects.
    """
    if path.suffix != ".xz":
        with refusing(path), path.open("rb") as file:
            return _from_zip(path, file, names, limit, only, kinds)
    with contents(path) as inside:
        unpacked = inside.rest(limit)
    with refusing(path):
        return _from_zip(path, io.BytesIO(unpacked), names, limit, only, kinds)


def _from_zip(
    path: Path, file: IO[bytes], names: Iterable[str], limit: int, only: bool, kinds: str
) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        existing = {name.removesuffix(".npy") for name in archive.namelist()}
        if not existing >= set(names) or (only and existing != set(names)):
            raise _unknown(path, existing, names)
        for name in names:
            info = archive.getinfo(f"{name}.npy")
            largest = min(limit, info.file_size, _DEFLATE * info.compress_size + 1024)
            with archive.open(info) as member:
                arrays[name] = _from_npy(path, name, member, largest, kinds)
            limit -= arrays[name].nbytes
    return arrays


def _unknown(path: Path, existing: set[str], names: Iterable[str]) -> UnknownArraysError:
    missing = [name for name in names if name not in existing]
    if missing:
        rule, value = f"an .npz with {', '.join(missing)}", ", ".join(sorted(existing)) or "nothing"
    else:
        rule = f"an .npz with {', '.join(names)} and no other arrays, which would not be read"
        value = f"also {', '.join(sorted(existing.difference(names)))}"
    return UnknownArraysError(InputError.of(str(path), rule, value), existing)


def _from_npy(path: Path, name: str, member: IO[bytes], largest: int, kinds: str) -> npt.NDArray[Any]:
    """One array; its header is checked against the `largest` possible size before anything is allocated."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(member)
    if kind.kind not in kinds.replace("O", ""):
        what = "numbers" if kinds == NUMBERS else "numbers, texts or dates"
        raise InputError.of(f"{name} in {path}", f"an array of {what}", kind)
    size = math.prod(shape) * kind.itemsize
    if not 0 <= size <= largest:
        rule = f"at most {largest:,} bytes, the size of the file"
        raise InputError.of(f"{name} in {path}", rule, f"{size:,}: {shape}")
    flat = np.empty(math.prod(shape), kind)
    view, position = flat.view(np.uint8).data, 0
    while position < size:
        part = member.read(min(CHUNK, size - position))
        if not part:
            got = f"{position:,}: it is truncated"
            raise InputError.of(f"{name} in {path}", f"{size:,} bytes long", got)
        view[position : position + len(part)] = part
        position += len(part)
    if member.read(1):  # reading to the end also checks the CRC of the member
        raise InputError.of(f"{name} in {path}", f"{size:,} bytes long", "more")
    if kind.kind == "U" and not _valid_texts(flat):
        raise InputError.of(f"{name} in {path}", "texts of valid characters", "others")
    return flat.reshape(shape, order="F" if fortran else "C")


def _valid_texts(texts: npt.NDArray[np.str_]) -> bool:
    """Whether all code points exist: NumPy stores any 32 bits, and Python fails later on some of them."""
    points = texts.view(np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder))
    return bool(((points < 0xD800) | ((points > 0xDFFF) & (points <= 0x10FFFF))).all())
