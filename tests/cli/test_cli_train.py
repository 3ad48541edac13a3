"""`dufl train` as a user types it: results, files, and going on."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from command_line import GREEDY, RUN, SMALL, assert_sentence, figures, files, told, write_dataset
from dufl.experiment.train import train
from loading import load, pausing


def test_train_for_people(dufl_command: Any) -> None:
    code, out, err = dufl_command("train", *told(*SMALL))
    assert (code, err) == (0, "")
    for words in (
        "digits, logistic, fedavg, dufl: ",
        "after 5 rounds",
        "best accuracy",
        "mean age in the last round",
        "(planned ",
        "payment over all rounds",
        "server cost",
        "test accuracy per round",
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
    assert {path.name for path in folder.iterdir()} == RUN | figures("training") | {"report.html"}
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
    (tmp_path / "own_policy_of_cli.py").write_text(GREEDY)
    monkeypatch.chdir(tmp_path)
    arguments = [*told(*SMALL, "dataset=own.npz", "policy=own_policy_of_cli:Greedy"), "--import-from", "."]
    code, out, err = dufl_command("train", *arguments, "--json", "--out", "run")
    assert (code, err) == (0, "")
    assert json.loads(out)["total_payment"] == 15
    assert json.loads(out)["mean_volume"] == 80
    assert not (tmp_path / "run" / "plan.npz").exists()
    code, out, _ = dufl_command("train", *arguments)
    assert (code, "planned" in out) == (0, False)


def test_resume_takes_the_configuration_of_the_run(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = train(load(None, SMALL), out=out).summary()
    before = files(out)
    code, again, err = dufl_command("train", "--resume", "--out", str(out), "--json")
    assert (code, err) == (0, "")
    assert json.loads(again) == first
    code, shown, _ = dufl_command("train", *told(*SMALL), "--resume", "--out", str(out))
    assert code == 0
    assert f"written: {out}/metrics.jsonl" in shown
    assert {n: b for n, b in files(out).items() if not n.startswith(("training.", "report."))} == before


def test_resume_goes_on_after_a_stop(dufl_command: Any, tmp_path: Path) -> None:
    """The first rounds are there, the last are not: as after a kill."""
    out, seen = tmp_path / "run", list[Any]()
    config = load(None, [*SMALL, "game.num_rounds=8", "checkpoint_every=3"])
    train(config, out=out, callbacks=[pausing(lambda: len(seen) >= 4), seen.append])
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
    train(load(None, SMALL), out=tmp_path / "run")
    arguments = told("training.workers=1", "checkpoint_every=2")
    code, _, err = dufl_command("train", *arguments, "--resume", "--out", str(tmp_path / "run"))
    assert (code, err) == (0, "")


def test_refused_to_go_on(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(load(None, SMALL), out=out)
    before = files(out)
    code, shown, err = dufl_command(
        "train", *told(*SMALL, "training.local_epochs=2"), "--resume", "--out", str(out)
    )
    assert (code, shown) == (2, "")
    assert err == f"error: {out} holds a run of another configuration: training.local_epochs was 1, is 2\n"
    code, _, err = dufl_command("train", *told(*SMALL), "--out", str(out))
    assert code == 2
    assert err == (f"error: {out} holds a run already: add --resume to resume it, or choose another --out\n")
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
    train(load(None, SMALL), out=out)
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


def test_train_on_a_given_offer(dufl_command: Any, tmp_path: Path) -> None:
    """With both fixed the plan is the clients' answer; it is in the run directory, and resumed from there."""
    out = tmp_path / "run"
    offer = ["--payment", "10", "--conservation-rate", "0.5"]
    code, shown, err = dufl_command("train", *told(*SMALL), *offer, "--out", str(out), "--json")
    assert (code, err) == (0, "")
    assert json.loads(shown)["total_payment"] == 50
    answer = dufl.equilibrium(load(None, SMALL).game, payment=10, conservation_rate=0.5)
    with np.load(out / "plan.npz") as arrays:
        assert (arrays["payment"], arrays["conservation_rate"]) == (10, 0.5)
        np.testing.assert_array_equal(arrays["volume"], answer.volume)
    game = tomllib.loads((out / "config.toml").read_text())["game"]
    assert (game["payment_range"], game["conservation_range"]) == ([10, 10], [0.5, 0.5])
    for again in ([], offer, [*told(*SMALL), *offer]):
        code, _, err = dufl_command("train", *again, "--out", str(out), "--resume", "--json")
        assert (code, err) == (0, "")
    code, _, err = dufl_command("train", "--payment", "11", "--out", str(out), "--resume")
    assert code == 2
    assert "game.payment_range was [10.0, 10.0], is [11.0, 11.0]" in err
    assert dufl_command("report", str(out))[0] == 0


def test_half_an_offer(dufl_command: Any, tmp_path: Path) -> None:
    _, planned, _ = dufl_command("plan", *told(*SMALL), "--payment", "10", "--json")
    dufl_command("train", *told(*SMALL), "--payment", "10", "--out", str(tmp_path / "run"))
    with np.load(tmp_path / "run" / "plan.npz") as arrays:
        assert arrays["payment"] == 10
        assert arrays["conservation_rate"] == json.loads(planned)["conservation_rate"]
    arguments = [*told(*SMALL), "--conservation-rate", "0.5", "--json"]
    _, one, _ = dufl_command("train", *arguments)
    code, both, _ = dufl_command("compare", *arguments)
    assert code == 0
    static, fresh = json.loads(both)["cells"]
    assert static["total_payment"] == 0
    assert fresh["accuracies"] == [json.loads(one)["final_accuracy"]]


@pytest.mark.parametrize("command", ["train", "compare", "sweep"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--payment", "-1", "payment must be >= 0, got -1.0"),
        ("--payment", "nan", "payment must be a finite number, got nan"),
        ("--conservation-rate", "1.3", "conservation_rate must be in [0, 1], got 1.3"),
    ],
)
def test_offers_that_cannot_be(
    dufl_command: Any, tmp_path: Path, command: str, option: str, value: str, message: str
) -> None:
    axis = ["num_rounds=4,5"] if command == "sweep" else []
    code, out, err = dufl_command(command, *axis, option, value, "--out", str(tmp_path / "out"))
    assert (code, out, err) == (2, "", f"error: {message}\n")
    assert not (tmp_path / "out").exists()


def test_options_that_need_out(dufl_command: Any, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text("[game]\nnum_rounds = 3\n")
    for option in ("--resume", "--tensorboard"):
        for file in ([], [str(tmp_path / "f.toml")]):
            code, _, err = dufl_command("train", *file, option)
            assert (code, err) == (2, f"error: --out must be given with {option}\n")
