"""Parse TOML from untrusted files: any input gives a table or an `InputError`."""

import tomllib
from pathlib import Path
from typing import Any

from dufl.errors import InputError, shown

LARGEST = 2**25  # maximum size of a file in bytes
DEEPEST = 20  # maximum nesting of lists and tables
INTEGERS = 2**63  # TOML integers have 64 bits

Table = dict[str, Any]


def read(path: Path) -> bytes:
    """Read a file of limited size."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # a NUL in the name raises ValueError
        raise InputError(f"{path!s:.300} must be a readable TOML file: {error}") from None
    if len(content) > LARGEST:
        raise InputError.of(str(path), f"a TOML file of at most {LARGEST:,} bytes", "more")
    return content


def parse(content: bytes, name: str) -> Table:
    """Parse the content of the TOML file `name`."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} must be a readable TOML file in UTF-8: {error}") from None
    if not text.strip():
        raise InputError(f"{name} must not be empty: `dufl init` writes an example")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as error:  # a TOMLDecodeError, or an integer with thousands of digits
        raise InputError(f"{name} must be valid TOML: {error}") from None
    for section, values in table.items():
        parts = values.items() if isinstance(values, dict) else [("", values)]
        for key, value in parts:
            check_value(value, f"{name} [{shown(section, str)}] {shown(key, str)}".strip())
    return table


def parse_value(text: str, name: str) -> Any:
    """Parse the TOML value of the key `name`. Invalid TOML is taken as a string."""
    try:
        table = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError:
        table = {}
    value = table["value"] if len(table) == 1 else text  # a second line may define more keys
    check_value(value, name)
    return value


def check_value(value: Any, name: str) -> None:
    """Raise an error for values that cannot be displayed, written or used as a path."""
    level = [value]
    for _ in range(DEEPEST):
        for item in level:
            if type(item) is int and not -INTEGERS <= item < INTEGERS:
                raise InputError.of(name, "an integer of at most 64 bits", shown(item))
            if isinstance(item, str) and ("\0" in item or not _is_unicode(item)):
                raise InputError.of(name, "a string without NUL or surrogates", shown(item))
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise _too_deep(name)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _is_unicode(text: str) -> bool:
    """Whether a string can be encoded: an argument that is not UTF-8 contains surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(name: str) -> InputError:
    return InputError(f"{name} must not nest lists and tables more than {DEEPEST} levels deep")
