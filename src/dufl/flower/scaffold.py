"""`dufl flower new`: an app directory for `flwr run`, with DUFL's own apps to begin with."""

from pathlib import Path

from dufl.errors import InputError
from dufl.experiment.files import make_directory, write_text
from dufl.flower.private import write_private

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Federated learning on fresh data."
license = "LicenseRef-Proprietary"
dependencies = []  # of your own code; DUFL and Flower are those of the machine it runs on

[tool.hatch.build.targets.wheel]
packages = ["app"]

[tool.flwr.app]
publisher = "{name}"
fab-include = ["app/**/*.py"]  # what is sent to SuperLink and nodes: no costs, no runs

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

[tool.flwr.app.config]
config = {config}      # what the server knows
folder = {folder}      # model, metrics, deal and ledger go there
client-config = {client}   # what clients know, in simulation; in a deployment every node has its own
client-folder = {clients}  # their buffers go there, likewise
timeout = 600.0        # seconds that a round, or a phase of negotiation, waits for its clients
negotiate = true       # false: the costs in `config` are those of the clients
"""
IGNORED = """\
/server.toml
/client.toml
/run*/
/clients/
*.fab
"""
SERVER = '''\
"""The server. For your own strategy, see `dufl.flower.server.DataUpdateStrategy(strategy, game, folder)`."""

from dufl.flower.app import deployed_server

app = deployed_server()
'''
CLIENT = '''\
"""A client. For an app of your own: `DataUpdateMod(person)` of dufl.flower.client."""

from dufl.flower.app import deployed_client

app = deployed_client()
'''


def new_app(folder: Path, config: str) -> None:
    """Write an app directory; `config` is the text of the configuration."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError.of("DIR", "new or empty", folder)
    where = make_directory(folder).absolute()
    make_directory(where / "app")
    letters = "".join(letter if letter.isalnum() else "-" for letter in where.name.lower())
    texts = {
        "pyproject.toml": PROJECT.format(
            name=letters.strip("-") or "app",
            config=repr(str(where / "server.toml")),
            folder=repr(str(where / "run")),
            client=repr(str(where / "client.toml")),
            clients=repr(str(where / "clients")),
        ),
        "app/__init__.py": '"""Federated learning on fresh data."""\n',
        "app/server.py": SERVER,
        "app/client.py": CLIENT,
        ".gitignore": IGNORED,
    }
    for name, text in texts.items():
        write_text(where / name, text)
    for name in ("server.toml", "client.toml"):
        write_private(where / name, config)  # costs are what only the one who pays them knows
