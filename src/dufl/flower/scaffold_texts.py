"""The files of a new app directory, as texts with `{placeholders}`."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Federated learning on fresh data."
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = [{dependencies}]

[tool.hatch.build.targets.wheel]
packages = ["app"]
{environment}
[tool.flwr.app]
publisher = "{publisher}"  # on Flower Hub: the name of your account
fab-format-version = 1
flwr-version-target = "{target}"
fab-include = [{included}]  # the bundle: no costs, no results

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

[tool.flwr.app.config]
data = "{data}"  # the directory of the four paths below; ~ is a home directory
config = "server.toml"         # the server's configuration{otherwise}
folder = "run"                 # for model, metrics, deal and ledger
client-config = "client.toml"  # the clients' configuration; in a deployment, every node has its own
client-folder = "clients"      # for the clients' buffers; in a deployment, every node has its own
timeout = 600.0        # seconds to wait for clients in a round, or in a phase of the negotiation
log = "text"           # "json": JSON lines in log.jsonl of `folder` as well; "json-stderr", "json-both"
metrics-port = -1      # the port of metrics for Prometheus; -1: none
metrics-host = "127.0.0.1"  # whoever reaches it reads them: there is no authentication
negotiate = true       # false: `config` has the true costs of the clients
if-finished = "error"  # if the run in `folder` is finished; "new": a new run in folder-2, folder-3 ...
min-others = {others}         # others that must be in a sum before a client answers; a node may have its own
"""
OTHERWISE = "; if there is none, app/config.toml"
ENVIRONMENT = """
# DUFL and Flower are installed where SuperLink and SuperNodes run; nothing is installed for a run.
[tool.uv]
override-dependencies = ["flwr; python_version < '3'"]
"""
IGNORED = """\
# `flwr build` and `flwr app publish` leave out what git ignores: all that is not listed here, because it may
# hold costs or results. Add what your code needs.
/*
!/.gitignore
!/LICENSE
!/README.md
!/app
!/pyproject.toml
__pycache__/
"""
LICENSE = """\
Copyright {publisher}

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
"""
PACKAGE = '"""Federated learning on fresh data."""\n'
SERVER = '''\
"""The server. For a strategy of your own, use `dufl.flower.DataUpdateStrategy(strategy, game, folder)`."""

from pathlib import Path

from dufl.flower.app import deployed_server

app = deployed_server(Path(__file__).with_name("config.toml"))
'''
CLIENT = '''\
"""The client. For an app of your own, use `dufl.flower.DataUpdateMod(profile)`."""

from pathlib import Path

from dufl.flower.app import deployed_client

app = deployed_client(default=Path(__file__).with_name("config.toml"))
'''
PUBLIC = """\
# Part of the bundle, and public if the app is published: no costs of clients, no prices of the server.
# It is used where `config` and `client-config` do not exist, such as in a simulation by others.
"""
README = """\
# {name}

Federated learning on fresh data with [Flower](https://flower.ai) and DUFL. The server negotiates with the
clients how much fresh data they collect in every round, pays them for it, and trains on it. Clients do not
send their costs or their data.

## Simulation

The app expects {clients} virtual SuperNodes:

```sh
pip install -e .
flwr run . --stream --federation-config 'num-supernodes={clients} client-resources-num-cpus=1'
```

Model, metrics, deal and ledger are written to `{data}/run`. Show what each client is owed:

```sh
dufl ledger {data}/run/ledger.sqlite
```

A new run needs another folder: `--run-config 'folder="run-2"'`.

The configurations `server.toml` and `client.toml` are read from `{data}`; `dufl init FILE` writes one with a
comment for each key.{public}

## Deployment

Each SuperNode has its own configuration with its costs, and its own directory for the samples that it holds:

```sh
flower-supernode --superlink ADDRESS --root-certificates ca.crt --auth-supernode-private-key KEY \\
    --node-config 'partition-id=0 config="/path/client.toml" folder="/path/of/its/buffer"'
```

`partition-id` is the number of the client, from 0 to {last}. `[data]` in its `client.toml` says where its
samples come from.
"""
README_PUBLIC = """ If they do not exist, a simulation uses the public `app/config.toml`, with
costs drawn at random."""
