"""Plugins from the command line: where their code may come from, and what is shown when it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import GREEDY, SMALL, told
from dufl.errors import InputError
from dufl.experiment.sections import Data
from results import reseal

DUFL = Path(sys.executable).with_name("dufl")
ALIEN = "print('the current folder was asked')\n"
ALGORITHM = """
import numpy as np
from dufl.learning.algorithm import Mean, LocalPenalty

class Own:
    def init(self, weights, num_clients, training):
        return {}
    def penalty(self, state, client):
        return LocalPenalty()
    def apply(self, state, weights, updates):
        mean = Mean()
        for update in updates:
            mean.add(update.weights, update.volume)
        return mean.value(weights), state

class Fails(Own):
    def apply(self, state, weights, updates):
        return self.deeper(1)
    def deeper(self, number):
        raise ZeroDivisionError(f"number {number} of mine")
"""
MODEL = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
"""
DATA = """
import numpy as np

def load():
    x = np.random.default_rng(0).random((60, 5, 4))
    return x, np.arange(60) % 3, x[:9], np.arange(9) % 3
"""


def dufl(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command in a folder as a user does: exit code, stdout and stderr."""
    done = subprocess.run(
        [DUFL, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with plugins in it, and one that is not asked for."""
    texts = {"policies": GREEDY, "algorithms": ALGORITHM, "models": MODEL, "data": DATA}
    for name, text in texts.items():
        (tmp_path / f"my_{name}.py").write_text(ALIEN + text)
    return tmp_path


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    "change", ["policy=my_policies:Greedy", "algorithm=my_algorithms:Own", "dataset=my_data:load"]
)
def test_nothing_is_imported_from_the_current_folder_unless_asked(
    folder: Path, command: str, change: str
) -> None:
    arguments = told(*SMALL, change)
    if command == "compare":
        arguments += ["--policies", change.partition("=")[2] if change.startswith("policy") else "static"]
    code, out, err = dufl(folder, command, *arguments)
    kind, _, path = change.partition("=")
    file = f"{path.partition(':')[0]}.py"
    assert (code, out) == (2, "")
    assert err == (
        f"error: {kind} must be importable, got {path!r}: {file} is in the current folder, which is not "
        "searched by default: add --import-from . to the command, or the folder to sys.path or PYTHONPATH\n"
    )
    code, out, err = dufl(folder, command, *arguments, "--import-from", ".")
    assert (code, err) == (0, "")
    assert out.startswith("the current folder was asked\n")


def test_a_folder_in_pythonpath_is_searched_as_usual(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("here")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, _, err = dufl(here, "train", *told(*SMALL, "policy=my_policies:Greedy"), PYTHONPATH=path)
    assert (code, err) == (0, "")


def test_to_resume_does_not_ask_the_current_folder_either(folder: Path) -> None:
    arguments = told(*SMALL, "policy=my_policies:Greedy")
    code, _, _ = dufl(folder, "train", *arguments, "--out", "run", "--import-from", ".")
    assert code == 0
    (folder / "run" / "summary.json").unlink()
    reseal(folder / "run")  # as if it had been stopped
    code, out, err = dufl(folder, "train", "--out", "run", "--resume")
    assert (code, out) == (2, "")
    assert "add --import-from . to the command" in err
    code, _, err = dufl(folder, "train", "--out", "run", "--resume", "--import-from", ".")
    assert (code, err) == (0, "")


def test_workers_find_the_model_and_nothing_hides_it(folder: Path) -> None:
    """Also one with the name of an installed module: the folder that was asked for comes first."""
    pytest.importorskip("torch")
    (folder / "psutil.py").write_text(MODEL)
    for model in ("my_models:Net", "psutil:Net"):
        arguments = told(
            *SMALL, f"model={model}", "device=cpu", "workers=1", "game.num_rounds=2", "policy=static"
        )
        code, _, err = dufl(folder, "train", *arguments, "--import-from", str(folder))
        assert (code, err.replace(ALIEN[7:-3], "").strip()) == (0, "")


def test_a_folder_that_is_not_there(folder: Path) -> None:
    code, out, err = dufl(folder, "train", *told(*SMALL), "--import-from", "nowhere")
    assert (code, out) == (2, "")
    assert err == "error: --import-from must be a folder that exists, got nowhere\n"


def test_a_plugin_s_exception_is_shown_with_its_own_traceback(folder: Path) -> None:
    arguments = told(*SMALL, "algorithm=my_algorithms:Fails")
    code, _, err = dufl(folder, "train", *arguments, "--import-from", ".", "--out", "run")
    assert code == 2
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "ZeroDivisionError: number 1 of mine"
    assert lines[-1] == (
        "error: the algorithm 'my_algorithms:Fails' raised ZeroDivisionError: number 1 of mine (apply)"
    )
    assert [line.strip() for line in lines if line.startswith("    ")] == [
        "return self.deeper(1)",
        *(["~~~~~~~~~~~^^^"] if sys.version_info >= (3, 13) else ["^^^^^^^^^^^^^^"]),
        'raise ZeroDivisionError(f"number {number} of mine")',
    ]
    assert not (folder / "run" / "checkpoint.npz").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def load(:\n", "SyntaxError: invalid syntax"),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit('enough')\n", "SystemExit: enough"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported(folder: Path, text: str, says: str) -> None:
    (folder / "broken.py").write_text(text)
    code, out, err = dufl(folder, "train", *told(*SMALL, "dataset=broken:load"), "--import-from", ".")
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last == f"error: the dataset 'broken:load' raised {says} (while it was imported)"
    assert "broken.py" in err
    assert "importlib" not in err
    assert "dufl/" not in err


def test_a_model_s_traceback_comes_from_its_worker(folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "my_models.py").write_text(MODEL + "    def forward(self, x):\n        raise OSError('dark')\n")
    arguments = told(*SMALL, "model=my_models:Net", "device=cpu", "workers=1", "policy=static")
    code, out, err = dufl(folder, "train", *arguments, "--import-from", ".")
    assert (code, out) == (2, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert "raise OSError('dark')" in err
    says = "the model 'my_models:Net' raised OSError: dark (on two samples of shape (1, 8, 8))"
    assert err.splitlines()[-1] == f"error: {says}"


DATASETS = {
    "none": (
        "None",
        "it must be a Dataset or the four arrays x_train, y_train, x_test, y_test, got NoneType",
    ),
    "three": (
        "(x, y, x)",
        "it must be a Dataset or the four arrays x_train, y_train, x_test, y_test, got 3 of them",
    ),
    "ragged": ("([[1.0], [1.0, 2.0]], [0, 1], x, y)", "x_train must be an array of numbers: "),
    "text": (
        "(np.array([['a']]), [0], x, y)",
        "x_train must be numbers of shape (n, ...), not empty, got <U1",
    ),
    "tokens": (
        "(np.ones((9, 4), int), y, np.ones((9, 4), int), y)",
        "x_train must be uint8 pixels",
    ),
    "label": (
        "(x, [0, 1, 2] * 2 + [0, 1, 99999], x, y)",
        "y_train must be labels 0, 1, 2, … with at least one",
    ),
    "untaught": ("(x, y, x, y + 1)", "y_test must be labels that are in y_train, 0 to 2, got 3"),
    "nan": ("(x * np.nan, y, x, y)", "x_train must be floats in [0, 1], got nan"),
    "pair": (
        "Dataset('d', x, x, ('a', 'b', 'c'))",
        "train of dataset 'd' must be Samples, at least one, got nda",
    ),
    "names": (
        "Dataset('d', Samples(x, y), Samples(x, y), ('a', 'b'))",
        "train labels of dataset 'd' must be from 0 to 1, as there are 2 class names, got 0 to 2",
    ),
}


@pytest.mark.parametrize("name", DATASETS)
def test_what_a_dataset_function_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    made, says = DATASETS[name]
    head = (
        "import numpy as np\nfrom dufl.data.datasets import Dataset\nfrom dufl.data.samples import Samples\n"
    )
    body = f"x = np.zeros((9, 4))\ny = np.arange(9) % 3\ndef load():\n    return {made}\n"
    (tmp_path / f"own_data_{name}.py").write_text(head + body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as caught:
        Data(dataset=f"own_data_{name}:load").load()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    if "Dataset(" not in made:
        assert str(caught.value).startswith(f"dataset own_data_{name}:load: ")
