"""The command line: `dufl COMMAND`. One short file a command."""

import sys

import typer

from dufl.cli.certify import certify
from dufl.cli.compare import compare
from dufl.cli.data import app as data
from dufl.cli.explore import explore
from dufl.cli.flower import app as flower
from dufl.cli.init import init
from dufl.cli.ledger import ledger
from dufl.cli.plan import plan
from dufl.cli.report import report
from dufl.cli.reproduce import reproduce
from dufl.cli.sweep import sweep
from dufl.cli.train import train
from dufl.errors import DuflError

app = typer.Typer(
    help="Plan, pay for and train on fresh data in federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (plan, explore, train, compare, report, reproduce, init, sweep, certify, ledger):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(flower, name="flower")


@app.callback(invoke_without_command=True)
def top(
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    """Plan, pay for and train on fresh data in federated learning."""
    if version:
        from dufl import __version__

        typer.echo(f"dufl {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error a user can mend is one sentence and exit code 2."""
    try:
        app()
    except DuflError as fault:
        typer.echo(f"error: {fault}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
