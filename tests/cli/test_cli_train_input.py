"""Bad input to `dufl train`: one sentence, exit code 2, nothing written."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import SMALL, assert_sentence, children, told, write_dataset


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["algorithm=fedavgg"], "unknown algorithm 'fedavgg': did you mean 'fedavg'?"),
        (["model=resnet"], "unknown model 'resnet': did you mean 'resnet18'?"),
        (["policy=dulf"], "unknown policy 'dulf': did you mean 'dufl'?"),
        (
            ["policy=zzz"],
            "unknown policy 'zzz': known are dufl, static, keep-all, fresh-only, window-5, periodic-5, ",
        ),
        (["dataset=mnits"], "unknown dataset 'mnits': did you mean 'mnist'?"),
        (["dataset=digits:"], "unknown dataset 'digits:'"),
        (["local_epochs=0"], "training.local_epochs must be >= 1, got 0"),
        (["local_epochs=1.5"], "training.local_epochs must be an integer, got 1.5"),
        (["batch_size=0"], "training.batch_size must be >= 1, got 0"),
        (["training.learning_rate=-1"], "training.learning_rate must be > 0, got -1"),
        (["training.learning_rate=nan"], "training.learning_rate must be a finite number, got nan"),
        (["momentum=1"], "training.momentum must be in [0, 1), got 1"),
        (["client_dropout=1"], "training.client_dropout must be in [0, 1), got 1"),
        (["fraction_train=0"], "training.fraction_train must be in (0, 1], got 0"),
        (["device=cuda:99"], "device must be an available one (cpu"),
        (["device=tpu"], "device must be one of auto, cpu, cuda, mps or a device such as cuda:1, got 'tpu'"),
        (["workers=-1"], "training.workers must be >= 0, got -1"),
        (["precision=f16"], "training.precision must be one of 'float32', 'bf16' or 'auto', got 'f16'"),
        (["training.seed=-1"], "training.seed must be >= 0, got -1"),
        (["checkpoint_every=0"], "training.checkpoint_every must be >= 1, got 0"),
        (["feddyn_alpha=0"], "training.feddyn_alpha must be > 0, got 0"),
        (["noise_scale=-1"], "data.noise_scale must be >= 0, got -1"),
        (["dirichlet_alpha=0"], "data.dirichlet_alpha must be > 0, got 0"),
        (["initial_classes=11"], "data.initial_classes must be <= the 10 classes of digits, got 11"),
        (
            ["class_order=[0,1]"],
            "data.class_order must be every class of digits from 0 to 9 once, got [0, 1]",
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
        (["algorithm=collections:Counter"], "algorithm 'collections:Counter' must be one with init, penalty"),
        (["policy=nowhere.at.all:Own"], "policy must be importable, got 'nowhere.at.all:Own'"),
        (["training.epoch=1"], "unknown key 'epoch' in [training]: did you mean 'local_epochs'?"),
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
    arguments = [*told(*changes), "--import-from", ".", "--out", str(tmp_path / "run")]
    code, out, err = dufl_command("train", *arguments)
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
    dufl_command: Any, tmp_path: Path, change: str, words: list[str]
) -> None:
    (tmp_path / "own_code_of_cli.py").write_text(OWN_CODE)
    arguments = [*told(*SMALL, change), "--import-from", str(tmp_path), "--out", str(tmp_path / "run")]
    code, out, err = dufl_command("train", *arguments)
    assert (code, out) == (2, "")
    *trace, sentence = err.splitlines(keepends=True)
    assert_sentence(sentence)
    for word in words:
        assert word in sentence
    assert "own_code_of_cli.py" in "".join(trace)
    assert "cannot be written to" not in err
    assert not (tmp_path / "run").exists()


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
        f"error: mnist was not found in {tmp_path / 'data'}, {tmp_path / 'cache/dufl'}; "
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
