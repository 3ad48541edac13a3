"""Options and progress that the commands share."""

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
    PathType = click.ParamType  # which older versions do not take types for


class OutputPath(PathType):
    """A path to write to. An empty one, such as of a variable that is not set, is no name for a folder."""

    name = "path"

    def convert(self, value: str | Path, param: click.Parameter | None, _: click.Context | None) -> Path:
        """The path."""
        if value == "":
            raise InputError.of(param.opts[-1] if param else "path", "a name", "an empty text")
        return Path(value)


def _file(path: Path | None) -> Path | None:
    """Say it where `--set` was forgotten."""
    if path is not None and "=" in path.name and not path.exists():
        raise InputError(
            f"FILE must be a TOML file that exists, got {path}: a value is changed by --set {path}"
        )
    return path


File = Annotated[
    Path | None,
    typer.Argument(
        help="The TOML file; without one, the paper's defaults.", show_default=False, callback=_file
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of the file, e.g. --set game.num_rounds=50. Repeatable.",
        show_default=False,
    ),
]
ImportFrom = Annotated[
    Path | None,
    typer.Option(
        "--import-from",
        metavar="DIR",
        help="Look there for plugins, package.module:Name in the file. Their code is run.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write results and figures there.",
        show_default=False,
        click_type=OutputPath(),
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write into --out even if it holds something else, or files of yours.")
]


def parse_changes(texts: Iterable[str] | None) -> dict[str, Any]:
    """The changes of `--set KEY=VALUE`: values by key, with its section.

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
    """Look for plugins in a folder too, if one is given."""
    if folder is not None:
        from dufl.plugins import import_from

        import_from(folder)


def console(width: int = 100) -> "Console":
    """Standard output for tables: as wide as the terminal, or `width` columns where it is none.

    Texts are shown as they are: a path with brackets in it is no markup.
    """
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # which ends every command in the same way

    wide = None if Console().is_terminal else width
    return Output(width=wide, markup=False, emoji=False)


@contextmanager
def progress_bar() -> Iterator[Callable[[str], "Advance"]]:
    """Begin named tasks, a bar each: `advance = begin("searching")`, then `advance(0.5)`.

    Time gone and time left are shown, and what is at work if `advance` is told. It is drawn on stderr, only
    on a terminal, and leaves nothing behind.
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
    """A callback that pauses a run after its round on Ctrl-C or SIGTERM; a second Ctrl-C stops at once."""
    import signal

    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        typer.echo("stopping after this round; press Ctrl-C again to stop at once", err=True)

    from dufl.experiment.callbacks import Action

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda _: Action.PAUSE if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
