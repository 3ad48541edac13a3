"""What it is worth to know the law before the offer is made.

U(g, i) is the server's cost of offer g under the i-th of M equally likely laws. The expected value of perfect
information is

    EVPI = min_g mean_i U(g, i) − mean_i min_g U(g, i).

Of one term v of the law alone, it is the expected value of partial perfect information:

    EVPPI = min_g mean_i U(g, i) − mean_i min_g E[U(g, ·) | v_i],    E[U(g, ·) | v_i] = Σ_j W(i, j)·U(g, j).

W averages over laws whose term is similar: a Gaussian kernel on the parameters of the term, in units of their
own covariance, scaled so that all rows and columns add up to 1. Such means are means of laws, so that
0 ≤ EVPPI ≤ EVPI whatever the laws are. A term that does not vary has W = 1/M, and is worth exactly nothing.
"""

import numpy as np

from dufl.game.dynamics import Array
from dufl.game.law_draws import LawDraws
from dufl.game.loss import PARAMETERS
from dufl.game.threads import one_thread

TERMS = ("volume", "staleness", "flow")
SCALINGS = 500


def known_cost(costs: Array) -> float:
    """The expected cost if the law is known before the offer is made: mean_i min_g U(g, i)."""
    return float(costs.min(axis=0).mean())


def values(costs: Array, draws: LawDraws) -> dict[str, float]:
    """What it is worth to know the "law", and each of its terms alone, in U.

    Args:
        costs: U(g, i), of shape (offers, laws).
        draws: the laws.
    """
    least = float(costs.mean(axis=1).min())
    if not np.isfinite(least):
        return dict.fromkeys(("law", *TERMS), 0.0)
    whole = max(least - known_cost(costs), 0.0)
    result = {"law": whole}
    for term in TERMS:
        similarity = _similarity(_standardized(draws, term))
        value = 0.0
        if similarity is not None:
            with one_thread():
                value = least - float((costs @ similarity).min(axis=0).mean())
        result[term] = min(max(value, 0.0), whole)
    return result


def _standardized(draws: LawDraws, term: str) -> Array:
    """The weight and exponent of a term, uncorrelated and with a variance of 1; as many columns as vary."""
    columns = [PARAMETERS.index(f"{term}_{kind}") for kind in ("weight", "exponent")]
    values = draws.parameters[:, columns]
    if not values[:, 0].any():
        return values[:, :0]  # the term does not exist, whatever its exponent is
    spread = values.std(axis=0)
    varying = spread > 1e-12 * (1 + np.abs(values).max(axis=0))
    scaled = (values[:, varying] - values[:, varying].mean(axis=0)) / spread[varying]
    left, size, _ = np.linalg.svd(scaled, full_matrices=False)
    return np.asarray(left[:, size > 1e-6 * max(size.max(initial=0.0), 1e-300)] * np.sqrt(len(values)))


def _similarity(points: Array) -> Array | None:
    """Symmetric weights of laws with similar parameters, with rows that add up to 1; None if none differ."""
    laws, dimensions = points.shape
    if dimensions == 0:
        return None
    width = (4 / (dimensions + 2) / laws) ** (1 / (dimensions + 4))  # Silverman's rule
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    kernel = np.exp(-distance / (2 * width**2))
    scale = np.ones(laws)
    for _ in range(SCALINGS):
        scale = np.sqrt(scale / np.einsum("ij,j->i", kernel, scale))
    return np.asarray(scale[:, None] * kernel * scale)
