"""Figure 1: the mean-field estimator φ and the server's (R, θ) over the iterations of Algorithm 1."""

from pathlib import Path

import numpy as np

from dufl.game.leader import Algorithm1Options, Trace
from dufl.game.plan import Plan, solve
from dufl.report.figures import BLUE, GREEN, GREY, ORANGE, new_figure, save, style
from dufl.reproduce.item import Advance, Finding, Item, Scale, game_of, settings_of, write_rows

KINDS = {
    "plain": Algorithm1Options(search="direct", tolerance=0.0),
    "damped": Algorithm1Options(search="direct", damping=0.5, tolerance=0.0),
    "bayesian": Algorithm1Options(search="bayesian", damping=0.5, tolerance=0.0),
}
FEW = 8  # iterations


def reproduce(scale: Scale, out: Path, advance: Advance) -> Item:
    """Run the loop as printed, damped, and with Bayesian search; find the iteration at which each settles."""
    plans: dict[tuple[str, int], Plan] = {}
    for draw in range(scale.draws):
        for kind, options in KINDS.items():
            plans[kind, draw] = solve(game_of(draw), method="algorithm1", algorithm1=options)
            advance(len(plans) / (scale.draws * len(KINDS)))
    traces = {key: _trace(plan) for key, plan in plans.items()}
    rows = [
        {
            "update": kind,
            "draw": draw,
            "iteration": j,
            "payment": trace.payment[j],
            "conservation_rate": trace.conservation_rate[j],
            "total_volume_in_mid_course": trace.total_volume[j + 1, len(trace.total_volume[0]) // 2],
            "change_of_total_volume": _change(trace)[j],
        }
        for (kind, draw), trace in traces.items()
        for j in range(len(trace.payment))
    ]
    game = game_of(0)
    settings = {"draws of costs": scale.draws, **settings_of(game), "σ": game.time_sensitivity}
    written = [write_rows(out / "convergence.csv", rows), *_draw(traces, out)]
    return Item("convergence", _claims(traces, plans, scale), settings, [path.name for path in written])


def _trace(plan: Plan) -> Trace:
    assert plan.trace is not None
    return plan.trace


def _change(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """max_t |φ_{j+1}(t)/φ_j(t) − 1| of every iteration."""
    volume = trace.total_volume
    return np.asarray(np.abs(volume[1:] / volume[:-1] - 1).max(axis=1))


def settled(trace: Trace) -> int:
    """The iteration after which R stays within 1 % and θ within 0.01 of their final values."""
    away = (np.abs(trace.payment / trace.payment[-1] - 1) > 0.01) | (
        np.abs(trace.conservation_rate - trace.conservation_rate[-1]) > 0.01
    )
    return int(np.flatnonzero(away).max(initial=-1)) + 1


def _claims(
    traces: dict[tuple[str, int], Trace], plans: dict[tuple[str, int], Plan], scale: Scale
) -> list[Finding]:
    draws = range(scale.draws)
    when = {kind: max(settled(traces[kind, d]) for d in draws) for kind in ("plain", "damped")}
    rest = {kind: max(_change(traces[kind, d])[-1] for d in draws) for kind in ("plain", "damped")}
    gap = max(abs(plans["bayesian", d].server_cost / plans["damped", d].server_cost - 1) for d in draws)
    return [
        Finding(
            "(R, θ) settles within a few iterations of the plain update",
            when["plain"] <= FEW,
            f"after {when['plain']} at the latest, within 1 % and 0.01",
        ),
        Finding(
            "(R, θ) settles within a few iterations of the damped update",
            when["damped"] <= FEW,
            f"after {when['damped']} at the latest, within 1 % and 0.01",
        ),
        Finding(
            "φ converges with the plain update",
            rest["plain"] < 0.01,
            f"in the last iteration φ still changes by {100 * rest['plain']:.2g} %",
        ),
        Finding(
            "φ converges with the damped update",
            rest["damped"] < 0.01,
            f"in the last iteration φ changes by {100 * rest['damped']:.2g} %",
        ),
        Finding(
            "Bayesian search is as good as direct search",
            gap < 0.02,
            f"the server's costs differ by {100 * gap:.2g} % at most",
        ),
    ]


def _draw(traces: dict[tuple[str, int], Trace], out: Path) -> list[Path]:
    with style():
        figure, axes = new_figure(9.0, 5.6, nrows=2, ncols=2)
        for column, (kind, title) in enumerate((("plain", "as printed"), ("damped", "damped"))):
            trace = traces[kind, 0]
            top, bottom = axes[0][column], axes[1][column]
            shades = np.linspace(0.25, 1.0, len(trace.total_volume))
            for j, volume in enumerate(trace.total_volume):
                top.plot(volume, color=BLUE, alpha=float(shades[j]), linewidth=0.9)
            top.set(title=f"φ, {title}: later is darker", xlabel="round t", yscale="log")
            draws = [trace for (name, _), trace in traces.items() if name == kind]
            iterations = np.arange(1, len(trace.payment) + 1)
            other = bottom.twinx()
            lines = []
            for panel, what, colour, line, label in (
                (bottom, "payment", ORANGE, "-", "R"),
                (other, "conservation_rate", GREEN, "--", "θ"),
            ):
                curves = np.array([getattr(draw, what) for draw in draws])
                lines += panel.plot(iterations, curves.mean(axis=0), line, color=colour, label=label)
                low, high = curves.min(axis=0), curves.max(axis=0)
                panel.fill_between(iterations, low, high, color=colour, alpha=0.2, lw=0)
                if kind == "damped":
                    bayesian = np.array([getattr(t, what) for (k, _), t in traces.items() if k == "bayesian"])
                    lines += panel.plot(
                        iterations,
                        bayesian.mean(axis=0),
                        "x",
                        color=colour,
                        markersize=4,
                        label=f"{label}, Bayesian search",
                    )
            other.set(ylim=(0, 1), ylabel="θ")
            other.grid(visible=False)
            bottom.set(title=f"R and θ, {title}", xlabel="iteration", ylabel="R", ylim=(0, None))
            latest = max(settled(draw) for draw in draws)
            bottom.axvline(latest + 1, color=GREY, linewidth=0.8, linestyle=":")
            bottom.legend(handles=lines, loc="lower right")
        return save(figure, out, "convergence")
