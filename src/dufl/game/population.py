"""The clients of a federation: the initial volume and the costs of each.

A population consists of vectors over clients. They come from numbers, lists, seeded distributions
or a CSV file, and are validated together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.game.clients_file import COLUMNS, parse_columns, read_columns, write_columns
from dufl.inputs import LARGEST, MOST, Inputs, NonNegative, Number, Positive

Vector = npt.NDArray[np.float64]
Values = float | Sequence[float] | Vector
MOST_CLIENTS = 10_000_000

_RULES: dict[str, tuple[str, Callable[[Vector], Any]]] = {
    "initial_volume": (">= 0", lambda v: v >= 0),
    "collection_cost": ("> 0", lambda v: v > 0),
    "training_cost": (">= 0", lambda v: v >= 0),
    "initial_staleness": (">= 1", lambda v: v >= 1),
    "capacity": ("> 0", lambda v: v > 0),
    "collection_price": (">= 0", lambda v: v >= 0),
    "training_price": (">= 0", lambda v: v >= 0),
    "reservation": ("a number", lambda v: v == v),
}


class Uniform(Inputs):
    """A draw per client from [low, high]; `scale = "log"` makes its logarithm uniform instead."""

    low: Number
    high: Number
    scale: Literal["linear", "log"] = "linear"

    def model_post_init(self, _: Any) -> None:
        """Check the bounds against each other."""
        if self.low > self.high:
            raise InputError.of("low", "<= high", f"low {self.low:g} and high {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise InputError.of("low", '> 0 with scale = "log"', f"{self.low:g}")

    def draw(self, generator: np.random.Generator, count: int) -> Vector:
        """One value for each of `count` clients."""
        if self.scale == "log":
            return np.exp(generator.uniform(math.log(self.low), math.log(self.high), count))
        return generator.uniform(self.low, self.high, count)


class LogNormal(Inputs):
    """A draw per client around `median`, whose logarithm has standard deviation `spread`."""

    median: Positive
    spread: NonNegative

    def draw(self, generator: np.random.Generator, count: int) -> Vector:
        """One value for each of `count` clients."""
        with np.errstate(over="ignore"):  # infinite values are refused by the checks
            return self.median * np.exp(self.spread * generator.standard_normal(count))


Distribution = Uniform | LogNormal
SMALLEST_VOLUME = 1e-100  # less counts as nothing: prices and losses are divided by it
PAPER_COLLECTION_COST = Uniform(low=1e-4, high=1e-3)
PAPER_TRAINING_COST = Uniform(low=5e-6, high=5e-5)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Clients:
    """N clients: initial volume D_k(0), collection cost α_k and training cost β_k of each.

    A number holds for every client, a sequence has one entry per client.

    Attributes:
        initial_volume: D_k(0), samples held before round 0; less than 1e-100 is 0.
        collection_cost: α_k, money per squared sample collected in a round.
        training_cost: β_k, money per squared sample trained on in a round.
        initial_staleness: S_k(0); 1 at the start, more when planning again during training.
        capacity: C_k, the largest number of samples in the buffer; infinite if there is no limit.
        collection_price: the linear part of the cost of collection, money per sample.
        training_price: the linear part of the cost of training, money per sample held in a round.
        reservation: the utility below which the client stays away, if participation is voluntary.
        multiplicity: the number of similar clients that each entry represents; 1 except in a compressed
            population.
        recipe: the arguments of `Clients.draw`, if the clients were drawn; None otherwise.

    >>> Clients([100, 200], collection_cost=1e-3, training_cost=1e-5).size
    2
    """

    initial_volume: Vector
    collection_cost: Vector
    training_cost: Vector
    initial_staleness: Vector
    capacity: Vector
    collection_price: Vector
    training_price: Vector
    reservation: Vector
    multiplicity: Vector
    recipe: Mapping[str, Any] | None

    def __init__(
        self,
        initial_volume: Values,
        collection_cost: Values,
        training_cost: Values,
        initial_staleness: Values = 1.0,
        capacity: Values = math.inf,
        collection_price: Values = 0.0,
        training_price: Values = 0.0,
        reservation: Values = 0.0,
        *,
        count: int | None = None,
        multiplicity: Values = 1.0,
        allow_empty: bool = False,
    ) -> None:
        given = (
            *(initial_volume, collection_cost, training_cost, initial_staleness, capacity),
            *(collection_price, training_price, reservation),
        )
        columns = {name: _vector(name, v) for name, v in zip(COLUMNS, given, strict=True)}
        held = columns["initial_volume"]
        columns["initial_volume"] = np.where((held > 0) & (held < SMALLEST_VOLUME), 0.0, held)
        columns["multiplicity"] = _vector("multiplicity", multiplicity)
        sizes = [v.size for v in columns.values()]
        size = count if count is not None else max(sizes)
        if min(size, *sizes) < 1:
            raise InputError.of("the number of clients", ">= 1", min(size, *sizes))
        if size > MOST_CLIENTS:
            raise InputError.of("the number of clients", f"{MOST_CLIENTS:,} at most", size)
        for name, values in columns.items():
            object.__setattr__(self, name, _spread(name, values, size))
        object.__setattr__(self, "recipe", None)
        for name in COLUMNS:
            _check(name, getattr(self, name))
        if not allow_empty and not self.initial_volume.any():
            raise InputError.of(
                "initial_volume",
                "> 0 for at least one client",
                "0 for all",
                advice="with no data at all there is nothing to train on in round 0",
            )

    @classmethod
    def draw(
        cls,
        count: int = 15,
        seed: int = 0,
        *,
        initial_volume: Values | Distribution = 1000.0,
        collection_cost: Values | Distribution = PAPER_COLLECTION_COST,
        training_cost: Values | Distribution = PAPER_TRAINING_COST,
        initial_staleness: Values | Distribution = 1.0,
        capacity: Values | Distribution = math.inf,
        collection_price: Values | Distribution = 0.0,
        training_price: Values | Distribution = 0.0,
        reservation: Values | Distribution = 0.0,
    ) -> "Clients":
        """Clients drawn from distributions; by default the paper's.

        One generator draws the columns one after the other: collection costs, training costs,
        initial volumes, initial staleness, capacities, prices of collection and training, reservations.
        """
        if not 1 <= count <= MOST_CLIENTS:
            raise InputError.of("count", f"from 1 to {MOST_CLIENTS:,}", count)
        generator = np.random.default_rng(seed)

        def column(values: Values | Distribution) -> Values:
            return values.draw(generator, count) if isinstance(values, Distribution) else values

        collecting, training = column(collection_cost), column(training_cost)
        columns = [column(initial_volume), collecting, training]
        others = (initial_staleness, capacity, collection_price, training_price, reservation)
        clients = cls(*columns, *(column(values) for values in others), count=count)
        given = (initial_volume, collection_cost, training_cost, *others)
        recipe = {"count": count, "seed": seed, **dict(zip(COLUMNS, given, strict=True))}
        object.__setattr__(clients, "recipe", recipe)
        return clients

    def redraw(self, seed: int) -> "Clients":
        """Clients drawn from the same distributions with another seed."""
        if self.recipe is None:
            raise InputError("clients must be drawn by Clients.draw to be drawn again", field="clients")
        return Clients.draw(**{**self.recipe, "seed": seed})

    def holding(self, initial_volume: Values) -> "Clients":
        """The same clients with other initial volumes.

        >>> Clients.draw(2, seed=0).holding([30.0, 50.0]).initial_volume.tolist()
        [30.0, 50.0]
        """
        if self.recipe is not None and not isinstance(self.recipe["initial_volume"], Distribution):
            volumes = np.asarray(initial_volume, np.float64).tolist()
            return Clients.draw(**{**self.recipe, "initial_volume": volumes})
        others = {name: getattr(self, name) for name in (*COLUMNS, "multiplicity")}
        return Clients(**{**others, "initial_volume": initial_volume})

    @classmethod
    def from_csv(cls, path: str | Path) -> "Clients":
        """Clients from a CSV file with one line per client and the columns named as in `COLUMNS`."""
        return cls(**read_columns(Path(path)))

    @classmethod
    def parse_csv(cls, content: bytes, name: str) -> "Clients":
        """Clients from the content of a CSV file with this name."""
        return cls(**parse_columns(content, name))

    def to_csv(self) -> str:
        """The clients as the text of a CSV file that `from_csv` reads back exactly."""
        return write_columns({name: getattr(self, name).tolist() for name in COLUMNS})

    def __repr__(self) -> str:
        return f"Clients(size={self.size})"

    @property
    def size(self) -> int:
        """The number of entries: clients, or types in a compressed population."""
        return int(self.initial_volume.size)

    @cached_property
    def num_clients(self) -> float:
        """N, the number of clients that the entries represent."""
        return float(self.multiplicity.sum())

    @cached_property
    def initial_total(self) -> float:
        """φ(0), the samples held by all clients before round 0."""
        return float((self.multiplicity * self.initial_volume).sum())

    @cached_property
    def initial_mean_staleness(self) -> float:
        """The mean staleness of all samples in round 0, weighted by volume."""
        held = self.multiplicity * self.initial_volume
        return float((held * self.initial_staleness).sum() / held.sum())

    def take(self, which: slice | npt.NDArray[np.intp]) -> "Clients":
        """Some of the clients, without checking them again."""
        return self._unchecked({name: getattr(self, name)[which] for name in (*COLUMNS, "multiplicity")})

    def weighted(self, multiplicity: Vector) -> "Clients":
        """The same clients with other multiplicities, without checking them again."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return self._unchecked({**columns, "multiplicity": multiplicity})

    @staticmethod
    def _unchecked(columns: Mapping[str, Vector]) -> "Clients":
        made = object.__new__(Clients)
        for name, given in columns.items():
            values = np.ascontiguousarray(given)
            values.flags.writeable = False
            object.__setattr__(made, name, values)
        object.__setattr__(made, "recipe", None)
        return made


def _vector(name: str, values: Values) -> Vector:
    try:
        return np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):
        raise InputError.of(name, "a number or a list of numbers", f"{values!r:.80}") from None


def _spread(name: str, values: Vector, size: int) -> Vector:
    if values.ndim != 1 or values.size not in (1, size):
        raise InputError.of(name, f"one number or a list of {size}, one per client", values.size)
    spread = np.array(np.broadcast_to(values, size))
    spread.flags.writeable = False
    return spread


def _check(name: str, values: Vector) -> None:
    sign, holds = _RULES[name]
    finite = np.isfinite(values) if name != "capacity" else ~np.isnan(values)
    largest = float(MOST) if name == "initial_staleness" else LARGEST  # a number of rounds
    smallest = 1 / LARGEST if name == "collection_cost" else 0.0  # prices are divided by it
    least = -largest if name == "reservation" else smallest
    sized = (values >= least) & ((values <= largest) | np.isinf(values))
    for rule, fine in (
        ("a finite number" if name != "capacity" else "a number", finite),
        (sign, holds(values)),
        (f"from {least:g} to {largest:g}", sized),
    ):
        if not fine.all():
            k = int(np.argmin(fine))
            raise InputError.of(name, rule, f"{values[k]:g} for client {k}")
