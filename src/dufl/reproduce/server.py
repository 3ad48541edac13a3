"""Figure 4: accuracy and the server's cost over the rounds, for (R, θ)* and six deviations from it."""

from pathlib import Path
from typing import Any

import numpy as np

from dufl.data.datasets import load_dataset
from dufl.experiment.config import Config, load
from dufl.experiment.train import Run, train
from dufl.report.figures import BLUE, GREEN, ORANGE, RED, new_figure, save, style
from dufl.reproduce.item import Advance, Claim, Item, Scale, write_rows
from dufl.reproduce.table import MODELS
from dufl.reproduce.updates import PAYMENTS, RATES, offers


def reproduce(scale: Scale, out: Path, advance: Advance, changes: tuple[str, ...] = ()) -> Item:
    """Train with each of the seven offers, each in a run directory of its own."""
    wanted = offers(0)
    runs: dict[str, Run] = {}
    dataset: Any = None
    for number, (name, offer) in enumerate(wanted.items()):
        config = config_of(scale, offer, changes)
        dataset = dataset or load_dataset(config.data.dataset, config.data.data_dir)

        def watch(record: Any, number: int = number, rounds: int = config.game.num_rounds) -> None:
            advance((number + (record.round + 1) / rounds) / len(wanted))

        folder = out / "server" / f"{offer[0]:.2f}-{offer[1]:.2f}"
        runs[name] = train(config, folder, resume=True, dataset=dataset, watch=watch)
    rows = [
        {"offer": name, "payment": wanted[name][0], "conservation_rate": wanted[name][1]}
        | {"round": r.round, "accuracy": r.accuracy, "server_cost": r.server_cost}
        for name, run in runs.items()
        for r in run.records
    ]
    first = runs["*"].config
    settings = {
        "dataset": first.data.dataset,
        "model": first.training.model,
        "epochs": first.training.epochs,
        "rounds": first.game.num_rounds,
        "changes": list(changes),
    }
    written = [write_rows(out / "server.csv", rows), *_draw(runs, out)]
    accuracy = {name: 100 * late(run) for name, run in runs.items()}
    cost = {name: run.records[-1].server_cost for name, run in runs.items()}
    return Item("server", judge(accuracy, cost), settings, [path.name for path in written])


def config_of(scale: Scale, offer: tuple[float, float], changes: tuple[str, ...]) -> Config:
    """The paper's setting with a fixed offer to the clients."""
    payment, rate = offer
    told = [
        f"game.payment_range=[{payment!r},{payment!r}]",
        f"game.conservation_range=[{rate!r},{rate!r}]",
        f"data.dataset={scale.pictures}",
        f"training.model={MODELS.get(scale.pictures, 'logistic')}",
        f"training.epochs={scale.epochs}",
    ]
    return load(None, [*told, *changes])


def late(run: Run) -> float:
    """The accuracy over the last tenth of the rounds, which is steadier than that of the last alone."""
    return float(np.mean([record.accuracy for record in run.records[-max(1, len(run.records) // 10) :]]))


def judge(accuracy: dict[str, float], cost: dict[str, float]) -> list[Claim]:
    """What the paper says of these curves."""
    others = {name: value for name, value in cost.items() if name != "*"}
    rich = [accuracy[f"R = {payment}"] for payment in PAYMENTS[1:]]
    rates = [accuracy[f"θ = {rate}"] for rate in RATES]
    least = min(others, key=lambda name: others[name])
    return [
        Claim(
            "the server's cost is lowest at (R, θ)*",
            cost["*"] < others[least],
            f"{cost['*']:.3f} there, {others[least]:.3f} at {least}",
        ),
        Claim(
            "a higher payment gives a higher accuracy",
            accuracy[f"R = {PAYMENTS[0]}"] < accuracy["*"] < min(rich),
            f"{accuracy[f'R = {PAYMENTS[0]}']:.1f} %, {accuracy['*']:.1f} % at R*, "
            + ", ".join(f"{value:.1f} %" for value in rich),
        ),
        Claim(
            "a θ that is too small or too large gives a lower accuracy",
            accuracy["*"] > max(rates),
            f"{accuracy['*']:.1f} % at θ*, " + ", ".join(f"{value:.1f} %" for value in rates),
        ),
    ]


def _draw(runs: dict[str, Run], out: Path) -> list[Path]:
    groups = (("*", *(f"θ = {rate}" for rate in RATES)), ("*", *(f"R = {payment}" for payment in PAYMENTS)))
    with style():
        figure, axes = new_figure(9.0, 5.8, nrows=2, ncols=2)
        for column, group in enumerate(groups):
            for offer, colour in zip(group, (BLUE, ORANGE, GREEN, RED), strict=True):
                line, label = ("-", "(R, θ)*") if offer == "*" else ("--", offer)
                records = runs[offer].records
                accuracy = [100 * record.accuracy for record in records]
                axes[0][column].plot(accuracy, line, color=colour, label=label)
                axes[1][column].plot([record.server_cost for record in records], line, color=colour)
            axes[0][column].set(title="Test accuracy", ylabel="%")
            axes[1][column].set(title="Server cost so far", xlabel="round")
            axes[0][column].legend(loc="lower right")
        return save(figure, out, "server")
