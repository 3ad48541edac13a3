"""What each client earns under a plan and would earn with two simpler strategies."""

from dataclasses import dataclass

import numpy as np

from dufl.game.client import random_strategy, zero_strategy
from dufl.game.dynamics import Array
from dufl.game.population import Clients
from dufl.game.utility import client_payment, client_utility


@dataclass(frozen=True)
class Outcomes:
    """The results of a plan for each client, over all rounds.

    Attributes:
        payment: what the client is paid.
        utility: its payment less its costs.
        zero_utility: its utility if it alone collected nothing.
        random_utility: its utility if it alone collected at random, with the same expected total.
        collected: the number of samples it collects.
        final_volume: the number of samples it holds in the last round.
    """

    payment: Array
    utility: Array
    zero_utility: Array
    random_utility: Array
    collected: Array
    final_volume: Array


def outcomes(
    clients: Clients,
    payment: float,
    conservation_rate: float,
    total_volume: Array,
    volume: Array,
    collection: Array,
    exact: bool,
    seed: int,
) -> Array:
    """The rows of `Outcomes` for some clients, which hold `volume` and collect `collection`.

    The simpler strategies begin with the same volume, also if trimmed: they differ in what they collect.
    A client that deviates alone does not change the total (mean field) or changes it (`nash`).
    """

    def utility(held: Array, collected: Array) -> Array:
        own = held - volume if exact else np.zeros_like(volume)
        return client_utility(clients, payment, held, collected, total_volume[:, None] + own)

    start, num_rounds = volume[0], len(volume)
    return np.stack(
        [
            client_payment(payment, volume, total_volume).sum(axis=0),
            utility(volume, collection),
            utility(*zero_strategy(start, num_rounds, conservation_rate)),
            utility(*random_strategy(start, collection, conservation_rate, seed, clients.capacity)),
            collection.sum(axis=0),
            volume[-1],
        ]
    )
