"""The plan of an endless service as a table."""

from rich.console import Group, RenderableType
from rich.text import Text

from dufl.formatting import count, money, number, percent
from dufl.game.endless import StationaryPlan
from dufl.report.plan_table import Rows, certificate_rows, html_table, spread, two_columns
from dufl.report.predictions import predicted_name, prediction_text


def endless_table(plan: StationaryPlan) -> RenderableType:
    """The plan of an endless service for the terminal."""
    parts = (
        ("Server, per round", _server_rows(plan)),
        ("Clients, per round", _client_rows(plan)),
        ("Solution quality", _quality_rows(plan)),
    )
    return Group(Text(_headline(plan), style="bold"), *(two_columns(title, rows) for title, rows in parts))


def endless_html(plan: StationaryPlan) -> str:
    """The plan of an endless service as a compact HTML table, for notebooks."""
    return html_table(_headline(plan), [*_server_rows(plan), *_client_rows(plan)])


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
    full = int(plan.full.sum())
    at_capacity = [
        ("clients with a full buffer", f"{full:,} of {plan.game.clients.size:,}"),
        ("  largest shadow price of capacity", _small(float(plan.shadow_price.max()))),
    ]
    return [
        ("volume per client", spread(plan.volume)),
        ("collected per client", spread(plan.collection)),
        ("staleness", number(plan.staleness)),
        ("payment per client", spread(plan.payment * share)),
        ("utility per client", spread(plan.utility)),
        ("clients with negative utility", losing),
        *(at_capacity if full else []),
    ]


def _quality_rows(plan: StationaryPlan) -> Rows:
    return [("relative residual", f"{plan.residual:.1e}"), *certificate_rows(plan)]


def _small(value: float) -> str:
    """A number with four digits, since the cost of a single round is often far below 1."""
    return f"{value:.4g}" if 0 < abs(value) < 1 else number(value)
