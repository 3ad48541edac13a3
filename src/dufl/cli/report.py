"""`dufl report`: an HTML report on one or more runs."""

from pathlib import Path
from typing import Annotated

import typer

from dufl.cli.common import Json, OutputPath, progress_bar

Places = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN_DIR...", help="Run directories, or directories that contain run directories."
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="The page to write. Default: report.html in RUN_DIR, or here if there are several.",
        show_default=False,
        click_type=OutputPath(),
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def report(places: Places, out: File = None, open: Open = False, json: Json = False) -> None:
    """Write an HTML report on one or more runs: the plan, the accuracy and the data.

    The page is a single file. It loads nothing from the network.
    """
    from dufl.experiment.files import to_json
    from dufl.report.training_report import write_report

    with progress_bar() as begin:
        written = write_report(places, out, begin("reporting"))
    if json:
        summary = {"report": str(written.path), "runs": written.runs, "bytes": written.size}
        typer.echo(to_json(summary), nl=False)
    else:
        typer.echo(f"report: {written.path}")
    if open:
        import webbrowser

        webbrowser.open(written.path.absolute().as_uri())
