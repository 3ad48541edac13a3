"""Things chosen by name: one of ours, or a user's own by import path, `package.module:Name`."""

import difflib
import importlib
import sys
from collections.abc import Iterable
from typing import Any

from dufl.errors import DuflError, InputError


def check_choice(kind: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is known or an import path; otherwise an error that suggests the nearest."""
    choices = list(known)
    if name in choices or is_path(name):
        return name
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    advice = (
        f"did you mean {near[0]!r}?" if near else f"known are {', '.join(choices)}, or package.module:Name"
    )
    raise InputError(f"unknown {kind} {name!r}: {advice}")


def import_choice(kind: str, path: str) -> Any:
    """What `package.module:Name` stands for; the current folder is searched too."""
    module_name, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as fault:  # whatever a user's module raises when it is loaded
        raise InputError(
            f"{kind} must be importable, got {path!r}: {type(fault).__name__}: {fault}"
        ) from fault
    if not callable(made := getattr(module, name, None)):
        raise InputError.of(kind, f"a class or function in {module_name}", repr(path))
    return made


def make_choice(kind: str, path: str, *arguments: Any) -> Any:
    """What `package.module:Name` returns when it is called."""
    made = import_choice(kind, path)
    try:
        return made(*arguments)
    except DuflError:
        raise
    except Exception as fault:  # whatever a user's class or function raises
        raise InputError(f"{kind} {path!r} cannot be made: {type(fault).__name__}: {fault}") from fault


def is_path(name: str) -> bool:
    """Whether a name is an import path."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
