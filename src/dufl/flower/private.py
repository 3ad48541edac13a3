"""Files of one owner: keys, costs and samples of a client, which nobody else on the machine may read.

They are so from the moment of their creation. A file that is narrowed afterwards could be opened before.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def private_directory(path: Path) -> Path:
    """The directory; one that is missing is made for its owner alone, one that is there is left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def replacing_private(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, for its owner alone; takes its name once the block has ended well."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    temporary = Path(name)
    try:
        yield temporary
        os.fsync(descriptor)
        temporary.replace(path)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a text file that only its owner may read, whole or not at all."""
    with replacing_private(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
