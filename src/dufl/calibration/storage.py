"""A calibration on disk: `calibrated.toml` to plan with, `calibration.json`, and figures."""

from collections.abc import Callable
from pathlib import Path

from dufl.calibration.calibrate import Calibration
from dufl.experiment.config import CLIENTS_FILE
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
    manifest = Manifest.read(folder)
    if manifest is None or manifest.kind != CALIBRATION:
        manifest = claim(folder, CALIBRATION, force)
    names = ["calibrated.toml", "calibration.json"]
    experiment = calibration.calibrated()
    write_text(folder / "calibrated.toml", experiment.to_toml())
    if experiment.clients.file is not None:
        names.append(CLIENTS_FILE)
        write_text(folder / CLIENTS_FILE, experiment.game.clients.to_csv())
    write_text(folder / "calibration.json", to_json(calibration.summary()))
    names += [path.name for path in figures(calibration, folder)]
    manifest.adding(*names).write()
    return [folder / name for name in names]
