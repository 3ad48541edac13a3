"""Read runs from disk, and group runs that differ only in the seed."""

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
from dufl.experiment.config import Experiment
from dufl.experiment.findings import Scored
from dufl.experiment.recorded import score_of
from dufl.experiment.run_directory import FREE, RunDirectory
from dufl.experiment.statistics import standard_deviation
from dufl.experiment.stored_config import flat
from dufl.experiment.train import Run
from dufl.game.dynamics import Array
from dufl.game.remaining import LEAST_ROUNDS
from dufl.learning.policies import POLICIES, parse_name
from dufl.learning.replanning import KEY as REPLAN
from dufl.plugins import describe

Settings = dict[str, Any]
Summary = dict[str, Any]

BASELINE = "baseline_payment"
_NAMES = {"dufl": "with data update", "static": "without data update"}
_METHOD = ("training.algorithm", "policy", "data.discard")
_WITHOUT_KEY = ("policy", "training.algorithm", "training.model", "data.dataset")


@dataclass(frozen=True, eq=False)
class Stored:
    """A run that was read from disk.

    Attributes:
        run: the configuration and the records.
        environment: the software and hardware that computed it.
        settings: the configuration with dotted keys, such as `training.local_epochs`.
        place: the run directory.
    """

    run: Run
    environment: dict[str, Any]
    settings: Settings
    place: RunDirectory

    @property
    def folder(self) -> Path:
        """The path of the run directory."""
        return self.place.folder

    @property
    def seed(self) -> int:
        """The training seed."""
        return self.run.experiment.training.seed

    @property
    def progress(self) -> str:
        """The state of the run, for tables."""
        return "finished" if self.run.finished else stopped(len(self.run.records), self.run.experiment)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in the seed.

    Attributes:
        label: the settings that distinguish it from the other groups.
        every: all of its runs, sorted by seed.
    """

    label: str
    every: list[Stored]

    @cached_property
    def runs(self) -> list[Run]:
        """The runs to show: the finished runs or, if there are none, all that have begun."""
        begun = [stored.run for stored in self.every if stored.run.records]
        return [run for run in begun if run.finished] or begun

    @property
    def config(self) -> Experiment:
        """The experiment of the first run; the others differ only in the seed."""
        return self.every[0].run.experiment

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return describe(self.config.policy)

    @property
    def family(self) -> str:
        """All settings except the policy and its money, and when the policy "dufl" plans again."""
        own = ("policy", BASELINE, REPLAN)
        settings = {key: v for key, v in self.every[0].settings.items() if key not in own}
        return json.dumps(settings, sort_keys=True)

    @property
    def finished(self) -> bool:
        """Whether the runs to show have finished."""
        return all(run.finished for run in self.runs)

    @property
    def rounds(self) -> int:
        """The number of rounds that all runs to show have completed."""
        return min(len(run.records) for run in self.runs)

    @property
    def name(self) -> str:
        """The label, with the number of completed rounds if the runs have not finished."""
        if self.finished:
            return self.label
        return f"{self.label} ({stopped(self.rounds, self.config).removesuffix(' rounds')})"

    @property
    def scored(self) -> Scored:
        """The scores of the runs, by seed; its problem are all settings that do not belong to the method."""
        settings = self.every[0].settings
        parts = tuple(str(settings[key]) for key in _METHOD)
        kept = {k: v for k, v in settings.items() if k not in _METHOD and not k.startswith("leader.")}
        each = {run.experiment.training.seed: run.summary() for run in self.runs}
        metric = score_of(next(iter(each.values())))
        scores = {seed: float(summary[metric]) for seed, summary in each.items()}
        problem = json.dumps(kept, sort_keys=True)
        return Scored(self.label, problem, ", ".join(parts), parts, scores, metric)

    def curve(self, field: str) -> Array:
        """A field of the records, of shape (runs, rounds)."""
        return np.array(
            [[getattr(record, field) for record in run.records[: self.rounds]] for run in self.runs], float
        )

    @cached_property
    def summary(self) -> Summary:
        """The means of the runs' summaries, and the standard deviation of the accuracy or of the RMSE.

        On recorded data, it is that of the mean over the rounds.
        """
        each = [run.summary() for run in self.runs]
        means = {
            name: float(np.mean([one[name] for one in each]))
            for name, value in each[0].items()
            if isinstance(value, int | float) and all(name in one for one in each)
        }
        score = score_of(each[0])
        name = "rmse_std" if "rmse" in score else "accuracy_std"
        return means | {name: standard_deviation([one[score] for one in each])}


def read_runs(places: Iterable[Path]) -> list[Stored]:
    """Read the runs of run directories, or of directories that contain run directories."""
    runs = [_read(place) for place in _directories(places)]
    if not any(stored.run.records for stored in runs):
        where = ", ".join(str(stored.folder) for stored in runs)
        raise InputError.of("RUN_DIR", "a run of at least one round", f"none in {where}")
    return runs


def group(runs: Sequence[Stored]) -> list[Group]:
    """Group runs by configuration. Groups that differ only in the policy are adjacent, "dufl" first."""
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
    """The keys whose values are not the same in all settings."""
    keys = list(dict.fromkeys(key for one in settings for key in one))
    return [key for key in keys if any(one.get(key) != settings[0].get(key) for one in settings)]


def _directories(places: Iterable[Path]) -> list[RunDirectory]:
    """The run directories at some paths, without duplicates."""
    by_path: dict[Path, RunDirectory] = {}
    for place in places:
        here = RunDirectory.at(place)
        inside = [here] if here else _inside(place)
        if not inside:
            raise InputError.of("RUN_DIR", "a run directory, or a folder with run directories in it", place)
        for run in inside:
            by_path.setdefault(run.folder.resolve(), run)
    return list(by_path.values())


def _inside(place: Path) -> list[RunDirectory]:
    try:
        folders = sorted(place.iterdir())
    except OSError:
        return []
    return [run for folder in folders if (run := RunDirectory.at(folder))]


def read_run(folder: Path) -> Stored:
    """Read the run in a run directory."""
    place = RunDirectory.at(folder)
    if place is None:
        raise InputError.of("folder", "a run directory", folder)
    return _read(place)


def _read(place: RunDirectory) -> Stored:
    config, summary = place.load(), place.summary or {}
    weights = place.weights() if summary else {}
    early = summary.get("stopped_early") is True
    plan, agreed = place.predicted_plan(config), place.agreed_plan(config)
    run = Run(config, place.records(), weights, place.folder, early, plan, agreed=agreed)
    if any(len(record.volumes) == 0 for record in run.records):
        raise InputError.of(f"{place.folder}/metrics.jsonl", "with the volumes of the clients", "none")
    total = config.total_rounds
    if total is not None and len(run.records) > total:
        rule = f"of at most {total} rounds"
        raise InputError.of(f"{place.folder}/metrics.jsonl", rule, len(run.records))
    for record in run.records:
        if record.replan and not 0 < record.round <= (total or 0) - LEAST_ROUNDS:
            rule = f"with new plans for at least {LEAST_ROUNDS} rounds"
            raise InputError.of(f"{place.folder}/metrics.jsonl", rule, f"one in round {record.round}")
    return Stored(run, place.environment(), _settings(config, run.recorded), place)


def stopped(over: int, experiment: Experiment) -> str:
    """The state of a run that has not finished, in words."""
    if experiment.total_rounds is None:
        return f"after {over:,} rounds of a service"
    return f"stopped after {over:,} of {experiment.total_rounds:,} rounds"


def _settings(experiment: Experiment, recorded: bool) -> Settings:
    """All settings that affect the results except the seed, by dotted key.

    On recorded data, clients hold what they recorded at first, and that depends on the seed if samples are
    dealt: volumes of single clients are left out.
    """
    every = flat(tomllib.loads(experiment.to_toml()))
    settings = {key: value for key, value in every.items() if key not in FREE | {"training.seed"}}
    clients = experiment.game.clients
    if recorded:
        clients = clients.holding(np.ones(clients.size))
        if isinstance(settings.get("clients.initial_volume"), list):
            settings["clients.initial_volume"] = "as recorded"
    if experiment.clients.file is not None:
        text = clients.to_csv()
        checksum = hashlib.sha256(text.encode()).hexdigest()[:8]
        settings["clients.file"] = f"{experiment.game.clients.size} clients, checksum {checksum}"
    return settings


def _label(settings: Settings, differing: Sequence[str]) -> str:
    """The label of a group: its policy and the settings that differ between groups."""
    policy = str(settings["policy"])
    parts = [_NAMES.get(policy, policy)]
    parts += [Path(settings[key]).name for key in _WITHOUT_KEY[1:] if key in differing]
    other = [key for key in differing if key not in _WITHOUT_KEY and (key != REPLAN or policy == "dufl")]
    other = [key for key in other if key != BASELINE or key in settings]
    parts += [f"{_short(key)} = {settings.get(key, '–')}" for key in other]
    return ", ".join(parts)


def _short(key: str) -> str:
    """A key without its section, unless the name is ambiguous."""
    return key if key.endswith(".seed") else key.rpartition(".")[2]


def _place(policy: str) -> int:
    """The position of a policy: built-in policies come first."""
    name = parse_name(policy)
    if policy in POLICIES or name is None:
        return POLICIES.index(policy) if name else len(POLICIES)
    alike = [parsed is not None and parsed.kind == name.kind for parsed in map(parse_name, POLICIES)]
    return max(i for i, is_alike in enumerate(alike) if is_alike)
