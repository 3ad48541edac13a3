"""What can be changed on the page, as changes to a configuration; and the command that plans the same."""

import shlex
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal

from dufl.errors import InputError
from dufl.experiment.config import Config
from dufl.experiment.planning import pinned
from dufl.game.parameters import Competition
from dufl.game.plan import Method
from dufl.web.source import Source, file_name
from dufl.web.spread import LISTED, Spread

SAVED = "dufl.toml"  # the name of the file that the page saves
LARGEST = 10_000_000  # clients times rounds

_KEYS = {
    "time_sensitivity": "game",
    "payment_weight": "game",
    "sampling_noise": "game",
    "num_rounds": "game",
    "count": "clients",
    "seed": "clients",
    "initial_volume": "clients",
    "collection_cost": "clients",
    "training_cost": "clients",
    "method": "leader",
    "search": "leader",
    "damping": "leader",
    "competition": "leader",
}


@dataclass(frozen=True)
class Choices:
    """The values of the fields, named as in the TOML file.

    `largest_payment` is the upper end of `payment_range`; `payment` and `conservation_rate` are pinned
    unless they are None.
    """

    time_sensitivity: float
    payment_weight: float
    sampling_noise: float
    largest_payment: float
    num_rounds: int
    count: int
    seed: int
    initial_volume: Spread
    collection_cost: Spread
    training_cost: Spread
    method: Method
    search: Literal["bayesian", "direct"]
    damping: float
    competition: Competition
    payment: float | None = None
    conservation_rate: float | None = None

    @classmethod
    def of(cls, config: Config) -> "Choices":
        """The values of a configuration."""
        sections = {"game": config.game, "clients": config.clients, "leader": config.leader}
        values = {key: getattr(sections[section], key) for key, section in _KEYS.items()}
        for key in ("initial_volume", "collection_cost", "training_cost"):
            values[key] = Spread.of(values[key])
        return cls(**values, largest_payment=config.game.payment_range[1])

    @property
    def unpinned(self) -> "Choices":
        """The same with nothing pinned."""
        return replace(self, payment=None, conservation_rate=None)


@dataclass(frozen=True)
class Question:
    """What the page is asked: a configuration and what was changed in it."""

    source: Source
    choices: Choices

    def config(self) -> Config:
        """The configuration with the changes and pins; an `InputError` has the name of the page's field."""
        choices = self.choices
        try:
            _check_size(self)
            config = self.source.config(self.changes())
            return pinned(config, choices.payment, choices.conservation_rate)
        except InputError as error:
            raise _beside_its_field(error, self.source) from None

    def changes(self) -> tuple[str, ...]:
        """What differs from the source, as `section.key=value`."""
        before = beginning(self.source)
        found = []
        for key, section in _KEYS.items():
            value = getattr(self.choices, key)
            taken = section == "clients" and self.source.people is not None
            if value != getattr(before, key) and not taken:
                found.append(f"{section}.{key}={_toml(value)}")
        if self.choices.largest_payment != before.largest_payment:
            low = _base(self.source).game.payment_range[0]
            found.append(f"game.payment_range=[{low!r}, {self.choices.largest_payment!r}]")
        return tuple(found)

    def command(self) -> str:
        """The `dufl plan` that plans the same."""
        source, choices = self.source, self.choices
        words = ["dufl", "plan"]
        if source.beyond_a_change:
            words.append(SAVED)
        else:
            words += [source.name] if source.name else []
            changes = self.changes()
            if source.people is not None and source.instead:
                changes = (f"clients.file={source.people.name}", *changes)
            words += [word for change in changes for word in ("--set", change)]
        if choices.payment is not None:
            words += ["--payment", repr(choices.payment)]
        if choices.conservation_rate is not None:
            words += ["--conservation-rate", repr(choices.conservation_rate)]
        return shlex.join(words)

    def files(self) -> list[str]:
        """The files that the command needs, by name."""
        source = self.source
        toml = SAVED if source.beyond_a_change else source.name
        return [file_name(name) for name in (toml, source.people.name if source.people else "") if name]


def beginning(source: Source) -> Choices:
    """The values that a source comes with."""
    return Choices.of(_base(source))


@lru_cache(maxsize=8)
def _base(source: Source) -> Config:
    return source.config()


def _check_size(question: Question) -> None:
    people, choices = question.source.people, question.choices
    count = choices.count if people is None else people.clients.size
    if count * choices.num_rounds > LARGEST:
        raise InputError.of(
            "clients.count",
            f"at most {LARGEST:,} divided by num_rounds on this page",
            count,
            text=f"{count:,} times {choices.num_rounds:,}",
            advice="`dufl plan` has no such limit",
        )


def _beside_its_field(error: InputError, source: Source) -> InputError:
    """The error under the name of the page's field that it belongs to; empty if no field does."""
    section, _, key = error.field.rpartition(".")
    if section == "clients" and source.people is not None:
        return error.renamed("people")
    key = {"payment_range": "largest_payment", "file": "people"}.get(key, key)
    shown = error.renamed(key)
    shown.field = key if key in {field.name for field in fields(Choices)} | {"people"} else ""
    return shown


def _toml(value: float | int | str | Spread) -> str:
    if isinstance(value, Spread):
        assert value.kind != LISTED, "a list is never a change"
        return value.to_toml()
    return value if isinstance(value, str) else repr(value)
