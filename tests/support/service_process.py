"""A service on Flower as a process of its own, with all of its clients, which may be killed at any moment.

    python service_process.py FOLDER ROUNDS BUDGET

It goes on where it was killed. Which clients are there depends on the round alone, and so do lost replies.
"""

import logging
import random
import sys
from pathlib import Path

from flwr.app import Message

from dufl.flower import nodes
from dufl.flower.in_process import Answer
from dufl.flower.server_store import Round, ServerStore
from flower_service import ServiceGrid, ServiceRun, make_app, service_game

CLIENTS, MOST, EVERY = 4, 8, 5


def present(round: int) -> list[int]:
    """The clients that are connected in a round."""
    if round < EVERY:
        return list(range(CLIENTS))
    chosen = random.Random(round // EVERY)
    return sorted(chosen.sample(range(MOST), chosen.randint(3, 6)))


def connect(grid: ServiceGrid, round: int) -> None:
    for client in set(grid.nodes.values()) - set(present(round)):
        grid.leave(client)
    for client in set(present(round)) - set(grid.nodes.values()):
        grid.move(client, 9000 + 100 * (round // EVERY) + client)


def serve(folder: Path, rounds: int, budget: float) -> None:
    """Run the service to its end, or until it is killed."""
    nodes.POLL = 0.01
    logging.getLogger("flwr").setLevel(logging.ERROR)
    lost, done = random.Random(), ServerStore(folder / "server").rounds_done

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        return None if done and lost.random() < 0.01 else reply

    def on_round_end(round: Round) -> None:
        nonlocal done
        done = round.round + 1
        connect(grid, done)

    grid = ServiceGrid(make_app(), CLIENTS, meddle, {"folder": str(folder / "clients"), "min-others": 0})
    connect(grid, done)
    ServiceRun(
        folder,
        service_game(window=10, clients=CLIENTS),
        grid=grid,
        on_round_end=on_round_end,
        max_rounds=rounds,
        total_budget=budget,
        arrival_timeout=0.5 if done else 60.0,
    ).start()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
