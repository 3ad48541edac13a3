"""Every command on mutated inputs: a result or one sentence, never a traceback."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fuzzing import Case, Corpus, case

CODES = {0, 1, 2, 3, 130}  # 130: a configuration that is legal and long is stopped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ctrl-C after some time."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault_of(tried: Case, command: Callable[..., tuple[int, str, str]]) -> str:
    """What is wrong with how a command ended; empty if nothing is."""
    try:
        with at_most(20):
            code, _, err = command(*tried.arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is not threading.main_thread():
            raise
        return f"{type(error).__name__}: {error}"
    if code not in CODES:
        return f"exit code {code}: {err}"
    if code in (2, 3) and not ("error: " in err or "Error: " in err):
        return f"exit code {code} without a reason: {err!r}"
    return err if "Traceback" in err else ""


def check(
    seeds: range,
    folder: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., tuple[int, str, str]],
) -> None:
    monkeypatch.chdir(place)
    corpus = Corpus(folder) if (folder / "ledger.sqlite").exists() else Corpus.make(folder, command)
    faults = []
    for seed in seeds:
        here = place / str(seed)
        here.mkdir()
        tried = case(corpus, here, seed)
        if fault := fault_of(tried, command):
            faults.append(f"{seed}: {' '.join(tried.arguments)[:300]!r}: {fault[-600:]}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("block", range(20))
def test_a_thousand_mutated_inputs(
    block: int,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dufl_command: Callable[..., tuple[int, str, str]],
) -> None:
    check(range(50 * block, 50 * (block + 1)), folder, tmp_path, monkeypatch, dufl_command)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(200))
def test_twenty_thousand_mutated_inputs(
    block: int,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dufl_command: Callable[..., tuple[int, str, str]],
) -> None:
    start = 10_000 + 100 * block
    check(range(start, start + 100), folder, tmp_path, monkeypatch, dufl_command)
