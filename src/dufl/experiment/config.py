"""One TOML file describes a federation; changes `section.key=value` are applied to it from the outside.

Sections are `[game]`, `[clients]`, `[leader]`, `[data]` and `[training]`; every key is optional. An unknown
key is an error that names the nearest known one. Paths in a file are relative to its folder, those of
changes to the current one.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w

from dufl.errors import InputError, shown
from dufl.experiment.keys import KEYS, check_keys, home
from dufl.experiment.sections import ClientsSection, DataSection, LeaderSection, column
from dufl.experiment.toml import Table, parse, parse_value, read
from dufl.game.clients_file import COLUMNS
from dufl.game.parameters import Game
from dufl.game.plan import Plan, solve
from dufl.game.population import Clients, Distribution
from dufl.game.search import Progress
from dufl.inputs import Inputs
from dufl.learning.settings import Training


class Config(Inputs):
    """A whole configuration, resolved and checked."""

    game: Game
    clients: ClientsSection
    leader: LeaderSection
    data: DataSection = DataSection()
    training: Training = Training()

    def replace(self, **training: Any) -> "Config":
        """The same with other values in `[training]`."""
        values = dict(self.training) | training
        return self.model_copy(update={"training": Training(**values)})

    def solve(self, progress: Progress = lambda _: None) -> Plan:
        """The server's plan."""
        return solve(
            self.game,
            method=self.leader.method,
            competition=self.leader.competition,
            algorithm1=self.leader.algorithm1,
            progress=progress,
        )

    def to_toml(self, clients_file: str = "clients.csv") -> str:
        """The resolved configuration as a file; clients from a CSV file are named `clients_file`."""
        game = {n: _plain(getattr(self.game, n)) for n in Game.model_fields if n != "clients"}
        if self.clients.file is None:
            clients = {n: _plain(v) for n, v in self.clients if v is not None}
        else:
            clients = {"file": clients_file}
        leader = {n: _plain(v) for n, v in self.leader}
        order = ["method", "competition"]
        ordered = {n: leader[n] for n in order} | leader
        data = {n: _plain(v) for n, v in self.data if v is not None}
        training = {n: _plain(v) for n, v in self.training}
        sections = {"game": game, "clients": clients, "leader": ordered, "data": data, "training": training}
        return tomli_w.dumps(sections)


_PATHS = (("data", "data_dir"), ("data", "dataset"))


def load(path: Path | None = None, changes: Iterable[str] = ()) -> Config:
    """Read a configuration file, apply `section.key=value` changes, and check everything."""
    if path is None:
        return resolve(change({}, changes))
    table = whole_paths(parse(read(path), str(path)), path.parent)
    return resolve(change(table, changes), path.parent, str(path))


def resolve(table: Table, folder: Path = Path(), name: str = "", people: Clients | None = None) -> Config:
    """The configuration that a table stands for, everything checked.

    Args:
        table: the sections, as TOML has them.
        folder: where the CSV file of clients is looked for.
        name: of the file, for messages.
        people: the clients, if the CSV file has been read already.
    """
    check_keys(table)
    sections = {section: _section(table, section) for section in KEYS}
    clients = _in_section(name, "clients", lambda: _clients_section(sections["clients"]))
    everyone = _in_section(name, "clients", lambda: clients.clients(folder, people))
    game = _in_section(name, "game", lambda: Game(clients=everyone, **sections["game"]))
    leader = _in_section(name, "leader", lambda: LeaderSection(**sections["leader"]))
    if leader.competition == "nash" and everyone.size < 2:
        raise InputError.of("leader.competition", "'mean-field' with a single client", "'nash' and 1 client")
    data = _in_section(name, "data", lambda: DataSection(**sections["data"]))
    training = _in_section(name, "training", lambda: Training(**sections["training"]))
    return Config(game=game, clients=clients, leader=leader, data=data, training=training)


def change(table: Table, changes: Iterable[str]) -> Table:
    """The table with `section.key=value` changes applied to it."""
    for text in changes:
        _apply(table, text)
    return table


def whole_paths(table: Table, folder: Path) -> Table:
    """The table of a file with paths that are relative to its folder made whole."""
    for section, key in _PATHS:
        part = table.get(section)
        if isinstance(part, dict) and key in part:
            part[key] = _whole_path(section, key, part[key], folder)
    return table


def _whole_path(section: str, key: str, value: Any, folder: Path) -> Any:
    """A value with its path made whole, if it is one."""
    is_one = (section, key) in _PATHS and isinstance(value, str)
    if is_one and value and (key == "data_dir" or value.endswith(".npz")):
        return str(folder.absolute() / Path(value).expanduser())
    return value


def _clients_section(values: Table) -> ClientsSection:
    for name in COLUMNS:
        if name in values:
            try:
                column(values[name])
            except InputError as error:
                raise error.within(name) if error.field else error.renamed(name) from None
    return ClientsSection(**values)


def _apply(table: Table, text: str) -> None:
    section, name, value = parse_change(text)
    part = table.setdefault(section, {})
    if not isinstance(part, dict):
        raise InputError.of(section, "a section", shown(part))
    part[name] = _whole_path(section, name, value, Path())


def parse_change(text: str) -> tuple[str, str, Any]:
    """Section, key and value of `section.key=value`; the section may be left out if only one has the key.

    >>> parse_change("num_rounds=50")
    ('game', 'num_rounds', 50)
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError.of("changes", "section.key=value", shown(text))
    section, dot, name = key.strip().partition(".")
    if not dot:
        section, name = home(section), section
    return section, name, parse_value(value.strip(), f"{section}.{name}")


def _section(table: Table, name: str) -> Table:
    return dict(table.get(name, {}))


def _in_section(source: str, name: str, make: Any) -> Any:
    try:
        return make()
    except InputError as error:
        raise error.within(name, source) from None


def _plain(value: Any) -> Any:
    """What TOML can hold."""
    if isinstance(value, Distribution):
        return value.model_dump()
    return list(value) if isinstance(value, tuple) else value
