"""Atomic and durable files: written under a temporary name, synced, then renamed.

Only regular files are read and replaced. A device, a pipe or a directory is an error, so that reading does
not block and writing does not replace it. A symbolic link is kept; its target is replaced.
"""

import errno
import io
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dufl.errors import InputError

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)  # file systems that cannot sync a directory


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading. Raises an error for any other kind of file, without blocking."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_regular(path, mode)
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file."""
    with open_regular(path) as stream:
        return stream.read()


def target_of(path: Path) -> Path:
    """The path to write to, with symbolic links resolved. It must be a regular file or not exist."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise InputError.of(str(path), "a file", "a symbolic link to itself")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return real
    if not stat.S_ISREG(mode):
        raise _not_regular(path, mode)
    return real


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[Path]:
    """A temporary path that atomically replaces `path` if the block succeeds.

    A private file has mode 0600 from its creation, also if it replaces another file.
    """
    target = target_of(path)
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}")
    with naming(path):
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(temporary, flags, 0o600 if private else 0o666))
            like = target if target.exists() and not private else temporary
            mode = stat.S_IMODE(like.stat().st_mode)
            yield temporary
            temporary.chmod(mode)  # a library may have changed it
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Report errors of the operating system for `path` instead of a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str, private: bool = False) -> None:
    """Write a text file atomically. A private file has mode 0600 from its creation."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:  # from a file name that is not UTF-8
        part = text[max(error.start - 40, 0) : error.end].rpartition("\n")[2]
        raise InputError.of(path.name, "valid UTF-8", ascii(part)) from None
    with replacing(path, private) as temporary:
        temporary.write_bytes(content)


def sync(path: Path) -> None:
    """Write a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def check_directory(path: Path) -> None:
    """Raise an error if a directory could not be created or written to."""
    try:
        existing = path
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        usable = existing.is_dir() and os.access(existing, os.W_OK)
    except OSError as error:  # a name that is too long
        raise InputError.of("--out", "a directory that can be created", f"{path}: {error.strerror}") from None
    if not usable:
        raise InputError.of("--out", "a directory that can be written to", path)


def make_directory(path: Path) -> Path:
    """Create the directory if it does not exist, and return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out must be a directory that can be created: {error}") from None
    return path


def to_json(value: Any, indent: int | None = 2) -> str:
    """Strictly valid JSON. NaN is null; an infinite number is null with a flag.

    The flag of `x` is `x_infinite`, or `x_minus_infinite` for −∞. Its value is true or, for a list, indices.

    >>> print(to_json({"cost": float("inf"), "each": [1.0, float("inf")]}, indent=None), end="")
    {"cost": null, "cost_infinite": true, "each": [1.0, null], "each_infinite": [1]}
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Any:
    """Parse the output of `to_json`. Flagged nulls are infinite numbers; other nulls are None.

    >>> from_json(to_json({"cost": float("inf"), "each": [1.0, float("-inf")], "loss": float("nan")}))
    {'cost': inf, 'each': [1.0, -inf], 'loss': None}
    """
    return json.loads(text, object_hook=_with_infinite)


_FLAGS = {"_infinite": math.inf, "_minus_infinite": -math.inf}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flagged(key, item).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flagged(key: Any, item: Any) -> dict[Any, Any]:
    """An entry and its flags for infinite numbers."""
    entries = {key: _finite(item)}
    for suffix, infinite in _FLAGS.items():
        if isinstance(item, float) and item == infinite:
            entries[f"{key}{suffix}"] = True
        elif isinstance(item, list | tuple):
            places = [n for n, part in enumerate(item) if isinstance(part, float) and part == infinite]
            entries |= {f"{key}{suffix}": places} if places else {}
    return entries


def _with_infinite(values: dict[str, Any]) -> dict[str, Any]:
    for suffix, infinite in _FLAGS.items():
        for flag in [key for key in values if key.endswith(suffix)]:
            item = values.get(flag.removesuffix(suffix), 0)
            if item is None and values[flag] is True:
                values[flag.removesuffix(suffix)] = infinite
                del values[flag]
            elif isinstance(item, list) and isinstance(values[flag], list):
                for place in values.pop(flag):
                    item[place] = infinite
    return values


def _not_regular(path: Path, mode: int) -> InputError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    return InputError.of(str(path), "a regular file", kind)
