"""A plan in charts that one can point at: what it costs, its course, the cost around it, who earns what."""

from typing import Any

import numpy as np

from dufl.formatting import number
from dufl.game.dynamics import Array
from dufl.game.plan import Plan
from dufl.report.courses import SHOWN, Course, courses
from dufl.report.figures import BLUE, GREEN, GREY, ORANGE, RED
from dufl.report.interactive import Chart, Trace, axes, band, by_round, line, plain
from dufl.report.plan_figures import strategies

EACH = 40  # clients drawn one by one at most
TERMS = (("payment", BLUE), ("too little data", ORANGE), ("stale data", GREEN))


def cost_chart(plan: Plan, baseline: Plan | None = None) -> Chart:
    """The server's cost by term: of this plan, of Algorithm 1's, and without update."""
    named = [("this plan", plan.cost_by_term)]
    if baseline is not None:
        named.append(("Algorithm 1", baseline.cost_by_term))
    named.append(("no update", plan.no_update))
    names = [name for name, _ in named]
    parts = [[float(part.sum()) for part in (c.payment, c.volume, c.staleness)] for _, c in named]
    traces: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": term,
            "y": names,
            "x": plain([row[i] for row in parts]),
            "marker": {"color": colour},
            "hovertemplate": "%{x:.4g}",
        }
        for i, (term, colour) in enumerate(TERMS)
    ]
    totals = [sum(row) for row in parts]
    traces.append(
        {
            "type": "scatter",
            "mode": "text",
            "y": names,
            "x": plain(totals),
            "text": [f" {number(total)}" for total in totals],
            "textposition": "middle right",
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    layout = axes(
        "cost U over all rounds",
        "",
        barmode="stack",
        hovermode="y unified",
        yaxis={"autorange": "reversed", "showgrid": False},
    )
    layout["legend"]["traceorder"] = "normal"
    most = max((total for total in totals if np.isfinite(total)), default=1.0)
    layout["xaxis"]["range"] = [0, 1.25 * most]
    _cut(layout, totals, names[-1])
    data = {"plan": names} | {term: [row[i] for row in parts] for i, (term, _) in enumerate(TERMS)}
    return Chart("cost_by_term", "What it costs the server", traces, layout, data)


def _cut(layout: dict[str, Any], totals: list[float], name: str) -> None:
    """Cut a last bar that would dwarf the others, and write at its end how long it is."""
    *others, last = totals
    if not last > 3 * max(others) > 0:
        return
    edge = 1.3 * max(others)
    layout["xaxis"]["range"] = [0, edge]
    note = {"x": edge, "y": name, "text": f"{number(last)} →", "xanchor": "right", "showarrow": False}
    layout["annotations"] = [note | {"font": {"color": "black", "size": 13}}]


def course_charts(plan: Plan) -> list[Chart]:
    """Collection, volume and staleness over the rounds: the mean, and every client or most of them."""
    collection, volume, staleness = courses(plan)
    return [
        _course("collection", "Collected per client, Δ(t)", "samples", collection),
        _course("volume", "Held per client, D(t)", "samples", volume),
        _course("staleness", "Staleness, S(t)", "rounds", staleness),
    ]


def _course(name: str, title: str, unit: str, course: Course) -> Chart:
    each, mean = course
    rounds = np.arange(len(mean))
    traces: list[Trace] = []
    data = {"round": rounds, "mean": mean}
    if each.shape[1] <= EACH:
        # one line with gaps draws much faster than a line a client
        times, gap = np.append(rounds, rounds[-1]), np.full((1, each.shape[1]), np.nan)
        every = np.vstack([each, gap]).T
        own = line("each client", np.tile(times, len(every)), every.ravel(), GREY, hoverinfo="skip")
        traces.append(own | {"opacity": 0.7, "line": {"color": GREY, "width": 1}})
        data |= {f"client {k}": each[:, k] for k in range(each.shape[1])}
    else:
        low, high = np.quantile(each, [0.05, 0.95], axis=1)
        traces += band("90 % of clients", rounds, low, high, GREY)
        data |= {"5 % of clients below": low, "5 % of clients above": high}
    traces.append(line("mean", rounds, mean, BLUE, hovertemplate="%{y:,.4g}"))
    layout = axes("round t", unit, xaxis=by_round(len(mean)), yaxis={"rangemode": "tozero"})
    return Chart(name, title, traces, layout, data)


def surface_chart(
    plan: Plan, baseline: Plan | None, payments: Array, rates: Array, costs: Array, best: Plan | None = None
) -> Chart:
    """The server's cost at the clients' equilibrium over (R, θ), as `cost_surface` found it.

    Args:
        plan: the plan that is marked.
        baseline: Algorithm 1's plan, if it is known.
        payments: R of the rows of `costs`.
        rates: θ of its columns.
        costs: the cost at every offer.
        best: the best plan, if `plan` is another that one wants to compare with it.
    """
    shown = np.where(np.isfinite(costs), costs, np.nan)
    floor = max(1e-6 * np.nanmax(shown), 1e-300)  # a cost may be nothing at all, which has no logarithm
    least = max(min(np.nanmin(shown), plan.server_cost), floor)
    most = max(min(4 * least, np.nanmax(shown)), 1.01 * least)
    ticks = np.geomspace(least, most, 5)
    surface: Trace = {
        "type": "contour",
        "x": plain(payments),
        "y": plain(rates),
        "z": [plain(row) for row in np.log(np.clip(shown, least, most)).T],
        "customdata": [plain(row) for row in shown.T],
        "zmin": float(np.log(least)),
        "zmax": float(np.log(most)),
        "colorscale": "Viridis",
        "reversescale": True,
        "ncontours": 24,
        "contours": {"coloring": "fill", "showlines": False},
        "line": {"width": 0},
        "colorbar": {
            "title": {"text": "cost U", "side": "top", "font": {"size": 13}},
            "tickvals": plain(np.log(ticks)),
            "ticktext": [*(f"{tick:.3g}" for tick in ticks[:-1]), f"≥ {ticks[-1]:.3g}"],
            "thickness": 14,
        },
        "hovertemplate": "R = %{x:.4g}, θ = %{y:.3f}<br>U = %{customdata:.4g}<extra></extra>",
    }
    marks = [("this plan", plan.payment, plan.conservation_rate, plan.server_cost, "star", RED)]
    if best is not None:
        offer = best.payment, best.conservation_rate
        marks.append(("optimum", *offer, best.server_cost, "diamond", GREEN))
    if baseline is not None:
        offer = baseline.payment, baseline.conservation_rate
        marks.append(("Algorithm 1", *offer, baseline.server_cost, "circle", ORANGE))
    marks.append(("no update", 0.0, 1.0, plan.no_update_cost, "square", GREY))
    traces = [
        surface,
        *(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{name}: U = {number(cost)}",
                "x": [payment],
                "y": [rate],
                "cliponaxis": False,
                "marker": {
                    "symbol": symbol,
                    "color": colour,
                    "size": 15,
                    "line": {"color": "white", "width": 1.5},
                },
                "hovertemplate": f"{name}<br>R = %{{x:.4g}}, θ = %{{y:.3f}}<br>U = {cost:.4g}<extra></extra>",
            }
            for name, payment, rate, cost, symbol, colour in marks
        ),
    ]
    layout = axes(
        "payment per round R",
        "conservation rate θ",
        hovermode="closest",
        xaxis={"range": [-0.04 * float(payments[-1]), float(payments[-1])]},
        yaxis={"range": [0, 1]},
    )
    layout["legend"]["y"] = 1.06  # clear of the mark in the upper corner
    data = {
        "payment": np.repeat(payments, len(rates)),
        "conservation_rate": np.tile(rates, len(payments)),
        "cost": costs.ravel(),
    }
    return Chart("cost_surface", "The cost of every offer, at the clients' equilibrium", traces, layout, data)


def utility_chart(plan: Plan) -> Chart:
    """What clients earn by the plan, and what each would earn alone with a simpler strategy."""
    outcome = plan.outcomes
    order, series = strategies(plan)
    traces: list[Trace] = []
    if order.size <= EACH:
        for name, values, colour in series:
            bars = {"type": "bar", "name": name, "x": [str(k) for k in order], "y": plain(values)}
            traces.append({**bars, "marker": {"color": colour}, "hovertemplate": "%{y:,.4g}"})
        x, kind = "client, from the one who earns most", {"type": "category"}
    else:
        some = np.unique(np.linspace(0, order.size - 1, SHOWN).astype(int))
        share = 100 * (some + 0.5) / order.size
        for name, values, colour in series:
            traces.append(line(name, share, values[some], colour, hovertemplate="%{y:,.4g}"))
        x, kind = "clients, from those who earn most (%)", {}
    layout = axes(x, "utility over all rounds", xaxis=kind)
    data = {
        "client": order,
        "paid": outcome.payment[order],
        "utility": outcome.utility[order],
        "random_utility": outcome.random_utility[order],
        "zero_utility": outcome.zero_utility[order],
    }
    return Chart("utility", "What each client earns", traces, layout, data)
