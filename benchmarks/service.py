"""Measure how long a round of a service on Flower takes early and late, and what it keeps in memory.

The service runs in this process, with a model of three numbers: what is measured is the overhead of DUFL.
"""

import gc
import logging
import statistics
import sys
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from dufl.flower.server_store import Round
from flower_service import ServiceRun, service_game

ROUNDS = 2010
AROUND = 9  # rounds before and after the one that is measured


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    times, memory = [time.perf_counter()], dict[int, int]()

    def on_round_end(round: Round) -> None:
        run.rounds.clear()  # the benchmark itself keeps nothing
        times.append(time.perf_counter())
        if tracemalloc.is_tracing() and round.round + 1 in (ROUNDS // 2, ROUNDS):
            gc.collect()
            memory[round.round + 1] = tracemalloc.get_traced_memory()[0]

    with TemporaryDirectory() as folder:
        game = service_game(window=100, clients=4)
        run = ServiceRun(Path(folder), game, on_round_end=on_round_end, max_rounds=ROUNDS)
        if "--memory" in sys.argv:
            tracemalloc.start()
        run.start()
        seconds = [after - before for before, after in pairwise(times)]
        print("A service on Flower in one process, 4 clients, windows of 100 rounds")
        for at in (10, 2000):
            near = statistics.median(seconds[at - AROUND : at + AROUND])
            print(f"  round {at:<24,} {1000 * near:.1f} ms (median of the rounds around it)")
        if memory:
            half, whole = memory.values()
            print(f"  memory after {ROUNDS // 2:,} rounds      {half / 1e6:.2f} MB")
            print(f"  memory after {ROUNDS:,} rounds      {whole / 1e6:.2f} MB")
        sizes = {path.name: path.stat().st_size for path in (Path(folder) / "server").glob("[!.]*")}
        print("  files: " + ", ".join(f"{name} {size / 1e3:.1f} kB" for name, size in sorted(sizes.items())))


if __name__ == "__main__":
    main()
