"""Runs as pictures."""

from pathlib import Path

import numpy as np

from dufl.experiment.compare import Cell
from dufl.experiment.files import write_text
from dufl.experiment.output import COMPARISON, writing
from dufl.experiment.train import Run
from dufl.report.figures import BLUE, GREEN, GREY, ORANGE, RED, new_figure, save, style


def write_run_figure(run: Run) -> list[Path]:
    """Write training.png and .svg into the run's directory: accuracy, volume, age and cost over rounds."""
    assert run.folder is not None
    records = run.records
    rounds = [record.round for record in records]
    with style():
        figure, axes = new_figure(9.0, 5.4, nrows=2, ncols=2)
        (accuracy, volume), (age, cost) = axes
        accuracy.plot(rounds, [100 * record.accuracy for record in records], color=BLUE)
        accuracy.set(title="Test accuracy", ylabel="%")
        volume.plot(rounds, [record.total_volume for record in records], color=BLUE)
        volume.set(title="Samples held by all clients", ylim=(0, None))
        age.plot(rounds, [record.mean_age for record in records], color=BLUE, label="measured")
        planned = [np.nan if r.planned_staleness is None else r.planned_staleness for r in records]
        age.plot(rounds, planned, color=ORANGE, linestyle="--", label="planned")
        age.set(title="Mean age of the samples", ylabel="rounds", xlabel="round")
        age.legend()
        parts = [
            [record.cost_of_payment for record in records],
            [record.cost_of_volume for record in records],
            [record.cost_of_staleness for record in records],
        ]
        names = ["payment", "too little data", "stale data"]
        if np.isfinite(parts).all():
            cost.stackplot(rounds, parts, labels=names, colors=[BLUE, ORANGE, GREEN], alpha=0.8)
            cost.legend(loc="upper left")
        cost.set(title="Server cost so far", xlabel="round")
        return save(figure, run.folder, "training")


def write_comparison(cells: list[Cell], folder: Path) -> list[Path]:
    """Write comparison.csv, .png and .svg: accuracy over rounds, one line a cell, the range of its seeds."""
    colours = (BLUE, ORANGE, GREEN, RED, GREY)
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    styles = ("--", "-", ":", "-.")
    with style():
        figure, axes = new_figure(8.0, 4.2)
        for cell in cells:
            curve = 100 * cell.curve("accuracy")
            colour = colours[algorithms.index(cell.algorithm) % len(colours)]
            line = styles[policies.index(cell.policy) % len(styles)]
            rounds = np.arange(curve.shape[1])
            label = f"{cell.algorithm}, {cell.policy}: {curve[:, -1].mean():.1f} %"
            axes.plot(rounds, curve.mean(axis=0), line, color=colour, label=label)
            if len(curve) > 1:
                axes.fill_between(rounds, curve.min(axis=0), curve.max(axis=0), color=colour, alpha=0.2, lw=0)
        several = any(len(cell.runs) > 1 for cell in cells)
        title = "Test accuracy, mean and range of the seeds" if several else "Test accuracy"
        axes.set(title=title, xlabel="round", ylabel="%")
        axes.legend(loc="lower right")
    with writing(folder, COMPARISON) as staging, style():
        write_text(staging / "comparison.csv", comparison_csv(cells))
        written = [Path("comparison.csv"), *save(figure, staging, "comparison")]
    return [folder / path.name for path in written]


def comparison_csv(cells: list[Cell]) -> str:
    """One line a run and round."""
    fields = ("accuracy", "loss", "total_volume", "mean_age", "payment", "server_cost")
    lines = [",".join(("algorithm", "policy", "seed", "round", *fields))]
    for cell in cells:
        for seed, run in zip(cell.seeds, cell.runs, strict=True):
            for record in run.records:
                numbers = [repr(getattr(record, name)) for name in fields]
                lines.append(",".join((cell.algorithm, cell.policy, str(seed), str(record.round), *numbers)))
    return "\n".join(lines) + "\n"
