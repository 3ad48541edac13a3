"""A local web server that fails in a given way."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = Literal["none", "404", "truncates", "stalls", "no ranges", "lies"]


class Mirror:
    """Serves `files` under every address that ends in their name.

    Attributes:
        files: name to bytes.
        fault: how it fails; "truncates" sends half of the announced bytes and closes the connection, "stalls"
            does not close it, "lies" sends other bytes of the same length.
        faults: the number of requests that fail.
        requests: (name, first requested byte) of every request so far.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.fault: Fault = "none"
        self.faults = 1_000
        self.requests: list[tuple[str, int]] = []
        self.stop = threading.Event()
        self.address = ""

    def now(self) -> Fault:
        """The fault of this request."""
        self.faults -= 1
        return self.fault if self.faults >= 0 else "none"


@contextmanager
def mirror(files: dict[str, bytes]) -> Iterator[Mirror]:
    """A mirror with these files, for as long as the block lasts."""
    served = Mirror(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer, or fail as `fault` says."""
            with suppress(ConnectionError):  # the client may close the connection early
                _answer(self, served)

        def log_message(self, format: str, *values: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.address = f"http://127.0.0.1:{server.server_address[1]}/data/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        served.stop.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(handler: BaseHTTPRequestHandler, served: Mirror) -> None:
    name = handler.path.rpartition("/")[2]
    fault = served.now()
    requested = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    start = int(requested[1]) if requested else 0
    served.requests.append((name, start))
    if fault == "404" or name not in served.files:
        handler.send_error(404)
        return
    data = served.files[name]
    if fault == "no ranges":
        start = 0
    if start >= len(data) > 0:
        handler.send_error(416)
        return
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
    body = data[start:] if fault != "lies" else bytes(len(data) - start)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if fault in ("truncates", "stalls"):
        body = body[: len(body) // 2]
    handler.wfile.write(body)
    handler.wfile.flush()
    if fault == "stalls":
        served.stop.wait(10)
