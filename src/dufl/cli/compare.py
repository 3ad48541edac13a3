"""`dufl compare`: training with and without data update, side by side."""

from typing import Annotated

import typer

from dufl.cli.common import Changes, File, Force, ImportFrom, Json, allow_imports, console, stopping
from dufl.cli.plan import Payment, Rate
from dufl.cli.train import Resume, RunOut, check_out, report_of
from dufl.errors import InputError

Algorithms = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Which algorithms; by default that of the file.", show_default=False),
]
Policies = Annotated[str, typer.Option(metavar="P,Q,…", help="Which policies of data update.")]
Seeds = Annotated[int, typer.Option(min=1, max=100_000, help="How many seeds, from training.seed on.")]


def compare(
    file: File = None,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    algorithms: Algorithms = None,
    policies: Policies = "static,dufl",
    seeds: Seeds = 1,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    plugins: ImportFrom = None,
    json: Json = False,
) -> None:
    """Train with every algorithm and every policy, for several seeds, and compare.

    With --payment or --conservation-rate that one is fixed in the plan, as in `dufl plan`.
    With --out every run gets its own run directory there, beside comparison.csv, a picture and a report.
    """
    from rich.console import Console
    from rich.live import Live

    from dufl.experiment.compare import Cell, cells
    from dufl.experiment.compare import compare as run_all
    from dufl.experiment.config import load
    from dufl.experiment.files import to_json
    from dufl.experiment.output import COMPARISON, check_output
    from dufl.experiment.planning import pinned
    from dufl.report.tables import comparison_table

    allow_imports(plugins)
    config = pinned(load(file, changes or []), payment, conservation_rate)
    check_out(out, resume=resume)
    if out:
        check_output(out, COMPARISON, force)
    first = config.training.seed
    wanted = cells(
        _names("--algorithms", config.training.algorithm if algorithms is None else algorithms),
        _names("--policies", policies),
        list(range(first, first + seeds)),
    )
    rounds = config.game.num_rounds
    screen = Console(stderr=True)
    live = Live(comparison_table(wanted, rounds), console=screen, auto_refresh=False, transient=True)

    def watch(_: Cell) -> None:
        if screen.is_terminal:
            live.update(comparison_table(wanted, rounds), refresh=True)

    with stopping() as stop:
        if screen.is_terminal:
            live.start()
        try:
            finished = run_all(config, wanted, out, resume=resume, force=force, watch=watch, stop=stop)
        finally:
            live.stop()
    if not finished:
        kept = "the same command with --resume goes on" if out else "nothing is kept without --out"
        typer.echo(f"stopped; {kept}", err=True)
        raise typer.Exit(130)
    if out:
        from dufl.report.figures import write_comparison, write_run_figure

        written = write_comparison(wanted, out)
        for run in (run for cell in wanted for run in cell.runs):
            write_run_figure(run)
        page = report_of(out)
    if json:
        typer.echo(to_json({"cells": [cell.summary() for cell in wanted]}), nl=False)
        return
    console(110).print(comparison_table(wanted, rounds))
    if out:
        typer.echo("written: " + ", ".join(str(path) for path in written))
        typer.echo(f"report: {page}")


def _names(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError.of(option, "at least one name", repr(text))
    if len(set(names)) < len(names):
        raise InputError.of(option, "names that differ", repr(text))
    return names
