"""A negotiation without a network: how good is a plan that is found from sums alone?"""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dufl.experiment.config import Config
from dufl.game.dynamics import Array
from dufl.game.negotiation import Question, negotiate
from dufl.game.plan import solve
from dufl.game.population import Clients


def rehearse(config: Config, draw: int) -> dict[str, Any]:
    """Negotiate with clients whose costs are drawn anew, and plan for them with all costs known."""
    game, leader = config.game, config.leader
    volume = game.clients.initial_volume
    private = Clients.draw(game.clients.size, 1000 + draw, initial_volume=volume)
    how: dict[str, Any] = {"leader": leader.method, "algorithm1": leader.algorithm1}

    def ask(questions: Sequence[Question]) -> list[Array]:
        return [question.answer(private) for question in questions]

    found = negotiate(game, ask, **how)
    known = solve(game.replace(clients=private), **how)
    return {
        "draw": draw,
        "phases": found.phases,
        "residual": found.residual,
        "payment": found.payment,
        "payment_known": known.payment,
        "conservation_rate": found.conservation_rate,
        "conservation_rate_known": known.conservation_rate,
        "server_cost": found.server_cost,
        "server_cost_known": known.server_cost,
    }


def rehearsal_table(rows: Sequence[dict[str, Any]]) -> Table:
    """What `dufl flower rehearse` prints."""
    table = Table(title="Negotiated (all costs known)", title_justify="left")
    for column in ("draw", "phases", "residual", "R", "θ", "server cost", "difference"):
        table.add_column(column, justify="right")
    for row in rows:
        more = 100 * (row["server_cost"] / row["server_cost_known"] - 1)
        table.add_row(
            str(row["draw"]),
            str(row["phases"]),
            f"{row['residual']:.1e}",
            f"{row['payment']:.2f} ({row['payment_known']:.2f})",
            f"{row['conservation_rate']:.3f} ({row['conservation_rate_known']:.3f})",
            f"{row['server_cost']:.4f} ({row['server_cost_known']:.4f})",
            f"{more:+.4f} %",
        )
    return table
