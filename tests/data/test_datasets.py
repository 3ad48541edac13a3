"""Datasets: the real ones, the embedded one, one's own; where they are looked for, and how they fail."""

import gzip
import hashlib
import io
import lzma
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl import InputError
from dufl.data.datasets import Dataset, find_datasets, load_dataset
from dufl.data.datasets.catalogue import CATALOGUE, Edition, File
from dufl.data.datasets.location import cache_folder, data_folders
from dufl.data.recording import Recording
from dufl.data.samples import Samples
from federations import federation_of
from federations import small as small_config
from real_data import FOLDERS, REAL, real


@cache
def loaded(name: str) -> Dataset:
    dataset = load_dataset(name, real(name) if name != "digits" else None)
    assert isinstance(dataset, Dataset)
    return dataset


# By dataset and number of training samples: smallest and largest class, first labels, mean and deviation of
# the channels in [0, 1]. Those of whole datasets are well known; those of subsets were computed from the
# files with the code in their README.
TRAIN: dict[tuple[str, int], tuple[tuple[int, int], list[int], list[float], list[float]]] = {
    ("mnist", 60_000): ((5_421, 6_742), [5, 0, 4, 1, 9], [0.1307], [0.3081]),
    ("fmnist", 60_000): ((6_000, 6_000), [9, 0, 0, 3, 0], [0.2860], [0.3530]),
    ("svhn", 20_000): (
        (1_314, 3_784),
        [1, 9, 2, 3, 2],
        [0.4392, 0.4456, 0.4746],
        [0.1995, 0.2024, 0.1978],
    ),
    ("cifar10", 20_000): (
        (1_925, 2_042),
        [6, 9, 9, 4, 1],
        [0.4928, 0.4830, 0.4470],
        [0.2474, 0.2441, 0.2621],
    ),
    ("cifar10", 50_000): (
        (5_000, 5_000),
        [6, 9, 9, 4, 1],
        [0.4914, 0.4822, 0.4465],
        [0.2470, 0.2435, 0.2616],
    ),
    ("cifar100", 20_000): (
        (167, 234),
        [19, 29, 0, 11, 1],
        [0.5061, 0.4863, 0.4415],
        [0.2679, 0.2562, 0.2755],
    ),
}
TEST = {
    ("mnist", 10_000): ((892, 1_135), [7, 2, 1, 0, 4]),
    ("fmnist", 10_000): ((1_000, 1_000), [9, 2, 1, 1, 6]),
    ("svhn", 5_000): ((316, 988), [5, 2, 1, 0, 6]),
    ("cifar10", 10_000): ((1_000, 1_000), [3, 8, 8, 0, 6]),
    ("cifar100", 5_000): ((36, 60), [49, 33, 72, 51, 71]),
}


def raw(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The test samples of a dataset, read by the code in the data's README."""
    if name in ("mnist", "fmnist"):
        folder = real(name) / FOLDERS[name]
        images = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
        pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
        return pixels, np.frombuffer(labels, np.uint8, offset=8)
    (path,) = (real(name) / FOLDERS[name]).glob("test*.bin.xz")  # whole, or the first 5,000
    labels_each = {"cifar10": 1, "cifar100": 2}[name]
    records = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(-1, 3_072 + labels_each)
    return records[:, labels_each:].reshape(-1, 3, 32, 32), records[:, labels_each - 1]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_real_dataset(name: str) -> None:
    dataset, known = loaded(name), CATALOGUE[name]
    assert dataset.shape == dataset.test.shape == known.shape
    assert dataset.num_classes == len(known.class_names)
    assert dataset.whole == ((len(dataset.train), len(dataset.test)) == (known.train, known.test))
    assert dataset.source == real(name) / FOLDERS[name]
    for samples in (dataset.train, dataset.test):
        assert samples.features.dtype == np.uint8
        assert samples.features.flags.c_contiguous
        assert samples.labels.dtype == np.int64
        assert set(np.unique(samples.labels)) == set(range(dataset.num_classes))
    train, test = TRAIN.get((name, len(dataset.train))), TEST.get((name, len(dataset.test)))
    if train is None or test is None:
        pytest.skip(f"no statistics are known of {dataset.describe()}")
    limits, first, mean, deviation = train
    counts = np.bincount(dataset.train.labels), np.bincount(dataset.test.labels)
    assert [(c.min(), c.max()) for c in counts] == [limits, test[0]]
    assert dataset.train.labels[:5].tolist() == first
    assert dataset.test.labels[:5].tolist() == test[1]
    grey = np.arange(256) / 255
    for channel in range(known.shape[0]):
        pixels = dataset.train.features[:, channel].ravel()
        share = np.bincount(pixels, minlength=256) / len(pixels)
        average = share @ grey
        assert average == pytest.approx(mean[channel], abs=5e-5)
        assert np.sqrt(share @ (grey - average) ** 2) == pytest.approx(deviation[channel], abs=5e-5)


# of the whole dataset as its authors publish them, of the subset from the data's README; label 0 is digit 0
SVHN_DIGITS = {
    73_257: [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
    26_032: [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
    20_000: [1367, 3784, 2890, 2326, 2077, 1889, 1501, 1520, 1314, 1332],
    5_000: [339, 988, 775, 561, 496, 450, 381, 376, 316, 318],
}


def test_svhn_per_digit() -> None:
    for samples in (loaded("svhn").train, loaded("svhn").test):
        assert np.bincount(samples.labels).tolist() == SVHN_DIGITS[len(samples)]


@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10", "cifar100"])
def test_every_pixel_as_another_way_reads_it(name: str) -> None:
    images, labels = raw(name)
    np.testing.assert_array_equal(loaded(name).test.features, images)
    np.testing.assert_array_equal(loaded(name).test.labels, labels)


def test_svhn_pixels_as_another_way_reads_them() -> None:
    path = real("svhn") / "svhn" / "test_32x32.first5000.npz.xz"
    if not path.is_file():
        pytest.skip("SVHN is there as .mat files")
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as arrays:
        np.testing.assert_array_equal(loaded("svhn").test.features.transpose(0, 2, 3, 1), arrays["X"])


def test_class_names_are_those_of_the_files() -> None:
    for name, file in (("cifar10", "label_names.txt"), ("cifar100", "fine_label_names.txt")):
        names = (real(name) / FOLDERS[name] / file).read_text().split()
        assert list(CATALOGUE[name].class_names) == names


def test_what_is_whole_and_what_is_verified() -> None:
    """Original files are verified; the first samples of a file have no published checksum."""
    for name, folder in FOLDERS.items():
        if not (REAL / folder).is_dir():
            continue
        dataset, cut = loaded(name), any((REAL / folder).glob("*.first*"))
        assert dataset.verified is not cut
        assert not (dataset.whole and cut)
        part = f"(a subset of {CATALOGUE[name].train:,} and {CATALOGUE[name].test:,})"
        assert (part in dataset.describe()) is not dataset.whole


def test_find_datasets_reads_nothing_unless_asked() -> None:
    folder = real("cifar10")
    quick = {row.name: row for row in find_datasets(folder, check=False)}
    assert (quick["digits"].state, quick["digits"].where) == ("embedded", None)
    state = "unverified" if loaded("cifar10").whole else "subset"
    assert (quick["cifar10"].state, quick["cifar10"].verified) == (state, False)
    for name, row in quick.items():
        assert row.name == name
        if row.kind == "images" and row.where:
            assert (row.train, row.test) == (len(loaded(name).train), len(loaded(name).test))


def test_digits_are_always_there() -> None:
    from sklearn.datasets import load_digits

    dataset, again = loaded("digits"), load_dataset("digits")
    assert dataset.describe() == "digits: 1,437 train and 360 test samples of shape (1, 8, 8), 10 classes"
    assert (dataset.train.features.min(), dataset.train.features.max()) == (0, 255)
    np.testing.assert_array_equal(dataset.test.features, again.test.features)
    bunch = load_digits()
    np.testing.assert_array_equal(dataset.test.labels, bunch.target[::5])
    np.testing.assert_allclose(dataset.test.to_float()[:, 0], bunch.images[::5] / 16, atol=1 / 500)
    assert (np.bincount(dataset.train.labels) >= 100).all()


# a small dataset in the place of CIFAR-10, so that every form of it can be made and damaged


def batch(seed: int, count: int = 3) -> bytes:
    records = np.random.default_rng(seed).integers(0, 256, (count, 3_073), np.uint8)
    records[:, 0] %= 10
    return records.tobytes()


BATCHES = {"data_batch_1.bin": batch(1), "data_batch_2.bin": batch(2), "test_batch.bin": batch(3)}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = tuple(
        File(
            name,
            "test" if "test" in name else "train",
            3,
            len(data),
            f"sha1:{hashlib.sha1(data).hexdigest()}",
        )
        for name, data in BATCHES.items()
    )
    edition = Edition("cifar-binary", ("cifar-10-batches-bin",), files)
    known = replace(CATALOGUE["cifar10"], train=6, test=3, editions=(edition,))
    monkeypatch.setitem(CATALOGUE, "cifar10", known)
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, data in BATCHES.items():
        (folder / name).write_bytes(data)
    return folder


def test_whole_or_a_part_in_any_packing(small: Path) -> None:
    first = load_dataset("cifar10", small.parent)
    assert (first.whole, first.verified, len(first.train), len(first.test)) == (True, True, 6, 3)
    both = BATCHES["data_batch_1.bin"] + BATCHES["data_batch_2.bin"]
    records = np.frombuffer(both, np.uint8).reshape(6, -1)
    np.testing.assert_array_equal(first.train.features.reshape(6, -1), records[:, 1:])
    (small / "data_batch_1.bin").unlink()
    (small / "data_batch_1.bin.gz").write_bytes(gzip.compress(BATCHES["data_batch_1.bin"]))
    packed = load_dataset("cifar10", small)  # the folder of the files itself will do
    np.testing.assert_array_equal(packed.train.features, first.train.features)
    (small / "data_batch_1.bin.gz").unlink()
    part = load_dataset("cifar10", small.parent)
    assert (part.whole, part.verified, len(part.train)) == (False, True, 3)
    (small / "data_batch_1.first2.bin.xz").write_bytes(
        lzma.compress(BATCHES["data_batch_1.bin"][: 2 * 3_073])
    )
    cut = load_dataset("cifar10", small.parent)
    assert (cut.whole, cut.verified, len(cut.train)) == (False, False, 5)
    np.testing.assert_array_equal(cut.train.features[:2], first.train.features[:2])


def test_a_whole_edition_rather_than_a_part_of_another(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = CATALOGUE["cifar10"]
    other = replace(known.editions[0], folders=("other",))
    monkeypatch.setitem(CATALOGUE, "cifar10", replace(known, editions=(other, known.editions[0])))
    (small.parent / "other").mkdir()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (small.parent / "other" / name).write_bytes(BATCHES[name])
    assert load_dataset("cifar10", small.parent).source == small
    (small / "data_batch_2.bin").unlink()
    assert load_dataset("cifar10", small.parent).source == small.parent / "other"


def test_images_without_their_labels_are_nothing(small: Path) -> None:
    folder = small.parent / "mnist"
    folder.mkdir()
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"")
    with pytest.raises(InputError, match="mnist was not found in"):
        load_dataset("mnist", small.parent)
    (folder / "train-labels-idx1-ubyte.first5").write_bytes(b"")  # labels for other images than there are
    with pytest.raises(InputError, match="mnist was not found in"):
        load_dataset("mnist", small.parent)


def test_corrupt_files_say_what_to_do(small: Path) -> None:
    data = bytearray(BATCHES["test_batch.bin"])
    data[-1] ^= 1
    (small / "test_batch.bin").write_bytes(data)
    with pytest.raises(
        InputError, match=r"test_batch.bin .*corrupt; delete it and run `dufl data fetch cifar10`"
    ):
        load_dataset("cifar10", small.parent)
    row = next(row for row in find_datasets(small.parent) if row.name == "cifar10")
    assert (row.state, row.verified) == ("corrupt", False)
    assert "delete it and run" in row.problem
    (small / "test_batch.bin").write_bytes(data[:-1])
    with pytest.raises(InputError, match=r"truncated; delete it"):
        load_dataset("cifar10", small.parent)


def test_a_subset_that_is_not_what_its_name_says(small: Path) -> None:
    (small / "test_batch.bin").unlink()
    cut = small / "test_batch.first2.bin"
    cut.write_bytes(BATCHES["test_batch.bin"])
    with pytest.raises(InputError, match="6,146 bytes long, got more; the file name states"):
        load_dataset("cifar10", small.parent)
    cut.write_bytes(b"\xff" * 2 * 3_073)
    with pytest.raises(InputError, match="labels below 10, got 255"):
        load_dataset("cifar10", small.parent)


def test_missing_files_say_where_was_looked(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUFL_DATA", str(small.parent / "elsewhere"))
    (small / "test_batch.bin").unlink()  # nothing to test on: not there
    with pytest.raises(InputError) as missing:
        load_dataset("cifar10", small.parent)
    words = str(missing.value)
    for folder in (small.parent, small.parent / "elsewhere", cache_folder()):
        assert str(folder) in words
    assert words.endswith("run `dufl data fetch cifar10`")
    with pytest.raises(InputError, match="data_dir must be a folder that exists"):
        load_dataset("cifar10", small / "nothing")


def test_the_order_of_the_search(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, cached = tmp_path / "given", tmp_path / "cache" / "dufl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cached.parent))
    monkeypatch.setenv("DUFL_DATA", str(small.parent))
    assert data_folders(given) == [given, small.parent, cached]
    for folder in (given, cached):
        folder.mkdir(parents=True)
        os.symlink(small, folder / small.name)
    assert load_dataset("cifar10", given).source == given / small.name
    assert load_dataset("cifar10").source == small
    monkeypatch.delenv("DUFL_DATA")
    assert load_dataset("cifar10").source == cached / small.name
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "dufl"


@pytest.mark.parametrize(
    ("name", "words"), [("cifar1O", "mean 'cifar10'"), ("mnits", "mean 'mnist'"), ("x", "known are")]
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_dataset(name)


GREY = np.random.default_rng(0).integers(0, 256, (6, 5, 4), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def own(**changes: Any) -> dict[str, Any]:
    return {"x_train": GREY, "y_train": LABELS, "x_test": GREY[:2], "y_test": LABELS[:2]} | changes


def test_one_s_own_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **own())
    dataset = load_dataset(path)
    assert isinstance(dataset, Dataset)
    assert dataset.describe() == "mine: 6 train and 2 test samples of shape (1, 5, 4), 3 classes"
    assert (dataset.source, dataset.whole, dataset.verified) == (path, True, False)
    np.testing.assert_array_equal(dataset.train.features[:, 0], GREY)
    with pytest.raises(InputError, match="No such file"):
        load_dataset(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (np.zeros((6, 7)), (7,), np.float32),
        (np.ones((6, 5, 4)), (1, 5, 4), np.float32),
        (np.zeros((6, 5, 4, 3), np.uint8), (3, 5, 4), np.uint8),
        (np.zeros((6, 3, 5, 4), np.float64), (3, 5, 4), np.float32),
        (np.zeros((6, 1, 5, 3), np.uint8), (1, 5, 3), np.uint8),
    ],
)
def test_layouts_of_one_s_own(x: Any, shape: tuple[int, ...], dtype: type) -> None:
    dataset = load_dataset(lambda: (x, LABELS, x[:2], LABELS[:2]))
    assert dataset.shape == shape
    assert dataset.train.features.dtype == dtype


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": GREY + 300.0}, r"x_train must be floats in \[0, 1\]"),
        ({"x_train": np.full((6, 5, 4), np.nan)}, r"x_train must be floats in \[0, 1\]"),
        (
            {"x_train": GREY.astype(int)},
            r"x_train must be uint8 pixels in 0..255, or floats in \[0, 1",
        ),
        (
            {"x_train": np.ones((6, 9), np.int64)},
            "got int64: other integers, such as tokens, are not features",
        ),
        ({"x_train": GREY.astype(np.int8)}, "x_train must be uint8"),
        ({"x_train": GREY[:0]}, "x_train must be numbers of shape"),
        ({"x_train": LABELS}, "x_train must be numbers of shape"),
        ({"y_train": LABELS[:3]}, "y_train must be one label for each of 6 samples, got 3"),
        ({"y_train": LABELS - 1}, "y_train must be labels 0, 1, 2"),
        ({"y_train": LABELS + 10**9}, "y_train must be labels 0, 1, 2"),
        (
            {"y_train": [0, 1, 2, 0, 1, 99_999]},
            "y_train must be labels .* got 0 to 99999 without a sample of 3",
        ),
        ({"y_train": LABELS + 1}, "y_train must be labels .* got 1 to 3 without a sample of 0"),
        ({"y_train": [2**64 - 1] * 6}, "y_train must be labels 0, 1, 2"),
        ({"y_test": [0, 3]}, "y_test must be labels that are in y_train, 0 to 2, got 3"),
        ({"y_train": LABELS / 2}, "y_train must be integers"),
        ({"x_test": GREY[:2, :3]}, "x_test must be like x_train"),
        ({"x_test": GREY[:2] / 255}, "x_test must be like x_train"),
    ],
)
def test_rules_of_one_s_own(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **own(**changes))
    with pytest.raises(InputError, match=words):
        load_dataset(path)


def test_arrays_that_would_not_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **own(time=np.arange(6), client_id=LABELS))
    with pytest.raises(InputError) as caught:
        load_dataset(path)
    assert str(caught.value) == (
        f"{path} must be an .npz with x_train, y_train, x_test, y_test and no other arrays, "
        "which would not be read, got also client_id, time"
    )


def test_a_file_with_times_is_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "stream.npz"
    np.savez(path, x=GREY, y=LABELS, time=np.arange(6))
    recording = load_dataset(path)
    assert isinstance(recording, Recording)
    assert recording.describe() == "stream: 6 recorded samples of shape (1, 5, 4), 3 classes, time 0 to 5"
    np.savez(path, x=GREY, y=LABELS)
    with pytest.raises(InputError) as caught:
        load_dataset(path)
    assert str(caught.value) == (
        f"{path} must be an .npz with x_train, y_train, x_test, y_test, got x, y; "
        "add an array `time` if it is a recording, or split it into training and test samples"
    )


@pytest.mark.parametrize(
    ("train", "test", "names", "says"),
    [
        (
            (GREY, LABELS),
            (GREY, LABELS),
            "ab",
            "train labels of dataset 'd' must be from 0 to 1, .* got 0 to 2",
        ),
        ((GREY, LABELS), (GREY, LABELS + 7), "abc", "test labels of dataset 'd' must be from 0 to 2"),
        ((GREY, LABELS - 1), (GREY, LABELS), "abc", "train labels of dataset 'd' .* got -1 to 1"),
        (
            (GREY, LABELS),
            (GREY[:0], LABELS[:0]),
            "abc",
            "test of dataset 'd' must be Samples, at least one, got none",
        ),
        (
            (GREY, LABELS),
            (GREY[:, 1:], LABELS),
            "abc",
            "test samples of dataset 'd' must be like the training samples",
        ),
        (
            (GREY, LABELS),
            (GREY / 255, LABELS),
            "abc",
            r"must be like the training samples, uint8 \(5, 4\), got float32",
        ),
        ((GREY * np.nan, LABELS), (GREY, LABELS), "abc", "train features of dataset 'd' must be finite"),
    ],
)
def test_a_dataset_cannot_contradict_itself(train: Any, test: Any, names: str, says: str) -> None:
    """A label beyond the classes would be written outside of an array by the kernel."""
    with pytest.raises(InputError, match=says):
        Dataset("d", Samples(*train), Samples(*test), tuple(names))


def test_a_class_without_training_samples_is_no_error_if_it_has_a_name() -> None:
    config = small_config("data.initial_classes=1", "data.class_order=[3,0,1,2]", "game.num_rounds=4")
    dataset = Dataset("d", Samples(GREY, LABELS), Samples(GREY, LABELS), tuple("abcd"))
    federation, engine = federation_of(config, dataset)
    records = [federation.play() for _ in range(4)]
    engine.close()
    assert records[0].total_volume == 0
    assert records[3].total_volume > 0


def test_a_function_as_the_source() -> None:
    def mine() -> Dataset:
        return Dataset("mine", Samples(GREY, LABELS), Samples(GREY, LABELS), ("a", "b", "c"))

    assert load_dataset(mine).class_names == ("a", "b", "c")
    with pytest.raises(InputError, match="a Dataset or the four arrays"):
        load_dataset(lambda: (GREY, LABELS))


MEMORY = """
import sys
from dataclasses import replace
from dufl.data.datasets import load_dataset
from dufl.data.datasets.catalogue import CATALOGUE

def memory(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) // 1024

known = CATALOGUE["cifar10"]
files = tuple(replace(file, checksum=sys.argv[2]) for file in known.editions[0].files)
CATALOGUE["cifar10"] = replace(known, editions=(replace(known.editions[0], files=files),))
before = memory("VmRSS")
dataset = load_dataset("cifar10", sys.argv[1])
assert dataset.whole and len(dataset.train) == 50_000 and dataset.train.labels.sum() == 50_000
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_cifar10_whole_takes_less_than_250_mb(tmp_path: Path) -> None:
    """Files of the true size under the true names; the peak of the process is measured."""
    (edition,) = CATALOGUE["cifar10"].editions
    folder = tmp_path / edition.folders[0]
    folder.mkdir()
    data = np.ones((10_000, 3_073), np.uint8).tobytes()
    checksum = f"sha1:{hashlib.sha1(data).hexdigest()}"
    (folder / edition.files[0].name).write_bytes(data)
    for file in edition.files[1:]:
        os.link(folder / edition.files[0].name, folder / file.name)
    command = [sys.executable, "-c", MEMORY, str(tmp_path), checksum]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250


def test_the_pickled_version_of_cifar_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    pickled = {"cifar-10-batches-py": ("data_batch_1", "test_batch"), "cifar-100-python": ("train", "test")}
    for folder, names in pickled.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    for name in ("cifar10", "cifar100"):
        with pytest.raises(InputError, match=f"{name} was not found in"):
            load_dataset(name, tmp_path)
