"""`dufl flower new`: an app directory that `flwr run` starts and that Flower Hub accepts.

The directory holds what everyone may see. Configurations with costs, and results, are in a directory of their
own, which is `~/dufl/NAME` unless another is given: the app finds it on every machine without absolute paths.
"""

import importlib.metadata
import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from dufl import __version__
from dufl.errors import InputError
from dufl.experiment.config import CLIENTS_FILE, Experiment
from dufl.experiment.files import make_directory, write_text
from dufl.flower import scaffold_texts as texts

FLOWER = ">=1.38,<1.42"  # as in pyproject.toml
FLOWER_TARGET = "1.41.0"  # as in constraints.txt
PUBLISHER = "your-account"
_PUBLIC_GAME = ("num_rounds",)  # the other keys of `[game]` are the server's prices and preferences


@dataclass(frozen=True)
class NewApp:
    """An app directory that was written.

    Attributes:
        folder: the app directory.
        data: the directory of configurations and results.
        elsewhere: whether `data` is not the one in pyproject.toml, and has to be given to `flwr run`.
        requires_dufl: whether the app declares DUFL as a dependency.
    """

    folder: Path
    data: Path
    elsewhere: bool
    requires_dufl: bool


def new_app(
    folder: Path,
    config: Experiment,
    *,
    publisher: str = PUBLISHER,
    data: Path | None = None,
    requires_dufl: bool | None = None,
) -> NewApp:
    """Write an app directory, and a directory with the configurations of server and clients.

    Args:
        folder: the app directory; it must be new or empty.
        config: the configuration of server and clients.
        publisher: the name of an account on Flower Hub.
        data: the directory of configurations and results; it must be new or empty. Default: `~/dufl/NAME`.
        requires_dufl: whether the app declares DUFL as a dependency. Default: if it came from an index.
    """
    name = checked_name(folder)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", publisher):
        raise InputError.of("publisher", "letters, digits, '_', '.' and '-'", publisher)
    _check_empty("folder", folder)
    if data is not None and data.absolute() != folder.absolute():
        _check_empty("data", data)
    default = free_data(name)
    made = NewApp(
        folder,
        default.expanduser() if data is None else data.absolute(),
        data is not None,
        comes_from_an_index() if requires_dufl is None else requires_dufl,
    )
    for file, text in app_files(name, config, publisher, default, made.requires_dufl).items():
        make_directory((folder / file).parent)
        write_text(folder / file, text)
    write_configurations(made.data, config)
    return made


def checked_name(folder: Path) -> str:
    """The name of an app, which is that of its directory. The rule is Flower's.

    >>> checked_name(Path("apps/fresh-data"))
    'fresh-data'
    """
    name = folder.absolute().name
    if not re.fullmatch("[A-Za-z][A-Za-z0-9-]{0,31}", name):
        rule = "named with letters, digits and hyphens, a letter first, at most 32"
        raise InputError.of("folder", rule, name)
    return name


def free_data(name: str) -> Path:
    """The first directory of `~/dufl/NAME`, `~/dufl/NAME-2` and so on that is new or empty."""
    names = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
    return next(path for path in (Path("~/dufl") / each for each in names) if _is_free(path.expanduser()))


def comes_from_an_index() -> bool:
    """Whether DUFL was installed from an index, where Flower finds it too, and not from a file."""
    try:
        return importlib.metadata.distribution("dufl").read_text("direct_url.json") is None
    except importlib.metadata.PackageNotFoundError:
        return False


def app_files(
    name: str, config: Experiment, publisher: str, data: Path, requires_dufl: bool
) -> dict[str, str]:
    """The texts of an app directory by file name."""
    clients, public = config.game.clients.size, public_configuration(config)
    dependencies = [f"flwr[simulation]{FLOWER}", *[f"dufl[flower,train]>={__version__}"] * requires_dufl]
    included = ["app/**/*.py", *["app/config.toml"] * (public is not None), "LICENSE", "README.md"]
    files = {
        "pyproject.toml": texts.PROJECT.format(
            name=name,
            publisher=publisher,
            target=FLOWER_TARGET,
            data=data.as_posix(),
            dependencies=_quoted(dependencies),
            included=_quoted(included),
            environment="" if requires_dufl else texts.ENVIRONMENT,
            otherwise="" if public is None else texts.OTHERWISE,
            others=max(0, min(3, clients - 2)),  # one client may be lost
        ),
        "README.md": texts.README.format(
            name=name,
            clients=clients,
            last=clients - 1,
            data=data.as_posix(),
            public="" if public is None else texts.README_PUBLIC,
        ),
        "LICENSE": texts.LICENSE.format(publisher=publisher),
        ".gitignore": texts.IGNORED,
        "app/__init__.py": texts.PACKAGE,
        "app/server.py": texts.SERVER,
        "app/client.py": texts.CLIENT,
    }
    return files if public is None else files | {"app/config.toml": texts.PUBLIC + tomli_w.dumps(public)}


def public_configuration(config: Experiment) -> dict[str, Any] | None:
    """What everyone may know of a configuration; nothing if it has a path, an address or a class."""
    table = tomllib.loads(config.to_toml())
    public = {
        "game": {key: table["game"][key] for key in _PUBLIC_GAME},
        "clients": {"count": config.game.clients.size},
        "data": table["data"],
        "training": table["training"],
    }
    return public if all(map(_is_plain, _values(public))) else None


def write_configurations(data: Path, config: Experiment) -> None:
    """Write the configurations of server and clients, readable by their owner alone: they hold costs."""
    make_directory(data)
    for name in ("server.toml", "client.toml"):
        write_text(data / name, config.to_toml(), private=True)
    if config.clients.file is not None:
        write_text(data / CLIENTS_FILE, config.game.clients.to_csv(), private=True)


def _check_empty(field: str, folder: Path) -> None:
    if not _is_free(folder):
        raise InputError.of(field, "new or empty", folder)


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _quoted(values: list[str]) -> str:
    return ", ".join(f'"{value}"' for value in values)


def _values(table: Any) -> list[Any]:
    if isinstance(table, dict):
        return [each for value in table.values() for each in _values(value)]
    return [each for value in table for each in _values(value)] if isinstance(table, list) else [table]


def _is_plain(value: Any) -> bool:
    return not isinstance(value, str) or re.fullmatch(r"[\w.-]*", value) is not None
