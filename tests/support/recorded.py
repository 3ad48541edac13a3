"""Recorded runs to report on, small and quick: the weather, and a CSV file with dates and a gap."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dufl.experiment.train import Run, train
from loading import load

WEATHER = (  # the plan asks for more than there is
    *("dataset=weather", "game.num_rounds=12", "clients.count=4", "training.local_epochs=1"),
    *("clients.initial_volume=300", "game.payment_range=[300, 300]", "game.conservation_range=[0.3, 0.3]"),
)
SITES = ("north", "south", "west")
FEATURES = 'data.features=["a", "b"]'


def write_pump(path: Path, seed: int = 0) -> Path:
    """A CSV file of three sites from January to May 2024, without samples for most of March."""
    generator = np.random.default_rng(seed)
    minutes = np.sort(generator.integers(0, 150 * 24 * 60, 900))
    times = np.datetime64("2024-01-01T00:00") + minutes.astype("timedelta64[m]")
    gap = (times > np.datetime64("2024-03-05")) & (times < np.datetime64("2024-03-27"))
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("when", "site", "a", "b", "state", "level"))
        for time in times[~gap]:
            a, b = generator.normal(size=2)
            level = 10 + 2 * a - b + generator.normal() / 5
            site = SITES[generator.integers(3)]
            state = "high" if level > 10 else "low"
            writer.writerow((str(time), site, f"{a:.4f}", f"{b:.4f}", state, f"{level:.4f}"))
    return path


def pump(path: Path, *changes: str) -> tuple[str, ...]:
    """The settings of a run on the file."""
    return (
        *(f"dataset={path}", "data.time=when", "data.client=site", "clients.count=3", "game.num_rounds=20"),
        *("training.local_epochs=2", "data.label=state", FEATURES, *changes),
    )


def levels(path: Path, *changes: str) -> tuple[str, ...]:
    """The settings of a regression on the file."""
    return pump(path, "data.label=level", "data.task=regression", "model=linear", *changes)


def run(*changes: str, **options: Any) -> Run:
    """A run with settings."""
    return train(load(None, changes), **options)


def compared(folder: Path, settings: Sequence[str], policies: Sequence[str], seeds: int = 1) -> Path:
    """The run directories that `dufl compare` writes."""
    for policy in policies:
        for seed in range(seeds):
            run(
                *settings,
                f"policy={policy}",
                f"training.seed={seed}",
                out=folder / f"fedavg-{policy}-{seed}",
            )
    return folder
