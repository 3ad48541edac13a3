"""Both leaders, trained: what each pays and the accuracy it reaches, also at equal payments."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.experiment.config import Changes, Experiment
from dufl.experiment.train import Run
from dufl.report.figures import BLUE, ORANGE, new_figure, save, style
from dufl.reproduce.item import NO_CHANGES, Advance, Finding, Item, Scale, settings_of, write_rows
from dufl.reproduce.runs import ALGORITHM1, on, seconds_of, train_all

SIGMAS = (1.25, 0.75)
LEADERS: dict[str, Changes] = {"algorithm1": ALGORITHM1, "stackelberg": {"leader.method": "stackelberg"}}
FIXED = ("game.time_sensitivity", "leader.method", "training.seed")  # keys that the item itself sets
LITTLE = 2.0  # points of accuracy
EQUAL = 0.5


def reproduce(scale: Scale, out: Path, advance: Advance, changes: Changes = NO_CHANGES) -> Item:
    """Train with the plan of each leader, at its own payment and at the payment of the other."""
    changes_of = {
        (sigma, leader, payer, seed): {
            **on(scale.leaders, scale.local_epochs),
            "game.time_sensitivity": sigma,
            **LEADERS[leader],
            "training.seed": seed,
            **changes,
        }
        for sigma in SIGMAS
        for leader in LEADERS
        for payer in LEADERS
        for seed in range(scale.seeds)
    }
    payments = {
        (sigma, leader): Experiment.from_toml(changes=changes_of[sigma, leader, leader, 0]).solve().payment
        for sigma in SIGMAS
        for leader in LEADERS
    }
    configs: dict[str, Experiment] = {}
    for (sigma, leader, payer, seed), setting in changes_of.items():
        payment = payments[sigma, payer]
        experiment = Experiment.from_toml(changes=setting)
        fixed = experiment if leader == payer else experiment.fixed(payment=payment)
        configs[_name(sigma, leader, payer, seed)] = fixed
    runs = train_all(configs, out / "leaders", advance)
    rows = [
        _row(sigma, leader, payer, [runs[_name(sigma, leader, payer, s)] for s in range(scale.seeds)])
        for sigma in SIGMAS
        for leader in LEADERS
        for payer in LEADERS
    ]
    first = next(iter(configs.values()))
    settings = {
        "dataset": first.data.dataset,
        "algorithm": first.training.algorithm,
        "seeds": scale.seeds,
        **settings_of(first.game),
        "epochs": first.training.local_epochs,
    }
    written = [write_rows(out / "leaders.csv", rows), *_draw(rows, scale.seeds, out)]
    seconds = seconds_of(runs.values())
    return Item("leaders", judge(rows), settings, [path.name for path in written], seconds=seconds)


def _name(sigma: float, leader: str, payer: str, seed: int) -> str:
    return f"{sigma:g}-{leader}-pays-{payer}-{seed}"


def _row(sigma: float, leader: str, payer: str, runs: list[Run]) -> dict[str, Any]:
    summaries = [run.summary() for run in runs]
    accuracies = [100 * run.accuracy for run in runs]
    plan = runs[0].experiment.solve()
    return {
        "time_sensitivity": sigma,
        "leader": leader,
        "payment_of": payer,
        "payment": plan.payment,
        "conservation_rate": plan.conservation_rate,
        "total_payment": float(np.mean([summary["total_payment"] for summary in summaries])),
        "server_cost": float(np.mean([summary["server_cost"] for summary in summaries])),
        "accuracy": float(np.mean(accuracies)),
        "lowest": min(accuracies),
        "highest": max(accuracies),
    }


def judge(rows: list[dict[str, Any]]) -> list[Finding]:
    """Claims about the value of anticipating the clients; none of them is in the paper."""
    by = {(r["time_sensitivity"], r["leader"], r["payment_of"]): r for r in rows}
    claims = []
    for sigma in SIGMAS:
        old, new = by[sigma, "algorithm1", "algorithm1"], by[sigma, "stackelberg", "stackelberg"]
        saved = 1 - new["total_payment"] / (old["total_payment"] or np.inf)
        lost = old["accuracy"] - new["accuracy"]
        claims += [
            Finding(
                f"σ = {sigma}: the Stackelberg leader pays less and costs less",
                saved > 0 and new["server_cost"] < old["server_cost"],
                f"{100 * saved:.0f} % less payment; cost {new['server_cost']:.3f}, not "
                f"{old['server_cost']:.3f}",
            ),
            Finding(
                f"σ = {sigma}: this loses at most {LITTLE:g} points of accuracy",
                lost <= LITTLE,
                f"{new['accuracy']:.1f} %, not {old['accuracy']:.1f} %: {lost:.1f} points",
            ),
        ]
        for payer, name in (("algorithm1", "Algorithm 1"), ("stackelberg", "the Stackelberg leader")):
            one, two = by[sigma, "algorithm1", payer], by[sigma, "stackelberg", payer]
            gain = two["accuracy"] - one["accuracy"]
            claims.append(
                Finding(
                    f"σ = {sigma}: for the money of {name}, the Stackelberg leader is no less accurate, "
                    f"within {EQUAL} points",
                    gain >= -EQUAL,
                    f"{two['accuracy']:.1f} % at θ = {two['conservation_rate']:.2f}, Algorithm 1 "
                    f"{one['accuracy']:.1f} % at θ = {one['conservation_rate']:.2f}; paid "
                    f"{two['total_payment']:,.0f} and {one['total_payment']:,.0f}",
                )
            )
    return claims


def _draw(rows: list[dict[str, Any]], seeds: int, out: Path) -> list[Path]:
    with style():
        figure, panels = new_figure(9.0, 3.7, ncols=2)
        for axes, sigma in zip(panels, SIGMAS, strict=True):
            for leader, colour in zip(LEADERS, (ORANGE, BLUE), strict=True):
                mine = [r for r in rows if (r["time_sensitivity"], r["leader"]) == (sigma, leader)]
                mine.sort(key=lambda row: row["total_payment"])
                paid, mean = ([row[key] for row in mine] for key in ("total_payment", "accuracy"))
                spread = [
                    [r["accuracy"] - r["lowest"] for r in mine],
                    [r["highest"] - r["accuracy"] for r in mine],
                ]
                axes.errorbar(paid, mean, spread, fmt="--", color=colour, linewidth=1, capsize=3)
                for row in mine:
                    own = row["payment_of"] == leader
                    axes.plot(
                        row["total_payment"],
                        row["accuracy"],
                        "o" if own else "s",
                        color=colour,
                        markerfacecolor=colour if own else "white",
                        label=leader + (", its own payment" if own else ", the other's payment"),
                    )
                    axes.annotate(
                        f"θ = {row['conservation_rate']:.2f}",
                        (row["total_payment"], row["accuracy"]),
                        (7, -10 if leader == "stackelberg" else 4),
                        textcoords="offset points",
                        fontsize=7,
                        color=colour,
                    )
            bars = "; bars: range of the seeds" if seeds > 1 else ""
            axes.set(title=f"Accuracy in %, σ = {sigma:g}{bars}", xlabel="paid in all rounds")
            axes.margins(0.2, 0.3)
        panels[1].legend(loc="lower right", fontsize=7)
        return save(figure, out, "leaders")
