"""A plan for people: what to pay, what to keep, what it brings and how good it is."""

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dufl.formatting import count, money, number
from dufl.game.dynamics import Array
from dufl.game.plan import Plan
from dufl.report.chart import chart


def plan_table(plan: Plan, baseline: Plan | None = None) -> RenderableType:
    """The table that `dufl plan` prints.

    Args:
        plan: what is shown.
        baseline: the plan of Algorithm 1 for the same game, to compare with.
    """
    return Group(
        _headline(plan),
        _table("The server", _server_rows(plan, baseline)),
        _table("The clients", _client_rows(plan)),
        _table("How good it is", _proof_rows(plan)),
        _charts(plan),
    )


def _headline(plan: Plan) -> Text:
    clients, rounds = plan.game.clients.size, plan.game.num_rounds
    return Text(
        f"Pay {money(plan.payment)} a round and keep {100 * plan.conservation_rate:.1f} % of old data"
        f"  ({count(clients, 'client')}, {rounds:,} rounds, {plan.method}, {plan.competition})",
        style="bold",
    )


def _server_rows(plan: Plan, baseline: Plan | None) -> list[tuple[str, str]]:
    cost = plan.cost_by_term
    rows = [
        ("payment per round R", money(plan.payment)),
        ("conservation rate θ", f"{plan.conservation_rate:.4f}"),
        ("payment over all rounds", money(plan.total_payment)),
        ("cost U", number(cost.total)),
        ("  of it payment", number(float(cost.payment.sum()))),
        ("  of it too little data", number(float(cost.volume.sum()))),
        ("  of it stale data", number(float(cost.staleness.sum()))),
        ("cost without update", _against(plan.no_update_cost, cost.total)),
    ]
    if baseline is not None:
        rows.append(("cost of Algorithm 1", _against(baseline.server_cost, cost.total)))
        rows.append(("payment of Algorithm 1", _against(baseline.payment, plan.payment)))
    return rows


def _client_rows(plan: Plan) -> list[tuple[str, str]]:
    outcome = plan.outcomes
    losing = int((outcome.utility < 0).sum())
    rounds, volume = plan.game.num_rounds, plan.total_volume / plan.game.clients.num_clients
    return [
        ("collected per client and round", _spread(outcome.collected / (rounds - 1))),
        ("held per client, first / mean / last round", _path(volume)),
        ("staleness, first / mean / last round", _path(plan.mean_staleness)),
        ("paid per client", _spread(outcome.payment)),
        ("left after costs (utility)", _spread(outcome.utility)),
        ("  if one collected nothing", _spread(outcome.zero_utility)),
        ("  if one collected at random", _spread(outcome.random_utility)),
        ("lose by taking part", f"{losing:,} of {plan.game.clients.size:,}"),
    ]


def _proof_rows(plan: Plan) -> list[tuple[str, str]]:
    found = plan.equilibrium
    rows = [
        ("equilibrium", "found" if found.converged else "NOT within the tolerance"),
        ("relative residual", f"{found.residual:.1e} after {count(found.passes, 'pass', 'passes')}"),
        ("largest gain by deviating alone", f"{plan.certificate.deviation_gain:.1e} of the turnover"),
    ]
    if plan.competition == "mean-field":
        rows.append(("  if a client knew its influence", f"{plan.certificate.influence:.1e}"))
    return [*rows, ("certificate (independent)", "holds")]  # a plan without one is an error


def _charts(plan: Plan) -> Table:
    grid = Table.grid(padding=(0, 2))
    total = plan.total_volume
    series = (
        ("collected by all", total[1:] - plan.conservation_rate * total[:-1]),
        ("held by all", total),
        ("mean staleness", plan.mean_staleness),
    )
    for name, values in series:
        top = f"{name}\n0 to {number(float(np.max(values)))}"
        grid.add_row(Text(top, style="dim"), Text("\n".join(chart(values, height=2)), style="cyan"))
    return grid


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(min_width=42)
    table.add_column(justify="right", min_width=34)
    for row in rows:
        table.add_row(*row)
    return table


def _against(other: float, ours: float) -> str:
    if not np.isfinite(other) or other <= 0:
        return number(other)
    if ours > 2 * other:
        return f"{number(other)}  (this is {number(ours / other)} times as much)"
    saving = 100 * (1 - ours / other)
    word = "saved" if saving >= 0 else "more spent"
    return f"{number(other)}  ({abs(saving):.1f} % {word})"


def _spread(values: Array) -> str:
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-9 * max(abs(high), 1e-300):
        return number(high)
    return f"{number(float(values.mean()))}  ({number(low)} to {number(high)})"


def _path(values: Array) -> str:
    return " / ".join(number(float(v)) for v in (values[0], values.mean(), values[-1]))
