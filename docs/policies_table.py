"""The table and the diagram of docs/policies.md: all policies at equal payment, on six datasets.

Run it as `python docs/policies_table.py`; `$DUFL_DATA` is the folder of the datasets. It calibrates every
task (`dufl calibrate`), compares all policies with seeds that no pilot has (`dufl compare --equal-payment`),
and writes the table and the diagram. Runs are kept in runs/policies, and are not trained again. It takes
about half an hour on two cores.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
OUT = Path("runs") / "policies"
DATA = os.environ.get("DUFL_DATA", str(HERE.parents[1] / "shared" / "data"))
SIMULATED = ("--set", "training.local_epochs=5")
RECORDED = (*SIMULATED, "--set", "clients.count=10", "--set", "training.learning_rate=0.05")
TASKS = {
    "digits": SIMULATED,
    "fmnist": SIMULATED,
    "insects": RECORDED,
    "weather": RECORDED,
    "elec2": RECORDED,
    "keystroke": RECORDED,
}
POLICIES = (
    *("static", "dufl", "algorithm1", "fixed-1-0.5", "zero", "random", "periodic-5"),
    *("window-1", "window-2", "window-5", "keep-all", "age-price"),
)
SEED = 100  # and the nine after it; no pilot has them


def dufl(*arguments: str) -> None:
    """Run a command."""
    environment = {**os.environ, "DUFL_DATA": DATA}
    subprocess.run([sys.executable, "-m", "dufl", *arguments], check=True, env=environment)


def train() -> None:
    """Calibrate every task, and compare all policies on it."""
    for task, changes in TASKS.items():
        if not (OUT / f"{task}.toml").exists():
            place = OUT / f"{task}-calibration"
            dufl("calibrate", "--set", f"dataset={task}", *changes, "--out", str(place))
            shutil.copy(place / "calibrated.toml", OUT / f"{task}.toml")
    files = [str(OUT / f"{task}.toml") for task in TASKS]
    options = ["--policies", ",".join(POLICIES), "--equal-payment", "--seeds", "10", "--baseline", "dufl"]
    dufl(
        "compare",
        *files,
        "--set",
        f"training.seed={SEED}",
        *options,
        "--resume",
        "--out",
        str(OUT / "comparison"),
    )


def table() -> str:
    """Mean accuracies in percent; the best is bold, and a star marks what is certainly worse than `dufl`."""
    with (OUT / "comparison" / "statistics.csv").open(encoding="utf-8") as stream:
        rows = {
            (row["problem"], row["method"].removeprefix("fedavg-")): row for row in csv.DictReader(stream)
        }
    lines = ["| policy | " + " | ".join(TASKS) + " |", "| --- |" + " --- |" * len(TASKS)]
    for policy in POLICIES:
        cells = [_cell(rows[task, policy], max(_shown(rows[task, p]) for p in POLICIES)) for task in TASKS]
        name = re.sub(r"fixed-1-", "fixed-R-", policy)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(row: dict[str, str]) -> float:
    return round(100 * float(row["mean"]), 1)


def _cell(row: dict[str, str], best: float) -> str:
    value = f"{_shown(row):.1f}"
    high = row["difference_high"]
    worse = bool(high) and float(high) < 0
    return f"**{value}**" if _shown(row) == best else f"{value}\\*" if worse else value


def main() -> None:
    """Train what is missing, write the table into the page, and copy the diagram."""
    train()
    page = HERE / "policies.md"
    text = page.read_text(encoding="utf-8")
    between = re.compile(r"(<!-- begin policies -->\n).*?(<!-- end policies -->)", re.DOTALL)
    page.write_text(between.sub(lambda m: m[1] + table() + "\n" + m[2], text), encoding="utf-8")
    with Image.open(OUT / "comparison" / "ranks.png") as diagram:
        small = diagram.convert("RGB").quantize(32)  # a few colors: a quarter of the size
    small.save(HERE / "assets" / "policies.png", optimize=True)


if __name__ == "__main__":
    main()
