"""Where the configuration on the page comes from: the paper's defaults, a file, or what was uploaded."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import tomli_w

from dufl.errors import InputError
from dufl.experiment.config import Config, change, resolve, whole_paths
from dufl.experiment.files import read_bytes
from dufl.experiment.toml import Table, parse
from dufl.game.population import Clients


@dataclass(frozen=True)
class ClientsFile:
    """A CSV file of clients that has been read."""

    name: str
    content: bytes

    @property
    def clients(self) -> Clients:
        """Who is in it."""
        return _clients(self.content, self.name)


@dataclass(frozen=True)
class Source:
    """A configuration to change.

    Attributes:
        name: of its TOML file, as a command would name it; empty for the defaults.
        toml: what is in the file.
        people: the CSV file of clients, whichever way it came.
        instead: whether the CSV file takes the place of what the TOML file says of clients.
    """

    name: str = ""
    toml: str = ""
    people: ClientsFile | None = None
    instead: bool = False

    def config(self, changes: tuple[str, ...] = (), name: str = "") -> Config:
        """The configuration with some `section.key=value` changes; `name` is put before a message.

        No file is read here, so that a file that somebody uploads cannot ask for one of this machine.
        """
        table = self._table()
        if self.people is not None and self.instead:
            table["clients"] = {"file": self.people.name}
        change(table, changes)
        wanted = _clients_of(table).get("file")
        if wanted is not None and self.people is None:
            raise InputError(f"give {wanted} too, as the CSV file of clients", field="clients.file")
        return resolve(table, name=name, people=self.people.clients if self.people else None)

    @property
    def beyond_a_change(self) -> bool:
        """Whether the CSV file takes the place of keys that no `--set` can take away."""
        return self.instead and bool(_clients_of(self._table()).keys() - {"file"})

    def with_people(self, people: ClientsFile | None) -> "Source":
        """The same with the clients of a CSV file, or without one."""
        named = people is not None and _clients_of(self._table()).get("file") == people.name
        return replace(self, people=people, instead=people is not None and not named)

    def _table(self) -> Table:
        return parse(self.toml.encode(), self.name) if self.toml else {}


def begin(path: Path | None) -> Source:
    """The source that `dufl explore FILE` starts with; everything in it is checked."""
    if path is None:
        return Source()
    table = whole_paths(parse(_read(path, "TOML"), str(path)), path.parent)
    file = _clients_of(table).get("file")
    people = ClientsFile(file, _read(path.parent / file, "CSV")) if isinstance(file, str) else None
    source = Source(str(path), tomli_w.dumps(table), people)
    source.config(name=str(path))
    return source


def uploaded(content: bytes, name: str, people: ClientsFile | None) -> Source:
    """The source that an uploaded TOML file is, together with a CSV file that was uploaded before.

    Paths in it stay as they are, for the folder it came from is not known.
    """
    source = Source(name, tomli_w.dumps(parse(content, name))).with_people(people)
    source.config(name=name)
    return source


def file_name(name: str) -> str:
    """The last part of a file's name, whatever folder stands before it."""
    return PurePath(name.replace("\\", "/")).name


def _read(path: Path, kind: str) -> bytes:
    """What is in a file that a configuration may name: no device, whose end would be waited for."""
    try:
        return read_bytes(path)
    except OSError as error:
        raise InputError(f"{path} must be a readable {kind} file: {error}") from None


def _clients_of(table: Table) -> dict[str, Any]:
    section = table.get("clients")
    return section if isinstance(section, dict) else {}


@lru_cache(maxsize=4)
def _clients(content: bytes, name: str) -> Clients:
    return Clients.parse_csv(content, name)
