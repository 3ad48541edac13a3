"""`dufl report`: one run or several as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from dufl.cli.common import Json, OutputPath, progress_bar

Places = Annotated[
    list[Path],
    typer.Argument(metavar="RUN_DIR...", help="Run directories, or folders that hold run directories."),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="The page to write; otherwise report.html in RUN_DIR, or here if there are several.",
        show_default=False,
        click_type=OutputPath(),
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


def report(places: Places, out: File = None, open: Open = False, json: Json = False) -> None:
    """Make one page of one run or several: the plan, how well it trained, and on which data.

    The page is a file of its own that opens from disk and asks nobody for anything.
    """
    from dufl.experiment.files import to_json
    from dufl.report.training_report import write_report

    with progress_bar() as begin:
        written = write_report(places, out, begin("reporting"))
    if json:
        found = {"report": str(written.path), "runs": written.runs, "bytes": written.size}
        typer.echo(to_json(found), nl=False)
    else:
        typer.echo(f"report: {written.path}")
    if open:
        import webbrowser

        webbrowser.open(written.path.absolute().as_uri())
