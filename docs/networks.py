"""The accuracy of small networks by the processor time they take: CIFAR-10 with data update, as in Table 1.

    python docs/networks.py            trains what is missing in runs/networks, and draws the figure
    python docs/networks.py NAME …     only some networks

One worker trains at a time, so that processor time is time on one core.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from calibration_table import DATA
from torch import nn

import dufl
from dufl.data.datasets import load_dataset
from dufl.learning.federation import Record
from dufl.learning.models import LightCNN, Standardize
from dufl.report.figures import new_figure, style
from dufl.reproduce.runs import ALGORITHM1, on

HERE = Path(__file__).parent
OUT = HERE.parent / "runs" / "networks"
ROUNDS = 40  # of 100: the network that is ahead then stays ahead


def pyramid(widths: tuple[int, ...], normalize: Callable[[int], nn.Module]) -> nn.Module:
    """Of the shape of `LightCNN`, with other widths and another normalization."""

    def conv(before: int, width: int) -> nn.Conv2d:
        return nn.Conv2d(before, width, 3, padding=1, bias=False)

    stem, *others = widths
    layers = [Standardize(), conv(3, stem), normalize(stem), nn.ReLU(), nn.MaxPool2d(2)]
    before = stem
    for width in others:
        layers += [conv(before, width), nn.MaxPool2d(2), normalize(width), nn.ReLU()]
        layers += [conv(width, width), normalize(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def groups(width: int) -> nn.GroupNorm:
    """GroupNorm with 16 channels per group, or 8."""
    return nn.GroupNorm(max(width // 16, 1), width)


def two_convolutions() -> nn.Module:
    """Two convolutions, one of them strided, and a linear layer on the whole grid.

    Weights begin at a tenth of their usual size, so that steps of plain SGD at 0.01 turn them faster.
    """
    first = nn.Conv2d(3, 32, 5, 2, 2, bias=False)
    second = nn.Conv2d(32, 64, 3, padding=1, bias=False)
    last = nn.Linear(64 * 64, 10)
    for convolution in (first, second):
        inputs = convolution.weight[0].numel()
        nn.init.normal_(convolution.weight, std=0.1 * (2 / inputs) ** 0.5)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    head = nn.MaxPool2d(2), nn.Flatten(), last
    return nn.Sequential(Standardize(), first, groups(32), nn.ReLU(), second, groups(64), nn.ReLU(), *head)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "cnn": (lambda: LightCNN((3, 32, 32), 10), {}),
    "twice as wide": (lambda: pyramid((24, 64, 128, 256), nn.BatchNorm2d), {}),
    "GroupNorm": (lambda: pyramid((24, 32, 64, 128), groups), {"training.learning_rate": 0.01}),
    "two convolutions": (two_convolutions, {"training.learning_rate": 0.01}),
    "cnn, batches of 64": (lambda: LightCNN((3, 32, 32), 10), {"training.batch_size": 64}),
    "cnn, no momentum": (
        lambda: LightCNN((3, 32, 32), 10),
        {"training.momentum": 0.0, "training.learning_rate": 0.2},
    ),
}


def processor_time() -> float:
    """The seconds that this program and its workers have computed."""
    me = psutil.Process()
    return float(sum(sum(p.cpu_times()[:2]) for p in (me, *me.children(recursive=True))))


def trained(name: str, dataset: Any) -> list[tuple[int, float, float]]:
    """Round, core minutes and accuracy."""
    make, changes = NETWORKS[name]
    rows: list[tuple[int, float, float]] = []
    begin = processor_time()

    def watch(record: Record) -> dufl.Action | None:
        rows.append((record.round, (processor_time() - begin) / 60, record.accuracy))
        print(
            f"{name}: round {record.round}, {rows[-1][1]:.1f} min, {100 * record.accuracy:.1f} %", flush=True
        )
        return dufl.Action.PAUSE if record.round + 1 == ROUNDS else None

    setting = {**ALGORITHM1, **on("cifar10", 5), "data.data_dir": DATA, "training.workers": 1}
    experiment = dufl.Experiment.from_toml(changes={**setting, **changes})
    dufl.train(experiment.replace(model=make()), dataset=dataset, callbacks=[watch])
    return rows


def main(names: list[str]) -> None:
    """Train what is missing, and draw all."""
    OUT.mkdir(parents=True, exist_ok=True)
    dataset: Any = None
    for name in names or NETWORKS:
        path = OUT / f"{name}.csv"
        if path.exists():
            continue
        dataset = dataset or load_dataset("cifar10", Path(DATA))
        rows = trained(name, dataset)
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    with style():
        figure, axes = new_figure(7, 4)
        for name in NETWORKS:
            path = OUT / f"{name}.csv"
            if not path.exists():
                continue
            with path.open(newline="") as stream:
                rows = [(int(t), float(minutes), 100 * float(a)) for t, minutes, a in csv.reader(stream)]
            axes.plot([r[1] for r in rows], [r[2] for r in rows], label=name)
            print(f"{name:20} {rows[-1][1]:5.1f} core minutes  {rows[-1][2]:.1f} %  after {len(rows)} rounds")
        axes.set(xlabel="core minutes", ylabel="test accuracy, %")
        axes.legend()
        figure.savefig(HERE / "assets" / "networks.png", dpi=160)


if __name__ == "__main__":
    main(sys.argv[1:])
