"""`dufl explore`: a local web page that replans as parameters change."""

from contextlib import suppress
from typing import Annotated

import typer

from dufl.cli.common import File, progress_bar
from dufl.errors import InputError

Port = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="Port of the page; by default the first free port from 8501.",
        show_default=False,
    ),
]
Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen on; by default this machine only.")
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")]


def explore(
    file: File = None, port: Port = None, host: Host = "127.0.0.1", no_browser: NoBrowser = False
) -> None:
    """Open a local web page that replans as you change the parameters of a federation.

    The page sends nothing to other hosts. Stop it with Ctrl-C.
    """
    _needs_streamlit()
    from dufl.web.plans import warm_up
    from dufl.web.request import Request, initial_values
    from dufl.web.serve import address_of, free_port, is_local, serve
    from dufl.web.source import open_source

    source = open_source(file)
    free_port(host, port)  # fail before the warm-up, not after it
    with suppress(InputError), progress_bar() as begin_task:  # the page shows the error
        warm_up(Request(source, initial_values(source)), begin_task("warming up"))
    chosen = free_port(host, port)  # another process may have taken it in the meantime
    if not is_local(host):
        typer.echo(f"warning: anyone who can reach this machine on port {chosen} can use the page", err=True)
    message = f"open {address_of(host, chosen)} in a browser; stop with Ctrl-C"
    serve(file, host, chosen, not no_browser, announce=lambda: typer.echo(message))


def _needs_streamlit() -> None:
    import importlib.util

    if importlib.util.find_spec("streamlit") is None:
        raise InputError("dufl explore needs Streamlit: pip install 'dufl[web]'")
