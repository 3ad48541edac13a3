"""Where dataset files are on this machine. Files are found by their names; none is read."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dufl.data.datasets.catalogue import Description, Edition, File

_PACKED = ("", ".gz", ".xz")


@dataclass(frozen=True)
class Piece:
    """A file that exists. `count` follows from its name: all samples, or those of `….first20000.…`."""

    file: File
    path: Path
    count: int

    @property
    def original(self) -> bool:
        """Whether it has the name of the original file, and so must match its checksum if one is known."""
        return self.count == self.file.count


@dataclass(frozen=True)
class Found:
    """The files of one edition in one folder: at least one with training and one with test samples."""

    description: Description
    edition: Edition
    folder: Path
    pieces: tuple[Piece, ...]

    @property
    def whole(self) -> bool:
        """Whether the dataset is complete."""
        return len(self.pieces) == len(self.edition.files) and all(piece.original for piece in self.pieces)

    @property
    def checkable(self) -> bool:
        """Whether every file has a published checksum."""
        return all(piece.original and piece.file.checksum for piece in self.pieces)

    def count(self, split: str) -> int:
        """The number of samples in the "train" or "test" split."""
        counted = [
            piece.count
            for piece in self.pieces
            if piece.file.split == split and "labels" not in piece.file.name
        ]
        return sum(counted)


def cache_folder() -> Path:
    """The user's cache folder for DUFL: `$XDG_CACHE_HOME/dufl` or `~/.cache/dufl` on Linux."""
    from platformdirs import user_cache_path

    return user_cache_path("dufl", appauthor=False)


def data_folders(data_dir: Path | None = None) -> list[Path]:
    """The folders that are searched, in order: the given one, `$DUFL_DATA`, the user's cache folder."""
    named = os.environ.get("DUFL_DATA", "")
    folders = [data_dir, Path(named).expanduser() if named else None, cache_folder()]
    return list(dict.fromkeys(folder for folder in folders if folder is not None))


def find(description: Description, data_dir: Path | None = None) -> Found | None:
    """The dataset in the first folder that has it; None if no folder has it."""
    results = (find_in(description, folder) for folder in data_folders(data_dir))
    return next((found for found in results if found), None)


def find_in(description: Description, folder: Path) -> Found | None:
    """The dataset in one folder; a complete edition is preferred to a part of another."""
    return max(_editions(description, folder), key=lambda found: found.whole, default=None)


def _editions(description: Description, folder: Path) -> Iterator[Found]:
    for edition in description.editions:
        candidates = [folder / name for name in edition.folders]
        if folder.resolve().name in {Path(name).name for name in edition.folders} - {"raw"}:
            candidates.append(folder)  # the folder of the files was given, not its parent
        for candidate in candidates:
            pieces = tuple(piece for file in edition.files if (piece := _piece(file, candidate)))
            found = Found(description, edition, candidate, pieces)
            if _paired(found) and found.count("train") and found.count("test"):
                yield found


def _piece(file: File, folder: Path) -> Piece | None:
    """The original file, or the longest subset of it."""
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
    """Whether images and labels, which IDX stores in separate files, are both there and match."""
    if found.edition.kind != "idx":
        return True
    counts = [[p.count for p in found.pieces if p.file.split == split] for split in ("train", "test")]
    return all(len(pair) == 2 and pair[0] == pair[1] for pair in counts)
