"""Everything by objects: what a researcher types in a notebook."""

import datetime
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from dufl.experiment.callbacks import Action
from dufl.late import late
from dufl.plugins import describe
from own_plugins import Half, Scaffold, top_two

GAME = dufl.Game(clients=dufl.Clients.draw(4, seed=0, initial_volume=120.0), num_rounds=6)
TRAINING = dufl.Training(local_epochs=1)


def test_a_plan_is_saved_and_loaded_without_solving_again(tmp_path: Path) -> None:
    plan = dufl.solve(GAME)
    plan.save(tmp_path / "p")
    again = dufl.Plan.load(tmp_path / "p")
    assert again.offer == plan.offer
    assert again.summary() == plan.summary()
    np.testing.assert_array_equal(again.collection, plan.collection)
    assert dufl.certify(again).holds()


def test_plans_of_every_method_survive_a_file(tmp_path: Path) -> None:
    clients = dufl.Clients([100, 300], 1e-3, 1e-5)
    game = dufl.Game(clients=clients, num_rounds=5)
    given = dufl.equilibrium(game, payment=3.0, conservation_rate=0.25, competition="nash")
    paper = dufl.solve(game, method="algorithm1", algorithm1=dufl.Algorithm1Options(search="direct"))
    for name, plan in {"given": given, "paper": paper}.items():
        plan.save(tmp_path / name)
        again = dufl.Plan.load(tmp_path / name)
        assert (again.method, again.competition) == (plan.method, plan.competition)
        np.testing.assert_array_equal(again.volume, plan.volume)
        np.testing.assert_array_equal(again.game.clients.initial_volume, clients.initial_volume)
    assert paper.trace is not None
    loaded = dufl.Plan.load(tmp_path / "paper").trace
    assert loaded is not None
    np.testing.assert_array_equal(loaded.total_volume, paper.trace.total_volume)
    with pytest.raises(dufl.InputError):
        given.save(tmp_path / "paper" / "plan.json")


def test_a_planned_policy_is_the_policy_dufl() -> None:
    plan = dufl.solve(GAME)
    by_name = dufl.train(GAME, training=TRAINING)
    for policy in (plan, dufl.Planned(plan)):
        assert (
            dufl.train(GAME, training=TRAINING, policy=policy).summary()["fingerprint"]
            == (by_name.summary()["fingerprint"])
        )
    with pytest.raises(dufl.InputError) as error:
        dufl.train(GAME.replace(num_rounds=7), training=TRAINING, policy=plan)
    assert error.value.field == "policy"


def test_own_algorithm_policy_and_metric_as_objects_and_classes(tmp_path: Path) -> None:
    training = dufl.Training(local_epochs=1, algorithm=Scaffold(1.0), metrics=[top_two])
    run = dufl.train(GAME, training=training, policy=Half, out=tmp_path / "run")
    last = run.records[-1]
    assert last.metrics["top_two"] >= last.accuracy
    assert last.payment == 1.0
    assert last.volumes == [120] * 4
    by_path = training.replace(algorithm="own_plugins:Scaffold", metrics=["own_plugins:top_two"])
    same = dufl.train(GAME, training=by_path, policy="own_plugins:Half")
    assert same.summary()["fingerprint"] == run.summary()["fingerprint"]
    loaded = dufl.Run.load(tmp_path / "run")
    assert loaded.records == run.records
    assert describe(loaded.experiment.training.algorithm) == "<Scaffold(server_rate=1.0)>"
    with pytest.raises(dufl.InputError) as error:
        dufl.train(loaded.experiment)
    assert error.value.field == "algorithm"


def test_an_update_counts_its_steps() -> None:
    seen: list[int] = []

    class Counting(Scaffold):
        def apply(self, state: Any, weights: Any, updates: Any) -> Any:
            listed = list(updates)
            seen.extend(update.steps for update in listed)
            return super().apply(state, weights, listed)

    training = dufl.Training(local_epochs=3, batch_size=50, algorithm=Counting())
    dufl.train(GAME, training=training, policy="static")
    assert set(seen) == {3 * 3}  # 120 samples in batches of 50


def test_functions_and_callbacks_follow_a_run(tmp_path: Path) -> None:
    rounds: list[int] = []
    events: list[str] = []

    class Log(dufl.Callback):
        def on_train_begin(self, experiment: dufl.Experiment, folder: Path | None) -> None:
            events.append(f"begin {folder is not None}")

        def on_train_end(self, run: dufl.Run) -> None:
            events.append(f"end {len(run.records)} {run.finished}")

    def pause(record: dufl.Record) -> Action | None:
        return Action.PAUSE if record.round == 2 else None

    callbacks: list[Any] = [lambda record: rounds.append(record.round), Log(), pause]
    part = dufl.train(GAME, training=TRAINING, out=tmp_path / "run", callbacks=callbacks)
    assert (rounds, events, part.finished) == ([0, 1, 2], ["begin True", "end 3 False"], False)
    rounds.clear()
    whole = dufl.train(GAME, training=TRAINING, out=tmp_path / "run", resume=True, callbacks=callbacks[:2])
    assert rounds == [0, 1, 2, 3, 4, 5]
    assert whole.summary()["fingerprint"] == dufl.train(GAME, training=TRAINING).summary()["fingerprint"]


def test_early_stopping_finishes_a_run_that_is_not_resumed(tmp_path: Path) -> None:
    early = dufl.EarlyStopping("accuracy", patience=2, min_delta=1.0)  # nothing improves by that much
    run = dufl.train(GAME, training=TRAINING, out=tmp_path / "run", callbacks=[early])
    assert len(run.records) == 3
    assert run.finished
    assert run.stopped_early
    assert run.weights
    again = dufl.train(GAME, training=TRAINING, out=tmp_path / "run", resume=True)
    assert again.records == run.records
    assert dufl.Run.load(tmp_path / "run").stopped_early
    with pytest.raises(dufl.PluginError, match="callback"):
        dufl.train(GAME, training=TRAINING, callbacks=[lambda _: 1 / 0])
    with pytest.raises(dufl.InputError) as error:
        dufl.train(GAME, training=TRAINING, callbacks=[dufl.EarlyStopping("nothing")])
    assert error.value.field == "metric"


def test_a_comparison_is_returned() -> None:
    base = dufl.Experiment(game=GAME, training=TRAINING)
    table = dufl.compare(dufl.grid(base, ["fedavg", Scaffold()]), seeds=range(2))
    names = [
        "fedavg-static",
        "fedavg-dufl",
        "Scaffold-server_rate-1.0-static",
        "Scaffold-server_rate-1.0-dufl",
    ]
    assert [cell.name for cell in table.cells] == names
    assert table.finished
    assert table["fedavg-dufl"].curve("loss").shape == (2, 6)
    frame = table.to_frame()
    assert frame.final_accuracy.tolist() == [row["final_accuracy"] for row in table.summary()]
    assert "fedavg-static" in repr(table)
    with pytest.raises(dufl.InputError) as error:
        dufl.compare([base, base])
    assert error.value.field == "experiments"


def test_a_sweep_is_a_frame_over_all_combinations() -> None:
    frame = dufl.sweep(GAME, time_sensitivity=[0.5, 1.5], payment_weight=[1e-4, 1e-3], seeds=2)
    assert len(frame) == 8
    one = frame[(frame.time_sensitivity == 1.5) & (frame.payment_weight == 1e-3) & (frame.seed == 1)].iloc[0]
    clients = dufl.Clients.draw(4, seed=1, initial_volume=120.0)
    plan = dufl.solve(GAME.replace(clients=clients, time_sensitivity=1.5, payment_weight=1e-3))
    assert one.payment == plan.payment
    with pytest.raises(dufl.InputError) as error:
        dufl.sweep(GAME, sigma=[1])
    assert error.value.field == "values"
    listed = GAME.replace(clients=dufl.Clients([100.0], 1e-3, 1e-5))
    with pytest.raises(dufl.InputError) as error:
        dufl.sweep(listed, time_sensitivity=[1.0], seeds=2)
    assert error.value.field == "clients"


def test_an_experiment_survives_toml(tmp_path: Path) -> None:
    clients = dufl.Clients.draw(3, seed=5, collection_cost=[1e-3, 2e-3, 3e-3], capacity=9000.0)
    experiment = dufl.Experiment(
        game=dufl.Game(clients=clients, num_rounds=4), policy="static", training=dufl.Training(seed=2)
    )
    path = tmp_path / "e.toml"
    path.write_text(experiment.to_toml(), encoding="utf-8")
    again = dufl.Experiment.from_toml(path)
    assert again.to_toml() == experiment.to_toml()
    np.testing.assert_array_equal(again.game.clients.training_cost, clients.training_cost)
    changed = dufl.Experiment.from_toml(path, {"training.seed": 9, "num_rounds": 7})
    assert (changed.training.seed, changed.game.num_rounds, changed.policy) == (9, 7, "static")


NOTEBOOK = """
    import json
    import numpy as np
    import torch
    import dufl
    from torch import nn
    from own_plugins import Scaffold

    class Net(nn.Module):
        def __init__(self, shape, num_classes):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), num_classes))

        def forward(self, x):
            return self.layers(x)

    def smoothed(logits, labels):
        return nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)

    class Everything:
        def __init__(self, game, seed):
            self.game = game

        def payment(self, round): return 0.0
        def size(self, client): return 60
        def step(self, client, round, size): return size, 5
        def planned_staleness(self, round): return float("nan")

    def blobs():
        generator = np.random.default_rng(0)
        x = generator.random((300, 8)).astype("float32")
        y = (x[:, 0] > 0.5).astype(int)
        return x[:200], y[:200], x[200:], y[200:]

    def error(labels, logits):
        return float((logits.argmax(1) != labels).mean())

    found = []
    for workers in (1, 2):
        training = dufl.Training(
            model=Net, algorithm=Scaffold(), loss=smoothed, metrics={"error": error},
            local_epochs=2, workers=workers, device="cpu",
        )
        game = dufl.Game(clients=dufl.Clients.draw(3, initial_volume=60.0), num_rounds=3)
        run = dufl.train(game, data=dufl.Data(blobs), training=training, policy=Everything)
        last = run.records[-1]
        found.append([run.summary()["fingerprint"], last.metrics["error"], 1 - last.accuracy, last.volumes])
    print(json.dumps(found))
"""


def test_classes_of_a_notebook_train_on_any_number_of_workers() -> None:
    pytest.importorskip("torch")
    support = str(Path(__file__).parents[1] / "support")
    program = f"import sys; sys.path.append({support!r})\n" + textwrap.dedent(NOTEBOOK)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)
    assert one == two
    fingerprint, error, wrong, volumes = one
    assert len(fingerprint) == 16
    assert error == pytest.approx(wrong)
    assert volumes == [70, 70, 70]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": 3}, "model"),
        ({"algorithm": "nothing"}, "algorithm"),
        ({"metrics": {"not a name": len}}, "metrics"),
        ({"metrics": 7}, "metrics"),
        ({"loss": "cross"}, "loss"),
        ({"model": datetime.time(12)}, "model"),
        ({"algorithm": datetime.date(1979, 5, 27)}, "algorithm"),
    ],
)
def test_bad_specifications_name_their_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(dufl.InputError) as error:
        dufl.Training(**change)
    assert error.value.field == field


def test_a_metric_must_return_a_number() -> None:
    training = dufl.Training(local_epochs=1, metrics={"bad": lambda labels, logits: "x"})
    with pytest.raises(dufl.InputError, match="metric 'bad'"):
        dufl.train(GAME, training=training, policy="static")

    def spoil(labels: Any, logits: Any) -> float:
        logits[:] = 0
        return 0.0

    with pytest.raises(dufl.PluginError, match="spoil"):
        dufl.train(GAME, training=training.replace(metrics=[spoil]), policy="static")


def test_results_show_themselves(tmp_path: Path) -> None:
    plan, run = dufl.solve(GAME), dufl.train(GAME, training=TRAINING)
    assert plan.to_frame().total_volume.tolist() == plan.total_volume.tolist()
    assert run.to_frame().accuracy.tolist() == [record.accuracy for record in run.records]
    for result in (plan, run):
        assert "<table" in result._repr_html_()
        assert result.plot()._repr_png_().startswith(b"\x89PNG")
    page = run.report(tmp_path / "run.html")
    assert f"{100 * run.accuracy:.1f} %" in page.read_text(encoding="utf-8")
    with pytest.raises(dufl.InputError) as error:
        run.report()
    assert error.value.field == "path"


def test_a_run_in_memory_is_saved_as_one_that_was_written(tmp_path: Path) -> None:
    written = dufl.train(GAME, training=TRAINING, out=tmp_path / "written")
    dufl.train(GAME, training=TRAINING).save(tmp_path / "saved")
    for name in ("config.toml", "model.safetensors"):
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "written" / name).read_bytes()
    saved = dufl.Run.load(tmp_path / "saved")
    assert saved.summary()["fingerprint"] == written.summary()["fingerprint"]
    assert dufl.train(GAME, training=TRAINING, out=tmp_path / "saved", resume=True).records == saved.records
    with pytest.raises(dufl.InputError):
        saved.save(tmp_path / "written")


LATE = (
    *("dufl.report.figures:plot_plan", "dufl.report.figures:plot_run", "dufl.report.figures:plot_comparison"),
    *("dufl.report.plan_table:plan_html", "dufl.report.tables:run_html", "dufl.experiment.frames:plan_frame"),
    *("dufl.experiment.plan_directory:write_plan", "dufl.experiment.plan_directory:read_plan"),
    *("dufl.experiment.endless_directory:write_endless", "dufl.report.endless_table:endless_html"),
)


@pytest.mark.parametrize("path", LATE)
def test_what_is_bound_late_exists(path: str) -> None:
    assert callable(late(path))
