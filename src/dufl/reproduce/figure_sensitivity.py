"""Figure 3: the server's (R, θ) by time sensitivity σ, and the σ above which data is updated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dufl.game.leader import FIXED_POINT
from dufl.game.plan import Plan, solve
from dufl.report.figures import BLUE, ORANGE, new_figure, save, style
from dufl.reproduce.item import Advance, Finding, Item, Scale, game_of, settings_of, write_rows

SIGMAS = (0.41, 0.42, 0.50, 0.75, 1.00, 1.25)
LEADERS = ("algorithm1", "stackelberg")
PAPER_THRESHOLD = 0.41


def reproduce(scale: Scale, out: Path, advance: Advance) -> Item:
    """Plan for every σ with both leaders, and find the σ above which an update pays off."""
    rows: list[dict[str, Any]] = []
    thresholds: dict[str, list[float]] = {leader: [] for leader in LEADERS}
    for draw in range(scale.draws):
        for leader in LEADERS:
            for sigma in SIGMAS:
                plan = plan_of(draw, sigma, leader)
                rows.append(
                    {
                        "leader": leader,
                        "draw": draw,
                        "time_sensitivity": sigma,
                        "payment": plan.payment,
                        "conservation_rate": plan.conservation_rate,
                        "server_cost": plan.server_cost,
                    }
                )
            thresholds[leader].append(threshold(draw, leader, scale.steps))
            advance((draw + (1 + LEADERS.index(leader)) / 2) / scale.draws)
    curves = {
        leader: {
            name: np.array(
                [
                    [r[name] for r in rows if r["leader"] == leader and r["draw"] == d]
                    for d in range(scale.draws)
                ]
            )
            for name in ("payment", "conservation_rate")
        }
        for leader in LEADERS
    }
    claims = [claim for leader in LEADERS for claim in _claims(leader, curves[leader], thresholds[leader])]
    written = [write_rows(out / "sensitivity.csv", rows), *_draw(curves, thresholds, out)]
    settings = {
        "draws of costs": scale.draws,
        **settings_of(game_of(0)),
        "σ": list(SIGMAS),
        "thresholds known within": 1.25 / 2**scale.steps,
    }
    notes = [noise_note(scale.steps), weight_note(scale.steps)]
    return Item("sensitivity", claims, settings, [path.name for path in written], notes)


def noise_note(steps: int) -> str:
    """An experiment on the threshold: does another ψ, which the paper does not state, explain it?"""
    tried = _tried("sampling_noise", (0.5, 1.0, 2.0, 5.0), steps)
    return (
        "Would another ψ move the threshold to the paper's 0.41? Threshold of Algorithm 1, and its (R, θ) at "
        f"σ = 0.75, by ψ: {tried}. The paper's (R, θ) is (63.18, 0.52)."
    )


def weight_note(steps: int) -> str:
    """The same experiment with γ, in case it is not the paper's 10⁻⁴."""
    tried = _tried("payment_weight", (1e-4, 5e-4), steps)
    return f"And another γ? By γ: {tried}."


def _tried(name: str, values: Sequence[float], steps: int) -> str:
    results = []
    for value in values:
        at = threshold(0, "algorithm1", steps, **{name: value})
        plan = plan_of(0, 0.75, "algorithm1", **{name: value})
        results.append(f"{value:g}: {at:.2f}, ({plan.payment:.1f}, {plan.conservation_rate:.2f})")
    return "; ".join(results)


def plan_of(draw: int, sigma: float, leader: str, **others: float) -> Plan:
    """The plan of a leader; Algorithm 1 with the damped update, which converges."""
    game = game_of(draw, time_sensitivity=sigma, **others)
    if leader == "stackelberg":
        return solve(game)
    return solve(game, method="algorithm1", algorithm1=FIXED_POINT)


def threshold(draw: int, leader: str, steps: int, **others: float) -> float:
    """The σ below which a leader pays nothing, found by bisection of [0, 1.25]."""
    low, high = 0.0, 1.25
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if plan_of(draw, middle, leader, **others).payment > 0 else (middle, high)
    return (low + high) / 2


def _claims(leader: str, curves: dict[str, Any], thresholds: list[float]) -> list[Finding]:
    payment, rate = curves["payment"], curves["conservation_rate"]
    low, high = min(thresholds), max(thresholds)
    at = f"{low:.3f} to {high:.3f}" if len(thresholds) > 1 else f"{low:.3f}"
    return [
        Finding(
            f"{leader}: R rises with σ",
            bool((np.diff(payment, axis=1) >= -1e-9).all()) and bool((payment[:, -1] > payment[:, 0]).all()),
            f"from {payment[:, 0].mean():.1f} at σ = {SIGMAS[0]} to {payment[:, -1].mean():.1f} "
            f"at {SIGMAS[-1]}",
        ),
        Finding(
            f"{leader}: θ falls with σ",
            bool((np.diff(rate, axis=1) <= 1e-9).all()) and bool((rate[:, -1] < rate[:, 0]).all()),
            f"from {rate[:, 0].mean():.2f} at σ = {SIGMAS[0]} to {rate[:, -1].mean():.2f} at {SIGMAS[-1]}",
        ),
        Finding(
            f"{leader}: below some σ > 0 nothing is updated",
            low > 0.02,
            f"below σ = {at} here; the paper says {PAPER_THRESHOLD}",
        ),
    ]


def _draw(curves: dict[str, Any], thresholds: dict[str, list[float]], out: Path) -> list[Path]:
    with style():
        figure, axes = new_figure(9.0, 3.6, ncols=2)
        for leader, colour in zip(LEADERS, (ORANGE, BLUE), strict=True):
            for panel, name in zip(axes, ("payment", "conservation_rate"), strict=True):
                curve = curves[leader][name]
                panel.plot(SIGMAS, curve.mean(axis=0), "o-", color=colour, label=leader, markersize=4)
                panel.fill_between(
                    SIGMAS, curve.min(axis=0), curve.max(axis=0), color=colour, alpha=0.2, lw=0
                )
            axes[0].axvline(float(np.mean(thresholds[leader])), color=colour, linewidth=0.9, linestyle=":")
        axes[0].set(title="Payment R (dotted: no update below)", xlabel="time sensitivity σ", ylim=(0, None))
        axes[1].set(title="Conservation rate θ", xlabel="time sensitivity σ", ylim=(0, 1.02))
        axes[1].legend()
        return save(figure, out, "sensitivity")
