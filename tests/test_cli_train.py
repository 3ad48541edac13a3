"""`dufl train` and `dufl compare` as a user types them: results, files, stops, errors, exit codes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.experiment.config import load
from dufl.experiment.train import train
from dufl.learning.federation import Federation

SMALL = ("game.num_rounds=5", "clients.count=4", "clients.initial_volume=100", "training.epochs=1")
LONG = ("game.num_rounds=250", "clients.count=4", "clients.initial_volume=100", "policy=static")
CNN = (
    *("game.num_rounds=30", "clients.count=4", "clients.initial_volume=100", "policy=static"),
    *("model=cnn", "device=cpu", "workers=2"),
)
RUN = {
    *("config.toml", "environment.json", "plan.npz", "metrics.jsonl", "checkpoint.npz"),
    *("model.safetensors", "summary.json", ".lock"),
}


def told(*changes: str) -> list[str]:
    """Changes as arguments."""
    return [part for change in changes for part in ("--set", change)]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Results


def test_train_for_people(dufl_command: Any) -> None:
    code, out, err = dufl_command("train", *told(*SMALL))
    assert (code, err) == (0, "")
    for words in (
        "digits, logistic, fedavg, dufl: ",
        "right after 5 rounds",
        "accuracy, at its best",
        "mean age in the last round",
        "(planned ",
        "payment over all rounds",
        "server cost",
        "accuracy over rounds",
    ):
        assert words in out
    assert "written" not in out
    assert "█" in out


def test_train_as_json_and_all_its_files(dufl_command: Any, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    code, out, err = dufl_command("train", *told(*SMALL), "--json", "--out", str(folder))
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads((folder / "summary.json").read_text())
    assert {path.name for path in folder.iterdir()} == RUN | {"training.png", "training.svg"}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == found["rounds"] == 5
    assert found["final_accuracy"] == lines[-1]["accuracy"]
    assert found["best_accuracy"] == max(line["accuracy"] for line in lines) <= 1
    assert (found["dataset"], found["model"]) == ("digits", "logistic")
    assert (found["algorithm"], found["policy"], found["seed"]) == ("fedavg", "dufl", 0)
    assert len(found["fingerprint"]) == 16
    _, out, _ = dufl_command("train", *told(*SMALL), "--json")
    again = json.loads(out)
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in found.items() if k != "seconds"
    }
    _, out, _ = dufl_command("train", *told(*SMALL, "training.seed=1"), "--json")
    assert json.loads(out)["fingerprint"] != found["fingerprint"]
    code, out, _ = dufl_command("train", str(folder / "config.toml"), "--json")
    assert json.loads(out)["fingerprint"] == found["fingerprint"]


def test_an_own_dataset_policy_and_module(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "own.npz")
    (tmp_path / "own_policy_of_cli.py").write_text(
        "class Greedy:\n"
        "    def __init__(self, game, seed): pass\n"
        "    def payment(self, round): return 3.0\n"
        "    def size(self, client): return 20\n"
        "    def step(self, client, round, size): return size // 2, 10\n"
        "    def planned_staleness(self, round): return float('nan')\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = told(*SMALL, "dataset=own.npz", "policy=own_policy_of_cli:Greedy")
    code, out, err = dufl_command("train", *arguments, "--json", "--out", "run")
    assert (code, err) == (0, "")
    assert json.loads(out)["total_payment"] == 15
    assert json.loads(out)["mean_volume"] == 80
    assert not (tmp_path / "run" / "plan.npz").exists()
    code, out, _ = dufl_command("train", *arguments)
    assert (code, "planned" in out) == (0, False)


# Going on


def test_resume_takes_the_configuration_of_the_run(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = train(load(None, SMALL), out).summary()
    before = files(out)
    code, again, err = dufl_command("train", "--resume", "--out", str(out), "--json")
    assert (code, err) == (0, "")
    assert json.loads(again) == first
    code, shown, _ = dufl_command("train", *told(*SMALL), "--resume", "--out", str(out))
    assert code == 0
    assert f"written: {out}/metrics.jsonl" in shown
    assert {n: b for n, b in files(out).items() if not n.startswith("training.")} == before


def test_resume_goes_on_after_a_stop(dufl_command: Any, tmp_path: Path) -> None:
    """The first rounds are there, the last are not: as after a kill."""
    out, seen = tmp_path / "run", list[Any]()
    config = load(None, [*SMALL, "game.num_rounds=8", "checkpoint_every=3"])
    train(config, out, watch=seen.append, stop=lambda: len(seen) >= 4)
    assert not (out / "summary.json").exists()
    code, shown, _ = dufl_command("train", "--resume", "--out", str(out), "--json")
    assert code == 0
    assert json.loads(shown)["fingerprint"] == train(config).summary()["fingerprint"]
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 8


def test_resume_with_a_relative_dataset(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of --set is relative to the current folder, also when the run is resumed by itself."""
    write_dataset(tmp_path / "own.npz")
    monkeypatch.chdir(tmp_path)
    code, _, _ = dufl_command("train", *told(*SMALL, "dataset=own.npz"), "--out", "run")
    assert code == 0
    code, _, err = dufl_command("train", "--resume", "--out", "run")
    assert (code, err) == (0, "")
    code, _, err = dufl_command("train", "run/config.toml")
    assert (code, err) == (0, "")


def test_resume_with_another_number_of_workers(dufl_command: Any, tmp_path: Path) -> None:
    """The result does not depend on it, so it alone may be given."""
    train(load(None, SMALL), tmp_path / "run")
    arguments = told("training.workers=1", "checkpoint_every=2")
    code, _, err = dufl_command("train", *arguments, "--resume", "--out", str(tmp_path / "run"))
    assert (code, err) == (0, "")


def test_refused_to_go_on(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(load(None, SMALL), out)
    before = files(out)
    code, shown, err = dufl_command(
        "train", *told(*SMALL, "training.epochs=2"), "--resume", "--out", str(out)
    )
    assert (code, shown) == (2, "")
    assert err == f"error: {out} holds a run of another configuration: training.epochs was 1, is 2\n"
    code, _, err = dufl_command("train", *told(*SMALL), "--out", str(out))
    assert code == 2
    assert err == (
        f"error: {out} holds a run already: add --resume to go on with it, or choose another --out\n"
    )
    assert files(out) == before


def test_resume_without_a_run(dufl_command: Any, tmp_path: Path) -> None:
    code, _, err = dufl_command("train", "--resume")
    assert (code, err) == (2, "error: --out must be given with --resume\n")
    code, _, err = dufl_command("train", *told(*SMALL), "--resume")
    assert (code, err) == (2, "error: --out must be given with --resume\n")
    nothing, empty = tmp_path / "nothing", tmp_path / "empty"
    empty.mkdir()
    for folder in (nothing, empty):
        code, _, err = dufl_command("train", "--resume", "--out", str(folder))
        assert code == 2
        assert err == f"error: --out must be a directory with a run to resume, got {folder}\n"
    assert not nothing.exists()
    assert list(empty.iterdir()) == []
    code, _, err = dufl_command("train", "--tensorboard")
    assert (code, err) == (2, "error: --out must be given with --tensorboard\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", None),
        ("config.toml", b"[game\n"),
        ("summary.json", b"{"),
        ("model.safetensors", None),
        ("model.safetensors", b"nonsense"),
        ("metrics.jsonl", b"{}\n{}\n"),
        ("metrics.jsonl", b""),
    ],
)
def test_a_damaged_run_is_refused(
    dufl_command: Any, tmp_path: Path, name: str, content: bytes | None
) -> None:
    """One sentence that names the file; nothing is changed."""
    out = tmp_path / "run"
    train(load(None, SMALL), out)
    if content is None:
        (out / name).unlink()
    else:
        (out / name).write_bytes(content)
    before = files(out)
    code, _, err = dufl_command("train", *told(*SMALL), "--resume", "--out", str(out))
    assert code == 2
    assert_sentence(err)
    assert str(out / name) in err
    assert files(out) == before


# Comparing


def test_compare_for_people(dufl_command: Any) -> None:
    code, out, err = dufl_command("compare", *told(*SMALL), "--algorithms", "fedavg, feddyn")
    assert (code, err) == (0, "")
    rows = [line.split()[:2] for line in out.splitlines()]
    assert rows == [
        ["algorithm", "policy"],
        ["fedavg", "static"],
        ["fedavg", "dufl"],
        ["feddyn", "static"],
        ["feddyn", "dufl"],
    ]


def test_compare_writes_a_run_a_cell(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "all"
    arguments = [*told(*SMALL, "training.seed=3"), "--seeds", "2", "--policies", "dufl,static"]
    code, shown, err = dufl_command("compare", *arguments, "--out", str(out))
    assert (code, err) == (0, "")
    assert f"written: {out / 'comparison.csv'}" in shown
    runs = {f"fedavg-{policy}-{seed}" for policy in ("dufl", "static") for seed in (3, 4)}
    pictures = {"comparison.csv", "comparison.png", "comparison.svg"}
    assert {path.name for path in out.iterdir()} == runs | pictures
    for name in runs:
        assert {path.name for path in (out / name).iterdir()} >= RUN
    with (out / "comparison.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4 * 5
    before = files(out)
    code, shown, err = dufl_command("compare", *arguments, "--out", str(out), "--resume", "--json")
    assert (code, err) == (0, "")
    after = files(out)
    assert after.keys() == before.keys()
    for name, content in before.items():
        if not name.endswith((".png", ".svg")):
            assert after[name] == content, name
    cells = json.loads(shown)["cells"]
    assert [(cell["algorithm"], cell["policy"], cell["seeds"]) for cell in cells] == [
        ("fedavg", "dufl", [3, 4]),
        ("fedavg", "static", [3, 4]),
    ]
    for cell in cells:
        finals = []
        for seed in cell["seeds"]:
            folder = out / f"fedavg-{cell['policy']}-{seed}"
            finals.append(json.loads((folder / "summary.json").read_text())["final_accuracy"])
        assert cell["accuracies"] == finals
        assert cell["final_accuracy"] == pytest.approx(np.mean(finals))
        assert cell["accuracy_spread"] == pytest.approx(max(finals) - min(finals))
    code, _, err = dufl_command("compare", *arguments, "--out", str(out))
    assert code == 2
    assert "holds a run already: add --resume" in err
    assert files(out) == after


def test_compare_takes_the_algorithm_of_the_file(dufl_command: Any, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('[training]\nalgorithm = "fedprox"\nepochs = 1\n')
    arguments = [str(tmp_path / "f.toml"), *told(*SMALL), "--policies", "static", "--json"]
    code, out, _ = dufl_command("compare", *arguments)
    assert code == 0
    assert [cell["algorithm"] for cell in json.loads(out)["cells"]] == ["fedprox"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "fedavg,fedprx"], "unknown algorithm 'fedprx': did you mean 'fedprox'?"),
        (["--policies", "static,dulf"], "unknown policy 'dulf': did you mean 'dufl'?"),
        (["--algorithms", "fedavg,fedavg"], "--algorithms must be names that differ, got 'fedavg,fedavg'"),
        (["--policies", "dufl,dufl"], "--policies must be names that differ, got 'dufl,dufl'"),
        (["--policies", ","], "--policies must be at least one name, got ','"),
        (["--algorithms", ""], "--algorithms must be at least one name, got ''"),
        (["--algorithms", "fedavg,nowhere.at.all:Own"], "algorithm must be importable, got 'nowhere.at.all:"),
        (["--policies", "static,nowhere.at.all:Own"], "policy must be importable, got 'nowhere.at.all:Own'"),
        (
            told("model=nowhere.at.all:Own", "device=cpu", "workers=1"),
            "model must be importable, got 'nowhere.at.all:Own'",
        ),
        (told("dataset=digit"), "unknown dataset 'digit': did you mean 'digits'?"),
    ],
)
def test_compare_checks_everything_before_it_runs(
    dufl_command: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = dufl_command("compare", *told(*SMALL), *arguments, "--out", str(tmp_path / "all"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert message in err
    assert not (tmp_path / "all").exists()


def test_compare_finds_a_run_in_the_way_before_it_runs(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "all"
    dufl_command("compare", *told(*SMALL), "--policies", "static", "--out", str(out))
    before = files(out)
    code, _, err = dufl_command("compare", *told(*SMALL), "--policies", "dufl,static", "--out", str(out))
    assert code == 2
    assert "holds a run already: add --resume" in err
    assert files(out) == before


def test_compare_to_resume_needs_out(dufl_command: Any) -> None:
    code, _, err = dufl_command("compare", "--resume")
    assert (code, err) == (2, "error: --out must be given with --resume\n")
    assert dufl_command("compare", "--seeds", "0")[0] == 2


# Bad input


def assert_sentence(err: str) -> None:
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["algorithm=fedavgg"], "unknown algorithm 'fedavgg': did you mean 'fedavg'?"),
        (["model=resnet"], "unknown model 'resnet': did you mean 'resnet18'?"),
        (["policy=dulf"], "unknown policy 'dulf': did you mean 'dufl'?"),
        (["policy=zzz"], "unknown policy 'zzz': known are dufl, static, or package.module:Name"),
        (["dataset=mnits"], "unknown dataset 'mnits': did you mean 'mnist'?"),
        (["dataset=digits:"], "unknown dataset 'digits:'"),
        (["epochs=0"], "[training] epochs must be >= 1, got 0"),
        (["epochs=1.5"], "[training] epochs must be a whole number, got 1.5"),
        (["batch_size=0"], "[training] batch_size must be >= 1, got 0"),
        (["training.learning_rate=-1"], "[training] learning_rate must be > 0, got -1"),
        (["training.learning_rate=nan"], "[training] learning_rate must be a finite number, got nan"),
        (["momentum=1"], "[training] momentum must be in [0, 1), got 1"),
        (["dropout=1"], "[training] dropout must be in [0, 1), got 1"),
        (["participation=0"], "[training] participation must be in (0, 1], got 0"),
        (["device=cuda:99"], "device must be one that is there (cpu"),
        (["device=tpu"], "device must be one of auto, cpu, cuda, mps or cuda:1 and so on, got 'tpu'"),
        (["workers=-1"], "[training] workers must be >= 0, got -1"),
        (["precision=f16"], "[training] precision must be one of 'float32' or 'bf16', got 'f16'"),
        (["training.seed=-1"], "[training] seed must be >= 0, got -1"),
        (["checkpoint_every=0"], "[training] checkpoint_every must be >= 1, got 0"),
        (["dynamic_weight=0"], "[training] dynamic_weight must be > 0, got 0"),
        (["noise_scale=-1"], "[data] noise_scale must be >= 0, got -1"),
        (["skew=0"], "[data] skew must be > 0, got 0"),
        (["initial_classes=11"], "[data] initial_classes must be <= the 10 classes of digits, got 11"),
        (
            ["class_order=[0,1]"],
            "[data] class_order must be every class of digits from 0 to 9 once, got [0, 1]",
        ),
        (
            ["class_order=labels"],
            "class_order must be 'label', 'client' or a list of all classes, got 'l",
        ),
        (["data_dir=nowhere", "dataset=mnist"], "data_dir must be a folder that exists, got "),
        (["dataset=nowhere/own.npz"], "nowhere/own.npz cannot be read: No such file or directory"),
        (["dataset=nowhere.at.all:make"], "dataset must be importable, got 'nowhere.at.all:make'"),
        (["dataset=json:nothing"], "dataset must be a class or function in json, got 'json:nothing'"),
        (["algorithm=nowhere.at.all:Own"], "algorithm must be importable, got 'nowhere.at.all:Own'"),
        (["algorithm=collections:Counter"], "algorithm 'collections:Counter' must be one with init, pull"),
        (["policy=nowhere.at.all:Own"], "policy must be importable, got 'nowhere.at.all:Own'"),
        (["policy=json:loads"], "policy 'json:loads' cannot be made: TypeError: "),
        (["training.epoch=1"], "unknown key 'epoch' in [training]: did you mean 'epochs'?"),
    ],
)
def test_bad_input_ends_with_2_and_writes_nothing(
    dufl_command: Any, tmp_path: Path, changes: list[str], message: str
) -> None:
    code, out, err = dufl_command("train", *told(*SMALL, *changes), "--out", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert message in err
    assert not (tmp_path / "run").exists()


OWN_MODELS = """
from torch import nn

class TooMany(nn.Sequential):
    def __init__(self, shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes + 1))
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at.all:Own", "model must be importable, got 'nowhere.at.all:Own': ModuleNotFoundError"),
        (
            "own_models_of_cli:TooMany",
            "the output of model 'own_models_of_cli:TooMany' must be of shape (2, 10)",
        ),
    ],
)
def test_bad_models_end_with_2_and_write_nothing(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own_models_of_cli.py").write_text(OWN_MODELS)
    monkeypatch.chdir(tmp_path)
    changes = (*SMALL, f"model={name}", "workers=1", "device=cpu")
    code, out, err = dufl_command("train", *told(*changes), "--out", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert message in err
    assert not (tmp_path / "run").exists()
    assert children(os.getpid()) == []


OWN_CODE = """
def away():
    raise OSError("the sensor is away")

def odd():
    raise KeyError("odd")

class Algorithm:
    def __init__(self):
        raise RuntimeError("not today")
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("dataset=own_code_of_cli:away", ["dataset", "own_code_of_cli:away", "the sensor is away"]),
        ("dataset=own_code_of_cli:odd", ["dataset", "own_code_of_cli:odd", "KeyError"]),
        ("algorithm=own_code_of_cli:Algorithm", ["algorithm", "own_code_of_cli:Algorithm", "not today"]),
    ],
)
def test_own_code_that_raises_when_it_is_called(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, words: list[str]
) -> None:
    (tmp_path / "own_code_of_cli.py").write_text(OWN_CODE)
    monkeypatch.chdir(tmp_path)
    code, out, err = dufl_command("train", *told(*SMALL, change), "--out", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    for word in words:
        assert word in err
    assert "cannot be written to" not in err
    assert not (tmp_path / "run").exists()


def write_dataset(path: Path, **changes: Any) -> None:
    """A dataset of our own in a file; what is changed to None is left out."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": generator.integers(0, 256, (60, 1, 5, 4), dtype=np.uint8),
        "y_train": np.arange(60) % 3,
        "x_test": generator.integers(0, 256, (9, 1, 5, 4), dtype=np.uint8),
        "y_test": np.arange(9) % 3,
    } | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": None}, ["y_test"]),
        ({"y_train": np.arange(59) % 3}, ["60", "59"]),
        ({"y_train": np.arange(60) % 3 - 1}, ["y_train", "-1"]),
        ({"x_test": np.zeros((9, 1, 4, 4), np.uint8)}, ["x_test", "(1, 4, 4)"]),
    ],
)
def test_a_bad_own_dataset(
    dufl_command: Any, tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    path = tmp_path / "own.npz"
    write_dataset(path, **changes)
    arguments = told(*SMALL, f"dataset={path}")
    code, out, err = dufl_command("train", *arguments, "--out", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    for word in words:
        assert word in err
    assert not (tmp_path / "run").exists()


def test_a_dataset_that_is_not_there(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    arguments = told(*SMALL, "dataset=mnist", f"data_dir={tmp_path / 'data'}")
    code, out, err = dufl_command("train", *arguments, "--out", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert err == (
        f"error: mnist is not there: looked in {tmp_path / 'data'}, {tmp_path / 'cache/dufl'}; "
        "run `dufl data fetch mnist`\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_out_that_cannot_be_written_to(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        code, _, err = dufl_command(command, *told(*SMALL), "--out", str(out))
        assert code == 2
        assert err == f"error: --out must be a directory that can be written to, got {out}\n"
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and may(path, mode))  # even for root
    code, _, err = dufl_command(command, *told(*SMALL), "--out", str(tmp_path / "run"))
    assert code == 2
    assert err == f"error: --out must be a directory that can be written to, got {tmp_path / 'run'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Stops


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`dufl ARGUMENTS` as a process of its own; ended if it has not by itself."""
    command = [str(Path(sys.executable).with_name("dufl")), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_rounds(process: subprocess.Popen[str], out: Path, rounds: int) -> None:
    """Until so many are over."""
    path, deadline = out / "metrics.jsonl", time.monotonic() + 60
    while not path.exists() or path.read_text().count("\n") < rounds:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """The processes that a process started and that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def alive(pids: list[int]) -> list[int]:
    return [
        pid
        for pid in pids
        if (path := Path(f"/proc/{pid}/cmdline")).exists() and b"dufl.learning.worker" in path.read_bytes()
    ]


def assert_gone(pids: list[int], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive(pids) == []


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_and_the_rest(dufl_command: Any, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    with running("train", *told(*LONG), "--out", str(out)) as process:
        wait_for_rounds(process, out, 3)
        process.send_signal(number)
        shown, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert shown == ""
    first, last = err.splitlines()
    assert first == "stopping after this round; press Ctrl-C again to stop at once"
    rounds = (out / "metrics.jsonl").read_text().count("\n")
    assert last == f"stopped after {rounds} of 250 rounds; go on with: dufl train --out {out} --resume"
    with np.load(out / "checkpoint.npz") as checkpoint:
        assert int(checkpoint["round"]) == rounds < 250
    names = {path.name for path in out.iterdir()}
    assert names == RUN - {"model.safetensors", "summary.json"}
    whole = train(load(None, LONG)).summary()
    code, shown, err = dufl_command("train", "--out", str(out), "--resume", "--json")
    assert (code, err) == (0, "")
    assert json.loads(shown)["fingerprint"] == whole["fingerprint"]
    assert json.loads(shown)["server_cost"] == whole["server_cost"]


def test_a_stop_without_a_directory(dufl_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the first round is played, in this very process."""
    play = Federation.play

    def interrupted(self: Federation) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return play(self)

    monkeypatch.setattr(Federation, "play", interrupted)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    code, out, err = dufl_command("train", *told(*SMALL))
    assert (code, out) == (130, "")
    assert err.splitlines()[1] == "stopped after 1 of 5 rounds; nothing is kept without --out"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_stop_of_a_comparison(dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play, played = Federation.play, list[int]()

    def interrupted(self: Federation) -> Any:
        played.append(self.round)
        if len(played) == 7:  # in the second cell
            os.kill(os.getpid(), signal.SIGTERM)
        return play(self)

    arguments = [*told(*SMALL), "--out", str(tmp_path / "all")]
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "play", interrupted)
        code, out, err = dufl_command("compare", *arguments)
    assert (code, out) == (130, "")
    assert err.splitlines()[1] == "stopped; the same command with --resume goes on"
    assert len(played) == 7
    assert not (tmp_path / "all/comparison.csv").exists()
    code, shown, _ = dufl_command("compare", *arguments, "--resume", "--json")
    assert code == 0
    _, whole, _ = dufl_command("compare", *told(*SMALL), "--json")
    for one, two in zip(json.loads(shown)["cells"], json.loads(whole)["cells"], strict=True):
        assert one["accuracies"] == two["accuracies"]


@needs_proc
def test_a_stop_with_torch_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "run"
    with running("train", *told(*CNN, "epochs=1"), "--out", str(out)) as process:
        wait_for_rounds(process, out, 2)
        pids = children(process.pid)
        assert alive(pids) == pids
        assert len(pids) == 2
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].endswith(f"go on with: dufl train --out {out} --resume")
    assert alive(pids) == []
    with np.load(out / "checkpoint.npz") as checkpoint:
        assert int(checkpoint["round"]) == (out / "metrics.jsonl").read_text().count("\n")


@contextmanager
def in_a_long_round(out: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A run whose first round takes minutes, once it is in it, and its workers; none is left behind."""
    with running("train", *told(*CNN, "epochs=3000"), "--out", str(out)) as process:
        deadline = time.monotonic() + 60
        while not (out / "environment.json").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        pids = children(process.pid)
        try:
            assert len(alive(pids)) == 2
            yield process, pids
        finally:
            for pid in alive([*pids, *children(process.pid)]):
                os.kill(pid, signal.SIGKILL)


@needs_proc
def test_workers_end_when_the_program_is_killed(tmp_path: Path) -> None:
    """Even in the middle of a client's training, and without a word."""
    pytest.importorskip("torch")
    with in_a_long_round(tmp_path / "run") as (process, pids):
        process.kill()
        assert_gone(pids, seconds=5)
    _, err = process.communicate(timeout=60)
    assert err == ""


@needs_proc
def test_a_second_stop_is_at_once(tmp_path: Path) -> None:
    """The first Ctrl-C waits for the end of the round, the second does not."""
    pytest.importorskip("torch")
    with in_a_long_round(tmp_path / "run") as (process, pids):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.wait(timeout=5)
        assert process.returncode == 130
        assert alive(pids) == []
        _, err = process.communicate(timeout=5)
    assert "Traceback" not in err
