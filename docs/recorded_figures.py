"""The figures and the table of docs/time.md: policies on recorded data, three seeds each.

The recordings other than weather are in a data folder, `$DUFL_DATA`; without it nothing is drawn anew.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import dufl
from dufl.data.datasets import find_datasets
from dufl.experiment.compare import compare, grid
from dufl.experiment.comparison import Comparison
from dufl.report.figures import BLUE, GREEN, GREY, ORANGE, new_figure

RECORDINGS = ("insects", "keystroke", "weather", "elec2", "rialto")
POLICIES = {
    "static": ("first data only", ORANGE),
    "keep-all": ("everything kept", GREEN),
    "window-20": ("last 20 periods", "#9467bd"),
    "window-5": ("last 5 periods", "#17becf"),
    "fresh-only": ("last period only", BLUE),
    "dufl": ("default plan", "#444444"),
}
SHOWN = ("static", "keep-all", "fresh-only")  # in the figure of the front page
SEEDS = 3
SMOOTH = 5  # rounds


def available() -> bool:
    """Whether all recordings are on this machine."""
    found = {one.name: one.state for one in find_datasets(check=False)}
    return all(found[name] != "missing" for name in RECORDINGS)


def comparisons() -> dict[str, Comparison]:
    """All policies on every recording."""
    game = dufl.Game(clients=dufl.Clients.draw(10))
    training = dufl.Training(local_epochs=5, learning_rate=0.05)
    return {
        name: compare(
            grid(dufl.Experiment(game=game, data=dufl.Data(name), training=training), policies=POLICIES),
            seeds=SEEDS,
        )
        for name in RECORDINGS
    }


def front_figure(found: dict[str, Comparison]) -> Figure:
    """Two recordings: one on which freshness decides, and one on which it does not matter."""
    figure, axes = new_figure(9.0, 3.2, ncols=2, sharey=True)
    titles = {
        "insects": "insects: age decides",
        "weather": "weather: age hardly matters",
    }
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        draw(axis, found[name], SHOWN)
        axis.set(title=title, xlabel="period")
    axes[0].set(ylabel="accuracy on the next period, %", ylim=(0, 100))
    axes[1].legend(loc="lower right")
    return figure


def all_figure(found: dict[str, Comparison]) -> Figure:
    """All recordings and policies, and predictions that need no model."""
    figure, axes = new_figure(9.0, 8.2, nrows=3, ncols=2)
    panels = axes.ravel()
    for axis, name in zip(panels, RECORDINGS, strict=False):
        draw(axis, found[name], tuple(POLICIES))
        row = found[name].cells[0].summary()
        for key, style in (("no_change_accuracy", "--"), ("majority_accuracy", ":")):
            axis.axhline(100 * row[key], color=GREY, linestyle=style, linewidth=1.0)
        axis.set(title=name, xlabel="period", ylabel="accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    lines = [panels[-1].plot([], [], style, color=GREY, linewidth=1.0)[0] for style in ("--", ":")]
    panels[-1].axis("off")
    names = [*labels, "no change (no model)", "majority class (no model)"]
    panels[-1].legend([*handles, *lines], names, loc="center")
    return figure


def draw(axis: Any, comparison: Comparison, policies: tuple[str, ...]) -> None:
    """The accuracy on the next period, as a moving average: mean and range of the seeds."""
    for policy in policies:
        label, color = POLICIES[policy]
        curve = moving(100 * comparison[f"fedavg-{policy}"].curve("accuracy"))
        places = np.arange(SMOOTH - 1, SMOOTH - 1 + curve.shape[1])
        mean = curve.mean(axis=0)
        axis.fill_between(places, curve.min(axis=0), curve.max(axis=0), color=color, alpha=0.25, linewidth=0)
        axis.plot(places, mean, color=color, linewidth=1.3, label=label)


def moving(curve: Any) -> Any:
    """Moving averages over the rounds."""
    return np.array([np.convolve(row, np.ones(SMOOTH) / SMOOTH, "valid") for row in curve])


def table(found: dict[str, Comparison]) -> str:
    """Mean accuracy over the rounds in percent, ± the standard deviation over the seeds."""
    heads = ["recording", *(f"`{policy}`" for policy in POLICIES), "no change", "majority"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for name, comparison in found.items():
        rows = [comparison[f"fedavg-{policy}"].summary() for policy in POLICIES]
        best = max(row["mean_accuracy"] for row in rows)
        cells = [score(row, row["mean_accuracy"] == best) for row in rows]
        free = [f"{100 * rows[0][key]:.1f}" for key in ("no_change_accuracy", "majority_accuracy")]
        lines.append([f"`{name}`", *cells, *free])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def score(row: dict[str, Any], best: bool) -> str:
    """A cell of the table."""
    mean = f"{100 * row['mean_accuracy']:.1f}"
    return f"{f'**{mean}**' if best else mean} ± {100 * row['accuracy_std']:.1f}"
