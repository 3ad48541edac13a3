"""Local training of logistic regression: torch's mathematics, and the laws of its objective."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dufl.learning.logistic import _exp, evaluate_logistic, train_logistic

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TERMS = [(0.0, 0.0, False), (0.9, 0.0, False), (0.0, 0.1, False), (0.0, 0.1, True), (0.9, 0.1, True)]
SHAPES = [  # features, classes, samples, batch size
    (1, 2, 9, 4),
    (7, 3, 20, 64),
    (64, 10, 37, 1),
    (64, 101, 50, 16),
    (784, 10, 150, 64),
    (784, 2, 33, 32),
    (1030, 7, 21, 10),  # more than one block of features, and a chunk that is not full
]


def problem(num_features: int, num_classes: int, size: int, seed: int = 0) -> tuple[Floats, Floats, Integers]:
    """Weights, features and labels."""
    generator = np.random.default_rng(seed)
    weights = 0.1 * generator.standard_normal(num_classes * (num_features + 1), dtype=np.float32)
    features = generator.random((size, num_features), dtype=np.float32)
    return weights, features, generator.integers(0, num_classes, size)


def shuffled(num_epochs: int, size: int) -> Integers:
    generator = np.random.default_rng(1)
    return np.stack([generator.permutation(size) for _ in range(num_epochs)])


def tilt(weights: Floats) -> Floats:
    return 0.01 * np.random.default_rng(2).standard_normal(weights.size, dtype=np.float32)


def torch_training(
    start: Floats,
    features: Floats,
    labels: Integers,
    order: Integers,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    strength: float,
    linear: Floats | None,
) -> Floats:
    """The plain loop."""
    torch: Any = pytest.importorskip("torch")
    x, y, begin = torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(start)
    model = torch.nn.Linear(features.shape[1], start.size // (features.shape[1] + 1))
    torch.nn.utils.vector_to_parameters(begin.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    for epoch in torch.from_numpy(order):
        for rows in epoch.split(batch_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            weights = torch.nn.utils.parameters_to_vector(model.parameters())
            if strength != 0:
                loss = loss + strength / 2 * (weights - begin).square().sum()
            if linear is not None:
                loss = loss - torch.from_numpy(linear) @ weights
            loss.backward()
            optimizer.step()
    trained = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    return np.asarray(trained, dtype=np.float32)


def cross_entropies(weights: Doubles, features: Floats, labels: Integers) -> tuple[Doubles, Doubles]:
    """Of every sample in double precision, and the logits."""
    num_classes = weights.size // (features.shape[1] + 1)
    matrix = weights[:-num_classes].reshape(num_classes, -1)
    logits = features.astype(np.float64) @ matrix.T + weights[-num_classes:]
    high = logits.max(axis=1, keepdims=True)
    sums = np.log(np.exp(logits - high).sum(axis=1)) + high[:, 0]
    return sums - logits[np.arange(len(labels)), labels], logits


@pytest.mark.parametrize(("momentum", "strength", "tilted"), TERMS)
@pytest.mark.parametrize(("num_features", "num_classes", "size", "batch_size"), SHAPES)
def test_equals_torch(
    num_features: int,
    num_classes: int,
    size: int,
    batch_size: int,
    momentum: float,
    strength: float,
    tilted: bool,
) -> None:
    start, features, labels = problem(num_features, num_classes, size)
    order, linear = shuffled(3, size), tilt(start) if tilted else None
    arguments = (start, features, labels, order, batch_size, 0.02, momentum, strength, linear)
    ours, theirs = train_logistic(*arguments), torch_training(*arguments)
    assert np.abs(theirs - start).max() > 1e-3
    assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("strength", "tilted"), [(0.0, False), (0.5, False), (0.5, True)])
def test_a_step_follows_the_gradient_of_the_objective(strength: float, tilted: bool) -> None:
    """By central differences of the objective, at a point away from the start of the pull."""
    start, features, labels = problem(7, 3, 12)
    linear = tilt(start) if tilted else None
    order, rate = np.stack([np.arange(12)] * 2), 0.5
    here = train_logistic(start, features, labels, order[:1], 12, rate, 0.0, strength, linear)
    after = train_logistic(start, features, labels, order, 12, rate, 0.0, strength, linear)

    def objective(weights: Doubles) -> float:
        value = cross_entropies(weights, features, labels)[0].mean()
        value += strength / 2 * np.square(weights - start).sum()
        return float(value - (0.0 if linear is None else linear @ weights))

    directions = 1e-5 * np.eye(start.size)
    point = here.astype(np.float64)
    slopes = [(objective(point + d) - objective(point - d)) / 2e-5 for d in directions]
    np.testing.assert_allclose((point - after) / rate, slopes, atol=2e-6)


def test_no_strength_is_no_pull_bit_for_bit() -> None:
    start, features, labels = problem(64, 10, 100)
    order = shuffled(2, 100)
    plain = train_logistic(start, features, labels, order, 16, 0.1)
    np.testing.assert_array_equal(
        plain, train_logistic(start, features, labels, order, 16, 0.1, 0.0, 0.0, None)
    )
    flat = train_logistic(start, features, labels, order, 16, 0.1, linear=np.zeros_like(start))
    np.testing.assert_array_equal(plain, flat)


def test_inputs_are_left_alone_and_may_be_read_only() -> None:
    inputs: list[Any] = [*problem(7, 3, 10), shuffled(2, 10)]
    before = [array.copy() for array in inputs]
    for array in inputs:
        array.flags.writeable = False
    start, features, labels, order = inputs
    trained = train_logistic(start, features, labels, order, 4, 0.1)
    assert not np.array_equal(trained, start)
    for array, copy in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_where_rows_lie_in_memory_does_not_matter() -> None:
    """Neither their alignment nor, beyond the end of a row, their neighbours."""
    start, features, labels = problem(19, 3, 10)
    order, results = shuffled(2, 10), []
    for shift in (0, 1, 5):
        room = np.full(features.size + 40, np.nan, dtype=np.float32)
        moved = room[shift : shift + features.size].reshape(features.shape)
        moved[:] = features
        results.append(train_logistic(start, moved, labels, order, 4, 0.1))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_no_samples_or_no_epochs_change_nothing() -> None:
    start, features, labels = problem(7, 3, 10)
    nothing = train_logistic(start, features[:0], labels[:0], np.empty((2, 0), dtype=np.int64), 4, 0.1)
    never = train_logistic(start, features, labels, np.empty((0, 10), dtype=np.int64), 4, 0.1)
    for result in (nothing, never):
        assert result is not start
        np.testing.assert_array_equal(result, start)
    assert evaluate_logistic(start, features[:0], labels[:0], 3) == (0, 0.0)


def test_one_class_has_nothing_to_learn() -> None:
    start, features, labels = problem(7, 1, 10)
    np.testing.assert_array_equal(train_logistic(start, features, labels, shuffled(1, 10), 4, 0.1), start)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_features_stay_visible(bad: float) -> None:
    start, features, labels = problem(20, 3, 10)
    features[3, 17] = bad
    trained = train_logistic(start, features, labels, shuffled(1, 10), 4, 0.1)
    assert np.isnan(trained).all()
    assert np.isnan(evaluate_logistic(trained, features, labels, 3)[1])


def test_huge_logits_do_not_overflow() -> None:
    start, features, labels = problem(7, 3, 10)
    start *= np.float32(1e5)
    assert np.isfinite(train_logistic(start, features, labels, shuffled(2, 10), 4, 0.1)).all()
    right, loss = evaluate_logistic(start, features, labels, 3)
    losses, logits = cross_entropies(start.astype(np.float64), features, labels)
    assert np.abs(logits).max() > 1e4
    assert right == (logits.argmax(axis=1) == labels).sum()
    assert loss == pytest.approx(losses.sum(), rel=1e-6)


def test_two_threads_give_the_bits_of_one() -> None:
    start, features, labels = problem(64, 10, 500)
    orders = [np.stack([np.random.default_rng(k).permutation(500)] * 3) for k in range(16)]

    def train(order: Integers) -> Floats:
        return train_logistic(start, features, labels, order, 32, 0.1, 0.9)

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(train, orders))
    np.testing.assert_array_equal(together, [train(order) for order in orders])


@pytest.mark.parametrize(("num_features", "num_classes"), [(1, 2), (7, 3), (64, 10), (784, 101)])
def test_evaluation_in_double_precision(num_features: int, num_classes: int) -> None:
    weights, features, labels = problem(num_features, num_classes, 200)
    losses, logits = cross_entropies(weights.astype(np.float64), features, labels)
    right, loss = evaluate_logistic(weights, features, labels, num_classes)
    assert right == (logits.argmax(axis=1) == labels).sum()
    assert loss == pytest.approx(losses.sum(), rel=1e-6)


def test_the_exponential() -> None:
    x = np.linspace(-70, 0, 20_001, dtype=np.float32)
    found = np.array([_exp(value) for value in x], dtype=np.float64)
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=2e-7)
    assert _exp(np.float32(0)) == 1
    assert _exp(np.float32(-70.1)) == _exp(np.float32(-np.inf)) == 0  # never a subnormal number
    assert np.isnan(_exp(np.float32(np.nan)))
