"""Runs as they are on disk, and those of them that differ by nothing but their seed as one group."""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dufl.errors import InputError
from dufl.experiment.compare import standard_deviation
from dufl.experiment.config import Experiment
from dufl.experiment.run_directory import FREE, RunDirectory
from dufl.experiment.stored_config import flat
from dufl.experiment.train import Run
from dufl.game.dynamics import Array
from dufl.learning.policies import POLICIES
from dufl.plugins import describe

Settings = dict[str, Any]
Summary = dict[str, Any]

_NAMES = {"dufl": "with data update", "static": "without data update"}
_SAID_ALONE = ("policy", "training.algorithm", "training.model", "data.dataset")


@dataclass(frozen=True, eq=False)
class Stored:
    """A run as it is on disk.

    Attributes:
        run: its configuration and its records.
        environment: what it was computed with.
        settings: its configuration, flat: `training.local_epochs` and so on.
        place: its run directory, to read more of it.
    """

    run: Run
    environment: dict[str, Any]
    settings: Settings
    place: RunDirectory

    @property
    def folder(self) -> Path:
        """Where its run directory is."""
        return self.place.folder

    @property
    def seed(self) -> int:
        """Of its training."""
        return self.run.experiment.training.seed

    @property
    def progress(self) -> str:
        """How far it has come."""
        rounds, over = self.run.experiment.game.num_rounds, len(self.run.records)
        return "finished" if self.run.finished else f"stopped after {over:,} of {rounds:,} rounds"


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ by nothing but their seed.

    Attributes:
        label: what sets it apart from the other groups.
        every: its runs, by seed.
    """

    label: str
    every: list[Stored]

    @cached_property
    def runs(self) -> list[Run]:
        """The runs that are shown: those that are finished; if none is, those that have begun."""
        begun = [stored.run for stored in self.every if stored.run.records]
        return [run for run in begun if run.finished] or begun

    @property
    def config(self) -> Experiment:
        """What its runs were told; the seed is that of the first."""
        return self.every[0].run.experiment

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return describe(self.config.policy)

    @property
    def family(self) -> str:
        """All settings of its runs but the policy."""
        settings = {key: value for key, value in self.every[0].settings.items() if key != "policy"}
        return json.dumps(settings, sort_keys=True)

    @property
    def finished(self) -> bool:
        """Whether the runs that are shown have finished."""
        return all(run.finished for run in self.runs)

    @property
    def rounds(self) -> int:
        """How far all the runs that are shown have come."""
        return min(len(run.records) for run in self.runs)

    @property
    def name(self) -> str:
        """The label, and how far it has come if not to the end."""
        if self.finished:
            return self.label
        return f"{self.label} (stopped after {self.rounds:,} of {self.config.game.num_rounds:,})"

    def curve(self, field: str) -> Array:
        """What a field of the records was; of shape (runs, rounds)."""
        return np.array(
            [[getattr(record, field) for record in run.records[: self.rounds]] for run in self.runs], float
        )

    @cached_property
    def summary(self) -> Summary:
        """The means over the runs of all numbers in their summaries, and the accuracy's deviation."""
        each = [run.summary() for run in self.runs]
        means = {
            name: float(np.mean([one[name] for one in each]))
            for name, value in each[0].items()
            if isinstance(value, int | float)
        }
        return means | {"accuracy_std": standard_deviation([one["final_accuracy"] for one in each])}


def read_runs(places: Iterable[Path]) -> list[Stored]:
    """The runs of some run directories, or of folders that hold run directories."""
    runs = [_read(place) for place in _directories(places)]
    if not any(stored.run.records for stored in runs):
        where = ", ".join(str(stored.folder) for stored in runs)
        raise InputError.of("RUN_DIR", "a run of at least one round", f"none in {where}")
    return runs


def group(runs: Sequence[Stored]) -> list[Group]:
    """The runs by configuration; what differs by its policy alone is side by side, with data update first."""
    together: dict[str, list[Stored]] = {}
    for stored in runs:
        together.setdefault(json.dumps(stored.settings, sort_keys=True), []).append(stored)
    parts = [sorted(part, key=lambda stored: stored.seed) for part in together.values()]
    differing = differences([part[0].settings for part in parts])
    groups = [Group(_label(part[0].settings, differing), part) for part in parts]
    families = list(dict.fromkeys(group.family for group in groups))
    begun = [group for group in groups if group.runs]
    return sorted(begun, key=lambda group: (families.index(group.family), _place(group.policy)))


def differences(settings: Sequence[Settings]) -> list[str]:
    """The keys that are not the same in all."""
    keys = list(dict.fromkeys(key for one in settings for key in one))
    return [key for key in keys if any(one.get(key) != settings[0].get(key) for one in settings)]


def _directories(places: Iterable[Path]) -> list[RunDirectory]:
    """The run directories that are meant, each once."""
    found: dict[Path, RunDirectory] = {}
    for place in places:
        here = RunDirectory.at(place)
        inside = [here] if here else _inside(place)
        if not inside:
            raise InputError.of("RUN_DIR", "a run directory, or a folder with run directories in it", place)
        for run in inside:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def _inside(place: Path) -> list[RunDirectory]:
    try:
        folders = sorted(place.iterdir())
    except OSError:
        return []
    return [run for folder in folders if (run := RunDirectory.at(folder))]


def read_run(folder: Path) -> Stored:
    """The run in a run directory."""
    place = RunDirectory.at(folder)
    if place is None:
        raise InputError.of("folder", "a run directory", folder)
    return _read(place)


def _read(place: RunDirectory) -> Stored:
    config, summary = place.load(), place.summary or {}
    weights = place.weights() if summary else {}
    early = summary.get("stopped_early") is True
    run = Run(config, place.records(), weights, place.folder, early)
    if any(len(record.volumes) == 0 for record in run.records):
        raise InputError.of(f"{place.folder}/metrics.jsonl", "with the volumes of the clients", "none")
    if len(run.records) > config.game.num_rounds:
        rule = f"of {config.game.num_rounds} rounds at most"
        raise InputError.of(f"{place.folder}/metrics.jsonl", rule, len(run.records))
    return Stored(run, place.environment(), _settings(config), place)


def _settings(experiment: Experiment) -> Settings:
    """Everything that a run depends on but its seed, by dotted keys."""
    every = flat(tomllib.loads(experiment.to_toml()))
    settings = {key: value for key, value in every.items() if key not in FREE | {"training.seed"}}
    if experiment.clients.file is not None:
        text = experiment.game.clients.to_csv()
        checksum = hashlib.sha256(text.encode()).hexdigest()[:8]
        settings["clients.file"] = f"{experiment.game.clients.size} clients, checksum {checksum}"
    return settings


def _label(settings: Settings, differing: Sequence[str]) -> str:
    """What is said of a group: its policy, and whatever else is not the same in all."""
    policy = str(settings["policy"])
    said = [_NAMES.get(policy, policy)]
    said += [Path(settings[key]).name for key in _SAID_ALONE[1:] if key in differing]
    said += [f"{_short(key)} = {settings.get(key, '–')}" for key in differing if key not in _SAID_ALONE]
    return ", ".join(said)


def _short(key: str) -> str:
    """A key without its section, if there is no other of that name."""
    return key if key.endswith(".seed") else key.rpartition(".")[2]


def _place(policy: str) -> int:
    """Ours come first."""
    return POLICIES.index(policy) if policy in POLICIES else len(POLICIES)
