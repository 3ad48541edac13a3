"""Charts of a plan: the server's cost, the trajectories, the cost of other offers, the clients' utilities."""

import json
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dufl.experiment.limits import taking_part
from dufl.formatting import number
from dufl.game.compression import compress
from dufl.game.dynamics import Array, collection, staleness
from dufl.game.leader import cost_surface
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.chart_spec import (
    BLUE,
    COLORS,
    DASHES,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Axis,
    Chart,
    Column,
    Series,
    Surface,
)
from dufl.report.limit_charts import with_capacities, with_limits
from dufl.report.predictions import cost_label

SHOWN = 400  # clients at most whose trajectories are computed, evenly chosen
EACH = 40  # clients at most that are drawn one by one
GRID = (25, 21)  # payments and conservation rates of a cost surface
TYPES = 256  # client types at most on which it is computed; exact for as many clients
TERMS = (("payment", BLUE), ("insufficient data", ORANGE), ("stale data", GREEN))

Costs = tuple[Array, Array, Array]


class Trajectory(NamedTuple):
    """A quantity over the rounds.

    Attributes:
        each: of some clients, one per column.
        mean: over all clients.
    """

    each: Array
    mean: Array


def trajectories(plan: Plan) -> tuple[Trajectory, Trajectory, Trajectory]:
    """Δ(t), D(t) and S(t) of clients that take part."""
    some = plan.game.clients.take(_drawn(plan))
    volume, collected = plan.trajectories_of(some)
    aged = staleness(volume, plan.conservation_rate, some.initial_staleness)
    mean_volume = plan.total_volume / max(plan.playing.clients.num_clients, 1.0)
    return (
        Trajectory(collected[:-1], collection(mean_volume, plan.conservation_rate)),
        Trajectory(volume, mean_volume),
        Trajectory(aged, plan.mean_staleness),
    )


def _drawn(plan: Plan) -> npt.NDArray[np.intp]:
    """The clients that are drawn: those that take part, or evenly chosen ones of them."""
    inside = taking_part(plan)
    return inside[:: max(-(-inside.size // SHOWN), 1)]


def trajectory_charts(plan: Plan) -> list[Chart]:
    """Collection, volume and staleness over the rounds: the mean, and each client or the range of most."""
    collected, volume, aged = trajectories(plan)
    clients = _drawn(plan)
    held = _trajectory("volume", "Volume per client, D(t)", "samples", volume, clients)
    return [
        _trajectory("collection", "Collection per client, Δ(t)", "samples per round", collected, clients),
        with_capacities(plan, held, clients if clients.size <= EACH else clients[:0]),
        _trajectory("staleness", "Staleness, S(t)", "rounds", aged, clients),
    ]


def _trajectory(name: str, title: str, unit: str, trajectory: Trajectory, who: npt.NDArray[np.intp]) -> Chart:
    each, mean = trajectory
    rounds = np.arange(len(mean))
    data: dict[str, Column] = {"round": rounds, "mean": mean}
    if each.shape[1] <= EACH:
        # one line with gaps is drawn much faster than one line per client
        times, gap = np.append(rounds, rounds[-1]), np.full((1, each.shape[1]), np.nan)
        values = np.vstack([each, gap]).T.ravel()
        times = np.tile(times, each.shape[1])
        clients = Series("each client", times, values, GREY, width=1, opacity=0.7, hover="")
        data |= {f"client {client}": each[:, k] for k, client in enumerate(who)}
    else:
        low, high = np.quantile(each, [0.05, 0.95], axis=1)
        clients = Series("90 % of clients", rounds, (), GREY, "band", low, high)
        data |= {"5th percentile": low, "95th percentile": high}
    series = [clients, Series("mean", rounds, mean, BLUE)]
    x = Axis("round t", integers=True)
    return Chart(name, title, x, Axis(unit, from_zero=True), series, data)


def cost_chart(plan: Plan, baseline: Plan | None = None) -> Chart:
    """The server's cost by term: of this plan, of Algorithm 1's, and without update."""
    named = [("this plan", plan.cost_by_term)]
    if baseline is not None:
        named.append(("Algorithm 1", baseline.cost_by_term))
    named.append(("no update", plan.no_update_cost_by_term))
    names = [name for name, _ in named]
    parts = np.array([[float(part.sum()) for part in (c.payment, c.volume, c.staleness)] for _, c in named])
    totals = parts.sum(axis=1)
    edge, texts = (
        1.25 * max((t for t in totals if np.isfinite(t)), default=1.0),
        [f" {number(t)}" for t in totals],
    )
    *others, last = totals
    if last > 3 * max(others) > 0:  # a bar that would dwarf the others is cut off at the edge
        edge = 1.3 * max(others)
        texts[-1] = f"{number(last)} → "
    drawn = np.where(np.isfinite(parts), parts, edge)
    series = [
        Series(term, names, drawn[:, i], color, "bar", hover=".4g") for i, (term, color) in enumerate(TERMS)
    ]
    series.append(Series("total", names, np.minimum(totals, edge), GREY, "text", hover="", texts=texts))
    data: dict[str, Column] = {"plan": names}
    data |= {term: parts[:, i] for i, (term, _) in enumerate(TERMS)}
    cost = Axis(f"{cost_label(plan)} over all rounds", range=(0.0, float(edge)))
    title = "Server cost by term"
    return Chart("cost_by_term", title, Axis("", names=True), cost, series, data, horizontal=True)


def offers(high: float, size: tuple[int, int] = GRID) -> tuple[Array, Array]:
    """Payments up to `high` and conservation rates: the axes of a cost surface of this size."""
    payments = np.linspace(0, high, size[0])
    payments[0] = 1e-3 * high  # without any payment the data are used up and the cost has no bound
    return payments, np.linspace(0, 1, size[1])


def right_edge(plan: Plan, baseline: Plan | None) -> float:
    """The largest payment shown, so that the optimum is well inside."""
    high = plan.game.payment_range[1]
    most = max(plan.payment, baseline.payment if baseline else 0.0)
    wanted = 3 * most if most > 0 else high
    return float(min(wanted, max(high, 1.2 * most)) or 1.0)


def plan_surface(plan: Plan, baseline: Plan | None = None, progress: Progress = lambda _: None) -> Costs:
    """Payments, conservation rates, and the server's cost at the equilibrium of every pair of them."""
    payments, rates = offers(right_edge(plan, baseline))
    game = plan.game.replace(clients=compress(plan.game.clients, TYPES))
    return payments, rates, cost_surface(game, payments, rates, plan.competition, progress)


def surface_chart(
    plan: Plan, baseline: Plan | None, payments: Array, rates: Array, costs: Array, best: Plan | None = None
) -> Chart:
    """The server's cost at the clients' equilibrium over (R, θ).

    Args:
        plan: the plan that is marked.
        baseline: Algorithm 1's plan, if it is known.
        payments: R of the rows of `costs`.
        rates: θ of its columns.
        costs: the cost of every offer, as of `plan_surface`.
        best: the optimal plan, if `plan` is another to be compared with it.
    """
    shown = np.where(np.isfinite(costs), costs, np.nan)
    floor = max(1e-6 * np.nanmax(shown), 1e-300)  # a cost of 0 has no logarithm
    least = max(min(np.nanmin(shown), plan.server_cost), floor)
    most = max(min(4 * least, np.nanmax(shown)), 1.01 * least)
    marks = [("this plan", plan.payment, plan.conservation_rate, plan.server_cost, "star", RED)]
    if best is not None:
        marks.append(("optimum", best.payment, best.conservation_rate, best.server_cost, "diamond", GREEN))
    if baseline is not None:
        offer = baseline.payment, baseline.conservation_rate
        marks.append(("Algorithm 1", *offer, baseline.server_cost, "circle", ORANGE))
    marks.append(("no update", 0.0, 1.0, plan.no_update_cost, "square", GREY))
    series = [
        Series(f"{name}: U = {number(cost)}", [payment], [rate], color, "points", marker=marker)
        for name, payment, rate, cost, marker, color in marks
    ]
    return Chart(
        "cost_surface",
        "Cost U of every offer, at the clients' equilibrium",
        Axis("payment per round R", range=(-0.04 * float(payments[-1]), float(payments[-1]))),
        Axis("conservation rate θ", range=(0.0, 1.0)),
        series,
        {
            "payment": np.repeat(payments, len(rates)),
            "conservation_rate": np.tile(rates, len(payments)),
            "cost": costs.ravel(),
        },
        surface=Surface(payments, rates, shown, (float(least), float(most)), "cost U"),
    )


def utility_chart(plan: Plan) -> Chart:
    """The clients' utility under the plan, and what each would have alone with a simpler strategy."""
    outcome, inside = plan.outcomes, taking_part(plan)
    order = inside[np.argsort(-outcome.utility[inside])]
    strategies = (
        ("plan (optimal)", outcome.utility[order], BLUE),
        ("random, same total", outcome.random_utility[order], ORANGE),
        ("no collection", outcome.zero_utility[order], GREEN),
    )
    x, positions, some = client_axis(order)
    kind: Any = "bar" if x.names else "line"
    series = [Series(name, positions, values[some], color, kind) for name, values, color in strategies]
    data = {
        "client": order,
        "payment": outcome.payment[order],
        "utility": outcome.utility[order],
        "random_utility": outcome.random_utility[order],
        "zero_utility": outcome.zero_utility[order],
    }
    chart = Chart("utility", "Utility per client", x, Axis("utility over all rounds"), series, data)
    return with_limits(plan, chart, order)


def client_axis(order: Column) -> tuple[Axis, Column, Any]:
    """The axis of ordered clients, their positions, and which of them are drawn.

    Few clients are named one by one; of many, evenly chosen ones stand at their percentile.
    """
    size = len(order)
    if size <= EACH:
        return Axis("client, by descending utility", names=True), [str(k) for k in order], slice(None)
    some = np.unique(np.linspace(0, size - 1, SHOWN).astype(int))
    return Axis("clients, by descending utility (%)"), 100 * (some + 0.5) / size, some


SweepRow = dict[str, Any]


def sweep_charts(keys: list[str], rows: list[SweepRow]) -> list[Chart]:
    """Payment, conservation rate and cost over the values of the last key of a sweep.

    With one key both leaders are drawn; with more, the Stackelberg leader for every value of the others.
    """
    *others, key = keys
    numeric = all(type(row[key]) in (int, float) for row in rows)
    charts = []
    for name, title in (
        ("payment", "Payment per round R"),
        ("conservation_rate", "Conservation rate θ"),
        ("cost", "Server cost U"),
    ):
        own = "server_cost" if name == "cost" else name
        if others:
            lines = [
                (", ".join(f"{_short(k)} = {v}" for k, v in zip(others, values, strict=True)), group, own, n)
                for n, (values, group) in enumerate(rows_by_values(others, rows).items())
            ]
        else:
            lines = [("Stackelberg", rows, own, 0), ("Algorithm 1", rows, f"algorithm1_{name}", 1)]
        series = [_sweep_series(key, numeric, *line) for line in lines]
        x = Axis(key, names=not numeric)
        charts.append(Chart(name, title, x, Axis("", from_zero=True), series, {}))
    return charts


def _sweep_series(key: str, numeric: bool, label: str, rows: list[SweepRow], field: str, n: int) -> Series:
    """One line: means over the draws of the clients, and the range; a missing plan leaves a gap."""
    by_value = {values[0]: group for values, group in rows_by_values([key], rows).items()}
    groups = [[math.nan if row[field] is None else row[field] for row in g] for g in by_value.values()]
    return Series(
        label,
        [float(value) for value in by_value] if numeric else list(by_value),
        [float(np.mean(group)) for group in groups],
        COLORS[n % len(COLORS)],
        low=[min(group) for group in groups],
        high=[max(group) for group in groups],
        dash=DASHES[n % len(DASHES)],
        marker=("circle", "square", "diamond")[n % 3],
    )


def rows_by_values(keys: list[str], rows: list[SweepRow]) -> dict[tuple[str, ...], list[SweepRow]]:
    """The rows of a sweep by the texts of their values: one per draw of the clients."""
    groups: dict[tuple[str, ...], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault(tuple(value_text(row[key]) for key in keys), []).append(row)
    return groups


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def value_text(value: Any) -> str:
    """A value of the configuration as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
