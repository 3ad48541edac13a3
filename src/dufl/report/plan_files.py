"""A plan on disk: numbers for programs, pictures for people, and the configuration it came from."""

import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dufl.errors import InputError
from dufl.experiment.arrays import write_plan_arrays
from dufl.experiment.config import Config, load
from dufl.experiment.files import to_json, write_text
from dufl.game.dynamics import Array
from dufl.game.parameters import Competition, Game
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.plan_figures import write_plan_figures


def write_plan(
    plan: Plan,
    rival: Plan | None,
    summary: dict[str, Any],
    config: Config,
    folder: Path,
    trajectories: bool | None = None,
    progress: Progress = lambda _: None,
) -> list[Path]:
    """Write plan.json, plan.npz, config.toml and the figures; returns the paths."""
    written = [folder / "plan.json", folder / "plan.npz", folder / "config.toml"]
    write_text(written[0], to_json(summary))
    write_plan_arrays(plan, written[1], trajectories)
    write_text(written[2], config.to_toml())
    if config.clients.file is not None:
        written.append(folder / "clients.csv")
        write_text(written[-1], plan.game.clients.to_csv())
    return [*written, *write_plan_figures(plan, folder, rival, progress)]


def read_plan(folder: Path) -> tuple[Game, float, float, Array, Array, Competition]:
    """The game, offer, volume, collection and competition of a plan written by `write_plan`."""
    config = load(folder / "config.toml")
    try:
        summary = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        payment, rate = float(summary["payment"]), float(summary["conservation_rate"])
        with np.load(folder / "plan.npz") as arrays:
            if "volume" not in arrays:
                raise InputError(f"{folder}/plan.npz must hold trajectories: plan again with --trajectories")
            return (
                config.game,
                payment,
                rate,
                arrays["volume"],
                arrays["collection"],
                (config.leader.competition),
            )
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as fault:
        if isinstance(fault, InputError):
            raise
        raise InputError(f"{folder} must be a directory that `dufl plan --out` wrote: {fault}") from None
