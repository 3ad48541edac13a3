"""Where dataset files are, by their names alone: nothing is read here."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dufl.data.catalogue import Description, Edition, File

_PACKED = ("", ".gz", ".xz")


@dataclass(frozen=True)
class Piece:
    """A file that is there. `count` is what its name says: that of the original, or of `….first20000.…`."""

    file: File
    path: Path
    count: int

    @property
    def original(self) -> bool:
        """Whether it goes by the name of the original, and so must have its checksum if one is known."""
        return self.count == self.file.count


@dataclass(frozen=True)
class Found:
    """The files of one edition in one folder, enough of them to have samples to train on and to test on."""

    description: Description
    edition: Edition
    folder: Path
    pieces: tuple[Piece, ...]

    @property
    def whole(self) -> bool:
        """Whether it is all of the dataset."""
        return len(self.pieces) == len(self.edition.files) and all(piece.original for piece in self.pieces)

    @property
    def checkable(self) -> bool:
        """Whether every file has a published checksum to be compared with."""
        return all(piece.original and piece.file.checksum for piece in self.pieces)

    def count(self, split: str) -> int:
        """How many samples there are of "train" or "test"."""
        counted = [
            piece.count
            for piece in self.pieces
            if piece.file.split == split and "labels" not in piece.file.name
        ]
        return sum(counted)


def cache_folder() -> Path:
    """The user's own: `$XDG_CACHE_HOME/dufl`, or `~/.cache/dufl`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "dufl"


def data_folders(data_dir: Path | None = None) -> list[Path]:
    """The folders that are searched, in this order: the given one, `$DUFL_DATA`, the user's cache."""
    named = os.environ.get("DUFL_DATA", "")
    asked = [data_dir, Path(named).expanduser() if named else None, cache_folder()]
    return list(dict.fromkeys(folder for folder in asked if folder is not None))


def find(description: Description, data_dir: Path | None = None) -> Found | None:
    """The first folder that has the dataset; in it, a whole edition rather than a part of one."""
    places = (find_in(description, folder) for folder in data_folders(data_dir))
    return next((found for found in places if found), None)


def find_in(description: Description, folder: Path) -> Found | None:
    """The same in one folder."""
    return max(_editions(description, folder), key=lambda found: found.whole, default=None)


def _editions(description: Description, folder: Path) -> Iterator[Found]:
    for edition in description.editions:
        inside = [folder / name for name in edition.folders]
        if folder.resolve().name in {Path(name).name for name in edition.folders} - {"raw"}:
            inside.append(folder)  # the folder of the files was given, not the one above
        for place in inside:
            pieces = tuple(piece for file in edition.files if (piece := _piece(file, place)))
            found = Found(description, edition, place, pieces)
            if _paired(found) and found.count("train") and found.count("test"):
                yield found


def _piece(file: File, folder: Path) -> Piece | None:
    """The file under its own name, or the longest subset of it."""
    for packed in _PACKED:
        path = folder / (file.name + packed)
        if path.is_file():
            return Piece(file, path, file.count)
    stem, dot, kind = file.name.partition(".")
    subset = re.compile(rf"{re.escape(stem)}\.first(\d{{1,9}}){re.escape(dot + kind)}(\.gz|\.xz)?")
    cuts = [
        Piece(file, path, int(match[1]))
        for path in sorted(folder.glob(f"{stem}.first*"))
        if (match := subset.fullmatch(path.name)) and 0 < int(match[1]) < file.count
    ]
    return max(cuts, key=lambda piece: piece.count, default=None)


def _paired(found: Found) -> bool:
    """IDX keeps images and labels apart: half a pair is nothing."""
    if found.edition.kind != "idx":
        return True
    counts = [[p.count for p in found.pieces if p.file.split == split] for split in ("train", "test")]
    return all(len(pair) == 2 and pair[0] == pair[1] for pair in counts)
