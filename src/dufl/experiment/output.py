"""Output directories. Each holds one kind of result, described by its manifest.

`manifest.json` contains the kind and the SHA-256 of every final file. It is written first without files, and
again at the end with all files. A file is valid only if the manifest lists it. An incomplete, mixed or edited
result is therefore detected, and only files that were written by the command itself are read.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from dufl.errors import DuflError, InputError
from dufl.experiment.files import (
    check_directory,
    make_directory,
    open_regular,
    read_bytes,
    sync,
    target_of,
    to_json,
    write_text,
)

MANIFEST = "manifest.json"
REPORT = "report.html"
_STAGING = ".writing-"
_LARGEST = 1 << 20  # maximum size of a manifest in bytes


@dataclass(frozen=True)
class Kind:
    """A kind of result: its name and the patterns of its files."""

    name: str
    files: tuple[str, ...]


_CONFIG = ("config.toml", "clients.csv", "plan.npz")
_ITEMS = ("convergence", "clients", "sensitivity", "server", "updates", "table", "leaders")
PLAN = Kind("plan", (*_CONFIG, "plan.json", "trajectories.*", "cost_surface.*", "utilities.*", "frontier.*"))
ENDLESS = Kind("endless plan", (*_CONFIG, "plan.json"))
RUN = Kind(
    "training run",
    (
        *(*_CONFIG, "environment.json", "metrics.jsonl", "checkpoint.npz", "model.safetensors"),
        *("summary.json", "training.*", REPORT),
    ),
)
FLOWER = Kind(
    "run on Flower",
    (*RUN.files, "simulation.toml", "deal.json", "server.npz", "ledger.sqlite*", "log.jsonl*", "clients/*"),
)
COMPARISON = Kind("comparison", ("comparison.*", "statistics.csv", "statistics.tex", "ranks.*", REPORT))
CALIBRATION = Kind(
    "calibration",
    (
        *("calibrated.toml", "clients.csv", "calibration.json"),
        *("gradients.toml", "gradients-clients.csv", "gradients.json"),
        *("calibration.png", "calibration.svg", "calibration.pdf"),
    ),
)
SWEEP = Kind("sweep", ("sweep.csv", "sweep.png", "sweep.svg", "sweep.pdf"))
REPRODUCTION = Kind(
    "reproduction",
    ("reproduction.json", *(f"{item}.{end}" for item in _ITEMS for end in ("csv", "png", "svg", "pdf"))),
)
KINDS = {
    kind.name: kind for kind in (PLAN, ENDLESS, RUN, FLOWER, COMPARISON, CALIBRATION, SWEEP, REPRODUCTION)
}


@dataclass(frozen=True)
class Manifest:
    """The manifest of an output directory.

    Attributes:
        folder: the directory.
        kind: the kind of result.
        files: the SHA-256 of every final file, by name.
    """

    folder: Path
    kind: Kind
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """Read the manifest of a directory, if there is one."""
        path = folder / MANIFEST
        if not path.exists():
            return None
        try:
            with open_regular(path) as stream:
                values = json.loads(stream.read(_LARGEST))
            kind, files = KINDS[values["kind"]], dict(values["files"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path} must be a manifest that dufl wrote: {error!r}") from None
        if not all(isinstance(text, str) for pair in files.items() for text in pair):
            raise InputError(f"{path} must be a manifest that dufl wrote: files must have checksums")
        return cls(folder, kind, files)

    def write(self) -> None:
        """Write the manifest to its directory."""
        text = to_json({"kind": self.kind.name, "files": dict(sorted(self.files.items()))})
        write_text(self.folder / MANIFEST, text)

    def adding(self, *names: str) -> "Manifest":
        """A copy with more files and their current checksums."""
        return Manifest(self.folder, self.kind, {**self.files, **{n: digest(self.folder / n) for n in names}})

    def check(self, name: str) -> Path:
        """Verify the checksum of a file and return its path."""
        path = self._listed(name)
        with reading(path):
            checksum = digest(path)
        self._compare(name, checksum)
        return path

    def read_file(self, name: str) -> bytes:
        """Verify the checksum of a file and return its content."""
        path = self._listed(name)
        with reading(path):
            content = read_bytes(path)
        self._compare(name, hashlib.sha256(content).hexdigest())
        return content

    @property
    def changed(self) -> list[str]:
        """The existing files whose checksum differs from the manifest."""
        existing = [name for name in self.files if (self.folder / name).exists()]
        return [name for name in existing if digest(self.folder / name) != self.files[name]]

    def _listed(self, name: str) -> Path:
        if name not in self.files:
            rule = f"a complete {self.kind.name} with {name} in its {MANIFEST}"
            raise InputError.of(str(self.folder), rule, "none")
        return self.folder / name

    def _compare(self, name: str, checksum: str) -> None:
        if checksum != self.files[name]:
            rule = f"unchanged, with the SHA-256 in {MANIFEST}"
            raise InputError.of(str(self.folder / name), rule, "a file that was damaged or edited")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Report the path if reading fails."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_output(folder: Path, kind: Kind, force: bool = False) -> None:
    """Raise an error if a directory is not writable, holds another result, or would lose a user's file.

    Args:
        folder: the output directory; it may not exist yet.
        kind: the kind of result to write.
        force: allow directories that hold something else.
    """
    check_directory(folder)
    if force:
        return
    before = Manifest.read(folder)
    if before is not None and before.kind != kind:
        _refuse(folder, kind, f"which holds a {before.kind.name}")
    names = before.changed if before else _conflicts(folder, kind)
    if names:
        why = "not written by dufl or edited since, would be replaced"
        _refuse(folder, kind, f"where {', '.join(names)}, {why}")


def claim(folder: Path, kind: Kind, force: bool = False) -> Manifest:
    """Create a directory for one kind of result. Its manifest lists no files yet."""
    check_output(folder, kind, force)
    manifest = Manifest(make_directory(folder), kind)
    manifest.write()
    return manifest


@contextmanager
def writing(folder: Path, kind: Kind, force: bool = False) -> Iterator[Path]:
    """A temporary directory. Its files are moved to `folder` if the block succeeds, and removed otherwise."""
    check_output(folder, kind, force)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    make_directory(folder)
    try:
        with _staging(folder) as staging:
            yield staging
            _move(staging, folder, kind)
    except OSError as error:
        unchanged = "nothing there has been changed"
        raise DuflError(f"{folder} cannot be written to: {error.strerror or error}; {unchanged}") from error
    finally:
        for place in missing:
            with suppress(OSError):  # not empty: the result was written
                place.rmdir()


def check_file(path: Path, option: str) -> None:
    """Raise an error if a user's output file cannot or must not be written.

    The file must be in a writable directory and must be a regular file if it exists. It must not be part of a
    result, such as the metrics of a run. The report of a run may be replaced.
    """
    try:
        target = target_of(path)
        usable = target.parent.is_dir() and os.access(target.parent, os.W_OK)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None
    except OSError as error:  # a name that is too long
        raise InputError.of(option, "a file that can be created", f"{path}: {error.strerror}") from None
    if not usable:
        raise InputError.of(option, "a file in a folder that can be written to", path)
    for folder in target.parents[:2]:
        manifest = Manifest.read(folder)
        name = str(target.relative_to(folder))
        if manifest and name != REPORT and _matches(name, (MANIFEST, *manifest.kind.files)):
            raise InputError.of(option, f"no part of the {manifest.kind.name} in {folder}", path)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A temporary directory in `folder`. Removes the directories that killed processes left behind."""
    for abandoned in folder.glob(f"{_STAGING}*"):
        with suppress(OSError), _locked(abandoned):
            shutil.rmtree(abandoned)
    staging = Path(tempfile.mkdtemp(dir=folder, prefix=_STAGING))
    try:
        with _locked(staging):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a directory against other processes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _move(staging: Path, folder: Path, kind: Kind) -> None:
    """Move all files to `folder`. The manifest that lists them is moved last."""
    names = sorted(path.name for path in staging.iterdir())
    for name in names:
        target_of(folder / name)
    made = Manifest(staging, kind).adding(*names)
    made.write()
    for name in names:
        sync(staging / name)
    Manifest(folder, kind).write()
    for name in (*names, MANIFEST):
        (staging / name).replace(folder / name)
    sync(folder)


def _conflicts(folder: Path, kind: Kind) -> list[str]:
    """The files in an unclaimed directory that a kind of result would replace."""
    if not folder.is_dir():
        return []
    names = (str(path.relative_to(folder)) for path in (*folder.iterdir(), *folder.glob("clients/*")))
    return sorted(name for name in names if _matches(name, kind.files))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _refuse(folder: Path, kind: Kind, why: str) -> None:
    rule = f"a new directory or one that holds a {kind.name}"
    raise InputError.of("--out", rule, f"{folder}, {why}: choose another, or add --force")
