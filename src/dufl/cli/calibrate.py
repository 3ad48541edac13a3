"""`dufl calibrate`: what little data and old data cost the model, measured by training or by gradients."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dufl.cli.common import (
    Changes,
    Force,
    ImportFrom,
    Json,
    allow_imports,
    console,
    parse_changes,
    progress_bar,
    stopping,
)
from dufl.cli.train import RunOut
from dufl.errors import InputError

if TYPE_CHECKING:
    from dufl.calibration.calibrate import Calibration
    from dufl.game.parameters import Offer
    from dufl.learning.federation import Record

Sources = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE | RUN_DIR...]",
        help="A TOML file to train, or directories of runs that exist. Default: the paper's parameters.",
        show_default=False,
    ),
]
Pilots = Annotated[int, typer.Option(min=6, max=1000, help="The number of trainings.")]
Metric = Literal["error", "loss", "rmse"]
MetricName = Annotated[
    Literal["error", "loss", "rmse"] | None,
    typer.Option(
        help="What to describe. Default: the error, or the RMSE for regression.", show_default=False
    ),
]


def calibrate(
    sources: Sources = None,
    changes: Changes = None,
    pilots: Pilots = 24,
    metric: MetricName = None,
    out: RunOut = None,
    force: Force = False,
    plugins: ImportFrom = None,
    json: Json = False,
) -> None:
    """Train at a few offers and fit the law by which volume and age change the error.

    With --out, the trainings are kept and not repeated, and the directory gets calibrated.toml, with which
    `dufl plan` plans in accuracy and money. With directories of runs, nothing is trained. `dufl calibrate
    gradients FILE` measures the constants of the paper's convergence bound by gradients. `dufl calibrate
    costs LOG.csv` fits a client's costs to lines of (collected, held, cost).
    """
    from dufl.experiment.files import to_json

    allow_imports(plugins)
    if sources and str(sources[0]) == "costs":
        _costs(sources[1:], json)
        return
    if sources and str(sources[0]) == "gradients":
        if metric:
            raise InputError.of("metric", "left out with gradients", metric)
        _gradients(sources[1:], changes, out, force, json)
        return
    runs = [source for source in sources or [] if source.is_dir()]
    if runs and len(runs) < len(sources or []):
        raise InputError.of("sources", "one file, or only run directories", "both")
    if runs and changes:
        raise InputError.of("--set", "left out with run directories", changes[0])
    found = _from_runs(runs, metric) if runs else _by_training(sources, changes, pilots, metric, out, force)
    written = _write(found, out, force) if out else []
    if json:
        typer.echo(to_json(found.summary()), nl=False)
        return
    from dufl.report.tables import calibration_table

    output = console()
    output.print(calibration_table(found))
    if written:
        output.print("written: " + ", ".join(map(str, written)), soft_wrap=True)
        output.print(f"next: dufl plan {written[0]} --accuracy 0.9, or --budget 1000, or --point-worth 50")


def _gradients(
    files: list[Path], changes: list[str] | None, out: Path | None, force: bool, json: bool
) -> None:
    """`dufl calibrate gradients FILE`: the constants of Assumption 7 and Theorem 1."""
    from dufl.calibration.gradients import measure_gradients
    from dufl.calibration.storage import write_gradients
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json
    from dufl.experiment.output import CALIBRATION, check_output
    from dufl.report.gradient_table import gradient_table

    if len(files) > 1:
        raise InputError.of("gradients", "followed by one TOML file", f"{len(files)} of them")
    experiment = Experiment.from_toml(files[0] if files else None, parse_changes(changes))
    if out:
        check_output(out, CALIBRATION, force)
    with progress_bar() as begin:
        advance = begin("gradients")
        found = measure_gradients(
            experiment, on_point=lambda round, done: advance(done, f"after round {round}")
        )
    written = write_gradients(found, out, force) if out else []
    if json:
        typer.echo(to_json(found.summary()), nl=False)
        return
    output = console()
    output.print(gradient_table(found))
    if written:
        output.print("written: " + ", ".join(map(str, written)), soft_wrap=True)


def _costs(files: list[Path], json: bool) -> None:
    """`dufl calibrate costs LOG.csv`: a client's own costs from a log."""
    from dufl.calibration.costs import fit_costs
    from dufl.experiment.files import to_json

    if len(files) != 1:
        raise InputError.of("costs", "followed by one CSV file", len(files), text=f"{len(files)} files")
    found = fit_costs(files[0])
    if json:
        typer.echo(to_json(found.summary()), nl=False)
        return
    typer.echo(found.to_toml(), nl=False)
    for name, (low, high) in found.chosen.intervals.items():
        typer.echo(f"# {name}: 90 % interval {low:.4g} to {high:.4g}")
    typer.echo(f"# R² {found.chosen.r2:.3f}, {len(found.rows):,} rows. {found.ignored}".rstrip())


def _from_runs(places: list[Path], metric: Metric | None) -> "Calibration":
    from dufl.calibration.stored_runs import calibrate_stored

    return calibrate_stored(places, metric)


def _by_training(
    sources: list[Path] | None,
    changes: list[str] | None,
    pilots: int,
    metric: Metric | None,
    out: Path | None,
    force: bool,
) -> "Calibration":
    from dufl.calibration.calibrate import calibrate as run_pilots
    from dufl.experiment.config import Experiment
    from dufl.experiment.output import CALIBRATION, claim

    if sources and len(sources) > 1:
        raise InputError.of("FILE", "one TOML file", f"{len(sources)} of them")
    experiment = Experiment.from_toml(sources[0] if sources else None, parse_changes(changes))
    if out:
        claim(out, CALIBRATION, force)
    rounds = experiment.game.num_rounds
    with stopping() as pause, progress_bar() as begin:
        advance = begin(f"{pilots} trainings")

        def watch(index: int, offer: "Offer", record: "Record") -> None:
            done = (index + (record.round + 1) / rounds) / pilots
            advance(done, f"R = {offer.payment:.3g}, θ = {offer.conservation_rate:g}")

        found = run_pilots(
            experiment,
            pilots=pilots,
            metric=metric,
            out=out,
            callbacks=[pause],
            on_pilot=watch,
        )
    if found is None:
        typer.echo(
            f"stopped; repeat the command with --out {out} to continue" if out else "stopped", err=True
        )
        raise typer.Exit(130)
    return found


def _write(found: "Calibration", out: Path, force: bool) -> list[Path]:
    from dufl.calibration.storage import write_calibration
    from dufl.report.calibration_figure import write_calibration_figures

    return write_calibration(found, out, write_calibration_figures, force)
