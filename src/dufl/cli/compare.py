"""`dufl compare`: training with and without data update, side by side."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dufl.cli.common import (
    Changes,
    File,
    Force,
    ImportFrom,
    Json,
    allow_imports,
    console,
    parse_changes,
    stopping,
)
from dufl.cli.plan import Payment, Rate
from dufl.cli.train import Resume, RunOut, check_out, report_of
from dufl.errors import InputError

if TYPE_CHECKING:
    from dufl.experiment.callbacks import Callback
    from dufl.experiment.config import Experiment
    from dufl.experiment.train import Run
    from dufl.learning.federation import Record

Algorithms = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="The algorithms to compare. Default: the algorithm of the file.",
        show_default=False,
    ),
]
Policies = Annotated[str, typer.Option(metavar="P,Q,…", help="The policies to compare.")]
Seeds = Annotated[
    int, typer.Option(min=1, max=100_000, help="The number of seeds, starting at training.seed.")
]
EqualPayment = Annotated[
    bool,
    typer.Option(
        "--equal-payment",
        help="Every policy that collects pays the same per round: the payment of the plan, or --payment.",
    ),
]


def compare(
    file: File = None,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    algorithms: Algorithms = None,
    policies: Policies = "static,dufl",
    seeds: Seeds = 1,
    equal_payment: EqualPayment = False,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    plugins: ImportFrom = None,
    json: Json = False,
) -> None:
    """Train every algorithm with every policy and several seeds, and compare the results.

    --payment and --conservation-rate fix these values in the plan, as in `dufl plan`.
    With --out, DIR gets one run directory per run, comparison.csv, a figure and a report.
    """
    from dufl.experiment.compare import compare as run_all
    from dufl.experiment.compare import grid
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json
    from dufl.experiment.output import COMPARISON, check_output
    from dufl.report.tables import comparison_table

    allow_imports(plugins)
    experiment = Experiment.from_toml(file, parse_changes(changes)).fixed(payment, conservation_rate)
    check_out(out, resume=resume)
    if out:
        check_output(out, COMPARISON, force)
    named = [] if algorithms is None else _names("--algorithms", algorithms)
    wanted = grid(experiment, named, _names("--policies", policies))
    with stopping() as pause, live_table(wanted, seeds, equal_payment) as show:
        comparison = run_all(
            wanted,
            seeds=seeds,
            out=out,
            resume=resume,
            force=force,
            equal_payment=equal_payment,
            callbacks=[pause, show],
        )
    if not comparison.finished:
        kept = "resume with the same command and --resume" if out else "nothing is kept without --out"
        typer.echo(f"stopped; {kept}", err=True)
        raise typer.Exit(130)
    if out:
        from dufl.report.figures import write_comparison, write_run_figure

        written = write_comparison(list(comparison.cells), out)
        for run in (run for cell in comparison.cells for run in cell.runs):
            write_run_figure(run)
        page = report_of(out)
    if json:
        typer.echo(to_json({"cells": comparison.summary()}), nl=False)
        return
    console(110).print(comparison_table(list(comparison.cells), experiment.game.num_rounds))
    if out:
        typer.echo("written: " + ", ".join(str(path) for path in written))
        typer.echo(f"report: {page}")


@contextmanager
def live_table(
    experiments: "Mapping[str, Experiment]", seeds: int, equal_payment: bool = False
) -> "Iterator[Callback]":
    """A callback that shows the comparison table during training, on stderr and only on a terminal."""
    from rich.console import Console
    from rich.live import Live

    from dufl.experiment.callbacks import Callback
    from dufl.experiment.compare import Cell
    from dufl.report.tables import comparison_table

    cells = {
        name: Cell(name, one, tuple(range(seeds)), equal_payment=equal_payment)
        for name, one in experiments.items()
    }
    rounds = max(one.game.num_rounds for one in experiments.values())
    screen = Console(stderr=True)
    live = Live(
        comparison_table(list(cells.values()), rounds), console=screen, auto_refresh=False, transient=True
    )

    class Show(Callback):
        def _current(self) -> str:
            return next(name for name, cell in cells.items() if not cell.finished)

        def on_round_end(self, record: "Record") -> None:
            name = self._current()
            cells[name] = replace(cells[name], record=record)
            if screen.is_terminal:
                live.update(comparison_table(list(cells.values()), rounds), refresh=True)

        def on_train_end(self, run: "Run") -> None:
            name = self._current()
            cells[name] = replace(cells[name], runs=(*cells[name].runs, run), record=None)

    if screen.is_terminal:
        live.start()
    try:
        yield Show()
    finally:
        live.stop()


def _names(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError.of(option, "at least one name", repr(text))
    if len(set(names)) < len(names):
        raise InputError.of(option, "distinct names", repr(text))
    return names
