"""One TOML file describes a federation; `--set section.key=value` changes it from the outside.

Sections are `[game]`, `[clients]`, `[leader]`, `[data]` and `[training]`; every key is optional. An unknown
key is an error that names the nearest known one. Paths in a file are relative to its folder, those of `--set`
to the current one.
"""

import tomllib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, BeforeValidator

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import Discard
from dufl.data.datasets import Dataset, load_dataset
from dufl.data.simulation import Simulation
from dufl.errors import InputError
from dufl.game.clients_file import COLUMNS
from dufl.game.leader import Algorithm1
from dufl.game.parameters import Competition, Game
from dufl.game.plan import Leader, Plan, solve
from dufl.game.population import (
    PAPER_COLLECTION_COST,
    PAPER_TRAINING_COST,
    Clients,
    Distribution,
    LogNormal,
    Uniform,
)
from dufl.game.search import Progress
from dufl.inputs import Count, Inputs, NonNegative, Positive, Seed, Share, unknown_key
from dufl.learning.choices import is_path, make_choice
from dufl.learning.settings import Training

Table = dict[str, Any]


def _column(value: object) -> float | list[float] | Distribution:
    """A number, a list of numbers or a distribution."""
    if isinstance(value, Distribution):
        return value
    if isinstance(value, dict):
        return LogNormal(**value) if "median" in value else Uniform(**value)
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers):
        raise InputError(
            f"must be a number, a list of numbers, {{low=, high=}} or {{median=, spread=}}, got {value!r}"
        )
    return value  # type: ignore[return-value]


Column = Annotated[Any, BeforeValidator(_column)]


class ClientsSection(Inputs):
    """`[clients]`: how many there are and what they hold and cost, or a CSV file that says so."""

    count: Count = 15
    initial_volume: Column = 1000.0
    collection_cost: Column = PAPER_COLLECTION_COST
    training_cost: Column = PAPER_TRAINING_COST
    initial_staleness: Column = 1.0
    capacity: Column = None
    seed: Seed = 0
    file: str | None = None

    def clients(self, folder: Path) -> Clients:
        """The clients; a relative `file` is looked for in `folder`."""
        given = self.model_fields_set - {"file"}
        if self.file is None:
            columns = {n: getattr(self, n) for n in COLUMNS if getattr(self, n) is not None}
            return Clients.draw(self.count, self.seed, **columns)
        if given:
            raise InputError.of(", ".join(sorted(given)), "left out when file is given", self.file)
        return Clients.from_csv(folder / self.file)


class LeaderSection(Algorithm1):
    """`[leader]`: who chooses payment and conservation rate, and against which competition."""

    method: Leader = "anticipating"
    competition: Competition = "mean-field"

    @property
    def algorithm1(self) -> Algorithm1:
        """The part that concerns Algorithm 1."""
        return Algorithm1(**{name: getattr(self, name) for name in Algorithm1.model_fields})


def _class_order(value: object) -> object:
    listed = isinstance(value, list) and all(type(item) is int for item in value)
    if not listed and value not in ("label", "client"):
        raise InputError.of("class_order", "'label', 'client' or a list of all classes", repr(value))
    return value


class DataSection(Inputs):
    """`[data]`: which samples there are, how they arrive and how they get old.

    Attributes:
        dataset: a known name, the path of an `.npz` file, or `package.module:function`.
        data_dir: where its files are, if not in `$DUFL_DATA` or the user's cache folder.
        noise_scale: see `Ageing`.
        noise_growth: see `Ageing`.
        initial_classes: how many classes there are at the start; by default it follows from σ.
        arrival_until: the share of the rounds by which every class has arrived.
        class_order: in which classes arrive: label, client (each its own), or a list.
        skew: how unevenly classes are spread over clients; see `SimulatedStream`. None is evenly.
        discard: which samples a buffer gives up: uniform or oldest.
    """

    dataset: str = "digits"
    data_dir: str | None = None
    noise_scale: NonNegative = 0.5
    noise_growth: Positive = 1.0
    initial_classes: Count | None = None
    arrival_until: Share = 0.5
    class_order: Annotated[Any, AfterValidator(_class_order)] = "label"
    skew: Positive | None = None
    discard: Discard = "uniform"

    def load(self) -> Dataset:
        """The dataset."""
        if is_path(self.dataset):
            return load_dataset(partial(make_choice, "dataset", self.dataset))
        return load_dataset(self.dataset, self.data_dir)

    def simulation(self, dataset: Dataset, game: Game, seed: int) -> Simulation:
        """What clients collect when, and how it looks later, under the σ and T of a game."""
        sigma, rounds, number = game.time_sensitivity, game.num_rounds, dataset.num_classes
        if self.initial_classes is not None and self.initial_classes > number:
            rule = f"<= the {number} classes of {dataset.name}"
            raise InputError.of("[data] initial_classes", rule, self.initial_classes)
        if isinstance(self.class_order, list) and sorted(self.class_order) != list(range(number)):
            rule = f"every class of {dataset.name} from 0 to {number - 1} once"
            raise InputError.of("[data] class_order", rule, self.class_order)
        arrival = Arrival(
            num_classes=dataset.num_classes,
            time_sensitivity=sigma,
            num_rounds=rounds,
            until=self.arrival_until,
            initial=self.initial_classes,
            order=self.class_order,
        )
        ageing = Ageing(
            time_sensitivity=sigma,
            num_rounds=rounds,
            noise_scale=self.noise_scale,
            growth=self.noise_growth,
        )
        return Simulation(dataset.train, arrival, ageing, seed, self.skew, self.discard)


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
    table = _with_whole_paths(_read(path), path.parent) if path else {}
    for change in changes:
        _apply(table, change)
    _check_keys(table)
    source = f"{path} " if path else ""
    sections = {name: _section(table, name) for name in _KNOWN}
    clients = _in_section(source, "clients", lambda: _clients_section(sections["clients"]))
    folder = path.parent if path else Path()
    people = _in_section(source, "clients", lambda: clients.clients(folder))
    game = _in_section(source, "game", lambda: Game(clients=people, **sections["game"]))
    leader = _in_section(source, "leader", lambda: LeaderSection(**sections["leader"]))
    if leader.competition == "exact" and people.size < 2:
        raise InputError.of(
            "[leader] competition", "'mean-field' with a single client", "'exact' and 1 client"
        )
    data = _in_section(source, "data", lambda: DataSection(**sections["data"]))
    training = _in_section(source, "training", lambda: Training(**sections["training"]))
    return Config(game=game, clients=clients, leader=leader, data=data, training=training)


def _with_whole_paths(table: Table, folder: Path) -> Table:
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
                _column(values[name])
            except InputError as fault:
                join = " " if str(fault).startswith("must") else ": "
                raise InputError(f"{name}{join}{fault}") from None
    return ClientsSection(**values)


def _read(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"{path} must be a readable TOML file: {fault}") from None
    if not text.strip():
        raise InputError(f"{path} must not be empty: `dufl init` writes an example")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise InputError(f"{path} must be valid TOML: {fault}") from None


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
