"""The location of the real dataset files: `../shared/data` beside the checkout, or `$DUFL_DATA`."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[3] / "shared" / "data"
REAL = Path(os.environ["DUFL_DATA"]) if os.environ.get("DUFL_DATA") else BESIDE
FOLDERS = {
    "mnist": "mnist",
    "fmnist": "fashion-mnist",
    "svhn": "svhn",
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
}


def real(name: str) -> Path:
    """The folder of all datasets, if it contains this one; otherwise the test is skipped."""
    if not (REAL / FOLDERS[name]).is_dir():
        pytest.skip(f"no real {name} in {REAL}: set DUFL_DATA to a folder with {FOLDERS[name]}/")
    return REAL


def real_recording(name: str) -> Path:
    """The folder of all datasets, if it contains this recording; otherwise the test is skipped."""
    if not (REAL / "drift" / f"{name}.npz").is_file():
        pytest.skip(f"no recording {name} in {REAL}: set DUFL_DATA to a folder with drift/{name}.npz")
    return REAL
