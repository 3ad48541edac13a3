"""The plan of an endless service on disk: `plan.json`, `plan.npz` with arrays over clients, `config.toml`."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.data.datasets.untrusted_files import read_arrays
from dufl.errors import InputError
from dufl.experiment.config import CLIENTS_FILE, Experiment
from dufl.experiment.files import replacing, to_json, write_text
from dufl.experiment.output import ENDLESS, Manifest, writing
from dufl.experiment.sections import Leader
from dufl.experiment.stored_config import read_config, read_json
from dufl.game.certificate import Certificate
from dufl.game.endless import StationaryPlan
from dufl.game.endless_certificate import certify_stationary
from dufl.game.parameters import Offer

_PER_CLIENT = ("volume", "collection")
_WRITTEN = (*_PER_CLIENT, "utility", "shadow_price")


def is_endless(folder: Path) -> bool:
    """Whether a directory holds the plan of an endless service."""
    manifest = Manifest.read(folder)
    return manifest is not None and manifest.kind == ENDLESS


def write_endless(
    plan: StationaryPlan, folder: Path, experiment: Experiment | None = None, *, force: bool = False
) -> list[Path]:
    """Write a plan atomically, and return the paths of its files."""
    experiment = experiment or Experiment(game=plan.game, leader=Leader(competition=plan.competition))
    names = ["plan.json", "plan.npz", "config.toml"]
    with writing(folder, ENDLESS, force) as staging:
        write_text(staging / "plan.json", to_json(plan.summary()))
        with replacing(staging / "plan.npz") as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **{name: getattr(plan, name) for name in _WRITTEN})
        write_text(staging / "config.toml", experiment.to_toml())
        if experiment.clients.file is not None:
            names.append(CLIENTS_FILE)
            write_text(staging / CLIENTS_FILE, plan.game.clients.to_csv())
    return [folder / name for name in names]


def certify_endless(folder: Path) -> Certificate:
    """Certify the plan that `write_endless` wrote, from its numbers alone."""
    manifest = Manifest.read(folder)
    if manifest is None or manifest.kind != ENDLESS:
        raise InputError.of(str(folder), "a directory with an endless plan", "something else")
    experiment, facts = read_config(manifest), read_json(manifest, "plan.json")
    path = manifest.check("plan.npz")
    arrays = read_arrays(path, _PER_CLIENT, only=False)
    for name, array in arrays.items():
        shape = (experiment.game.clients.size,)
        fine = array.dtype == np.float64 and array.shape == shape
        if not fine or not (np.isfinite(array) & (array >= 0)).all():
            rule = f"finite numbers >= 0 of type float64 and shape {shape}"
            raise InputError.of(f"{name} in {path}", rule, f"{array.dtype}, {array.shape}")
    try:
        values: dict[str, Any] = {name: facts.get(name) for name in ("payment", "conservation_rate")}
        offer = Offer(**values)
    except InputError as error:
        raise InputError(f"{folder / 'plan.json'}: {error}", field=error.field) from None
    if offer.conservation_rate == 1:
        raise InputError.of("conservation_rate", "below 1 in an endless service", 1.0)
    return certify_stationary(
        experiment.game,
        offer.payment,
        offer.conservation_rate,
        arrays["volume"],
        arrays["collection"],
        experiment.leader.competition,
    )
