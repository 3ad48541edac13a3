"""Where output goes, and in which encoding: a result or a sentence, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import told

TINY = told("game.num_rounds=3", "clients.count=3", "clients.initial_volume=20", "training.local_epochs=1")
DUFL = Path(sys.executable).with_name("dufl")


def run(*arguments: str, stdout: int | None = subprocess.PIPE, **environment: str) -> tuple[int, str, str]:
    """`dufl ARGUMENTS` as a process: exit code, stdout and stderr."""
    done = subprocess.run(
        [DUFL, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        check=False,
    )
    return (
        done.returncode,
        (done.stdout or b"").decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_output_that_is_full(form: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        code, _, err = run("plan", *TINY, *form, stdout=full.fileno())
    assert code == 2
    assert err == "error: [Errno 28] No space left on device\n"


def test_an_output_that_is_closed_early() -> None:
    """As by `dufl plan | head`: what is left is not written, and nothing is said."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, _, err = run("plan", *TINY, stdout=writing)
    finally:
        os.close(writing)
    assert (code, err) == (141, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("arguments", [("plan", *TINY), ("plan", "--help"), ("plan", "--set", "θ=1")])
def test_other_encodings(arguments: tuple[str, ...], encoding: str) -> None:
    """What cannot be encoded is replaced."""
    code, out, err = run(*arguments, PYTHONIOENCODING=encoding)
    assert code == (2 if "θ=1" in arguments else 0), err
    assert "Traceback" not in err
    assert "conservation" in out + err
    assert code == 2 or ("θ" in out) == (encoding == "utf-8")


def test_brackets_are_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "[" / "x]"
    code, out, _ = run("plan", *TINY, "--out", str(folder))
    assert code == 0
    assert f"written: {folder}/plan.json" in out
    code, out, _ = run("train", "--help")
    assert code == 0
    assert "The sections [data] and [training] of the file" in out
