"""An experiment: a game, data, training and a policy. It can be read from a TOML file.

The file has the keys `policy` and `baseline_payment`, and the sections `[game]`, `[clients]`, `[leader]`,
`[data]`, `[training]` and `[service]`; every key is optional. An unknown key is an error that suggests the
nearest known key. Paths in a file are relative to its directory. Paths in changes are relative to the current
directory.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
import tomli_w
from pydantic import AfterValidator, Field

from dufl.data.client_data import ClientData
from dufl.data.datasets import Dataset
from dufl.data.datasets.recordings import SUFFIXES
from dufl.data.recording import Recording
from dufl.data.streams import BEFORE
from dufl.errors import InputError, shown
from dufl.experiment.keys import KEYS, ROOT, check_keys, split_key
from dufl.experiment.sections import GOALS, ClientsSection, Data, Leader, column
from dufl.experiment.service import Service
from dufl.experiment.toml import Table, parse, read
from dufl.game.clients_file import COLUMNS
from dufl.game.endless import StationaryPlan, solve_endless
from dufl.game.loss import DescribedLaw, PowerLaw
from dufl.game.parameters import Game
from dufl.game.plan import Offer, Plan, solve, with_goal
from dufl.game.population import Clients, Distribution
from dufl.game.robust import check_robust
from dufl.game.search import Progress
from dufl.inputs import Inputs, NonNegative
from dufl.learning.policies import Planned, Policy, check_policy, make_policy
from dufl.learning.settings import Training
from dufl.plugins import Spec, describe

Changes = Mapping[str, Any]
Part = TypeVar("Part")
CLIENTS_FILE = "clients.csv"
_PATHS = (("data", "data_dir"), ("data", "dataset"))


def _policy(spec: Spec) -> Spec:
    if isinstance(spec, Plan):
        return Planned(spec)
    return check_policy(spec)


class Experiment(Inputs):
    """An experiment: a game, its data, the training settings and the data update policy.

    Attributes:
        game: the federation and what its server optimizes.
        clients: the `[clients]` section of a file; derived from the game by default.
        leader: how the policy "dufl" computes the offer.
        data: the samples, how they arrive and how they age.
        training: the model, the algorithm and local training.
        service: how a run on Flower goes on, pays and checks what it pays for.
        policy: determines the payment and what clients conserve and collect: "dufl" (solve the game and
            follow the plan), "static" (never update), another name, a `Plan`, or a plugin; see
            `dufl.learning.policies`.
        baseline_payment: what a policy without a price of its own spends per round, such as "window-5". None
            is the payment of the server's plan; on recorded data such a policy then takes everything for
            nothing.

    >>> experiment = Experiment(game=Game(num_rounds=20), policy="static")
    >>> same = Experiment.from_toml(changes={"game.num_rounds": 20, "policy": "static"})
    >>> same.to_toml() == experiment.to_toml()
    True
    """

    game: Game = Field(default_factory=Game)
    clients: ClientsSection = ClientsSection(file=CLIENTS_FILE)
    leader: Leader = Leader()
    data: Data = Data()
    training: Training = Training()
    service: Service = Service()
    policy: Annotated[Spec, AfterValidator(_policy)] = "dufl"
    baseline_payment: NonNegative | None = None

    def __init__(self, **values: Any) -> None:
        if "clients" not in values:
            game = values.setdefault("game", Game())
            values["clients"] = _described(game.clients)
        super().__init__(**values)

    @classmethod
    def from_toml(cls, path: str | Path | None = None, changes: Changes | None = None) -> "Experiment":
        """Read a TOML file, apply changes and validate the result.

        Args:
            path: the path of the file. Default: the paper's parameters.
            changes: values by key, such as ``{"game.num_rounds": 50}``; the section may be omitted if the
                key is unique.
        """
        if path is None:
            return resolve(change({}, changes or {}))
        path = Path(path)
        table = absolute_paths(parse(read(path), str(path)), path.parent)
        return resolve(change(table, changes or {}), path.parent, str(path))

    def to_toml(self, clients_file: str = CLIENTS_FILE) -> str:
        """The experiment in TOML.

        Clients that were not drawn are stored in `clients_file`. Plugins that cannot be imported are
        described in angle brackets. Such a file can be read, but not used for training.
        """
        named = {n: getattr(self.game, n) for n in Game.model_fields if n not in ("clients", "loss")}
        game = {n: _plain(v) for n, v in named.items() if v is not None}
        if self.game.loss is not None:
            game["loss"] = law_table(self.game.loss)
        if self.clients.file is None:
            clients = {n: _plain(v) for n, v in self.clients if v is not None}
        else:
            clients = {"file": clients_file}
        leader = {n: _plain(v) for n, v in self.leader if v is not None}
        sections = {
            "policy": describe(self.policy),
            **({} if self.baseline_payment is None else {"baseline_payment": self.baseline_payment}),
            "game": game,
            "clients": clients,
            "leader": {n: leader[n] for n in ("method", "competition")} | leader,
            "data": {n: _plain(v) for n, v in self.data if v is not None},
            "training": {n: _plain(v) for n, v in self.training if v or n != "metrics"},
        }
        if self.service != Service():
            sections["service"] = {n: v for n, v in self.service if v is not None}
        return tomli_w.dumps(sections)

    @property
    def total_rounds(self) -> int | None:
        """The number of rounds of a run; None for a service that ends when it is stopped."""
        return self.service.max_rounds if self.game.horizon == "endless" else self.game.num_rounds

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed. Fields of `training` may be given directly.

        >>> Experiment().replace(policy="static", seed=3).training.seed
        3
        """
        own = {name: changes.pop(name) for name in list(changes) if name in type(self).model_fields}
        if changes:
            own["training"] = own.get("training", self.training).replace(**changes)
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        if "game" in own and "clients" not in own:
            del kept["clients"]
        return type(self)(**(kept | own))

    def with_seed(self, number: int) -> Self:
        """A copy with other seeds of training and of drawn clients: those of the experiment plus a number."""
        if not number:
            return self
        training = self.training.replace(seed=self.training.seed + number)
        if self.clients.file is not None:
            return self.replace(training=training)
        clients = self.clients.model_copy(update={"seed": self.clients.seed + number})
        game = self.game.replace(clients=clients.clients(Path()))
        return self.replace(game=game, clients=clients, training=training)

    def fitted(self, dataset: Dataset | Recording) -> Self:
        """The experiment with initial volumes that clients have: on recorded data, at most their warm-up."""
        if not isinstance(dataset, Recording):
            return self
        data = self.data.replay(dataset, self.game, self.training.seed)
        clients = self.game.clients
        held = np.array([len(data.collectable(k, BEFORE)) for k in range(clients.size)], np.float64)
        volume = np.minimum(clients.initial_volume, held)
        if np.array_equal(volume, clients.initial_volume):
            return self
        return self.replace(game=self.game.replace(clients=clients.holding(volume)))

    def solve(self, progress: Progress = lambda _: None) -> Plan:
        """Solve the game and return the server's plan."""
        if self.leader.goals:
            return self.for_goal().solve(progress)
        return solve(
            self.game,
            method=self.leader.method,
            competition=self.leader.competition,
            algorithm1=self.leader.algorithm1,
            robust=self.leader.robust,
            progress=progress,
        )

    def make_policy(self, data: ClientData | None = None) -> Policy:
        """The policy of a run. Imports plugins, and solves the game if its plan is needed.

        Args:
            data: the data of the federation; a policy may depend on what is recorded.
        """
        return make_policy(
            *(self.policy, self.game, self.solve, self.training.seed, data),
            competition=self.leader.competition,
            algorithm1=self.leader.algorithm1,
            baseline_payment=self.baseline_payment,
        )

    def solve_endless(self) -> StationaryPlan:
        """Solve the game as a service without a last round and return the server's plan."""
        if self.leader.method != "stackelberg":
            rule = "'stackelberg' with horizon = 'endless'"
            raise InputError.of("leader.method", rule, self.leader.method, text=repr(self.leader.method))
        return solve_endless(self.game, competition=self.leader.competition)

    def solve_game(self, game: Game) -> Plan:
        """Solve another game in the same way, such as what remains of this one."""
        return self.model_copy(update={"game": game}).solve()

    def planned_once(self) -> Self:
        """A copy whose rounds are not planned again, and that has no goal."""
        leader = self.leader.replace(replan_every=None, **dict.fromkeys(GOALS))
        return self if leader == self.leader else self.replace(leader=leader)

    def check_replanning(self) -> None:
        """Raise an error if `leader.replan_every` is given and a training cannot be planned again."""
        if self.leader.replan_every is not None:
            from dufl.learning.replanning import check_replanning

            check_replanning(self.leader.replan_every, self.policy, self.game)

    def for_goal(self, goals: Mapping[str, float] | None = None) -> Self:
        """A copy whose game has the plan for a goal: at most one of "budget", "accuracy" and "point_worth".

        By default the goal of the leader. The copy's leader has none.
        """
        goals = goals or self.leader.goals
        if not goals:
            return self
        if len(goals) > 1:
            raise InputError.of(" and ".join(goals), "given one at a time", len(goals), text="both")
        if self.leader.robust:
            check_robust(self.game, self.leader.method, tuple(goals))
        robust = self.leader.robust is not None
        game = with_goal(self.game, *next(iter(goals.items())), self.leader.competition, robust)
        leader = self.leader.replace(**dict.fromkeys(GOALS)) if self.leader.goals else self.leader
        return self.model_copy(update={"game": game, "leader": leader})

    def fixed(self, payment: float | None = None, conservation_rate: float | None = None) -> Self:
        """A copy with the payment or the conservation rate fixed in the plan."""
        ranges = {
            "payment_range": payment,
            "conservation_range": conservation_rate,
        }
        given = {name: (value, value) for name, value in ranges.items() if value is not None}
        if not given:
            return self
        Offer(payment=payment or 0.0, conservation_rate=conservation_rate or 0.0)  # validates both
        return self.model_copy(update={"game": self.game.replace(**given)})


def as_experiment(experiment: "Experiment | Game | None", **parts: Any) -> Experiment:
    """The experiment, or an experiment made of a game and other parts."""
    given = {name: part for name, part in parts.items() if part is not None}
    if isinstance(experiment, Experiment):
        return experiment.replace(**given) if given else experiment
    return Experiment(**({} if experiment is None else {"game": experiment}), **given)


def resolve(
    table: Table, folder: Path = Path(), name: str = "", clients: Clients | None = None
) -> Experiment:
    """Validate a TOML table and return its experiment.

    Args:
        table: the sections, as parsed from TOML.
        folder: the directory of the CSV file of clients.
        name: the name of the file, for messages.
        clients: the content of the CSV file, if it has already been read.
    """
    check_keys(table)
    sections: dict[str, Table] = {
        section: dict(table.get(section, {})) for section in KEYS if section != ROOT
    }
    described = _in_section(name, "clients", lambda: _clients_section(sections["clients"]))
    all_clients = _in_section(name, "clients", lambda: described.clients(folder, clients))
    game = _in_section(name, "game", lambda: Game(clients=all_clients, **sections["game"]))
    leader = _in_section(name, "leader", lambda: Leader(**sections["leader"]))
    if leader.competition == "nash" and all_clients.size < 2:
        raise InputError.of("leader.competition", "'mean-field' with a single client", "'nash' and 1 client")
    data = _in_section(name, "data", lambda: Data(**sections["data"]))
    training = _in_section(name, "training", lambda: Training(**sections["training"]))
    service = _in_section(name, "service", lambda: Service(**sections["service"]))
    root = {key: table[key] for key in KEYS[ROOT] if key in table}
    parts = {"leader": leader, "data": data, "training": training, "service": service}
    return Experiment(game=game, clients=described, **parts, **root)


def change(table: Table, changes: Changes) -> Table:
    """Apply changes to a table."""
    for key, value in changes.items():
        section, name = split_key(key)
        if section == ROOT:
            table[name] = value
            continue
        part = table.setdefault(section, {})
        if not isinstance(part, dict):
            raise InputError.of(section, "a section", part, text=shown(part))
        part[name] = _absolute_path(section, name, value, Path())
    return table


def absolute_paths(table: Table, folder: Path) -> Table:
    """Make relative paths in the table of a file absolute."""
    for section, key in _PATHS:
        part = table.get(section)
        if isinstance(part, dict) and key in part:
            part[key] = _absolute_path(section, key, part[key], folder)
    return table


def _absolute_path(section: str, key: str, value: Any, folder: Path) -> Any:
    is_path = (section, key) in _PATHS and isinstance(value, str)
    if is_path and value and (key == "data_dir" or value.endswith(SUFFIXES)):
        return str(folder.absolute() / Path(value).expanduser())
    return value


def _described(clients: Clients) -> ClientsSection:
    """The `[clients]` section for some clients: their distributions, or a CSV file."""
    if clients.recipe is None:
        return ClientsSection(file=CLIENTS_FILE)
    given = {name: _listed(value) for name, value in clients.recipe.items()}
    return ClientsSection(**{name: value for name, value in given.items() if value is not None})


def _listed(value: Any) -> Any:
    """A column as a TOML value; infinite capacity is None."""
    plain = value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value
    return None if isinstance(plain, float) and math.isinf(plain) else plain


def _clients_section(values: Table) -> ClientsSection:
    for name in COLUMNS:
        if name in values:
            try:
                column(values[name])
            except InputError as error:
                raise error.within(name) if error.field else error.renamed(name) from None
    return ClientsSection(**values)


def _in_section(source: str, name: str, make: Callable[[], Part]) -> Part:
    try:
        return make()
    except InputError as error:
        raise error.within(name, source) from None


def law_table(law: Any) -> Any:
    """A loss law as a TOML table; a user's own is described in angle brackets, and is never imported."""
    if isinstance(law, DescribedLaw):
        return law.description
    if not isinstance(law, PowerLaw):
        return f"<{describe(law).strip('<>')}>"
    table = {name: v for name, v in law.model_dump(exclude_none=True).items() if v != ()}
    return {
        name: [list(row) for row in v] if name == "covariance" else _plain(v) for name, v in table.items()
    }


def _plain(value: Any) -> Any:
    """A value in a form that TOML can represent."""
    if isinstance(value, Distribution):
        return value.model_dump()
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, Dataset | Recording):
        return f"<{type(value).__name__} {value.name!r}>"
    return value if isinstance(value, bool | int | float | list) else describe(value)
