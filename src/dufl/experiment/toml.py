"""TOML texts as Python values: whatever is in a text becomes a table, or one sentence that says why not."""

import tomllib
from pathlib import Path
from typing import Any

from dufl.errors import InputError, shown

LARGEST = 2**25  # bytes of a file
DEEPEST = 20  # levels of lists and tables in each other
INTEGERS = 2**63  # TOML has integers of 64 bits

Table = dict[str, Any]


def read(path: Path) -> bytes:
    """What is in a file, if it is of a sensible size."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, ValueError) as fault:  # a name with a NUL in it is a ValueError
        raise InputError(f"{path!s:.300} must be a readable TOML file: {fault}") from None
    if len(content) > LARGEST:
        raise InputError.of(str(path), f"a TOML file of at most {LARGEST:,} bytes", "more")
    return content


def parse(content: bytes, name: str) -> Table:
    """The sections in a TOML file of this name, from what is in it."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise InputError(f"{name} must be a readable TOML file in UTF-8: {fault}") from None
    if not text.strip():
        raise InputError(f"{name} must not be empty: `dufl init` writes an example")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as fault:  # a TOMLDecodeError, or an integer of thousands of digits
        raise InputError(f"{name} must be valid TOML: {fault}") from None
    for section, values in table.items():
        parts = values.items() if isinstance(values, dict) else [("", values)]
        for key, value in parts:
            check_value(value, f"{name} [{shown(section, str)}] {shown(key, str)}".strip())
    return table


def parse_value(text: str, name: str) -> Any:
    """A TOML value of this name; what is none is a text."""
    try:
        table = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError:
        table = {}
    value = table["value"] if len(table) == 1 else text  # with a second line there can be more
    check_value(value, name)
    return value


def check_value(value: Any, name: str) -> None:
    """Refuse what no field takes and what would break where it is shown, written or used as a path."""
    level = [value]
    for _ in range(DEEPEST):
        for item in level:
            if type(item) is int and not -INTEGERS <= item < INTEGERS:
                raise InputError.of(name, "an integer of at most 64 bits", shown(item))
            if isinstance(item, str) and ("\0" in item or not _is_unicode(item)):
                raise InputError.of(name, "a text without NUL and half characters", shown(item))
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise _too_deep(name)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _is_unicode(text: str) -> bool:
    """Whether a text can be written: an argument that is not UTF-8 has halves of characters in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(name: str) -> InputError:
    return InputError(f"{name} must not have lists and tables in each other for more than {DEEPEST} levels")
