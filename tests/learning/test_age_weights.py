"""Sample weights by age: their formulas, and what they do to local training in both engines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dufl
from dufl.errors import InputError
from dufl.experiment.train import train
from dufl.learning.age_weights import age_weights
from dufl.learning.algorithm import LocalPenalty
from dufl.learning.logistic import train_logistic
from dufl.learning.settings import Training
from dufl.learning.task import Task
from federations import facts, federation_of, small
from loading import load
from recorded import levels, write_pump

WEIGHTINGS: Any = ("linear", "exponential")
AGES = st.lists(st.integers(1, 10**6), min_size=1, max_size=30).map(np.array)
SCALES = st.floats(1e-3, 1e9)
KEPT = "game.conservation_range=[0.6, 0.6]"  # so that ages differ


def weights_of(ages: Any, weighting: Any, scale: float) -> Any:
    """The weights of samples that do not all count equally."""
    weights = age_weights(np.asarray(ages), weighting, scale)
    assert weights is not None
    return weights.astype(np.float64)


@given(ages=AGES, weighting=st.sampled_from(WEIGHTINGS), scale=SCALES)
def test_weights_have_mean_one_and_older_samples_never_count_more(
    ages: Any, weighting: Any, scale: float
) -> None:
    weights = weights_of(ages, weighting, scale)
    assert weights.mean() == pytest.approx(1, rel=1e-5)
    assert (weights >= 0).all()
    order = np.argsort(ages)
    assert (np.diff(weights[order]) <= 0).all()


@given(ages=AGES, scale=SCALES)
def test_the_formulas(ages: Any, scale: float) -> None:
    linear = np.maximum(1 - (ages - 1) / scale, 0)
    linear = linear / linear.mean() if linear.any() else np.ones(len(ages))
    np.testing.assert_allclose(weights_of(ages, "linear", scale), linear, rtol=1e-6)
    halved = weights_of(ages, "exponential", scale)
    youngest = halved[ages == ages.min()][0]
    np.testing.assert_allclose(halved, youngest * 0.5 ** ((ages - ages.min()) / scale), rtol=1e-6, atol=1e-37)


@given(
    age=st.integers(1, 10**12), size=st.integers(1, 50), weighting=st.sampled_from(WEIGHTINGS), scale=SCALES
)
def test_equal_ages_count_equally(age: int, size: int, weighting: Any, scale: float) -> None:
    assert (weights_of(np.full(size, age), weighting, scale) == 1).all()


def test_none_is_no_weight_at_all() -> None:
    assert age_weights(np.array([1, 5]), "none", 1.0) is None
    assert age_weights(np.array([], np.int64), "linear", 1.0) is None


def sgd(
    start: Any, x: Any, y: Any, order: Any, batch: int, rate: float, momentum: float, strength: float, w: Any
) -> Any:
    """Weighted local SGD in plain NumPy and float64; for numbers, linear regression."""
    x, numbers = x.astype(np.float64), y.dtype.kind == "f"
    outputs = len(start) // (x.shape[1] + 1)
    model = np.vstack([start[: -outputs or None].reshape(outputs, -1).T, start[-outputs:]]).astype(np.float64)
    begin, velocity, x = model.copy(), np.zeros_like(model), np.hstack([x, np.ones((len(x), 1))])
    for rows in (row[i : i + batch] for row in order for i in range(0, len(row), batch)):
        z = x[rows] @ model
        if numbers:
            q = 2 * (z[:, 0] - y[rows])[:, None]
        else:
            p = np.exp(z - z.max(1, keepdims=True))
            q = p / p.sum(1, keepdims=True) - np.eye(outputs)[y[rows]]
        gradient = x[rows].T @ (w[rows, None] * q) / len(rows) + strength * (model - begin)
        velocity = momentum * velocity + gradient
        model = model - rate * velocity
    return np.concatenate([model[:-1].T.ravel(), model[-1]])


@pytest.mark.parametrize(("momentum", "strength"), [(0.0, 0.0), (0.9, 0.1)])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(
    "shape", [(1, 2, 9, 4), (64, 10, 37, 1), (64, 101, 50, 16), (784, 10, 150, 64), (7, 1, 21, 8)]
)
def test_the_kernel_is_weighted_sgd(
    shape: tuple[int, int, int, int], weighting: Any, momentum: float, strength: float
) -> None:
    """One output is linear regression."""
    num_features, outputs, size, batch = shape
    generator = np.random.default_rng(0)
    start = 0.1 * generator.standard_normal(outputs * (num_features + 1), dtype=np.float32)
    x = generator.random((size, num_features), dtype=np.float32)
    y: Any = generator.integers(0, outputs, size)
    if outputs == 1:
        y = generator.standard_normal(size, dtype=np.float32)
    order = np.stack([generator.permutation(size) for _ in range(3)])
    weights = age_weights(generator.integers(1, 12, size), weighting, 6.0)
    assert weights is not None
    arguments = (start, x, y, order, batch, 0.02, momentum, strength)
    ours = train_logistic(*arguments, None, weights)
    theirs = sgd(*arguments, weights.astype(np.float64))
    plain = train_logistic(*arguments)
    assert np.abs(ours - plain).max() > 1e-4  # weights matter
    assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


def digits() -> tuple[Any, Any, Any, Any, int, float]:
    generator = np.random.default_rng(0)
    start = np.zeros(10 * 65, np.float32)
    x = generator.random((40, 64), dtype=np.float32)
    return start, x, generator.integers(0, 10, 40), np.stack([generator.permutation(40)] * 3), 16, 0.05


def test_equal_weights_and_no_weights_are_the_same_bits() -> None:
    arguments = digits()
    plain = train_logistic(*arguments)
    for weights in (None, np.ones(40, np.float32)):
        assert train_logistic(*arguments, 0.0, 0.0, None, weights).tobytes() == plain.tobytes()


def test_a_sample_with_weight_zero_has_no_influence() -> None:
    start, x, y, order, batch, rate = digits()
    weights = age_weights(np.r_[np.ones(25, int), np.full(15, 9)], "linear", 8.0)
    assert weights is not None
    assert (weights[25:] == 0).all()
    one = train_logistic(start, x, y, order, batch, rate, sample_weights=weights)
    x[25:], y[25:] = 7, (y[25:] + 1) % 10
    two = train_logistic(start, x, y, order, batch, rate, sample_weights=weights)
    assert one.tobytes() == two.tobytes()


def play(*changes: str, rounds: int = 5) -> tuple[Any, list[Any]]:
    federation, engine = federation_of(small("workers=1", KEPT, *changes))
    try:
        return federation, [facts(federation.play()) for _ in range(rounds)]
    finally:
        engine.close()


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(
    "changes", [(), ("training.algorithm=feddyn", "training.momentum=0.9", "fraction_train=0.75")]
)
def test_both_engines_give_the_same_weights(weighting: str, changes: tuple[str, ...]) -> None:
    pytest.importorskip("torch")
    changes = (*changes, f"age_weighting={weighting}", "age_scale=1.5", "clients.initial_staleness=2")
    ours, one = play(*changes)
    theirs, two = play(*changes, "training.model=own_models:Logistic")
    plain, _ = play(*changes, "age_weighting=none")
    assert np.abs(ours.weights - plain.weights).max() > 1e-4
    assert one[-1]["mean_age"] > 1.5
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=2e-6)
    assert [r["loss"] for r in one] == pytest.approx([r["loss"] for r in two], abs=1e-5)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_both_engines_agree_for_regression(tmp_path: Path, weighting: str) -> None:
    pytest.importorskip("torch")
    path = write_pump(tmp_path / "pump.csv")
    changes = levels(path, f"age_weighting={weighting}", "age_scale=2", "policy=keep-all", "workers=1")
    torch = "training.model=own_models:Logistic"  # with one output
    ours, theirs, plain = (
        np.concatenate(
            [array.ravel() for array in (train(load(None, [*changes, more])).weights or {}).values()]
        )
        for more in ("training.momentum=0", torch, "age_weighting=none")
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
    assert np.abs(ours - plain).max() > 1e-4


@pytest.mark.parametrize("model", ["logistic", "own_models:Logistic"])
def test_a_zero_weight_is_no_influence_in_both_engines(model: str) -> None:
    """Samples of other labels, at the age at which they count nothing."""
    pytest.importorskip("torch")
    from dufl.data.datasets import load_dataset
    from dufl.learning.engine import make_engine

    config = small(f"training.model={model}", "age_weighting=linear", "age_scale=4", "data.noise_scale=0")
    config = config.replace(training=config.training.replace(workers=1))
    data = config.data.simulation(load_dataset("digits"), config.game, 0)
    engine = make_engine(data, config.training, 4)
    try:
        weights, buffers = engine.start
        indices, ages = np.arange(50), np.r_[np.arange(1, 31) % 3 + 1, np.full(20, 5)]
        results = []
        for shift in (0, 100):
            which = np.r_[indices[:30], indices[30:] + shift]
            task = Task(0, 3, which, data.pool.labels[which], ages, indices, LocalPenalty())
            results.append(next(iter(engine.train(weights, buffers, [task]))).weights)
    finally:
        engine.close()
    np.testing.assert_allclose(results[0], results[1], atol=1e-7)
    assert np.abs(results[0] - weights).max() > 1e-3


def test_with_equal_ages_weights_change_no_bit() -> None:
    changes = ("policy=static", "clients.initial_staleness=3")
    plain, records = play(*changes)
    for weighting in WEIGHTINGS:
        weighted, same = play(*changes, f"age_weighting={weighting}", "age_scale=2")
        assert weighted.weights.tobytes() == plain.weights.tobytes()
        assert same == records


def test_the_number_of_workers_changes_nothing() -> None:
    changes = ("age_weighting=exponential", "age_scale=1", "clients.initial_staleness=2")
    one, two = (play(*changes, f"workers={n}")[0].weights for n in (1, 2))
    assert one.tobytes() == two.tobytes()


def own_loss(logits: Any, labels: Any) -> Any:
    """A mean that hides its summands."""
    return (logits**2).mean()


def test_a_loss_of_one_s_own_cannot_be_weighted() -> None:
    for loss in (own_loss, "module:loss"):
        with pytest.raises(InputError) as refused:
            Training(loss=loss, age_weighting="linear")
        assert (refused.value.field, refused.value.value) == ("age_weighting", "linear")
        assert Training(loss=loss).age_weighting == "none"
    for loss in ("auto", "cross_entropy", "squared_error"):
        assert Training(loss=loss, age_weighting="linear").loss == loss


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_a_scale_is_positive(scale: float) -> None:
    with pytest.raises(InputError) as refused:
        dufl.Training(age_scale=scale)
    assert refused.value.field == "age_scale"
