"""The files of an edition out of a `.tar.gz`: by their exact names, checked, and nothing else."""

import os
import tarfile
from pathlib import Path, PurePosixPath

from dufl.data.bounded import CHUNK, refusing, verify
from dufl.data.catalogue import Edition, File
from dufl.errors import InputError

LIMIT = 1 << 30  # bytes that all members together may have


def unpack(archive: Path, target: Path, edition: Edition) -> None:
    """Put the files of an edition into `target`: all of them or none.

    A member with an absolute path or one that leads out of the folder, a link or a device under an expected
    name, a file that is missing or has not its checksum: the archive is refused and nothing is left behind.
    """
    wanted = {file.name: file for file in edition.files}
    ready: dict[str, Path] = {}
    try:
        with refusing(archive), tarfile.open(archive, "r:gz") as members:
            total = 0
            for member in members:
                total += member.size
                name = _name(archive, member, edition)
                if total > LIMIT:
                    raise InputError.of(str(archive), f"an archive of at most {LIMIT:,} bytes", "more")
                if name in wanted and name not in ready:
                    ready[name] = target / f".{name}.new"
                    _write(members, member, ready[name], wanted[name])
        missing = wanted.keys() - ready.keys()
        if missing:
            raise InputError.of(str(archive), f"an archive with {', '.join(sorted(missing))}", "none")
        for name, path in ready.items():
            os.replace(path, target / name)
    finally:
        for path in ready.values():
            path.unlink(missing_ok=True)


def _name(archive: Path, member: tarfile.TarInfo, edition: Edition) -> str | None:
    """The name of a member that lies in the edition's folder or on top; None for any other."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError.of(str(archive), "an archive that stays in its folder", repr(member.name))
    if str(path.parent) not in (".", edition.folders[0]):
        return None
    if path.name in {file.name for file in edition.files} and not member.isreg():
        raise InputError.of(f"{member.name} in {archive}", "a regular file", "a link or a device")
    return path.name


def _write(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path, file: File) -> None:
    source = members.extractfile(member)
    assert source is not None  # it is a regular file
    with path.open("wb") as out:
        while piece := source.read(CHUNK):
            out.write(piece)
    if file.checksum:
        verify(path, file.checksum, file.size)
