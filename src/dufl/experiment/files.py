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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
