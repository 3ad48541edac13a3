"""What data update costs a round on Flower's simulation, against the same app without it (target: 5 %)."""

import importlib
import logging
import os
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from dufl.flower import DataUpdate, Person, WithDataUpdate, stream_of
from dufl.flower.simulate import BACKEND, QUIET
from dufl.game.negotiation import Question
from dufl.game.parameters import Game
from dufl.game.plan import equilibrium
from dufl.game.population import Clients

CLIENTS, ROUNDS, VOLUME, EPOCHS, TURNS = 6, 7, 500, 20, 2
COSTS = 5e-4, 2.5e-5
EXAMPLE = Path(__file__).absolute().parents[1] / "examples" / "flower-pytorch" / "stock"


def task() -> Any:
    """The network and the digits of the example; imported where it is used, also in Ray's processes."""
    sys.path.insert(0, str(EXAMPLE))
    return importlib.import_module("app.task")


def train(message: Message, loader: Any) -> Message:
    """What both apps do."""
    found = task()
    model = found.Net()
    arrays: Any = message.content["arrays"]
    model.load_state_dict(arrays.to_torch_state_dict())
    began = time.perf_counter()
    found.train(model, loader, EPOCHS, 0.05)
    seconds = time.perf_counter() - began
    metrics = MetricRecord({"num-examples": len(loader.dataset), "seconds": seconds})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def plain_client(volumes: list[int]) -> ClientApp:
    """A client without data update that trains on as many samples in every round."""
    app = ClientApp()

    @app.train()
    def run(message: Message, context: Context) -> Message:
        from torch.utils.data import DataLoader, TensorDataset

        config: Any = message.content["config"]
        pictures, labels = task().digits(train=True).tensors
        some = volumes[config["server-round"] - 1]
        mine = TensorDataset(pictures[:some], labels[:some])
        return train(message, DataLoader(mine, batch_size=32, shuffle=True))

    return app


def fresh_client(folder: str) -> ClientApp:
    """The same with data update."""

    def person(context: Context) -> Person:
        client = int(context.node_config["partition-id"])
        stream = stream_of(task().digits(train=True))(client)
        return Person(client, Path(folder) / f"client-{client}.sqlite", stream, VOLUME, *COSTS)

    update = DataUpdate(person)
    app = update.register(ClientApp(mods=[update]))

    @app.train()
    def run(message: Message, context: Context) -> Message:
        return train(message, update.loader(32))

    return app


def server(times: list[float], training: list[float], folder: str | None) -> ServerApp:
    """FedAvg, with data update if there is a folder; notes when rounds end, and how long each trained."""
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        grid.pull_interval = 0.01  # between two looks for replies; by default 0.1 s, which is too coarse here

        def evaluate(server_round: int, arrays: ArrayRecord) -> None:
            times.append(time.perf_counter())

        strategy: Any = FedAvg(fraction_evaluate=0.0)
        if folder is not None:
            strategy = WithDataUpdate(strategy, game(), folder, plan=steady()[0])
        model = ArrayRecord(task().Net().state_dict())
        result = strategy.start(grid, model, num_rounds=ROUNDS, evaluate_fn=evaluate)
        found = result.train_metrics_clientapp
        assert len(found) == ROUNDS, "some clients failed"
        at_once = min(os.cpu_count() or 1, CLIENTS)
        training.extend(CLIENTS / at_once * float(found[t]["seconds"]) for t in sorted(found))

    return app


def game() -> Game:
    """Clients that are all alike."""
    return Game(clients=Clients(float(VOLUME), *COSTS, count=CLIENTS), num_rounds=ROUNDS)


@lru_cache
def steady() -> tuple[Question, list[int]]:
    """An offer at which clients hold about `VOLUME` samples, and what each of them holds in every round."""
    low, high = 1.0, 5000.0
    for _ in range(40):
        middle = (low + high) / 2
        plan = equilibrium(game(), payment=middle, conservation_rate=0.5)
        low, high = (middle, high) if plan.volume.mean() < VOLUME else (low, middle)
    offer = Question(plan.payment, 0.5, plan.equilibrium.announced_volume)
    return offer, np.rint(plan.volume[:, 0]).astype(int).tolist()


def measured(folder: str | None) -> tuple[float, float]:
    """The median round, and the median of what a round takes besides training; the first is left out."""
    times: list[float] = []
    training: list[float] = []
    run_simulation(
        server(times, training, folder),
        plain_client(steady()[1]) if folder is None else fresh_client(folder),
        num_supernodes=CLIENTS,
        backend_config=BACKEND,
    )
    rounds = np.diff(times)[1 - ROUNDS :]
    return float(np.median(rounds)), float(np.median(rounds - training[1:]))


def main() -> None:
    """Measure both, in turns. Training itself varies by more than all the rest, so it is left out."""
    os.environ.update(QUIET)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    plain, fresh = [], []
    for _ in range(TURNS):
        plain.append(measured(None))
        with tempfile.TemporaryDirectory() as folder:
            fresh.append(measured(folder))
    (round, one), (_, two) = np.min(plain, axis=0), np.min(fresh, axis=0)
    print(f"Flower simulation, {CLIENTS} clients, about {VOLUME} samples, {EPOCHS} epochs")
    print(f"  a round without data update     {round:.3f} s")
    print(f"    of it besides training        {one:.3f} s")
    print(f"    the same with data update     {two:.3f} s: {100 * (two - one) / round:+.1f} % (target 5)")


if __name__ == "__main__":
    main()
