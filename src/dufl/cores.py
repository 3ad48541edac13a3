"""The number of cores that a process may use."""

import os

SHARE = "DUFL_CORES"


def cores() -> int:
    """All cores of the machine, or as many as the environment variable `DUFL_CORES` says.

    Runs that share a machine get a share each. Results do not depend on it.

    >>> cores() >= 1
    True
    """
    share = os.environ.get(SHARE, "")
    return int(share) if share.isdecimal() and int(share) > 0 else os.cpu_count() or 1
