"""The setup of the report: the samples, every run, configuration, versions, and how to run it again."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dufl.data.arrival import Arrival
from dufl.data.datasets import Dataset
from dufl.data.datasets.recordings import SUFFIXES
from dufl.data.recording import Recording
from dufl.errors import DuflError
from dufl.experiment.compare import slug
from dufl.experiment.files import open_regular
from dufl.experiment.output import reading
from dufl.experiment.recorded import over_time, periods_of, time_range
from dufl.experiment.stored import Group, Stored, differences
from dufl.experiment.train import data_fingerprint
from dufl.formatting import duration, percent
from dufl.plugins import describe, is_description, is_import_path
from dufl.report.measure import UNKNOWN, Measure, measure_of
from dufl.report.page import Block, Cell, Code, Details, Heading, Paragraph, Section, Table
from dufl.report.planning import is_negotiated, is_on_flower
from dufl.report.sample_images import ageing_samples, is_image

DATASETS = 4  # shown at most
FILES = 8  # configurations that are shown at most
ENVIRONMENTS = 4

Key = tuple[str, str | None, str]
Datasets = dict[Key, Dataset | Recording | str]


def datasets(groups: Sequence[Group]) -> Datasets:
    """The datasets of the runs, or why they cannot be shown."""
    return {key: _load(one) for key, one in {_key(one): one for one in groups}.items()}


def arrival_of(groups: Sequence[Group], data: Datasets) -> Arrival | None:
    """When classes arrive, if that is known and the same for all groups and clients."""
    arrivals = []
    for one in groups:
        dataset = data[_key(one)]
        if not isinstance(dataset, Dataset) or one.config.data.class_order == "client":
            return None
        arrivals.append(one.config.data.arrival(dataset, one.config.game))
    return arrivals[0] if all(arrival == arrivals[0] for arrival in arrivals) else None


def samples_section(groups: Sequence[Group], data: Datasets) -> Section:
    """Some samples of every dataset, fresh and aged; of recordings, what they are."""
    first = {_key(one): one for one in reversed(groups)}
    if all(run.recorded for one in groups for run in one.runs):
        return _recordings_section(groups, data, first)
    ages = [f"{one.curve('mean_age')[:, -1].mean():,.1f} rounds {one.label}" for one in groups[:DATASETS]]
    text = (
        "Samples that are kept become noisier with age. In the last round, the mean age of the samples in "
        f"the buffers is {', '.join(ages)}."
    )
    samples = [_samples(data[key], first[key]) for key in list(data)[:DATASETS]]
    return Section("Samples", "Samples, fresh and aged", [Paragraph(text), *samples])


def _recordings_section(groups: Sequence[Group], data: Datasets, first: dict[Key, Group]) -> Section:
    """What the recordings are, and how their time was divided."""
    text = "Samples are used when they were recorded, and do not change with age."
    blocks: list[Block] = [Paragraph(text)]
    for key in list(data)[:DATASETS]:
        blocks += [_samples(data[key], first[key]), *_divided(first[key])]
    return Section("Samples", "Samples, as recorded", blocks)


def _divided(one: Group) -> list[Block]:
    config, periods = one.config.data, periods_of(one.runs[0].records)
    sizes = [period.samples for period in periods]
    length = "equally long" if config.periods == "time" else "of equally many samples"
    known = f"The first {percent(config.warm_up, 0)} is known before round 0. "
    return [
        Paragraph(
            f"{known}The rest, {time_range(periods)}, is divided into {one.config.game.num_rounds:,} "
            f"periods, {length}, one per round, with {min(sizes):,} to {max(sizes):,} samples. The model of "
            "a round is tested on its period before anybody has trained on it."
        )
    ]


def _samples(dataset: Dataset | Recording | str, one: Group) -> Block:
    if isinstance(dataset, str):
        return Paragraph(f"The samples cannot be shown: {dataset}.")
    if isinstance(dataset, Recording):
        return Paragraph(f"{dataset.describe()}.")
    if not is_image(dataset):
        shape = " × ".join(map(str, dataset.shape))
        return Paragraph(f"The samples of {dataset.name} are not images: their shape is {shape}.")
    config = one.config
    return ageing_samples(dataset, config.data.ageing(config.game), config.training.seed)


def _key(one: Group) -> Key:
    return one.config.data.dataset, one.config.data.data_dir, str(one.every[0].environment.get("data"))


def _load(one: Group) -> Dataset | Recording | str:
    """The dataset of a group, if it can be loaded without running code and is the one that was trained on.

    A run directory may come from a stranger: a dataset that it names is neither imported nor shown unless it
    has the checksum in the run directory, which nobody can know without having the samples.
    """
    name = one.config.data.dataset
    if is_import_path(name) or is_description(name):
        return f"the dataset {name} is made by code, which a report does not run"
    try:
        if name.endswith(SUFFIXES):
            with reading(Path(name)):
                open_regular(Path(name)).close()
        dataset = one.config.data.load()
    except DuflError as error:
        return str(error)
    if data_fingerprint(dataset) != _key(one)[2]:
        return f"the samples of {name} on this machine differ from those that were trained on"
    return dataset


def setup_section(runs: Sequence[Stored], groups: Sequence[Group], in_folder: bool) -> Section:
    """Runs, configuration, versions and commands."""
    files = [
        Details(f"Configuration: {one.label}", Code(_file(one), "Configuration")) for one in groups[:FILES]
    ]
    more = f"{len(groups) - FILES} more are in the run directories." if len(groups) > FILES else ""
    blocks: list[Block] = [
        _runs_table(runs),
        *_differences(groups),
        Heading("Configuration and versions"),
        Paragraph("With all defaults and changes; runs of one group differ only in their seed."),
        *files,
        *([Paragraph(more)] if more else []),
        Details("Versions and machine", _versions(runs)),
        Heading("How to run it again"),
        *_again(runs, groups, in_folder),
    ]
    return Section("Runs", "Runs and how to reproduce them", blocks)


def _runs_table(runs: Sequence[Stored]) -> Table:
    measure = measure_of([stored.run for stored in runs if stored.run.records])
    score = "accuracy (%)" if measure is None else f"mean {measure.head}"
    heads = ("directory", "algorithm", "policy", "seed", "state", score, "time", "weights")
    rows = [_run_row(one, measure) for one in runs]
    return Table("All runs; equal weights have the same fingerprint", heads, rows)


def _run_row(stored: Stored, measure: Measure | None) -> list[Cell]:
    experiment, records = stored.run.experiment, stored.run.records
    training = experiment.training
    summary = stored.place.summary or {}
    accuracy = 100 * records[-1].accuracy if records else float("nan")
    score: Cell = (f"{accuracy:.2f}" if records else "–", accuracy)
    if measure is not None:
        value = over_time(records, stored.run.regression).get(measure.mean, math.nan)
        score = (measure.cell(value), measure.drawn(value)) if value == value else UNKNOWN
    seconds = sum(record.seconds for record in records)
    return [
        name_of(stored),
        describe(training.algorithm),
        describe(experiment.policy),
        (f"{training.seed}", training.seed),
        stored.progress,
        score,
        (duration(seconds), seconds),
        str(summary.get("fingerprint", "")) or "–",
    ]


def name_of(stored: Stored) -> str:
    """The name of its run directory."""
    return stored.folder.resolve().name


def _file(one: Group) -> str:
    return one.every[0].place.manifest.read_file("config.toml").decode()


def _differences(groups: Sequence[Group]) -> list[Table]:
    """A table of the settings that differ between groups, if there are others than the policy."""
    settings = [one.every[0].settings for one in groups]
    keys = differences(settings)
    if not set(keys) - {"policy"}:
        return []
    rows: list[list[Cell]] = [
        [one.label, *(str(values.get(key, "–")) for key in keys)]
        for one, values in zip(groups, settings, strict=True)
    ]
    return [Table("Settings that differ between the runs", ("runs", *keys), rows)]


def _versions(runs: Sequence[Stored]) -> Table:
    """Versions and machine, one column per environment."""
    environments: list[dict[str, str]] = []
    for stored in runs:
        flat = _flat(stored.environment)
        if flat not in environments:
            environments.append(flat)
    names = list(dict.fromkeys(name for flat in environments for name in flat))
    several = len(environments) > 1
    heads = ("", *(f"value ({i})" if several else "value" for i, _ in enumerate(environments, 1)))
    rows: list[list[Cell]] = [[name, *(flat.get(name, "–") for flat in environments)] for name in names]
    width = 1 + ENVIRONMENTS
    rows = [row[:width] for row in rows]
    return Table("Software, machine and samples", heads[:width], rows, sortable=False)


def _flat(environment: dict[str, Any]) -> dict[str, str]:
    packages = environment.get("packages")
    known = packages if isinstance(packages, dict) else {}
    rest = {key: value for key, value in environment.items() if key not in ("packages", "seed", "data")}
    samples = {"checksum of the samples": environment["data"]} if "data" in environment else {}
    return {key: str(value) for key, value in (known | rest | samples).items()}


def _again(runs: Sequence[Stored], groups: Sequence[Group], in_folder: bool) -> list[Block]:
    compared = _comparison(runs, groups) if in_folder else None
    if compared:
        where = f"In the folder that holds the {len(runs)} run directories:"
        return [Paragraph(where), Code(f"{compared}\ndufl report again\n", "Commands")]
    where = "In its run directory:" if len(runs) == 1 else "In each of the run directories:"
    commands = "".join(f"{line}\n" for line in dict.fromkeys(map(_command, runs)))
    return [Paragraph(where), Code(f"{commands}dufl report again\n", "Commands")]


def _command(stored: Stored) -> str:
    if is_on_flower(stored):
        return f"dufl flower simulate config.toml{' --negotiate' * is_negotiated(stored)} --out again"
    return "dufl train config.toml --out again"


def _comparison(runs: Sequence[Stored], groups: Sequence[Group]) -> str | None:
    """The `dufl compare` that makes these runs, if there is one."""
    keys = differences([one.every[0].settings for one in groups])
    if set(keys) - {"policy", "training.algorithm"} or any(map(is_on_flower, runs)):
        return None
    volumes = {stored.run.experiment.game.clients.initial_volume.tobytes() for stored in runs}
    if len(volumes) > 1:  # recorded data that was dealt by the seed
        return None
    seeds = sorted({stored.seed for stored in runs})
    algorithms = list(dict.fromkeys(describe(one.config.training.algorithm) for one in groups))
    policies = list(dict.fromkeys(one.policy for one in groups))
    wanted = {f"{slug(a)}-{slug(p)}-{s}" for a in algorithms for p in policies for s in seeds}
    consecutive = seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    if not consecutive or wanted != {name_of(stored) for stored in runs}:
        return None
    first = next(stored for stored in runs if stored.seed == seeds[0])
    options = {"--algorithms": ",".join(algorithms), "--policies": ",".join(policies), "--seeds": len(seeds)}
    named = [f"{name} {shlex.quote(str(value))}" for name, value in options.items()]
    return " ".join(["dufl compare", shlex.quote(f"{name_of(first)}/config.toml"), *named, "--out again"])
