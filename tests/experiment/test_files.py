"""Files and output directories: whole or not there, durable, and never in the place of something else."""

import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import SMALL, assert_sentence, files, told
from dufl.errors import DuflError, InputError
from dufl.experiment.files import replacing, to_json, write_text
from dufl.experiment.output import COMPARISON, PLAN, SWEEP, Manifest, check_file, check_output, writing
from dufl.experiment.plan_directory import read_offer, read_plan, write_plan_arrays
from dufl.experiment.run_directory import RunDirectory, read_metrics
from dufl.experiment.train import train
from dufl.flower.ledger import Claim, Ledger
from federations import facts, small
from loading import load, pausing
from reports import make_run

FEW = ("--set", "num_rounds=6", "--set", "clients.count=3")


def other_things(folder: Path) -> dict[str, Path]:
    """One of everything that is no regular file."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.close()
    (folder / "link").symlink_to("/dev/null")
    found = {name: folder / name for name in ("folder", "pipe", "socket", "link")}
    return found | {"device": Path("/dev/null")}


# ---- one file


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    for name, path in other_things(tmp_path).items():
        before = path.lstat()
        with pytest.raises(InputError, match="must be a regular file, got a"):
            write_text(path, name)
        assert path.lstat().st_ino == before.st_ino
        assert path.lstat().st_mode == before.st_mode


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(f"there/{name}.txt")
    (tmp_path / "there/old.txt").write_text("before")
    for name in ("old", "new"):
        write_text(tmp_path / name, "after")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / f"there/{name}.txt").read_text() == "after"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="a symbolic link to itself"):
        write_text(tmp_path / "loop", "never")
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["new.txt", "old.txt"]


def test_a_file_keeps_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("before")
    path.chmod(0o600)
    write_text(path, "after")
    assert path.stat().st_mode & 0o777 == 0o600
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    train(small(), out=tmp_path / "run")
    assert len({found.stat().st_mode for found in (tmp_path / "run").iterdir()}) == 1


def test_names_that_are_no_text(dufl_command: Any, tmp_path: Path) -> None:
    """A folder whose name is not in UTF-8 can be written to; a configuration cannot hold such a name."""
    out = f"{tmp_path}/\udcff"
    code, shown, err = dufl_command("train", *told(*SMALL), "--out", out, "--json")
    assert (code, err, json.loads(shown)["rounds"]) == (0, "", 5)
    assert Path(out, "report.html").exists()
    with pytest.raises(InputError, match=r"config.toml must be valid UTF-8, got .*udcff"):
        write_text(tmp_path / "config.toml", 'dataset = "a\udcff.npz"')
    assert not (tmp_path / "config.toml").exists()


def test_what_fails_leaves_nothing_behind_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError(28, "No space left on device", str(temporary))

    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        half()
    assert files(tmp_path) == {"file": b"before"}
    longest = tmp_path / ("x" * 255)
    write_text(longest, "a name as long as names may be")
    assert longest.exists()


def test_files_are_durable_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: what is in the file, its name, the folder."""
    done: list[tuple[str, str]] = []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        done.append(("rename", str(target)))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_text(tmp_path / "file", "text")
    assert [(what, Path(where).parent == tmp_path) for what, where in done] == [
        ("sync", True),
        ("rename", True),
        ("sync", False),
    ]
    assert done[1:] == [("rename", str(tmp_path / "file")), ("sync", str(tmp_path))]
    done.clear()
    train(small("checkpoint_every=4"), out=tmp_path / "run")
    for place, (what, where) in enumerate(done):  # a checkpoint may not know of rounds that are not safe yet
        if what == "rename" and where.endswith("checkpoint.npz"):
            assert any(w == "sync" and p.endswith("metrics.jsonl") for w, p in done[place - 3 : place])


# ---- a file that a user names


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run")


def test_a_report_replaces_no_part_of_a_run(dufl_command: Any, run: Path, tmp_path: Path) -> None:
    before = files(run)
    for name in [*before, "checkpoint.npz", "training.png", "clients.csv"]:
        if name == ".lock":
            continue
        code, out, err = dufl_command("report", str(run), "--out", str(run / name))
        assert (code, out) == (2, "")
        assert_sentence(err)
        assert f"--out must be no part of the training run in {run}" in err
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(run / name)
        assert dufl_command("report", str(run), "--out", str(tmp_path / "link"))[0] == 2
    assert files(run) == before
    for name in ("report.html", "report.html", "own.html"):
        assert dufl_command("report", str(run), "--out", str(run / name))[0] == 0
        (run / name).unlink(missing_ok=name != "report.html")


def test_a_report_replaces_nothing_but_files(dufl_command: Any, run: Path, tmp_path: Path) -> None:
    for path in other_things(tmp_path).values():
        before = path.lstat()
        code, out, err = dufl_command("report", str(run), "--out", str(path))
        assert (code, out) == (2, "")
        assert_sentence(err)
        assert path.lstat().st_ino == before.st_ino
    code, _, err = dufl_command("report", str(run), "--out", str(tmp_path / ("x" * 300)))
    assert code == 2
    assert "File name too long" in err
    (tmp_path / "page").symlink_to(tmp_path / "page.html")
    assert dufl_command("report", str(run), "--out", str(tmp_path / "page"))[0] == 0
    assert (tmp_path / "page").is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_report_does_not_follow_a_link_that_the_user_did_not_name(
    dufl_command: Any, tmp_path: Path
) -> None:
    """A stranger's run directory could have the user's own files written over."""
    run = make_run(tmp_path / "run")
    (tmp_path / "precious").write_text("mine")
    (run / "report.html").symlink_to(tmp_path / "precious")
    code, _, err = dufl_command("report", str(run))
    assert code == 2
    assert_sentence(err)
    assert (tmp_path / "precious").read_text() == "mine"


def test_every_command_that_writes_a_file_refuses_alike(dufl_command: Any, run: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    with Ledger(ledger) as book:
        book.pay(0, 1.0, [Claim(0, 5, 5, 1.0, 1)])
    before = files(run)
    commands = {
        ("init", "--force"): [],
        ("ledger", "show", str(ledger)): ["--csv"],
        ("reproduce", "clients", "--out", str(tmp_path / "reproduced")): ["--page"],
    }
    for command, option in commands.items():
        for place in (run / "metrics.jsonl", run / "config.toml", Path("/dev/null"), tmp_path):
            code, out, err = dufl_command(*command, *option, str(place))
            assert (code, out) == (2, ""), (command, place)
            assert_sentence(err)
    assert dufl_command("ledger", "show", str(ledger), "--csv", str(ledger))[0] == 2
    with Ledger(ledger) as book:
        assert len(book.entries()) == 1
    assert files(run) == before
    assert not (tmp_path / "reproduced").exists()
    (tmp_path / "png").mkdir()
    os.mkfifo(tmp_path / "png/pipe.png")
    code, _, err = dufl_command("data", "show", "digits", "--out", str(tmp_path / "png/pipe.png"))
    assert code == 2
    assert_sentence(err)


# ---- output directories

WRITING = {
    "plan": ["plan", *FEW],
    "training run": ["train", *told(*SMALL)],
    "comparison": ["compare", *told(*SMALL)],
    "sweep": ["sweep", "time_sensitivity=0.5,0.7", *FEW],
    "reproduction": ["reproduce", "clients"],
    "run on Flower": ["flower", "simulate", *told(*SMALL)],
}


@pytest.mark.parametrize("kind", WRITING)
def test_an_empty_name_is_no_folder(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = dufl_command(*WRITING[kind], "--out", "")
    assert (code, out) == (2, "")
    assert err == "error: --out must be a name, got an empty string\n"
    assert not files(tmp_path)


def test_an_empty_name_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="out must be the name of a directory"):
        train(small(), out="")
    assert not files(tmp_path)


@pytest.mark.parametrize("kind", WRITING)
def test_a_name_that_is_too_long(dufl_command: Any, tmp_path: Path, kind: str) -> None:
    for out in (tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "run"):
        code, shown, err = dufl_command(*WRITING[kind], "--out", str(out))
        assert (code, shown) == (2, "")
        assert_sentence(err)
        assert "File name too long" in err


@pytest.mark.parametrize("kind", WRITING)
def test_a_directory_belongs_to_one_kind_of_result(
    dufl_command: Any, tmp_path: Path, kind: str, run: Path
) -> None:
    """Whatever is in it stays, byte by byte."""
    plan = tmp_path / "plan"
    with writing(plan, PLAN) as staging:
        (staging / "config.toml").write_text("")
    for place, held in ((plan, "plan"), (run, "training run")):
        if held == kind:
            continue
        before = files(place)
        code, out, err = dufl_command(*WRITING[kind], "--out", str(place))
        assert (code, out) == (2, "")
        assert_sentence(err)
        wanted = (
            f"--out must be a new directory or one that holds a {kind}, got {place}, which holds a {held}"
        )
        assert f"{wanted}: choose another, or add --force" in err
        assert files(place) == before


@pytest.mark.parametrize("kind", WRITING)
def test_files_of_the_user_s_own_are_not_replaced(dufl_command: Any, tmp_path: Path, kind: str) -> None:
    name = {
        "sweep": "sweep.csv",
        "comparison": "comparison.csv",
        "reproduction": "clients.csv",
    }.get(kind, "config.toml")
    (tmp_path / name).write_text("# mine\n")
    code, out, err = dufl_command(*WRITING[kind], "--out", str(tmp_path))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert f"where {name}, not written by dufl or edited since, would be replaced" in err
    assert files(tmp_path) == {name: b"# mine\n"}


def test_plan_in_the_folder_of_its_own_file(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dufl plan config.toml --out .` replaced the user's commented file."""
    monkeypatch.chdir(tmp_path)
    text = "# a comment\n[game]\nnum_rounds = 6\n[clients]\ncount = 3\n"
    Path("config.toml").write_text(text)
    code, _, err = dufl_command("plan", "config.toml", "--out", ".")
    assert code == 2
    assert "config.toml, not written by dufl" in err
    assert files(tmp_path) == {"config.toml": text.encode()}
    assert dufl_command("plan", "config.toml", "--out", ".", "--force")[0] == 0
    assert "# a comment" not in Path("config.toml").read_text()


def test_plan_twice_in_one_directory(dufl_command: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "plan")
    for rounds in ("6", "7"):
        assert dufl_command("plan", *FEW, "--set", f"num_rounds={rounds}", "--out", out)[0] == 0
    code, shown, _ = dufl_command("certify", out, "--json")
    assert (code, json.loads(shown)["holds"]) == (0, True)
    with (tmp_path / "plan/config.toml").open("a") as stream:
        stream.write("# and now it is mine\n")
    code, _, err = dufl_command("plan", *FEW, "--out", out)
    assert code == 2
    assert "config.toml, not written by dufl or edited since" in err
    assert dufl_command("plan", *FEW, "--out", out, "--force")[0] == 0
    assert dufl_command("certify", out)[0] == 0


def test_force_over_a_run_and_back(dufl_command: Any, tmp_path: Path) -> None:
    """Each time the directory is what was written last, and nothing of the old run comes back."""
    out = str(tmp_path / "run")
    assert dufl_command("train", *told(*SMALL), "--out", out)[0] == 0
    assert dufl_command("plan", *FEW, "--out", out, "--force")[0] == 0
    assert dufl_command("certify", out)[0] == 0
    code, _, err = dufl_command("report", out)
    assert code == 2
    assert_sentence(err)
    code, _, err = dufl_command("train", "--resume", "--out", out)
    assert (code, "which holds a plan" in err) == (2, True)
    changes = told(*SMALL, "training.seed=3")
    assert dufl_command("train", *changes, "--out", out)[0] == 2
    code, shown, _ = dufl_command("train", *changes, "--out", out, "--force", "--json")
    assert (code, json.loads(shown)["seed"]) == (0, 3)
    assert dufl_command("report", out)[0] == 0
    code, _, err = dufl_command("train", *told(*SMALL), "--out", out, "--force")
    assert (code, "another configuration" in err) == (2, True)  # a run is never replaced


def test_a_checkpoint_of_another_run_is_not_taken_up(tmp_path: Path) -> None:
    """It could be left over in a directory that was forced to hold another run."""
    out, seen = tmp_path / "run", list[Any]()
    train(small("training.seed=9", "checkpoint_every=1"), out=out)
    with writing(out, SWEEP, force=True):
        pass
    config = small("checkpoint_every=50")
    train(config, out=out, force=True, callbacks=[pausing(lambda: False), seen.append])
    assert [facts(record) for record in seen] == [facts(record) for record in train(config).records]


def test_a_folder_with_other_files_can_be_used(dufl_command: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert dufl_command("plan", *FEW, "--out", str(tmp_path))[0] == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_manifest_that_is_none(dufl_command: Any, tmp_path: Path) -> None:
    for nonsense in (
        "",
        "{}",
        "[]",
        '{"kind": "plans", "files": {}}',
        '{"kind": "plan", "files": {"a": 1}}',
        "[" * 9999,
    ):
        (tmp_path / "manifest.json").write_text(nonsense)
        for command in (["plan", *FEW, "--out"], ["certify"], ["report"], ["train", "--resume", "--out"]):
            code, out, err = dufl_command(*command, str(tmp_path))
            assert (code, out) == (2, "")
            assert_sentence(err)
            assert "manifest.json must be a manifest that dufl wrote" in err
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


# ---- all or nothing


def test_results_move_in_together_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "down"

    def write(*names: str, failing: BaseException | None = None) -> None:
        with writing(place, PLAN) as staging:
            for name in names:
                (staging / name).write_text("two")
            if failing:
                raise failing

    with pytest.raises(DuflError, match="cannot be written to: no more; nothing there has been changed"):
        write("plan.json", failing=OSError(28, "no more"))
    assert not list(tmp_path.iterdir())
    with writing(place, PLAN) as staging:
        (staging / "plan.json").write_text("one")
    before = files(place)
    with pytest.raises(KeyboardInterrupt):
        write("plan.json", failing=KeyboardInterrupt())
    assert files(place) == before
    (place / "plan.npz").mkdir()
    with pytest.raises(InputError, match=r"plan.npz must be a regular file"):
        write("plan.json", "plan.npz")
    assert files(place) == before


KILLED = """
import sys
from pathlib import Path
from dufl.experiment.output import PLAN, writing
while True:
    with writing(Path(sys.argv[1]), PLAN) as staging:
        for name in ("plan.json", "plan.npz", "config.toml"):
            (staging / name).write_bytes(staging.name.encode() * 10000)
"""


def test_a_kill_leaves_one_result_or_none(tmp_path: Path) -> None:
    """Never the files of two, and nothing that would hinder the next."""
    generator, place = np.random.default_rng(0), tmp_path / "plan"
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(place)])
        while not (place / "manifest.json").exists():
            time.sleep(0.01)
        time.sleep(generator.uniform(0.5, 1))
        process.kill()
        process.wait()
        manifest = Manifest.read(place)
        assert manifest
        assert len({manifest.read_file(name) for name in manifest.files}) <= 1
        check_output(place, PLAN)
    with writing(place, PLAN) as staging:
        (staging / "plan.json").write_text("{}")
    assert not list(place.glob(".writing-*"))


def test_a_result_that_was_cut_short_is_not_taken_for_whole(dufl_command: Any, tmp_path: Path) -> None:
    """As after a kill between two files: the manifest does not list them yet."""
    assert dufl_command("plan", *FEW, "--out", str(tmp_path))[0] == 0
    Manifest(tmp_path, PLAN).write()
    code, _, err = dufl_command("certify", str(tmp_path))
    assert code == 2
    assert "must be a complete plan with config.toml in its manifest.json" in err
    assert dufl_command("plan", *FEW, "--out", str(tmp_path))[0] == 0
    assert dufl_command("certify", str(tmp_path))[0] == 0


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))  # a disk that takes no more


@pytest.mark.parametrize(
    "command", [["plan", *FEW], ["sweep", "time_sensitivity=0.5,0.7", *FEW]], ids=["plan", "sweep"]
)
def test_a_full_disk(dufl_command: Any, tmp_path: Path, command: list[str]) -> None:
    """One sentence, exit code 2, and what was there before is still there, and whole."""

    def full(out: Path) -> str:
        program = [str(Path(sys.executable).with_name("dufl")), *command, "--out", str(out)]
        ended = subprocess.run(program, capture_output=True, text=True, preexec_fn=_small_files)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert_sentence(ended.stderr)
        return ended.stderr

    assert "cannot be written to: File too large; nothing there has been changed" in full(tmp_path / "new")
    assert not list(tmp_path.iterdir())
    assert dufl_command(*command, "--out", str(tmp_path / "old"))[0] == 0
    before = files(tmp_path)
    full(tmp_path / "old")
    assert files(tmp_path) == before


# ---- a run that is touched while it is under way


@pytest.mark.parametrize("damage", ["removed", "emptied", "cut"])
@pytest.mark.parametrize("when", [1, 5, 8])
def test_metrics_that_are_lost_during_a_run_are_written_again(tmp_path: Path, damage: str, when: int) -> None:
    path, seen = tmp_path / "run/metrics.jsonl", list[Any]()

    def watch(record: Any) -> None:
        seen.append(record)
        if len(seen) == when:
            whole = path.read_bytes()
            path.unlink()
            if damage != "removed":
                path.write_bytes(b"" if damage == "emptied" else whole[: len(whole) // 2])

    config = small("checkpoint_every=3")
    run = train(config, out=tmp_path / "run", callbacks=[watch])
    assert [facts(record) for record in read_metrics(tmp_path / "run")] == [facts(r) for r in run.records]
    again = train(config, out=tmp_path / "run", resume=True)
    assert [facts(record) for record in again.records] == [facts(record) for record in run.records]


@pytest.mark.parametrize("name", ["config.toml", "environment.json", "plan.npz"])
def test_a_run_that_loses_a_file_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} cannot be read: No such file"):
        train(
            small(),
            out=tmp_path / "run",
            callbacks=[lambda _: (tmp_path / "run" / name).unlink(missing_ok=True)],
        )
    assert RunDirectory(tmp_path / "run").summary is None
    assert (tmp_path / "run/checkpoint.npz").exists()


def test_a_manifest_that_is_lost_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "run/manifest.json"
    train(small(), out=tmp_path / "run", callbacks=[lambda _: path.unlink(missing_ok=True)])
    assert RunDirectory(tmp_path / "run").summary is not None


# ---- damage


def _flipped(path: Path, step: int) -> Iterator[bytes]:
    """The file with one byte changed, for every `step`-th byte, and cut short at each."""
    whole = path.read_bytes()
    for place in range(0, len(whole), step):
        yield whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        yield whole[:place]


def test_no_byte_of_a_plan_changes_unseen(tmp_path: Path) -> None:
    config = load(None, [*SMALL, "clients.count=2"])
    plan = config.solve()
    with writing(tmp_path, PLAN) as staging:
        write_plan_arrays(plan, staging / "plan.npz")
        write_text(staging / "plan.json", to_json(plan.summary()))
        write_text(staging / "config.toml", config.to_toml())
    manifest = Manifest.read(tmp_path)
    assert manifest
    for name, step in (("plan.npz", 1), ("plan.json", 101), ("config.toml", 101)):
        path = tmp_path / name
        whole = path.read_bytes()
        for number, damaged in enumerate(_flipped(path, step)):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=f"{name} must be unchanged"):
                read_plan(tmp_path) if number % 100 == 0 or step > 1 else read_offer(manifest)
        path.write_bytes(whole)
    read_plan(tmp_path)


def test_no_byte_of_a_checkpoint_changes_unseen(dufl_command: Any, tmp_path: Path) -> None:
    out, seen = tmp_path / "run", list[Any]()
    train(small("checkpoint_every=1"), out=out, callbacks=[pausing(lambda: len(seen) >= 4), seen.append])
    path, place = out / "checkpoint.npz", RunDirectory(out)
    with np.load(path) as arrays:  # it is an .npz like any other
        assert int(arrays["round"]) == 5
    whole, before = path.read_bytes(), (out / "metrics.jsonl").read_bytes()
    for damaged in _flipped(path, 61):
        path.write_bytes(damaged)
        with pytest.raises(
            InputError, match=r"must be an undamaged checkpoint: .*; remove it to let --resume"
        ):
            place.resume()
    assert (out / "metrics.jsonl").read_bytes() == before
    path.write_bytes(b"")
    code, shown, err = dufl_command("train", "--resume", "--out", str(out))
    assert (code, shown) == (2, "")
    assert_sentence(err)
    assert "checkpoint.npz must be an undamaged checkpoint: it is truncated" in err
    path.write_bytes(whole)
    rest = train(small(), out=out, resume=True)
    assert [facts(record) for record in rest.records] == [facts(record) for record in train(small()).records]


def test_without_a_checkpoint_a_run_begins_again(tmp_path: Path) -> None:
    out, seen = tmp_path / "run", list[Any]()
    train(small("checkpoint_every=1"), out=out, callbacks=[pausing(lambda: len(seen) >= 4), seen.append])
    (out / "checkpoint.npz").unlink()
    rest = train(small(), out=out, resume=True)
    assert [facts(record) for record in rest.records] == [facts(record) for record in train(small()).records]


@pytest.mark.parametrize("over", [True, False])
def test_no_byte_of_the_metrics_changes_unseen(tmp_path: Path, over: bool) -> None:
    out, seen = tmp_path / "run", list[Any]()
    train(small(), out=out, callbacks=[pausing(lambda: not over and len(seen) >= 3), seen.append])
    place = RunDirectory(out)
    path = out / "metrics.jsonl"
    whole = path.read_bytes()
    for damaged in _flipped(path, 7):
        path.write_bytes(damaged)
        if not over and whole.startswith(damaged):  # as a kill leaves it
            kept = [facts(record) for record in place.records()]
            assert kept == [facts(record) for record in seen[: len(kept)]]
            assert len(kept) in (damaged.count(b"\n"), damaged.count(b"\n") + damaged.endswith(b"}"))
            continue
        with pytest.raises(InputError, match=r"metrics.jsonl must be"):
            place.records()
    for end in (b"", b"x", b"}"):  # the last byte of all
        path.write_bytes(whole[:-1] + end)
        if over or end:
            with pytest.raises(InputError, match=r"metrics.jsonl must be"):
                place.records()
    path.write_bytes(whole)
    assert [facts(record) for record in place.records()] == [facts(record) for record in seen]


def test_a_run_prints_in_a_line(tmp_path: Path) -> None:
    config, seen = small(), list[Any]()
    run = train(config, out=tmp_path / "run", callbacks=[pausing(lambda: len(seen) >= 2), seen.append])
    said = f"Run(digits, logistic, fedavg, dufl: 3 of 8 rounds, accuracy {100 * run.accuracy:.2f} %"
    assert repr(run) == f"{said}, in {tmp_path / 'run'})"
    assert str(train(config)).startswith("Run(digits, logistic, fedavg, dufl: 8 of 8 rounds, accuracy ")
    assert "\n" not in repr(run)


def test_checks_before_the_work(tmp_path: Path) -> None:
    """They write nothing."""
    check_output(tmp_path / "new", COMPARISON)
    check_file(tmp_path / "page.html", "--out")
    assert not list(tmp_path.iterdir())
