"""The six panels of the appendix: collection, volume and staleness over the rounds, for seven offers."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.game.leader import FIXED_POINT
from dufl.game.parameters import Game
from dufl.game.plan import Plan, equilibrium, solve
from dufl.game.population import Clients
from dufl.report.figures import BLUE, GREEN, ORANGE, RED, new_figure, save, style
from dufl.reproduce.item import Advance, Finding, Item, Scale, game_of, settings_of, write_rows

RATES = (0.12, 0.82, 0.92)  # at the optimal payment
PAYMENTS = (13.18, 203.18, 423.18)  # at the optimal rate
TRAJECTORIES = ("collection", "volume", "staleness")


def offers(game: Game) -> dict[str, tuple[float, float]]:
    """(R, θ)* of Algorithm 1 and the paper's six deviations from it."""
    best = solve(game, method="algorithm1", algorithm1=FIXED_POINT)
    pairs = {"*": (best.payment, best.conservation_rate)}
    pairs |= {f"θ = {rate}": (best.payment, rate) for rate in RATES}
    return pairs | {f"R = {payment}": (payment, best.conservation_rate) for payment in PAYMENTS}


def reproduce(scale: Scale, out: Path, advance: Advance) -> Item:
    """Compute the clients' equilibrium for each offer."""
    rows: list[dict[str, Any]] = []
    holds: dict[str, list[tuple[bool, str]]] = {}
    drawn: list[dict[str, Any]] = []
    for draw in range(scale.draws):
        means = {
            name: mean_trajectories(equilibrium(game_of(draw), payment=payment, conservation_rate=rate))
            for name, (payment, rate) in offers(game_of(draw)).items()
        }
        rows += [
            {"draw": draw, "offer": name, "round": t} | {c: float(mean[c][t]) for c in TRAJECTORIES}
            for name, mean in means.items()
            for t in range(len(mean["volume"]))
        ]
        for statement, holding, measured in judge(means):
            holds.setdefault(statement, []).append((holding, measured))
        drawn.append(means)
        advance((draw + 1) / scale.draws)
    claims = [
        Finding(
            statement, all(ok for ok, _ in checks), "; ".join(dict.fromkeys(text for _, text in checks[:2]))
        )
        for statement, checks in holds.items()
    ]
    written = [write_rows(out / "updates.csv", rows), *_draw(drawn, out)]
    settings = {
        "draws of costs": scale.draws,
        **settings_of(game_of(0)),
        "σ": game_of(0).time_sensitivity,
        "θ at R*": list(RATES),
        "R at θ*": list(PAYMENTS),
    }
    return Item("updates", claims, settings, [path.name for path in written], [early_note()])


def early_note() -> str:
    """An experiment on the one claim that fails: it holds for clients with very few initial samples."""
    first = {}
    for volume in (1000, 300, 100, 10):
        game = Game(clients=Clients.draw(15, 0, initial_volume=volume))
        payment, best = offers(game)["*"]
        plans = [
            equilibrium(game, payment=payment, conservation_rate=r) for r in (RATES[0], best, *RATES[1:])
        ]
        first[volume] = [float(plan.collection[0].mean()) for plan in plans]
    results = "; ".join(
        f"{volume:,} samples: {', '.join(f'{value:.0f}' for value in values)}"
        for volume, values in first.items()
    )
    rising = [volume for volume, values in first.items() if _rises(values)]
    holds = (
        f"With {' and '.join(f'{volume:,}' for volume in rising)} samples, it holds in the first round."
        if rising
        else "With none of these does the claim hold."
    )
    return (
        "Does a larger θ collect more early? A larger θ lets a sample serve longer, which is a reason to "
        "collect more. It also keeps more of the first buffer, which is a reason to collect less. Mean Δ(0) "
        f"at θ = 0.12, θ*, 0.82 and 0.92, for clients that begin with {results}. {holds}"
    )


def mean_trajectories(plan: Plan) -> dict[str, Any]:
    """Means over the clients, one per round; the mean of S is over all samples."""
    return {
        "collection": plan.collection.mean(axis=1),
        "volume": plan.volume.mean(axis=1),
        "staleness": plan.mean_staleness,
    }


def judge(means: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """The paper's claims about these curves: statement, whether it holds, and the measured values."""
    by_rate = [means[name] for name in ("θ = 0.12", "*", "θ = 0.82", "θ = 0.92")]
    by_payment = [means[name] for name in ("R = 13.18", "*", "R = 203.18", "R = 423.18")]
    early = [float(m["collection"][:3].mean()) for m in by_rate]
    late = [float(m["collection"][50:80].mean()) for m in by_rate]
    volume_rate = [float(m["volume"].mean()) for m in by_rate]
    volume_payment = [float(m["volume"].mean()) for m in by_payment]
    aged = [float(m["staleness"][10:].mean()) for m in by_rate]
    aged_payment = [float(m["staleness"][10:].mean()) for m in by_payment]
    ends = [float(m["collection"][-1] / m["collection"].max()) for m in means.values()]
    return [
        ("a larger θ collects more early", _rises(early), _numbers("Δ in rounds 0 to 2", early)),
        ("a larger θ collects less late", _rises(late[::-1]), _numbers("Δ in rounds 50 to 79", late)),
        ("D grows with θ", _rises(volume_rate), _numbers("mean D", volume_rate)),
        ("D grows with R", _rises(volume_payment), _numbers("mean D", volume_payment)),
        ("S is driven by θ", _rises(aged), _numbers("mean S from round 10", aged)),
        (
            "S hardly depends on R",
            np.ptp(aged_payment) < 0.25 * np.ptp(aged),
            _numbers("mean S from round 10", aged_payment),
        ),
        ("Δ goes to 0 before the end", max(ends) < 1e-9, f"in the last round {max(ends):.1g} of its maximum"),
    ]


def _rises(values: list[float]) -> bool:
    return bool((np.diff(values) > 0).all())


def _numbers(what: str, values: list[float]) -> str:
    return f"{what}: " + ", ".join(f"{value:.3g}" for value in values)


def _draw(drawn: list[dict[str, Any]], out: Path) -> list[Path]:
    groups = (("*", *(f"θ = {rate}" for rate in RATES)), ("*", *(f"R = {payment}" for payment in PAYMENTS)))
    titles = ("Collected, mean Δ", "Held, mean D", "Staleness, mean S")
    with style():
        figure, axes = new_figure(10.5, 5.6, nrows=2, ncols=3)
        for row, group in enumerate(groups):
            for column, name in enumerate(TRAJECTORIES):
                for offer, colour in zip(group, (BLUE, ORANGE, GREEN, RED), strict=True):
                    label = "(R, θ)*" if offer == "*" else offer
                    line = "-" if offer == "*" else "--"
                    curves = np.array([means[offer][name] for means in drawn])
                    panel = axes[row][column]
                    panel.plot(curves.mean(axis=0), line, color=colour, label=label)
                    low, high = curves.min(axis=0), curves.max(axis=0)
                    panel.fill_between(range(len(low)), low, high, color=colour, alpha=0.2, lw=0)
                axes[row][column].set(title=titles[column])
                if name == "collection":
                    axes[row][column].set_yscale("symlog", linthresh=10)
            axes[row][1].legend(loc="upper right")
        for column in range(3):
            axes[1][column].set(xlabel="round t")
        figure.align_labels()
        return save(figure, out, "updates")
