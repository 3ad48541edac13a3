"""Read the experiment of a stored result. Reads nothing outside its directory and runs no code."""

import json
from pathlib import Path
from typing import Any

from dufl.errors import InputError
from dufl.experiment.config import CLIENTS_FILE, Changes, Experiment, absolute_paths, change, resolve
from dufl.experiment.output import Manifest
from dufl.experiment.toml import Table, parse
from dufl.game.population import Clients


def read_table(manifest: Manifest) -> Table:
    """Read the `config.toml` of a result."""
    return parse(manifest.read_file("config.toml"), str(manifest.folder / "config.toml"))


def read_config(manifest: Manifest, changes: Changes | None = None) -> Experiment:
    """Read the experiment of a result, with some changes.

    The clients are read from the clients.csv of the result, unless a change names another file.
    """
    folder, path = manifest.folder, manifest.folder / "config.toml"
    table = absolute_paths(read_table(manifest), folder)
    _check_clients(path, table)
    table = change(table, changes or {})
    section = table.get("clients")
    own = isinstance(section, dict) and section.get("file") == CLIENTS_FILE
    content = manifest.read_file(CLIENTS_FILE) if own else b""
    clients = Clients.parse_csv(content, str(folder / CLIENTS_FILE)) if own else None
    return resolve(table, folder, str(path), clients)


def read_json(manifest: Manifest, name: str) -> dict[str, Any]:
    """Read a JSON object from a file of a result."""
    content = manifest.read_file(name)
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{manifest.folder / name} must be one JSON object: {error}") from None


def flat(table: Table) -> dict[str, Any]:
    """A flat table with dotted keys, such as `game.num_rounds`."""
    values: dict[str, Any] = {}
    for section, part in table.items():
        inner = part.items() if isinstance(part, dict) else [("", part)]
        values |= {f"{section}.{key}".rstrip("."): value for key, value in inner}
    return values


def _check_clients(path: Path, table: Table) -> None:
    section = table.get("clients")
    named = section.get("file", CLIENTS_FILE) if isinstance(section, dict) else CLIENTS_FILE
    if named != CLIENTS_FILE:
        raise InputError.of(
            f"{path}: clients.file", f"{CLIENTS_FILE!r} in the same directory", named, text=repr(named)
        )
