"""Represents a large population by a few weighted types, which makes a search far cheaper."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dufl.game.population import Clients, Vector

NOBODY = 1e-300  # the weight of clients that stay away: their types still need costs


@lru_cache(maxsize=4)  # a search and the equilibrium after it use the same types
def compress(clients: Clients, size: int) -> Clients:
    """Represent a population by at most `size` weighted types of similar clients.

    The population is repeatedly halved along the feature that varies most (costs on a logarithmic
    scale), into cells of equal weight. A cell's type has its mean volume, so that totals are
    preserved exactly, and its mean costs: the error is of second order in the width of a cell.
    """
    if clients.size <= size:
        return clients
    features = _features(clients)
    cells = [np.arange(clients.size)]
    while len(cells) * 2 <= size:
        cells = [half for cell in cells for half in _halve(features, cell)]
    order, sizes = np.concatenate(cells), np.array([cell.size for cell in cells])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    weight = np.maximum(clients.multiplicity[order], NOBODY)
    total = np.add.reduceat(weight, starts)

    def mean(values: Vector) -> Vector:
        return np.asarray(np.add.reduceat(weight * values[order], starts) / total)

    volume = mean(clients.initial_volume)
    aged = mean(clients.initial_volume * clients.initial_staleness)
    return Clients(
        volume,
        1 / mean(1 / clients.collection_cost),
        mean(clients.training_cost),
        np.divide(aged, volume, out=np.ones_like(volume), where=volume > 0),
        mean(clients.capacity),
        mean(clients.collection_price),
        mean(clients.training_price),
        mean(clients.reservation),
        multiplicity=total,
    )


def _features(clients: Clients) -> Vector:
    """The features that distinguish clients, each scaled to unit variance."""
    cost = clients.training_cost
    floor = cost[cost > 0].min() if (cost > 0).any() else 1.0
    raw = [
        np.log(clients.collection_cost),
        np.log(np.maximum(cost, 0.1 * floor)),
        clients.initial_volume,
        clients.initial_volume * clients.initial_staleness,
        clients.collection_price,
        clients.training_price,
        clients.reservation,
        *_storage(clients.capacity),
    ]
    kept = [(v - v.mean()) / v.std() for v in raw if v.std() > 1e-12 * (1 + abs(v.mean()))]
    return np.array(kept) if kept else np.zeros((1, clients.size))


def _storage(capacity: Vector) -> list[Vector]:
    """The logarithm of capacities, with unlimited ones far above all others; nothing if all are."""
    limited = np.isfinite(capacity)
    if not limited.any():
        return []
    logs = np.log(np.where(limited, capacity, 1.0))
    return [np.where(limited, logs, logs[limited].max() + 10.0)]


def _halve(features: Vector, cell: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    if cell.size < 2:
        return [cell]
    axis = int(np.argmax(features[:, cell].var(axis=1)))
    middle = cell.size // 2
    order = np.argpartition(features[axis, cell], middle)
    return [cell[order[:middle]], cell[order[middle:]]]
