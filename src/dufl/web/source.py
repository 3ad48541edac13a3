"""Where the explorer's experiment comes from: the paper's defaults, a file on disk, or uploaded files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import tomli_w

from dufl.errors import InputError
from dufl.experiment.config import Experiment, absolute_paths, change, resolve
from dufl.experiment.files import read_bytes
from dufl.experiment.toml import Table, parse
from dufl.game.population import Clients


@dataclass(frozen=True)
class ClientsFile:
    """The name and content of a CSV file of clients."""

    name: str
    content: bytes

    @property
    def clients(self) -> Clients:
        """The clients in the file."""
        return _parse_clients(self.content, self.name)


@dataclass(frozen=True)
class Source:
    """The experiment that the form starts from.

    Attributes:
        name: path of the TOML file as the command line names it; empty for the defaults.
        toml: content of the TOML file.
        clients_file: the CSV file of clients, uploaded or named in the TOML file.
        replaces_clients: whether the CSV file replaces the `[clients]` section of the TOML file.
        is_local: whether the TOML file is the one that the server was started with.
    """

    name: str = ""
    toml: str = ""
    clients_file: ClientsFile | None = None
    replaces_clients: bool = False
    is_local: bool = False

    def experiment(self, changes: Mapping[str, Any] | None = None, name: str = "") -> Experiment:
        """The experiment with `changes`, dotted keys to values. Error messages start with `name`.

        This method reads no file, so an uploaded TOML file cannot read files of the server.
        """
        table = self._table()
        if self.clients_file is not None and self.replaces_clients:
            table["clients"] = {"file": self.clients_file.name}
        change(table, changes or {})
        file = _clients_section(table).get("file")
        if isinstance(file, str) and self.clients_file is None:
            raise InputError(f"upload {file} too: [clients] file refers to it", field="clients.file")
        clients = self.clients_file.clients if self.clients_file else None
        return resolve(table, name=name, clients=clients)

    @property
    def needs_saved_file(self) -> bool:
        """Whether the CSV file replaces keys of the TOML file that `--set` cannot remove."""
        return self.replaces_clients and bool(_clients_section(self._table()).keys() - {"file"})

    def with_clients(self, clients_file: ClientsFile | None) -> "Source":
        """The same source with the clients of another CSV file, or of none."""
        is_named = (
            clients_file is not None and _clients_section(self._table()).get("file") == clients_file.name
        )
        return replace(
            self, clients_file=clients_file, replaces_clients=clients_file is not None and not is_named
        )

    def _table(self) -> Table:
        return parse(self.toml.encode(), self.name) if self.toml else {}


def open_source(path: Path | None) -> Source:
    """The source of `dufl explore FILE`, checked; the defaults if `path` is None."""
    if path is None:
        return Source()
    table = absolute_paths(parse(_read(path, "TOML"), str(path)), path.parent)
    file = _clients_section(table).get("file")
    clients_file = ClientsFile(file, _read(path.parent / file, "CSV")) if isinstance(file, str) else None
    source = Source(str(path), tomli_w.dumps(table), clients_file, is_local=True)
    source.experiment(name=str(path))
    return source


def upload_source(content: bytes, name: str, clients_file: ClientsFile | None) -> Source:
    """The source of an uploaded TOML file and the CSV file uploaded with it, checked.

    Relative paths in the TOML file stay relative: its folder is unknown.
    """
    source = Source(name, tomli_w.dumps(parse(content, name))).with_clients(clients_file)
    source.experiment(name=name)
    return source


def file_name(path: str) -> str:
    r"""The last part of a POSIX or Windows path.

    >>> file_name("a/b.csv"), file_name("a\\b.csv")
    ('b.csv', 'b.csv')
    """
    return PurePath(path.replace("\\", "/")).name


def toml_value(value: Any) -> str:
    """A value as TOML on one line.

    >>> toml_value({"low": 1e-4, "high": 1.0, "scale": "log"}), toml_value([0, 20.0])
    ('{low=0.0001, high=1.0, scale="log"}', '[0, 20.0]')
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def _read(path: Path, kind: str) -> bytes:
    """The content of a regular file; a device could block forever."""
    try:
        return read_bytes(path)
    except OSError as error:
        raise InputError(f"{path} must be a readable {kind} file: {error}") from None


def _clients_section(table: Table) -> dict[str, Any]:
    section = table.get("clients")
    return section if isinstance(section, dict) else {}


@lru_cache(maxsize=4)
def _parse_clients(content: bytes, name: str) -> Clients:
    return Clients.parse_csv(content, name)
