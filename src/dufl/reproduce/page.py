"""The reproduction as a page for the documentation, made from its own output and nothing else."""

from pathlib import Path
from typing import Any

from PIL import Image

from dufl.data.datasets.catalogue import CATALOGUE
from dufl.experiment.files import write_text
from dufl.reproduce.table1 import ALGORITHMS, POLICIES, SIGMAS, TableCell, cell_of, read_rows

WIDTH = 900  # pixels of a figure on the page
TITLES = {
    "convergence": "Algorithm 1 over its iterations",
    "clients": "What a client earns",
    "sensitivity": "The server's strategy and time sensitivity",
    "server": "The server's strategy, trained",
    "updates": "Collection, volume and staleness",
    "table": "Accuracy, static and with data update",
    "leaders": "Algorithm 1 and the anticipating leader, trained",
}
NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "feddyn": "FedDyn"}
INTRODUCTION = """\
# The paper, reproduced

What T. Liu and X. Wang show in *Degree of Staleness-Aware Data Updating in Federated Learning* (ECAI
2025), from this project's own solvers and training. `dufl reproduce` made the data, the figures, and
this page: `make reproduction` runs all of it again. Every claim is checked by a function that can say no;
what does not hold is shown as well, with experiments on why.
"""
DIFFERENCES = """\
## What differs, and why

- The paper gives no value of ψ; it is 1 here. It draws the clients' costs at random and does not say how
  often; here they are drawn anew for every draw, and ranges over the draws are shown as bands.
- How samples age and classes arrive is published in words only. Here ⌈C·(1 − σ/3)⌉ of C classes are
  there at the start, the others arrive evenly until half of the rounds are over, and kept samples get
  Gaussian noise that grows with their age ([the data](data.md)).
- The CNN and ResNet-18 rows are not at the paper's setting: 30 rounds, small first buffers and few
  epochs are what two cores can do; the settings stand beside the numbers. So does the
  number of training samples, where a part of a dataset was there. The paper leaves the light network
  open; ours was chosen from thirty for plain SGD at the paper's rate of 0.01 ([training](training.md)).
  Momentum 0.9 did not help it (CIFAR-10, σ = 0.75, 40 rounds of 5 epochs, 500 samples at the start:
  54.1 %, and 54.4 % without), a rate of 0.03 made it slower. ResNet-18 has the stem of the original,
  GroupNorm, momentum 0.9, batches of 32 and 5 clients instead of 15, so that it takes more steps in
  less time; that was set once and not searched for. What can be compared there is static with data
  update, not the level.
- No augmentation is used anywhere.
- μ of FedProx and α of FedDyn are not printed; the defaults of `[training]` are used unless the settings
  say otherwise.
- (R, θ)* is where Algorithm 1 comes to rest with the damped update, because the printed one leaves φ
  swinging.
"""


def write_page(found: dict[str, dict[str, Any]], out: Path, page: Path) -> list[Path]:
    """Write the page, and copies of the figures into `assets` beside it."""
    assets = page.parent / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    parts, copies = [INTRODUCTION], []
    for name, item in found.items():
        copies.append(assets / f"reproduction-{name}.png")
        _shrink(out / f"{name}.png", copies[-1])
        parts.append(_section(name, item, out))
    missing = [f"`{name}`" for name in TITLES if name not in found]
    if missing:
        parts.append(f"## Not run\n\n{', '.join(missing)}.\n")
    parts.append(DIFFERENCES)
    write_text(page, "\n".join(parts))
    return [page, *copies]


def _shrink(figure: Path, copy: Path) -> None:
    """A small copy of a figure: as wide as a page and of few colours."""
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
    told = "; ".join(f"{key}: {_plain(value)}" for key, value in item["settings"].items())
    changes = item["run"].get("changes") or []
    if name == "table":
        more = f"\n{_tables(read_rows(out / 'table.csv'))}\n"
    else:
        more = f"\nChanged from the paper's setting: {_code(changes)}.\n" if changes else ""
    notes = "".join(f"\n{note}\n" for note in item["notes"])
    return f"""## {TITLES[name]}

{told[0].upper()}{told[1:]}. Took {_duration(item["seconds"])}.

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
    """Our number, the paper's, and the difference, for every cell that was run; a table for every dataset."""
    return "\n\n".join(
        _table(dataset, [row for row in rows if row["dataset"] == dataset])
        for dataset in dict.fromkeys(row["dataset"] for row in rows)
    )


def _table(dataset: str, rows: list[dict[str, Any]]) -> str:
    by = {cell_of(row): row for row in rows}
    settings = dict.fromkeys(
        (row["model"], row["changes"], row["seeds"], row["train_samples"]) for row in rows
    )
    told = "; ".join(
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
    return f"**{dataset}** ({told}; {took})\n\n" + "\n".join(lines)


def _part(dataset: str, samples: int) -> str:
    """How much of the dataset was there, if not all."""
    of = CATALOGUE[dataset].train
    return f"{samples:,} of {of:,} training samples, " if samples < of else ""


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    ours = f"{row['accuracy']:.1f}"
    return ours if row["paper"] is None else f"{ours} ({row['paper']:.1f}; {row['difference']:+.1f})"
