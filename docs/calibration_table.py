"""The table of docs/calibration.md: calibrated plans, trained with other seeds, beside the best of many θ.

Run it as `python docs/calibration_table.py [NAME...]`; `$DUFL_DATA` is the folder of the datasets. Rows are
kept in runs/calibration, one JSON file per task, and are not measured again. With all tasks it takes about an
hour.
"""

import json
import os
import sys
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import dufl
from dufl.calibration.calibrate import Calibration, calibrate
from dufl.calibration.measurements import RECORDED as LATE
from dufl.calibration.measurements import SIMULATED
from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.game.parameters import Offer
from dufl.report.figures import BLUE, ORANGE, new_figure, save, style

HERE = Path(__file__).parent
OUT = HERE.parent / "runs" / "calibration"
DATA = os.environ.get("DUFL_DATA", str(HERE.parents[1] / "shared" / "data"))
PAYMENTS = (2.0, 10.0, 53.0)
RATES = (0.0, 0.3, 0.5, 0.7, 0.85, 0.92, 0.95, 0.97, 0.985)
SEEDS = (21, 22)  # none of a pilot
LOGISTIC = {"training.local_epochs": 5}
RECORDED = {"clients.count": 10, "training.local_epochs": 5, "training.learning_rate": 0.05}
CNN = {
    "training.model": "networks:two_convolutions",
    "clients.count": 5,
    "clients.initial_volume": 200,
    "game.num_rounds": 20,
    "training.local_epochs": 2,
    "training.learning_rate": 0.03,
}


@dataclass(frozen=True)
class Task:
    """A dataset, what is changed from the defaults, and how thoroughly it is tried."""

    dataset: str
    changes: dict[str, Any] = field(default_factory=dict)
    pilots: int = 24
    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = SEEDS
    payments: tuple[float, ...] = PAYMENTS
    tested: int | None = None  # test samples; None for all

    def experiment(self) -> dufl.Experiment:
        """The experiment before its calibration."""
        data = {"data.dataset": self.dataset, "data.data_dir": DATA}
        experiment = dufl.Experiment.from_toml(changes=data | self.changes)
        if self.tested is None:
            return experiment
        samples = experiment.data.load()
        assert isinstance(samples, Dataset)
        part = replace(samples, test=samples.test.take(slice(self.tested)))
        return experiment.replace(data=experiment.data.replace(dataset=part))


TASKS = {
    "fmnist": Task("fmnist", LOGISTIC),
    "fmnist, σ = 1.25": Task("fmnist", LOGISTIC | {"game.time_sensitivity": 1.25}),
    "mnist": Task("mnist", LOGISTIC),
    "digits": Task("digits", LOGISTIC),
    "insects": Task("insects", RECORDED),
    "weather": Task("weather", RECORDED),
    "elec2": Task("elec2", RECORDED),
    "keystroke": Task("keystroke", RECORDED),
    "cifar10, CNN": Task("cifar10", CNN, 12, (0.0, 0.5, 0.8, 0.92), (21,), (10.0, 53.0), 2000),
}


@dataclass(frozen=True)
class Tried:
    """Trainings of one experiment at given offers."""

    experiment: dufl.Experiment
    samples: Dataset | Recording
    first: int

    def accuracy(self, offer: Offer, seeds: tuple[int, ...]) -> list[float]:
        """The mean accuracy over the late rounds, by seed."""
        plan = dufl.equilibrium(
            self.experiment.game, payment=offer.payment, conservation_rate=offer.conservation_rate
        )
        runs = [
            dufl.train(self.experiment.replace(policy=plan, seed=seed), dataset=self.samples)
            for seed in seeds
        ]
        return [float(np.nanmean([r.accuracy for r in run.records[self.first :]])) for run in runs]


def slug(name: str) -> str:
    """The name of a task in the name of a file."""
    return name.replace(" ", "").replace(",", "-")


def row_of(name: str, task: Task) -> dict[str, Any]:
    """Calibrate, plan at some payments, and train there and at many θ."""
    began = time.perf_counter()
    found = calibrate(task.experiment(), pilots=task.pilots, out=OUT / f"{slug(name)}-pilots")
    assert found is not None
    took = time.perf_counter() - began
    experiment = found.calibrated()
    samples = experiment.data.load()
    experiment = experiment.fitted(samples)
    game = experiment.game
    tried = Tried(experiment, samples, int(found.law.measured_from * game.num_rounds))
    low, high = game.payment_range
    payments = sorted({min(max(payment, low), high) for payment in task.payments})
    return {
        "seconds": took,
        "form": found.fit.form.name,
        "memory": found.law.memory,
        "r2_heldout": found.r2_heldout,
        "verdict": found.verdict,
        "trusted": found.trusted,
        "offers": [offer_row(task, tried, payment) for payment in payments],
        "uncalibrated": uncalibrated_row(task, samples, tried.first),
        "goal": goal_row(tried, found) if task.dataset == "fmnist" else None,
    }


def offer_row(task: Task, tried: Tried, payment: float) -> dict[str, Any]:
    """One payment: the calibrated θ, its prediction, what other seeds give, and the best θ of many."""
    game = tried.experiment.game
    plan = dufl.solve(game.replace(payment_range=(payment, payment)))
    assert plan.prediction is not None
    measured = tried.accuracy(plan.offer, task.seeds)
    others = {
        rate: tried.accuracy(Offer(payment=payment, conservation_rate=rate), task.seeds)
        for rate in task.rates
    }
    best = max(others, key=lambda rate: float(np.mean(others[rate])))
    spread = [np.std(values, ddof=1) for values in [measured, *others.values()] if len(values) > 1]
    return {
        "payment": payment,
        "conservation_rate": plan.conservation_rate,
        "predicted": plan.prediction.accuracy,
        "deviation": plan.prediction.deviation,
        "measured": measured,
        "best_rate": best,
        "best": others[best],
        "noise": float(np.sqrt(np.mean(np.square(spread)))) if spread else float("nan"),
    }


def uncalibrated_row(task: Task, samples: Dataset | Recording, first: int) -> dict[str, Any]:
    """The plan with the paper's parameters, trained with the same seeds."""
    experiment = task.experiment().fitted(samples)
    plan = experiment.solve()
    measured = Tried(experiment, samples, first).accuracy(plan.offer, task.seeds)
    return {
        "payment": plan.payment,
        "conservation_rate": plan.conservation_rate,
        "measured": measured,
    }


def goal_row(tried: Tried, found: Calibration) -> dict[str, Any]:
    """What the accuracy of the uncalibrated plan costs with the law."""
    game = tried.experiment.game
    plain = dufl.solve(found.experiment.game if found.experiment else None)
    reached = float(np.mean(tried.accuracy(plain.offer, SEEDS)))
    row: dict[str, Any] = {"accuracy": reached, "payment": plain.payment}
    for name, trim in (("nobody loses", None), ("as the paper", False)):
        plan = dufl.solve(game.replace(trim_start=trim), accuracy=reached)
        trained = Tried(tried.experiment.replace(game=plan.game), tried.samples, tried.first)
        row[name] = {
            "payment": plan.payment,
            "conservation_rate": plan.conservation_rate,
            "losing": plan.certificate.losing_clients,
            "measured": trained.accuracy(plan.offer, SEEDS),
        }
    return row


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown."""
    heads = (
        "task",
        "held-out R²",
        "R",
        "θ",
        "predicted",
        "measured",
        "best θ",
        "its accuracy",
        "regret",
        "noise",
    )
    lines = [f"| {' | '.join(heads)} |", "| --- " + "| ---: " * 9 + "|"]
    for name, row in rows.items():
        for place, offer in enumerate(row["offers"]):
            measured, best = 100 * np.mean(offer["measured"]), 100 * np.mean(offer["best"])
            regret = max(best - measured, 0.0)
            noise = "" if np.isnan(offer["noise"]) else f"{100 * offer['noise']:.1f}"
            lines.append(
                f"| {'' if place else name} | {'' if place else format(row['r2_heldout'], '.2f')} "
                f"| {offer['payment']:.3g} | {offer['conservation_rate']:.2f} "
                f"| {100 * offer['predicted']:.1f} ± {164.5 * offer['deviation']:.1f} | {measured:.1f} "
                f"| {offer['best_rate']:g} | {best:.1f} | {regret:.1f} | {noise} |"
            )
    return "\n".join(lines)


def figure(rows: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy against payment: predicted with its 90 % interval, measured, and the uncalibrated plan."""
    shown = [name for name in ("fmnist", "mnist", "insects", "weather") if name in rows]
    result, axes = new_figure(2.6 * len(shown), 3.0, ncols=len(shown))
    for axis, name in zip(np.atleast_1d(axes), shown, strict=True):
        offers, plain = rows[name]["offers"], rows[name]["uncalibrated"]
        paid = np.array([offer["payment"] for offer in offers])
        middle = 100 * np.array([offer["predicted"] for offer in offers])
        wide = 164.5 * np.array([offer["deviation"] for offer in offers])
        axis.fill_between(paid, middle - wide, middle + wide, color=BLUE, alpha=0.15, linewidth=0)
        axis.plot(paid, middle, color=BLUE, label="predicted, with 90 % interval")
        measured = [100 * np.mean(offer["measured"]) for offer in offers]
        axis.plot(paid, measured, "o", color=BLUE, markeredgecolor="white", label="trained, other seeds")
        label = "uncalibrated plan, trained"
        axis.plot(plain["payment"], 100 * np.mean(plain["measured"]), "X", color=ORANGE, label=label)
        axis.set(title=name, xscale="log", xlabel="payment per round")
        axis.set_xticks([1, 2, 5, 10, 20, 50], [1, 2, 5, 10, 20, 50])
        axis.minorticks_off()
    np.atleast_1d(axes)[0].set(ylabel="accuracy, %")
    result.legend(*np.atleast_1d(axes)[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return result


def main(names: list[str]) -> None:
    """Measure what is missing, and print the table."""
    warnings.simplefilter("ignore", dufl.NegativeUtilityWarning)
    OUT.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name, task in TASKS.items():
        kept = OUT / f"{slug(name)}.json"
        if not kept.exists() and (not names or name in names):
            kept.write_text(json.dumps(row_of(name, task)))
            print(f"{name}: measured", file=sys.stderr)
        if kept.exists():
            rows[name] = json.loads(kept.read_text())
        if kept.exists() and "uncalibrated" not in rows[name]:
            samples = task.experiment().data.load()
            late = LATE if isinstance(samples, Recording) else SIMULATED
            first = int(late * task.experiment().game.num_rounds)
            rows[name]["uncalibrated"] = uncalibrated_row(task, samples, first)
            kept.write_text(json.dumps(rows[name]))
    print(table(rows))
    with style():
        save(figure(rows), OUT, "calibrated")
    for name, row in rows.items():
        print(f"{name}: {row['seconds']:.0f} s, {row['form']}, memory {row['memory']:g}. {row['verdict']}")
        if row["goal"]:
            print(json.dumps(row["goal"]))


if __name__ == "__main__":
    main(sys.argv[1:])
