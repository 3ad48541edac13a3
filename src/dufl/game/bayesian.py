"""The paper's search: a Gaussian process models the cost, and expected improvement selects the next point.

    EI(R, θ) = E[max(U_min − Û(R, θ), 0)] = (U_min − m)·Φ(z) + s·ϕ(z),   z = (U_min − m)/s

for a posterior of mean m and standard deviation s. The process has a Matérn 5/2 kernel with one
length scale per axis, on the unit square over the two ranges. One departure from the paper: the
process models log U, cut off at e times the least U seen, because U grows without bound where data
dies out (R → 0, θ < 1).
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize
from scipy.stats import norm, qmc
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from dufl.game.dynamics import Array
from dufl.game.search import Choice
from dufl.inputs import Interval

FIRST = 8  # evaluations before the process is used
CANDIDATES = 1024
NUGGET = 1e-8
FAR = 1.0
_LOG_BOUNDS = np.log([[1e-2, 1e2], [0.05, 10.0], [0.05, 10.0]])  # variance and two length scales


def minimize(
    cost: Callable[[float, float], float],
    payment_range: Interval,
    conservation_range: Interval,
    evaluations: int = 30,
    seed: int = 0,
    known: tuple[float, float] | None = None,
) -> Choice:
    """The best of `evaluations` points: a few spread over the square, the rest by EI.

    The corner of no update (least payment, most conservation) is always among the first points, and so
    is `known`, a point that is expected to be good.
    """
    low = np.array([payment_range[0], conservation_range[0]])
    width = np.array([payment_range[1], conservation_range[1]]) - low
    generator = np.random.default_rng(seed)
    points = [np.array([0.0, 1.0]), *qmc.LatinHypercube(2, rng=generator).random(FIRST)]
    if known is not None:
        points.insert(1, (np.array(known) - low) / np.where(width > 0, width, 1.0))
    points = points[:evaluations]
    costs = [cost(*_plain(low + width * point)) for point in points]
    scales = np.log([1.0, 0.3, 0.3])
    while len(points) < evaluations:
        values = _logarithm(np.array(costs))
        mean, deviation = values.mean(), values.std() or 1.0
        standard = (values - mean) / deviation
        process, scales = _fit(np.array(points), standard, scales)
        candidates = _candidates(points[int(np.argmin(costs))], generator)
        gain = expected_improvement(process, candidates, float(standard.min()))
        points.append(candidates[int(np.argmax(gain))])
        costs.append(cost(*_plain(low + width * points[-1])))
    best = int(np.argmin(costs))
    return Choice(*_plain(low + width * points[best]), costs[best], evaluations)


def expected_improvement(process: GaussianProcessRegressor, candidates: Array, least: float) -> Array:
    """EI in closed form for each candidate, against the least value seen."""
    mean, deviation = process.predict(candidates, return_std=True)
    deviation = np.maximum(deviation, 1e-12)
    z = (least - mean) / deviation
    return np.asarray((least - mean) * norm.cdf(z) + deviation * norm.pdf(z))


def _fit(points: Array, values: Array, scales: Array) -> tuple[GaussianProcessRegressor, Array]:
    """The process whose kernel makes the values most likely, starting from the last kernel."""
    kernel = ConstantKernel(1.0) * Matern([0.3, 0.3], nu=2.5)
    process = GaussianProcessRegressor(kernel, alpha=NUGGET, optimizer=None).fit(points, values)

    def unlikelihood(theta: Array) -> tuple[float, Array]:
        value, slope = process.log_marginal_likelihood(theta, eval_gradient=True)
        return -value, -slope

    result = optimize.minimize(
        unlikelihood,
        scales,
        jac=True,
        method="L-BFGS-B",
        bounds=_LOG_BOUNDS,
        options={"maxiter": 15},
    )
    best = kernel.clone_with_theta(result.x)
    fitted = GaussianProcessRegressor(best, alpha=NUGGET, optimizer=None).fit(points, values)
    return fitted, result.x


def _candidates(incumbent: Array, generator: np.random.Generator) -> Array:
    """Candidate points: half of them anywhere, half near the best point so far."""
    everywhere = generator.random((CANDIDATES // 2, 2))
    reach = 10.0 ** generator.uniform(-3, -0.5, (CANDIDATES // 2, 1))
    near = incumbent + reach * generator.standard_normal((CANDIDATES // 2, 2))
    return np.vstack([everywhere, np.clip(near, 0, 1)])


def _logarithm(costs: Array) -> Array:
    """Log U, cut off far above the least value: the search need not know how bad a bad point is."""
    values = np.log(np.clip(costs, 1e-300, 1e300))
    return np.asarray(np.minimum(values, values.min() + FAR))


def _plain(point: Array) -> tuple[float, float]:
    return float(point[0]), float(point[1])
