"""Runs Flower's commands as processes, with a separate home directory and free ports, and cleans up."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

BIN = Path(sys.executable).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
DEPLOY = EXAMPLES / "flower-deployment" / "deploy.py"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def script() -> Any:
    """The example deployment as a module."""
    spec = importlib.util.spec_from_file_location("deploy", DEPLOY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["deploy"] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def flower_home(folder: Path) -> Iterator[dict[str, str]]:
    """An environment for `flwr`; at the end the SuperLink that `flwr run` left running is stopped."""
    http, control = script().free_ports(2)
    ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http), "FLWR_LOCAL_CONTROL_API_PORT": str(control)}
    path = f"{BIN}:{os.environ['PATH']}"
    try:
        yield os.environ | QUIET | ports | {"FLWR_HOME": str(folder), "PATH": path}
    finally:
        for pid in with_home(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)


def with_home(folder: Path) -> list[int]:
    """The ids of the processes with this FLWR_HOME."""
    mark, pids = f"FLWR_HOME={folder}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids


def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end and capture its output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, **options)
