"""Options and progress bars shared by the commands."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from dufl.errors import InputError, shown

if TYPE_CHECKING:
    from rich.console import Console

    from dufl.reproduce.item import Advance

    PathType = click.ParamType[Path]
else:
    PathType = click.ParamType  # not generic in older versions of click


class OutputPath(PathType):
    """An output path. An empty string, such as from an unset shell variable, is an error."""

    name = "path"

    def convert(self, value: str | Path, param: click.Parameter | None, _: click.Context | None) -> Path:
        """Convert the argument to a path."""
        if value == "":
            raise InputError.of(param.opts[-1] if param else "path", "a name", "an empty string")
        return Path(value)


def check_file_argument(path: Path | None) -> Path | None:
    """Suggest `--set` for an argument such as `num_rounds=50`."""
    if path is not None and "=" in path.name and not path.exists():
        raise InputError(
            f"FILE must be a TOML file that exists, got {path}: to change a value, use --set {path}"
        )
    return path


File = Annotated[
    Path | None,
    typer.Argument(
        help="The TOML file. Default: the paper's parameters.",
        show_default=False,
        callback=check_file_argument,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a configuration value, e.g. --set game.num_rounds=50. Repeatable.",
        show_default=False,
    ),
]
ImportFrom = Annotated[
    Path | None,
    typer.Option(
        "--import-from",
        metavar="DIR",
        help="Also search DIR for plugins (package.module:Name in the file). Runs their code.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write results and figures to DIR.",
        show_default=False,
        click_type=OutputPath(),
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write to --out even if it holds other files; these may be replaced.")
]


def parse_changes(texts: Iterable[str] | None) -> dict[str, Any]:
    """Parse `--set KEY=VALUE` options into values by full key.

    >>> parse_changes(["num_rounds=50", "data.dataset=mnist", "policy=static"])
    {'game.num_rounds': 50, 'data.dataset': 'mnist', 'policy': 'static'}
    """
    from dufl.experiment.keys import split_key
    from dufl.experiment.toml import parse_value

    changes = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError.of("--set", "section.key=value", text, text=shown(text))
        name = ".".join(filter(None, split_key(key)))
        changes[name] = parse_value(value.strip(), name)
    return changes


def allow_imports(folder: Path | None) -> None:
    """Also search a folder for plugins, if one is given."""
    if folder is not None:
        from dufl.plugins import import_from

        import_from(folder)


def console(width: int = 100) -> "Console":
    """A console on stdout for tables: as wide as the terminal, or `width` columns if stdout is no terminal.

    Text is printed literally: brackets in a path are not markup.
    """
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # handled by `main`

    wide = None if Console().is_terminal else width
    return Output(width=wide, markup=False, emoji=False)


@contextmanager
def progress_bar() -> Iterator[Callable[[str], "Advance"]]:
    """Show one progress bar per task: `advance = begin("searching")`, then `advance(0.5)`.

    A bar shows the elapsed time, the remaining time and the optional second argument of `advance`. Bars are
    drawn on stderr, only on a terminal, and are removed at the end.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=600,
    ) as bar:

        def begin(name: str) -> "Advance":
            task = bar.add_task(name, total=1.0, now="")
            return lambda share, now="": bar.update(task, completed=share, now=now)

        yield begin


@contextmanager
def stopping() -> Iterator[Callable[[Any], Any]]:
    """A callback that pauses a run after the current round on Ctrl-C or SIGTERM; a second one aborts."""
    import signal

    signals: list[int] = []

    def handle(number: int, _: object) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        typer.echo("stopping after this round; press Ctrl-C again to stop at once", err=True)

    from dufl.experiment.callbacks import Action

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda _: Action.PAUSE if signals else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
