"""`dufl compare`: training with several methods on several problems, side by side."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dufl.cli.common import (
    Changes,
    Force,
    ImportFrom,
    Json,
    allow_imports,
    check_file_argument,
    console,
    parse_changes,
    progress_bar,
    stopping,
)
from dufl.cli.plan import Payment, Rate
from dufl.cli.train import Resume, RunOut, check_out, report_of, score_text
from dufl.errors import InputError, PluginError, plugin_traceback

if TYPE_CHECKING:
    from dufl.experiment.comparison import Comparison
    from dufl.experiment.config import Experiment
    from dufl.experiment.runs import Job, Observer, Result
    from dufl.experiment.train import Run
    from dufl.learning.federation import Record

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="The TOML file; several files are several problems. Default: the paper's parameters.",
        show_default=False,
    ),
]
Algorithms = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="The algorithms to compare. Default: the algorithm of the file.",
        show_default=False,
    ),
]
Policies = Annotated[str, typer.Option(metavar="P,Q,…", help="The policies to compare.")]
Discards = Annotated[
    str | None,
    typer.Option(
        metavar="D,E,…",
        help="The discard rules to compare. Default: the rule of the file.",
        show_default=False,
    ),
]
Datasets = Annotated[
    str | None,
    typer.Option(
        metavar="X,Y,…",
        help="The datasets to compare on: names or files. Default: the dataset of the file.",
        show_default=False,
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, max=100_000, help="The number of seeds, starting at training.seed.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What to compare with: a method such as fedavg-static, or a policy, an algorithm or a discard "
        "rule. Default: static, or the first method.",
        show_default=False,
    ),
]
EqualPayment = Annotated[
    bool,
    typer.Option(
        "--equal-payment",
        help="Every policy that collects pays the same per round: the payment of the plan, or --payment.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="How many runs to train at a time, each with its share of the cores. Default: one per core, if "
        "there are enough runs of a small model.",
        show_default=False,
    ),
]

MOST_FIGURES = 20  # runs that get a figure each


def compare(
    files: Files = None,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    algorithms: Algorithms = None,
    policies: Policies = "static,dufl",
    discards: Discards = None,
    datasets: Datasets = None,
    seeds: Seeds = 1,
    equal_payment: EqualPayment = False,
    baseline: Baseline = None,
    jobs: Jobs = None,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    plugins: ImportFrom = None,
    json: Json = False,
) -> None:
    """Train every algorithm with every policy and several seeds, and compare the results.

    --payment and --conservation-rate fix these values in the plan, as in `dufl plan`.
    With --out, DIR gets one run directory per run, tables as CSV and LaTeX, figures and a report.
    """
    from dufl.experiment.compare import grid, run_comparison
    from dufl.experiment.config import Experiment
    from dufl.experiment.output import COMPARISON, check_output
    from dufl.experiment.runs import Options

    allow_imports(plugins)
    paths: list[Path | None] = [*files] if files else [None]
    given = parse_changes(changes)
    experiments = [
        Experiment.from_toml(check_file_argument(path), given).fixed(payment, conservation_rate)
        for path in paths
    ]
    check_out(out, resume=resume)
    if out:
        check_output(out, COMPARISON, force)
    wanted = grid(
        _problems(paths, experiments),
        _names("--algorithms", algorithms),
        _names("--policies", policies),
        _names("--discards", discards),
        _names("--datasets", datasets),
    )
    options = Options(resume, force, processes=jobs)
    with stopping() as pause, following(pause) as observer:
        comparison = run_comparison(wanted, seeds, out, options, baseline, observer, equal_payment)
    if not comparison.finished and not comparison.failures:
        kept = "resume with the same command and --resume" if out else "nothing is kept without --out"
        typer.echo(f"stopped; {kept}", err=True)
        raise typer.Exit(130)
    show(comparison, json)
    if comparison.failures:
        raise typer.Exit(_failed(comparison))


def show(comparison: "Comparison", json: bool) -> None:
    """Print the result of a comparison. With a directory, also write its files, figures and report."""
    from rich.text import Text

    from dufl.experiment.files import to_json
    from dufl.report.comparison_files import write_comparison
    from dufl.report.statistics_table import statistics_table
    from dufl.report.tables import comparison_table

    results = comparison.results()
    if comparison.folder:
        written = write_comparison(comparison, comparison.folder)
        _draw([run for cell in comparison.cells for run in cell.runs])
        page = report_of(comparison.folder)
    if json:
        failures = {name: str(error) for name, error in comparison.failures.items()}
        whole = {"cells": comparison.summary(), "statistics": results.to_dict()}
        typer.echo(to_json(whole | ({"failures": failures} if failures else {})), nl=False)
        return
    screen = console(140)
    problems = list(dict.fromkeys(cell.problem for cell in comparison.cells))
    for problem in problems:
        if len(problems) > 1:
            screen.print(Text(f" {problem}", style="bold"))
        screen.print(comparison_table([cell for cell in comparison.cells if cell.problem == problem]))
    if len(results.rows) > 1 and (len(problems) > 1 or any(len(cell.seeds) > 1 for cell in comparison.cells)):
        screen.print(Text(""), statistics_table(results))
    if comparison.folder:
        typer.echo("written: " + ", ".join(str(path) for path in written))
        typer.echo(f"report: {page}")


def _draw(runs: "Sequence[Run]") -> None:
    """Write the figures of runs that have none; not of many runs, as this takes longer than training them."""
    from dufl.report.figures import write_run_figure

    left = [run for run in runs if run.folder and not (run.folder / "training.pdf").exists()]
    if len(runs) > MOST_FIGURES:
        return
    with progress_bar() as begin:
        advance = begin("drawing runs")
        for place, run in enumerate(left):
            advance(place / len(left))
            write_run_figure(run)


@contextmanager
def following(pause: Callable[[Any], Any]) -> "Iterator[Observer]":
    """An observer that shows the runs on stderr, only on a terminal: how many are over, which are running.

    Args:
        pause: returns something once runs are to pause.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from dufl.experiment.runs import Observer

    screen = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[now]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal,
                    speed_estimate_period=600)  # fmt: skip

    class Show(Observer):
        def __init__(self) -> None:
            self._runs: dict[Job, TaskID] = {}
            self._over = self._rounds = self._all = 0

        @property
        def stopping(self) -> bool:
            return pause(None) is not None

        def on_begin(self, jobs: "Sequence[Job]") -> None:
            self._all = len(jobs)
            rounds = sum(job.experiment.game.num_rounds for job in jobs)
            self._every = bars.add_task("all runs", total=rounds, now="")

        def on_round(self, job: "Job", record: "Record") -> None:
            rounds = job.experiment.game.num_rounds
            if job not in self._runs:
                self._runs[job] = bars.add_task(job.name, total=rounds, now="")
            now = f"round {record.round + 1}/{rounds} {score_text(record)}"
            bars.update(self._runs[job], completed=record.round + 1, now=now)
            self._update()

        def on_end(self, job: "Job", result: "Result") -> None:
            self._over += 1
            self._rounds += job.experiment.game.num_rounds
            if job in self._runs:
                bars.remove_task(self._runs.pop(job))
            self._update()

        def _update(self) -> None:
            running = sum(task.completed for task in bars.tasks[1:])
            now = f"{self._over}/{self._all} runs finished"
            bars.update(self._every, completed=self._rounds + running, now=now)

    with bars:
        yield Show()


def _failed(comparison: "Comparison") -> int:
    """Print the errors of runs that failed; returns the exit code."""
    errors = list(comparison.failures.values())
    raised = next((error.__cause__ for error in errors if isinstance(error, PluginError)), None)
    if raised is not None:
        typer.echo(plugin_traceback(raised), err=True, nl=False)
    for name, error in comparison.failures.items():
        typer.echo(f"error: run {name} failed: {error}", err=True)
    if comparison.folder:
        typer.echo("the other runs are kept; try again with the same command and --resume", err=True)
    return errors[0].exit_code


def _problems(
    paths: "Sequence[Path | None]", experiments: "Sequence[Experiment]"
) -> "Experiment | dict[str, Experiment]":
    """The experiment, or experiments by the names of their files."""
    if len(experiments) == 1:
        return experiments[0]
    named = {path.stem: one for path, one in zip(paths, experiments, strict=True) if path is not None}
    if len(named) < len(paths):
        raise InputError.of("FILE", "files of different names", ", ".join(map(str, paths)))
    return named


def _names(option: str, text: str | None) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError.of(option, "at least one name", repr(text))
    if len(set(names)) < len(names):
        raise InputError.of(option, "distinct names", repr(text))
    return names
