"""The tables of docs/security.md and docs/payments.md that no command of DUFL prints.

python docs/flower_tables.py payments   what a client is paid on average if only some clients are selected
python docs/flower_tables.py volumes    what volumes reveal, and what a grid costs; takes some minutes
"""

import sys
import warnings
from itertools import combinations

import numpy as np
from scipy.optimize import least_squares

from dufl import Clients, Game, solve
from dufl.flower.disclosure import on_grid
from dufl.game.client import best_response
from dufl.game.dynamics import Array
from dufl.game.plan import Plan
from dufl.game.utility import client_utility, server_cost

SELECTED = (1, 2, 3, 5, 8, 10)  # of ten clients
RELATIVE = (0.5, 0.8, 1.0, 1.25, 2.0)  # volumes of a client, relative to the mean of all
ROUNDS = (2, 3, 4, 10, "all")  # of a client's volumes that are seen
GRIDS = {1.0: (1, 2, 5, 10, 20, 50), 10.0: (1, 10, 50, 100)}  # by the scale of the volumes
WIDE = np.log(1e4)  # how far the costs may be from the mean costs


def payments() -> None:
    """The mean payment relative to the announced one, by counting all selections of m of 10 clients.

    One client has d times the mean volume of all ten; the other nine have equal volumes.
    """
    print("mean payment of a client / announced payment, 10 clients")
    print("volume / mean volume" + "".join(f"{d:>9g}" for d in RELATIVE))
    for selected in SELECTED:
        cells = "".join(f"{100 * (_paid(d, selected) - 1):>+7.1f} %" for d in RELATIVE)
        print(f"{selected:>2} of 10 selected     {cells}")


def _paid(relative: float, selected: int, count: int = 10) -> float:
    volumes = np.array([relative] + [(count - relative) / (count - 1)] * (count - 1))
    chosen = [list(each) for each in combinations(range(count), selected)]
    shares = [volumes[0] / volumes[each].sum() if 0 in each else 0.0 for each in chosen]
    return float(np.mean(shares)) / (relative / count)


def volumes() -> None:
    """For federations with about 100 and 1,000 samples per client, what their commitments reveal.

    A tenfold volume needs a hundredth of the costs at the same offer.
    """
    drawn, offer = Clients.draw(), solve(Game(), certified=False)
    for scale, grids in GRIDS.items():
        costs = drawn.collection_cost / scale**2, drawn.training_cost / scale**2
        fixed = (offer.payment,) * 2, (offer.conservation_rate,) * 2
        clients = Clients(drawn.initial_volume * scale, *costs)
        game = Game(clients=clients, payment_range=fixed[0], conservation_range=fixed[1])
        plan = solve(game, certified=False)
        print(f"{clients.size} clients, {game.num_rounds} rounds, mean volume {plan.volume[1:].mean():.0f}")
        columns = "".join(f"{rounds:>9}{'':9}" for rounds in ROUNDS)
        print(f"grid  rounds:{columns}server cost  utility (worst)")
        for grid in grids:
            _row(plan, grid)


def _row(plan: Plan, grid: int) -> None:
    clients = plan.game.clients
    committed = np.stack(
        [np.floor(on_grid(each, grid, int(each[0])) + 0.5) for each in plan.volume.T], axis=1
    )
    cells = []
    for rounds in ROUNDS:
        seen = committed[: rounds if isinstance(rounds, int) else len(committed)]
        found = np.array([_recovered(plan, seen[:, k]) for k in range(clients.size)])
        errors = np.abs(found / clients.collection_cost - 1)
        cells.append(f"{_percent(np.median(errors)):>8} ({_percent(np.quantile(errors, 0.9)):>7})")
    cost = _cost(plan, committed) / _cost(plan, plan.volume) - 1
    before, after = _utility(plan, plan.volume), _utility(plan, committed)
    change = 100 * (after - before) / before.mean()
    told = f"{100 * cost:>+8.2f} % {change.mean():>+8.2f} % ({change.min():+.2f} %)"
    print(f"{grid:>4}   {''.join(cells)}{told}")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 9.995 else "> 999 %"


def _recovered(plan: Plan, seen: Array) -> float:
    """α_k of the best response that is nearest to the volumes seen, in least squares."""
    price, rate, mean = plan.payment / plan.total_volume, plan.conservation_rate, plan.game.clients
    center = np.log([mean.collection_cost.mean(), mean.training_cost.mean()])

    def misfit(logs: Array) -> Array:
        costs = np.exp(np.atleast_2d(logs.T).T)
        response, _ = best_response(price, float(seen[0]), costs[0], costs[1], rate)
        return np.asarray((response[: len(seen)] - seen[:, None]) / (1 + seen.max()))

    low, high = center - WIDE, center + WIDE
    grid = np.array(np.meshgrid(*np.linspace(low, high, 41).T)).reshape(2, -1)
    starts = grid[:, np.argsort((misfit(grid) ** 2).sum(axis=0), kind="stable")[:4]].T
    fits = [
        least_squares(lambda logs: misfit(logs)[:, 0], start, bounds=(low, high), xtol=1e-12, ftol=1e-12)
        for start in starts
    ]
    return float(np.exp(min(fits, key=lambda fit: fit.cost).x[0]))


def _cost(plan: Plan, volume: Array) -> float:
    total = volume.sum(axis=1)
    return server_cost(plan.game, plan.payment, plan.conservation_rate, total).total


def _utility(plan: Plan, volume: Array) -> Array:
    collected = np.zeros_like(volume)
    collected[:-1] = np.maximum(volume[1:] - plan.conservation_rate * volume[:-1], 0.0)
    return client_utility(plan.game.clients, plan.payment, volume, collected, volume.sum(axis=1))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # some clients of the paper have negative utility
    {"payments": payments, "volumes": volumes}[sys.argv[1]]()
