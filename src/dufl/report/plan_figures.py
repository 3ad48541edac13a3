"""The three pictures of a plan: its course, the cost around it, and what clients make of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dufl.game.dynamics import Array
from dufl.game.leader import cost_surface
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.courses import Course, courses
from dufl.report.figures import BLUE, GREEN, GREY, ORANGE, RED, new_figure, save, style

SURFACE = (31, 26)  # payments, conservation rates


def write_plan_figures(
    plan: Plan, folder: Path, baseline: Plan | None = None, progress: Progress = lambda _: None
) -> list[Path]:
    """Write trajectories, cost surface and utilities as PNG and SVG; returns the paths."""
    with style():
        return [
            *save(trajectories(plan), folder, "trajectories"),
            *save(surface(plan, baseline, progress), folder, "cost_surface"),
            *save(utilities(plan), folder, "utilities"),
        ]


def trajectories(plan: Plan) -> Figure:
    """Collection, volume and staleness over the rounds: every client, and the mean."""
    collection, volume, staleness = courses(plan)
    figure, axes = new_figure(10.5, 3.2, ncols=3)
    _course(axes[0], collection, "Collected per round, Δ(t)", "samples")
    _course(axes[1], volume, "Held, D(t)", "samples")
    _course(axes[2], staleness, "Staleness, S(t)", "rounds")
    axes[0].legend(loc="best")
    figure.suptitle(f"R = {plan.payment:,.2f} a round, θ = {plan.conservation_rate:.3f}", x=0.01, ha="left")
    return figure


def _course(axes: Axes, course: Course, title: str, unit: str) -> None:
    each, mean = course
    rounds = np.arange(len(each))
    if each.shape[1] <= 40:
        axes.plot(rounds, each, color=GREY, alpha=0.35, linewidth=0.7)
        axes.plot([], [], color=GREY, alpha=0.6, linewidth=0.7, label="each client")
    else:
        low, high = np.quantile(each, [0.05, 0.95], axis=1)
        axes.fill_between(rounds, low, high, color=GREY, alpha=0.25, label="90 % of clients")
    axes.plot(rounds, mean, color=BLUE, label="mean")
    axes.set(title=title, xlabel="round t", ylabel=unit, xlim=(0, rounds[-1]))
    axes.set_ylim(bottom=0)


def surface(plan: Plan, baseline: Plan | None = None, progress: Progress = lambda _: None) -> Figure:
    """The server's cost at the clients' equilibrium over (R, θ), with the plan marked."""
    game = plan.game
    high = right_edge(plan, baseline)
    payments, rates = offers(high, SURFACE)
    costs = cost_surface(game, payments, rates, plan.competition, progress)
    least = min(costs.min(), plan.server_cost)
    figure, axes = new_figure(6.4, 4.6)
    levels = np.geomspace(least, min(4 * least, max(costs.max(), 1.01 * least)), 25)
    drawn = axes.contourf(
        payments, rates, costs.T, levels=levels, norm=LogNorm(), cmap="viridis_r", extend="max"
    )
    bar = figure.colorbar(drawn, ax=axes, label="server cost U", extend="max")
    ticks = levels[::6].tolist()
    bar.set_ticks(ticks, labels=[f"{v:.3g}" for v in ticks])
    bar.minorticks_off()
    mark: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "white", "clip_on": False, "zorder": 5}
    label = f"this plan: U = {plan.server_cost:.4g}"
    axes.plot(plan.payment, plan.conservation_rate, "*", color=RED, markersize=16, label=label, **mark)
    if baseline is not None:
        label = f"Algorithm 1: U = {baseline.server_cost:.4g}"
        axes.plot(baseline.payment, baseline.conservation_rate, "o", color=ORANGE, ms=9, label=label, **mark)
    label = f"no update: U = {plan.no_update_cost:.4g}"
    axes.plot(0, 1, "s", color=GREY, markersize=9, label=label, **mark)
    axes.set(
        title="The cost of every offer, at the clients' equilibrium",
        xlabel="payment per round R",
        ylabel="conservation rate θ",
        xlim=(0, high),
        ylim=(0, 1),
    )
    axes.grid(False)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def offers(high: float, size: tuple[int, int]) -> tuple[Array, Array]:
    """Payments up to `high` and conservation rates, the axes of a cost surface of this size."""
    payments = np.linspace(0, high, size[0])
    payments[0] = 1e-3 * high  # with no payment at all, data dies out and the cost has no bound
    return payments, np.linspace(0, 1, size[1])


def right_edge(plan: Plan, baseline: Plan | None) -> float:
    """The largest payment shown: the optimum should be well inside, not lost in a corner."""
    high = plan.game.payment_range[1]
    most = max(plan.payment, baseline.payment if baseline else 0.0)
    wanted = 3 * most if most > 0 else high
    return float(min(wanted, max(high, 1.2 * most)) or 1.0)


def strategies(plan: Plan) -> tuple[npt.NDArray[np.intp], Sequence[tuple[str, Array, str]]]:
    """The clients from the one who earns most, and what each strategy would bring them, with its colour."""
    outcome = plan.outcomes
    order = np.argsort(-outcome.utility)
    return order, (
        ("optimal (the plan)", outcome.utility[order], BLUE),
        ("random, as much in all", outcome.random_utility[order], ORANGE),
        ("zero, nothing collected", outcome.zero_utility[order], GREEN),
    )


def utilities(plan: Plan) -> Figure:
    """What clients earn by the plan, and what each would earn alone with a simpler strategy."""
    order, series = strategies(plan)
    figure, axes = new_figure(7.0, 3.4)
    if order.size <= 40:
        place = np.arange(order.size)
        for n, (name, values, color) in enumerate(series):
            axes.bar(place + 0.27 * (n - 1), values, 0.27, color=color, label=name)
        axes.set_xticks(place, [str(k) for k in order])
        axes.set_xlabel("client k, from the one who earns most")
    else:
        share = 100 * (np.arange(order.size) + 0.5) / order.size
        for name, values, color in reversed(series):
            axes.plot(share, values, color=color, label=name, linewidth=1.0)
        axes.set_xlabel("clients, from those who earn most (%)")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(title="Utility over all rounds", ylabel="money")
    axes.grid(axis="x", visible=False)
    axes.legend()
    return figure
