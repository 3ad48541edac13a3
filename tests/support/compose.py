"""The services of a compose file as processes of this machine, with paths, names and ports mapped."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flower_processes import BIN, EXAMPLES, QUIET, script

FOLDER = EXAMPLES / "flower-deployment"
deploy = script()


def read(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The compose file with its variables replaced, as Compose does it."""
    text = (FOLDER / "compose.yaml").read_text()
    values = environment or {}
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: values.get(found[1], found[2]), text)
    table: dict[str, Any] = YAML(typ="safe").load(text)
    return table


def mounts(table: dict[str, Any], service: dict[str, Any]) -> dict[str, str]:
    """What a service sees: places of this machine by path in the container."""
    volumes = (volume.split(":") for volume in service.get("volumes", ()))
    places = {inside: outside for outside, inside, *_ in volumes}
    for secret in service.get("secrets", ()):
        name = secret if isinstance(secret, str) else secret["source"]
        target = secret if isinstance(secret, str) else secret["target"]
        places[f"/run/secrets/{target}"] = table["secrets"][name]["file"]
    return places


class Processes:
    """Starts services as Compose does: in the order of `depends_on`, with their health checks."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / ".env").read_text().splitlines()
        self.table = read(dict(line.split("=", 1) for line in lines))
        self.services: dict[str, Any] = self.table["services"]
        ports = iter(deploy.free_ports(1 + len(self.services)))
        self.superlink = next(ports)
        self.ports = {name: next(ports) for name in self.services}
        self.folder = folder
        self.running: dict[str, subprocess.Popen[str]] = {}

    def mapped(self, name: str, argument: str) -> str:
        """An argument with paths, host names and ports of this machine."""
        known = {"superlink:8000": f"localhost:{self.superlink}", "8000": str(self.superlink)}
        known |= {"9094": str(self.ports[name])} | mounts(self.table, self.services["superlink"])
        known |= {"/state": str(self.folder / "tmp" / name)} | mounts(self.table, self.services[name])
        words = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        return re.sub(
            rf"(?<![\w./])({words})(?![\w.-])", lambda found: known[found[1]], argument.replace("$$", "$")
        )

    def start(self, name: str, command: list[str]) -> "subprocess.Popen[str]":
        """Start a command as in the container of a service, with its output in a file."""
        state = self.folder / "tmp" / name
        state.mkdir(parents=True, exist_ok=True)
        homes = {"HOME": self.mapped(name, "/state"), "FLWR_HOME": self.mapped(name, "/state/flwr")}
        arguments = [self.mapped(name, argument) for argument in command]
        with (state / "log").open("a") as log:
            return subprocess.Popen(
                arguments,
                cwd=homes["HOME"],
                env=os.environ | QUIET | homes | {"PATH": f"{BIN}:{os.environ['PATH']}"},
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        """The output of a service."""
        return (self.folder / "tmp" / name / "log").read_text(errors="replace")

    def healthy(self, name: str) -> bool:
        """Whether the health check of a service succeeds."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.start(name, command).wait(60) == 0

    def up(self, name: str) -> None:
        """Start a service and what it depends on, unless it runs."""
        service = self.services[name]
        for other, how in service.get("depends_on", {}).items():
            self.up(other)
            self.wait_for(other, how["condition"])
        if name not in self.running:
            self.running[name] = self.start(name, service["command"])

    def wait_for(self, name: str, condition: str, seconds: float = 180) -> None:
        """Wait until a service is healthy, or has succeeded."""
        if condition == "service_completed_successfully":
            assert self.running[name].wait(seconds) == 0, self.log(name)
            return
        assert condition == "service_healthy"
        began = time.monotonic()
        while not self.healthy(name):
            assert self.running[name].poll() is None, self.log(name)
            assert time.monotonic() - began < seconds, self.log(name)
            time.sleep(0.5)

    def kill(self, name: str) -> None:
        """Kill a service and its descendants."""
        process = self.running.pop(name)
        deploy.kill(deploy.family(process))
        process.wait(60)


@contextmanager
def composed(folder: Path) -> Iterator[Processes]:
    """The services of the compose file for a folder that prepare.py wrote; all are ended afterwards."""
    made = Processes(folder)
    config = folder / "cli" / "config.toml"  # it names a host and a path of the containers
    config.write_text(made.mapped("run", config.read_text()))
    try:
        yield made
    finally:
        for name in list(made.running):
            made.kill(name)
