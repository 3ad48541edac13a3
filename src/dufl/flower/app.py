"""DUFL's own app on Flower: what `dufl train` does, with clients that are processes or machines of their own.

The configuration is the same TOML file. A client reads from it what it knows of itself alone: its row of
`[clients]`, its stream, how to train.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dufl.data.datasets import Dataset
from dufl.data.simulation import Simulation, places_of
from dufl.errors import InputError
from dufl.experiment.config import Config, load
from dufl.experiment.files import make_directory
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.train import Run, data_fingerprint
from dufl.flower import wire
from dufl.flower.algorithms import AlgorithmStrategy, pull_of
from dufl.flower.client import DataUpdate
from dufl.flower.holding import Person
from dufl.flower.server import Deal, Round, WithDataUpdate, rounds_done
from dufl.game.dynamics import staleness
from dufl.game.parameters import Game
from dufl.game.utility import cost_of_rounds
from dufl.learning.engine import Engine, Named, make_engine
from dufl.learning.federation import Record
from dufl.learning.task import Task

Watch = Callable[[Record], None]


class World:
    """What a configuration says of data and training, loaded once a process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dataset: Dataset = config.data.load()
        seed = config.training.seed
        self.simulation: Simulation = config.data.simulation(self.dataset, config.game, seed)
        settings = config.training.model_copy(update={"workers": 1})
        self.engine: Engine = make_engine(self.dataset, self.simulation, settings, config.game.clients.size)


@lru_cache(maxsize=2)
def world(path: Path) -> World:
    """The world of a configuration file."""
    return World(load(path))


def client_app(where: Callable[[Context], tuple[Path, Path]]) -> ClientApp:
    """The app of the clients.

    Args:
        where: says, from the context of a node, where the configuration is and where the client's file goes.
    """

    def person(context: Context) -> Person:
        path, folder = where(context)
        client = number(context)
        config, simulation = world(path).config, world(path).simulation
        people = config.game.clients
        if client >= people.size:
            raise InputError.of("partition-id", f"< {people.size}, the clients of {path}", client)
        return Person(
            client=client,
            file=folder / f"client-{client}.sqlite",
            stream=simulation.stream(client),
            initial_volume=int(np.floor(people.initial_volume[client] + 0.5)),
            collection_cost=float(people.collection_cost[client]),
            training_cost=float(people.training_cost[client]),
            initial_staleness=float(people.initial_staleness[client]),
            capacity=float(people.capacity[client]),
            discard=config.data.discard,
            seed=config.training.seed,
        )

    update = DataUpdate(person)
    app = update.register(ClientApp(mods=[update]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        held, engine = update.held, world(where(context)[0]).engine
        arrays = wire.from_arrays(message.content["arrays"])
        places, labels = places_of(held.samples), held.samples.labels
        round, pull = wire.round_of(message.content), pull_of(message.content)
        task = Task(number(context), round, places, labels, held.ages, held.ids, pull)
        tasks = [task] if len(labels) else []
        made = {name: arrays[name] for name in ("weights", "buffers")}
        for trained in engine.train(arrays["weights"], arrays["buffers"], tasks):
            made = {"weights": trained.weights, "buffers": trained.buffers}
        metrics = MetricRecord({"num-examples": len(labels)})
        return Message(RecordDict({"arrays": wire.to_arrays(made), "metrics": metrics}), reply_to=message)

    return app


def number(context: Context) -> int:
    """The number of the client at a node."""
    found = context.node_config.get("partition-id")
    if not isinstance(found, int) or found < 0:
        raise InputError.of("partition-id of the node", "the number of its client", repr(found))
    return found


def strategy_of(
    here: World,
    folder: Path,
    *,
    negotiated: bool,
    watch: Callable[[Round], None],
    masked: bool = True,
    patience: int = 3,
) -> tuple[WithDataUpdate, ArrayRecord]:
    """The strategy that a configuration asks for, and the model to begin with."""
    config = here.config
    weights, buffers = here.engine.start
    inner = AlgorithmStrategy(config.training, weights, config.game.clients.size)
    plan = None
    if not negotiated:
        found = config.solve()
        plan = found.payment, found.conservation_rate, found.equilibrium.announced_volume
    strategy = WithDataUpdate(
        inner,
        config.game,
        folder,
        plan=plan,
        leader=config.leader.method,
        algorithm1=config.leader.algorithm1,
        masked=masked,
        patience=patience,
        watch=watch,
    )
    return strategy, wire.to_arrays({"weights": weights, "buffers": buffers})


def evaluation(here: World) -> Callable[[int, ArrayRecord], MetricRecord]:
    """The server's own test of a model."""

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        found = wire.from_arrays(arrays)
        score = here.engine.evaluate(found["weights"], found["buffers"])
        return MetricRecord({"accuracy": score.accuracy, "loss": score.loss})

    return evaluate


def server_app(
    where: Callable[[Context], tuple[Path, Path, bool]], watch: Watch = lambda _: None
) -> ServerApp:
    """The app of the server; the run directory is that of `dufl train`, with deal and ledger beside.

    Args:
        where: says, from the context of the run, where the configuration is, where the run directory goes,
            and whether the plan is negotiated or solved from the costs in the configuration.
        watch: told the record of every round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        path, folder, negotiated = where(context)
        here = world(path)
        books = Books(here, folder, watch)
        strategy, arrays = strategy_of(here, folder, negotiated=negotiated, watch=books.add)
        books.begin(strategy)
        rounds, patience = here.config.game.num_rounds, float(context.run_config.get("timeout", 3600.0))
        result = strategy.start(
            grid, arrays, num_rounds=rounds, timeout=patience, evaluate_fn=evaluation(here)
        )
        found = wire.from_arrays(result.arrays)
        books.finish(here.engine.named(found["weights"], found["buffers"]))

    return app


def deployed_server() -> ServerApp:
    """The server's app of a deployment: `config`, `folder` and `negotiate` are in the run configuration."""

    def where(context: Context) -> tuple[Path, Path, bool]:
        told = context.run_config
        return _path(told, "config"), _path(told, "folder"), bool(told.get("negotiate", True))

    return server_app(where)


def deployed_client() -> ClientApp:
    """The clients' app of a deployment: `config` and `folder` are in the configuration of each node."""
    return client_app(
        lambda context: (_path(context.node_config, "config"), _path(context.node_config, "folder"))
    )


def _path(told: UserConfig, name: str) -> Path:
    found = told.get(name)
    if not isinstance(found, str) or not Path(found).is_absolute():
        raise InputError.of(f"{name} of the node or run", "a whole path", repr(found))
    return Path(found)


class Books:
    """Writes the run directory of a run on Flower."""

    def __init__(self, here: World, folder: Path, watch: Watch = lambda _: None) -> None:
        self._config = here.config
        self._data = data_fingerprint(here.dataset)
        self._place = RunDirectory(folder)
        self._watch = watch
        self._records: list[Record] = []
        self._began = time.perf_counter()
        self._strategy: WithDataUpdate | None = None

    def begin(self, strategy: WithDataUpdate) -> None:
        """Write what is known, or take up the run that is there."""
        self._strategy = strategy
        if not self._place.exists:
            make_directory(self._place.folder)
            self._place.begin(self._config, None, self._data)
            return
        self._place.check_same(self._config)
        self._place.check_data(self._data)
        self._records = self._place.cut(rounds_done(self._place.folder))
        for record in self._records:
            self._watch(record)

    def add(self, round: Round) -> None:
        """A round that is over."""
        game, deal = self._config.game, self._strategy.deal if self._strategy else None
        size = max(game.clients.size, *(claim.client + 1 for claim in round.claims), 1)
        volumes = [0] * size
        for claim in round.claims:
            volumes[claim.client] = claim.volume
        total = sum(volumes)
        age = sum(claim.volume * claim.mean_age for claim in round.claims) / total if total else 1.0
        paid = deal.payment if deal is not None and round.cents else 0.0
        history = [(r.payment, r.total_volume, r.mean_age) for r in self._records] + [(paid, total, age)]
        cost = cost_of_rounds(game, *np.array(history, dtype=np.float64).T)
        now = time.perf_counter()
        record = Record(
            round=round.round,
            accuracy=float(round.metrics.get("accuracy", np.nan)),
            loss=float(round.metrics.get("loss", np.nan)),
            total_volume=total,
            mean_age=age,
            planned_staleness=_planned(game, deal, round.round),
            payment=paid,
            server_cost=cost.total,
            cost_of_payment=float(cost.payment.sum()),
            cost_of_volume=float(cost.volume.sum()),
            cost_of_staleness=float(cost.staleness.sum()),
            classes=max((claim.classes for claim in round.claims), default=0),
            volumes=volumes,
            participants=len(round.claims),
            dropped=round.missing,
            refused={str(client): reason for client, reason in round.refused.items()},
            seconds=now - self._began,
        )
        self._began = now
        self._records.append(record)
        self._place.add(record)
        self._watch(record)

    def finish(self, weights: Named) -> None:
        """The run is over."""
        run = Run(self._config, self._records, weights, self._place.folder)
        self._place.finish(weights, run.summary())


def _planned(game: Game, deal: Deal | None, round: int) -> float | None:
    """The mean age that is planned for a round."""
    if deal is None or deal.first_round:
        return None  # planned again in mid-course
    start = game.clients.initial_mean_staleness
    return float(staleness(deal.announced_volume, deal.conservation_rate, start)[round])
