"""Plugins: a user's own models, algorithms, policies, datasets, streams, discard rules, losses and metrics.

A plugin is specified in one of four ways, everywhere:

    a name           of a built-in, such as "fedavg"
    an import path   "package.module:Name", the only way in a file
    a class          or a function, which is called to create the plugin; it may be defined in a notebook
    an object        the plugin itself

Import paths are resolved when the plugin is created, never when a file is read. Modules in the current
directory are found only if `import_from` adds it. An exception of a plugin is the cause of a `PluginError`.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from types import FunctionType
from typing import Any

from dufl.errors import DuflError, InputError, PluginError
from dufl.inputs import did_you_mean

Spec = Any  # a name, an import path, a class or function, or an object


def check_spec(kind: str, spec: Spec, known: Iterable[str]) -> Spec:
    """Validate a specification. A string must be a known name, an import path or a description.

    >>> check_spec("model", "resnet", ["logistic", "resnet18"])
    Traceback (most recent call last):
    dufl.errors.InputError: unknown model 'resnet': did you mean 'resnet18'?
    """
    if spec is None or isinstance(spec, bool | int | float | list | dict | date | time):
        raise InputError.of(kind, "a name, an import path, a class or an object", spec, text=repr(spec))
    names = list(known)
    if not isinstance(spec, str) or spec in names or is_import_path(spec) or is_description(spec):
        return spec
    known_names = f"{', '.join(names)}, or " if names else ""
    advice = did_you_mean(spec, names) or f"known are {known_names}package.module:Name"
    raise InputError(f"unknown {kind} {spec!r}: {advice}", field=kind, value=spec)


def describe(spec: Spec) -> str:
    """The string that represents a plugin in files, tables and messages.

    An importable class or function is represented by its import path. Any other plugin is represented by a
    description in angle brackets, which cannot be loaded again.

    >>> describe("fedavg"), describe(Path), describe(Path("x"))
    ('fedavg', 'pathlib:Path', "<PosixPath('x')>")
    """
    if isinstance(spec, str):
        return spec
    if isinstance(spec, type | FunctionType):
        module, name = spec.__module__, spec.__qualname__
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is spec:
            return f"{module}:{name}"
        return f"<{name.rpartition('.')[2]}>"
    text = repr(spec)
    if " at 0x" in text or len(text) > 200 or not text.isprintable():
        text = f"{type(spec).__name__} object"
    return f"<{text}>"


def is_import_path(text: str) -> bool:
    """Whether a string is an import path, `package.module:Name`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def is_description(text: str) -> bool:
    """Whether a string describes an object that a file cannot store; see `describe`."""
    return len(text) > 2 and text.startswith("<") and text.endswith(">") and text.isprintable()


def make_plugin(
    kind: str,
    spec: Spec,
    *arguments: Any,
    methods: Iterable[str] = (),
    known: Mapping[str, Callable[[], Any]] | None = None,
) -> Any:
    """Create the plugin of a specification.

    Args:
        kind: the kind of plugin for messages, such as "algorithm".
        spec: see the module's docstring.
        arguments: the arguments for a class or function.
        methods: the methods that the plugin must have.
        known: the factories of the built-in plugins, by name.
    """
    if isinstance(spec, str) and known and spec in known:
        return known[spec]()
    plugin, wanted = resolve(kind, spec), tuple(methods)
    is_factory = isinstance(plugin, type | FunctionType)
    if is_factory or not wanted or not any(hasattr(plugin, name) for name in wanted):
        with calling(kind, spec):
            plugin = plugin(*arguments)
    missing = [name for name in wanted if not callable(getattr(plugin, name, None))]
    if missing:
        field = f"{kind} {describe(spec)!r}"
        raise InputError.of(field, f"one with {', '.join(missing)}", type(plugin).__name__)
    return plugin


def resolve(kind: str, spec: Spec) -> Any:
    """The class, function or object of a specification. An import path is imported."""
    if not isinstance(spec, str):
        return spec
    if not is_import_path(spec):
        rule = "given as an object or a class"
        advice = "the file describes it, but cannot store it"
        raise InputError.of(kind, rule, spec, advice=advice if is_description(spec) else "")
    module_name, _, name = spec.partition(":")
    with calling(kind, spec, "while it was imported"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the plugin exists, but a module that it imports does not
            reason = _in_current_directory(module_name) or f"ModuleNotFoundError: {error}"
            raise InputError.of(kind, "importable", spec, text=repr(spec), advice=reason) from None
        plugin = getattr(module, name, None)
    if not callable(plugin):
        raise InputError.of(kind, f"a class or function in {module_name}", spec, text=repr(spec))
    return plugin


@contextmanager
def calling(kind: str, spec: Spec, when: str = "") -> Iterator[None]:
    """Run code of a plugin. Its exceptions become the cause of a `PluginError`.

    Args:
        kind: the kind of plugin, such as "algorithm".
        spec: its specification.
        when: the context of the call, for the message.
    """
    try:
        yield
    except DuflError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        lines = "".join(traceback.format_exception_only(error)).splitlines()
        reason = next((line for line in lines if not line.startswith(" ")), type(error).__name__)
        during = f" ({when})" if when else ""
        raise PluginError(f"the {kind} {describe(spec)!r} raised {reason}{during}") from error


def accepted_keywords(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """The offered keyword arguments that a function or class accepts."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(offered)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {key: value for key, value in offered.items() if key in named}


def import_from(folder: Path) -> None:
    """Search a folder for plugins first, in this process and in its subprocesses."""
    if not folder.is_dir():
        raise InputError.of("--import-from", "a folder that exists", folder)
    path = str(folder.absolute())
    sys.path.insert(0, path)
    os.environ["PYTHONPATH"] = os.pathsep.join([path, *filter(None, [os.environ.get("PYTHONPATH")])])
    importlib.invalidate_caches()


def _in_current_directory(module_name: str) -> str:
    """Advice if the module is in the current directory, which is not searched; otherwise empty."""
    top = module_name.partition(".")[0]
    candidate = next((place for place in (Path(f"{top}.py"), Path(top)) if place.exists()), None)
    if candidate is None:
        return ""
    advice = "add --import-from . to the command, or the folder to sys.path or PYTHONPATH"
    return f"{candidate} is in the current folder, which is not searched by default: {advice}"
