"""Load a dataset or a recording by name, from a file or from a function, and list those on this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from dufl.data.datasets.catalogue import CATALOGUE, Description
from dufl.data.datasets.dataset import ARRAYS, Arrays, Dataset, own_dataset
from dufl.data.datasets.image_files import read_dataset, verify_dataset
from dufl.data.datasets.known_recordings import RECORDINGS, find_recording, verify_known
from dufl.data.datasets.location import Found, data_folders, find
from dufl.data.datasets.recordings import SUFFIXES, is_recording_source, load_recording, recording_suffix
from dufl.data.datasets.tables import Columns
from dufl.data.datasets.untrusted_files import UnknownArraysError, read_arrays
from dufl.data.recording import Recording, Task
from dufl.data.samples import Samples
from dufl.errors import InputError
from dufl.inputs import nearest

ImageName = Literal["digits", "mnist", "fmnist", "svhn", "cifar10", "cifar100"]
RecordingName = Literal["weather", "insects", "elec2", "keystroke", "rialto", "outdoor"]


@overload
def load_dataset(
    source: ImageName | Callable[[], Dataset | Arrays], data_dir: str | Path | None = None
) -> Dataset: ...
@overload
def load_dataset(
    source: RecordingName | Callable[[], Recording], data_dir: str | Path | None = None
) -> Recording: ...
@overload
def load_dataset(
    source: str | Path | Callable[[], Any],
    data_dir: str | Path | None = None,
    columns: Columns = Columns(),  # noqa: B008, it is frozen
    task: Task = "classification",
) -> Dataset | Recording: ...
def load_dataset(
    source: str | Path | Callable[[], Any],
    data_dir: str | Path | None = None,
    columns: Columns = Columns(),  # noqa: B008, it is frozen
    task: Task = "classification",
) -> Dataset | Recording:
    """Load a dataset or a recording.

    Args:
        source: a known name (digits, mnist, fmnist, svhn, cifar10 or cifar100; weather, insects, elec2,
            keystroke, rialto or outdoor); the path of an `.npz` with x_train, y_train, x_test and y_test; or
            a function without arguments that returns a `Dataset` or these four arrays. A file with times, or
            a function that returns a recording, is loaded as by `load_recording`.
        data_dir: searched before `$DUFL_DATA` and the user's cache folder.
        columns: of a recording in a table; see `load_recording`.
        task: of a recording; see `load_recording`.
    """
    if callable(source):
        called, made = getattr(source, "__name__", "own"), source()
        if is_recording_source(made):
            return (
                made
                if isinstance(made, Recording)
                else load_recording(made, columns, task).renamed(called, None)
            )
        return own_dataset(called, made)
    name = str(source)
    if name == "digits":
        return _digits()
    if name in CATALOGUE:
        found, known = _found(CATALOGUE[name], data_dir), CATALOGUE[name]
        train, test = read_dataset(found)
        return Dataset(name, train, test, known.class_names, found.whole, found.checkable, found.folder)
    path = Path(source).expanduser()
    if recording_suffix(path) == ".npz":
        return _from_file(path, columns, task)
    if name in RECORDINGS or recording_suffix(path):
        return load_recording(source, columns, task, data_dir)
    names = [*CATALOGUE, *RECORDINGS]
    near = "" if path.suffix else nearest(name, names)
    listed = f"known are {', '.join(names)}, or give a file of type {', '.join(SUFFIXES)}"
    advice = f"did you mean {near!r}?" if near else listed
    raise InputError(f"unknown dataset {name!r}: {advice}", field="dataset", value=name)


@dataclass(frozen=True)
class Listing:
    """The files of a known dataset or recording on this machine: one row of `dufl data list`.

    `state` is "embedded", "verified", "subset", "unverified" (no checksums, or not compared with them),
    "corrupt" or "missing". `train` and `test` are numbers of samples, 0 if the dataset is missing. `kind` is
    "images" or "recording"; a recording has `records` in place of training and test samples.
    """

    name: str
    title: str
    state: str
    where: Path | None
    train: int
    test: int
    whole: bool
    verified: bool
    problem: str = ""
    kind: Literal["images", "recording"] = "images"
    records: int = 0


def find_datasets(data_dir: str | Path | None = None, check: bool = True) -> list[Listing]:
    """One listing per known dataset, then one per known recording.

    Args:
        data_dir: searched before `$DUFL_DATA` and the user's cache folder.
        check: whether to compare the files with their checksums, which reads them.
    """
    folder = None if data_dir is None else Path(data_dir)
    return [listing(name, folder, check) for name in (*CATALOGUE, *RECORDINGS)]


def listing(name: str, data_dir: Path | None, check: bool) -> Listing:
    """The listing of one dataset or recording; see `find_datasets`."""
    if name in RECORDINGS:
        return _recording_listing(name, data_dir, check)
    known = CATALOGUE[name]
    if name == "digits":
        return Listing(name, known.title, "embedded", None, known.train, known.test, True, True)
    found = find(known, data_dir)
    if found is None:
        return Listing(name, known.title, "missing", None, 0, 0, False, False)
    problem, verified = "", False
    if check:
        try:
            verify_dataset(found)
            verified = found.checkable
        except InputError as error:
            problem = str(error)
    state = (
        "corrupt" if problem else "subset" if not found.whole else "verified" if verified else "unverified"
    )
    counts = found.count("train"), found.count("test")
    return Listing(name, known.title, state, found.folder, *counts, found.whole, verified, problem)


def _recording_listing(name: str, data_dir: Path | None, check: bool) -> Listing:
    known, path = RECORDINGS[name], find_recording(RECORDINGS[name], data_dir)
    if path is None:
        return Listing(name, known.title, "missing", None, 0, 0, False, False, kind="recording")
    if known.embedded:
        records = known.records
        return Listing(name, known.title, "embedded", None, 0, 0, True, True, "", "recording", records)
    problem, verified = "", False
    if check:
        try:
            verified = verify_known(known, path)
        except InputError as error:
            problem = str(error)
    state = "corrupt" if problem else "verified" if verified else "unverified"
    records = 0 if problem else known.records
    return Listing(name, known.title, state, path, 0, 0, not problem, verified, problem, "recording", records)


def _from_file(path: Path, columns: Columns, task: Task) -> Dataset | Recording:
    try:
        arrays = read_arrays(path, ARRAYS)
    except UnknownArraysError as error:
        if {"x", "y", "time"} <= error.names and "x_train" not in error.names:
            return load_recording(path, columns, task)
        if not {"x", "y"} <= error.names:
            raise
        advice = "add an array `time` if it is a recording, or split it into training and test samples"
        raise InputError(f"{error}; {advice}", field=error.field, rule=error.rule) from None
    return own_dataset(path.stem, tuple(arrays[name] for name in ARRAYS), path)


def _digits() -> Dataset:
    """scikit-learn's 1,797 digits of 8 by 8 pixels with 17 grey levels; every fifth is a test sample.

    They are read from scikit-learn's own file: importing scikit-learn takes a second and more.
    """
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",", dtype=np.int64)
    features = np.round(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    test = np.arange(len(features)) % 5 == 0
    samples = Samples(features, table[:, -1])
    names = CATALOGUE["digits"].class_names
    return Dataset("digits", samples.take(~test), samples.take(test), names, verified=True)


def _found(known: Description, data_dir: str | Path | None) -> Found:
    folder = None if data_dir is None else Path(data_dir).expanduser()
    if folder is not None and not folder.is_dir():
        raise InputError.of("data_dir", "a folder that exists", folder)
    found = find(known, folder)
    if found is None:
        searched = ", ".join(map(str, data_folders(folder)))
        message = f"{known.name} was not found in {searched}; run `dufl data fetch {known.name}`"
        raise InputError(message, field="dataset", value=known.name)
    return found
