"""Flower on a single machine: a simulated run, and a rehearsal of the negotiation."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dufl.experiment.config import Experiment
from dufl.experiment.files import write_text
from dufl.experiment.output import FLOWER, claim
from dufl.experiment.run_directory import RunDirectory
from dufl.game import negotiation
from dufl.game.dynamics import Array
from dufl.game.plan import solve
from dufl.game.population import Clients
from dufl.learning.federation import Record

QUIET = {  # no telemetry, and no check for updates
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
ARRIVAL_TIMEOUT = 5.0  # seconds: in simulation, a node that fails at the start will not recover
BACKEND: Any = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"},
}


def simulate(
    config: Experiment,
    folder: Path,
    *,
    negotiate: bool = False,
    on_record: Callable[[Record], None] = lambda _: None,
) -> None:
    """Run a configuration in Flower's simulation, in which every client is a virtual node.

    A run that is in `folder` already is resumed.

    Args:
        config: as for `dufl train`.
        folder: the run directory.
        negotiate: whether the plan is negotiated, or solved from the costs in the configuration.
        on_record: called with the record of every round.
    """
    os.environ.update(QUIET)
    from flwr.simulation import run_simulation

    from dufl.flower.app import ServerSettings, client_app, server_app

    if not RunDirectory(folder, FLOWER).exists:
        claim(folder, FLOWER)
    path = (folder / "simulation.toml").absolute()
    write_text(path, config.to_toml())
    logging.getLogger("flwr").setLevel(logging.ERROR)
    settings = ServerSettings(path, folder, negotiate, timeout=3600.0, arrival_timeout=ARRIVAL_TIMEOUT)
    clients = folder.absolute() / "clients"
    run_simulation(
        server_app(lambda _: settings, on_record),
        client_app(lambda _: (path, clients), min_others=0),  # one process knows all costs
        num_supernodes=config.game.clients.size,
        backend_config=BACKEND,
    )


def rehearse(config: Experiment, draw: int) -> dict[str, Any]:
    """Negotiate with clients whose costs are drawn at random, and plan for them with all costs known.

    Args:
        config: the server's view. Its clients are the first guess.
        draw: selects the random costs.
    """
    game, method, options = config.game, config.leader.method, config.leader.algorithm1
    clients = game.clients
    stated = {name: getattr(clients, name) for name in ("capacity", "collection_price", "training_price")}
    others = {name: (clients.recipe or stated)[name] for name in stated}  # drawn anew if they were drawn
    private = Clients.draw(clients.size, 1000 + draw, initial_volume=clients.initial_volume, **others)

    def ask(announcements: Sequence[negotiation.Announcement]) -> list[Array]:
        return [announcement.response(private) for announcement in announcements]

    negotiated = negotiation.negotiate(game, ask, method=method, algorithm1=options)
    known = solve(game.replace(clients=private), method=method, algorithm1=options)
    return {
        "draw": draw,
        "phases": negotiated.phases,
        "residual": negotiated.residual,
        "payment": negotiated.offer.payment,
        "payment_known": known.payment,
        "conservation_rate": negotiated.offer.conservation_rate,
        "conservation_rate_known": known.conservation_rate,
        "server_cost": negotiated.server_cost,
        "server_cost_known": known.server_cost,
    }


def rehearsal_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The table that `dufl flower rehearse` prints."""
    table = Table(title="Negotiated (all costs known)", title_justify="left")
    for column in ("draw", "phases", "residual", "R", "θ", "server cost", "difference"):
        table.add_column(column, justify="right")
    for row in rows:
        difference = 100 * (row["server_cost"] / row["server_cost_known"] - 1)
        table.add_row(
            str(row["draw"]),
            str(row["phases"]),
            f"{row['residual']:.1e}",
            f"{row['payment']:.2f} ({row['payment_known']:.2f})",
            f"{row['conservation_rate']:.3f} ({row['conservation_rate_known']:.3f})",
            f"{row['server_cost']:.4f} ({row['server_cost_known']:.4f})",
            f"{difference:+.4f} %",
        )
    return table
