"""The value of a plan to a client, to the server and to the model. Nothing is optimized here.

    payment to a client   P_k(t) = R·D_k(t)/φ(t)
    cost of a client      C_k(t) = α_k·Δ_k(t)² + β_k·D_k(t)²    in the paper
                                   + a_k·Δ_k(t) + b_k·D_k(t)    if samples have prices a_k and b_k
    utility of a client   U_k = Σ_t [P_k(t) − C_k(t)]
    cost of the server    U = Σ_t [γ·R + (1−γ)·κ1^{T−1−t}·ℓ(N/φ(t), S(t))]
                          with the paper's bound   ℓ(N/φ, S) = κ2·ψ²·N/φ + κ3·σ²·S   or another loss law
    Theorem 1             E[F(w(T)) − F*] ≤ κ1^T·E[F(w(0)) − F*]
                                            + Σ_t κ1^{T−1−t}·[κ2·N·ψ²/φ(t) + κ3·σ²·S(t) + Ω_t]

where φ(t) = Σ_k D_k(t) is the total volume and S(t) = Σ_k D_k(t)·S_k(t)/φ(t) the mean staleness.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from dufl.game.dynamics import Array, collection, staleness
from dufl.game.loss import PowerLaw, scarcity_of, terms_of
from dufl.game.parameters import Game
from dufl.game.population import Clients


@dataclass(frozen=True)
class ServerCost:
    """The server's cost in every round, by term."""

    payment: Array
    volume: Array
    staleness: Array

    @property
    def per_round(self) -> Array:
        """The cost of each round."""
        return self.payment + self.volume + self.staleness

    @property
    def total(self) -> float:
        """U, the cost over all rounds."""
        return float(self.per_round.sum())


def client_payment(payment: float, volume: Array, total_volume: Array) -> Array:
    """P_k(t): a client is paid by its share of the total volume; 0 if the total is 0."""
    total = total_volume if total_volume.ndim == volume.ndim else total_volume[:, None]
    paid = np.zeros_like(volume)
    return np.divide(payment * volume, total, out=paid, where=total > 0)


def client_cost(clients: Clients, volume: Array, collection: Array) -> Array:
    """C_k(t): a price per sample and a quadratic part, for collected and for held samples."""
    quadratic = clients.collection_cost * collection**2 + clients.training_cost * volume**2
    return quadratic + (clients.collection_price * collection + clients.training_price * volume)


def client_utility(
    clients: Clients, payment: float, volume: Array, collection: Array, total_volume: Array
) -> Array:
    """U_k of every client, over all rounds."""
    earned = client_payment(payment, volume, total_volume) - client_cost(clients, volume, collection)
    return np.asarray(earned.sum(axis=0))


def server_cost(
    game: Game,
    payment: float,
    conservation_rate: float,
    total_volume: Array,
    starting_staleness: float | None = None,
) -> ServerCost:
    """U by round and term, from the totals alone; infinite in rounds without any data.

    `starting_staleness` is the mean staleness of what is held in round 0; by default of all that clients own.
    """
    start = game.clients.initial_mean_staleness if starting_staleness is None else starting_staleness
    held = available(game, conservation_rate, total_volume)
    aged = staleness(held, conservation_rate, start)
    return cost_of_rounds(game, np.full(game.num_rounds, payment), held, aged)


def available(game: Game, conservation_rate: float, total_volume: Array) -> Array:
    """The total volume of a plan, if clients collect no more than there is.

    φ(t+1) = θ·φ(t) + min(Δ(t), N·`most_collected`), for a law that was fitted to recorded data.
    """
    law = game.loss
    if not isinstance(law, PowerLaw) or law.most_collected is None:
        return total_volume
    most = law.most_collected * game.clients.num_clients
    collected = np.minimum(collection(total_volume, conservation_rate), most).tolist()
    held = accumulate(
        collected, lambda now, new: conservation_rate * now + new, initial=float(total_volume[0])
    )
    return np.array(list(held))


def cost_of_rounds(game: Game, payment: Array, total_volume: Array, mean_staleness: Array) -> ServerCost:
    """U by round and term of the first rounds, from planned or measured values."""
    volume_loss, staleness_loss = _accuracy_loss(game, total_volume, mean_staleness)
    weight = 1 - game.payment_weight
    if weight == 0:  # only payments count, even if all data is lost (infinity · 0)
        volume_loss = np.zeros_like(volume_loss)
    return ServerCost(
        payment=game.payment_weight * payment,
        volume=weight * volume_loss,
        staleness=weight * staleness_loss,
    )


def convergence_bound(
    game: Game,
    conservation_rate: float,
    total_volume: Array,
    initial_gap: float,
    drift: npt.ArrayLike = 0.0,
) -> float:
    """Theorem 1's upper bound on E[F(w(T)) − F*].

    Args:
        game: with the weights κ of the problem (see `convergence_weights`).
        conservation_rate: θ.
        total_volume: φ(t).
        initial_gap: E[F(w(0)) − F*].
        drift: Ω_t, by how much the loss of one model differs between rounds' data; 0 if the
            distribution of the data does not change.
    """
    forgotten = forgetting(game)
    aged = staleness(total_volume, conservation_rate, game.clients.initial_mean_staleness)
    volume_loss, staleness_loss = _accuracy_loss(game, total_volume, aged)
    noise = volume_loss + staleness_loss
    return float(game.decay**game.num_rounds * initial_gap + np.sum(noise + forgotten * np.asarray(drift)))


def _accuracy_loss(game: Game, total_volume: Array, mean_staleness: Array) -> tuple[Array, Array]:
    """The two terms of the loss law, by round, with their weight κ1^{T−1−t}.

    Those of the paper's bound are terms (2) and (3) of Theorem 1.
    """
    forgotten = forgetting(game)[: len(total_volume)]
    if game.loss is not None:
        scarcity = scarcity_of(game.loss, game.clients.num_clients, total_volume)
        little, old = terms_of(game.loss, scarcity, mean_staleness)
        return forgotten * little, forgotten * old
    noise = game.volume_weight * game.clients.num_clients * game.sampling_noise**2
    nothing = np.full_like(total_volume, np.inf)
    with np.errstate(over="ignore"):  # a tiny volume counts as none
        volume_loss = np.divide(noise, total_volume, out=nothing, where=total_volume > 0)
    aged = game.staleness_weight * game.time_sensitivity**2 * mean_staleness
    return forgotten * volume_loss, forgotten * aged


def forgetting(game: Game) -> Array:
    """κ1^{T−1−t}: the share of a round's loss that is left at the end."""
    return np.asarray(game.decay ** np.arange(game.num_rounds - 1, -1, -1.0))
