"""Ctrl-C, polite and impolite kills of `dufl train` and `dufl compare`."""

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

from command_line import CNN, LONG, RUN, SMALL, children, told
from dufl.experiment.train import train
from dufl.learning.federation import Federation
from loading import load


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
    assert last == f"stopped after {rounds} of 250 rounds; resume with: dufl train --out {out} --resume"
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
    assert err.splitlines()[1] == "stopped; resume with the same command and --resume"
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
    with running("train", *told(*CNN, "local_epochs=1"), "--out", str(out)) as process:
        wait_for_rounds(process, out, 2)
        pids = children(process.pid)
        assert alive(pids) == pids
        assert len(pids) == 2
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].endswith(f"resume with: dufl train --out {out} --resume")
    assert alive(pids) == []
    with np.load(out / "checkpoint.npz") as checkpoint:
        assert int(checkpoint["round"]) == (out / "metrics.jsonl").read_text().count("\n")


@contextmanager
def in_a_long_round(out: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A run whose first round takes minutes, once it is in it, and its workers; none is left behind."""
    with running("train", *told(*CNN, "local_epochs=3000"), "--out", str(out)) as process:
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
        assert_gone(pids, seconds=20)
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
        process.wait(timeout=20)  # the round would take minutes
        assert process.returncode == 130
        assert alive(pids) == []
        _, err = process.communicate(timeout=20)
    assert "Traceback" not in err
