"""Helpers for the tests of `dufl train` and `dufl compare`."""

from pathlib import Path
from typing import Any

import numpy as np

SMALL = ("game.num_rounds=5", "clients.count=4", "clients.initial_volume=100", "training.local_epochs=1")
LONG = ("game.num_rounds=250", "clients.count=4", "clients.initial_volume=100", "policy=static")
CNN = (
    *("game.num_rounds=30", "clients.count=4", "clients.initial_volume=100", "policy=static"),
    *("model=cnn", "device=cpu", "workers=2"),
)
RUN = {
    *("config.toml", "environment.json", "plan.npz", "metrics.jsonl", "checkpoint.npz"),
    *("model.safetensors", "summary.json", "manifest.json", ".lock"),
}
GREEDY = """
class Greedy:
    def __init__(self, game, seed): pass
    def payment(self, round): return 3.0
    def size(self, client): return 20
    def step(self, client, round, size): return size // 2, 10
    def planned_staleness(self, round): return float("nan")
"""  # a user-defined policy


def told(*changes: str) -> list[str]:
    """Changes as `--set` options."""
    return [part for change in changes for part in ("--set", change)]


def figures(*names: str) -> set[str]:
    """The file names of some figures."""
    return {f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_sentence(err: str) -> None:
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def write_dataset(path: Path, **changes: Any) -> None:
    """Write a dataset file; arrays that are changed to None are left out."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": generator.integers(0, 256, (60, 1, 5, 4), dtype=np.uint8),
        "y_train": np.arange(60) % 3,
        "x_test": generator.integers(0, 256, (9, 1, 5, 4), dtype=np.uint8),
        "y_test": np.arange(9) % 3,
    } | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def children(pid: int) -> list[int]:
    """The ids of the living child processes of a process."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            pids.append(int(path.parent.name))
    return pids
