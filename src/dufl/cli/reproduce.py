"""`dufl reproduce`: recompute the paper's figures and table, and check its claims."""

from pathlib import Path
from typing import Annotated

import typer

from dufl.cli.common import (
    Changes,
    Force,
    ImportFrom,
    Json,
    OutputPath,
    allow_imports,
    console,
    parse_changes,
    progress_bar,
)
from dufl.errors import InputError

What = Annotated[
    list[str] | None,
    typer.Argument(
        help="convergence, clients, sensitivity, server, updates, table, leaders, or all.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="NAME",
        help="Only these cells of the table: a dataset, σ, algorithm or policy. Repeatable.",
        show_default=False,
    ),
]
ScaleName = Annotated[
    str, typer.Option("--scale", metavar="quick|paper", help="The size of the experiments.")
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="FILE",
        help="Also write a Markdown page.",
        show_default=False,
        click_type=OutputPath(),
    ),
]
Folder = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="The directory for data and figures.", click_type=OutputPath()),
]


def reproduce(
    what: What = None,
    scale: ScaleName = "quick",
    only: Only = None,
    changes: Changes = None,
    out: Folder = Path("reproduction"),
    page: Page = None,
    force: Force = False,
    plugins: ImportFrom = None,
    json: Json = False,
) -> None:
    """Reproduce the paper's figures and table, and check its claims.

    An interrupted reproduction resumes, and the table keeps the cells of earlier calls. --set changes the
    configuration of trained items, and is recorded with every number.
    """
    from dufl.experiment.files import to_json
    from dufl.experiment.output import REPRODUCTION, check_file, check_output
    from dufl.reproduce.item import SCALES
    from dufl.reproduce.items import chosen
    from dufl.reproduce.items import reproduce as run_items

    if scale not in SCALES:
        raise InputError.of("--scale", f"one of {', '.join(SCALES)}", repr(scale))
    allow_imports(plugins)
    names = chosen(what or [])
    check_output(out, REPRODUCTION, force)
    if page:
        check_file(page, "--page")
    with progress_bar() as begin:
        results = run_items(names, SCALES[scale], out, parse_changes(changes), only or (), begin, force)
    shown = {name: results[name] for name in names}
    if page:
        from dufl.reproduce.page import write_page

        write_page(results, out, page)
    if json:
        typer.echo(to_json(shown), nl=False)
        return
    from dufl.report.tables import accuracy_table, claims_table

    output = console(120)
    output.print(claims_table(shown))
    for item in shown.values():
        if item.get("rows"):
            output.print()
            output.print(accuracy_table(item["rows"]))
    typer.echo(f"written: {out}/reproduction.json and, for each item, a CSV file and a figure")
