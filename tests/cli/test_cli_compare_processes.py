"""`dufl compare --jobs` as a process of its own: killed, stopped and resumed, with nothing left running."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import GREEDY, children, told

LONG = ("game.num_rounds=40", "clients.count=4", "clients.initial_volume=100", "training.local_epochs=3")
ARGUMENTS = ("compare", *told(*LONG, "checkpoint_every=7"), "--seeds", "2")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`dufl ARGUMENTS` as a process of its own; ended if it has not by itself."""
    command = [sys.executable, "-m", "dufl", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def rounds(out: Path) -> int:
    return sum(path.read_text().count("\n") for path in out.glob("*/metrics.jsonl"))


def wait_for_rounds(process: subprocess.Popen[str], out: Path, number: int) -> None:
    deadline = time.monotonic() + 120
    while rounds(out) < number and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pids: list[int]) -> list[int]:
    """Those that still train; a process id may have been given to another program."""
    return [
        pid
        for pid in pids
        if (path := Path(f"/proc/{pid}/cmdline")).exists() and b"run_process" in path.read_bytes()
    ]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(pids) == []


def finals(text: str) -> Any:
    """What a comparison prints, without its times."""
    whole = json.loads(text)
    return [cell | {"seconds": 0} for cell in whole["cells"]], whole["statistics"]


@pytest.fixture(scope="module")
def whole() -> Any:
    """The comparison without interruption, one run after the other."""
    with running(*ARGUMENTS, "--jobs", "1", "--json") as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    return finals(out)


def test_kill_and_resume_at_any_moment(tmp_path: Path, whole: Any) -> None:
    """Finished runs are not repeated: their summaries, with the seconds they took, stay as they are."""
    out, chance = tmp_path / "all", random.Random(5)
    arguments = (*ARGUMENTS, "--jobs", "2", "--out", str(out), "--json")
    kept: dict[Path, bytes] = {}
    kills, number = 0, chance.randrange(1, 40)
    while True:
        resume = ["--resume"] if out.exists() else []
        with running(*arguments, *resume) as process:
            wait_for_rounds(process, out, number)
            if process.poll() is None and kills < 3:
                pids = children(process.pid)
                process.kill()
                process.wait()
                kills += 1
                assert_gone(pids)
                number = rounds(out) + chance.randrange(15, 50)
            else:
                shown, err = process.communicate(timeout=300)
                break
        for path, content in kept.items():
            assert path.read_bytes() == content
        kept = {path: path.read_bytes() for path in out.glob("*/summary.json")}
    assert (process.returncode, err) == (0, "")
    assert kills >= 2
    assert finals(shown) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_waits_for_the_round_and_leaves_nothing(
    tmp_path: Path, whole: Any, number: signal.Signals
) -> None:
    out = tmp_path / "all"
    arguments = (*ARGUMENTS, "--jobs", "2", "--out", str(out), "--json")
    with running(*arguments) as process:
        wait_for_rounds(process, out, 25)
        pids = children(process.pid)
        assert len(alive(pids)) == 2
        process.send_signal(number)
        shown, err = process.communicate(timeout=60)
    assert (process.returncode, shown) == (130, "")
    assert err.splitlines() == [
        "stopping after this round; press Ctrl-C again to stop at once",
        "stopped; resume with the same command and --resume",
    ]
    assert alive(pids) == []
    for folder in out.glob("fedavg-*"):
        assert (folder / "checkpoint.npz").exists()  # of the round after which it was stopped
    if number == signal.SIGTERM:
        return  # the same from here on
    with running(*arguments, "--resume") as process:
        shown, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert finals(shown) == whole


SLEEPY = """
import time
from greedy import Greedy
class Sleepy(Greedy):
    def step(self, client, round, size):
        time.sleep(600)
"""


def test_a_second_stop_is_at_once(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    out = tmp_path / "all"
    options = ("--policies", "sleepy:Sleepy", "--import-from", str(tmp_path), "--jobs", "2")
    with running(*ARGUMENTS, *options, "--out", str(out)) as process:
        deadline = time.monotonic() + 60
        while len(list(out.glob("*/environment.json"))) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pids = children(process.pid)
        assert len(alive(pids)) == 2
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert alive(pids) == []
    assert "Traceback" not in err


FAILING = """
from greedy import Greedy
class Failing(Greedy):
    def __init__(self, game, seed):
        self.seed = seed
    def step(self, client, round, size):
        if self.seed == 1 and round == 3:
            raise RuntimeError("seed one")
        return super().step(client, round, size)
"""


def test_a_failure_is_reported_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    (tmp_path / "failing.py").write_text(FAILING)
    out = tmp_path / "all"
    options = ("--policies", "static,failing:Failing", "--import-from", str(tmp_path), "--jobs", "2")
    with running(*ARGUMENTS, *options, "--out", str(out), "--json") as process:
        shown, err = process.communicate(timeout=300)
    assert process.returncode == 2
    lines = err.splitlines()
    assert lines[-3] == "RuntimeError: seed one"
    assert lines[-2].startswith(
        "error: run fedavg-failing.Failing-1 failed: the policy 'failing:Failing' raised"
    )
    assert lines[-1] == "the other runs are kept; try again with the same command and --resume"
    found = json.loads(shown)
    assert list(found["failures"]) == ["fedavg-failing.Failing-1"]
    rows = {row["method"]: row["seeds"] for row in found["statistics"]["rows"]}
    assert rows == {"fedavg-static": [0, 1], "fedavg-failing.Failing": [0]}
    assert (out / "statistics.csv").exists()
    assert (out / "report.html").exists()
    (tmp_path / "failing.py").write_text(FAILING.replace("round == 3", "False"))
    with running(*ARGUMENTS, *options, "--out", str(out), "--json", "--resume") as process:
        shown, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert [len(row["seeds"]) for row in json.loads(shown)["statistics"]["rows"]] == [2, 2]


def test_no_process_has_more_threads_than_its_share(tmp_path: Path) -> None:
    """Two runs at a time on one core each: the environment of every process says so."""
    out = tmp_path / "all"
    with running(*ARGUMENTS, "--jobs", "2", "--out", str(out)) as process:
        wait_for_rounds(process, out, 10)
        seen = []
        for pid in alive(children(process.pid)):
            text = Path(f"/proc/{pid}/environ").read_bytes().decode()
            seen.append(dict(line.split("=", 1) for line in text.split("\0") if "=" in line))
    share = str(max(1, (os.cpu_count() or 1) // 2))
    assert len(seen) == 2
    for environment in seen:
        assert environment["DUFL_CORES"] == environment["NUMBA_NUM_THREADS"] == share
        assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "1"
