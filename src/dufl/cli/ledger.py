"""`dufl ledger`: the payments that are due to the clients."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dufl.cli.common import Json, OutputPath, console

if TYPE_CHECKING:
    from dufl.flower.ledger import Ledger

app = typer.Typer(
    help="Show, verify, back up and settle the ledger of a run.",
    no_args_is_help=True,
    suggest_commands=False,
)
File = Annotated[Path, typer.Argument(metavar="FILE", help="The ledger of a run (a SQLite file).")]
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
HeadHash = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="HASH",
        help="A head that was printed or logged earlier, which must be in the chain.",
        show_default=False,
    ),
]


@app.command()
def show(file: File, csv: Spreadsheet = None, json: Json = False) -> None:
    """Show the payment due to each client, and the unpaid rounds with their reasons."""
    from dufl.errors import InputError
    from dufl.experiment.files import to_json, write_text
    from dufl.experiment.output import check_file
    from dufl.flower.ledger_tables import ledger_csv, ledger_summary, ledger_table

    book = _open(file)
    if csv:
        check_file(csv, "--csv")
        if csv.exists() and csv.samefile(file):
            raise InputError.of("--csv", "a file other than the ledger", csv)
    with book:
        book.check()
        entries, settlements = book.entries(), book.settlements()
    if csv:
        write_text(csv, ledger_csv(entries, book.unit))
    summary = ledger_summary(entries, settlements, book.unit)
    if json:
        typer.echo(to_json(summary), nl=False)
        return
    console().print(ledger_table(summary))
    if csv:
        typer.echo(f"written: {csv}")


@app.command()
def verify(file: File, head: HeadHash = None, json: Json = False) -> None:
    """Check that no line was changed, inserted or removed since it was written.

    Exit code 2 if one was; the message names the first wrong one. Removing the last rounds leaves a valid
    chain: compare the head with one that was noted earlier, with --head.
    """
    from dufl.errors import InputError
    from dufl.experiment.files import to_json

    with _open(file) as book:
        try:
            found = book.check(head.strip().lower() if head is not None else None)
        except InputError as error:
            raise (error.renamed("--head") if error.field == "head" else error) from None
        total, escrow, unit = book.total(), sum(book.escrow().values()), book.unit
    if json:
        numbers = {"rounds": found.rounds, "head": found.hash or None, "unit": str(unit)}
        typer.echo(to_json(numbers | {"total": total, "escrow": escrow}), nl=False)
        return
    held = f", {unit.text(escrow)} of it in escrow" if escrow else ""
    chain = "every line is as it was written" if found.hash else "amounts add up"
    typer.echo(f"{chain}: {unit.text(total)} owed{held}")
    typer.echo(str(found))


@app.command()
def backup(
    file: File,
    to: Annotated[Path, typer.Argument(metavar="DEST", help="The file to write.", click_type=OutputPath())],
    force: Annotated[bool, typer.Option("--force", help="Replace DEST if it exists.")] = False,
) -> None:
    """Copy a ledger while a server may be writing to it. The copy is verified before it gets its name."""
    from dufl.errors import InputError
    from dufl.experiment.output import check_file

    with _open(file) as book:
        check_file(to, "DEST")
        try:
            head = book.backup(to, force=force)
        except InputError as error:
            raise (error.renamed("DEST") if error.field == "to" else error) from None
    typer.echo(f"written: {to} ({head})")


@app.command()
def settle(
    file: File,
    client: Annotated[int, typer.Option("--client", metavar="K", help="The number of the client.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; stored in the ledger.")],
    release: Annotated[bool, typer.Option("--release", help="Pay what is held back.")] = False,
    forfeit: Annotated[
        bool, typer.Option("--forfeit", help="Do not pay it. It goes back to the budget.")
    ] = False,
) -> None:
    """Decide about everything that is held back from a client. The decision is final."""
    from dufl.errors import InputError

    if release == forfeit:
        raise InputError("either --release or --forfeit must be given", field="--release")
    with _open(file) as book:
        book.check()
        try:
            settled = book.settle(client, "release" if release else "forfeit", reason)
        except InputError as error:
            option = {"client": "--client", "reason": "--reason"}.get(error.field, error.field)
            raise (error.renamed(option) if option != error.field else error) from None
        head, unit = book.head(), book.unit
    what = "released to" if release else "forfeited by"
    typer.echo(f"{unit.text(settled.units)} {what} client {client}")
    typer.echo(str(head))


def _open(file: Path) -> "Ledger":
    from dufl.errors import InputError
    from dufl.experiment.files import open_regular
    from dufl.experiment.output import reading
    from dufl.flower.ledger import Ledger

    if not file.exists():
        raise InputError.of("FILE", "a ledger that exists", file)
    with reading(file):
        open_regular(file).close()  # do not block on a pipe
    return Ledger(file)
