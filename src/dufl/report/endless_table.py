"""The plan of an endless service as a table, and the row about it in the table of a finite plan."""

from html import escape

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dufl.formatting import count, money, number, percent
from dufl.game.dynamics import Array
from dufl.game.endless import StationaryPlan
from dufl.game.plan import Plan
from dufl.report.predictions import predicted_name, prediction_text

Rows = list[tuple[str, str]]
NOTICEABLE = 0.01  # the relative difference from which on the endless offer is shown


def endless_rows(plan: Plan) -> Rows:
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


def endless_table(plan: StationaryPlan) -> RenderableType:
    """The plan of an endless service for the terminal."""
    parts = (
        ("Server, per round", _server_rows(plan)),
        ("Clients, per round", _client_rows(plan)),
        ("Solution quality", _quality_rows(plan)),
    )
    return Group(Text(_headline(plan), style="bold"), *(_table(title, rows) for title, rows in parts))


def endless_html(plan: StationaryPlan) -> str:
    """The plan of an endless service as a compact HTML table, for notebooks."""
    rows = [*_server_rows(plan), *_client_rows(plan)]
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<p><b>{escape(_headline(plan))}</b></p><table>{body}</table>"


def _headline(plan: StationaryPlan) -> str:
    predicted = plan.prediction
    part = f": predicted {predicted_name(predicted)} {prediction_text(predicted)}" if predicted else ""
    setting = f"{count(plan.game.clients.size, 'client')}, endless, {plan.method}, {plan.competition}"
    kept = percent(plan.conservation_rate, 1)
    return f"Pay {money(plan.payment)} per round and keep {kept} of the data{part}  ({setting})"


def _server_rows(plan: StationaryPlan) -> Rows:
    cost, predicted = plan.cost_by_term, plan.prediction
    rows = [("payment R", money(plan.payment)), ("conservation rate θ", f"{plan.conservation_rate:.4f}")]
    if predicted:
        rows.append((f"predicted {predicted_name(predicted)}", prediction_text(predicted)))
    return [
        *rows,
        ("cost U above the floor" if predicted else "cost U", _small(cost.total)),
        ("  payment", _small(float(cost.payment[0]))),
        ("  insufficient data", _small(float(cost.volume[0]))),
        ("  stale data", _small(float(cost.staleness[0]))),
    ]


def _client_rows(plan: StationaryPlan) -> Rows:
    losing = f"{plan.certificate.losing_clients:,} of {plan.game.clients.size:,}"
    share = plan.volume / plan.total_volume if plan.total_volume > 0 else plan.volume
    return [
        ("volume per client", _spread(plan.volume)),
        ("collected per client", _spread(plan.collection)),
        ("staleness", number(plan.staleness)),
        ("payment per client", _spread(plan.payment * share)),
        ("utility per client", _spread(plan.utility)),
        ("clients with negative utility", losing),
    ]


def _quality_rows(plan: StationaryPlan) -> Rows:
    certificate = plan.certificate
    rows = [
        ("relative residual", f"{plan.residual:.1e}"),
        ("largest deviation gain (ε)", f"{certificate.deviation_gain:.1e} of the turnover"),
    ]
    if plan.competition == "mean-field":
        rows.append(("  for a client that knows its influence", f"{certificate.influence:.1e}"))
    return [*rows, ("certificate (independent)", "holds")]  # a plan without one is an error


def _table(title: str, rows: Rows) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(min_width=42)
    table.add_column(justify="right", min_width=34)
    for row in rows:
        table.add_row(*row)
    return table


def _small(value: float) -> str:
    """A number with four digits, since the cost of a single round is often far below 1."""
    return f"{value:.4g}" if 0 < abs(value) < 1 else number(value)


def _spread(values: Array) -> str:
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-9 * max(abs(high), 1e-300):
        return number(high)
    return f"{number(float(np.mean(values)))}  ({number(low)} to {number(high)})"
