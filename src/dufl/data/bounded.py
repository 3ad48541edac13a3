"""Files read without trust: decompressed as a stream, hashed as they pass, never more than is expected."""

import gzip
import hashlib
import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError

CHUNK = 1 << 20  # bytes decompressed at a time
_XZ_MEMORY = 128 << 20  # what `xz -9` needs, twice; a header may ask for gigabytes


class _Stream(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None:
        """Put some bytes into the buffer; 0 at the end."""


class Contents:
    """What is in a file, after decompression: to be taken in order and to the end."""

    def __init__(self, path: Path, stream: _Stream, checksum: str | None) -> None:
        self._path, self._stream, self._checksum = path, stream, checksum
        self._hash = hashlib.new(algorithm(checksum)) if checksum else None
        self._taken = 0

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Fill an array with the next bytes; a file that has fewer is refused."""
        view = out.reshape(-1).view(np.uint8).data  # of a contiguous array, so no copy
        place = 0
        while place < len(view):
            got = self._stream.readinto(view[place : place + CHUNK])
            if not got:
                wanted = self._taken + len(view)
                raise InputError.of(
                    str(self._path),
                    f"at least {wanted:,} bytes long",
                    f"{self._taken + place:,}: it is cut short",
                )
            if self._hash:
                self._hash.update(view[place : place + got])
            place += got
        self._taken += place

    def take(self, count: int) -> bytes:
        """The next few bytes."""
        out = np.empty(count, np.uint8)
        self.fill(out)
        return out.tobytes()

    def rest(self, limit: int) -> bytes:
        """All that is left; a file that has more than `limit` is refused."""
        left, buffer = bytearray(), memoryview(bytearray(CHUNK))
        while got := self._stream.readinto(buffer):
            left += buffer[:got]
            if len(left) > limit:
                raise InputError.of(str(self._path), f"at most {limit:,} bytes after decompression", "more")
        return bytes(left)

    def end(self) -> None:
        """Refuse a file that goes on, or that is not the one its checksum promises."""
        if self._stream.readinto(memoryview(bytearray(1))):
            raise InputError.of(str(self._path), f"{self._taken:,} bytes long", "more")
        if self._hash and self._checksum:
            compare(self._path, self._checksum, self._hash.hexdigest())


@contextmanager
def contents(path: Path, checksum: str | None = None) -> Iterator[Contents]:
    """The contents of a plain, `.gz` or `.xz` file; whatever goes wrong inside is an `InputError`.

    Args:
        path: the file.
        checksum: of the decompressed contents, as ``sha1:…``, ``md5:…`` or ``sha256:…``, or None.
    """
    with refusing(path), path.open("rb") as file:
        yield Contents(path, _decompressed(file, path.suffix), checksum)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file provokes into an `InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except Exception as fault:  # parsers of foreign bytes raise anything: no list of types is complete
        said = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
        raise InputError(f"{path} cannot be read: {said}") from fault


def algorithm(checksum: str) -> str:
    """The name before the colon."""
    return checksum.partition(":")[0]


def compare(path: Path, checksum: str, found: str) -> None:
    """Refuse a file whose digest is another than its checksum."""
    name, _, wanted = checksum.partition(":")
    if found != wanted:
        raise InputError.of(str(path), f"the published file with {name} {wanted}", f"{found}: it is corrupt")


def digest(path: Path, name: str) -> str:
    """The digest of a file as it is stored."""
    with refusing(path), path.open("rb") as file:
        return hashlib.file_digest(file, name).hexdigest()


def verify(path: Path, checksum: str, size: int | None = None) -> None:
    """Refuse a file whose decompressed contents have not their checksum; read once, nothing kept.

    Args:
        path: the file.
        checksum: of its contents.
        size: of its contents; not a byte more is decompressed.
    """
    found, taken, buffer = hashlib.new(algorithm(checksum)), 0, memoryview(bytearray(CHUNK))
    with refusing(path), path.open("rb") as file:
        stream = _decompressed(file, path.suffix)
        while got := stream.readinto(buffer):
            found.update(buffer[:got])
            taken += got
            if size is not None and taken > size:
                raise InputError.of(str(path), f"{size:,} bytes long", "more: it is corrupt")
    compare(path, checksum, found.hexdigest())


def _decompressed(file: IO[bytes], suffix: str) -> _Stream:
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
                raise EOFError("the xz stream is cut short")
            if plain := self._decompressor.decompress(packed, len(buffer)):
                buffer[: len(plain)] = plain
                return len(plain)
        if self._decompressor.unused_data or self._file.read(1):
            raise lzma.LZMAError("there are bytes after the xz stream")
        return 0
