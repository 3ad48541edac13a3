# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
# (Numba carries no types.)
"""Multinomial logistic regression by local SGD: the same mathematics as torch, without its overhead per call.

With p = softmax(W·x + b), a batch B of the client's samples and y the one-hot label, a step is

    q = (p − y)/|B|,    g_W = Σ_B q·xᵀ,    g_b = Σ_B q,
    g ← g + strength·(w − start) − linear,    v ← momentum·v + g,    w ← w − rate·v.

Linear regression is the same with one output, the squared error (W·x + b − y)², and q = 2(W·x + b − y)/|B|.
If samples have weights, the q of each is multiplied by its weight.

The logits W·x and the gradient Σ q·xᵀ are nearly all the work, and both are sums of outer products:
of a few samples, or a few vectors of one sample, with a few classes. So both run on one tile of
TALL × WIDE vectors of LANES features, which stays in registers; `lanes` defines its operations.

Internally, weights are packed as (vector of LANES features, class, lane), with the biases in lane 0 of
one last vector; features are padded with zeros to whole chunks, classes to whole tiles.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from dufl.learning.lanes import (
    CHUNK,
    LANES,
    PARTS,
    STRIP,
    TALL,
    WIDE,
    add_outer,
    add_sums,
    fetch_far,
    fetch_near,
    samples,
    spread_errors,
    store,
    strip,
    weights_of,
    zeros,
)

Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]

BLOCK = 64  # chunks of features per pass over the batch, so that weights stay in the fastest cache
EVALUATED = 64  # samples per block of an evaluation
NOTHING = np.empty(0, dtype=np.float32)
NO_CLASSES = np.empty(0, dtype=np.int64)


def train_logistic(
    start: Vector,
    features: Matrix,
    labels: Labels,
    order: Integers,
    batch_size: int,
    learning_rate: float,
    momentum: float = 0.0,
    strength: float = 0.0,
    linear: Vector | None = None,
    sample_weights: Vector | None = None,
) -> Vector:
    """Weights after local SGD on   F(w) + strength/2·‖w − start‖² − ⟨linear, w⟩ ,   F the mean cross-entropy.

    For labels that are numbers, F is the mean squared error.

    Args:
        start: the initial weights, laid out as in torch.nn.Linear: weights (classes, features), then biases.
        features: (samples, features), in C order. Faster if every row begins on a cache line: the first
            at a multiple of 64 bytes, and a multiple of 16 features. Other rows are copied by batches.
        labels: one per sample: classes in [0, classes), or float32 numbers for linear regression.
        order: (epochs, samples), the order of the samples in each epoch; consecutive runs of it are
            the batches, the last of which may be smaller.
        batch_size: samples per step.
        learning_rate: as in torch.optim.SGD.
        momentum: as in torch.optim.SGD; the velocity starts at zero.
        strength: of the proximal term, FedProx's μ; 0 leaves it out, bit for bit.
        linear: the vector of the linear term, if there is one.
        sample_weights: one per sample: how much each counts in F. None leaves them out, bit for bit.

    The global interpreter lock is released during training.
    """
    weights = start.copy()
    tilt, shares = (  # of the compiled type
        NOTHING if given is None else np.require(given, np.float32, ["C", "W"])
        for given in (linear, sample_weights)
    )
    numbers = labels.dtype.kind == "f"
    classes, targets = (NO_CLASSES, labels) if numbers else (labels, NOTHING)
    sizes = batch_size, learning_rate, momentum, strength
    _train(weights, features, classes, targets, order, *sizes, tilt, shares)
    return weights


def evaluate_logistic(
    weights: Vector, features: Matrix, labels: Integers, num_classes: int
) -> tuple[int, float]:
    """The number of correct samples, and the sum of the cross-entropies."""
    correct, loss = _evaluate(weights, features, labels, num_classes)
    return int(correct), float(loss)


def predict_linear(weights: Vector, features: Matrix) -> npt.NDArray[np.float64]:
    """The predictions of linear regression; the digits do not depend on the number of threads."""
    predicted = np.einsum("ij,j->i", features, weights[:-1], dtype=np.float64)
    return np.asarray(predicted + weights[-1])


@numba.njit(cache=True, nogil=True)
def _train(
    weights: Vector,
    features: Matrix,
    labels: Integers,
    targets: Vector,
    order: Integers,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    strength: float,
    linear: Vector,
    shares: Vector,
) -> None:
    """Train `weights` in place."""
    num_epochs, num_samples = order.shape
    num_features = features.shape[1]
    num_classes = weights.size // (num_features + 1)
    packed = _pack(weights, num_features, num_classes)
    gradient = _aligned(packed.shape)
    velocity = _aligned(packed.shape) if momentum != 0 else packed
    start = packed.copy() if strength != 0 else packed
    tilt = _pack(linear, num_features, num_classes) if linear.size > 0 else packed
    copies, at, sums, logits = _workspace(packed, num_features, min(batch_size, num_samples))
    x = copies if copies.size > 0 else features
    errors = np.zeros_like(logits)  # stays 0 for the classes that are padding
    w, g, v = packed.ravel(), gradient.ravel(), velocity.ravel()
    s, t = start.ravel(), tilt.ravel()
    rate, decay, penalty = np.float32(learning_rate), np.float32(momentum), np.float32(strength)
    for epoch in range(num_epochs):
        for first in range(0, num_samples, batch_size):
            rows = order[epoch, first : first + batch_size]
            ahead = order[epoch, first + batch_size : first + 2 * batch_size]
            _place(features, rows, copies, at)
            _logits(packed, num_features, x, at, rows.size, sums, logits)
            if targets.size > 0:
                _residuals(logits, targets, rows, errors)
            else:
                _errors(logits, labels, rows, num_classes, errors)
            if shares.size > 0:
                _weigh(errors, shares, rows, num_classes)
            _gradient(errors, x, at, rows.size, features, ahead if ahead.size > 0 else rows, gradient)
            if strength != 0:
                for i in range(w.size):
                    g[i] += penalty * (w[i] - s[i])
            if linear.size > 0:
                for i in range(w.size):
                    g[i] -= t[i]
            if momentum != 0:
                for i in range(w.size):
                    v[i] = decay * v[i] + g[i]
                    w[i] -= rate * v[i]
            else:
                for i in range(w.size):
                    w[i] -= rate * g[i]
    for c in range(num_classes):
        for j in range(num_features):
            weights[c * num_features + j] = packed[j // LANES, c, j % LANES]
        weights[num_classes * num_features + c] = packed[-1, c, 0]


@numba.njit(cache=True, nogil=True)
def _whole(size: int, part: int) -> int:
    """The size rounded up to a multiple of `part`."""
    return -(-size // part) * part


@numba.njit(cache=True, nogil=True)
def _aligned(shape: tuple[int, int, int]) -> Matrix:
    """Zeros that begin on a cache line, so that no vector straddles two cache lines."""
    size = shape[0] * shape[1] * shape[2]
    spare = np.zeros(size + CHUNK, dtype=np.float32)
    first = -(spare.ctypes.data // spare.itemsize) % CHUNK
    return spare[first : first + size].reshape(shape)


@numba.njit(cache=True, nogil=True)
def _padded(num_features: int) -> int:
    """The features of a row with padding: whole chunks, and at least one tile of the gradient."""
    return max(_whole(num_features, CHUNK), STRIP)


@numba.njit(cache=True, nogil=True)
def _pack(flat: Vector, num_features: int, num_classes: int) -> Matrix:
    """Weights as (vector, class, lane), padded with zeros; the biases are in lane 0 of the last vector."""
    whole = _padded(num_features) // LANES
    packed = _aligned((whole + 1, _whole(num_classes, WIDE), LANES))
    for c in range(num_classes):
        for j in range(num_features):
            packed[j // LANES, c, j % LANES] = flat[c * num_features + j]
        packed[whole, c, 0] = flat[num_classes * num_features + c]
    return packed


@numba.njit(cache=True, nogil=True)
def _workspace(packed: Matrix, num_features: int, size: int) -> tuple[Matrix, Integers, Matrix, Matrix]:
    """Room for a batch: copies of its samples if their rows need padding, their rows, a tile, the logits."""
    width = _padded(num_features)
    copies = np.zeros((size if width != num_features else 0, width), dtype=np.float32)
    padded = _whole(size, TALL)
    sums = _aligned((PARTS * TALL, WIDE, LANES))
    return (
        copies,
        np.zeros(padded, dtype=np.int64),
        sums,
        np.empty((packed.shape[1], padded), dtype=np.float32),
    )


@numba.njit(cache=True, nogil=True)
def _place(features: Matrix, rows: Integers, copies: Matrix, at: Integers) -> None:
    """The rows at which the samples of a batch are: their own, or those of their copies."""
    for b in range(at.size):  # padded with the last sample
        at[b] = min(b, rows.size - 1)
        if copies.size == 0:
            at[b] = rows[at[b]]
    if copies.size > 0:
        for b in range(rows.size):
            for j in range(features.shape[1]):
                copies[b, j] = features[rows[b], j]


@numba.njit(cache=True, nogil=True)
def _logits(
    packed: Matrix, num_features: int, x: Matrix, at: Integers, size: int, sums: Matrix, logits: Matrix
) -> None:
    """logits[c, b] = w_c·x_b + bias_c, TALL samples by WIDE classes at a time."""
    full = num_features // CHUNK  # a chunk that is not full, if any, is a block of its own
    for c in range(packed.shape[1]):
        logits[c] = packed[-1, c, 0]
    begin = 0
    while begin * CHUNK < num_features:
        end = min(begin + BLOCK, full) if begin < full else full + 1
        for b in range(0, size, TALL):
            for c in range(0, packed.shape[1], WIDE):
                for part in range(PARTS):
                    tile = zeros()
                    for j in range(begin * PARTS + part, end * PARTS, PARTS):
                        tile = add_outer(tile, samples(x, at, b, j), weights_of(packed, j, c))
                    store(sums, part * TALL, 0, tile)
                add_sums(logits, c, b, sums)
        begin = end


@numba.njit(cache=True, nogil=True)
def _gradient(
    errors: Matrix, x: Matrix, at: Integers, size: int, features: Matrix, ahead: Integers, gradient: Matrix
) -> None:
    """g_c = Σ_b q[c, b]·x_b, TALL vectors of features by WIDE classes at a time.

    The last tile may overlap the one before. Meanwhile the rows of the next batch are prefetched from
    memory, and those of the next few samples from the second-level cache into the first.
    """
    bias = gradient.shape[0] - 1
    for first in range(0, bias, TALL):
        j = min(first, bias - TALL)
        for c in range(0, gradient.shape[1], WIDE):
            tile = zeros()
            for b in range(size):
                fetch_near(x, at[min(b + 6, size - 1)], j)
                fetch_far(features, ahead[min(b, ahead.size - 1)], j)
                tile = add_outer(tile, strip(x, at[b], j), spread_errors(errors, c, b))
            store(gradient, j, c, tile)
    for c in range(gradient.shape[1]):
        gradient[bias, c, 0] = errors[c, :size].sum()


@numba.njit(cache=True, nogil=True)
def _errors(logits: Matrix, labels: Integers, rows: Integers, num_classes: int, errors: Matrix) -> None:
    """Q = (softmax − one-hot)/|B|."""
    size = rows.size
    share = np.float32(1.0 / size)
    _, total = _softmax(logits, num_classes, size, errors)
    for b in range(size):
        total[b] = share / total[b]
    for c in range(num_classes):
        for b in range(size):
            errors[c, b] *= total[b]
    for b in range(size):
        errors[labels[rows[b]], b] -= share


@numba.njit(cache=True, nogil=True)
def _residuals(outputs: Matrix, targets: Vector, rows: Integers, errors: Matrix) -> None:
    """Q = 2·(prediction − target)/|B|."""
    share = np.float32(2.0 / rows.size)
    for b in range(rows.size):
        errors[0, b] = share * (outputs[0, b] - targets[rows[b]])


@numba.njit(cache=True, nogil=True)
def _weigh(errors: Matrix, shares: Vector, rows: Integers, num_classes: int) -> None:
    """Multiply the errors of every sample by its weight."""
    for c in range(num_classes):
        for b in range(rows.size):
            errors[c, b] *= shares[rows[b]]


@numba.njit(cache=True, nogil=True)
def _softmax(logits: Matrix, num_classes: int, size: int, powers: Matrix) -> tuple[Vector, Vector]:
    """The highest logit of a sample and Σ_c e^(logit − highest); the summands are written to `powers`.

    The samples lie along the lanes, so that every loop is vectorized.
    """
    highest, total = logits[0, :size].copy(), np.zeros(size, dtype=np.float32)
    for c in range(1, num_classes):
        for b in range(size):
            highest[b] = logits[c, b] if logits[c, b] > highest[b] else highest[b]
    for c in range(num_classes):
        for b in range(size):
            powers[c, b] = _exp(logits[c, b] - highest[b])
            total[b] += powers[c, b]
    return highest, total


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _exp(x: np.float32) -> np.float32:
    """e^x = 2^n·e^r for x <= 0, to about 1e-7 (the polynomial in r is Cephes'), 0 below −70; NaN stays NaN.

    Written out because the compiler can vectorize it, which it cannot do with a call.
    """
    # Tiny values become 0: subnormal numbers would slow everything down.
    factor = np.float32(0.0) if x < np.float32(-70.0) else np.float32(1.0)
    x = np.float32(-70.0) if x < np.float32(-70.0) else x
    shifted = x * np.float32(1.44269504) + np.float32(12582912.0)  # 1.5·2^23 leaves n in the last bits
    n = shifted - np.float32(12582912.0)
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * (r * r) + (r + np.float32(1.0))
    power = (np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23)  # the bits of 2^n
    return factor * y * np.int32(power).view(np.float32)


@numba.njit(cache=True, nogil=True)
def _evaluate(weights: Vector, features: Matrix, labels: Integers, num_classes: int) -> tuple[int, float]:
    """The number of correct samples, and the sum of the cross-entropies."""
    packed = _pack(weights, features.shape[1], num_classes)
    copies, at, sums, logits = _workspace(packed, features.shape[1], EVALUATED)
    x = copies if copies.size > 0 else features
    powers = np.empty_like(logits)
    correct, loss = 0, 0.0
    for first in range(0, labels.size, EVALUATED):
        rows = np.arange(first, min(first + EVALUATED, labels.size))
        _place(features, rows, copies, at)
        _logits(packed, features.shape[1], x, at, rows.size, sums, logits)
        highest, total = _softmax(logits, num_classes, rows.size, powers)
        for b in range(rows.size):
            label, best = labels[first + b], 0
            while best < num_classes - 1 and logits[best, b] != highest[b]:
                best += 1
            correct += best == label
            loss += np.log(np.float64(total[b])) + (np.float64(highest[b]) - np.float64(logits[label, b]))
    return correct, loss
