"""Datasets by name, from a file, or from a function: `load_dataset("mnist")`."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from dufl.data import originals
from dufl.data.catalogue import CATALOGUE, Description
from dufl.data.numpy_files import UnknownArraysError, read_arrays
from dufl.data.own import ARRAYS, Arrays, own_samples
from dufl.data.places import Found, data_folders, find
from dufl.data.samples import Samples
from dufl.errors import InputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples to train on and to test on.

    Attributes:
        name: what it was asked for as.
        train: in the dataset's own order.
        test: likewise; never aged.
        class_names: one a label.
        whole: False if it is a part of a larger, known dataset.
        verified: whether every file has met its published checksum.
        source: the folder or file it came from; None if it came from no file.

    >>> load_dataset("digits").describe()
    'digits: 1,437 train and 360 test samples of shape (1, 8, 8), 10 classes'
    """

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    whole: bool = True
    verified: bool = False
    source: Path | None = None

    def __post_init__(self) -> None:
        train, test = self.train, self.test
        for split, samples in (("train", train), ("test", test)):
            if not isinstance(samples, Samples) or not len(samples):
                got = "none" if isinstance(samples, Samples) else type(samples).__name__
                raise InputError.of(f"{split} of dataset {self.name!r}", "Samples, at least one", got)
            if samples.features.dtype == np.float32 and not np.isfinite(samples.features).all():
                raise InputError.of(f"features to {split} of dataset {self.name!r}", "finite", "others")
            low, high = int(samples.labels.min()), int(samples.labels.max())
            if low < 0 or high >= self.num_classes:
                rule = f"from 0 to {self.num_classes - 1}, as there are {self.num_classes} class names"
                raise InputError.of(f"labels to {split} of dataset {self.name!r}", rule, f"{low} to {high}")
        if train.shape != test.shape or train.features.dtype != test.features.dtype:
            rule = f"like those to train on, {train.features.dtype} {train.shape}"
            got = f"{test.features.dtype} {test.shape}"
            raise InputError.of(f"samples to test dataset {self.name!r}", rule, got)

    @property
    def num_classes(self) -> int:
        """How many labels there are."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: channels, height, width for images."""
        return self.train.shape

    def describe(self) -> str:
        """One line: what it is, how much, and whether it is all of it."""
        of = CATALOGUE.get(self.name)
        part = f" (a subset of {of.train:,} and {of.test:,})" if of and not self.whole else ""
        counts = f"{len(self.train):,} train and {len(self.test):,} test samples"
        return f"{self.name}: {counts}{part} of shape {self.shape}, {self.num_classes} classes"


@dataclass(frozen=True)
class Listing:
    """What is known of a dataset on this machine: one line of `dufl data list`.

    `state` is "embedded", "verified", "subset", "unverified" (nothing to compare with, or not compared),
    "corrupt" or "missing". The numbers of samples are 0 for one that is missing.
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


def load_dataset(
    source: str | Path | Callable[[], "Dataset | Arrays"], data_dir: str | Path | None = None
) -> Dataset:
    """A dataset, ready to use.

    Args:
        source: a known name (digits, mnist, fmnist, svhn, cifar10, cifar100); the path of an `.npz` with
            x_train, y_train, x_test and y_test; or a function without arguments that returns a `Dataset` or
            these four arrays.
        data_dir: searched before `$DUFL_DATA` and the user's cache folder.
    """
    if callable(source):
        return own_dataset(getattr(source, "__name__", "own"), source())
    if str(source) == "digits":
        return _digits()
    if str(source) in CATALOGUE:
        return _original(_found(CATALOGUE[str(source)], data_dir))
    path = Path(source).expanduser()
    if path.suffix == ".npz":
        return _from_file(path)
    near = difflib.get_close_matches(str(source), CATALOGUE, n=1, cutoff=0.5)
    advice = (
        f"did you mean {near[0]!r}?" if near else f"known are {', '.join(CATALOGUE)}, or give an .npz file"
    )
    raise InputError(f"unknown dataset {str(source)!r}: {advice}")


def find_datasets(data_dir: str | Path | None = None, check: bool = True) -> list[Listing]:
    """What is where, for every known dataset.

    Args:
        data_dir: searched before `$DUFL_DATA` and the user's cache folder.
        check: compare the files with their checksums, which reads them.
    """
    given = None if data_dir is None else Path(data_dir)
    return [listing(name, given, check) for name in CATALOGUE]


def listing(name: str, data_dir: Path | None, check: bool) -> Listing:
    """What is where, for one dataset."""
    known = CATALOGUE[name]
    if name == "digits":
        return Listing(name, known.title, "embedded", None, known.train, known.test, True, True)
    found = find(known, data_dir)
    if found is None:
        return Listing(name, known.title, "missing", None, 0, 0, False, False)
    problem, verified = "", False
    if check:
        try:
            originals.check(found)
            verified = found.checkable
        except InputError as fault:
            problem = str(fault)
    state = (
        "corrupt" if problem else "subset" if not found.whole else "verified" if verified else "unverified"
    )
    counts = found.count("train"), found.count("test")
    return Listing(name, known.title, state, found.folder, *counts, found.whole, verified, problem)


def own_dataset(name: str, made: object, path: Path | None = None) -> Dataset:
    """The dataset that a user's function returned, or that is in a file of four arrays."""
    if isinstance(made, Dataset):
        return made
    try:
        train, test = own_samples(made)
        return Dataset(name, train, test, tuple(map(str, range(train.labels.max() + 1))), source=path)
    except InputError as error:
        raise InputError(f"dataset {name if path is None else path}: {error}") from None


def _from_file(path: Path) -> Dataset:
    try:
        held = read_arrays(path, ARRAYS)
    except UnknownArraysError as error:
        if not {"x", "y"} <= error.there:
            raise
        advice = "a recorded stream is no dataset until it is split into samples to train and to test on"
        raise InputError(f"{error}; {advice}") from None
    return own_dataset(path.stem, tuple(held[name] for name in ARRAYS), path)


def _original(found: Found) -> Dataset:
    known = found.description
    train, test = originals.read(found)
    return Dataset(known.name, train, test, known.class_names, found.whole, found.checkable, found.folder)


def _digits() -> Dataset:
    """scikit-learn's 1,797 digits of 8 by 8, 0..16 grey levels; every fifth sample is for testing.

    They are read from the file that scikit-learn carries: importing it would take a second and more.
    """
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",", dtype=np.int64)
    features = np.round(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    tested = np.arange(len(features)) % 5 == 0
    every = Samples(features, table[:, -1])
    names = CATALOGUE["digits"].class_names
    return Dataset("digits", every.take(~tested), every.take(tested), names, verified=True)


def _found(known: Description, data_dir: str | Path | None) -> Found:
    given = None if data_dir is None else Path(data_dir).expanduser()
    if given is not None and not given.is_dir():
        raise InputError.of("data_dir", "a folder that exists", given)
    found = find(known, given)
    if found is None:
        looked = ", ".join(map(str, data_folders(given)))
        raise InputError(f"{known.name} is not there: looked in {looked}; run `dufl data fetch {known.name}`")
    return found
