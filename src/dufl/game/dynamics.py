"""How the volume and staleness of a buffer change from round to round.

    volume             D_k(t+1) = θ·D_k(t) + Δ_k(t)
    staleness (DoS)    S_k(t) = θ·D_k(t−1)/D_k(t)·(S_k(t−1) + 1) + Δ_k(t−1)/D_k(t)
    Lemma 1            S_k(t) = Σ_{τ≤t} θ^{t−τ}·D_k(τ)/D_k(t)

The staleness law is linear in D·S: M_k(t) = D_k(t)·S_k(t) obeys M_k(t) = θ·M_k(t−1) + D_k(t). So it
holds for the sums over clients too, and `staleness` of the total volume is the mean over all
samples: the server needs nothing but totals.

Rounds are the first axis of every array; clients, where there are any, the second.
"""

from itertools import accumulate

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def volume(initial_volume: npt.ArrayLike, collection: Array, conservation_rate: float) -> Array:
    """D_k(t) from D_k(0) and the collection, by the volume law.

    >>> volume([100.0], np.array([[10.0], [0.0], [0.0]]), 0.5).ravel().tolist()
    [100.0, 60.0, 30.0]
    """
    held = np.empty_like(collection)
    held[0] = initial_volume
    for t in range(1, len(held)):
        held[t] = conservation_rate * held[t - 1] + collection[t - 1]
    return held


def collection(volume: Array, conservation_rate: float) -> Array:
    """Δ_k(t) = D_k(t+1) − θ·D_k(t), from the volumes alone; one round shorter than `volume`.

    >>> collection(np.array([100.0, 60.0, 30.0]), 0.5).tolist()
    [10.0, 0.0]
    """
    return np.maximum(volume[1:] - conservation_rate * volume[:-1], 0.0)


def staleness(volume: Array, conservation_rate: float, initial_staleness: npt.ArrayLike = 1.0) -> Array:
    """S_k(t) by the definition of the degree of staleness.

    With the volume law, the definition becomes S(t) = 1 + share·S(t−1), where share is the part
    of the buffer that was conserved, θ·D(t−1)/D(t). An empty buffer has S = 1.
    """
    held, conserved = volume[1:], conservation_rate * volume[:-1]
    share = np.divide(conserved, held, out=np.zeros_like(held), where=held > 0)
    np.minimum(share, 1.0, out=share)
    if volume.ndim == 1:
        return _ages(share, float(np.asarray(initial_staleness)))
    start = np.broadcast_to(np.asarray(initial_staleness, dtype=np.float64), volume.shape[1:])
    return np.array(list(accumulate(share, lambda aged, kept: 1 + kept * aged, initial=start)))


@numba.njit(cache=True, nogil=True)
def _ages(share: Array, start: float) -> Array:
    """S(t) = 1 + share·S(t−1) of one buffer."""
    ages = np.empty(share.size + 1)
    ages[0] = start
    for t in range(share.size):
        ages[t + 1] = 1 + share[t] * ages[t]
    return ages


def general_staleness(
    volume: Array, conservation_rate: float, initial_staleness: npt.ArrayLike = 1.0
) -> Array:
    """S_k(t) by Lemma 1's general formula, D_k(0) weighted by S_k(0); volumes must be positive."""
    rounds = np.arange(len(volume))
    lag = rounds[:, None] - rounds[None, :]
    weight = np.where(lag >= 0, float(conservation_rate) ** np.maximum(lag, 0), 0.0)
    aged = volume.copy()
    aged[0] = aged[0] * np.asarray(initial_staleness)
    return np.asarray(np.einsum("ts,s...->t...", weight, aged) / volume)
