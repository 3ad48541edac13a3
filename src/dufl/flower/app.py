"""DUFL's own Flower app: `dufl train`, with clients that are processes or machines of their own.

The configuration is the same TOML file. A client reads only its own part of it: its row of `[clients]`, its
stream and the training settings.
"""

import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp

from dufl.data.client_data import ClientData
from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.experiment.output import FLOWER
from dufl.experiment.run_directory import FREE, RunDirectory
from dufl.experiment.service import Unit
from dufl.experiment.stored_config import flat
from dufl.flower.algorithm_strategy import AlgorithmStrategy, penalty_of
from dufl.flower.audit import Audit
from dufl.flower.client_mod import DataUpdateMod
from dufl.flower.client_store import ClientProfile, client_number, privacy_options
from dufl.flower.constant_offer import constant_offer
from dufl.flower.contribution import Arrays
from dufl.flower.deal import NegotiationOptions
from dufl.flower.messages import from_arrays, round_of, to_arrays
from dufl.flower.monitoring import Observer, json_log
from dufl.flower.run_identity import IfFinished, check_if_finished, finished_error, unfinished
from dufl.flower.run_recorder import OnRecord, RunRecorder
from dufl.flower.server_store import Round
from dufl.flower.service import Budget, Schedule
from dufl.flower.strategy import DataUpdateStrategy
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Game
from dufl.game.voluntary import require_mandatory
from dufl.learning.engine import Engine, make_engine
from dufl.learning.task import Task


class Runtime:
    """The data and the engine of a configuration, loaded once per process."""

    def __init__(self, config: Experiment) -> None:
        self.dataset: Dataset | Recording = config.data.load()
        self.config = config = config.fitted(self.dataset)
        self.data: ClientData = config.data.client_data(self.dataset, config.game, config.training.seed)
        settings = config.training.model_copy(update={"workers": 1})
        self.engine: Engine = make_engine(self.data, settings, config.game.clients.size)


@lru_cache(maxsize=2)
def runtime_of(path: Path) -> Runtime:
    """The runtime of a configuration file."""
    return Runtime(Experiment.from_toml(path))


def client_app(
    locate: Callable[[Context], tuple[Path, Path]], mods: Sequence[Mod] = (), min_others: int | None = None
) -> ClientApp:
    """The client app.

    Args:
        locate: returns, for the context of a node, the path of the configuration and the directory of the
            client's file.
        mods: Flower mods that wrap everything else.
        min_others: of every client; if omitted, `min-others` in the node or run configuration.
    """

    def profile(context: Context) -> ClientProfile:
        path, folder = locate(context)
        options = privacy_options(context) | ({} if min_others is None else {"min_others": min_others})
        return client_profile(runtime_of(path), client_number(context), folder, **options)

    update = DataUpdateMod(profile)
    app = update.register(ClientApp(mods=[*mods, update]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        snapshot, engine = update.snapshot, runtime_of(locate(context)[0]).engine
        arrays = from_arrays(message.content["arrays"])
        indices, labels = snapshot.samples.indices, snapshot.samples.labels
        round, penalty = round_of(message.content), penalty_of(message.content)
        task = Task(client_number(context), round, indices, labels, snapshot.ages, snapshot.ids, penalty)
        tasks = [task] if len(labels) else []
        trained = {name: arrays[name] for name in ("weights", "model_buffers")}
        steps = 0
        for result in engine.train(arrays["weights"], arrays["model_buffers"], tasks):
            trained = {"weights": result.weights, "model_buffers": result.model_buffers}
            steps = result.steps
        metrics = MetricRecord({"num-examples": len(labels), "num-steps": steps})
        return Message(RecordDict({"arrays": to_arrays(trained), "metrics": metrics}), reply_to=message)

    return app


def client_profile(runtime: Runtime, client: int, folder: Path, **others: Any) -> ClientProfile:
    """The profile of a client, from its row of `[clients]`; `others` are other attributes of the profile."""
    config, clients = runtime.config, runtime.config.game.clients
    if client >= clients.size:
        raise InputError.of("partition-id", f"< {clients.size}, the number of clients", client)
    capacity = float(clients.capacity[client])
    return ClientProfile(
        client=client,
        file=folder / f"client-{client}.sqlite",
        stream=runtime.data.stream(client),
        initial_volume=int(min(np.floor(clients.initial_volume[client] + 0.5), np.floor(capacity))),
        collection_cost=float(clients.collection_cost[client]),
        training_cost=float(clients.training_cost[client]),
        initial_staleness=float(clients.initial_staleness[client]),
        capacity=capacity,
        collection_price=float(clients.collection_price[client]),
        training_price=float(clients.training_price[client]),
        discard=config.data.discard,
        seed=config.training.seed,
        **others,
    )


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server.

    Attributes:
        config: the path of the configuration.
        folder: the run directory.
        negotiate: whether the plan is negotiated, or solved from the costs in the configuration.
        timeout: seconds to wait for clients in a phase of messages.
        arrival_timeout: seconds to wait for all clients before the first round.
        log: "text" for Flower's own log, "json" for JSON lines in `log.jsonl` in addition, "json-stderr" for
            JSON lines on stderr instead, or "json-both".
        metrics_port: the port of the metrics for Prometheus; 0 for any free one, None for none.
        metrics_host: the address of the metrics.
        if_finished: what to do if the run in `folder` is finished: "error", or "new" for a new run in
            `folder-2`, `folder-3` and so on.
    """

    config: Path
    folder: Path
    negotiate: bool
    timeout: float = 600.0
    arrival_timeout: float = 600.0
    log: str = "text"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    if_finished: IfFinished = "error"

    def observers(self, folder: Path, budget: float | None) -> list[Observer]:
        """The observers that the settings ask for, of the run in a folder."""
        observers = json_log(self.log, folder)
        if self.metrics_port is not None:
            from dufl.flower.prometheus import PrometheusExporter

            host, port = self.metrics_host, self.metrics_port
            observers.append(PrometheusExporter(folder, port, host, budget=budget))
        return observers


def server_app(
    settings: Callable[[Context], ServerSettings], on_record: OnRecord = lambda _: None
) -> ServerApp:
    """The server app. It writes the run directory of `dufl train`, with `deal.json` and the ledger.

    Args:
        settings: returns the settings for the context of the run.
        on_record: called with the record of every round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = settings(context)
        runtime = runtime_of(chosen.config)
        folder = _folder_of_run(chosen, runtime.config)
        recorder = RunRecorder(runtime.config, runtime.dataset, runtime.data, folder, on_record)
        strategy, arrays = make_strategy(
            runtime,
            folder,
            negotiate=chosen.negotiate,
            on_round_end=recorder.add,
            timeout=chosen.timeout,
            arrival_timeout=chosen.arrival_timeout,
            observers=chosen.observers(folder, runtime.config.service.total_budget),
            if_finished="return",  # it was killed before it wrote its summary
        )
        recorder.begin()
        rounds = runtime.config.game.num_rounds
        result = strategy.start(
            grid, arrays, num_rounds=rounds, timeout=chosen.timeout, evaluate_fn=evaluation(runtime)
        )
        model = from_arrays(result.arrays)
        recorder.finish(runtime.engine.named(model["weights"], model["model_buffers"]))

    return app


def _folder_of_run(chosen: ServerSettings, config: Experiment) -> Path:
    """The folder of the run to begin or to resume."""

    def is_finished(folder: Path) -> bool:
        return RunDirectory(folder, FLOWER).summary is not None

    if chosen.if_finished == "new":
        return unfinished(chosen.folder, is_finished)
    if is_finished(chosen.folder):
        RunDirectory(chosen.folder, FLOWER).check_same(config)
        raise finished_error(chosen.folder)
    return chosen.folder


def make_strategy(
    runtime: Runtime,
    folder: Path,
    *,
    negotiate: bool,
    on_round_end: Callable[[Round], None],
    masked: bool = True,
    timeout: float = 600.0,
    arrival_timeout: float = 600.0,
    max_missed_rounds: int = 3,
    observers: Sequence[Observer] = (),
    if_finished: IfFinished = "error",
) -> tuple[DataUpdateStrategy, ArrayRecord]:
    """The strategy of a configuration, and the initial model."""
    config, offered = runtime.config, constant_offer(runtime.config)
    check_on_flower(config, runtime.dataset)
    weights, model_buffers = runtime.engine.start
    announcement = None
    if negotiate and config.leader.robust:
        raise InputError.of("leader.robust", "left out if the offer is negotiated", config.leader.robust)
    if not negotiate:
        plan = offered.solve_game(_first_window(offered))
        announcement = Announcement(plan.offer, plan.equilibrium.announced_volume, plan.game.trims)
    strategy = DataUpdateStrategy(
        AlgorithmStrategy(config.training, weights, config.game.clients.size),
        offered.game,
        folder,
        plan=announcement,
        negotiation=NegotiationOptions(
            offered.leader.method,
            offered.leader.algorithm1,
            masked,
            commitment_grid=config.service.commitment_grid,
        ),
        timeout=timeout,
        arrival_timeout=arrival_timeout,
        max_missed_rounds=max_missed_rounds,
        audit=make_audit(runtime) if config.service.audit_share else None,
        payment_rule=config.service.payment_rule,
        unit=Unit.parse(config.service.unit),
        total_budget=config.service.total_budget,
        replan_every=config.leader.replan_every,
        max_rounds=config.service.max_rounds,
        on_round_end=on_round_end,
        observers=observers,
        run_config=_bound(config),
        if_finished=if_finished,
    )
    return strategy, to_arrays({"weights": weights, "model_buffers": model_buffers})


def make_audit(runtime: Runtime) -> Audit:
    """The audit of a configuration: on test samples like those that clients can have in a round."""
    data, service = runtime.data, runtime.config.service

    def loss(round: int, arrays: Arrays) -> float:
        which = data.recent_test(round, service.audit_samples)
        return runtime.engine.evaluate(arrays["weights"], arrays["model_buffers"], which).loss

    return Audit(loss, share=service.audit_share)


def check_on_flower(config: Experiment, dataset: Dataset | Recording | None = None) -> None:
    """Raise an error if something is given that a run on Flower does not do."""
    config.leader.check_on_flower()
    require_mandatory(config.game, "on Flower")
    Schedule.of(config.game, config.leader.replan_every, config.service.max_rounds)
    if config.game.horizon == "endless" and isinstance(dataset, Recording):
        rule = "a dataset or a stream of your own with horizon = 'endless': a recording ends"
        raise InputError.of("data.dataset", rule, dataset.name)


def _first_window(config: Experiment) -> Game:
    """The game that the first plan is for, with payments that the budget can pay."""
    game, service = config.game, config.service
    schedule = Schedule.of(game, config.leader.replan_every, service.max_rounds)
    payments = Budget(service.total_budget).payment_range(
        game.payment_range, schedule.to_run(0), 0, Unit.parse(service.unit), fewer=schedule.endless
    )
    return game.replace(horizon="finite", payment_range=payments or game.payment_range)


def _bound(config: Experiment) -> dict[str, Any]:
    """The keys of a configuration that a run on Flower cannot change, besides those of the game."""
    values = flat(tomllib.loads(config.to_toml()))
    return {key: value for key, value in values.items() if key not in FREE and not key.startswith("game.")}


def evaluation(runtime: Runtime) -> Callable[[int, ArrayRecord], MetricRecord]:
    """The server's evaluation of a model."""

    def evaluate(finished: int, arrays: ArrayRecord) -> MetricRecord:
        model, which = from_arrays(arrays), runtime.data.test_range(max(finished - 1, 0))
        score = runtime.engine.evaluate(model["weights"], model["model_buffers"], which)
        return MetricRecord({"accuracy": score.accuracy, "loss": score.loss, **score.metrics})

    return evaluate


def deployed_server(default: Path | None = None) -> ServerApp:
    """The server app of a deployment.

    The run configuration has `config` and `folder`, and optionally `negotiate`, `timeout`, `log`,
    `metrics-port`, `metrics-host` and `if-finished`; see `ServerSettings`. A negative port is none. Paths
    begin at the root, at `~` or at `data`, a directory in the run configuration.

    Args:
        default: the configuration to use if there is none at `config`, such as one in the app's bundle.
    """

    def settings(context: Context) -> ServerSettings:
        config = context.run_config
        port = config.get("metrics-port", -1)
        if type(port) is not int:
            raise InputError.of("metrics-port", "an integer", repr(port))
        return ServerSettings(
            _file(config, "config", default),
            _path(config, "folder"),
            bool(config.get("negotiate", True)),
            float(config.get("timeout", 600.0)),
            log=str(config.get("log", "text")),
            metrics_port=port if port >= 0 else None,
            metrics_host=str(config.get("metrics-host", "127.0.0.1")),
            if_finished=check_if_finished(config.get("if-finished", "error")),
        )

    return server_app(settings)


def deployed_client(mods: Sequence[Mod] = (), default: Path | None = None) -> ClientApp:
    """The client app of a deployment. The configuration of each node has `config` and `folder`.

    In simulation, nodes have no configuration; the run configuration has `client-config` and `client-folder`.
    Both may have `min-others`, `max-questions` and `allow-unmasked`; see `ClientProfile`. Paths begin at the
    root, at `~` or at `data`, a directory in the node or run configuration.

    Args:
        mods: Flower mods that wrap everything else.
        default: the configuration to use if there is none at `client-config`, in simulation only: a node of a
            deployment states its own costs.
    """

    def locate(context: Context) -> tuple[Path, Path]:
        node = {f"client-{name}": value for name, value in context.node_config.items()}
        config = context.run_config | node
        simulated = "num-partitions" in context.node_config  # Flower's simulation sets it
        path = _file(config, "client-config", default if simulated else None)
        return path, _path(config, "client-folder")

    return client_app(locate, mods)


def _file(config: UserConfig, name: str, default: Path | None) -> Path:
    path = _path(config, name)
    return default if default is not None and default.exists() and not path.exists() else path


def _path(config: UserConfig, name: str) -> Path:
    value, data = config.get(name), config.get("client-data", config.get("data"))
    if isinstance(value, str) and value:
        path = Path(_expanded(data) if isinstance(data, str) else "", _expanded(value))
        if path.is_absolute():
            return path
    rule = "a path that begins at /, ~ or `data` in the node or run configuration"
    raise InputError.of(name, rule, repr(value))


def _expanded(path: str) -> str:
    return os.path.expanduser(path)  # unlike Path.expanduser, it keeps a ~ of which there is no home
