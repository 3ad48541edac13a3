"""Runs for people: how good the model is, what the data cost, and how far the plan came true."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dufl.experiment.compare import Cell
from dufl.experiment.train import Run
from dufl.formatting import duration, percent
from dufl.report.chart import chart


def run_table(run: Run) -> RenderableType:
    """What `dufl train` prints."""
    found, last = run.summary(), run.records[-1]
    title = (
        f"{found['dataset']}, {found['model']}, {found['algorithm']}, {found['policy']}: "
        f"{percent(found['final_accuracy'])} right after {found['rounds']:,} rounds"
    )
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    planned = f" (planned {last.planned_staleness:.2f})" if last.planned_staleness is not None else ""
    rows = [
        ("accuracy, at its best", f"{percent(found['best_accuracy'])} in round {found['best_round']}"),
        ("loss", f"{found['final_loss']:.4f}"),
        ("samples held, mean over rounds", f"{found['mean_volume']:,.0f}"),
        (
            "mean age in the last round",
            f"{last.mean_age:.2f}{planned}",
        ),
        ("classes in the buffers", f"{last.classes}"),
        ("payment over all rounds", f"{found['total_payment']:,.2f}"),
        ("server cost", f"{found['server_cost']:.4g}"),
        ("  of it payment", f"{found['cost_of_payment']:.4g}"),
        ("  of it too little data", f"{found['cost_of_volume']:.4g}"),
        ("  of it stale data", f"{found['cost_of_staleness']:.4g}"),
        ("time", duration(found["seconds"])),
    ]
    if found["dropped"]:
        rows.append(("answers that did not come", f"{found['dropped']:,}"))
    if found["refused"]:
        rows.append(("updates refused", f"{found['refused']:,}"))
    for row in rows:
        table.add_row(*row)
    drawn = chart([record.accuracy for record in run.records])
    lines = "\n".join(f"  {line}" for line in drawn)
    return Group(Text(title, style="bold"), table, Text(f"\n  accuracy over rounds\n{lines}"))


def comparison_table(cells: list[Cell], rounds: int) -> Table:
    """What `dufl compare` prints, and shows while it runs; it fits a narrow terminal.

    With several seeds, ± std is the standard deviation of the accuracy over them, in points.
    """
    several = len(cells[0].seeds) > 1
    table = Table(box=None, padding=(0, 1))
    table.add_column("algorithm", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for name in ("accuracy %", *["± std"] * several, "loss", "mean age", "payment", "cost", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(cell.algorithm, cell.policy, *_cell(cell, rounds, several))
    return table


def _cell(cell: Cell, rounds: int, several: bool) -> list[str]:
    if cell.finished:
        found = cell.summary()
        return [
            f"{100 * found['final_accuracy']:.2f}",
            *([f"{100 * found['accuracy_std']:.2f}"] if several else []),
            f"{found['final_loss']:.3f}",
            f"{found['mean_age']:.1f}",
            f"{found['total_payment']:,.0f}",
            f"{found['server_cost']:.3g}",
            duration(found["seconds"]),
        ]
    if cell.record is None:
        return ["", *[""] * several, "", "", "", "", "waiting"]
    record = cell.record
    which = f" seed {cell.seeds[len(cell.runs)]}" if several else ""
    return [
        f"{100 * record.accuracy:.2f}",
        *[""] * several,
        f"{record.loss:.3f}",
        f"{record.mean_age:.1f}",
        "",
        f"{record.server_cost:.3g}",
        f"{record.round + 1}/{rounds}{which}",
    ]
