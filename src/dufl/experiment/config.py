"""One TOML file describes a federation; `--set section.key=value` changes it from the outside.

Sections are `[game]`, `[clients]`, `[leader]`, `[data]` and `[training]`; every key is optional. An unknown
key is an error that names the nearest known one. Paths in a file are relative to its folder, those of `--set`
to the current one.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w

from dufl.errors import InputError
from dufl.experiment.sections import ClientsSection, DataSection, LeaderSection, column
from dufl.game.clients_file import COLUMNS
from dufl.game.parameters import Game
from dufl.game.plan import Plan, solve
from dufl.game.population import Clients, Distribution
from dufl.game.search import Progress
from dufl.inputs import Inputs, unknown_key
from dufl.learning.settings import Training

Table = dict[str, Any]


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
            leader=self.leader.method,
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


_KNOWN: dict[str, Iterable[str]] = {
    "game": [
        *(name for name in Game.model_fields if name != "clients"),
        *("strong_convexity", "smoothness", "learning_rate"),
    ],
    "clients": list(ClientsSection.model_fields),
    "leader": list(LeaderSection.model_fields),
    "data": list(DataSection.model_fields),
    "training": list(Training.model_fields),
}
_PATHS = (("data", "data_dir"), ("data", "dataset"))


def load(path: Path | None = None, changes: Iterable[str] = ()) -> Config:
    """Read a configuration file, apply `section.key=value` changes, and check everything."""
    if path is None:
        return resolve(change({}, changes))
    table = whole_paths(parse(_read(path), str(path)), path.parent)
    return resolve(change(table, changes), path.parent, str(path))


def resolve(table: Table, folder: Path = Path(), name: str = "", people: Clients | None = None) -> Config:
    """The configuration that a table stands for, everything checked.

    Args:
        table: the sections, as TOML has them.
        folder: where the CSV file of clients is looked for.
        name: of the file, for messages.
        people: the clients, if the CSV file has been read already.
    """
    _check_keys(table)
    source = f"{name} " if name else ""
    sections = {name: _section(table, name) for name in _KNOWN}
    clients = _in_section(source, "clients", lambda: _clients_section(sections["clients"]))
    everyone = _in_section(source, "clients", lambda: clients.clients(folder, people))
    game = _in_section(source, "game", lambda: Game(clients=everyone, **sections["game"]))
    leader = _in_section(source, "leader", lambda: LeaderSection(**sections["leader"]))
    if leader.competition == "exact" and everyone.size < 2:
        raise InputError.of(
            "[leader] competition", "'mean-field' with a single client", "'exact' and 1 client"
        )
    data = _in_section(source, "data", lambda: DataSection(**sections["data"]))
    training = _in_section(source, "training", lambda: Training(**sections["training"]))
    return Config(game=game, clients=clients, leader=leader, data=data, training=training)


def parse(content: bytes, name: str) -> Table:
    """The sections in a TOML file of this name, from what is in it."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise InputError(f"{name} must be a readable TOML file: {fault}") from None
    if not text.strip():
        raise InputError(f"{name} must not be empty: `dufl init` writes an example")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise InputError(f"{name} must be valid TOML: {fault}") from None


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
            except InputError as fault:
                join = " " if str(fault).startswith("must") else ": "
                raise InputError(f"{name}{join}{fault}") from None
    return ClientsSection(**values)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise InputError(f"{path} must be a readable TOML file: {fault}") from None


def _apply(table: Table, change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals:
        raise InputError.of("--set", "section.key=value", repr(change))
    section, dot, name = key.strip().partition(".")
    if not dot:
        section, name = _home(section), section
    value = _whole_path(section, name, _value(text.strip()), Path())
    part = table.setdefault(section, {})
    if not isinstance(part, dict):
        raise InputError.of(section, "a section", repr(part))
    part[name] = value


def _home(name: str) -> str:
    """The one section that has a key of this name."""
    homes = [section for section, known in _KNOWN.items() if name in known]
    if len(homes) == 1:
        return homes[0]
    if homes:
        raise InputError.of("--set", f"one of {', '.join(f'{h}.{name}' for h in homes)}", name)
    everything = {f"{s}.{k}": None for s, known in _KNOWN.items() for k in known}
    near = unknown_key(name, {k.partition(".")[2]: None for k in everything}, " in --set")
    raise InputError(near)


def _value(text: str) -> Any:
    """A TOML value; what is none is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _check_keys(table: Table) -> None:
    for section, values in table.items():
        if section not in _KNOWN:
            raise InputError(unknown_key(section, _KNOWN, " (a section)"))
        if not isinstance(values, dict):
            raise InputError.of(f"[{section}]", "a section", repr(values))
        for key in values:
            if key not in _KNOWN[section]:
                known = dict.fromkeys(_KNOWN[section])
                raise InputError(unknown_key(key, known, f" in [{section}]"))


def _section(table: Table, name: str) -> Table:
    return dict(table.get(name, {}))


def _in_section(source: str, name: str, make: Any) -> Any:
    try:
        return make()
    except InputError as fault:
        raise InputError(f"{source}[{name}] {fault}") from None


def _plain(value: Any) -> Any:
    """What TOML can hold."""
    if isinstance(value, Distribution):
        return value.model_dump()
    return list(value) if isinstance(value, tuple) else value
