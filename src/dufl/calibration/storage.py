"""A calibration on disk: a TOML file to plan with, its numbers in JSON, and figures."""

from collections.abc import Callable
from pathlib import Path

from dufl.calibration.calibrate import Calibration
from dufl.calibration.gradient_noise import GradientNoise
from dufl.experiment.config import CLIENTS_FILE, Experiment
from dufl.experiment.files import to_json, write_text
from dufl.experiment.output import CALIBRATION, Manifest, claim

Figures = Callable[[Calibration, Path], list[Path]]


def no_figures(calibration: Calibration, folder: Path) -> list[Path]:
    """Nothing is drawn."""
    return []


def write_calibration(
    calibration: Calibration,
    folder: Path,
    figures: Figures = no_figures,
    force: bool = False,
) -> list[Path]:
    """Write a calibration into a directory, beside its trainings, and return the paths of its files."""
    manifest = _manifest(folder, force)
    names = _write_experiment(calibration.calibrated(), folder, "calibrated.toml", CLIENTS_FILE)
    names.append("calibration.json")
    write_text(folder / "calibration.json", to_json(calibration.summary()))
    names += [path.name for path in figures(calibration, folder)]
    manifest.adding(*names).write()
    return [folder / name for name in names]


def write_gradients(noise: GradientNoise, folder: Path, force: bool = False) -> list[Path]:
    """Write a measurement of gradients, alone or beside a calibration, and return the paths of its files."""
    manifest = _manifest(folder, force)
    names = _write_experiment(noise.calibrated(), folder, "gradients.toml", f"gradients-{CLIENTS_FILE}")
    names.append("gradients.json")
    write_text(folder / "gradients.json", to_json(noise.summary()))
    manifest.adding(*names).write()
    return [folder / name for name in names]


def _manifest(folder: Path, force: bool) -> Manifest:
    manifest = Manifest.read(folder)
    if manifest is None or manifest.kind != CALIBRATION:
        return claim(folder, CALIBRATION, force)
    return manifest


def _write_experiment(experiment: Experiment, folder: Path, name: str, clients: str) -> list[str]:
    """Write an experiment in TOML, and its clients if they were not drawn; returns the names of the files."""
    write_text(folder / name, experiment.to_toml(clients))
    if experiment.clients.file is None:
        return [name]
    write_text(folder / clients, experiment.game.clients.to_csv())
    return [name, clients]
