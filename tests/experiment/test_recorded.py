"""Training on recorded data: no look-ahead, the laws of the buffers, what age does, resuming."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from dufl import InputError
from dufl.data.recording import Recording, make_recording
from dufl.data.replay import divide
from dufl.data.samples import Samples
from dufl.learning.engine import make_engine
from dufl.learning.federation import Federation
from dufl.learning.policies import make_policy
from federations import facts
from recordings import hyperplane, linear, recorded


def weights_by_round(experiment: dufl.Experiment) -> list[Any]:
    """The weights after every round."""
    recording = experiment.data.load()
    experiment = experiment.fitted(recording)
    game, settings = experiment.game, experiment.training
    data = experiment.data.client_data(recording, game, settings.seed)
    policy = make_policy(experiment.policy, game, experiment.solve, settings.seed, data)
    engine = make_engine(data, settings, game.clients.size)
    try:
        federation = Federation(game, data, policy, settings, engine)
        weights = []
        while not federation.done:
            federation.play()
            weights.append(federation.weights)
        return weights
    finally:
        engine.close()


def with_another_future(recording: Recording, edge: int) -> Recording:
    """Other features and labels from a sample on, of the same classes."""
    generator = np.random.default_rng(99)
    x, y = recording.samples.features.copy(), recording.samples.labels.copy()
    x[edge:] = generator.standard_normal(x[edge:].shape) * 1e3
    y[edge:] = y[edge:][::-1] if y.dtype.kind == "f" else generator.permutation(1 - y[edge:])
    return replace(recording, samples=Samples(x, y))


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "dufl"},
        {"policy": "window-2", "normalize": "running"},
        {"policy": "keep-all", "dirichlet_alpha": 0.5, "collect": "random"},
        {"policy": "fresh-only", "deal": "blocks", "normalize": "none", "periods": "count"},
    ],
)
def test_no_future_sample_influences_an_earlier_round(options: dict[str, Any]) -> None:
    """The records of round t depend on nothing after period t, and its weights not even on period t."""
    recording, rounds, t = hyperplane(800, turns=0.3), 6, 3
    edges = divide(recording, rounds).edges
    experiment = recorded(recording, rounds=rounds, **options)
    run = dufl.train(experiment)
    other = dufl.train(
        experiment, data=experiment.data.replace(dataset=with_another_future(recording, edges[t + 1]))
    )
    for before, after in zip(run.records[: t + 1], other.records[: t + 1], strict=True):
        assert facts(before) == facts(after)
    assert facts(run.records[-1]) != facts(other.records[-1])  # the law can fail
    changed = experiment.data.replace(dataset=with_another_future(recording, edges[t]))
    one, two = weights_by_round(experiment), weights_by_round(experiment.replace(data=changed))
    for before, after in zip(one[: t + 1], two[: t + 1], strict=True):
        assert np.array_equal(before, after)
    assert not np.array_equal(one[-1], two[-1])


def test_sizes_and_ages_follow_the_laws_of_the_simulation() -> None:
    """The same plan on recorded and on simulated data: the same volumes and ages in every round."""
    game = dufl.Game(clients=dufl.Clients.draw(3, initial_volume=60.0), num_rounds=12)
    plan = dufl.equilibrium(game, payment=4.0, conservation_rate=0.6)
    training = dufl.Training(local_epochs=1)
    data = dufl.Data(hyperplane(30_000))
    real = dufl.train(game, data=data, training=training, policy=plan)
    simulated = dufl.train(game, training=training, policy=plan)
    assert all(record.shortfall == 0 for record in real.records)
    assert [r.volumes for r in real.records] == [r.volumes for r in simulated.records]
    assert [r.mean_age for r in real.records] == [r.mean_age for r in simulated.records]
    assert real.records[5].mean_age > 1


def test_discard_rules_on_recorded_data() -> None:
    """The plan's volumes with every rule; ages from the youngest to the oldest; classes stay balanced."""
    game = dufl.Game(clients=dufl.Clients.draw(3, initial_volume=60.0), num_rounds=12)
    plan = dufl.equilibrium(game, payment=4.0, conservation_rate=0.6)
    recording = hyperplane(30_000)
    rare = replace(
        recording, samples=Samples(recording.samples.features, (np.arange(30_000) % 10 == 0).astype(int))
    )
    ages, volumes = {}, []
    for discard in ("oldest", "uniform", "class-balanced", "reservoir"):
        data = dufl.Data(rare, discard=discard)
        run = dufl.train(game, data=data, training=dufl.Training(local_epochs=1), policy=plan)
        ages[discard] = run.records[-1].mean_age
        volumes.append([r.volumes for r in run.records])
        again = dufl.train(game, data=data, training=dufl.Training(local_epochs=1), policy=plan)
        assert run.summary()["fingerprint"] == again.summary()["fingerprint"]
    assert all(each == volumes[0] for each in volumes)
    assert ages["oldest"] < ages["uniform"] < ages["reservoir"]


@pytest.mark.parametrize("stored", [False, True])
def test_classes_are_needed_to_balance_them(tmp_path: Path, stored: bool) -> None:
    """Refused before anything is written."""
    experiment = recorded(linear(500)[0], task="regression", model="linear", discard="class-balanced")
    with pytest.raises(InputError) as caught:
        dufl.train(experiment, out=tmp_path / "run" if stored else None)
    assert (caught.value.field, caught.value.value) == ("data.discard", "class-balanced")
    assert not list(tmp_path.iterdir())


class Fresh:
    """Every client replaces its buffer by 50 samples in every round."""

    def __init__(self, game: dufl.Game, seed: int) -> None:
        pass

    def payment(self, round: int) -> float:
        return 0.0

    def size(self, client: int) -> int:
        return 50

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        return 0, 50

    def planned_staleness(self, round: int) -> float:
        return 1.0


def collecting(delay: int) -> Any:
    """Streams that collect new samples, which were recorded `delay` periods before the round."""

    class Late:
        def __init__(self, samples: Any, client: int, seed: int) -> None:
            self.key, self.length = (seed, client), len(samples) // 14

        def collect(self, count: int, round: int) -> Any:
            first = (round + 4 - delay) * self.length  # the warm-up is four periods long
            own = np.random.default_rng([*self.key, round + 1]).permutation(self.length)
            return first + own[:count]

    return Late


def harm_of_age(turns: float) -> list[float]:
    """Mean accuracy with fresh samples minus that with as many samples three periods old, by seed."""
    harm = []
    for seed in range(8):
        recording = hyperplane(2800, turns=turns, seed=seed)
        options: dict[str, Any] = {"policy": Fresh, "warm_up": 4 / 14, "seed": seed, "normalize": "none"}
        fresh, old = (
            dufl.train(recorded(recording, stream=collecting(delay), **options)).summary()["mean_accuracy"]
            for delay in (0, 3)
        )
        harm.append(fresh - old)
    return harm


def test_age_does_no_harm_to_stationary_data_and_ruins_a_rotating_stream() -> None:
    still, rotating = harm_of_age(0.0), harm_of_age(0.8)
    bound = 3 * np.std(still, ddof=1) / np.sqrt(len(still))
    assert abs(np.mean(still)) < bound < 0.02
    assert np.mean(rotating) > 0.1


def test_linear_regression_recovers_the_coefficients() -> None:
    recording, coefficients = linear()
    experiment = recorded(recording, task="regression", normalize="none", model="linear", local_epochs=5)
    run = dufl.train(experiment)
    (matrix, constant) = run.weights.values()
    assert np.allclose(np.append(matrix, constant), coefficients, atol=0.03)
    last, summary = run.records[-1], run.summary()
    assert np.isnan(last.accuracy)
    assert last.metrics["rmse"] == pytest.approx(np.sqrt(last.loss))
    assert last.metrics["rmse"] == pytest.approx(0.1, rel=0.2)
    assert last.metrics["r2"] > 0.99
    assert summary["mean_label_rmse"] > 3 * summary["mean_rmse"]


def test_linear_regression_is_the_same_in_torch() -> None:
    recording, _ = linear(600)
    options: dict[str, Any] = {"task": "regression", "model": "linear", "rounds": 4, "local_epochs": 2}
    compiled = dufl.train(recorded(recording, **options))
    torch = dufl.train(recorded(recording, **options, loss="torch.nn.functional:mse_loss", device="cpu"))
    for one, two in zip(compiled.weights.values(), torch.weights.values(), strict=True):
        assert np.allclose(one, two, rtol=1e-4, atol=1e-4)
    assert torch.records[-1].metrics["r2"] == pytest.approx(compiled.records[-1].metrics["r2"], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"model": "linear"}, "training.model"),
        ({"loss": "squared_error"}, "training.loss"),
        ({"task": "regression"}, "data.task"),
        ({"kind": "simulated"}, "data.kind"),
        ({"warm_up": 1.0}, "warm_up"),
    ],
)
def test_settings_for_other_labels_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        dufl.train(recorded(hyperplane(500), **options))
    assert caught.value.field == field


def test_regression_needs_the_linear_model() -> None:
    with pytest.raises(InputError, match="'linear' or your own") as caught:
        dufl.train(recorded(linear(500)[0], task="regression"))
    assert caught.value.field == "training.model"


def test_windows_hold_the_last_rounds() -> None:
    """The buffer of a window of m has the samples of the last m periods, and its mean age says so."""
    recording = hyperplane(1100)
    for policy, length in (("fresh-only", 1), ("window-3", 3), ("keep-all", 100)):
        run = dufl.train(recorded(recording, policy=policy, warm_up=1 / 11))
        for record in run.records[5:]:
            assert record.total_volume == pytest.approx(100 * min(length, record.round + 1), abs=3)
            if length < 10:
                assert record.mean_age == pytest.approx((length + 1) / 2, abs=0.02)


def test_a_shortfall_is_recorded_and_the_plan_knows_the_first_volumes() -> None:
    run = dufl.train(recorded(hyperplane(400), policy="dufl"))
    assert run.experiment.game.clients.initial_volume.max() <= 11  # a tenth of 400 samples, dealt to 4
    assert run.plan is not None
    assert run.plan.total_volume[0] == pytest.approx(40, abs=1)
    assert run.records[0].shortfall == 0
    assert run.summary()["shortfall"] == sum(record.shortfall for record in run.records) > 0
    for record, planned in zip(run.records, run.plan.total_volume, strict=True):
        assert record.total_volume + record.shortfall == pytest.approx(planned, abs=2)


def test_the_number_of_workers_does_not_matter() -> None:
    one, two = (
        dufl.train(recorded(hyperplane(800), policy="dufl", workers=workers)).summary()["fingerprint"]
        for workers in (1, 2)
    )
    assert one == two


def test_free_baselines_in_the_summary() -> None:
    recording = hyperplane(1000)
    run = dufl.train(recorded(recording))
    y, edges = recording.samples.labels, divide(recording, 10).edges
    same = [np.mean(y[a:b] == y[a - 1 : b - 1]) for a, b in pairwise(edges)]
    assert run.summary()["no_change_accuracy"] == pytest.approx(np.mean(same))
    assert run.summary()["mean_accuracy"] == pytest.approx(np.mean([r.accuracy for r in run.records]))
    assert [r.period.samples for r in run.records if r.period] == np.diff(edges).tolist()


def test_a_period_without_samples_has_no_score() -> None:
    t = np.concatenate([np.linspace(0, 3, 300), np.linspace(7, 10, 300)])
    x = np.random.default_rng(0).standard_normal((600, 2)).astype(np.float32)
    recording = make_recording("gap", x, (x[:, 0] > 0).astype(int), t)
    run = dufl.train(recorded(recording))
    empty = [record for record in run.records if record.period and not record.period.samples]
    assert empty
    assert all(np.isnan(record.accuracy) and np.isnan(record.loss) for record in empty)
    assert run.summary()["mean_accuracy"] > 0.8


def test_a_run_on_recorded_data_is_stored_read_and_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    recording = hyperplane(600)
    np.savez(path, x=recording.samples.features, y=recording.samples.labels, time=recording.times)
    experiment = recorded(recording, policy="dufl", rounds=5).replace(data=dufl.Data(path))
    run = dufl.train(experiment, out=tmp_path / "run")
    assert [facts(r) for r in dufl.Run.load(tmp_path / "run").records] == [facts(r) for r in run.records]
    again = dufl.train(experiment, out=tmp_path / "run", resume=True)
    assert again.summary()["fingerprint"] == run.summary()["fingerprint"]
    np.savez(path, x=recording.samples.features, y=1 - recording.samples.labels, time=recording.times)
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError):
        dufl.train(experiment, out=tmp_path / "run", resume=True)


ISSUE = ("--set", "data.kind=recorded", "--set", "num_rounds=60", "--set", "clients.count=5", "--json")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dufl", *arguments]


def test_the_documented_command(tmp_path: Path) -> None:
    path, recording = tmp_path / "mine.npz", hyperplane(1500)
    np.savez(path, x=recording.samples.features, y=recording.samples.labels, time=recording.times)
    done = subprocess.run(
        command("train", *ISSUE, "--set", f"data.dataset={path}"), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    wanted = {"mean_accuracy", "mean_loss", "final_accuracy", "shortfall"}
    assert wanted | {"no_change_accuracy", "majority_accuracy"} <= set(summary)
    assert summary["mean_accuracy"] > 0.7


def test_a_killed_run_on_recorded_data_resumes_bit_for_bit(tmp_path: Path) -> None:
    options = [
        *("--set", "dataset=weather", "--set", "num_rounds=80", "--set", "clients.count=6"),
        *("--set", "policy=keep-all", "--set", "checkpoint_every=3", "--set", "local_epochs=10"),
    ]
    whole = subprocess.run(command("train", *options, "--json"), capture_output=True, text=True, timeout=300)
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "run"
    begun = subprocess.Popen(command("train", *options, "--out", str(folder)), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (folder / "checkpoint.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    assert not (folder / "summary.json").exists()
    done = subprocess.run(
        command("train", "--out", str(folder), "--resume", "--json"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(part.stdout) for part in (whole, done))
    assert {k: v for k, v in first.items() if k != "seconds"} == {
        k: v for k, v in second.items() if k != "seconds"
    }


class Sensor:
    """A stream of one's own with the two methods of the data room: readings that nobody recorded before."""

    def __init__(self, samples: Any, client: int, seed: int) -> None:
        self.shape, self.key, self.position = samples.shape, (seed, client), 0

    def collect(self, count: int, round: int) -> Samples:
        first, self.position = self.position, self.position + count
        rows = [
            np.random.default_rng([*self.key, n]).standard_normal(self.shape)
            for n in range(first, first + count)
        ]
        x = np.array(rows, np.float32).reshape(count, *self.shape)
        return Samples(x, (x.reshape(count, -1)[:, 0] > 0).astype(np.int64))

    def resume(self, collected: int) -> None:
        self.position = collected


@pytest.mark.parametrize("model", ["logistic", "torch"])
def test_a_stream_of_samples_trains_and_resumes_bit_for_bit(tmp_path: Path, model: str) -> None:
    options: dict[str, Any] = {"policy": Fresh, "stream": Sensor, "normalize": "none", "rounds": 8}
    if model == "torch":
        options |= {"loss": "torch.nn.functional:cross_entropy", "device": "cpu"}
    experiment = recorded(hyperplane(800), checkpoint_every=2, **options)
    whole = dufl.train(experiment)
    assert whole.summary()["mean_accuracy"] > 0.8  # learned from samples that are not in the recording

    def pause(record: dufl.Record) -> Any:
        return dufl.Action.PAUSE if record.round == 4 else None

    dufl.train(experiment, out=tmp_path / "run", callbacks=[pause])
    rest = dufl.train(experiment, out=tmp_path / "run", resume=True)
    assert rest.summary()["fingerprint"] == whole.summary()["fingerprint"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda x: Samples(x[:, :2], np.zeros(len(x), int)), "of shape"),
        (lambda x: Samples(x, np.full(len(x), 7)), "from 0 to 1"),
        (lambda x: Samples(x, np.full(len(x), 0.5)), "classes"),
        (lambda x: Samples(x * np.nan, np.zeros(len(x), int)), "finite"),
        (lambda x: Samples(np.tile(x, (2, 1)), np.zeros(2 * len(x), int)), "at most"),
    ],
)
def test_samples_that_do_not_fit_are_refused(wrong: Any, says: str) -> None:
    class Wrong(Sensor):
        def collect(self, count: int, round: int) -> Samples:
            return wrong(super().collect(count, round).features)  # type: ignore[no-any-return]

    with pytest.raises(InputError, match=says):
        dufl.train(recorded(hyperplane(800), policy=Fresh, stream=Wrong))


def test_a_stream_that_fails_is_named() -> None:
    class Broken(Sensor):
        def collect(self, count: int, round: int) -> Samples:
            raise OSError("cable")

    with pytest.raises(dufl.PluginError, match=r"stream .*Broken.* raised OSError: cable"):
        dufl.train(recorded(hyperplane(800), policy=Fresh, stream=Broken))
