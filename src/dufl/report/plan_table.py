"""A plan as a table: for the terminal, and in HTML for notebooks."""

from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dufl.experiment.limits import taking_part
from dufl.formatting import count, money, number, percent
from dufl.game.dynamics import Array, collection
from dufl.game.endless import StationaryPlan
from dufl.game.plan import Plan
from dufl.report.limits import limit_rows, participation_row
from dufl.report.participation import participation_rows
from dufl.report.plan_charts import TERMS
from dufl.report.predictions import cost_label, headline_part, prediction_rows
from dufl.report.uncertainty import uncertainty_rows

Rows = list[tuple[str, str]]
NOTICEABLE = 0.01  # the relative difference from which on the endless offer is shown
_BLOCKS = " ▁▂▃▄▅▆▇█"


def plan_table(plan: Plan, baseline: Plan | None = None) -> RenderableType:
    """A plan for the terminal.

    Args:
        plan: what is shown.
        baseline: the plan of Algorithm 1 for the same game, to compare with.
    """
    parts = [("Server", _server_rows(plan, baseline)), ("Clients", _client_rows(plan))]
    advice: list[Text] = []
    if plan.robustness:
        parts.append((f"Uncertainty: {plan.robustness.laws} plausible loss laws", uncertainty_rows(plan)))
        advice.append(Text(plan.robustness.advice))
    parts.append(("Solution quality", _quality_rows(plan)))
    tables = [two_columns(title, rows) for title, rows in parts]
    return Group(Text(_plan_headline(plan), style="bold"), *tables, *advice, _plan_lines(plan))


def plan_html(plan: Plan) -> str:
    """A plan as a compact HTML table, for notebooks."""
    rows = [*_server_rows(plan, None), *_client_rows(plan), *uncertainty_rows(plan)]
    return html_table(_plan_headline(plan), rows)


def _plan_headline(plan: Plan) -> str:
    game = plan.game
    kept = percent(plan.conservation_rate, 1)
    some = f"{game.clients.size - plan.staying_away:,} of " if plan.staying_away else ""
    setting = f"{some}{count(game.clients.size, 'client')}, {count(game.num_rounds, 'round')}"
    return (
        f"Pay {money(plan.payment)} per round and keep {kept} of the data{headline_part(plan)}"
        f"  ({setting}, {plan.method}, {plan.competition})"
    )


def _server_rows(plan: Plan, baseline: Plan | None) -> Rows:
    cost = plan.cost_by_term
    rows = [
        ("payment per round R", money(plan.payment)),
        ("conservation rate θ", f"{plan.conservation_rate:.4f}"),
        ("payment over all rounds", money(plan.total_payment)),
        *prediction_rows(plan),
        (cost_label(plan), number(cost.total)),
        *term_rows(float(part.sum()) for part in (cost.payment, cost.volume, cost.staleness)),
        ("cost without update", _against(plan.no_update_cost, cost.total)),
    ]
    if baseline is not None:
        rows.append(("cost of Algorithm 1", _against(baseline.server_cost, cost.total)))
        rows.append(("payment of Algorithm 1", _against(baseline.payment, plan.payment)))
    return [*rows, *_endless_rows(plan)]


def _endless_rows(plan: Plan) -> Rows:
    """What the server would offer if the service did not end; empty if that is nearly the same."""
    offer = plan.endless_offer
    if offer is None:
        return []
    payment = abs(offer.payment - plan.payment) > NOTICEABLE * max(offer.payment, plan.payment)
    rate = abs(offer.conservation_rate - plan.conservation_rate) > NOTICEABLE
    if not (payment or rate):
        return []
    return [
        ("offer for an endless service, R and θ", f"{money(offer.payment)}, {offer.conservation_rate:.4f}")
    ]


def term_rows(values: Any) -> Rows:
    """The terms of the server's cost, indented under the total."""
    return [(f"  {name}", number(value)) for (name, _), value in zip(TERMS, values, strict=True)]


def _client_rows(plan: Plan) -> Rows:
    """The rows on clients; means are over those that take part."""
    outcome, inside = plan.outcomes, taking_part(plan)
    if not inside.size:
        return limit_rows(plan)
    negative = int((outcome.utility < 0).sum())
    rounds, volume = plan.game.num_rounds, plan.total_volume / plan.playing.clients.num_clients
    return [
        ("collected per client and round", spread(outcome.collected[inside] / (rounds - 1))),
        ("volume, first / mean / last round", _path(volume)),
        ("staleness, first / mean / last round", _path(plan.mean_staleness)),
        ("payment per client", spread(outcome.payment[inside])),
        ("utility per client", spread(outcome.utility[inside])),
        ("  with no collection", spread(outcome.zero_utility[inside])),
        ("  with random collection", spread(outcome.random_utility[inside])),
        ("clients with negative utility", f"{negative:,} of {plan.game.clients.size:,}"),
        *participation_rows(plan),
        *limit_rows(plan),
    ]


def _quality_rows(plan: Plan) -> Rows:
    solution = plan.equilibrium
    return [
        ("equilibrium", "converged" if solution.converged else "NOT within the tolerance"),
        ("relative residual", f"{solution.residual:.1e} after {count(solution.passes, 'pass', 'passes')}"),
        *participation_row(plan),
        *certificate_rows(plan),
    ]


def certificate_rows(plan: Plan | StationaryPlan) -> Rows:
    """What the certificate says."""
    rows = [("largest deviation gain (ε)", f"{plan.certificate.deviation_gain:.1e} of the turnover")]
    if plan.competition == "mean-field":
        rows.append(("  for a client that knows its influence", f"{plan.certificate.influence:.1e}"))
    return [*rows, ("certificate (independent)", "holds")]  # a plan without one is an error


def _plan_lines(plan: Plan) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, values in (
        ("total collection", collection(plan.total_volume, plan.conservation_rate)),
        ("total volume", plan.total_volume),
        ("mean staleness", plan.mean_staleness),
    ):
        top = f"{name}\n0 to {number(float(np.max(values)))}"
        grid.add_row(Text(top, style="dim"), Text("\n".join(chart(values, height=2)), style="cyan"))
    return grid


def two_columns(title: str, rows: Rows) -> Table:
    """A table with a title and two columns, for the terminal."""
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
        return f"{number(other)}  (this plan: {number(ours / other)} times as much)"
    saving = 1 - ours / other
    return f"{number(other)}  ({percent(abs(saving), 1)} {'saved' if saving >= 0 else 'more'})"


def spread(values: Array) -> str:
    """The mean of some values, with the least and the largest in brackets."""
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-9 * max(abs(high), 1e-300):
        return number(high)
    return f"{number(float(values.mean()))}  ({number(low)} to {number(high)})"


def _path(values: Array) -> str:
    return " / ".join(number(float(v)) for v in (values[0], values.mean(), values[-1]))


def html_table(title: str, rows: Rows) -> str:
    """A table with a title and two columns, in HTML."""

    def name(text: str) -> str:
        return escape(text).replace("  ", "&emsp;")

    body = "".join(
        f'<tr><th scope="row" style="text-align: left; font-weight: normal">{name(label)}</th>'
        f'<td style="text-align: right">{escape(value)}</td></tr>'
        for label, value in rows
    )
    caption = f'<caption style="text-align: left; font-weight: bold">{escape(title)}</caption>'
    return f"<table>{caption}<tbody>{body}</tbody></table>"


def chart(values: npt.ArrayLike, width: int = 60, height: int = 4) -> list[str]:
    """A filled line chart of block characters: `height` lines of at most `width`, from 0 to the maximum.

    >>> chart([0, 1, 2, 3, 4], width=5, height=1)
    [' ▂▄▆█']
    """
    series = np.asarray(values, dtype=float)
    columns = min(width, series.size)
    edges = np.linspace(0, series.size, columns + 1).astype(int)
    parts = [series[a:b] for a, b in pairwise(edges)]
    known = [part[~np.isnan(part)] for part in parts]
    means = np.array([part.mean() if part.size else 0.0 for part in known])
    top = means.max()
    level = np.zeros(columns) if top <= 0 else np.rint(means / top * height * 8)
    rows = []
    for row in range(height - 1, -1, -1):
        filled = np.clip(level - 8 * row, 0, 8).astype(int)
        rows.append("".join(_BLOCKS[n] for n in filled))
    return rows
