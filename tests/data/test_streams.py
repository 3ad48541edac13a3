"""Streams: what arrives when, how it ages, and that it depends on (seed, client, round) alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.live import FolderStream
from dufl.data.samples import Samples
from dufl.data.streams import BEFORE, IteratorStream, SimulatedStream, Stream
from dufl.errors import InputError


def pool(size: int = 2000, classes: int = 10) -> Samples:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (size, 1, 4, 4), dtype=np.uint8)
    return Samples(images, np.arange(size) % classes)


def test_noise_has_the_stated_deviation() -> None:
    ageing = Ageing(time_sensitivity=1.25, num_rounds=100, noise_scale=0.5)
    grey = np.full((400, 784), 0.5, np.float32)
    for age in (1, 2, 26, 101):
        noise = ageing.apply(grey, np.full(400, age), 3, 4, np.arange(400)) - grey
        expected = 0.5 * 1.25 * (age - 1) / 100
        assert noise.std() == pytest.approx(expected, rel=0.01, abs=1e-9)
        assert abs(noise.mean()) <= 5 * expected / np.sqrt(noise.size) + 1e-9


def test_noise_is_a_function_of_seed_client_sample_and_age() -> None:
    ageing = Ageing(time_sensitivity=1.0)
    features = np.random.default_rng(0).random((50, 3, 8, 8), dtype=np.float32)
    ages, ids = np.arange(1, 51), np.arange(50) * 7
    whole = ageing.apply(features, ages, 1, 2, ids)
    for some in (slice(10, 20), slice(None, None, -1)):
        part = ageing.apply(features[some], ages[some], 1, 2, ids[some])
        np.testing.assert_array_equal(part, whole[some])
    assert np.abs(ageing.apply(features, ages, 1, 3, ids) - whole).max() > 0
    assert np.abs(ageing.apply(features, ages, 2, 2, ids) - whole).max() > 0
    later = ageing.apply(features, 2 * ages - 1, 1, 2, ids)  # twice as long ago
    np.testing.assert_allclose(later - features, 2 * (whole - features), atol=1e-5)


@pytest.mark.parametrize("off", [{"time_sensitivity": 0.0}, {"noise_scale": 0.0}])
def test_no_noise_changes_nothing(off: dict[str, float]) -> None:
    features = np.random.default_rng(0).random((5, 4), dtype=np.float32)
    assert Ageing(**off).apply(features, np.full(5, 90), 0, 0, np.arange(5)) is features  # type: ignore[arg-type]


def test_growth_of_noise() -> None:
    walk = Ageing(time_sensitivity=1.0, noise_scale=1.0, growth=0.5)
    np.testing.assert_allclose(walk.deviation([1, 26, 101]), [0, 0.5, 1])


@pytest.mark.parametrize(("sigma", "first"), [(0.0, 10), (0.3, 9), (0.75, 8), (1.25, 6), (3.0, 1), (9.0, 1)])
def test_classes_at_the_start(sigma: float, first: int) -> None:
    arrival = Arrival(num_classes=10, time_sensitivity=sigma)
    assert arrival.classes(0).tolist() == list(range(first))
    assert arrival.count(BEFORE) == first
    assert arrival.count(50) == arrival.count(99) == 10


@given(sigma=st.floats(0, 3), rounds=st.integers(2, 300), classes=st.integers(1, 100))
def test_classes_arrive_evenly_until_half_of_the_rounds(sigma: float, rounds: int, classes: int) -> None:
    counts = [
        Arrival(num_classes=classes, time_sensitivity=sigma, num_rounds=rounds).count(t)
        for t in range(rounds)
    ]
    assert counts == sorted(counts)
    assert counts[-(rounds // 2)] == classes
    missing = classes - counts[0]
    for t in range(rounds // 2):
        assert abs(counts[t] - counts[0] - missing * t / (rounds / 2)) <= 1


def test_orders_of_classes() -> None:
    given_order = Arrival(num_classes=4, initial=2, order=[3, 1, 0, 2])
    assert given_order.classes(0).tolist() == [1, 3]
    own = Arrival(num_classes=10, initial=3, order="client")
    sets = {tuple(own.classes(0, seed=0, client=k)) for k in range(6)}
    assert len(sets) > 1
    assert own.classes(0, 0, 2).tolist() == own.classes(0, 0, 2).tolist()
    with pytest.raises(InputError, match="order must be every class from 0 to 3 once"):
        Arrival(num_classes=4, order=[0, 1, 1, 2])
    with pytest.raises(InputError, match="initial must be <= num_classes = 4, got 5"):
        Arrival(num_classes=4, initial=5)


def test_only_arrived_classes_are_collected() -> None:
    arrival = Arrival(num_classes=10, time_sensitivity=1.25)
    stream = SimulatedStream(pool=pool(), arrival=arrival)
    for t in (BEFORE, 0, 20, 49, 50, 99):
        assert sorted(set(stream.collect(400, t).labels)) == arrival.classes(t).tolist()


def test_collection_depends_on_seed_client_and_round_alone() -> None:
    source = pool()

    def collected(seed: int, client: int, round: int) -> list[int]:
        stream = SimulatedStream(pool=source, seed=seed, client=client)
        return [int(v) for v in stream.collect(30, round).features.sum(axis=(1, 2, 3))]

    stream = SimulatedStream(pool=source, seed=1, client=2)
    backwards = {t: stream.collect(30, t) for t in (5, 4, 3)}
    for t in (3, 4, 5):
        assert [int(v) for v in backwards[t].features.sum(axis=(1, 2, 3))] == collected(1, 2, t)
    assert collected(1, 2, 3) != collected(1, 2, 4)
    assert collected(1, 2, 3) != collected(1, 3, 3)
    assert collected(1, 2, 3) != collected(2, 2, 3)
    assert collected(1, 2, BEFORE) != collected(1, 2, 0)


def test_no_sample_comes_twice_in_a_round_unless_it_must() -> None:
    numbered = Samples(np.arange(40, dtype=np.float32)[:, None], np.arange(40) % 4)
    stream = SimulatedStream(pool=numbered)
    assert sorted(stream.collect(40, 0).features.ravel()) == list(range(40))
    twice = stream.collect(100, 0).features.ravel()
    assert set(np.unique(twice, return_counts=True)[1]) <= {2, 3}


def test_label_skew() -> None:
    counts = []
    for client in range(5):
        stream = SimulatedStream(pool=pool(), client=client, dirichlet_alpha=0.3)
        counts.append(np.bincount(stream.collect(1000, 0).labels, minlength=10))
    spread = np.array(counts)
    assert (spread.sum(axis=1) == 1000).all()
    assert spread.max(axis=1).min() > 200  # even would be 100
    assert len({int(row.argmax()) for row in spread}) > 1
    even = np.bincount(
        SimulatedStream(pool=pool(), dirichlet_alpha=1e6).collect(1000, 0).labels, minlength=10
    )
    assert even.max() < 150
    late = SimulatedStream(
        pool=pool(), dirichlet_alpha=0.3, arrival=Arrival(num_classes=10, time_sensitivity=1.25)
    )
    assert set(late.collect(300, 0).labels) <= set(range(6))
    assert len(late.collect(300, 0)) == 300


def test_drift_builds_up_and_is_the_client_s_own() -> None:
    source = pool()
    plain = SimulatedStream(pool=source, client=1).collect(50, 80).to_float()
    moved = SimulatedStream(pool=source, client=1, drift=0.3).collect(50, 80).to_float() - plain
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:1], moved.shape), atol=1e-6)
    later = SimulatedStream(pool=source, client=1, drift=0.3).collect(1, 0).to_float()
    np.testing.assert_allclose(later, SimulatedStream(pool=source, client=1).collect(1, 0).to_float())
    other = SimulatedStream(pool=source, client=2, drift=0.3)
    assert np.abs(other._pattern - SimulatedStream(pool=source, client=1, drift=0.3)._pattern).max() > 0


def test_an_iterator_is_a_stream() -> None:
    def pairs() -> Any:
        return ((np.full((2, 2), i, np.float32), i % 3) for i in range(10))

    stream: Stream[Samples] = IteratorStream(pairs())
    assert stream.collect(4, 0).labels.tolist() == [0, 1, 2, 0]
    again = IteratorStream(pairs())
    again.resume(4)
    assert again.collect(3, 1).features[:, 0, 0].tolist() == [4, 5, 6]
    assert len(again.collect(9, 2)) == 3
    assert len(again.collect(9, 3)) == 0
    batches = IteratorStream([pool(5), pool(3)])
    assert [len(batches.collect(4, t)) for t in range(3)] == [4, 4, 0]
    with pytest.raises(InputError, match="at least the 11 samples collected before, got 10"):
        IteratorStream(pairs()).resume(11)


def write_shard(folder: Path, name: str, values: range) -> None:
    np.savez(folder / name, x=np.array(values, np.float32)[:, None], y=np.array(values) % 5)


def test_a_folder_is_a_stream(tmp_path: Path) -> None:
    write_shard(tmp_path, "0001.npz", range(4))
    write_shard(tmp_path, "0002.npz", range(4, 6))
    stream = FolderStream(tmp_path)
    assert stream.collect(5, 0).features.ravel().tolist() == [0, 1, 2, 3, 4]
    assert stream.collect(5, 1).features.ravel().tolist() == [5]
    assert len(stream.collect(5, 2)) == 0
    write_shard(tmp_path, "0003.npz", range(6, 9))
    (tmp_path / ".hidden.npz").write_bytes(b"x")
    (tmp_path / "0004.npz.part").write_bytes(b"x")
    assert stream.collect(2, 3).labels.tolist() == [1, 2]
    resumed = FolderStream(tmp_path)
    resumed.resume(8)
    assert resumed.collect(5, 4).features.ravel().tolist() == [8]
    with pytest.raises(InputError, match="still has the 10 samples"):
        FolderStream(tmp_path).resume(10)
    with pytest.raises(InputError, match="folder must be a folder that exists"):
        FolderStream(tmp_path / "none")


def test_a_shard_in_the_making_is_waited_for(tmp_path: Path) -> None:
    write_shard(tmp_path, "b.npz", range(3, 5))
    whole = (tmp_path / "b.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    stream = FolderStream(tmp_path, patience=1000)
    assert len(stream.collect(9, 0)) == 0
    (tmp_path / "a.npz").write_bytes(whole)
    assert stream.collect(9, 1).features.ravel().tolist() == [3, 4, 3, 4]
    (tmp_path / "c.npz").write_bytes(b"rubbish")
    write_shard(tmp_path, "d.npz", range(7, 8))
    hasty = FolderStream(tmp_path, patience=0)
    assert len(hasty.collect(99, 0)) == 5
    assert [path.name for path in hasty.skipped] == ["c.npz"]


@pytest.mark.parametrize("kind", ["npz", "png"])
def test_no_damaged_file_stops_a_folder(tmp_path: Path, kind: str) -> None:
    """Files cut short or written over: read, or passed over and named; the good one after them comes."""
    from PIL import Image

    (tmp_path / "3").mkdir()
    bad, good = tmp_path / "3" / f"a.{kind}", tmp_path / "3" / f"z.{kind}"
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (9, 9, 3), dtype=np.uint8)
    if kind == "npz":
        np.savez_compressed(good, x=pixels.transpose(2, 0, 1)[None], y=[3])
    else:
        Image.fromarray(pixels).save(good)
    whole, skipped = good.read_bytes(), 0
    for trial in range(600):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), 1 + trial % 5):
            damaged[place] = int(generator.integers(256))
        bad.write_bytes(damaged[: int(generator.integers(len(whole)))] if trial % 4 == 0 else damaged)
        stream = FolderStream(tmp_path, patience=0)
        taken = 0
        while part := len(stream.collect(1, 0)):
            taken += part
        assert taken == 2 - len(stream.skipped)
        assert stream.skipped in ([], [bad])
        skipped += len(stream.skipped)
    assert skipped > 200


def test_a_shard_that_lies_about_its_size_costs_no_memory(tmp_path: Path) -> None:
    import io
    import zipfile

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**7, 1000)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", header.getvalue())
    stream = FolderStream(tmp_path, patience=0)
    assert len(stream.collect(1, 0)) == 0
    assert [path.name for path in stream.skipped] == ["a.npz"]


def test_images_in_labelled_folders(tmp_path: Path) -> None:
    from PIL import Image

    for label in (3, 7):
        (tmp_path / str(label)).mkdir()
        for n in range(2):
            Image.new("RGB", (6, 5), (label, 20, 30)).save(tmp_path / str(label) / f"{n}.png")
    found = FolderStream(tmp_path).collect(10, 0)
    assert found.labels.tolist() == [3, 3, 7, 7]
    assert found.features.shape == (4, 3, 5, 6)
    assert found.features[2, :, 0, 0].tolist() == [7, 20, 30]
    (tmp_path / "grey").mkdir()
    grey = tmp_path / "grey" / "1"
    grey.mkdir()
    Image.new("L", (6, 5), 9).save(grey / "a.png")
    assert FolderStream(tmp_path / "grey").collect(1, 0).features.shape == (1, 1, 5, 6)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"time": np.arange(3)}, "b.npz must be an .npz with x, y and no other arrays, .* got also time"),
        ({"x": np.ones((3, 2), int)}, "b.npz: features must be uint8 pixels in 0..255, or floats"),
        ({"y": np.ones(3)}, "b.npz: labels must be integers, got float64"),
        ({"y": np.ones(2, int)}, "b.npz: samples must be features of shape .* and n labels"),
    ],
)
def test_a_whole_shard_that_is_something_else_is_an_error(
    tmp_path: Path, arrays: dict[str, Any], says: str
) -> None:
    """An incomplete shard is not like that: to wait for it, or to skip it, would lose its samples."""
    write_shard(tmp_path, "a.npz", range(2))
    np.savez(tmp_path / "b.npz", **{"x": np.ones((3, 1), np.float32), "y": np.zeros(3, int)} | arrays)
    stream = FolderStream(tmp_path)
    assert len(stream.collect(2, 0)) == 2
    for _ in range(2):
        with pytest.raises(InputError, match=says):
            stream.collect(1, 1)


def test_no_stream_collects_more_than_fits_into_memory() -> None:
    stream = SimulatedStream(pool=Samples(np.zeros((3, 1), np.float32), [0, 1, 2]))
    with pytest.raises(InputError, match="fit into this machine's memory") as refused:
        stream.collect(10**12, 0)
    assert (refused.value.field, refused.value.value) == ("count", "1,000,000,000,000")
