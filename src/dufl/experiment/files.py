"""Files that are whole or not there: written under a temporary name, made durable, then renamed.

Only regular files are read and replaced. A device, a pipe or a directory is refused, so that no reader waits
for one and no writer puts a file in its place. A symbolic link stays: what it points to is replaced.
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
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)  # file systems that cannot make a folder durable


def open_regular(path: Path) -> io.BufferedReader:
    """The file, opened for reading; anything but a regular file is refused without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_regular(path, mode)
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """What is in a regular file."""
    with open_regular(path) as stream:
        return stream.read()


def target_of(path: Path) -> Path:
    """Where a file of this name is written: through symbolic links, and never over anything but a file."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise InputError.of(str(path), "a file", "a symbolic link that leads back to itself")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return real
    if not stat.S_ISREG(mode):
        raise _not_regular(path, mode)
    return real


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[Path]:
    """A temporary path that takes the place of `path`, for good, once the block has ended well.

    A private file has mode 0600 from its creation, whatever it replaces.
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
            temporary.chmod(mode)  # which a library that writes the file may have narrowed
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the operating system name the file that was meant, not a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str, private: bool = False) -> None:
    """Write a text file, whole or not at all; a private one has mode 0600 from its creation."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:  # from the name of a file that is not in UTF-8
        part = text[max(error.start - 40, 0) : error.end].rpartition("\n")[2]
        raise InputError.of(path.name, "text that UTF-8 can hold", ascii(part)) from None
    with replacing(path, private) as temporary:
        temporary.write_bytes(content)


def sync(path: Path) -> None:
    """Make a file or a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def check_directory(path: Path) -> None:
    """Refuse, before any work is done, a directory that could not be made or written to."""
    try:
        there = path
        while not there.exists() and there != there.parent:
            there = there.parent
        usable = there.is_dir() and os.access(there, os.W_OK)
    except OSError as error:  # a name that is too long
        raise InputError.of("--out", "a directory that can be made", f"{path}: {error.strerror}") from None
    if not usable:
        raise InputError.of("--out", "a directory that can be written to", path)


def make_directory(path: Path) -> Path:
    """The directory, made if it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"--out must be a directory that can be made: {fault}") from None
    return path


def to_json(value: Any, indent: int | None = 2) -> str:
    """JSON that every parser reads: NaN is null, and so is an infinite number, with a flag beside it.

    The flag of `x` is `x_infinite`, or `x_minus_infinite` for −∞: true, or for a list the places in it.

    >>> print(to_json({"cost": float("inf"), "each": [1.0, float("inf")]}, indent=None), end="")
    {"cost": null, "cost_infinite": true, "each": [1.0, null], "each_infinite": [1]}
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Any:
    """What `to_json` wrote, with infinite numbers where its flags say so; other nulls are None.

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
    """An entry, and the flags that say where it is infinite."""
    found = {key: _finite(item)}
    for suffix, infinite in _FLAGS.items():
        if isinstance(item, float) and item == infinite:
            found[f"{key}{suffix}"] = True
        elif isinstance(item, list | tuple):
            places = [n for n, part in enumerate(item) if isinstance(part, float) and part == infinite]
            found |= {f"{key}{suffix}": places} if places else {}
    return found


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
