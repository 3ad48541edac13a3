"""The overhead of data update per round in Flower's simulation (target: 5 %).

The duration of a round varies by up to a third between equal runs, because training and Ray vary. The
overhead is therefore timed where it occurs: in the client around its training, and in the server around the
messages.
"""

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

from dufl.flower import ClientProfile, DataUpdateMod, DataUpdateStrategy, stream_of
from dufl.flower.single_machine import BACKEND, QUIET
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Game
from dufl.game.plan import equilibrium
from dufl.game.population import Clients

CLIENTS, ROUNDS, EPOCHS, TURNS = 6, 7, 20, 2
VOLUMES = 150, 500  # samples per client: short rounds and longer ones
COSTS = 5e-4, 2.5e-5
EXAMPLE = Path(__file__).absolute().parents[1] / "examples" / "flower-pytorch" / "stock"


def task() -> Any:
    """The network and the digits of the example, imported in Ray's processes too."""
    sys.path.insert(0, str(EXAMPLE))
    return importlib.import_module("app.task")


def train(message: Message, loader: Any) -> Message:
    """The train function of both apps."""
    example = task()
    model = example.Net()
    arrays: Any = message.content["arrays"]
    model.load_state_dict(arrays.to_torch_state_dict())
    began = time.perf_counter()
    example.train(model, loader, EPOCHS, 0.05)
    seconds = time.perf_counter() - began
    metrics = MetricRecord({"num-examples": len(loader.dataset), "seconds": seconds})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def plain_client(volumes: list[int]) -> ClientApp:
    """A client without data update that trains on the same number of samples in every round."""
    app = ClientApp(mods=[timed])

    @app.train()
    def run(message: Message, context: Context) -> Message:
        from torch.utils.data import DataLoader, TensorDataset

        config: Any = message.content["config"]
        images, labels = task().digits(train=True).tensors
        volume = volumes[config["server-round"] - 1]
        samples = TensorDataset(images[:volume], labels[:volume])
        return train(message, DataLoader(samples, batch_size=32, shuffle=True))

    return app


def fresh_client(volume: int, folder: str) -> ClientApp:
    """The same with data update."""

    def profile(context: Context) -> ClientProfile:
        client = int(context.node_config["partition-id"])
        stream = stream_of(task().digits(train=True))(client)
        return ClientProfile(client, Path(folder) / f"client-{client}.sqlite", stream, volume, *COSTS)

    update = DataUpdateMod(profile)
    app = update.register(ClientApp(mods=[timed, update]))

    @app.train()
    def run(message: Message, context: Context) -> Message:
        return train(message, update.loader(32))

    return app


def timed(message: Message, context: Context, call_next: Any) -> Message:
    """A mod that measures the time that a client spends around its training."""
    began = time.perf_counter()
    reply: Message = call_next(message, context)
    if message.metadata.message_type.startswith("train"):
        metrics: Any = reply.content["metrics"]
        metrics["around"] = time.perf_counter() - began - metrics["seconds"]
    return reply


class Timed:
    """A grid that measures the time that messages take."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self.seconds = 0.0

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Any:
        """Send messages through the grid, and add the time they take."""
        began = time.perf_counter()
        replies = list(self._grid.send_and_receive(*args, **kwargs))
        self.seconds += time.perf_counter() - began
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def server(volume: int, durations: list[tuple[float, float, float]], folder: str | None) -> ServerApp:
    """FedAvg, with data update if there is a folder; measures rounds: in total, per client, in the server."""
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        timed_grid, marks = Timed(grid), []

        def evaluate(server_round: int, arrays: ArrayRecord) -> None:
            marks.append((time.perf_counter(), timed_grid.seconds))

        strategy: Any = FedAvg(fraction_evaluate=0.0)
        if folder is not None:
            strategy = DataUpdateStrategy(strategy, game(volume), folder, plan=steady(volume)[0])
        model = ArrayRecord(task().Net().state_dict())
        result = strategy.start(timed_grid, model, num_rounds=ROUNDS, evaluate_fn=evaluate)
        metrics = result.train_metrics_clientapp
        assert len(metrics) == ROUNDS, "some clients failed"
        wall, in_transit = np.diff(marks, axis=0)[1 - ROUNDS :].T  # the first round is left out
        around = [float(metrics[t]["around"]) for t in sorted(metrics)[1:]]
        durations.extend(zip(wall, around, wall - in_transit, strict=True))

    return app


def game(volume: int) -> Game:
    """A game of equal clients."""
    return Game(clients=Clients(float(volume), *COSTS, count=CLIENTS), num_rounds=ROUNDS)


@lru_cache
def steady(volume: int) -> tuple[Announcement, list[int]]:
    """A plan in which clients hold about `volume` samples, and the volume of each client in every round."""
    low, high = 1.0, 5000.0
    for _ in range(40):
        middle = (low + high) / 2
        plan = equilibrium(game(volume), payment=middle, conservation_rate=0.5)
        low, high = (middle, high) if plan.volume.mean() < volume else (low, middle)
    announcement = Announcement(plan.offer, plan.equilibrium.announced_volume)
    return announcement, np.rint(plan.volume[:, 0]).astype(int).tolist()


def measured(volume: int, folder: str | None) -> list[tuple[float, float, float]]:
    """The duration of every round but the first: in total, per client around its training, in the server."""
    durations: list[tuple[float, float, float]] = []
    run_simulation(
        server(volume, durations, folder),
        plain_client(steady(volume)[1]) if folder is None else fresh_client(volume, folder),
        num_supernodes=CLIENTS,
        backend_config=BACKEND,
    )
    return durations


def main() -> None:
    """Measure both apps alternately."""
    os.environ.update(QUIET)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    per_core = CLIENTS / min(os.cpu_count() or 1, CLIENTS)  # clients
    for volume in VOLUMES:
        plain, fresh = [], []
        for _ in range(TURNS):
            plain += measured(volume, None)
            with tempfile.TemporaryDirectory() as folder:
                fresh += measured(volume, folder)
        round, *without = np.median(plain, axis=0)
        whole, *update = np.median(fresh, axis=0)
        client, server = 1000 * (np.array(update) - without)
        added = per_core * client + server
        print(f"Flower simulation, {CLIENTS} clients, about {volume} samples, {EPOCHS} epochs")
        print(f"  round without data update, with it   {round:.3f} s, {whole:.3f} s")
        print(f"  overhead per client                  {client:.1f} ms")
        print(f"  overhead in the server               {server:.1f} ms")
        print(f"  total, with {per_core:g} clients per core       {added:.0f} ms: ", end="")
        print(f"{added / 10 / round:.1f} % of a round (target: 5 %)")


if __name__ == "__main__":
    main()
