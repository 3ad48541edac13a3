"""The command line: `dufl COMMAND`. One short file per command."""

import gc
import io
import os
import signal
import sys
import warnings
from contextlib import suppress

import click
import typer

from dufl.cli.calibrate import calibrate
from dufl.cli.certify import certify
from dufl.cli.compare import compare
from dufl.cli.data import app as data
from dufl.cli.explore import explore
from dufl.cli.flower import app as flower
from dufl.cli.init import init
from dufl.cli.ledger import app as ledger
from dufl.cli.plan import plan
from dufl.cli.report import report
from dufl.cli.reproduce import reproduce
from dufl.cli.sweep import sweep
from dufl.cli.train import train
from dufl.errors import DuflError, InputError, NegativeUtilityWarning, PluginError, plugin_traceback

OPTIONS = {  # command-line options by library argument
    "accuracy": "--accuracy",
    "baseline": "--baseline",
    "budget": "--budget",
    "changes": "--set",
    "host": "--host",
    "jobs": "--jobs",
    "metric": "--metric",
    "only": "--only",
    "out": "--out",
    "pilots": "--pilots",
    "point_worth": "--point-worth",
    "port": "--port",
    "robust": "--robust",
}

app = typer.Typer(
    help="Plan, pay for and train on fresh data in federated learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests them
    rich_markup_mode="markdown",  # shows [data] literally and joins the lines of a paragraph
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (plan, calibrate, explore, train, compare, report, reproduce, init, sweep, certify):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(flower, name="flower")
app.add_typer(ledger, name="ledger")


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
    """Run the command line. A user error prints one sentence and sets the exit code of its type."""
    gc.set_threshold(50_000, 20, 20)  # libraries make many objects that stay: look for garbage less often
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show θ
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NegativeUtilityWarning)  # shown in tables and JSON
            code = app(prog_name="dufl", standalone_mode=False) or 0
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except PluginError as error:
        if error.__cause__ is not None:
            typer.echo(plugin_traceback(error.__cause__), err=True, nl=False)
        code = _fail(error, error.exit_code)
    except InputError as error:
        named = error.renamed(OPTIONS[error.field]) if error.field in OPTIONS else error
        code = _fail(named, error.exit_code)
    except DuflError as error:
        code = _fail(error, error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        typer.echo("stopped", err=True)
        code = 130
    except BrokenPipeError:
        _abandon_output()
        code = 128 + signal.SIGPIPE
    except OSError as error:
        _abandon_output()
        code = _fail(error, 2)
    except MemoryError as error:
        code = _fail(f"not enough memory: {error}", 2)
    sys.exit(code)


def _fail(error: object, code: int) -> int:
    typer.echo(f"error: {error}", err=True)
    return code


def _abandon_output() -> None:
    """Discard pending output. Python would otherwise try to write it again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
