"""Download a dataset: several mirrors, resumed where it broke off, checked before it takes its name."""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from dufl.data.bounded import algorithm, digest
from dufl.data.catalogue import CATALOGUE, Description, Download, Edition
from dufl.data.originals import check
from dufl.data.places import find_in
from dufl.data.unpack import unpack
from dufl.errors import FetchError, InputError

Begin = Callable[[str], Callable[[float], None]]

ATTEMPTS = 3  # to go on at one mirror, as long as each brings something
TIMEOUT = 30.0  # seconds without a byte
LIMIT = 1 << 30  # bytes; no dataset here has a larger file
_PIECE = 1 << 16


def fetch(
    name: str,
    folder: Path,
    progress: Begin | None = None,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
) -> Path | None:
    """Have the files of a dataset in a folder; those that are there and verified are left alone.

    Args:
        name: mnist, fmnist, svhn, cifar10 or cifar100. For digits, which needs no files, nothing is done.
        folder: gets a folder of its own for the dataset.
        progress: called with what is begun; what it returns is called with the share that is done.
        mirrors: addresses of folders to use instead of the public ones.
        timeout: seconds without a byte after which a mirror counts as stalled.

    Returns:
        Where the files are; None if there need be none.

    Raises:
        FetchError: no edition could be had from any mirror; what was loaded so far is kept, to go on from.
    """
    if name not in CATALOGUE:
        raise InputError.of("name", f"one of {', '.join(CATALOGUE)}", repr(name))
    known = CATALOGUE[name]
    if not known.editions:
        return None
    there = _verified(known, folder)
    if there:
        return there
    failures: list[str] = []
    for edition in known.editions:
        if edition.downloads:
            try:
                return _fetch_edition(edition, folder, progress or _silent, mirrors, timeout)
            except FetchError as fault:
                failures.append(str(fault))
    raise FetchError(f"{name} could not be fetched:\n" + "\n".join(failures))


def _verified(known: Description, folder: Path) -> Path | None:
    found = find_in(known, folder)
    if not found or not found.whole or not found.checkable:
        return None
    try:
        check(found)
    except InputError:
        return None
    return found.folder


def _fetch_edition(
    edition: Edition, folder: Path, progress: Begin, mirrors: Sequence[str] | None, timeout: float
) -> Path:
    target = folder / edition.folders[0]
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"{target} must be a folder that can be made: {fault.strerror}") from None
    if not os.access(target, os.W_OK):
        raise InputError.of("data_dir", "a folder that can be written to", folder)
    for download in edition.downloads:
        addresses = [base.rstrip("/") + "/" + download.name for base in mirrors] if mirrors else None
        path = target / download.name
        if not _has(path, download.checksum):
            _download(download, path, addresses or download.addresses, progress(download.name), timeout)
        if path.name.endswith(".tar.gz"):
            unpack(path, target, edition)
            path.unlink()
    return target


def _has(path: Path, checksum: str) -> bool:
    return path.is_file() and digest(path, algorithm(checksum)) == checksum.partition(":")[2]


def _download(
    download: Download, path: Path, addresses: Sequence[str], advance: Callable[[float], None], timeout: float
) -> None:
    """Try the addresses in turn until one has filled `….part` with the right bytes."""
    part = path.with_name(path.name + ".part")
    failures = []
    for address in addresses:
        fault = _from_mirror(download, address, part, advance, timeout)
        if fault is None:
            part.replace(path)
            return
        failures.append(f"  {address}: {fault}")
    raise FetchError("\n".join(failures))


def _from_mirror(
    download: Download, address: str, part: Path, advance: Callable[[float], None], timeout: float
) -> str | None:
    """What went wrong at one mirror; None if the file is there, whole and right."""
    said = ""
    for _ in range(ATTEMPTS):
        before = _size(part)
        if before and _has(part, download.checksum):
            return None
        try:
            _transfer(address, part, advance, timeout)
        except urllib.error.HTTPError as fault:
            fault.close()
            if fault.code != 416:  # the server does not have what would come after our part: start over
                return f"HTTP {fault.code} {fault.reason}"
            part.unlink()
            continue
        except (OSError, ValueError, http.client.HTTPException) as fault:
            said = _words(fault, timeout)
            if _size(part) <= before:
                return said
            continue
        if _has(part, download.checksum):
            return None
        said = f"the file has another checksum than the published {download.checksum}"
        part.unlink()
        if not before:
            return said
    return said


def _transfer(address: str, part: Path, advance: Callable[[float], None], timeout: float) -> None:
    """Load what is missing of a file; from the start if the server does not know ranges."""
    start = _size(part)
    headers = {"User-Agent": "dufl", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        told = answer.headers.get("Content-Range", "")
        if answer.status != 206 or not told.startswith(f"bytes {start}-"):
            start = 0
        length = answer.headers.get("Content-Length", "")
        whole = start + int(length) if length.isdecimal() else None
        with part.open("ab" if start else "wb") as file:
            done = start
            while piece := answer.read(_PIECE):
                file.write(piece)
                done += len(piece)
                if done > LIMIT:
                    raise OSError(f"more than {LIMIT:,} bytes: not this file")
                advance(done / whole if whole else 0.0)
    if whole is not None and done < whole:
        raise OSError(f"the answer ended after {done:,} of {whole:,} bytes")


def _words(fault: Exception, timeout: float) -> str:
    reason = getattr(fault, "reason", fault)
    if isinstance(reason, TimeoutError):
        return f"no byte for {timeout:g} s"
    return getattr(reason, "strerror", None) or str(reason) or type(fault).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _silent(_: str) -> Callable[[float], None]:
    return lambda _: None
