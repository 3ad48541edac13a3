"""Run directories: complete, resumed bit for bit after any stop, never half-written, never mixed up."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dufl.errors import DuflError, InputError
from dufl.experiment.callbacks import TensorBoard
from dufl.experiment.run_directory import RunDirectory, read_metrics
from dufl.experiment.train import Run, train
from federations import SMALL, facts, small
from loading import load, pausing

LONGER = ("game.num_rounds=40", "checkpoint_every=7", "training.algorithm=feddyn", "client_dropout=0.1")

BY_AGE = (
    *("fraction_train=0.5", "client_selection=age", "age_weighting=exponential", "age_scale=2"),
    *("data.discard=reservoir", "game.conservation_range=[0.6, 0.6]"),
)


def assert_same_run(one: Run, two: Run) -> None:
    assert [facts(record) for record in one.records] == [facts(record) for record in two.records]
    assert one.weights.keys() == two.weights.keys()
    for name in one.weights:
        np.testing.assert_array_equal(one.weights[name], two.weights[name])


def test_a_run_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = train(small("checkpoint_every=3"), out=out)
    names = {path.name for path in out.iterdir()}
    assert names == {
        *("config.toml", "environment.json", "plan.npz", "metrics.jsonl"),
        *("summary.json", "model.safetensors", "checkpoint.npz", "manifest.json", ".lock"),
    }
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(8))
    asked = {
        *("round", "accuracy", "loss", "total_volume", "mean_age", "planned_staleness"),
        *("payment", "server_cost", "seconds"),
    }
    assert asked <= lines[0].keys()
    assert [facts(r) for r in read_metrics(out)] == [facts(r) for r in run.records]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["final_accuracy"] == run.records[-1].accuracy == run.accuracy
    assert summary == run.summary()
    environment = json.loads((out / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["numpy"] == np.__version__
    assert load(out / "config.toml").training == small("checkpoint_every=3").training
    with np.load(out / "plan.npz") as plan:
        assert plan["volume"].shape == (8, 4)
    weights = load_file(out / "model.safetensors")
    np.testing.assert_array_equal(weights["1.weight"], run.weights["1.weight"])


def test_the_saved_model_is_torch_s(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from dufl.data.datasets import load_dataset
    from dufl.learning.models import build

    run = train(small(), out=tmp_path / "run")
    model = build("logistic", (1, 8, 8), 10)
    model.load_state_dict(
        {n: torch.from_numpy(w) for n, w in load_file(tmp_path / "run/model.safetensors").items()}
    )
    test = load_dataset("digits").test
    right = (model(torch.from_numpy(test.to_float())).argmax(1).numpy() == test.labels).mean()
    assert right == pytest.approx(run.accuracy)


def test_without_a_directory_the_result_is_the_same(tmp_path: Path) -> None:
    assert_same_run(train(small()), train(small(), out=tmp_path / "run"))


def test_watching_and_stopping(tmp_path: Path) -> None:
    whole, seen = train(small(*LONGER)), list[Any]()
    part = train(
        small(*LONGER), out=tmp_path / "run", callbacks=[pausing(lambda: len(seen) == 10), seen.append]
    )
    assert not part.finished
    assert len(part.records) in (10, 11)
    assert not (tmp_path / "run/summary.json").exists()
    seen = []
    rest = train(small(*LONGER), out=tmp_path / "run", resume=True, callbacks=[seen.append])
    assert len(seen) == 40
    assert_same_run(rest, whole)


def test_resuming_a_run_that_is_over(tmp_path: Path) -> None:
    first = train(small(), out=tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    again = train(small(), out=tmp_path / "run", resume=True)
    assert_same_run(first, again)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


PROGRAM = """
import sys
from pathlib import Path
from dufl.cli.common import parse_changes
from dufl.experiment.config import Experiment
from dufl.experiment.train import train
train(Experiment.from_toml(changes=parse_changes(sys.argv[2:])), out=Path(sys.argv[1]), resume=True)
"""


def start(out: Path, *changes: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, str(out), *SMALL, *changes]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("changes", [(), BY_AGE])
def test_killed_at_any_moment_and_resumed(tmp_path: Path, changes: tuple[str, ...]) -> None:
    told = (*LONGER, "game.num_rounds=120", *changes)
    whole = train(small(*told), out=tmp_path / "whole")
    out, kills = tmp_path / "killed", 0
    generator = np.random.default_rng(0)
    for _ in range(200):
        process = start(out, *told)
        deadline = time.monotonic() + 60
        goal = rounds_in(out) + int(generator.integers(1, 70))
        while process.poll() is None and time.monotonic() < deadline:
            if rounds_in(out) >= goal:
                process.kill()
                kills += 1
                break
            time.sleep(0.001)
        _, said = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    assert kills >= 2
    assert_same_run(train(small(*told), out=out, resume=True), whole)
    one, two = (json.loads((tmp_path / n / "summary.json").read_text()) for n in ("whole", "killed"))
    assert one["fingerprint"] == two["fingerprint"]


def rounds_in(out: Path) -> int:
    lines = out / "metrics.jsonl"
    return lines.read_text().count("\n") if lines.exists() else 0


def test_a_line_cut_short_is_made_good(tmp_path: Path) -> None:
    whole, out = train(small("checkpoint_every=3")), tmp_path / "run"
    seen: list[Any] = []
    train(small("checkpoint_every=3"), out=out, callbacks=[pausing(lambda: len(seen) >= 4), seen.append])
    with (out / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 5, "acc')
    assert_same_run(train(small("checkpoint_every=3"), out=out, resume=True), whole)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(small(), out=out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(
        InputError,
        match=r"another configuration: game.num_rounds was 8, is 9; training.local_epochs was 2, is 3",
    ):
        train(small("training.local_epochs=3", "game.num_rounds=9"), out=out, resume=True)
    with pytest.raises(InputError, match=r"training.seed was 0, is 1"):
        train(small("training.seed=1"), out=out)
    with pytest.raises(InputError, match=r"holds a run already: add --resume"):
        train(small(), out=out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    train(small("workers=1", "checkpoint_every=2"), out=out, resume=True)  # these change no result


def test_other_clients_in_the_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(
        "initial_volume,collection_cost,training_cost\n50,1e-3,1e-5\n60,1e-3,1e-5\n"
    )
    told = tmp_path / "f.toml"
    told.write_text('[clients]\nfile = "c.csv"\n[game]\nnum_rounds = 3\n[training]\nlocal_epochs = 1\n')
    train(load(told), out=tmp_path / "run")
    (tmp_path / "c.csv").write_text(
        "initial_volume,collection_cost,training_cost\n50,1e-3,1e-5\n61,1e-3,1e-5\n"
    )
    with pytest.raises(InputError, match="the clients in the file differ"):
        train(load(told), out=tmp_path / "run", resume=True)
    train(load(tmp_path / "run" / "config.toml"), out=tmp_path / "run", resume=True)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    out, seen = tmp_path / "run", list[Any]()
    train(small("checkpoint_every=1"), out=out, callbacks=[pausing(lambda: len(seen) >= 4), seen.append])
    whole = (out / "checkpoint.npz").read_bytes()
    (out / "checkpoint.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"checkpoint.npz must be an undamaged checkpoint"):
        train(small("checkpoint_every=1"), out=out, resume=True)
    (out / "checkpoint.npz").write_bytes(whole)
    kept = (out / "metrics.jsonl").read_text()
    for nonsense in ("nonsense\n{}\n", "{}\n{}\n", "[]\n[]\n", '{"loss": 1}\n\n'):
        (out / "metrics.jsonl").write_text(nonsense)
        with pytest.raises(InputError, match=r"metrics.jsonl must be the metrics of a run: line 1"):
            train(small("checkpoint_every=1"), out=out, resume=True)
    (out / "metrics.jsonl").write_text(kept)
    train(small("checkpoint_every=1"), out=out, resume=True)
    for name in ("model.safetensors", "summary.json", "environment.json", "config.toml"):
        whole = (out / name).read_bytes()
        (out / name).write_text("nonsense")
        with pytest.raises(InputError, match=rf"{name} must be unchanged"):
            RunDirectory(out).load(), RunDirectory(out).environment(), train(small(), out=out, resume=True)
        (out / name).write_bytes(whole)
    train(small("checkpoint_every=1"), out=out, resume=True)


def test_two_processes_in_one_directory(tmp_path: Path) -> None:
    place = RunDirectory(tmp_path / "run")
    with (
        place.locked(),
        pytest.raises(InputError, match="must be free, but another process has it open"),
    ):
        train(small(), out=tmp_path / "run")


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # a disk that takes no more


def test_a_full_disk(tmp_path: Path) -> None:
    """Writing fails in mid-run: one clear sentence, and the last checkpoint is intact and goes on."""
    changes = ("game.num_rounds=200", "checkpoint_every=5", "clients.count=6")
    out = tmp_path / "run"
    process = start(out, *changes, preexec_fn=_small_files)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    last = said.decode().strip().splitlines()[-1]
    assert "cannot be written to" in last
    assert "the last checkpoint is intact; when this is fixed, resume with: dufl train --out" in last
    assert not [path for path in out.iterdir() if path.name.startswith(".") and path.name != ".lock"]
    with np.load(out / "checkpoint.npz") as checkpoint:
        assert 0 < int(checkpoint["round"]) < 200
    assert_same_run(train(small(*changes), out=out, resume=True), train(small(*changes)))


@pytest.mark.skipif(os.geteuid() != 0, reason="a real full disk needs root, to mount one")
def test_a_real_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(DuflError, match=r"No space left on device: '.*'; the last checkpoint is intact"):
            train(small("game.num_rounds=300", "checkpoint_every=5"), out=disk / "run")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_options_that_need_a_directory() -> None:
    with pytest.raises(InputError, match=r"^out must be given with resume=True$"):
        train(small(), resume=True)
    with pytest.raises(InputError, match=r"^out must be given with TensorBoard"):
        train(small(), callbacks=[TensorBoard()])


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train(small(), out=tmp_path / "run", callbacks=[TensorBoard()])
    events = reader.EventAccumulator(str(tmp_path / "run")).Reload()
    seen = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert seen == [(r.round, pytest.approx(r.accuracy, abs=1e-6)) for r in run.records]


def test_an_infinite_cost_is_written_as_json_and_read_back(tmp_path: Path) -> None:
    """Nobody holds anything from round 1 on."""
    config = small().fixed(0.0, 0.0)
    run = train(config, out=tmp_path / "run")
    assert np.isinf(run.records[-1].server_cost)
    assert read_metrics(tmp_path / "run") == run.records
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "1e999" not in text
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [line.get("server_cost_infinite", False) for line in lines] == [
        bool(np.isinf(record.server_cost)) for record in run.records
    ]
    RunDirectory(tmp_path / "run").cut(len(lines))
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == text
    assert train(config, out=tmp_path / "run", resume=True).records == run.records
