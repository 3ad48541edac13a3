"""The known datasets: their classes and sizes, the names of their files, and where they are published.

Checksums are those that the datasets' authors, torchvision and Apache MXNet publish. An IDX file has two: the
published MD5 of the download, and the SHA-1 of its contents, computed from a download with that MD5. CIFAR-10
and CIFAR-100 are read and fetched in their binary version; the Python version, which is pickled, is not read.
"""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["idx", "cifar-binary", "svhn-mat", "svhn-npz"]
Split = Literal["train", "test"]


@dataclass(frozen=True)
class File:
    """One file of an edition.

    Attributes:
        name: as published, without `.gz` or `.xz`.
        split: "train" or "test".
        count: the number of samples in it.
        size: bytes of its contents; None if unknown.
        checksum: of its contents; None if none is published.
    """

    name: str
    split: Split
    count: int
    size: int | None
    checksum: str | None


@dataclass(frozen=True)
class Download:
    """A file on the mirrors: a file of the edition, or a `.tar.gz` that contains its files."""

    name: str
    checksum: str
    mirrors: tuple[str, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its URLs, in the order in which they are tried."""
        return tuple(mirror + self.name for mirror in self.mirrors)


@dataclass(frozen=True)
class Edition:
    """One published version of a dataset.

    Attributes:
        kind: its file format.
        folders: the usual names of its folder; `fetch` creates the first.
        files: all of its files.
        downloads: where to get them; empty if nobody publishes this edition.
        label_bytes: per record of a binary file.
    """

    kind: Kind
    folders: tuple[str, ...]
    files: tuple[File, ...]
    downloads: tuple[Download, ...] = ()
    label_bytes: int = 1


@dataclass(frozen=True)
class Description:
    """What is known about a dataset before any file is read."""

    name: str
    title: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train: int
    test: int
    editions: tuple[Edition, ...] = field(default=(), repr=False)


_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
    can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
    lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
    pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
    seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
    worm
"""

_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_STANFORD = "http://ufldl.stanford.edu/housenumbers/"


def _idx(
    folders: tuple[str, ...],
    mirrors: tuple[str, ...],
    md5: tuple[str, str, str, str],
    sha1: tuple[str, str, str, str],
) -> Edition:
    """The four IDX files of MNIST and Fashion-MNIST: training images and labels, test images and labels."""
    names = [
        f"{which}-{what}-ubyte" for which in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
    ]
    sizes = (16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000)
    splits: tuple[Split, ...] = ("train", "train", "test", "test")
    files = tuple(
        File(name, split, 60_000 if split == "train" else 10_000, size, f"sha1:{found}")
        for name, split, size, found in zip(names, splits, sizes, sha1, strict=True)
    )
    downloads = tuple(
        Download(f"{name}.gz", f"md5:{found}", mirrors) for name, found in zip(names, md5, strict=True)
    )
    return Edition("idx", folders, files, downloads)


def _cifar10() -> Edition:
    sha1 = (
        "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "26e2849e66a845b7f1e4614ae70f4889ae604628",
    )
    size = 10_000 * 3_073
    train = [
        File(f"data_batch_{i}.bin", "train", 10_000, size, f"sha1:{x}") for i, x in enumerate(sha1, start=1)
    ]
    test = File("test_batch.bin", "test", 10_000, size, "sha1:67eb016db431130d61cd03c7ad570b013799c88c")
    mirrors = (_TORONTO, "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/")
    archive = Download("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", mirrors)
    return Edition("cifar-binary", ("cifar-10-batches-bin",), (*train, test), (archive,))


def _cifar100() -> Edition:
    sha1 = "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e", "sha1:8fb6623e830365ff53cf14adec797474f5478006"
    files = (
        File("train.bin", "train", 50_000, 50_000 * 3_074, sha1[0]),
        File("test.bin", "test", 10_000, 10_000 * 3_074, sha1[1]),
    )
    archive = Download("cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", (_TORONTO,))
    return Edition("cifar-binary", ("cifar-100-binary",), files, (archive,), label_bytes=2)


def _svhn() -> tuple[Edition, Edition]:
    md5 = "md5:e26dedcc434d2e4c54c9b2d4a06d8373", "md5:eb5a983be6a315427106f1b164d9cef3"
    original = (
        File("train_32x32.mat", "train", 73_257, None, md5[0]),
        File("test_32x32.mat", "test", 26_032, None, md5[1]),
    )
    arrays = (
        File("train_32x32.npz", "train", 73_257, None, None),
        File("test_32x32.npz", "test", 26_032, None, None),
    )
    downloads = tuple(Download(file.name, file.checksum or "", (_STANFORD,)) for file in original)
    return Edition("svhn-mat", ("svhn",), original, downloads), Edition("svhn-npz", ("svhn",), arrays)


_MNIST = _idx(
    ("mnist", "MNIST/raw"),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    sha1=(
        "c3557c10f29b266e19b3eeee1553c85e0ef4a8ea",
        "adbf52269f5d842899f287c269e2883e40b4f6e2",
        "65e11ec1fd220343092a5070b58418b5c2644e26",
        "a6d52cc628797e845885543326e9f10abb8a6f89",
    ),
)
_FMNIST = _idx(
    ("fashion-mnist", "fmnist", "FashionMNIST/raw"),
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    sha1=(
        "b9bd999c0106c9b8b4b0cefce58c9a6060f27095",
        "4bccf37222e01638381eaa326bf730337a597267",
        "880056926db704f9f713097915f99da346f5b1d1",
        "958122e8b4b97fd4e71eca2d08ef754ed77c3ad9",
    ),
)

CATALOGUE: dict[str, Description] = {
    known.name: known
    for known in (
        Description("digits", "scikit-learn's digits", (1, 8, 8), _DIGITS, 1_437, 360),
        Description("mnist", "MNIST", (1, 28, 28), _DIGITS, 60_000, 10_000, (_MNIST,)),
        Description("fmnist", "Fashion-MNIST", (1, 28, 28), _CLOTHES, 60_000, 10_000, (_FMNIST,)),
        Description("svhn", "SVHN, cropped digits", (3, 32, 32), _DIGITS, 73_257, 26_032, _svhn()),
        Description("cifar10", "CIFAR-10", (3, 32, 32), _CIFAR10, 50_000, 10_000, (_cifar10(),)),
        Description(
            "cifar100", "CIFAR-100", (3, 32, 32), tuple(_CIFAR100.split()), 50_000, 10_000, (_cifar100(),)
        ),
    )
}
