"""Training for the reproduction: each run in its own directory, so that none is run twice."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dufl.data.datasets import Dataset
from dufl.experiment.config import Config, parse_change
from dufl.experiment.run_directory import FREE
from dufl.experiment.train import Run, train
from dufl.learning.federation import Record
from dufl.reproduce.item import Advance

MODELS = {"svhn": "cnn", "cifar10": "cnn", "cifar100": "resnet18"}  # logistic for the others
ALGORITHM1 = ("leader.method=algorithm1", "leader.search=direct", "leader.damping=0.5")


def on(dataset: str, local_epochs: int) -> list[str]:
    """The paper's way to train on a dataset, as changes of the configuration."""
    model = MODELS.get(dataset, "logistic")
    return [f"data.dataset={dataset}", f"training.model={model}", f"training.local_epochs={local_epochs}"]


def of_the_setting(changes: Sequence[str]) -> list[str]:
    """The changes that a result depends on: not where the data are, nor how many workers train."""
    return [text for text in changes if parse_change(text)[:2] not in FREE]


def seconds_of(runs: Iterable[Run]) -> float:
    """How long they trained."""
    return float(sum(run.summary()["seconds"] for run in runs))


def train_all(configs: Mapping[str, Config], folder: Path, advance: Advance) -> dict[str, Run]:
    """Train each configuration, or go on where a killed reproduction was; runs by name."""
    runs: dict[str, Run] = {}
    loaded: dict[str, Dataset] = {}
    for number, (name, config) in enumerate(configs.items()):
        if config.data.dataset not in loaded:
            loaded = {config.data.dataset: config.data.load()}  # one at a time in memory
        rounds = config.game.num_rounds

        def watch(record: Record, number: int = number, name: str = name, rounds: int = rounds) -> None:
            done = (number + (record.round + 1) / rounds) / len(configs)
            advance(done, f"{name} ({number + 1} of {len(configs)}), round {record.round + 1} of {rounds}")

        dataset = loaded[config.data.dataset]
        runs[name] = train(config, folder / name, resume=True, dataset=dataset, watch=watch)
    return runs
