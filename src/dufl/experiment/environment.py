"""The software and hardware that computed a result."""

import importlib.metadata
import os
import platform
from typing import Any

_PACKAGES = ("dufl", "numpy", "numba", "scipy", "scikit-learn", "torch", "safetensors", "flwr")


def environment() -> dict[str, Any]:
    """The versions of Python and packages, and a description of the machine."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": versions,
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    """The name of the processor, if the system provides it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
