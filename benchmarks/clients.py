"""`make bench`: what capacities, prices per sample and voluntary participation cost in time.

The capacity of a tenth of the clients is half of the largest volume that they would hold. This is not a test:
it prints measurements next to the project's targets.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from game import ROUNDS, best_of
from rich.console import Console
from rich.table import Table

import dufl
from dufl.game.client import total_response, trajectories
from dufl.game.mean_field import find_equilibrium
from dufl.game.population import Uniform
from dufl.game.voluntary import respond

RATE = 0.3


def clients_of(count: int, *, full: bool = False, priced: bool = False) -> dufl.Clients:
    """The paper's clients, of whom a tenth has too little storage, or with prices per sample."""
    drawn = dufl.Clients.draw(count, 1, initial_volume=Uniform(low=50, high=150))
    price, nothing = np.full(ROUNDS, 53.0 / (15 * 100)), np.zeros(ROUNDS)
    columns = (drawn.initial_volume, drawn.collection_cost, drawn.training_cost)
    capacity = np.full(count, np.inf)
    if full:
        tenth = np.arange(0, count, 10)
        held, _ = trajectories(drawn.take(tenth), price, nothing, RATE)
        capacity[tenth] = np.maximum(0.5 * held.max(axis=0), drawn.initial_volume[tenth])
    charge = 0.1 * float(price[0]) if priced else 0.0
    return dufl.Clients(*columns, capacity=capacity, collection_price=charge, training_price=charge)


def pass_over(clients: dufl.Clients) -> Callable[[], np.ndarray]:
    """One best-response pass at the price of the paper's optimum."""
    price, nothing = np.full(ROUNDS, 53.0 / (15 * 100)), np.zeros(ROUNDS)
    return lambda: total_response(clients, price, nothing, RATE)


def passes(console: Console, count: int) -> None:
    """A pass and an equilibrium with and without limits."""
    table = Table("clients", "ms per pass", "times plain", "passes of an equilibrium", "residual")
    plain = 0.0
    kinds: dict[str, dict[str, bool]] = {
        "plain": {},
        "prices per sample": {"priced": True},
        "a tenth is full": {"full": True},
        "both": {"full": True, "priced": True},
    }
    for name, options in kinds.items():
        clients = clients_of(count, **options)
        took = best_of(pass_over(clients), 4.0)
        plain = plain or took
        found = find_equilibrium(clients, ROUNDS, 53.0 * count / 15, RATE)
        table.add_row(
            name, f"{1e3 * took:.1f}", f"{took / plain:.2f}", str(found.passes), f"{found.residual:.1e}"
        )
    console.print(table)
    console.print("target: an equilibrium within 40 passes\n")


def voluntary(console: Console, count: int) -> None:
    """The set of clients that take part, in passes over the same clients at the prices that are found."""
    clients = dufl.Clients.draw(count, 1, reservation=Uniform(low=0, high=60))
    game = dufl.Game(clients=clients, participation="voluntary")
    begin = time.perf_counter()
    response = respond(game, 53.0 * count / 15, RATE)
    took = time.perf_counter() - begin
    price = 53.0 * count / 15 / response.equilibrium.announced_volume
    one_pass = best_of(lambda: total_response(clients, price, np.zeros(ROUNDS), RATE), 4.0)
    assert response.takes_part is not None
    away = int((~response.takes_part).sum())
    console.print(
        f"the set that takes part at N = {count:,}: {took:.1f} s = {took / one_pass:.0f} passes "
        f"(target: 100), {away:,} stay away"
    )


def main() -> None:
    """Print all measurements."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    console = Console(width=110)
    console.print(f"Capacities and prices, {count:,} clients, {ROUNDS} rounds")
    passes(console, count)
    voluntary(console, count)


if __name__ == "__main__":
    main()
