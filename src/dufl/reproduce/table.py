"""Table 1: final accuracy of FedAvg, FedProx and FedDyn, with static data and with data update, by σ."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.data.datasets import load_dataset
from dufl.experiment.config import Config, load
from dufl.experiment.train import Run, train
from dufl.report.figures import BLUE, ORANGE, new_figure, save, style
from dufl.reproduce.item import Advance, Claim, Item, Scale, write_rows

ALGORITHMS = ("fedavg", "fedprox", "feddyn")
POLICIES = ("static", "dufl")
SIGMAS = (1.25, 0.75, 0.0)
# What the paper prints, in percent: by dataset and σ, static and +DUFL of each algorithm in turn.
PRINTED = {
    ("mnist", 1.25): (57.9, 91.8, 58.1, 91.7, 58.8, 91.5),
    ("mnist", 0.75): (76.2, 91.2, 76.9, 92.4, 77.1, 92.0),
    ("mnist", 0.0): (91.6, 91.6, 92.7, 92.7, 92.7, 92.7),
    ("fmnist", 1.25): (53.8, 79.1, 54.2, 79.8, 55.0, 80.7),
    ("fmnist", 0.75): (66.6, 80.8, 67.4, 81.8, 67.1, 82.6),
    ("fmnist", 0.0): (84.3, 84.3, 85.1, 85.1, 84.9, 84.9),
    ("svhn", 1.25): (69.4, 91.3, 70.2, 92.0, 72.4, 93.5),
    ("svhn", 0.75): (83.6, 92.7, 83.9, 93.1, 85.0, 93.7),
    ("svhn", 0.0): (90.9, 90.9, 92.7, 92.7, 93.1, 93.1),
    ("cifar10", 1.25): (54.3, 82.4, 55.7, 82.6, 58.5, 84.4),
    ("cifar10", 0.75): (72.2, 83.9, 72.3, 85.5, 74.1, 83.9),
    ("cifar10", 0.0): (81.5, 81.5, 84.3, 84.3, 84.7, 84.7),
    ("cifar100", 1.25): (44.5, 56.7, 46.2, 56.9, 47.8, 59.0),
    ("cifar100", 0.75): (54.9, 57.1, 56.8, 58.0, 59.2, 60.1),
    ("cifar100", 0.0): (57.6, 57.6, 59.2, 59.2, 63.5, 63.5),
}
MODELS = {"svhn": "cnn", "cifar10": "cnn", "cifar100": "resnet18"}  # logistic for the others
NEAR = 3.0  # points


def printed(dataset: str, sigma: float, algorithm: str, policy: str) -> float | None:
    """What the paper prints for a cell, if it has it."""
    row = PRINTED.get((dataset, sigma))
    return None if row is None else row[2 * ALGORITHMS.index(algorithm) + POLICIES.index(policy)]


def reproduce(scale: Scale, out: Path, advance: Advance, changes: tuple[str, ...] = ()) -> Item:
    """Train every cell, each in a run directory of its own, so that a finished one is not run again."""
    wanted = [
        (dataset, sigma, algorithm, policy)
        for dataset in scale.datasets
        for sigma in SIGMAS
        for algorithm in ALGORITHMS
        for policy in POLICIES
    ]
    rows: list[dict[str, Any]] = []
    loaded: dict[str, Any] = {}
    for number, cell in enumerate(wanted):
        dataset, sigma, algorithm, policy = cell
        runs: list[Run] = []
        for seed in range(scale.seeds):
            config = config_of(scale, *cell, seed, changes)
            if dataset not in loaded:
                loaded = {dataset: load_dataset(dataset, config.data.data_dir)}
            folder = out / "table" / f"{dataset}-{sigma}-{algorithm}-{policy}-{seed}"
            total = config.game.num_rounds * scale.seeds
            done = seed * config.game.num_rounds

            def watch(record: Any, done: int = done, total: int = total, number: int = number) -> None:
                advance((number + (done + record.round + 1) / total) / len(wanted))

            runs.append(train(config, folder, resume=True, dataset=loaded[dataset], watch=watch))
        ours = [100 * run.accuracy for run in runs]
        theirs = printed(*cell)
        rows.append(
            {
                "dataset": dataset,
                "time_sensitivity": sigma,
                "algorithm": algorithm,
                "policy": policy,
                "accuracy": float(np.mean(ours)),
                "spread": float(np.ptp(ours)),
                "paper": theirs,
                "difference": None if theirs is None else float(np.mean(ours)) - theirs,
                "payment": float(np.mean([run.summary()["total_payment"] for run in runs])),
                "fingerprint": runs[0].summary()["fingerprint"],
                "seconds": float(sum(run.summary()["seconds"] for run in runs)),
            }
        )
    settings = {
        "epochs": scale.epochs,
        "seeds": scale.seeds,
        "leader": "algorithm1",
        "changes": list(changes),
    }
    written = [write_rows(out / "table.csv", rows), *_draw(rows, out)]
    return Item("table", judge(rows), settings, [path.name for path in written])


def config_of(
    scale: Scale, dataset: str, sigma: float, algorithm: str, policy: str, seed: int, changes: tuple[str, ...]
) -> Config:
    """The paper's setting for one run."""
    told = [
        f"game.time_sensitivity={sigma}",
        *("leader.method=algorithm1", "leader.search=direct", "leader.damping=0.5"),
        f"data.dataset={dataset}",
        f"training.model={MODELS.get(dataset, 'logistic')}",
        f"training.epochs={scale.epochs}",
        f"training.algorithm={algorithm}",
        f"training.policy={policy}",
        f"training.seed={seed}",
    ]
    return load(None, [*told, *changes])


def judge(rows: list[dict[str, Any]]) -> list[Claim]:
    """What the paper says of its table."""
    by = {(r["dataset"], r["time_sensitivity"], r["algorithm"], r["policy"]): r for r in rows}
    gains, equal = [], []
    for (dataset, sigma, algorithm, policy), row in by.items():
        if policy == "dufl":
            static = by[dataset, sigma, algorithm, "static"]
            if sigma > 0:
                gains.append(row["accuracy"] - static["accuracy"])
            else:
                equal.append(row["fingerprint"] == static["fingerprint"])
    claims = [
        Claim(
            "data update makes every algorithm far better at σ = 1.25 and 0.75",
            min(gains) > 5,
            f"by {min(gains):.1f} to {max(gains):.1f} points",
        ),
        Claim(
            "at σ = 0 the best plan is no update, and the runs are the same",
            all(equal),
            f"{sum(equal)} of {len(equal)} pairs end with the same weights, bit for bit",
        ),
    ]
    differences = [abs(r["difference"]) for r in rows if r["difference"] is not None]
    if differences:
        near = sum(d <= NEAR for d in differences)
        claims.append(
            Claim(
                f"accuracies are within {NEAR:g} points of the paper's in at least 8 of 9 cells",
                near >= 8 * len(differences) / 9,
                f"{near} of {len(differences)} cells; the largest difference is {max(differences):.1f}",
            )
        )
    return claims


def _draw(rows: list[dict[str, Any]], out: Path) -> list[Path]:
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    with style():
        figure, panels = new_figure(9.5, 2.9 * len(datasets), nrows=len(datasets), ncols=3, squeeze=False)
        for i, dataset in enumerate(datasets):
            for j, sigma in enumerate(SIGMAS):
                axes = panels[i][j]
                for offset, policy, colour in ((-0.2, "static", ORANGE), (0.2, "dufl", BLUE)):
                    found = [
                        row
                        for row in rows
                        if (row["dataset"], row["time_sensitivity"], row["policy"])
                        == (dataset, sigma, policy)
                    ]
                    places = np.arange(len(found)) + offset
                    bars = axes.bar(places, [r["accuracy"] for r in found], 0.38, color=colour, label=policy)
                    axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
                    known = [(x, r["paper"]) for x, r in zip(places, found, strict=True) if r["paper"]]
                    if known:
                        label = "the paper's" if policy == "dufl" else None
                        axes.plot(*zip(*known, strict=True), "k_", markersize=13, label=label)
                axes.set(title=f"{dataset}, σ = {sigma:g}", ylim=(0, 108), xticks=range(len(ALGORITHMS)))
                axes.set_xticklabels(ALGORITHMS)
                axes.grid(visible=False)
        panels[0][0].set_ylabel("accuracy, %")
        panels[0][0].legend(loc="lower center", ncols=3, fontsize=7, frameon=True)
        return save(figure, out, "table")
