"""Things chosen by name: one of ours, or a user's own by import path, `package.module:Name`.

A user's own is a plugin. Its module is looked for where Python looks for modules, which is not the current
folder unless it was asked for. Whatever it raises is a `PluginError` that says whose exception it is.
"""

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dufl.errors import DuflError, InputError, PluginError


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


@contextmanager
def calling(kind: str, path: str, when: str = "") -> Iterator[None]:
    """Run code of a plugin: an exception of its own becomes the cause of a `PluginError`.

    Args:
        kind: algorithm, policy, model or dataset.
        path: its name.
        when: what it was called for.
    """
    try:
        yield
    except DuflError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's code raises
        lines = "".join(traceback.format_exception_only(error)).splitlines()
        reason = next((line for line in lines if not line.startswith(" ")), type(error).__name__)
        during = f" ({when})" if when else ""
        raise PluginError(f"the {kind} {path!r} raised {reason}{during}") from error


def import_choice(kind: str, path: str) -> Any:
    """What `package.module:Name` stands for."""
    module_name, _, name = path.partition(":")
    with calling(kind, path, "while it was imported"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the plugin is there, but something that it imports is not
            reason = _lies_here(module_name) or f"ModuleNotFoundError: {error}"
            raise InputError(f"{kind} must be importable, got {path!r}: {reason}") from None
        made = getattr(module, name, None)
    if not callable(made):
        raise InputError.of(kind, f"a class or function in {module_name}", repr(path))
    return made


def make_choice(kind: str, path: str, *arguments: Any, parts: Iterable[str] = ()) -> Any:
    """What `package.module:Name` returns when it is called; it must have the functions named in `parts`."""
    made = import_choice(kind, path)
    with calling(kind, path):
        result = made(*arguments)
        missing = [part for part in parts if not callable(getattr(result, part, None))]
    if missing:
        raise InputError.of(f"{kind} {path!r}", f"one with {', '.join(missing)}", type(result).__name__)
    return result


def import_from(folder: Path) -> None:
    """Look for plugins in a folder before anywhere else, in this process and in those that it starts."""
    if not folder.is_dir():
        raise InputError.of("--import-from", "a folder that exists", folder)
    whole = str(folder.absolute())
    sys.path.insert(0, whole)
    os.environ["PYTHONPATH"] = os.pathsep.join([whole, *filter(None, [os.environ.get("PYTHONPATH")])])
    importlib.invalidate_caches()


def is_path(name: str) -> bool:
    """Whether a name is an import path."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _lies_here(module_name: str) -> str:
    """What to do about a module that is not found, but is in the current folder; empty if it is not."""
    top = module_name.partition(".")[0]
    there = next((place for place in (Path(f"{top}.py"), Path(top)) if place.exists()), None)
    if there is None:
        return ""
    asked = "add --import-from . to the command, or the folder to sys.path or PYTHONPATH"
    return f"{there} is in the current folder, which is searched only if asked to be: {asked}"
