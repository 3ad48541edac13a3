"""Fetching, against a server on this machine that serves real files and misbehaves."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dufl import DuflError, InputError
from dufl.data.datasets import fetch as fetching
from dufl.data.datasets import load_dataset
from dufl.data.datasets.catalogue import CATALOGUE, Description, Download, Edition, File
from dufl.data.datasets.fetch import fetch, unpack
from dufl.errors import FetchError
from mirror import Mirror, mirror
from real_data import real

NAMES = [download.name for download in CATALOGUE["mnist"].editions[0].downloads]
LARGE = "train-images-idx3-ubyte.gz"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="module")
def mnist() -> dict[str, bytes]:
    folder = real("mnist") / "mnist"
    return {name: (folder / name).read_bytes() for name in NAMES}


@pytest.fixture
def good(mnist: dict[str, bytes]) -> Iterator[Mirror]:
    with mirror(dict(mnist)) as server:
        yield server


@pytest.fixture
def bad(mnist: dict[str, bytes]) -> Iterator[Mirror]:
    with mirror(dict(mnist)) as server:
        yield server


def nothing_left(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".part", ".new")]


def test_success_and_then_nothing_to_do(good: Mirror, tmp_path: Path) -> None:
    shares: dict[str, list[float]] = {}

    def begin(name: str) -> Callable[[float], None]:
        return shares.setdefault(name, []).append

    there = fetch("mnist", tmp_path, begin, [good.address])
    assert there == tmp_path / "mnist"
    assert sorted(path.name for path in there.iterdir()) == sorted(NAMES)
    for seen in shares.values():
        assert seen == sorted(seen)
        assert seen[-1] == 1
    dataset = load_dataset("mnist", tmp_path)
    assert (dataset.whole, dataset.verified) == (True, True)
    asked = len(good.requests)
    assert fetch("mnist", tmp_path, None, [good.address]) == there
    assert len(good.requests) == asked == 4


def test_a_file_that_went_bad_is_fetched_again_and_only_that(good: Mirror, tmp_path: Path) -> None:
    fetch("mnist", tmp_path, None, [good.address])
    (tmp_path / "mnist" / NAMES[3]).write_bytes(b"rotten")
    good.requests.clear()
    fetch("mnist", tmp_path, None, [good.address])
    assert good.requests == [(NAMES[3], 0)]
    assert load_dataset("mnist", tmp_path).verified


def test_not_found_here_but_there(good: Mirror, bad: Mirror, tmp_path: Path) -> None:
    bad.fault = "404"
    fetch("mnist", tmp_path, None, [bad.address, good.address])
    assert load_dataset("mnist", tmp_path).whole


def test_every_mirror_that_failed_is_named_with_its_reason(bad: Mirror, tmp_path: Path) -> None:
    bad.fault = "404"
    with pytest.raises(FetchError) as failed:
        fetch("mnist", tmp_path, None, [bad.address, "http://127.0.0.1:9/closed/"])
    words = str(failed.value)
    assert f"{bad.address}train-images-idx3-ubyte.gz: HTTP 404" in words
    assert "http://127.0.0.1:9/closed/train-images-idx3-ubyte.gz: Connection refused" in words
    assert isinstance(failed.value, DuflError)
    with pytest.raises(FetchError, match="unknown url type"):
        fetch("mnist", tmp_path, None, ["nonsense"])


def test_a_broken_answer_is_taken_up_where_it_ended(
    bad: Mirror, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    bad.fault, bad.faults = "truncates", 1
    fetch("mnist", tmp_path, None, [bad.address])
    assert bad.requests[:2] == [(LARGE, 0), (LARGE, len(mnist[LARGE]) // 2)]
    assert (tmp_path / "mnist" / LARGE).read_bytes() == mnist[LARGE]


def test_a_server_that_always_breaks_off(bad: Mirror, mnist: dict[str, bytes], tmp_path: Path) -> None:
    """The mirror fails after a few attempts; what was received is kept, and a later fetch resumes it."""
    bad.fault = "truncates"
    with pytest.raises(FetchError, match=r"ended after [\d,]+ of 9,912,422 bytes"):
        fetch("mnist", tmp_path, None, [bad.address])
    part = tmp_path / "mnist" / f"{LARGE}.part"
    kept = part.stat().st_size
    assert len(bad.requests) == fetching.ATTEMPTS
    assert not (tmp_path / "mnist" / LARGE).exists()
    bad.fault = "none"
    bad.requests.clear()
    fetch("mnist", tmp_path, None, [bad.address])
    assert bad.requests[0] == (LARGE, kept)
    assert (tmp_path / "mnist" / LARGE).read_bytes() == mnist[LARGE]
    assert nothing_left(tmp_path)


def test_another_mirror_goes_on_with_the_part(good: Mirror, bad: Mirror, tmp_path: Path) -> None:
    bad.fault = "truncates"
    fetch("mnist", tmp_path, None, [bad.address, good.address])
    assert good.requests[0][0] == LARGE
    assert good.requests[0][1] > 0
    assert load_dataset("mnist", tmp_path).verified


def test_a_server_that_ignores_ranges_is_read_from_the_start(
    bad: Mirror, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / f"{LARGE}.part").write_bytes(mnist[LARGE][:5_000])
    bad.fault = "no ranges"
    fetch("mnist", tmp_path, None, [bad.address])
    assert [start for name, start in bad.requests if name == LARGE] == [5_000]  # and that one answer will do
    assert (tmp_path / "mnist" / LARGE).read_bytes() == mnist[LARGE]


@pytest.mark.parametrize("kept", ["foreign", "too long", "whole"])
def test_a_part_that_is_not_the_start_of_the_file(
    good: Mirror, mnist: dict[str, bytes], tmp_path: Path, kept: str
) -> None:
    (tmp_path / "mnist").mkdir()
    data = {"foreign": bytes(999), "too long": mnist[LARGE] + b"more", "whole": mnist[LARGE]}[kept]
    (tmp_path / "mnist" / f"{LARGE}.part").write_bytes(data)
    fetch("mnist", tmp_path, None, [good.address])
    assert (tmp_path / "mnist" / LARGE).read_bytes() == mnist[LARGE]
    assert nothing_left(tmp_path)
    if kept == "whole":
        assert LARGE not in [name for name, _ in good.requests]


def test_a_wrong_checksum_never_takes_the_name(good: Mirror, bad: Mirror, tmp_path: Path) -> None:
    bad.fault = "lies"
    with pytest.raises(FetchError, match="checksum of the file is not the published md5:f68b3c2d"):
        fetch("mnist", tmp_path, None, [bad.address])
    assert not list((tmp_path / "mnist").iterdir())
    fetch("mnist", tmp_path, None, [bad.address, good.address])
    assert load_dataset("mnist", tmp_path).verified


def test_a_stall_ends(good: Mirror, bad: Mirror, tmp_path: Path) -> None:
    bad.fault = "stalls"
    with pytest.raises(FetchError, match=r"no byte for 0.5 s"):
        fetch("mnist", tmp_path, None, [bad.address], timeout=0.5)
    fetch("mnist", tmp_path, None, [bad.address, good.address], timeout=0.5)
    assert load_dataset("mnist", tmp_path).verified


def test_an_answer_without_end(bad: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LIMIT", 1_000_000)
    with pytest.raises(FetchError, match="more than 1,000,000 bytes"):
        fetch("mnist", tmp_path, None, [bad.address])


def test_names_and_folders(tmp_path: Path) -> None:
    assert fetch("digits", tmp_path) is None
    with pytest.raises(InputError) as unknown:
        fetch("mnits", tmp_path)
    assert (unknown.value.field, unknown.value.value) == ("name", "'mnits'")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError) as refused:
        fetch("mnist", tmp_path / "file")
    assert (refused.value.field, refused.value.rule) == ("data_dir", "a folder that can be created")


FILES = {"data_batch_1.bin": bytes(3_073), "test_batch.bin": bytes(3_072) + b"\1"}


def small_edition(archive: bytes = b"") -> Edition:
    """CIFAR-10 with one sample a file."""
    files = tuple(
        File(name, "test" if "test" in name else "train", 1, 3_073, f"sha1:{hashlib.sha1(data).hexdigest()}")
        for name, data in FILES.items()
    )
    download = Download("small.tar.gz", f"md5:{hashlib.md5(archive).hexdigest()}", ("http://127.0.0.1:9/",))
    return Edition("cifar-binary", ("cifar-10-batches-bin",), files, (download,))


def small_cifar(*editions: Edition) -> Description:
    return replace(CATALOGUE["cifar10"], train=1, test=1, editions=editions)


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


GOOD = [member(f"cifar-10-batches-bin/{name}", data) for name, data in FILES.items()]
EXTRA = [
    member("cifar-10-batches-bin", kind=tarfile.DIRTYPE),
    member("cifar-10-batches-bin/readme.html", b"hello"),
]


def test_an_archive_is_fetched_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is expected comes out of it, and it goes; an edition nobody has leads to the next."""
    archive = archive_of(*EXTRA, *GOOD)
    missing = Download("missing.tar.gz", "md5:0", ("http://127.0.0.1:9/",))
    lost = replace(small_edition(), folders=("lost",), downloads=(missing,))
    monkeypatch.setitem(CATALOGUE, "cifar10", small_cifar(lost, small_edition(archive)))
    with mirror({"small.tar.gz": archive}) as server:
        there = fetch("cifar10", tmp_path, None, [server.address])
    assert there == tmp_path / "cifar-10-batches-bin"
    assert {path.name: path.read_bytes() for path in there.iterdir()} == FILES
    assert load_dataset("cifar10", tmp_path).verified


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("../escaped", b"evil"), *GOOD], "stays in its folder"),
        ([*GOOD, member("cifar-10-batches-bin/../../escaped", b"evil")], "stays in its folder"),
        ([member("/tmp/dufl-escaped", b"evil"), *GOOD], "stays in its folder"),
        (
            [member("cifar-10-batches-bin/test_batch.bin", kind=tarfile.SYMTYPE, link="/etc/passwd")],
            "regular file",
        ),
        ([member("test_batch.bin", kind=tarfile.LNKTYPE, link="../escaped"), *GOOD], "regular file"),
        ([member("test_batch.bin", kind=tarfile.FIFOTYPE), *GOOD], "regular file"),
        (GOOD[:1], "an archive with test_batch.bin"),
        ([*GOOD[:1], member("test_batch.bin", bytes(3_073))], "corrupt"),
        (
            [*GOOD[:1], member("deep/in/test_batch.bin", FILES["test_batch.bin"])],
            "an archive with test_batch.bin",
        ),
    ],
)
def test_an_evil_archive(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], words: str) -> None:
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    (path := tmp_path / "small.tar.gz").write_bytes(archive_of(*members))
    with pytest.raises(InputError, match=words):
        unpack(path, target, small_edition())
    assert not list(target.iterdir())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "small.tar.gz"]
    assert not Path("/tmp/dufl-escaped").exists()


def test_an_archive_that_is_none_or_cut_or_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = archive_of(*GOOD)
    path = tmp_path / "small.tar.gz"
    target = tmp_path / "target"
    target.mkdir()
    for data in (b"", b"nothing", good[:-20], good[: len(good) // 2], gzip.compress(bytes(100))):
        path.write_bytes(data)
        with pytest.raises(InputError):
            unpack(path, target, small_edition())
        assert not list(target.iterdir())
    monkeypatch.setattr("dufl.data.datasets.fetch.LIMIT", 5_000)
    path.write_bytes(good)
    with pytest.raises(InputError, match="at most 5,000 bytes"):
        unpack(path, target, small_edition())
    assert not list(target.iterdir())


def test_every_public_address_is_a_web_address() -> None:
    for known in CATALOGUE.values():
        for edition in known.editions:
            for download in edition.downloads:
                assert download.addresses
                for address in download.addresses:
                    assert address.startswith(("https://", "http://"))
                    assert address.endswith(f"/{download.name}")
