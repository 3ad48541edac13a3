"""A run on Flower's simulation: every client is a virtual node, trained by processes of Ray."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dufl.experiment.config import Config
from dufl.experiment.files import write_text
from dufl.experiment.output import FLOWER, claim
from dufl.experiment.run_directory import RunDirectory
from dufl.learning.federation import Record

QUIET = {  # nobody is told that this run happens
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
ARRIVAL = 5.0  # seconds: all nodes are there from the start, and one that fails then will not get better
BACKEND: Any = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"},
}


def simulate(
    config: Config,
    folder: Path,
    *,
    negotiated: bool = False,
    watch: Callable[[Record], None] = lambda _: None,
) -> None:
    """Run a configuration on Flower in one machine; what is in `folder` already is gone on with.

    Args:
        config: as for `dufl train`.
        folder: the run directory.
        negotiated: whether the plan is negotiated, or solved from the costs in the configuration.
        watch: told the record of every round.
    """
    os.environ.update(QUIET)
    from flwr.simulation import run_simulation

    from dufl.flower.app import ServerSettings, client_app, server_app

    if not RunDirectory(folder, FLOWER).exists:
        claim(folder, FLOWER)
    path = (folder / "simulation.toml").absolute()
    write_text(path, config.to_toml())
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients = folder.absolute() / "clients"
    run_simulation(
        server_app(
            lambda _: ServerSettings(path, folder, negotiated, timeout=3600.0, arrival=ARRIVAL), watch
        ),
        client_app(lambda _: (path, clients)),
        num_supernodes=config.game.clients.size,
        backend_config=BACKEND,
    )
