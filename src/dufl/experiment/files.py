"""Files that are whole or not there: written under a temporary name, then renamed."""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dufl.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name once the block has ended well."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_directory(path: Path) -> None:
    """Refuse, before any work is done, a directory that could not be made or written to."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError.of("--out", "a directory that can be written to", path)


def make_directory(path: Path) -> Path:
    """The directory, made if it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"--out must be a directory that can be made: {fault}") from None
    return path


def to_json(value: Any, indent: int | None = 2) -> str:
    """JSON that every parser reads: infinity is 1e999, which they read as infinity, and NaN is null."""
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False)
    return text.replace(f'"{_INFINITE}"', "1e999").replace(f'"-{_INFINITE}"', "-1e999") + "\n"


_INFINITE = "\u221e"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return _INFINITE if value > 0 else f"-{_INFINITE}"
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
