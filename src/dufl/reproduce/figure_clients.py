"""Figure 2: a client's utility if it collects optimally, at random or nothing, by the number of clients."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.game.client import random_strategy, zero_strategy
from dufl.game.leader import FIXED_POINT
from dufl.game.parameters import Game
from dufl.game.plan import equilibrium, solve
from dufl.game.population import Clients
from dufl.game.utility import client_utility
from dufl.report.figures import BLUE, GREY, ORANGE, new_figure, save, style
from dufl.reproduce.item import Advance, Finding, Item, Scale, write_rows

SIZES = (5, 10, 15, 20, 25, 30)
STRATEGIES = ("optimal", "random", "zero")


def reproduce(scale: Scale, out: Path, advance: Advance) -> Item:
    """Make one offer, that of Algorithm 1 for 15 clients, to smaller and larger federations.

    A larger federation contains all clients of a smaller one. Utilities are averaged over the clients of the
    smallest.
    """
    rows: list[dict[str, Any]] = []
    worst = np.inf
    for draw in range(scale.draws):
        everyone = Clients.draw(SIZES[-1], draw)
        fifteen = Game(clients=everyone.take(slice(15)))
        offer = solve(fifteen, method="algorithm1", algorithm1=FIXED_POINT)
        for number in SIZES:
            game = Game(clients=everyone.take(slice(number)))
            plan = equilibrium(game, payment=offer.payment, conservation_rate=offer.conservation_rate)
            clients, rate = game.clients, plan.conservation_rate
            trajectories = {
                "optimal": (plan.volume, plan.collection),
                "random": random_strategy(clients.initial_volume, plan.collection, rate, draw),
                "zero": zero_strategy(clients.initial_volume, game.num_rounds, rate),
            }
            utility = {
                name: client_utility(clients, plan.payment, *trajectory, plan.total_volume)
                for name, trajectory in trajectories.items()
            }
            worst = min(worst, *(float((utility["optimal"] - utility[n]).min()) for n in STRATEGIES[1:]))
            means = {name: float(values[: SIZES[0]].mean()) for name, values in utility.items()}
            rows.append({"draw": draw, "clients": number, "payment": plan.payment} | means)
        advance((draw + 1) / scale.draws)
    mean = {
        name: np.array([[r[name] for r in rows if r["draw"] == d] for d in range(scale.draws)])
        for name in STRATEGIES
    }
    falls = all((np.diff(curve, axis=1) < 0).all() for curve in mean.values())
    optimal = mean["optimal"].mean(axis=0)
    claims = [
        Finding(
            "the optimal strategy earns a client more than the random and the zero one, for every N",
            worst > 0,
            f"no client, N or draw loses by it; the least gain is {worst:.3g}",
        ),
        Finding(
            "utility falls with the number of clients, for each strategy",
            falls,
            f"optimal: from {optimal[0]:.1f} with {SIZES[0]} clients to {optimal[-1]:.1f} with {SIZES[-1]}",
        ),
    ]
    with style():
        figure, axes = new_figure(5.6, 3.8)
        for name, colour in zip(STRATEGIES, (BLUE, ORANGE, GREY), strict=True):
            axes.plot(SIZES, mean[name].mean(axis=0), "o-", color=colour, label=name, markersize=4)
            axes.fill_between(
                SIZES, mean[name].min(axis=0), mean[name].max(axis=0), color=colour, alpha=0.2, lw=0
            )
        axes.set(title="Utility of a client, mean and range of the draws", xlabel="clients N", ylabel="U_k")
        axes.legend()
        written = [write_rows(out / "clients.csv", rows), *save(figure, out, "clients")]
    settings = {"draws of costs": scale.draws, "N": list(SIZES), "offer": "Algorithm 1's for 15 clients"}
    return Item("clients", claims, settings, [path.name for path in written])
