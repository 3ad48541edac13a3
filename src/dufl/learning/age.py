"""How well a model trained on one period predicts another: linear models, one per period.

Every period has a half to train on and a half to test on. Every model has features standardized with the mean
and the deviation of its own training half, as it would have if it had been built then, and clipped to ±10
deviations, so that single values of other periods do not decide. Models have a small ridge penalty,
RIDGE/2·‖w‖².

Classes: logistic regression with the compiled kernel, by gradient descent with momentum. Every step uses the
whole half. So there is no order of samples, and no randomness. Numbers: linear regression, solved exactly.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Samples
from dufl.game.threads import one_thread
from dufl.learning.logistic import evaluate_logistic, predict_linear, train_logistic

Floats = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]

RIDGE = 1e-3
STEPS, MOMENTUM = 300, 0.9
_CLIP = 10.0  # deviations
_POWERS = 20  # iterations for the largest eigenvalue


def score_matrix(
    train: Sequence[Samples],
    test: Sequence[Samples],
    num_classes: int,
    progress: Callable[[float], object] = lambda _: None,
) -> Floats:
    """The scores of models: element (i, j) is trained on period i and tested on period j.

    The score is the accuracy or, for labels that are numbers, R²: 1 less the squared error relative to that
    of the mean label of the tested half. It is NaN if these labels are all equal.

    Args:
        train: the half of every period to train on.
        test: the other half of every period, of which no model sees a label.
        num_classes: the number of classes; ignored for regression.
        progress: called with the share of the models that are done.
    """
    scores = np.empty((len(train), len(test)))
    raw = [half.to_float().reshape(len(half), -1) for half in test]
    for i, half in enumerate(train):
        features = half.to_float().reshape(len(half), -1)
        mean, scale = _standard(features)
        with one_thread():  # the digits do not depend on the number of threads
            weights = _fit(_scaled(features, mean, scale), half.labels, num_classes)
        for j, other in enumerate(test):
            scores[i, j] = _score(weights, _scaled(raw[j], mean, scale), other.labels, num_classes)
        progress((i + 1) / len(train))
    return scores


def _standard(features: Matrix) -> tuple[Floats, Floats]:
    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64)
    scale[scale <= 1e-7 * np.maximum(np.abs(mean), 1e-30)] = 1.0  # constant so far: its weight stays 0
    return mean, scale


def _scaled(features: Matrix, mean: Floats, scale: Floats) -> Matrix:
    return np.ascontiguousarray(np.clip((features - mean) / scale, -_CLIP, _CLIP), np.float32)


def _fit(features: Matrix, labels: npt.NDArray[np.float32] | npt.NDArray[np.int64], classes: int) -> Vector:
    """The weights of a model, laid out as in `train_logistic`."""
    if labels.dtype.kind == "f":
        return _ridge(features, labels.astype(np.float64))
    start = np.zeros(classes * (features.shape[1] + 1), np.float32)
    order = np.tile(np.arange(len(features)), (STEPS, 1))
    # The Hessian of the cross-entropy is at most half of the largest eigenvalue of the second moments.
    rate = 1 / (_largest_eigenvalue(features) / 2 + RIDGE)
    return train_logistic(start, features, labels, order, len(features), rate, MOMENTUM, RIDGE)


def _ridge(features: Matrix, targets: Floats) -> Vector:
    wide = features.astype(np.float64)
    centre, offset = wide.mean(axis=0), targets.mean()
    wide -= centre
    moments = wide.T @ wide / len(wide) + RIDGE * np.eye(wide.shape[1])
    slope = np.linalg.solve(moments, wide.T @ (targets - offset) / len(wide))
    return np.append(slope, offset - centre @ slope).astype(np.float32)


def _largest_eigenvalue(features: Matrix) -> float:
    """Of the second moments of (x, 1), by power iteration from a start that favours no feature.

    A value that is too small by a third is harmless: momentum keeps steps up to three times too long stable.
    """
    wide = np.hstack([features, np.ones((len(features), 1), np.float32)]).astype(np.float64)
    vector = np.random.default_rng(0).standard_normal(wide.shape[1])
    value = 1.0
    for _ in range(_POWERS):
        vector = wide.T @ (wide @ (vector / np.linalg.norm(vector))) / len(wide)
        value = float(np.linalg.norm(vector))
    return value


def _score(weights: Vector, features: Matrix, labels: npt.NDArray[np.int64], classes: int) -> float:
    if labels.dtype.kind != "f":
        correct, _ = evaluate_logistic(weights, features, labels, classes)
        return correct / len(labels)
    truth = labels.astype(np.float64)
    spread = np.mean((truth - truth.mean()) ** 2)
    error = np.mean((truth - predict_linear(weights, features)) ** 2)
    return float(1 - error / spread) if spread > 0 else float("nan")
