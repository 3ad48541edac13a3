"""Writes the documentation page on the reproduction, from the output of the reproduction alone."""

from pathlib import Path
from typing import Any

from PIL import Image

from dufl.data.datasets.catalogue import CATALOGUE
from dufl.experiment.files import write_text
from dufl.reproduce.table1 import ALGORITHMS, POLICIES, SIGMAS, TableCell, cell_of, read_rows

WIDTH = 900  # pixels of a figure on the page
TITLES = {
    "convergence": "Algorithm 1 over its iterations",
    "clients": "Utility of a client",
    "sensitivity": "The server's strategy and time sensitivity",
    "server": "The server's strategy, trained",
    "updates": "Collection, volume and staleness",
    "table": "Accuracy, static and with data update",
    "leaders": "Algorithm 1 and the Stackelberg leader, trained",
}
NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "feddyn": "FedDyn"}
INTRODUCTION = """\
# The paper, reproduced

This page reproduces the results of T. Liu and X. Wang, *Degree of Staleness-Aware Data Updating in
Federated Learning* (ECAI 2025), with DUFL's own solvers and training. `dufl reproduce` generated the data,
the figures and this page; `make reproduction` repeats everything. A function checks each claim and can
fail. Claims that do not hold are shown as well, with experiments that explain why.
"""
DIFFERENCES = """\
## Differences from the paper

- The paper does not state ψ; here it is 1. The paper draws the clients' costs at random without saying how
  often. Here they are drawn several times, and bands show the range over the draws.
- The paper describes only in words how samples age and classes arrive. Here ⌈C·(1 − σ/3)⌉ of C classes are
  present at the start, the others arrive evenly during the first half of the rounds, and kept samples get
  Gaussian noise that grows with their age ([data](data.md)).
- CIFAR-100 and SVHN do not use the paper's setting, and neither does the server's strategy: 30 rounds, small
  initial buffers and few epochs, so that they can be computed on two cores. The settings are stated next to
  the numbers, and so is the number of training samples where only a part of a dataset was available. In these
  rows, compare static with data update, not the absolute accuracy.
- The paper does not specify its lightweight CNN. The rows with 30 rounds were trained with two normalized
  convolutions, plain SGD and no augmentation. Since then DUFL's `cnn` is another network, with its own
  settings ([training](training.md#models)). One cell was trained with it so far, at the paper's number of
  rounds, clients and samples: CIFAR-10, FedAvg, σ = 0.75 with data update and 5 local epochs instead of 20
  reaches 75.0 % (the paper has 83.9 %), in 34 minutes on one shared core.
- ResNet-18 uses the original stem, GroupNorm, momentum 0.9, batches of 32 and 5 clients instead of 15, so
  that it takes more steps in less time; these settings were not tuned.
- The paper does not state μ of FedProx and α of FedDyn. The defaults of `[training]` are used unless the
  settings say otherwise.
- (R, θ)* is the fixed point of Algorithm 1 with the damped update, because φ oscillates with the plain
  update of the paper.
"""


def write_page(items: dict[str, dict[str, Any]], out: Path, page: Path) -> list[Path]:
    """Write the page, and copies of the figures into `assets` beside it."""
    assets = page.parent / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    parts, copies = [INTRODUCTION], []
    for name, item in items.items():
        copies.append(assets / f"reproduction-{name}.png")
        _shrink(out / f"{name}.png", copies[-1])
        parts.append(_section(name, item, out))
    missing = [f"`{name}`" for name in TITLES if name not in items]
    if missing:
        parts.append(f"## Not run\n\n{', '.join(missing)}.\n")
    parts.append(DIFFERENCES)
    write_text(page, "\n".join(parts))
    return [page, *copies]


def _shrink(figure: Path, copy: Path) -> None:
    """Write a small copy of a figure, with the width of a page and few colours."""
    with Image.open(figure) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        few = small.quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(copy, optimize=True)


def _section(name: str, item: dict[str, Any], out: Path) -> str:
    claims = "\n".join(
        f"| {claim['statement']} | {'yes' if claim['holds'] else '**no**'} | {claim['measured']} |"
        for claim in item["claims"]
    )
    settings = "; ".join(f"{key}: {_plain(value)}" for key, value in item["settings"].items())
    changes = item["run"].get("changes") or []
    if name == "table":
        more = f"\n{_tables(read_rows(out / 'table.csv'))}\n"
    else:
        more = f"\nChanged from the paper's setting: {_code(changes)}.\n" if changes else ""
    notes = "".join(f"\n{note}\n" for note in item["notes"])
    return f"""## {TITLES[name]}

{settings[0].upper()}{settings[1:]}. Took {_duration(item["seconds"])}.

| claim | holds | measured |
| --- | --- | --- |
{claims}
{more}{notes}
![{TITLES[name]}](assets/reproduction-{name}.png)
"""


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return str(value)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _code(changes: list[str]) -> str:
    return ", ".join(f"`{change}`" for change in changes)


def _tables(rows: list[dict[str, Any]]) -> str:
    """One table per dataset: our number, the paper's, and the difference for every cell that was run."""
    return "\n\n".join(
        _table(dataset, [row for row in rows if row["dataset"] == dataset])
        for dataset in dict.fromkeys(row["dataset"] for row in rows)
    )


def _table(dataset: str, rows: list[dict[str, Any]]) -> str:
    by = {cell_of(row): row for row in rows}
    settings = dict.fromkeys(
        (row["model"], row["changes"], row["seeds"], row["train_samples"]) for row in rows
    )
    description = "; ".join(
        f"{model}, {seeds} {'seed' if seeds == 1 else 'seeds'}, {_part(dataset, samples)}"
        + (f"**not the paper's setting:** {_code(changes.split())}" if changes else "the paper's setting")
        for model, changes, seeds, samples in settings
    )
    took = _duration(sum(row["seconds"] for row in rows))
    head = " | ".join(f"{NAMES[algorithm]}, {policy}" for algorithm in ALGORITHMS for policy in POLICIES)
    lines = [f"| σ | {head} |", "| --- |" + " --- |" * (len(ALGORITHMS) * len(POLICIES))]
    for sigma in SIGMAS:
        cells = [by.get(TableCell(dataset, sigma, a, p)) for a in ALGORITHMS for p in POLICIES]
        if any(cells):
            lines.append(f"| {sigma:g} | " + " | ".join(map(_cell, cells)) + " |")
    return f"**{dataset}** ({description}; {took})\n\n" + "\n".join(lines)


def _part(dataset: str, samples: int) -> str:
    """The number of available training samples, if some were missing."""
    of = CATALOGUE[dataset].train
    return f"{samples:,} of {of:,} training samples, " if samples < of else ""


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    ours = f"{row['accuracy']:.1f}"
    return ours if row["paper"] is None else f"{ours} ({row['paper']:.1f}; {row['difference']:+.1f})"
