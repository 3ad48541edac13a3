"""`dufl flower new`: an app directory for `flwr run` that starts with DUFL's own apps."""

from pathlib import Path

from dufl.errors import InputError
from dufl.experiment.files import make_directory, write_text

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Federated learning on fresh data."
license = "LicenseRef-Proprietary"
dependencies = []  # of your own code; DUFL and Flower must be installed on every machine

[tool.hatch.build.targets.wheel]
packages = ["app"]

[tool.flwr.app]
publisher = "{name}"
fab-include = ["app/**/*.py"]  # the bundle for SuperLink and nodes: no costs, no results

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

[tool.flwr.app.config]
config = {config}      # the server's configuration
folder = {folder}      # for model, metrics, deal and ledger
client-config = {client}   # the clients' configuration in simulation; in a deployment, every node has its own
client-folder = {clients}  # for the clients' buffers in simulation; in a deployment, every node has its own
timeout = 600.0        # seconds to wait for clients in a round, or in a phase of the negotiation
negotiate = true       # false: `config` has the true costs of the clients
if-finished = "error"  # if the run in `folder` is finished; "new": a new run in folder-2, folder-3 ...
min-others = {others}         # others that must be in a sum before a client answers; a node may have its own
"""
IGNORED = """\
/server.toml
/client.toml
/run*/
/clients/
*.fab
"""
SERVER = '''\
"""The server. For a strategy of your own, use `dufl.flower.DataUpdateStrategy(strategy, game, folder)`."""

from dufl.flower.app import deployed_server

app = deployed_server()
'''
CLIENT = '''\
"""The client. For an app of your own, use `dufl.flower.DataUpdateMod(profile)`."""

from dufl.flower.app import deployed_client

app = deployed_client()
'''


def new_app(folder: Path, config: str, num_clients: int) -> None:
    """Write an app directory.

    Args:
        folder: the directory; it must be new or empty.
        config: the text of the configuration.
        num_clients: the number of clients in it.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError.of("folder", "new or empty", folder)
    root = make_directory(folder).absolute()
    make_directory(root / "app")
    name = "".join(letter if letter.isalnum() else "-" for letter in root.name.lower())
    texts = {
        "pyproject.toml": PROJECT.format(
            name=name.strip("-") or "app",
            config=repr(str(root / "server.toml")),
            folder=repr(str(root / "run")),
            client=repr(str(root / "client.toml")),
            clients=repr(str(root / "clients")),
            others=max(0, min(3, num_clients - 2)),  # one client may be lost
        ),
        "app/__init__.py": '"""Federated learning on fresh data."""\n',
        "app/server.py": SERVER,
        "app/client.py": CLIENT,
        ".gitignore": IGNORED,
    }
    for name, text in texts.items():
        write_text(root / name, text)
    for name in ("server.toml", "client.toml"):
        write_text(root / name, config, private=True)  # it holds costs
