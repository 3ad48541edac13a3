"""The values of the form as changes to an experiment, and the equivalent `dufl plan` command."""

import math
import re
import shlex
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.game.parameters import Competition, Participation
from dufl.game.plan import Method
from dufl.game.population import LogNormal, Uniform
from dufl.game.prediction import has_unit, law_of, weight_of_a_point
from dufl.web.goal import GOALS, Goal
from dufl.web.source import Source, file_name, toml_value

SAVED_FILE = "dufl.toml"  # name of the TOML file that the page downloads
MAX_SIZE = 10_000_000  # clients times rounds

Kind = Literal["constant", "uniform", "log-uniform", "log-normal", "from file", "no limit"]
FROM_FILE: Kind = "from file"
NO_LIMIT: Kind = "no limit"  # of a capacity
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != NO_LIMIT)
ROOM = (1000.0, 3000.0)  # the range of capacities with which a limit starts
PARAMETERS: dict[Kind, tuple[str, ...]] = {
    "constant": ("value",),
    "uniform": ("low", "high"),
    "log-uniform": ("low", "high"),
    "log-normal": ("median", "spread"),
    FROM_FILE: (),
    NO_LIMIT: (),
}

_KEYS = {  # field of the form: key of the experiment
    **{
        name: f"game.{name}"
        for name in ("time_sensitivity", "payment_weight", "sampling_noise", "num_rounds", "trim_start")
    },
    "participation": "game.participation",
    **{name: f"clients.{name}" for name in ("count", "seed")},
    **{name: f"clients.{name}" for name in ("initial_volume", "collection_cost", "training_cost")},
    **{name: f"clients.{name}" for name in ("capacity", "collection_price", "training_price", "reservation")},
    **{name: f"leader.{name}" for name in ("method", "search", "damping", "competition")},
    "max_payment": "game.payment_range",
}


@dataclass(frozen=True)
class ColumnValue:
    """A cost or volume of all clients: a kind of distribution and its parameters, named in `PARAMETERS`.

    The form cannot edit a list with one entry per client. It shows the kind "from file"; `first` and `second`
    are the smallest and the largest entry. A capacity can have "no limit"; it is infinite.
    """

    kind: Kind
    first: float
    second: float = 0.0

    @classmethod
    def of(cls, value: Any) -> "ColumnValue":
        """The form's value for a key of `[clients]`.

        >>> ColumnValue.of(Uniform(low=1e-4, high=1e-3))
        ColumnValue(kind='uniform', first=0.0001, second=0.001)
        """
        if isinstance(value, Uniform):
            return cls("uniform" if value.scale == "linear" else "log-uniform", value.low, value.high)
        if isinstance(value, LogNormal):
            return cls("log-normal", value.median, value.spread)
        if value is None or value == math.inf:
            return cls(NO_LIMIT, math.inf)
        if isinstance(value, list):
            return cls(FROM_FILE, float(min(value)), float(max(value)))
        return cls("constant", float(value))

    def to_toml(self) -> float | dict[str, float | str]:
        """The value of the key in `[clients]`.

        >>> ColumnValue("log-uniform", 1e-4, 1e-3).to_toml()
        {'low': 0.0001, 'high': 0.001, 'scale': 'log'}
        """
        assert self.kind != FROM_FILE, "a list cannot be edited"
        if self.kind in ("constant", NO_LIMIT):
            return self.first
        named = dict(zip(PARAMETERS[self.kind], (self.first, self.second), strict=True))
        return {**named, "scale": "log"} if self.kind == "log-uniform" else {**named}

    def converted(self, kind: Kind) -> "ColumnValue":
        """A distribution of another kind with about the same range."""
        if kind == NO_LIMIT:
            return ColumnValue(kind, math.inf)
        low, high = self._range()
        if kind == "constant":
            return ColumnValue(kind, _round((low + high) / 2))
        if kind == "log-normal":
            median = math.sqrt(low * high) if low > 0 else (low + high) / 2
            return ColumnValue(
                kind,
                _round(median if median > 0 else 1.0),
                _round(math.log(high / low) / 4) if low > 0 else 0.5,
            )
        if kind == "log-uniform" and low <= 0:
            low = high / 10 if high > 0 else 1.0
        return ColumnValue(kind, _round(low), _round(max(low, high)))

    def _range(self) -> tuple[float, float]:
        if self.kind == NO_LIMIT:
            return ROOM
        if self.kind == "constant":
            low, high = sorted((self.first / 2, self.first * 1.5))  # a reservation may be negative
            return low, high
        if self.kind == "log-normal":
            return self.first * math.exp(-2 * self.second), self.first * math.exp(2 * self.second)
        return self.first, self.second


@dataclass(frozen=True)
class FormValues:
    """The values of the form, named as in the TOML file.

    `max_payment` is the upper end of `payment_range`. `payment` and `conservation_rate` are None unless the
    user fixed them. `trim_start` has no field on the page.
    """

    time_sensitivity: float
    payment_weight: float
    sampling_noise: float
    max_payment: float
    num_rounds: int
    count: int
    seed: int
    initial_volume: ColumnValue
    collection_cost: ColumnValue
    training_cost: ColumnValue
    capacity: ColumnValue
    collection_price: ColumnValue
    training_price: ColumnValue
    reservation: ColumnValue
    participation: Participation
    method: Method
    search: Literal["bayesian", "direct"]
    damping: float
    competition: Competition
    trim_start: bool | None = None
    goal: Goal | None = None
    payment: float | None = None
    conservation_rate: float | None = None

    @classmethod
    def of(cls, experiment: Experiment) -> "FormValues":
        """The values of an experiment."""
        values = {}
        for name, key in _KEYS.items():
            section, _, attribute = key.partition(".")
            values[name] = getattr(getattr(experiment, section), attribute)
        for name in COLUMNS:
            values[name] = ColumnValue.of(values[name])
        high, goal = experiment.game.payment_range[1], Goal.of(experiment.leader)
        return cls(**values | {"max_payment": high, "goal": goal})


COLUMNS = tuple(field.name for field in fields(FormValues) if field.type is ColumnValue)


@dataclass(frozen=True)
class Request:
    """The experiment to plan: a source and the values of the form."""

    source: Source
    values: FormValues

    def experiment(self) -> Experiment:
        """The experiment with all changes, checked; the `field` of an `InputError` is a field of the form."""
        values = self.values
        try:
            self._check_size()
            experiment = self.source.experiment(self.changes())
            if values.goal is not None:
                law_of(experiment.game, values.goal.name)
            return experiment.fixed(values.payment, values.conservation_rate)
        except InputError as error:
            raise _for_form(error, self.source) from None

    def changes(self) -> dict[str, Any]:
        """What differs from the source: dotted keys and their values."""
        initial, from_csv = initial_values(self.source), self.source.clients_file is not None
        changes: dict[str, Any] = {}
        for name, key in _KEYS.items():
            value = getattr(self.values, name)
            if value != getattr(initial, name) and not (from_csv and key.startswith("clients.")):
                changes[key] = value.to_toml() if isinstance(value, ColumnValue) else value
        if "game.payment_range" in changes:
            low = _initial_experiment(self.source).game.payment_range[0]
            changes["game.payment_range"] = [low, self.values.max_payment]
        if self.values.goal != initial.goal:
            changes |= {f"leader.{goal.name}": None for goal in (initial.goal,) if goal}
            changes |= {f"leader.{goal.name}": goal.value for goal in (self.values.goal,) if goal}
        return changes

    def without_goal(self) -> "Request":
        """The game in which the goal's plan is compared with others: the same weights and first buffers.

        See `dufl.game.plan.with_goal`.
        """
        values, goal = self.values, self.values.goal
        if goal is None:
            return self
        changes: dict[str, Any] = {"goal": None}
        if goal.name == "point_worth":
            changes["payment_weight"] = weight_of_a_point(self.experiment().game, goal.value)
        elif goal.name == "budget" and (goal.value == 0 or self.experiment().leader.robust):
            changes["payment_weight"] = 0.0
        trims = goal.name != "point_worth" and min(goal.value, values.max_payment) > 0
        if trims and values.trim_start is None:
            changes["trim_start"] = True
        return replace(self, values=replace(values, **changes))

    def command(self) -> str:
        """The `dufl plan` command that gives the same plan."""
        source, values = self.source, self.values
        words = ["dufl", "plan"]
        if self._needs_saved_file:
            words.append(SAVED_FILE)
        else:
            words += [source.name] if source.name else []
            goals = [f"leader.{name}" for name in GOALS]
            changes = {key: value for key, value in self.changes().items() if key not in goals}
            if source.clients_file is not None and source.replaces_clients:
                changes = {"clients.file": source.clients_file.name} | changes
            for key, value in changes.items():
                words += ["--set", f"{key}={_word(value)}"]
            if values.goal is not None and values.goal != initial_values(source).goal:
                words += [values.goal.option, repr(values.goal.value)]
        if values.payment is not None:
            words += ["--payment", repr(values.payment)]
        if values.conservation_rate is not None:
            words += ["--conservation-rate", repr(values.conservation_rate)]
        return shlex.join(words)

    def files(self) -> list[str]:
        """The names of the files that the command reads."""
        source = self.source
        toml = SAVED_FILE if self._needs_saved_file else source.name
        csv = source.clients_file.name if source.clients_file else ""
        return [file_name(path) for path in (toml, csv) if path]

    @property
    def _needs_saved_file(self) -> bool:
        """Whether the file has keys that the page removed; no option does that."""
        is_removed = self.values.goal is None and initial_values(self.source).goal is not None
        return is_removed or self.source.needs_saved_file

    def _check_size(self) -> None:
        source, rounds = self.source, self.values.num_rounds
        count = source.clients_file.clients.size if source.clients_file else self.values.count
        if count * rounds > MAX_SIZE:
            raise InputError.of(
                "clients.count",
                f"at most {MAX_SIZE:,} / num_rounds in the explorer",
                count,
                text=f"{count:,} with {rounds:,} rounds",
                advice="`dufl plan` has no such limit",
            )


def initial_values(source: Source) -> FormValues:
    """The values of the form before any change."""
    return FormValues.of(_initial_experiment(source))


def is_calibrated(source: Source) -> bool:
    """Whether the loss law of a source has a unit, so that there can be a goal."""
    return has_unit(_initial_experiment(source).game.loss)


@lru_cache(maxsize=8)
def _initial_experiment(source: Source) -> Experiment:
    return source.experiment()


def _for_form(error: InputError, source: Source) -> InputError:
    """The error with the field of the form to show it at; the field is empty if there is none."""
    section, dot, key = error.field.partition(".")
    shown = error.renamed(key if dot else section)
    matching = [name for name, full in _KEYS.items() if f"{error.field}.".startswith(f"{full}.")]
    if section == "clients" and (key == "file" or (source.clients_file and key != "count")):
        matching = ["clients_file"]
    if (key or section) in GOALS:
        matching = ["goal"]
    shown.field = next(iter(matching), "")
    return shown


def _word(value: Any) -> str:
    """A value for `--set`; a simple text needs no quotes there."""
    simple = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value)
    return str(value) if simple else toml_value(value)


def _round(value: float) -> float:
    return float(f"{value:.3g}")
