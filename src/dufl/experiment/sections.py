"""The other parts of an experiment: `Data`, `Leader`, and the `[clients]` section of a file."""

from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.client_data import ClientData, StreamFactory
from dufl.data.datasets import (
    Columns,
    Dataset,
    is_recording_source,
    load_dataset,
    load_recording,
    own_dataset,
)
from dufl.data.discard.discarding import DISCARD_RULES, Discard, is_known
from dufl.data.recording import Recording, Task
from dufl.data.replay import Deal, Normalize, Order, Periods, Replay, divide
from dufl.data.samples import Pool
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
from dufl.game.robustness import Robust
from dufl.inputs import Count, Inputs, NonNegative, Number, Positive, Seed, Share, must_be
from dufl.plugins import Spec, check_spec, describe, is_description, is_import_path, make_plugin, resolve


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
    """The section `[clients]`: the number of clients, their volumes and costs, or a CSV file."""

    count: Count = 15
    initial_volume: Column = 1000.0
    collection_cost: Column = PAPER_COLLECTION_COST
    training_cost: Column = PAPER_TRAINING_COST
    initial_staleness: Column = 1.0
    capacity: Column = None
    collection_price: Column = 0.0
    training_price: Column = 0.0
    reservation: Column = 0.0
    seed: Seed = 0
    file: str | None = None

    def clients(self, folder: Path, stored: Clients | None = None) -> Clients:
        """The clients. `file` is read relative to `folder`, unless its content is given as `stored`."""
        given = self.model_fields_set - {"file"}
        if self.file is None:
            columns = {n: getattr(self, n) for n in COLUMNS if getattr(self, n) is not None}
            return Clients.draw(self.count, self.seed, **columns)
        if given:
            raise InputError.of(", ".join(sorted(given)), "left out when file is given", self.file)
        return stored or Clients.from_csv(folder / self.file)


GOALS = ("budget", "accuracy", "point_worth")


def _replan_every(value: object) -> object:
    if value is None or value == "drift" or (type(value) is int and value >= 1):
        return value
    raise InputError.of("replan_every", "an integer >= 1, or 'drift'", value, text=shown(value))


class Leader(Algorithm1Options):
    """How the server's offer is chosen; the section `[leader]` of a file.

    Attributes:
        method: "stackelberg" anticipates the clients' response; "algorithm1" is the paper's loop, whose
            options are the other attributes.
        competition: "mean-field", or "nash": every client accounts for its own influence on the total.
        replan_every: after how many rounds of a training the remaining ones are planned again, or "drift":
            when the measured loss leaves the predicted interval. None plans once. It needs a calibrated law.
            On Flower, after how many rounds server and clients negotiate again; an integer, without a law.
        robust: plan under the uncertainty of the loss law: for its "expected" cost, or for its "worst" case.
        budget: plan for a goal; see `dufl.solve`. Likewise `accuracy` and `point_worth`, one of them at most.
            They need a calibrated law.
    """

    method: Method = "stackelberg"
    competition: Competition = "mean-field"
    replan_every: Annotated[Any, AfterValidator(_replan_every)] = None
    robust: Robust | None = None
    budget: NonNegative | None = None
    accuracy: Annotated[Number, must_be("in (0, 1)", lambda v: 0 < v < 1)] | None = None
    point_worth: Positive | None = None

    def model_post_init(self, _: Any) -> None:
        """Check that there is one goal at most."""
        if len(self.goals) > 1:
            raise InputError.of(" and ".join(self.goals), "given one at a time", len(self.goals), text="both")

    @property
    def goals(self) -> dict[str, float]:
        """The goal, by its name; empty if there is none."""
        named = {name: getattr(self, name) for name in GOALS}
        return {name: value for name, value in named.items() if value is not None}

    def check_on_flower(self) -> None:
        """Raise an error if something is given that a run on Flower does not do."""
        if self.replan_every == "drift":
            rule = "an integer on Flower, where no loss law is updated"
            raise InputError.of("leader.replan_every", rule, self.replan_every, text="'drift'")
        for name, value in self.goals.items():
            rule = "left out on Flower: fix the offer that `dufl plan` finds"
            raise InputError.of(f"leader.{name}", rule, value)

    @property
    def algorithm1(self) -> Algorithm1Options:
        """The options of Algorithm 1."""
        return Algorithm1Options(**{name: getattr(self, name) for name in Algorithm1Options.model_fields})


def _dataset(value: object) -> object:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str | Dataset) or callable(value) or is_recording_source(value):
        return value
    rule = "a name, a path, an import path, a function, a Dataset, a Recording or a table"
    raise InputError.of("dataset", rule, value, text=shown(value))


_discard = partial(check_spec, "discard", known=DISCARD_RULES)


def _stream(spec: Spec | None) -> Spec | None:
    return None if spec is None else check_spec("stream", spec, ())


def _features(value: object) -> object:
    if value is not None and not (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)):
        raise InputError.of("features", "a list of column names", shown(value))
    return None if value is None else list(value)


def _class_order(value: object) -> object:
    listed = isinstance(value, list) and all(type(item) is int for item in value)
    if not listed and value not in ("label", "client"):
        raise InputError.of("class_order", "'label', 'client' or a list of all classes", shown(value))
    return value


def _warm_up(value: float) -> float:
    if not 0 < value < 1:
        raise InputError.of("warm_up", "in (0, 1)", value)
    return value


SOURCE = ("dataset", "data_dir", "label", "time", "client", "features", "task")  # what `Data.load` reads


class Data(Inputs):
    """The samples, how they arrive and how they age; the section `[data]` of a file.

    Attributes:
        dataset: the name of a built-in dataset, the path of a file, an import path, a function that returns
            a dataset or its four arrays, a `Dataset`, a `Recording` or a table such as a data frame.
        kind: "recorded" if the samples have times and are used when they were recorded, "simulated" if they
            arrive and age artificially; "auto" is recorded if the dataset has times.
        data_dir: the directory of a built-in dataset's files, if not `$DUFL_DATA` or the cache directory.
        noise_scale: see `Ageing`.
        noise_growth: see `Ageing`.
        initial_classes: the number of classes at the start; by default it depends on σ.
        arrival_until: the fraction of the rounds by which every class has arrived.
        class_order: the order in which classes arrive: "label", "client" (one order per client), or a list.
        dirichlet_alpha: the concentration of classes per client; see `SimulatedStream`. None is uniform.
        discard: the samples that a buffer discards: "uniform", "oldest", "reservoir", "class-balanced", or a
            custom rule: a function of (born, count, generator) that returns the positions to discard.
        stream: a custom stream: a class or function of (samples, client, seed) that returns an object whose
            `collect(count, round)` returns indices of training samples, or `Samples` from outside. Default:
            the simulated stream, or what the client recorded.
        label: the column of a table with the labels.
        time: the column of a table with the times.
        client: the column of a table with the clients; None if the clients are not known.
        features: the columns of a table with the features; None for all other columns with numbers.
        task: "classification", or "regression" if labels are numbers.
        warm_up: recorded data: the share of the recorded time that is known before round 0.
        periods: recorded data: whether rounds have the same "time" or the same "count" of samples.
        collect: recorded data: the samples of a period that a client collects if it needs fewer than it
            has: the "newest", or some at "random".
        deal: recorded data: how samples are dealt to clients if the clients are not known; see `Replay`.
        normalize: recorded data: how features are standardized; see `Replay`.

    >>> Data("digits").load().describe()
    'digits: 1,437 train and 360 test samples of shape (1, 8, 8), 10 classes'
    """

    dataset: Annotated[Spec, BeforeValidator(_dataset)] = "digits"
    data_dir: str | None = None
    noise_scale: NonNegative = 0.5
    noise_growth: Positive = 1.0
    initial_classes: Count | None = None
    arrival_until: Share = 0.5
    class_order: Annotated[Any, AfterValidator(_class_order)] = "label"
    dirichlet_alpha: Positive | None = None
    discard: Annotated[Spec, AfterValidator(_discard)] = "uniform"
    stream: Annotated[Spec | None, AfterValidator(_stream)] = None
    kind: Literal["auto", "simulated", "recorded"] = "auto"
    label: str = "label"
    time: str = "time"
    client: str | None = None
    features: Annotated[list[str] | None, BeforeValidator(_features)] = None
    task: Task = "classification"
    warm_up: Annotated[Number, AfterValidator(_warm_up)] = 0.1
    periods: Periods = "time"
    collect: Order = "newest"
    deal: Deal = "even"
    normalize: Normalize = "first"

    def __init__(self, dataset: Spec = "digits", **values: Any) -> None:
        super().__init__(dataset=dataset, **values)

    def load(self) -> Dataset | Recording:
        """Load the dataset."""
        try:
            loaded = self._load()
        except InputError as error:
            field = error.field or ""
            if not field.startswith("columns."):
                raise
            raise error.renamed(field.replace("columns.", "data.", 1)) from None
        recorded = isinstance(loaded, Recording)
        kind, times = ("recorded", "times") if recorded else ("simulated", "no times")
        if self.kind not in ("auto", kind):
            rule = f"{kind!r} or 'auto', because {loaded.name} has {times}"
            raise InputError.of("data.kind", rule, self.kind, text=repr(self.kind))
        if self.task == "regression" and not (isinstance(loaded, Recording) and loaded.task == self.task):
            rule = f"'classification', because the labels of {loaded.name} are classes"
            raise InputError.of("data.task", rule, self.task, text=repr(self.task))
        return loaded

    def _load(self) -> Dataset | Recording:
        spec = self.dataset
        if isinstance(spec, Dataset | Recording):
            return spec
        features = None if self.features is None else tuple(self.features)
        columns = Columns(self.label, self.time, self.client, features)
        if isinstance(spec, str) and not is_import_path(spec) and not is_description(spec):
            return load_dataset(spec, self.data_dir, columns, self.task)
        made = spec if is_recording_source(spec) else make_plugin("dataset", spec)
        if is_recording_source(made):
            return load_recording(made, columns, self.task)
        return own_dataset(describe(spec), made)

    def client_data(self, dataset: Dataset | Recording, game: Game, seed: int) -> ClientData:
        """The streams and buffers of a federation. Imports plugins."""
        if isinstance(dataset, Recording):
            return self.replay(dataset, game, seed)
        return self.simulation(dataset, game, seed)

    def simulation(self, dataset: Dataset, game: Game, seed: int) -> Simulation:
        """Simulated streams and buffers, for the σ and T of the game. Imports plugins."""
        return Simulation(
            dataset.train if self.stream is None else Pool(dataset.train),
            self.arrival(dataset, game),
            self.ageing(game),
            seed,
            self.dirichlet_alpha,
            *self._plugins(),
            dataset.test,
        )

    def replay(self, recording: Recording, game: Game, seed: int) -> Replay:
        """Recorded streams and buffers, for the T and the clients of the game. Imports plugins."""
        timeline = divide(recording, game.num_rounds, self.warm_up, self.periods)
        return Replay(
            recording,
            timeline,
            game.clients.size,
            seed,
            self.collect,
            self.deal,
            self.dirichlet_alpha,
            self.normalize,
            *self._plugins(),
        )

    def _plugins(self) -> tuple[Discard, StreamFactory | None]:
        discard = self.discard if is_known(self.discard) else resolve("discard", self.discard)
        return discard, None if self.stream is None else resolve("stream", self.stream)

    def arrival(self, dataset: Dataset, game: Game) -> Arrival:
        """When the classes of a dataset arrive."""
        number = dataset.num_classes
        if self.initial_classes is not None and self.initial_classes > number:
            rule = f"<= the {number} classes of {dataset.name}"
            raise InputError.of("data.initial_classes", rule, self.initial_classes)
        if isinstance(self.class_order, list) and sorted(self.class_order) != list(range(number)):
            rule = f"every class of {dataset.name} from 0 to {number - 1} once"
            raise InputError.of("data.class_order", rule, self.class_order)
        return Arrival(
            num_classes=number,
            time_sensitivity=game.time_sensitivity,
            num_rounds=game.num_rounds,
            until=self.arrival_until,
            initial=self.initial_classes,
            order=self.class_order,
        )

    def ageing(self, game: Game) -> Ageing:
        """How stored samples age."""
        return Ageing(
            time_sensitivity=game.time_sensitivity,
            num_rounds=game.num_rounds,
            noise_scale=self.noise_scale,
            growth=self.noise_growth,
        )
