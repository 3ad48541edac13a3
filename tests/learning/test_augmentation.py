"""Augmentation, weight decay and the decay of the learning rate: their definitions, in both engines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.errors import InputError
from dufl.experiment.train import train
from dufl.learning.algorithm import LocalPenalty
from dufl.learning.augmentation import Augmentation, moves
from dufl.learning.engine import CompiledEngine
from dufl.learning.settings import Training
from dufl.learning.task import Task
from federations import facts, federation_of, small
from loading import load, pausing
from recorded import WEATHER

torch = pytest.importorskip("torch")
from dufl.learning import local  # noqa: E402 (after torch is known to be there)
from dufl.learning.augmentation import augment  # noqa: E402

AUGMENTED = ("training.model=cnn", "training.augmentation=crop-flip", "workers=1")


def drawn(kind: Augmentation = "crop-flip", ids: Any = None, **changes: int) -> Any:
    numbers = {"seed": 1, "client": 2, "round": 3} | changes
    return moves(kind, (32, 24), 3, np.arange(2000) if ids is None else ids, **numbers)


def test_what_happens_to_a_sample_depends_on_itself_alone() -> None:
    every, some = drawn(), np.array([7, 1999, 0, 7])
    np.testing.assert_array_equal(drawn(ids=some), every[:, some])
    for others in (drawn(seed=2), drawn(client=1), drawn(round=4), drawn(client=3, round=2)):
        assert (others != every).any(2).mean() > 0.9
    assert (every[0] != every[1]).any(1).mean() > 0.9  # anew in each epoch


def test_images_move_by_an_eighth_and_every_other_one_is_mirrored() -> None:
    every = drawn(ids=np.arange(30_000)).reshape(-1, 3)
    for axis, reach in ((0, 4), (1, 3)):
        values, counts = np.unique(every[:, axis], return_counts=True)
        assert values.tolist() == list(range(-reach, reach + 1))
        expected = len(every) / len(values)
        assert ((counts - expected) ** 2 / expected).sum() < 30  # chi-squared: beyond 99.9 %
    assert every[:, 2].mean() == pytest.approx(0.5, abs=0.01)
    assert abs(np.corrcoef(every.T.astype(float))[np.triu_indices(3, 1)]).max() < 0.02


@pytest.mark.parametrize(("kind", "still"), [("crop", [2]), ("flip", [0, 1])])
def test_one_without_the_other(kind: Augmentation, still: list[int]) -> None:
    every = drawn(kind)
    assert not every[..., still].any()
    assert every.any()


def test_moving_by_its_definition() -> None:
    images = np.random.default_rng(0).random((5, 3, 9, 16)).astype(np.float32)
    which = np.array([[0, 0, 0], [1, -2, 0], [0, 0, 1], [-1, 2, 1], [9, 16, 0]])
    moved = augment(torch.from_numpy(images), torch.from_numpy(which)).numpy()
    for n, (down, across, mirrored) in enumerate(which):
        for i in range(9):
            for j in range(16):
                row = min(max(i + down, 0), 8)
                column = min(max((15 - j if mirrored else j) + across, 0), 15)
                np.testing.assert_array_equal(moved[n, :, i, j], images[n, :, row, column])


def test_the_number_of_workers_changes_nothing() -> None:
    found = []
    for workers in (1, 2):
        federation, engine = federation_of(small(*AUGMENTED[:2], f"workers={workers}"))
        found.append(([facts(federation.play()) for _ in range(2)], federation.weights))
        engine.close()
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_a_run_with_augmentation_resumes_bit_for_bit(tmp_path: Path) -> None:
    changes = (*AUGMENTED, "checkpoint_every=2", "game.num_rounds=4", "learning_rate_decay=0.9")
    whole = train(small(*changes), out=tmp_path / "whole")
    seen: list[Any] = []
    train(small(*changes), out=tmp_path / "part", callbacks=[pausing(lambda: len(seen) >= 2), seen.append])
    rest = train(small(*changes), out=tmp_path / "part", resume=True)
    assert rest.summary()["fingerprint"] == whole.summary()["fingerprint"]
    plain = train(small(*changes, "training.augmentation=none"))
    assert plain.summary()["fingerprint"] != whole.summary()["fingerprint"]


def test_logistic_regression_can_be_augmented_too() -> None:
    federation, engine = federation_of(small("training.augmentation=crop", "workers=1"))
    federation.play()
    engine.close()
    assert not isinstance(engine, CompiledEngine)
    assert np.isfinite(federation.weights).all()


def test_samples_that_are_no_images() -> None:
    with pytest.raises(
        InputError, match=r"augmentation must be 'none' for samples of shape \(8,\)"
    ) as caught:
        train(load(None, [*WEATHER, "training.augmentation=crop"]))
    assert caught.value.field == "training.augmentation"


@pytest.mark.parametrize("model", ["logistic", "own_models:Logistic"])
def test_weight_decay_by_finite_differences(model: str) -> None:
    """One tiny step moves the weights against the gradient of F + λ/2·‖w‖², also beside a penalty."""
    decay, rate = 0.3, 1e-3
    plain, decayed = (
        small(
            f"training.model={model}",
            *("workers=1", "training.local_epochs=1", "training.batch_size=500"),
            *(f"training.learning_rate={rate}", f"training.weight_decay={d}"),
        )
        for d in (0, decay)
    )
    generator = np.random.default_rng(0)
    start = generator.normal(0, 0.1, 650).astype(np.float32)
    linear = generator.normal(0, 0.5, 650).astype(np.float32)
    for penalty in (LocalPenalty(), LocalPenalty(0.7, linear)):
        after = []
        for config in (plain, decayed):
            federation, engine = federation_of(config)
            numbers = np.arange(40)
            labels = federation._data.pool.labels[:40]
            task = Task(0, 0, numbers, labels, np.ones(40, int), numbers, penalty)
            (update,) = engine.train(start, np.zeros(0, np.float32), [task])
            after.append(update.weights.astype(float))
            engine.close()
        np.testing.assert_allclose((after[0] - after[1]) / rate, decay * start, atol=2e-4)


@pytest.mark.parametrize("model", ["logistic", "own_models:Logistic"])
def test_the_learning_rate_of_a_round(model: str) -> None:
    """With decay d, round 2 is a round at the learning rate η·d²."""
    decaying, engine = federation_of(small(f"training.model={model}", "workers=1", "learning_rate_decay=0.5"))
    decaying.play()
    decaying.play()
    slower, other = federation_of(
        small(f"training.model={model}", "workers=1", "training.learning_rate=0.0025")
    )
    slower.restore(decaying.state())
    decaying.play()
    slower.play()
    np.testing.assert_array_equal(decaying.weights, slower.weights)
    engine.close()
    other.close()


def test_automatic_precision_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def precision(**features: bool) -> bool:
        monkeypatch.setattr(local, "get_host_cpu_features", lambda: features)
        return local.uses_bfloat16("auto", "cpu")

    assert precision(avx512bf16=True, avx2=True)
    assert precision(**{"amx-bf16": True})
    assert precision(bf16=True)  # ARM
    assert not precision(avx512f=True, avx2=True, avx512bf16=False)
    assert local.uses_bfloat16("bf16", "cpu")
    assert not local.uses_bfloat16("float32", "cpu")


def test_automatic_precision_of_a_run() -> None:
    wanted = "bf16" if local.uses_bfloat16("auto", "cpu") else "float32"
    weights = {}
    for precision in ("auto", "bf16", "float32"):
        federation, engine = federation_of(
            small("training.model=cnn", "workers=1", f"precision={precision}", "local_epochs=1")
        )
        federation.play()
        engine.close()
        weights[precision] = federation.weights
    np.testing.assert_array_equal(weights["auto"], weights[wanted])
    assert (weights["bf16"] != weights["float32"]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augmentation": "zoom"}, "augmentation"),
        ({"learning_rate_decay": 0}, r"learning_rate_decay must be in \(0, 1\], got 0"),
        ({"learning_rate_decay": 1.1}, r"learning_rate_decay must be in \(0, 1\], got 1.1"),
        ({"weight_decay": -1e-4}, r"weight_decay must be >= 0, got -0.0001"),
    ],
)
def test_values_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Training(**changes)
