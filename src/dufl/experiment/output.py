"""Output directories: each belongs to one kind of result, and its manifest says which, and what is in it.

`manifest.json` holds the kind and the SHA-256 of every file that does not change any more. It is written
first, without any file, and last, with all of them: a file counts once the manifest lists it. So a result
that was cut short, mixed up with another or edited is not taken for whole, and nothing is read from a result
but what the command that made it has written there.
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
_LARGEST = 1 << 20  # bytes of a manifest


@dataclass(frozen=True)
class Kind:
    """A kind of result: its name, and patterns of the files that it writes."""

    name: str
    files: tuple[str, ...]


_CONFIG = ("config.toml", "clients.csv", "plan.npz")
_ITEMS = ("convergence", "clients", "sensitivity", "server", "updates", "table", "leaders")
PLAN = Kind("plan", (*_CONFIG, "plan.json", "trajectories.*", "cost_surface.*", "utilities.*"))
RUN = Kind(
    "training run",
    (
        *(*_CONFIG, "environment.json", "metrics.jsonl", "checkpoint.npz", "model.safetensors"),
        *("summary.json", "training.*", REPORT),
    ),
)
FLOWER = Kind(
    "run on Flower",
    (*RUN.files, "simulation.toml", "deal.json", "server.npz", "ledger.sqlite*", "clients/*"),
)
COMPARISON = Kind("comparison", ("comparison.*", REPORT))
SWEEP = Kind("sweep", ("sweep.csv", "sweep.png", "sweep.svg", "sweep.pdf"))
REPRODUCTION = Kind(
    "reproduction",
    ("reproduction.json", *(f"{item}.{end}" for item in _ITEMS for end in ("csv", "png", "svg", "pdf"))),
)
KINDS = {kind.name: kind for kind in (PLAN, RUN, FLOWER, COMPARISON, SWEEP, REPRODUCTION)}


@dataclass(frozen=True)
class Manifest:
    """What a directory holds.

    Attributes:
        folder: the directory.
        kind: of the result.
        files: the SHA-256 of every file that does not change any more, by its name.
    """

    folder: Path
    kind: Kind
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """The manifest of a directory, if there is one."""
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
        """Put it into its directory."""
        text = to_json({"kind": self.kind.name, "files": dict(sorted(self.files.items()))})
        write_text(self.folder / MANIFEST, text)

    def adding(self, *names: str) -> "Manifest":
        """The same with some more files, as they are now."""
        return Manifest(self.folder, self.kind, {**self.files, **{n: digest(self.folder / n) for n in names}})

    def check(self, name: str) -> Path:
        """The path of a file that is as it was when the manifest was written."""
        path = self._listed(name)
        with reading(path):
            found = digest(path)
        self._compare(name, found)
        return path

    def read_file(self, name: str) -> bytes:
        """What is in a file that is as it was when the manifest was written."""
        path = self._listed(name)
        with reading(path):
            content = read_bytes(path)
        self._compare(name, hashlib.sha256(content).hexdigest())
        return content

    @property
    def changed(self) -> list[str]:
        """The files that are there and are not as they were when the manifest was written."""
        there = [name for name in self.files if (self.folder / name).exists()]
        return [name for name in there if digest(self.folder / name) != self.files[name]]

    def _listed(self, name: str) -> Path:
        if name not in self.files:
            rule = f"a {self.kind.name} that is whole, with {name} in its {MANIFEST}"
            raise InputError.of(str(self.folder), rule, "none")
        return self.folder / name

    def _compare(self, name: str, found: str) -> None:
        if found != self.files[name]:
            rule = f"as the {self.kind.name} has written it, with the SHA-256 in {MANIFEST}"
            raise InputError.of(str(self.folder / name), rule, "a file that was damaged or edited since")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say of which file it is that reading fails."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_output(folder: Path, kind: Kind, force: bool = False) -> None:
    """Refuse a directory that cannot be written to, belongs to something else, or would lose a user's file.

    Args:
        folder: the output directory, which need not exist.
        kind: what will be written there.
        force: write there nevertheless.
    """
    check_directory(folder)
    if force:
        return
    before = Manifest.read(folder)
    if before is not None and before.kind != kind:
        _refuse(folder, kind, f"which holds a {before.kind.name}")
    names = before.changed if before else _there(folder, kind)
    if names:
        why = "which dufl did not write, or which was edited since, would be replaced"
        _refuse(folder, kind, f"where {', '.join(names)}, {why}")


def claim(folder: Path, kind: Kind, force: bool = False) -> Manifest:
    """The directory, made if it is missing, for one kind of result; no file counts as part of it yet."""
    check_output(folder, kind, force)
    manifest = Manifest(make_directory(folder), kind)
    manifest.write()
    return manifest


@contextmanager
def writing(folder: Path, kind: Kind, force: bool = False) -> Iterator[Path]:
    """A temporary folder whose files all move into `folder` once the block has ended well, or none does."""
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
            with suppress(OSError):  # it is not empty: all went well
                place.rmdir()


def check_file(path: Path, option: str) -> None:
    """Refuse, before any work is done, a file that a user names and that must not be written there.

    It must be in a folder that can be written to, be a regular file if it is there already, and be no part of
    a result: a run is not to lose its metrics to a page of that name. Its report may be replaced.
    """
    try:
        target = target_of(path)
        usable = target.parent.is_dir() and os.access(target.parent, os.W_OK)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None
    except OSError as error:  # a name that is too long
        raise InputError.of(option, "a file that can be made", f"{path}: {error.strerror}") from None
    if not usable:
        raise InputError.of(option, "a file in a folder that can be written to", path)
    for folder in target.parents[:2]:
        manifest = Manifest.read(folder)
        name = str(target.relative_to(folder))
        if manifest and name != REPORT and _matches(name, (MANIFEST, *manifest.kind.files)):
            raise InputError.of(option, f"no part of the {manifest.kind.name} in {folder}", path)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A temporary folder inside another; those that nobody holds any more, after a kill, are removed."""
    for left in folder.glob(f"{_STAGING}*"):
        with suppress(OSError), _held(left):
            shutil.rmtree(left)
    staging = Path(tempfile.mkdtemp(dir=folder, prefix=_STAGING))
    try:
        with _held(staging):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder, which no other process then can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _move(staging: Path, folder: Path, kind: Kind) -> None:
    """Everything from one folder to the other; the last step is that the manifest lists it."""
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


def _there(folder: Path, kind: Kind) -> list[str]:
    """The files in a directory that nobody claimed and that a kind of result would replace."""
    if not folder.is_dir():
        return []
    names = (str(path.relative_to(folder)) for path in (*folder.iterdir(), *folder.glob("clients/*")))
    return sorted(name for name in names if _matches(name, kind.files))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _refuse(folder: Path, kind: Kind, why: str) -> None:
    rule = f"a new directory or one that holds a {kind.name}"
    raise InputError.of("--out", rule, f"{folder}, {why}: choose another, or add --force")
