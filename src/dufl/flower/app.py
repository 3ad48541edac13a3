"""DUFL's own app on Flower: what `dufl train` does, with clients that are processes or machines of their own.

The configuration is the same TOML file. A client reads from it what it knows of itself alone: its row of
`[clients]`, its stream, how to train.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp

from dufl.data.datasets import Dataset
from dufl.data.simulation import Simulation
from dufl.errors import InputError
from dufl.experiment.config import Config, load
from dufl.flower import messages
from dufl.flower.algorithms import AlgorithmStrategy, penalty_of
from dufl.flower.client import DataUpdateMod
from dufl.flower.client_store import ClientProfile
from dufl.flower.deal import NegotiationOptions
from dufl.flower.run_recorder import RunRecorder, Watch
from dufl.flower.server import DataUpdateStrategy, Round
from dufl.game.negotiation import Question
from dufl.learning.engine import Engine, make_engine
from dufl.learning.task import Task


class Runtime:
    """What a configuration says of data and training, loaded once a process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dataset: Dataset = config.data.load()
        seed = config.training.seed
        self.simulation: Simulation = config.data.simulation(self.dataset, config.game, seed)
        settings = config.training.model_copy(update={"workers": 1})
        self.engine: Engine = make_engine(self.dataset, self.simulation, settings, config.game.clients.size)


@lru_cache(maxsize=2)
def world(path: Path) -> Runtime:
    """The world of a configuration file."""
    return Runtime(load(path))


def client_app(where: Callable[[Context], tuple[Path, Path]], mods: Sequence[Mod] = ()) -> ClientApp:
    """The app of the clients.

    Args:
        where: says, from the context of a node, where the configuration is and where the client's file goes.
        mods: of Flower, around everything else.
    """

    def person(context: Context) -> ClientProfile:
        path, folder = where(context)
        client = number(context)
        config, simulation = world(path).config, world(path).simulation
        people = config.game.clients
        if client >= people.size:
            raise InputError.of("partition-id", f"< {people.size}, the clients of {path}", client)
        return ClientProfile(
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

    update = DataUpdateMod(person)
    app = update.register(ClientApp(mods=[*mods, update]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        held, engine = update.snapshot, world(where(context)[0]).engine
        arrays = messages.from_arrays(message.content["arrays"])
        indices, labels = held.samples.indices, held.samples.labels
        round, penalty = messages.round_of(message.content), penalty_of(message.content)
        task = Task(number(context), round, indices, labels, held.ages, held.ids, penalty)
        tasks = [task] if len(labels) else []
        made = {name: arrays[name] for name in ("weights", "model_buffers")}
        for trained in engine.train(arrays["weights"], arrays["model_buffers"], tasks):
            made = {"weights": trained.weights, "model_buffers": trained.model_buffers}
        metrics = MetricRecord({"num-examples": len(labels)})
        return Message(RecordDict({"arrays": messages.to_arrays(made), "metrics": metrics}), reply_to=message)

    return app


def number(context: Context) -> int:
    """The number of the client at a node."""
    found = context.node_config.get("partition-id")
    if not isinstance(found, int) or found < 0:
        raise InputError.of("partition-id of the node", "the number of its client", repr(found))
    return found


def strategy_of(
    here: Runtime,
    folder: Path,
    *,
    negotiated: bool,
    watch: Callable[[Round], None],
    masked: bool = True,
    timeout: float = 600.0,
    arrival: float = 600.0,
    patience: int = 3,
) -> tuple[DataUpdateStrategy, ArrayRecord]:
    """The strategy that a configuration asks for, and the model to begin with."""
    config = here.config
    weights, model_buffers = here.engine.start
    inner = AlgorithmStrategy(config.training, weights, config.game.clients.size)
    plan = None
    if not negotiated:
        found = config.solve()
        plan = Question(found.payment, found.conservation_rate, found.equilibrium.announced_volume)
    strategy = DataUpdateStrategy(
        inner,
        config.game,
        folder,
        plan=plan,
        how=NegotiationOptions(config.leader.method, config.leader.algorithm1, masked),
        timeout=timeout,
        arrival=arrival,
        patience=patience,
        watch=watch,
    )
    return strategy, messages.to_arrays({"weights": weights, "model_buffers": model_buffers})


def evaluation(here: Runtime) -> Callable[[int, ArrayRecord], MetricRecord]:
    """The server's own test of a model."""

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        found = messages.from_arrays(arrays)
        score = here.engine.evaluate(found["weights"], found["model_buffers"])
        return MetricRecord({"accuracy": score.accuracy, "loss": score.loss})

    return evaluate


@dataclass(frozen=True)
class ServerSettings:
    """What the server is told.

    Attributes:
        config: where the configuration is.
        folder: where the run directory goes.
        negotiated: whether the plan is negotiated, or solved from the costs in the configuration.
        timeout: seconds that a phase of messages waits for its clients.
        arrival: seconds to wait for all clients before the first round.
    """

    config: Path
    folder: Path
    negotiated: bool
    timeout: float = 600.0
    arrival: float = 600.0


def server_app(order: Callable[[Context], ServerSettings], watch: Watch = lambda _: None) -> ServerApp:
    """The app of the server; the run directory is that of `dufl train`, with deal and ledger beside.

    Args:
        order: says, from the context of the run, what is to be done.
        watch: told the record of every round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        told = order(context)
        here = world(told.config)
        books = RunRecorder(here.config, here.dataset, told.folder, watch)
        strategy, arrays = strategy_of(
            here,
            told.folder,
            negotiated=told.negotiated,
            watch=books.add,
            timeout=told.timeout,
            arrival=told.arrival,
        )
        books.begin(strategy)
        rounds = here.config.game.num_rounds
        result = strategy.start(
            grid, arrays, num_rounds=rounds, timeout=told.timeout, evaluate_fn=evaluation(here)
        )
        found = messages.from_arrays(result.arrays)
        books.finish(here.engine.named(found["weights"], found["model_buffers"]))

    return app


def deployed_server() -> ServerApp:
    """The server's app of a deployment: `config`, `folder` and `negotiate` are in the run configuration."""

    def order(context: Context) -> ServerSettings:
        told = context.run_config
        how = bool(told.get("negotiate", True)), float(told.get("timeout", 600.0))
        return ServerSettings(_path(told, "config"), _path(told, "folder"), *how)

    return server_app(order)


def deployed_client(mods: Sequence[Mod] = ()) -> ClientApp:
    """The clients' app of a deployment: `config` and `folder` are in the configuration of each node.

    In simulation, where nodes have none, they are `client-config` and `client-folder` of the run.

    Args:
        mods: of Flower, around everything else.
    """

    def where(context: Context) -> tuple[Path, Path]:
        node = {f"client-{name}": value for name, value in context.node_config.items()}
        told = context.run_config | node
        return _path(told, "client-config"), _path(told, "client-folder")

    return client_app(where, mods)


def _path(told: UserConfig, name: str) -> Path:
    found = told.get(name)
    if not isinstance(found, str) or not Path(found).is_absolute():
        raise InputError.of(f"{name} of the node or run", "a whole path", repr(found))
    return Path(found)
