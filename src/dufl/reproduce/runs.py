"""Training for the reproduction: each run has its own directory, so that no run is repeated."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.experiment.config import Changes, Experiment
from dufl.experiment.keys import split_key
from dufl.experiment.run_directory import FREE
from dufl.experiment.train import Run, train
from dufl.learning.federation import Record
from dufl.reproduce.item import Advance

MODELS = {"svhn": "cnn", "cifar10": "cnn", "cifar100": "resnet18"}  # logistic for the others
ALGORITHM1 = {"leader.method": "algorithm1", "leader.search": "direct", "leader.damping": 0.5}


CONVOLUTIONS: Changes = {  # what the paper leaves open
    "training.learning_rate": 0.03,
    "training.learning_rate_decay": 0.97,
    "training.momentum": 0.9,
    "training.batch_size": 32,
    "training.augmentation": "crop-flip",
    "training.precision": "auto",
}


def on(dataset: str, local_epochs: int) -> Changes:
    """The paper's training settings for a dataset, as changes to the defaults."""
    model = MODELS.get(dataset, "logistic")
    setting = {"data.dataset": dataset, "training.model": model, "training.local_epochs": local_epochs}
    if model == "logistic":
        return setting
    mirrored = {} if dataset != "svhn" else {"training.augmentation": "crop"}  # digits
    return {**setting, **CONVOLUTIONS, **mirrored}


def left_open(dataset: str, changes: Changes) -> Changes:
    """What differs from the paper's stated setting: what it leaves open, and changes."""
    setting = on(dataset, 0)
    return {key: value for key, value in setting.items() if key in CONVOLUTIONS} | dict(changes)


def of_the_setting(changes: Changes) -> list[str]:
    """The changes that affect results, as `key=value`: not the data directory or the number of workers."""
    named = {".".join(filter(None, split_key(key))): value for key, value in changes.items()}
    return [f"{key}={value}" for key, value in named.items() if key not in FREE]


def seconds_of(runs: Iterable[Run]) -> float:
    """The total training time of some runs."""
    return float(sum(run.summary()["seconds"] for run in runs))


def train_all(configs: Mapping[str, Experiment], folder: Path, advance: Advance) -> dict[str, Run]:
    """Train each experiment, or resume it if a reproduction was interrupted; returns runs by name."""
    runs: dict[str, Run] = {}
    loaded: dict[str, Dataset | Recording] = {}
    for number, (name, config) in enumerate(configs.items()):
        if config.data.dataset not in loaded:
            loaded = {config.data.dataset: config.data.load()}  # one at a time in memory
        rounds = config.game.num_rounds

        def watch(record: Record, number: int = number, name: str = name, rounds: int = rounds) -> None:
            done = (number + (record.round + 1) / rounds) / len(configs)
            advance(done, f"{name} ({number + 1} of {len(configs)}), round {record.round + 1} of {rounds}")

        dataset = loaded[config.data.dataset]
        runs[name] = train(config, out=folder / name, resume=True, dataset=dataset, callbacks=[watch])
    return runs
