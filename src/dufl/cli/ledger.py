"""`dufl ledger`: the payments that are due to the clients."""

from pathlib import Path
from typing import Annotated

import typer

from dufl.cli.common import Json, OutputPath, console

Spreadsheet = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="FILE",
        help="Write all entries to this CSV file.",
        show_default=False,
        click_type=OutputPath(),
    ),
]


def ledger(
    file: Annotated[Path, typer.Argument(help="The ledger of a run (a SQLite file).")],
    csv: Spreadsheet = None,
    json: Json = False,
) -> None:
    """Show the payment due to each client, and the unpaid rounds with their reasons."""
    from dufl.errors import InputError
    from dufl.experiment.files import open_regular, to_json, write_text
    from dufl.experiment.output import check_file, reading
    from dufl.flower.ledger import Ledger, ledger_csv, ledger_summary, ledger_table

    if not file.exists():
        raise InputError.of("FILE", "a ledger that exists", file)
    with reading(file):
        open_regular(file).close()  # do not block on a pipe
    if csv:
        check_file(csv, "--csv")
        if csv.exists() and csv.samefile(file):
            raise InputError.of("--csv", "a file other than the ledger", csv)
    with Ledger(file) as book:
        book.check()
        entries = book.entries()
    if csv:
        write_text(csv, ledger_csv(entries))
    if json:
        typer.echo(to_json(ledger_summary(entries)), nl=False)
        return
    console().print(ledger_table(ledger_summary(entries)))
    if csv:
        typer.echo(f"written: {csv}")
