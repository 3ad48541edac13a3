"""Any torch model: the same mathematics as the kernel, the same bits on any number of workers, and deaths."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dufl.data.datasets import Dataset, load_dataset
from dufl.errors import DuflError, InputError
from dufl.experiment.train import train
from dufl.learning.federation import Federation
from federations import facts, federation_of, small
from loading import pausing
from real_data import real

torch = pytest.importorskip("torch")
from dufl.learning.local import LocalModel  # noqa: E402 (after torch is known to be there)
from dufl.learning.settings import Training  # noqa: E402
from dufl.learning.torch_engine import TorchEngine  # noqa: E402

LOGISTIC = "training.model=own_models:Logistic"
NORMALISED = "training.model=own_models:Normalised"


def play(*changes: str, rounds: int = 3, dataset: Dataset | None = None) -> tuple[Federation, list[Any]]:
    """Some rounds; with one worker, since each loads PyTorch anew, unless `changes` say another number."""
    federation, engine = federation_of(small("workers=1", *changes), dataset)
    try:
        return federation, [facts(federation.play()) for _ in range(rounds)]
    finally:
        engine.close()


@pytest.mark.parametrize(
    "changes",
    [
        ("training.algorithm=fedavg",),
        ("training.algorithm=fedprox", "proximal_mu=1.0", "training.momentum=0.9"),
        ("training.algorithm=feddyn", "feddyn_alpha=0.1", "fraction_train=0.75"),
    ],
)
def test_both_ways_give_the_same_weights(changes: tuple[str, ...]) -> None:
    ours, one = play(*changes, rounds=5)
    theirs, two = play(*changes, LOGISTIC, rounds=5)
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=2e-6)
    assert [r["accuracy"] for r in one] == pytest.approx([r["accuracy"] for r in two], abs=0.01)
    assert [r["loss"] for r in one] == pytest.approx([r["loss"] for r in two], abs=1e-5)
    assert [r["volumes"] for r in one] == [r["volumes"] for r in two]


@pytest.mark.parametrize("model", ["training.model=cnn", NORMALISED])
def test_the_number_of_workers_changes_nothing(model: str) -> None:
    one, first = play(model, "workers=1", "training.algorithm=feddyn")
    two, second = play(model, "workers=2", "training.algorithm=feddyn")
    np.testing.assert_array_equal(one.weights, two.weights)
    np.testing.assert_array_equal(one.model_buffers, two.model_buffers)
    assert first == second


def test_running_statistics_are_averaged_by_volume() -> None:
    federation, records = play(NORMALISED, "clients.initial_volume=[50,100,200,70]", rounds=1)
    assert len(federation.model_buffers) == 41  # two statistics of 20 and a count
    steps = 2 * np.array([1, 2, 4, 2])
    assert records[0]["volumes"] == [50, 100, 200, 70]
    assert federation.model_buffers[-1] == pytest.approx(np.average(steps, weights=[50, 100, 200, 70]))


def test_a_run_with_torch_resumes_bit_for_bit(tmp_path: Path) -> None:
    changes = (
        NORMALISED,
        "training.algorithm=feddyn",
        "checkpoint_every=2",
        "game.num_rounds=5",
        "workers=1",
    )
    whole = train(small(*changes), out=tmp_path / "whole")
    seen: list[Any] = []
    train(small(*changes), out=tmp_path / "part", callbacks=[pausing(lambda: len(seen) >= 2), seen.append])
    rest = train(small(*changes), out=tmp_path / "part", resume=True)
    assert rest.summary()["fingerprint"] == whole.summary()["fingerprint"]
    assert "layers.2.running_mean" in whole.weights
    assert [facts(r) for r in rest.records] == [facts(r) for r in whole.records]


def test_a_worker_that_dies_is_replaced_and_its_work_done_again() -> None:
    config = small("training.model=cnn", "workers=2", "training.local_epochs=10")
    federation, engine = federation_of(config)
    whole = [facts(federation.play()) for _ in range(3)]
    engine.close()
    again, engine = federation_of(config)
    assert isinstance(engine, TorchEngine)

    def murder() -> None:
        for _ in range(2):
            time.sleep(0.3)
            os.kill(engine.workers.pids[0], signal.SIGKILL)

    murderer = threading.Thread(target=murder)
    murderer.start()
    found = [facts(again.play()) for _ in range(3)]
    murderer.join()
    assert engine.workers.deaths >= 1
    engine.close()
    assert found == whole
    np.testing.assert_array_equal(again.weights, federation.weights)


def test_death_in_the_middle_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed = tmp_path / "doomed"
    monkeypatch.setenv("DOOMED", str(doomed))
    monkeypatch.setenv("DOOMED_ONCE", "1")
    whole, _ = play("training.model=own_models:Mortal", "workers=1", rounds=1)
    doomed.touch()
    again, records = play("training.model=own_models:Mortal", "workers=1", rounds=1)
    assert not doomed.exists()
    assert records[0]["participants"] == 4
    np.testing.assert_array_equal(whole.weights, again.weights)
    monkeypatch.delenv("DOOMED_ONCE")
    doomed.touch()
    with pytest.raises(DuflError, match=r"a worker died 3 times on the same client: if memory is short"):
        play("training.model=own_models:Mortal", "workers=1", rounds=1)


def test_no_process_is_left() -> None:
    _, engine = federation_of(small("training.model=cnn", "workers=2"))
    assert isinstance(engine, TorchEngine)
    pids = engine.workers.pids
    assert all(psutil.pid_exists(pid) for pid in pids)
    engine.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_bfloat16_is_near() -> None:
    single, one = play("training.model=cnn", rounds=2)
    half, two = play("training.model=cnn", "precision=bf16", rounds=2)
    assert (single.weights != half.weights).any()
    assert two[-1]["loss"] == pytest.approx(one[-1]["loss"], rel=0.05)
    assert half.weights.dtype == np.float32


def test_resnet18_on_a_few_pictures() -> None:
    whole = load_dataset("cifar100", real("cifar100"))
    few = Dataset(
        "few", whole.train.take(slice(0, 400)), whole.test.take(slice(0, 50)), whole.class_names, whole=False
    )
    changes = (
        "training.model=resnet18",
        "clients.count=2",
        "clients.initial_volume=32",
        "training.local_epochs=1",
    )
    federation, records = play(*changes, "policy=static", rounds=2, dataset=few)
    assert len(federation.weights) > 11_000_000
    assert all(np.isfinite(r["loss"]) and r["participants"] == 2 for r in records)
    assert records[0]["loss"] != records[1]["loss"]


def test_local_objective_by_finite_differences() -> None:
    """One tiny step moves the weights against the gradient of the whole local objective."""
    from dufl.learning.algorithm import LocalPenalty
    from dufl.learning.task import Task

    test = load_dataset("digits").test
    features, labels = test.to_float()[:40], test.labels[:40]
    settings = Training(model="own_models:Logistic", local_epochs=2, batch_size=40, learning_rate=1e-3)
    model = LocalModel(settings, "cpu", (1, 8, 8), 10)
    generator = np.random.default_rng(0)
    start = generator.normal(0, 0.1, 650).astype(np.float32)
    linear = generator.normal(0, 0.5, 650).astype(np.float32)
    nothing = np.zeros(0, np.float32)
    numbers = np.arange(40)

    def objective(w: np.ndarray[Any, Any], penalty: LocalPenalty) -> float:
        logits = features.reshape(40, -1).astype(float) @ w[:640].reshape(10, 64).T + w[640:]
        log_sum = np.log(np.exp(logits).sum(1))
        loss = float((log_sum - logits[numbers, labels]).mean())
        added = penalty.strength / 2 * float(((w - start) ** 2).sum())
        return loss + added - (0.0 if penalty.linear is None else float(penalty.linear @ w))

    for penalty in (LocalPenalty(), LocalPenalty(0.7), LocalPenalty(0.7, linear)):
        task = Task(0, 0, numbers, labels, np.ones(40, int), numbers, penalty)
        one = Training(**{**dict(settings), "local_epochs": 1})
        first, _, _ = LocalModel(one, "cpu", (1, 8, 8), 10).train(start, nothing, features, task)
        second, _, _ = model.train(start, nothing, features, task)
        for here, after in ((start, first), (first, second)):  # the second step starts away from the global
            moved = (after.astype(float) - here) / -1e-3
            for index in generator.integers(0, 650, 12):
                step = np.zeros(650)
                step[index] = 1e-4
                slope = (objective(here + step, penalty) - objective(here - step, penalty)) / 2e-4
                assert moved[index] == pytest.approx(slope, abs=2e-4)


def test_devices_that_are_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(InputError, match=r"device must be an available one \(cpu.*\), got 'cuda'"):
        play("training.model=cnn", "device=cuda")
    with pytest.raises(InputError, match=r"got 'cuda:3'"):
        play("device=cuda:3")


def test_without_torch_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    with pytest.raises(InputError, match=r"model 'cnn' needs PyTorch: pip install 'dufl\[train\]'"):
        play("training.model=cnn")
