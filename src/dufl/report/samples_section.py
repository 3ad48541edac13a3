"""The samples that were trained on: which classes there were when, and how samples look as they age."""

from collections.abc import Sequence
from pathlib import Path

from dufl.data.arrival import Arrival
from dufl.data.datasets import Dataset
from dufl.errors import DuflError
from dufl.experiment.files import open_regular
from dufl.experiment.output import reading
from dufl.experiment.stored import Group
from dufl.experiment.train import data_fingerprint
from dufl.plugins import is_import_path
from dufl.report.images import ageing_samples, is_picture
from dufl.report.page import Block, Section, paragraph

SHOWN = 4  # datasets at most

Key = tuple[str, str | None, str]


def datasets(groups: Sequence[Group]) -> dict[Key, Dataset | str]:
    """The datasets of the runs, or why they cannot be had."""
    return {key: _load(one) for key, one in {_key(one): one for one in groups}.items()}


def arrival_of(groups: Sequence[Group], data: dict[Key, Dataset | str]) -> Arrival | None:
    """When classes arrive, if that is known and the same for all groups and clients."""
    found = []
    for one in groups:
        dataset = data[_key(one)]
        if isinstance(dataset, str) or one.config.data.class_order == "client":
            return None
        found.append(one.config.data.simulation(dataset, one.config.game, 0).arrival)
    return found[0] if all(arrival == found[0] for arrival in found) else None


def samples_section(groups: Sequence[Group], data: dict[Key, Dataset | str]) -> Section:
    """Some samples of every dataset, fresh and aged."""
    first = {_key(one): one for one in reversed(groups)}
    blocks: list[Block] = [paragraph(_words(groups))]
    for key in list(data)[:SHOWN]:
        blocks.append(_samples(data[key], first[key]))
    return Section("Samples", "Samples, fresh and aged", blocks)


def _samples(dataset: Dataset | str, one: Group) -> str:
    if isinstance(dataset, str):
        return paragraph(f"The samples cannot be shown: {dataset}.")
    if not is_picture(dataset):
        shape = " × ".join(map(str, dataset.shape))
        return paragraph(f"The samples of {dataset.name} are no pictures: they have the shape {shape}.")
    config = one.config
    ageing = config.data.simulation(dataset, config.game, config.training.seed).ageing
    return ageing_samples(dataset, ageing, config.training.seed)


def _words(groups: Sequence[Group]) -> str:
    last = [f"{one.curve('mean_age')[:, -1].mean():,.1f} rounds {one.label}" for one in groups[:SHOWN]]
    return (
        "A sample that is kept gets noisier from round to round. In the last round, the mean age of the "
        f"samples in the buffers is {', '.join(last)}."
    )


def _key(one: Group) -> Key:
    return one.config.data.dataset, one.config.data.data_dir, str(one.every[0].environment.get("data"))


def _load(one: Group) -> Dataset | str:
    """The dataset of a group, if it can be had without running code and is the one that was trained on.

    A run directory may be a stranger's: what it names is neither imported nor shown unless it has the
    checksum that the run has written, which nobody knows of samples that he does not have.
    """
    name = one.config.data.dataset
    if is_import_path(name):
        return f"the dataset {name} is made by code, which a report does not run"
    try:
        if name.endswith(".npz"):
            with reading(Path(name)):
                open_regular(Path(name)).close()
        dataset = one.config.data.load()
    except DuflError as fault:
        return str(fault)
    if data_fingerprint(dataset) != _key(one)[2]:
        return f"the samples of {name} on this machine are not those that were trained on"
    return dataset
