"""The sections of the file that are not a room's own inputs: `[clients]`, `[leader]` and `[data]`."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import DiscardName
from dufl.data.datasets import Dataset, load_dataset, own_dataset
from dufl.data.simulation import Simulation
from dufl.errors import InputError, shown
from dufl.game.clients_file import COLUMNS
from dufl.game.leader import Algorithm1Options
from dufl.game.parameters import Competition, Game
from dufl.game.plan import Method
from dufl.game.population import (
    PAPER_COLLECTION_COST,
    PAPER_TRAINING_COST,
    Clients,
    Distribution,
    LogNormal,
    Uniform,
)
from dufl.inputs import Count, Inputs, NonNegative, Positive, Seed, Share
from dufl.learning.choices import is_path, make_choice


def column(value: object) -> float | list[float] | Distribution:
    """A number, a list of numbers or a distribution."""
    if isinstance(value, Distribution):
        return value
    if isinstance(value, dict):
        return LogNormal(**value) if "median" in value else Uniform(**value)
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers):
        rule = "a number, a list of numbers, {low=, high=} or {median=, spread=}"
        raise InputError.of("", rule, value, text=shown(value))
    return value  # type: ignore[return-value]


Column = Annotated[Any, BeforeValidator(column)]


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

    def clients(self, folder: Path, people: Clients | None = None) -> Clients:
        """The clients; a relative `file` is looked for in `folder`, unless it has been read as `people`."""
        given = self.model_fields_set - {"file"}
        if self.file is None:
            columns = {n: getattr(self, n) for n in COLUMNS if getattr(self, n) is not None}
            return Clients.draw(self.count, self.seed, **columns)
        if given:
            raise InputError.of(", ".join(sorted(given)), "left out when file is given", self.file)
        return people or Clients.from_csv(folder / self.file)


class LeaderSection(Algorithm1Options):
    """`[leader]`: who chooses payment and conservation rate, and against which competition."""

    method: Method = "stackelberg"
    competition: Competition = "mean-field"

    @property
    def algorithm1(self) -> Algorithm1Options:
        """The part that concerns Algorithm 1."""
        return Algorithm1Options(**{name: getattr(self, name) for name in Algorithm1Options.model_fields})


def _class_order(value: object) -> object:
    listed = isinstance(value, list) and all(type(item) is int for item in value)
    if not listed and value not in ("label", "client"):
        raise InputError.of("class_order", "'label', 'client' or a list of all classes", shown(value))
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
        dirichlet_alpha: how unevenly classes are spread over clients; see `SimulatedStream`. None is even.
        discard: which samples a buffer discards: uniform or oldest.
    """

    dataset: str = "digits"
    data_dir: str | None = None
    noise_scale: NonNegative = 0.5
    noise_growth: Positive = 1.0
    initial_classes: Count | None = None
    arrival_until: Share = 0.5
    class_order: Annotated[Any, AfterValidator(_class_order)] = "label"
    dirichlet_alpha: Positive | None = None
    discard: DiscardName = "uniform"

    def load(self) -> Dataset:
        """The dataset."""
        if is_path(self.dataset):
            return own_dataset(self.dataset, make_choice("dataset", self.dataset))
        return load_dataset(self.dataset, self.data_dir)

    def simulation(self, dataset: Dataset, game: Game, seed: int) -> Simulation:
        """What clients collect when, and how it looks later, under the σ and T of a game."""
        sigma, rounds, number = game.time_sensitivity, game.num_rounds, dataset.num_classes
        if self.initial_classes is not None and self.initial_classes > number:
            rule = f"<= the {number} classes of {dataset.name}"
            raise InputError.of("data.initial_classes", rule, self.initial_classes)
        if isinstance(self.class_order, list) and sorted(self.class_order) != list(range(number)):
            rule = f"every class of {dataset.name} from 0 to {number - 1} once"
            raise InputError.of("data.class_order", rule, self.class_order)
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
        return Simulation(dataset.train, arrival, ageing, seed, self.dirichlet_alpha, self.discard)
