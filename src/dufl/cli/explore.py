"""`dufl explore`: a page on which one changes a federation and sees its plan."""

from contextlib import suppress
from typing import Annotated

import typer

from dufl.cli.common import File, progress_bar
from dufl.errors import InputError

Port = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="The port; by default the first free one from 8501.", show_default=False
    ),
]
Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where to listen; by default on this machine only.")
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")]


def explore(
    file: File = None, port: Port = None, host: Host = "127.0.0.1", no_browser: NoBrowser = False
) -> None:
    """Open a page on which to change a federation and see at once what its plan becomes.

    Nothing leaves this machine. Ctrl-C ends it.
    """
    _needs_streamlit()
    from dufl.web.answer import warm_up
    from dufl.web.choices import Question, beginning
    from dufl.web.serve import address_of, free_port, is_local, serve
    from dufl.web.source import begin

    source = begin(file)
    free_port(host, port)  # what is wrong with it is said at once
    with suppress(InputError), progress_bar() as begin_task:  # the page will say what is wrong with it
        warm_up(Question(source, beginning(source)), begin_task("getting ready"))
    chosen = free_port(host, port)  # in the meantime another may have come
    if not is_local(host):
        typer.echo(f"warning: whoever reaches this machine on port {chosen} can use the page", err=True)
    told = f"open {address_of(host, chosen)} in a browser; Ctrl-C ends it"
    serve(file, host, chosen, not no_browser, announce=lambda: typer.echo(told))


def _needs_streamlit() -> None:
    import importlib.util

    if importlib.util.find_spec("streamlit") is None:
        raise InputError("dufl explore needs Streamlit: pip install 'dufl[web]'")
