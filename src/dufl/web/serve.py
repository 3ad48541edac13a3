"""The server of the page: Streamlit, on this machine only unless told otherwise, and silent to the world."""

import errno
import socket
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from dufl.errors import InputError

FIRST_PORT = 8501
_TRIED = 100  # ports
LOCAL = "127.0.0.1"
_USED = ("pandas", "pyarrow", "plotly.graph_objects")  # loaded before the first visitor waits for them
_EVERYWHERE = ("0.0.0.0", "::", "")


def free_port(host: str, wanted: int | None) -> int:
    """The port that is wanted, which must be free; or the first one that is."""
    if wanted is not None:
        if not _is_free(host, wanted):
            raise InputError.of("port", f"free on {host}", f"{wanted}, which is in use")
        return wanted
    for port in range(FIRST_PORT, FIRST_PORT + _TRIED):
        if _is_free(host, port):
            return port
    last = FIRST_PORT + _TRIED - 1
    raise InputError.of("port", "given", f"none, and none from {FIRST_PORT} to {last} is free")


def is_local(host: str) -> bool:
    """Whether only this machine can reach the host."""
    return host in ("localhost", "::1") or host.startswith("127.")


def address_of(host: str, port: int) -> str:
    """What to type into a browser on this machine."""
    named = LOCAL if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}"


def serve(file: Path | None, host: str, port: int, open_browser: bool, announce: Callable[[], None]) -> None:
    """Serve the page until it is stopped; `announce` is called once it can be reached."""
    from streamlit import cli_util
    from streamlit.web import bootstrap

    from dufl.web import page

    for name in _USED:
        import_module(name)
    cli_util.print_to_cli = _silence  # Ctrl-C ends it without a word, even when nobody reads what it says
    options = settings(host, port, open_browser)
    bootstrap.load_config_options(options)
    Thread(target=_when_reached, args=(host, port, announce), daemon=True).start()
    bootstrap.run(page.__file__, False, [str(file)] if file else [], options)


def settings(host: str, port: int, open_browser: bool) -> dict[str, Any]:
    """Streamlit's options: no usage statistics, no question to other machines, a quiet terminal."""
    return {
        "browser_gatherUsageStats": False,
        "browser_serverAddress": LOCAL if host in _EVERYWHERE else host,
        "browser_serverPort": port,
        "client_showErrorDetails": "none",
        "client_toolbarMode": "minimal",
        "global_developmentMode": False,
        "logger_hideWelcomeMessage": True,
        "logger_level": "error",
        "runner_magicEnabled": False,
        "server_address": host,
        "server_fileWatcherType": "none",
        "server_headless": not open_browser,
        "server_maxUploadSize": 20,
        "server_port": port,
        "server_showEmailPrompt": False,
        "theme_headingFontSizes": ["1.9rem", "1.15rem", "1rem"],
        "theme_paddingTop": "2.5rem",
        "theme_paddingBottom": "2rem",
        "theme_sidebar_paddingTop": "0rem",
        "theme_light_textColor": "#111111",  # dark enough for what Streamlit pales, too
        "theme_light_primaryColor": "#0072B2",
        "theme_dark_primaryColor": "#56B4E9",
    }


def _when_reached(host: str, port: int, announce: Callable[[], None]) -> None:
    while True:
        try:
            socket.create_connection((LOCAL if host in _EVERYWHERE else host, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return announce()


def _silence(message: str, **_: Any) -> None:
    """What Streamlit would tell the terminal."""


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as fault:
            if fault.errno == errno.EADDRINUSE:
                return False
            if fault.errno == errno.EACCES:
                raise InputError.of("port", "one that you may listen on", port) from None
            raise InputError.of("host", "an address of this machine", host) from None
    return True
