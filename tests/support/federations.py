"""Small federations on the embedded digits, for inspection."""

from typing import Any

from dufl.data.buffer import MemoryBuffer
from dufl.data.datasets import Dataset, load_dataset
from dufl.data.samples import IndexedSamples
from dufl.experiment.config import Experiment
from dufl.learning.engine import Engine, make_engine
from dufl.learning.federation import Federation
from dufl.learning.policies import Policy, make_policy
from loading import load

SMALL = ("game.num_rounds=8", "clients.count=4", "clients.initial_volume=120", "training.local_epochs=2")


def small(*changes: str) -> Experiment:
    """Four clients, eight rounds, two epochs, with changes."""
    return load(None, [*SMALL, *changes])


def federation_of(
    config: Experiment,
    dataset: Dataset | None = None,
    engine: Engine | None = None,
    policy: Policy | None = None,
) -> tuple[Federation, Engine]:
    """A federation before its first round, and its engine."""
    dataset = dataset or load_dataset("digits")
    settings = config.training
    simulation = config.data.simulation(dataset, config.game, settings.seed)
    engine = engine or make_engine(simulation, settings, config.game.clients.size)
    policy = policy or make_policy(config.policy, config.game, config.solve, settings.seed)
    federation = Federation(config.game, simulation, policy, settings, engine)
    federation.begin()
    return federation, engine


def buffers_of(federation: Federation) -> list[MemoryBuffer[IndexedSamples]]:
    """The clients' buffers."""
    return federation._buffers


def facts(record: Any) -> dict[str, Any]:
    """The fields of a record without its duration."""
    return {name: value for name, value in vars(record).items() if name != "seconds"}
