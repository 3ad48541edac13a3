"""`dufl data` as a user types it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dufl.data.ageing import Ageing
from dufl.data.datasets import load_dataset
from dufl.data.datasets.catalogue import CATALOGUE
from dufl.data.datasets.known_recordings import RECORDINGS
from dufl.report.sample_images import data_figure
from mirror import mirror
from real_data import real, real_recording


@pytest.fixture
def data_command(monkeypatch: pytest.MonkeyPatch, dufl_command: Any, tmp_path: Path) -> Any:
    """Exit code, stdout and stderr of `dufl data ARGUMENTS`, in an empty folder and with an empty cache."""
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *arguments: dufl_command("data", *arguments)


def test_list_when_nothing_is_there(data_command: Any, tmp_path: Path) -> None:
    code, out, err = data_command("list")
    assert (code, err) == (0, "")
    lines = {line.split()[1]: line for line in out.splitlines() if line.startswith("│")}
    assert "embedded" in lines["digits"]
    assert "1,437" in lines["digits"]
    assert all(word in lines["weather"] for word in ("embedded", "in DUFL", "18,159"))
    for name in ("mnist", "fmnist", "svhn", "cifar10", "cifar100", "insects", "elec2", "rialto"):
        assert "missing" in lines[name]
        assert f"dufl data fetch {name}" in lines[name]
    assert "looked in ~/cache/dufl" in out


def test_list_as_json_says_what_the_loader_gives(data_command: Any) -> None:
    folder = real("mnist")
    code, out, _ = data_command("list", "--data-dir", str(folder), "--json", "--no-verify")
    found = json.loads(out)
    rows = {row["name"]: row for row in found["datasets"]}
    assert code == 0
    assert found["folders"][0] == str(folder)
    assert list(rows) == [*CATALOGUE, *RECORDINGS]
    assert (rows["mnist"]["kind"], rows["mnist"]["records"]) == ("images", 0)
    assert (rows["weather"]["kind"], rows["weather"]["records"]) == ("recording", 18_159)
    assert (rows["mnist"]["train"], rows["mnist"]["test"]) == (60_000, 10_000)
    assert rows["mnist"]["where"] == str(folder / "mnist")
    assert (rows["mnist"]["state"], rows["mnist"]["verified"]) == ("unverified", False)
    assert rows["digits"]["where"] is None


def test_list_verifies_and_finds_what_is_corrupt(data_command: Any, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for path in (real("mnist") / "mnist").iterdir():
        (folder / path.name).symlink_to(path)
    _, out, _ = data_command("list", "--data-dir", str(folder.parent), "--json")
    assert json.loads(out)["datasets"][1]["state"] == "verified"
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    good = labels.read_bytes()
    labels.unlink()
    labels.write_bytes(good[:-9])
    code, out, _ = data_command("list", "--data-dir", str(folder.parent))
    assert code == 0
    assert "corrupt" in out
    assert "delete it and run `dufl data fetch mnist`" in out
    code, _, err = data_command("list", "--data-dir", str(folder / "nothing"))
    assert (code, err) == (2, f"error: --data-dir must be a folder that exists, got {folder / 'nothing'}\n")


def test_fetch(data_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the cache by default; afterwards `show` finds it there."""
    known = CATALOGUE["mnist"]
    edition = known.editions[0]
    served = {d.name: (real("mnist") / "mnist" / d.name).read_bytes() for d in edition.downloads}
    with mirror(served) as server:
        downloads = tuple(replace(d, mirrors=(server.address,)) for d in edition.downloads)
        local = replace(known, editions=(replace(edition, downloads=downloads),))
        monkeypatch.setitem(CATALOGUE, "mnist", local)
        code, out, err = data_command("fetch", "mnist")
        assert (code, out, err) == (0, "verified: ~/cache/dufl/mnist\n", "")
        server.fault = "404"
        assert (tmp_path / "cache" / "dufl" / "mnist" / edition.downloads[0].name).is_file()
        assert data_command("fetch", "mnist")[0] == 0  # it is there: nobody is asked
        code, _, err = data_command("fetch", "mnist", "--data-dir", str(tmp_path / "other"))
    assert code == 2
    assert "error: mnist could not be fetched" in err
    assert "HTTP 404" in err
    code, out, _ = data_command("show", "mnist")
    assert code == 0
    assert Path("mnist.png").is_file()


def test_fetch_of_what_needs_none_and_of_what_nobody_knows(data_command: Any) -> None:
    assert data_command("fetch", "digits") == (0, "digits needs no files: it comes with scikit-learn\n", "")
    assert data_command("fetch", "weather") == (0, "weather needs no files: it comes with DUFL\n", "")
    code, _, err = data_command("fetch", "mnits")
    assert code == 2
    assert "name must be one of digits, mnist" in err


def test_fetch_of_a_recording_says_where_it_is(data_command: Any, tmp_path: Path) -> None:
    code, out, err = data_command("fetch", "insects", "--data-dir", str(tmp_path / "data"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert RECORDINGS["insects"].page in err
    assert RECORDINGS["insects"].citation in err
    assert str(tmp_path / "data" / "drift" / "insects.npz") in err
    folder = real_recording("insects")
    path = folder / "drift" / "insects.npz"
    assert data_command("fetch", "insects", "--data-dir", str(folder)) == (0, f"verified: {path}\n", "")


def test_show_of_a_recording(data_command: Any) -> None:
    code, out, err = data_command("show", "weather", "--periods", "4")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == load_dataset("weather").describe()
    assert lines[1].startswith("4 periods of ")
    assert "drift" in lines[2]
    assert "when one period old" in lines[2]
    assert lines[3] == "written: weather.png"
    with Image.open("weather.png") as image:
        assert image.width > 1_000
        assert len(np.unique(np.asarray(image.convert("L")))) > 50


def test_show_of_a_recording_as_json(data_command: Any) -> None:
    """The same bytes twice; a picture only if it is asked for."""
    first, second = (data_command("show", "weather", "--periods", "3", "--json") for _ in range(2))
    assert first == second
    assert first[0] == 0
    assert not Path("weather.png").exists()
    found = json.loads(first[1])
    assert np.shape(found["accuracy"]) == (3, 3)
    assert sum(period["samples"] for period in found["periods"]) == found["samples"] == 18_159
    assert data_command("show", "weather", "--periods", "3", "--json", "--out", "seen.png") == first
    assert Path("seen.png").is_file()


def test_show_of_a_table(data_command: Any, tmp_path: Path) -> None:
    """Columns by name; the task; times that are dates."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    rows = [f"2024-01-01T00:{n:02d},{a:.3f},{b:.3f},{c:.3f},{n % 2}" for n, (a, b, c) in enumerate(x)]
    path = tmp_path / "pump.csv"
    path.write_text("\n".join(["when,heat,flow,load,state", *rows]) + "\n")
    columns = ("--time", "when", "--periods", "3", "--json")
    _, out, _ = data_command("show", str(path), "--label", "state", *columns)
    found = json.loads(out)
    assert (found["task"], found["periods"][1]["begin"]) == ("classification", "2024-01-01 00:20")
    arguments = ("--label", "load", "--features", "heat, flow", "--task", "regression", *columns)
    code, out, err = data_command("show", str(path), *arguments)
    found = json.loads(out)
    assert (code, err, found["task"]) == (0, "", "regression")
    mean = np.round(x[:20, 2], 3).mean()
    assert found["periods"][0]["labels"]["mean"] == pytest.approx(mean, rel=1e-5)
    code, _, err = data_command("show", str(path), "--label", "stat", "--time", "when")
    assert (code, "--label must be a column of" in err, "did you mean 'state'?" in err) == (2, True, True)


def test_show_writes_a_picture(data_command: Any, tmp_path: Path) -> None:
    code, out, err = data_command("show", "digits", "--out", str(tmp_path / "seen.png"))
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == load_dataset("digits").describe()
    with Image.open(tmp_path / "seen.png") as image:
        assert image.width > 1_000
        assert len(np.unique(np.asarray(image.convert("L")))) > 50
    data_command("show", "digits")
    assert Path("digits.png").read_bytes() == (tmp_path / "seen.png").read_bytes()


def test_show_of_one_s_own(data_command: Any, tmp_path: Path) -> None:
    x, y = np.zeros((4, 6, 6, 3), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    code, out, _ = data_command("show", str(tmp_path / "mine.npz"), "--num-rounds", "1", "--noise-scale", "0")
    assert (code, out.splitlines()[1]) == (0, "written: mine.png")
    np.savez(tmp_path / "flat.npz", x_train=x.reshape(4, -1), y_train=y, x_test=x.reshape(4, -1), y_test=y)
    code, _, err = data_command("show", str(tmp_path / "flat.npz"))
    assert code == 2
    assert "images of shape (1 or 3, height, width)" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mnist",), "run `dufl data fetch mnist`"),
        (("mnits",), "did you mean 'mnist'?"),
        (("digits", "--out", "digits.pdf"), "--out must be a .png"),
        (("digits", "--out", "no/folder.png"), "--out must be a .png in a folder that exists"),
        (("digits", "--num-rounds", "0"), "num_rounds must be >= 1"),
        (("digits", "--time-sensitivity", "-1"), "time_sensitivity must be >= 0"),
        (("digits", "--json"), "--json must be left out for a dataset without times"),
        (("digits", "--label", "y"), "--label must be left out for digits"),
        (("digits", "--task", "regression"), "--task must be classification, because the labels of digits"),
        (("weather", "--time", "day"), "--time must be left out for weather"),
        (("weather", "--task", "regression"), "task must be 'classification' for weather"),
        (("weather", "--task", "ranking"), "--task must be classification or regression"),
        (("weather", "--periods", "1"), "--periods must be from 2 to 100, got 1"),
        (("weather", "--out", "weather.pdf"), "--out must be a .png"),
    ],
)
def test_show_refuses(data_command: Any, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = data_command("show", *arguments)
    assert code == 2
    assert words in err


def test_the_picture_shows_the_samples_and_the_noise_law() -> None:
    """Fresh rows are the samples themselves; the noise of the last row has the deviation it says."""
    dataset, ageing = load_dataset("digits"), Ageing(time_sensitivity=0.1, noise_scale=0.5, num_rounds=100)
    figure = data_figure(dataset, ageing)
    shown = [np.asarray(axes.images[0].get_array()) for axes in figure.axes]
    assert len(shown) == 30 + 40
    for column in range(10):
        first = dataset.train.to_float()[np.flatnonzero(dataset.train.labels == column)[0], 0]
        np.testing.assert_array_equal(shown[column], first)
        np.testing.assert_array_equal(shown[30 + column], first)
    grey = np.stack(shown[30:40])
    inside = (grey > 0.3) & (grey < 0.7)  # where nothing is cut off
    noise = (np.stack(shown[60:70]) - grey)[inside]
    assert noise.std() == pytest.approx(0.5 * 0.1 * 0.99, rel=0.25)
    words = {text.get_text() for text in figure.texts}
    assert {"age 1", "age 25", "age 50", "age 100", "no noise", "noise ±0.05", *"0123456789"} <= words


def test_help_stays_light() -> None:
    code = "import sys, dufl.cli.data; print({'numpy', 'rich.table', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
