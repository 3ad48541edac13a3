"""Table 1: final accuracy of FedAvg, FedProx and FedDyn, with static data and with data update, by σ."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufl.data.datasets import Listing, listing
from dufl.errors import InputError
from dufl.experiment.config import Changes, Experiment
from dufl.experiment.statistics import standard_deviation
from dufl.experiment.train import Run
from dufl.inputs import unknown_key
from dufl.reproduce.item import NO_CHANGES, Advance, Finding, Item, Scale, write_rows
from dufl.reproduce.runs import ALGORITHM1, MODELS, left_open, of_the_setting, on, train_all
from dufl.reproduce.table1_figure import draw_table

ALGORITHMS = ("fedavg", "fedprox", "feddyn")
POLICIES = ("static", "dufl")
SIGMAS = (1.25, 0.75, 0.0)
FIXED = (  # keys that a cell itself sets
    "data.dataset",
    "game.time_sensitivity",
    "training.algorithm",
    "policy",
    "training.seed",
)
# The paper's accuracies in percent, by dataset and σ: static and +DUFL for each algorithm.
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
SETTINGS = {  # the settings shown beside the table, with the columns of its file
    "leader": "leader",
    "rounds": "num_rounds",
    "clients": "num_clients",
    "samples at the start": "initial_volume",
    "epochs": "epochs",
    "batch": "batch_size",
    "learning rate": "learning_rate",
}
NEAR = 3.0  # points
FAR = 5.0


class TableCell(NamedTuple):
    """One number of the table."""

    dataset: str
    sigma: float
    algorithm: str
    policy: str

    def __str__(self) -> str:
        return f"{self.dataset}-{self.sigma:g}-{self.algorithm}-{self.policy}"

    @property
    def printed(self) -> float | None:
        """The paper's value for this cell, if there is one."""
        row = PRINTED.get((self.dataset, self.sigma))
        place = 2 * ALGORITHMS.index(self.algorithm) + POLICIES.index(self.policy)
        return None if row is None else row[place]


def cells(scale: Scale, only: Sequence[str] = (), data_dir: str | None = None) -> list[TableCell]:
    """The cells of a scale, restricted to the datasets, σ, algorithms and policies that `only` names.

    Names of different kinds are combined; a kind without a name is not restricted. A dataset that `only`
    names is never skipped, even if the scale skips missing datasets.

    >>> from dufl.reproduce.item import PAPER
    >>> [str(cell) for cell in cells(PAPER, ["svhn", "fedavg", "1.25"])]
    ['svhn-1.25-fedavg-static', 'svhn-1.25-fedavg-dufl']
    """
    kinds = (scale.datasets, tuple(f"{sigma:g}" for sigma in SIGMAS), ALGORITHMS, POLICIES)
    for name in only:
        if not any(name in kind for kind in kinds):
            raise InputError(
                unknown_key(name, dict.fromkeys(n for k in kinds for n in k), " (cells of the table)")
            )
    kept = [[name for name in kind if name in only] or kind for kind in kinds]
    datasets = [
        name
        for name in kept[0]
        if not scale.skip_missing or name in only or _listed(name, data_dir).state != "missing"
    ]
    return [
        TableCell(dataset, float(sigma), algorithm, policy)
        for dataset in datasets
        for sigma in kept[1]
        for algorithm in kept[2]
        for policy in kept[3]
    ]


def _listed(dataset: str, data_dir: str | None) -> Listing:
    return listing(dataset, None if data_dir is None else Path(data_dir), check=False)


def reproduce(
    scale: Scale, out: Path, advance: Advance, changes: Changes = NO_CHANGES, only: Sequence[str] = ()
) -> Item:
    """Train the selected cells and add them to the existing table."""
    wanted = cells(scale, only, Experiment.from_toml(changes=changes).data.data_dir)
    configs = {
        f"{cell}-{seed}": config_of(scale, cell, seed, changes)
        for cell in wanted
        for seed in range(1 if cell.dataset in MODELS else scale.seeds)
    }
    rows = _before(out / "table.csv")
    runs = train_all(configs, out / "table", advance)
    for cell in wanted:
        rows[cell] = _row(cell, [run for name, run in runs.items() if name.startswith(f"{cell}-")], changes)
    order = {name: place for place, name in enumerate(["digits", *dict.fromkeys(d for d, _ in PRINTED)])}
    listed = [rows[cell] for cell in sorted(rows, key=lambda cell: _place(cell, order))]
    written = [write_rows(out / "table.csv", listed), *draw_table(listed, SIGMAS, ALGORITHMS, out)]
    files = [path.name for path in written]
    seconds = sum(row["seconds"] for row in listed)
    return Item("table", judge(listed), _settings(listed), files, rows=listed, seconds=seconds)


def _settings(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings of the rows: one value if all rows agree, otherwise a list of values."""
    settings = {}
    for name, column in SETTINGS.items():
        values = list(dict.fromkeys(row[column] for row in rows))
        settings[name] = values[0] if len(values) == 1 else values
    return settings


def _place(cell: TableCell, order: dict[str, int]) -> tuple[int, int, int, int]:
    kinds = SIGMAS.index(cell.sigma), ALGORITHMS.index(cell.algorithm), POLICIES.index(cell.policy)
    return order.get(cell.dataset, len(order)), *kinds


def _row(cell: TableCell, runs: list[Run], changes: Changes) -> dict[str, Any]:
    ours = [100 * run.accuracy for run in runs]
    summaries = [run.summary() for run in runs]
    mean, theirs, config = float(np.mean(ours)), cell.printed, runs[0].experiment
    return {
        "dataset": cell.dataset,
        "time_sensitivity": cell.sigma,
        "algorithm": cell.algorithm,
        "policy": cell.policy,
        "accuracy": mean,
        "std": standard_deviation(ours),
        "paper": theirs,
        "difference": None if theirs is None else mean - theirs,
        "payment": float(np.mean([summary["total_payment"] for summary in summaries])),
        "seeds": len(runs),
        "model": config.training.model,
        "train_samples": _listed(cell.dataset, config.data.data_dir).train,
        "leader": config.leader.method,
        "num_rounds": config.game.num_rounds,
        "num_clients": config.game.clients.size,
        "initial_volume": int(config.game.clients.initial_volume.max()),
        "epochs": config.training.local_epochs,
        "batch_size": config.training.batch_size,
        "learning_rate": config.training.learning_rate,
        "changes": " ".join(of_the_setting(left_open(cell.dataset, changes))),
        "fingerprint": summaries[0]["fingerprint"],
        "seconds": float(sum(summary["seconds"] for summary in summaries)),
    }


def cell_of(row: dict[str, Any]) -> TableCell:
    """The cell of a row of the file."""
    return TableCell(row["dataset"], float(row["time_sensitivity"]), row["algorithm"], row["policy"])


_NUMBERS = (
    *("time_sensitivity", "accuracy", "std", "paper", "difference", "payment"),
    *("learning_rate", "seconds"),
)
_INTEGERS = ("seeds", "train_samples", "num_rounds", "num_clients", "initial_volume", "epochs", "batch_size")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of `table.csv`, with numeric columns parsed."""
    with path.open(encoding="utf-8") as stream:
        rows: list[dict[str, Any]] = list(csv.DictReader(stream))
    for row in rows:
        for name in _NUMBERS:
            row[name] = float(row[name]) if row[name] else None
        for name in _INTEGERS:
            row[name] = int(row[name])
    return rows


def _before(path: Path) -> dict[TableCell, dict[str, Any]]:
    """The cells that are already in the table."""
    if not path.exists():
        return {}
    try:
        return {cell_of(row): row for row in read_rows(path)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} must be a file that a reproduction wrote: {error!r}") from None


def config_of(scale: Scale, cell: TableCell, seed: int, changes: Changes) -> Experiment:
    """The paper's setting for one run."""
    setting = {
        "game.time_sensitivity": cell.sigma,
        **ALGORITHM1,
        **on(cell.dataset, scale.local_epochs),
        "training.algorithm": cell.algorithm,
        "policy": cell.policy,
        "training.seed": seed,
    }
    return Experiment.from_toml(changes={**setting, **changes})


def judge(rows: list[dict[str, Any]]) -> list[Finding]:
    """The paper's claims about its table, checked per dataset; cells that were not run are left out."""
    claims = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        by = {cell_of(row): row for row in rows if row["dataset"] == dataset}
        pairs = [
            (cell, by[cell], by[cell._replace(policy="static")])
            for cell in by
            if cell.policy == "dufl" and cell._replace(policy="static") in by
        ]
        gains = [new["accuracy"] - old["accuracy"] for cell, new, old in pairs if cell.sigma > 0]
        if gains:
            far = _far(dataset)
            sigmas = " and ".join(f"{s:g}" for s in SIGMAS if any(c.sigma == s > 0 for c, _, _ in pairs))
            statement = f"{dataset}: data update gains at least {far:.1f} points at σ = {sigmas}"
            claims.append(
                Finding(statement, min(gains) >= far, f"{min(gains):.1f} to {max(gains):.1f} points")
            )
        equal = [new["fingerprint"] == old["fingerprint"] for cell, new, old in pairs if cell.sigma == 0]
        if equal:
            claims.append(
                Finding(
                    f"{dataset}: at σ = 0 the best plan is no update, and the runs are the same",
                    all(equal),
                    f"{sum(equal)} of {len(equal)} pairs end with the same weights, bit for bit",
                )
            )
        known = [r for r in by.values() if r["difference"] is not None and not r["changes"]]
        away = [abs(row["difference"]) for row in known]
        if away:
            near = sum(d <= NEAR for d in away)
            claims.append(
                Finding(
                    f"{dataset}: accuracy within {NEAR:g} points of the paper's in at least 8 of 9 cells",
                    near >= 8 * len(away) / 9,
                    f"{near} of {len(away)} cells; the largest difference is {max(away):.1f}",
                )
            )
    return claims


def _far(dataset: str) -> float:
    """The gain in points that a claim requires: the paper's smallest gain, but at most FAR."""
    gains = [
        row[2 * place + 1] - row[2 * place]
        for (name, sigma), row in PRINTED.items()
        if name == dataset and sigma > 0
        for place in range(len(ALGORITHMS))
    ]
    return min([FAR, *gains])
