"""Gradient and curvature of the logistic and the linear model on some samples.

With x̃ = (x, 1), p = softmax(W·x̃) and the one-hot label y, the mean cross-entropy of n samples has

    ∇F = 1/n·Σ (p − y)·x̃ᵀ,    ∇²F·V = 1/n·Σ (diag(p) − p·pᵀ)·(V·x̃)·x̃ᵀ.

The mean squared error (W·x̃ − y)² of the linear model has

    ∇F = 2/n·Σ (W·x̃ − y)·x̃ᵀ,    ∇²F·V = 2/n·Σ (V·x̃)·x̃ᵀ.

Weights are laid out as in training: weights (outputs, features), then biases.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Vector = npt.NDArray[Any]
STEPS = 80  # of Lanczos' method
EXHAUSTED = 1e-9  # relative to the largest eigenvalue: what is left of a direction that is rounding only


def gradient(weights: Vector, features: Vector, labels: Vector, outputs: int) -> Array:
    """∇F at some weights, on samples with features of shape (n, features)."""
    errors = _errors(_logits(weights, features, outputs), labels)
    errors /= len(labels)
    return np.concatenate([(errors.T @ features).ravel(), errors.sum(axis=0)]).astype(np.float64)


def _logits(weights: Vector, features: Vector, outputs: int) -> Vector:
    edge = len(weights) - outputs
    matrix = weights[:edge].reshape(outputs, -1).astype(features.dtype, copy=False)
    return np.asarray(features @ matrix.T + weights[edge:].astype(features.dtype, copy=False))


def _errors(logits: Vector, labels: Vector) -> Vector:
    """The errors p − y, or twice the residual."""
    if labels.dtype.kind == "f":
        return 2 * (logits - labels[:, None])
    errors = _softmax(logits)
    errors[np.arange(len(labels)), labels] -= 1
    return errors


def _softmax(logits: Vector) -> Vector:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def hessian_product(
    weights: Vector, features: Vector, regression: bool, outputs: int
) -> Callable[[Array], Array]:
    """The function V ↦ ∇²F·V at some weights."""
    x = features.astype(np.float64)
    shares = None if regression else _softmax(_logits(weights, x, outputs))

    def product(direction: Array) -> Array:
        moved = _logits(direction, x, outputs)
        if shares is None:
            moved *= 2
        else:
            moved = shares * (moved - (shares * moved).sum(axis=1, keepdims=True))
        moved /= len(x)
        return np.concatenate([(moved.T @ x).ravel(), moved.sum(axis=0)])

    return product


def extreme_eigenvalues(product: Callable[[Array], Array], size: int, seed: int = 0) -> tuple[float, float]:
    """The smallest and the largest eigenvalue on the span of a positive semidefinite matrix H.

    Lanczos' method: power iteration that keeps all its directions. It starts at H·z for a random z and
    therefore never leaves the span of H; directions without data, in which H is 0, do not count. The largest
    eigenvalue converges within a few steps. The smallest is exact if the steps exhaust the span, and an upper
    bound otherwise.
    """
    start = product(np.random.default_rng([seed, 13]).standard_normal(size))
    norm = float(np.linalg.norm(start))
    if norm == 0:
        return 0.0, 0.0
    basis = [start / norm]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(STEPS, size)):
        moved = product(basis[-1])
        diagonal.append(float(basis[-1] @ moved))
        known = np.array(basis)
        for _ in range(2):  # once is not enough in floating point
            moved = moved - known.T @ (known @ moved)
        left = float(np.linalg.norm(moved))
        if left <= EXHAUSTED * max(diagonal):
            break
        beside.append(left)
        basis.append(moved / left)
    count = len(diagonal)
    tridiagonal = np.diag(diagonal) + np.diag(beside[: count - 1], 1) + np.diag(beside[: count - 1], -1)
    values = np.linalg.eigvalsh(tridiagonal)
    return max(float(values[0]), 0.0), float(values[-1])
