"""The figure of Table 1."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dufl.report.figures import BLUE, GREY, ORANGE, new_figure, save, style


def draw_table(
    rows: list[dict[str, Any]], sigmas: Sequence[float], algorithms: Sequence[str], out: Path
) -> list[Path]:
    """One panel per dataset and σ, with one bar per algorithm and policy, and the paper's value as a mark."""
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    with style():
        figure, panels = new_figure(9.5, 2.9 * len(datasets), nrows=len(datasets), ncols=3, squeeze=False)
        for i, dataset in enumerate(datasets):
            for j, sigma in enumerate(sigmas):
                axes = panels[i][j]
                for offset, policy, colour in ((-0.2, "static", ORANGE), (0.2, "dufl", BLUE)):
                    selected = [
                        row
                        for row in rows
                        if (row["dataset"], row["time_sensitivity"], row["policy"])
                        == (dataset, sigma, policy)
                    ]
                    if not selected:
                        continue
                    places = np.array([algorithms.index(row["algorithm"]) for row in selected]) + offset
                    accuracies = [row["accuracy"] for row in selected]
                    bars = axes.bar(places, accuracies, 0.38, color=colour, label=policy)
                    axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
                    known = [(x, r["paper"]) for x, r in zip(places, selected, strict=True) if r["paper"]]
                    if known:
                        label = "the paper's" if policy == "dufl" else None
                        axes.plot(*zip(*known, strict=True), "k_", markersize=13, label=label)
                axes.set(
                    title=f"{dataset}{_star(rows, dataset)}, σ = {sigma:g}",
                    ylim=(0, 108),
                    xticks=range(len(algorithms)),
                    xlim=(-0.6, 2.6),
                )
                axes.set_xticklabels(algorithms)
                axes.grid(visible=False)
                if not axes.patches:
                    axes.set_axis_off()
                    axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=GREY)
        first = next(axes for axes in panels.flat if axes.patches)
        first.set_ylabel("accuracy, %")
        first.legend(loc="lower center", ncols=3, fontsize=7, frameon=True)
        if any(row["changes"] for row in rows):
            figure.supxlabel("* not the paper's setting", x=0.01, ha="left", fontsize=8)
        return save(figure, out, "table")


def _star(rows: list[dict[str, Any]], dataset: str) -> str:
    """An asterisk if the setting is not the paper's."""
    return "*" if any(row["changes"] for row in rows if row["dataset"] == dataset) else ""
