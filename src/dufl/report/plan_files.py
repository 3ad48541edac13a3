"""A plan on disk: numbers for programs, pictures for people, and the configuration it came from."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.data.bounded import refusing
from dufl.data.numpy_files import read_arrays
from dufl.errors import InputError
from dufl.experiment.arrays import write_plan_arrays
from dufl.experiment.config import Config
from dufl.experiment.files import to_json, write_text
from dufl.experiment.output import PLAN, Manifest, writing
from dufl.experiment.run_directory import read_config, read_json
from dufl.game.dynamics import Array
from dufl.game.mean_field import TOLERANCE, Equilibrium
from dufl.game.parameters import Competition, Game
from dufl.game.plan import Offer, Plan
from dufl.game.search import Progress
from dufl.report.figures import write_plan_figures


def write_plan(
    plan: Plan,
    baseline: Plan | None,
    summary: dict[str, Any],
    config: Config,
    folder: Path,
    trajectories: bool | None = None,
    progress: Progress = lambda _: None,
    force: bool = False,
) -> list[Path]:
    """Write plan.json, plan.npz, config.toml and the figures, all or none; returns the paths."""
    names = ["plan.json", "plan.npz", "config.toml"]
    with writing(folder, PLAN, force) as staging:
        write_text(staging / "plan.json", to_json(summary))
        write_plan_arrays(plan, staging / "plan.npz", trajectories)
        write_text(staging / "config.toml", config.to_toml())
        if config.clients.file is not None:
            names.append("clients.csv")
            write_text(staging / "clients.csv", plan.game.clients.to_csv())
        names += [path.name for path in write_plan_figures(plan, staging, baseline, progress)]
    return [folder / name for name in names]


def read_plan(folder: Path) -> tuple[Game, float, float, Array, Array, Competition]:
    """The game, offer, volume, collection and competition of a plan written by `write_plan`."""
    manifest = Manifest.read(folder)
    if manifest is None or manifest.kind != PLAN:
        raise InputError.of(str(folder), "a directory that `dufl plan --out` wrote", "something else")
    config, summary = read_config(manifest), read_json(manifest, "plan.json")
    offer = _offer(folder / "plan.json", summary.get("payment"), summary.get("conservation_rate"))
    path = manifest.check("plan.npz")
    with refusing(path), np.load(path) as arrays:
        if "volume" not in arrays:
            raise InputError(f"{path} must hold trajectories: plan again with --trajectories")
    names = ("volume", "collection")
    volume, collection = read_arrays(path, names, only=False).values()
    for name, values in (("volume", volume), ("collection", collection)):
        _check_trajectory(f"{name} in {path}", values, (config.game.num_rounds, config.game.clients.size))
    return (
        config.game,
        offer.payment,
        offer.conservation_rate,
        volume,
        collection,
        config.leader.competition,
    )


def read_offer(manifest: Manifest) -> tuple[float, float]:
    """R and θ of the plan that a result follows."""
    path = manifest.check("plan.npz")
    names = ("payment", "conservation_rate")
    arrays = read_arrays(path, names, only=False)
    for name, array in arrays.items():
        if array.shape != () or array.dtype != np.float64:
            rule = "one number of the type float64"
            raise InputError.of(f"{name} in {path}", rule, f"{array.dtype}, {array.shape}")
    offer = _offer(path, *(float(arrays[name]) for name in names))
    return offer.payment, offer.conservation_rate


def read_solution(manifest: Manifest, config: Config) -> Plan:
    """The plan that a result follows, from the totals that were stored with it; nothing is solved."""
    payment, conservation_rate = read_offer(manifest)
    path = manifest.check("plan.npz")
    arrays = read_arrays(path, ("total_volume", "announced_volume"), only=False)
    for name, values in arrays.items():
        _check_trajectory(f"{name} in {path}", values, (config.game.num_rounds,))
    total, announced = arrays["total_volume"], arrays["announced_volume"]
    apart = np.abs(np.divide(total, announced, out=np.ones_like(total), where=announced > 0) - 1)
    residual = float(apart.max())
    solution = Equilibrium(announced, total, residual, passes=0, converged=residual <= TOLERANCE)
    leader = config.leader
    return Plan(config.game, payment, conservation_rate, solution, leader.competition, leader.method)


def _offer(path: Path, payment: Any, conservation_rate: Any) -> Offer:
    try:
        return Offer(payment=payment, conservation_rate=conservation_rate)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _check_trajectory(name: str, values: Array, shape: tuple[int, ...]) -> None:
    if values.dtype != np.float64:
        raise InputError.of(name, "of the type float64", values.dtype)
    if values.shape != shape:
        raise InputError.of(
            name,
            f"of shape {shape}, {'rounds and clients' if len(shape) > 1 else 'one value per round'}",
            values.shape,
        )
    if not (np.isfinite(values) & (values >= 0)).all():
        raise InputError.of(name, "finite numbers >= 0", values[~(np.isfinite(values) & (values >= 0))][0])
