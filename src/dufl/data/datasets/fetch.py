"""Download a dataset: several mirrors, interrupted downloads resumed, files verified before they are named.

The transfer is written on `urllib`. pooch, the usual library for this, has no resume and no limit on the
size of an answer. Both matter here: CIFAR and SVHN are files of 170 MB and more, from one or two slow
mirrors, and a `.part` that one mirror began is continued by the next or on another day. pooch would also
make `requests` and four other packages dependencies of every installation.
"""

import http.client
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dufl.data.datasets.catalogue import CATALOGUE, Description, Download, Edition, File
from dufl.data.datasets.image_files import verify_dataset
from dufl.data.datasets.known_recordings import RECORDINGS, fetch_known
from dufl.data.datasets.location import find_in
from dufl.data.datasets.untrusted_files import CHUNK, algorithm, digest, refusing, verify
from dufl.errors import FetchError, InputError

Progress = Callable[[str], Callable[[float], None]]

ATTEMPTS = 3  # per mirror, as long as each attempt receives something
TIMEOUT = 30.0  # seconds without a byte
LIMIT = 1 << 30  # bytes of a download, and of the members of an archive together
_PIECE = 1 << 16


def fetch(
    name: str,
    folder: Path,
    progress: Progress | None = None,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
) -> Path | None:
    """Download the files of a dataset into a folder, unless they are there and verified.

    Args:
        name: mnist, fmnist, svhn, cifar10 or cifar100; digits and weather need no files. The other known
            recordings are not published in a form that can be fetched: the error says where they are.
        folder: the parent of the dataset's own folder.
        progress: called with the name of each download; it returns a function that is called with the
            fraction received.
        mirrors: base URLs to use instead of the public ones.
        timeout: seconds without a byte after which a mirror counts as stalled.

    Returns:
        The folder of the files, or the file of a recording; None if the dataset needs none.

    Raises:
        FetchError: no mirror delivered the dataset. Partial downloads are kept and resumed by the next call.
    """
    if name in RECORDINGS:
        return fetch_known(RECORDINGS[name], folder)
    if name not in CATALOGUE:
        raise InputError.of("name", f"one of {', '.join([*CATALOGUE, *RECORDINGS])}", repr(name))
    known = CATALOGUE[name]
    if not known.editions:
        return None
    existing = _verified(known, folder)
    if existing:
        return existing
    failures: list[str] = []
    for edition in known.editions:
        if edition.downloads:
            try:
                return _fetch_edition(edition, folder, progress or _silent, mirrors, timeout)
            except FetchError as error:
                failures.append(str(error))
    raise FetchError(f"{name} could not be fetched:\n" + "\n".join(failures))


def _verified(known: Description, folder: Path) -> Path | None:
    found = find_in(known, folder)
    if not found or not found.whole or not found.checkable:
        return None
    try:
        verify_dataset(found)
    except InputError:
        return None
    return found.folder


def _fetch_edition(
    edition: Edition, folder: Path, progress: Progress, mirrors: Sequence[str] | None, timeout: float
) -> Path:
    target = folder / edition.folders[0]
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"data_dir must be a folder that can be created, got {target}: {error.strerror}"
        raise InputError(message, field="data_dir", rule="a folder that can be created") from None
    if not os.access(target, os.W_OK):
        raise InputError.of("data_dir", "a writable folder", folder)
    for download in edition.downloads:
        addresses = [base.rstrip("/") + "/" + download.name for base in mirrors] if mirrors else None
        path = target / download.name
        if not _matches(path, download.checksum):
            _download(download, path, addresses or download.addresses, progress(download.name), timeout)
        if path.name.endswith(".tar.gz"):
            unpack(path, target, edition)
            path.unlink()
    return target


def _matches(path: Path, checksum: str) -> bool:
    return path.is_file() and digest(path, algorithm(checksum)) == checksum.partition(":")[2]


def _download(
    download: Download, path: Path, addresses: Sequence[str], advance: Callable[[float], None], timeout: float
) -> None:
    """Try the addresses in order until one has completed `….part`, then rename it."""
    part = path.with_name(path.name + ".part")
    failures = []
    for address in addresses:
        reason = _from_mirror(download, address, part, advance, timeout)
        if reason is None:
            part.replace(path)
            return
        failures.append(f"  {address}: {reason}")
    raise FetchError("\n".join(failures))


def _from_mirror(
    download: Download, address: str, part: Path, advance: Callable[[float], None], timeout: float
) -> str | None:
    """Why a mirror failed; None if `part` is complete and verified."""
    reason = ""
    for _ in range(ATTEMPTS):
        before = _size(part)
        if before and _matches(part, download.checksum):
            return None
        try:
            _transfer(address, part, advance, timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416:  # the server has nothing after our part: start again
                return f"HTTP {error.code} {error.reason}"
            part.unlink()
            continue
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = _reason(error, timeout)
            if _size(part) <= before:
                return reason
            continue
        if _matches(part, download.checksum):
            return None
        reason = f"the checksum of the file is not the published {download.checksum}"
        part.unlink()
        if not before:
            return reason
    return reason


def _transfer(address: str, part: Path, advance: Callable[[float], None], timeout: float) -> None:
    """Append the missing bytes to `part`; start again if the server ignores ranges."""
    start = _size(part)
    headers = {"User-Agent": "dufl", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        content_range = response.headers.get("Content-Range", "")
        if response.status != 206 or not content_range.startswith(f"bytes {start}-"):
            start = 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        with part.open("ab" if start else "wb") as file:
            received = start
            while piece := response.read(_PIECE):
                file.write(piece)
                received += len(piece)
                if received > LIMIT:
                    raise OSError(f"more than {LIMIT:,} bytes: not this file")
                advance(received / total if total else 0.0)
    if total is not None and received < total:
        raise OSError(f"the response ended after {received:,} of {total:,} bytes")


def _reason(error: Exception, timeout: float) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no byte for {timeout:g} s"
    return getattr(reason, "strerror", None) or str(reason) or type(error).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _silent(_: str) -> Callable[[float], None]:
    return lambda _: None


def unpack(archive: Path, target: Path, edition: Edition) -> None:
    """Extract the files of an edition from a `.tar.gz` into `target`: all of them or none.

    Only members with the expected names are extracted. The archive is refused, and nothing is left behind, if
    a path is absolute or leads out of the folder, if an expected name is a link or a device, or if a file is
    missing or does not match its checksum.
    """
    expected = {file.name: file for file in edition.files}
    ready: dict[str, Path] = {}
    try:
        with refusing(archive), tarfile.open(archive, "r:gz") as members:
            total = 0
            for member in members:
                total += member.size
                name = _member_name(archive, member, edition)
                if total > LIMIT:
                    raise InputError.of(str(archive), f"an archive of at most {LIMIT:,} bytes", "more")
                if name in expected and name not in ready:
                    ready[name] = target / f".{name}.new"
                    _extract(members, member, ready[name], expected[name])
        missing = expected.keys() - ready.keys()
        if missing:
            raise InputError.of(str(archive), f"an archive with {', '.join(sorted(missing))}", "none")
        for name, path in ready.items():
            os.replace(path, target / name)
    finally:
        for path in ready.values():
            path.unlink(missing_ok=True)


def _member_name(archive: Path, member: tarfile.TarInfo, edition: Edition) -> str | None:
    """The file name of a member in the edition's folder or at the top; None for any other member."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError.of(str(archive), "an archive that stays in its folder", repr(member.name))
    if str(path.parent) not in (".", edition.folders[0]):
        return None
    if path.name in {file.name for file in edition.files} and not member.isreg():
        raise InputError.of(f"{member.name} in {archive}", "a regular file", "a link or a device")
    return path.name


def _extract(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path, file: File) -> None:
    source = members.extractfile(member)
    assert source is not None  # it is a regular file
    with path.open("wb") as out:
        while piece := source.read(CHUNK):
            out.write(piece)
    if file.checksum:
        verify(path, file.checksum, file.size)
