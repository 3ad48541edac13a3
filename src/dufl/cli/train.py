"""`dufl train`: train a federation on this machine, with or without data update."""

import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dufl.cli.common import (
    Changes,
    File,
    Force,
    ImportFrom,
    Json,
    OutputPath,
    allow_imports,
    console,
    parse_changes,
    progress_bar,
    stopping,
)
from dufl.cli.plan import Payment, Rate
from dufl.errors import InputError

if TYPE_CHECKING:
    from dufl.experiment.config import Experiment
    from dufl.experiment.train import Run
    from dufl.learning.federation import Record

RunOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="The output directory.",
        show_default=False,
        click_type=OutputPath(),
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the training in --out.")]
Events = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events to --out.")]


def train(
    file: File = None,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    tensorboard: Events = False,
    plugins: ImportFrom = None,
    json: Json = False,
) -> None:
    """Train a federation, with or without data update.

    The sections [data] and [training] of the file configure the samples and the training. --payment and
    --conservation-rate fix these values in the plan, as in `dufl plan`. With --out, the run directory gets
    the metrics of every round, the model, and checkpoints for --resume.
    """
    from dufl.experiment.callbacks import TensorBoard
    from dufl.experiment.files import check_directory
    from dufl.experiment.run_directory import RunDirectory
    from dufl.experiment.train import train as run_training

    allow_imports(plugins)
    check_out(out, resume=resume, tensorboard=tensorboard)
    if out:
        check_directory(out)
    experiment = configured(file, changes, out, resume).fixed(payment, conservation_rate)
    again = f" --import-from {shlex.quote(str(plugins))}" if plugins else ""
    next_step = f"{RunDirectory(out).advice}{again}" if out else "nothing is kept without --out"
    try:
        with stopping() as pause, bar(experiment.game.num_rounds) as show:
            callbacks: list[Any] = [pause, show, *([TensorBoard()] if tensorboard else [])]
            run = run_training(experiment, out=out, resume=resume, force=force, callbacks=callbacks)
    except KeyboardInterrupt:
        typer.echo(f"stopped in the middle of a round; {next_step}", err=True)
        raise typer.Exit(130) from None
    if not run.finished:
        over = f"{len(run.records)} of {experiment.game.num_rounds} rounds"
        typer.echo(f"stopped after {over}; {next_step}", err=True)
        raise typer.Exit(130)
    show_run(run, json, "metrics.jsonl, model.safetensors, summary.json, training.png and more")


def show_run(run: "Run", json: bool, files: str) -> None:
    """Print the result of a run. With a run directory, also write its figure and report."""
    from dufl.experiment.files import to_json
    from dufl.report.figures import write_run_figure
    from dufl.report.tables import run_table

    if run.folder:
        write_run_figure(run)
        page = report_of(run.folder)
    if json:
        typer.echo(to_json(run.summary()), nl=False)
        return
    console().print(run_table(run))
    if run.folder:
        typer.echo(f"written: {run.folder}/{files}")
        typer.echo(f"report: {page}")


def report_of(folder: Path) -> Path:
    """Write the report on the runs in a folder."""
    from dufl.report.training_report import write_report

    with progress_bar() as begin:
        return write_report([folder], progress=begin("reporting")).path


def check_out(out: Path | None, **options: bool) -> None:
    """Raise an error for options that need --out if it is not given."""
    for name, given in options.items():
        if given and out is None:
            raise InputError(f"--out must be given with --{name}")


def configured(
    file: Path | None, changes: list[str] | None, out: Path | None, resume: bool, on_flower: bool = False
) -> "Experiment":
    """The given experiment; when resuming without a file, the experiment of the run with the changes."""
    from dufl.experiment.config import Experiment
    from dufl.experiment.output import FLOWER, RUN, Manifest
    from dufl.experiment.run_directory import RunDirectory

    if not resume or file:
        return Experiment.from_toml(file, parse_changes(changes))
    check_out(out, resume=resume)
    assert out is not None
    place = RunDirectory(out, FLOWER if on_flower else RUN)
    if not place.exists:
        other = Manifest.read(out)
        there = f"{out}, which holds a {other.kind.name}" if other and other.kind != place.kind else out
        raise InputError.of("--out", "a directory with a run to resume", there)
    return place.load(parse_changes(changes))


@contextmanager
def bar(rounds: int) -> Iterator[Callable[["Record"], None]]:
    """A progress bar with accuracy and remaining time, on stderr and only on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("planning", total=rounds)

        def watch(record: "Record") -> None:
            progress.update(task, completed=record.round + 1, description=score_text(record))

        yield watch


def score_text(record: "Record") -> str:
    """The accuracy or the RMSE of a round; nothing if it is unknown, as for a period without samples."""
    if not math.isnan(record.accuracy):
        return f"accuracy {100 * record.accuracy:.1f} %"
    error = record.metrics.get("rmse", math.nan)
    return "" if math.isnan(error) else f"RMSE {error:.4g}"
