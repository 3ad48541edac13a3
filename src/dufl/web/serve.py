"""The server of the page: Streamlit, by default on the loopback address, without usage statistics."""

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
_PORTS = 100  # tried from FIRST_PORT on
LOCAL = "127.0.0.1"
_PRELOADED = ("pandas", "pyarrow", "plotly.graph_objects")  # so that the first visitor need not wait
_ALL_INTERFACES = ("0.0.0.0", "::", "")


def free_port(host: str, wanted: int | None) -> int:
    """The port `wanted`, which must be free; without it, the first free one from `FIRST_PORT` on."""
    if wanted is not None:
        if not _is_free(host, wanted):
            raise InputError.of("port", f"free on {host}", f"{wanted}, which is in use")
        return wanted
    for port in range(FIRST_PORT, FIRST_PORT + _PORTS):
        if _is_free(host, port):
            return port
    last = FIRST_PORT + _PORTS - 1
    raise InputError.of("port", "given", f"none: no port from {FIRST_PORT} to {last} is free")


def is_local(host: str) -> bool:
    """Whether the address can be reached from this machine only."""
    return host in ("localhost", "::1") or host.startswith("127.")


def address_of(host: str, port: int) -> str:
    """The URL of the page on this machine."""
    name = LOCAL if host in _ALL_INTERFACES else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def serve(file: Path | None, host: str, port: int, open_browser: bool, announce: Callable[[], None]) -> None:
    """Serve the page until Ctrl-C; `announce` is called once it accepts connections."""
    from streamlit import cli_util
    from streamlit.web import bootstrap

    from dufl.web import streamlit_app

    for name in _PRELOADED:
        import_module(name)
    cli_util.print_to_cli = _print_nothing  # also on Ctrl-C, when stdout may be closed
    options = settings(host, port, open_browser)
    bootstrap.load_config_options(options)
    Thread(target=_when_ready, args=(host, port, announce), daemon=True).start()
    bootstrap.run(streamlit_app.__file__, False, [str(file)] if file else [], options)


def settings(host: str, port: int, open_browser: bool) -> dict[str, Any]:
    """Streamlit's options: no usage statistics, no requests to other hosts, no output on the terminal."""
    return {
        "browser_gatherUsageStats": False,
        "browser_serverAddress": LOCAL if host in _ALL_INTERFACES else host,
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
        "theme_light_textColor": "#111111",  # enough contrast also where Streamlit lightens it
        "theme_light_primaryColor": "#0072B2",
        "theme_dark_primaryColor": "#56B4E9",
    }


def _when_ready(host: str, port: int, announce: Callable[[], None]) -> None:
    while True:
        try:
            socket.create_connection((LOCAL if host in _ALL_INTERFACES else host, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return announce()


def _print_nothing(message: str, **_: Any) -> None:
    """Replace the function with which Streamlit prints to the terminal."""


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            if error.errno == errno.EACCES:
                raise InputError.of("port", "a port that you may listen on", port) from None
            raise InputError.of("host", "an address of this machine", host) from None
    return True
