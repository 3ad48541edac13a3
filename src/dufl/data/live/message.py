"""A sample in a message: a JSON object with the features `x`, the label `y` and optionally an `id`."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.recording import Task

_EXACT = 2**53  # integers up to here are exact in JSON
_LONGEST_ID = 200


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample: float32 features and a label."""

    features: npt.NDArray[np.float32]
    label: float


@dataclass(frozen=True, eq=False)
class Parsed:
    """A sample and the id of its message; None if it has none."""

    sample: Sample
    id: str | None


def parse_message(payload: bytes, shape: tuple[int, ...], task: Task) -> Parsed | None:
    """The sample in a message, or None if it has another form; never raises.

    Features must be finite numbers of the given shape. Labels must be integers, or for regression finite
    numbers. An id must be an integer or a text of 1 to 200 characters.

    >>> parse_message(b'{"x": [1, 2.5], "y": 3, "id": 8}', (2,), "classification").id
    '8'
    >>> parse_message(b'{"x": [1], "y": 3}', (2,), "classification") is None
    True
    """
    try:
        found = json.loads(payload)
        features = np.asarray(found["x"])
        label, name = found["y"], found.get("id")
        numeric = features.dtype.kind in "uif" and features.shape == shape
        if not numeric or not _is_label(label, task) or not _is_id(name):
            return None
        with np.errstate(over="ignore"):
            stored = features.astype(np.float32)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    if not np.isfinite(stored).all():
        return None
    return Parsed(Sample(stored, label), None if name is None else str(name))


def _is_label(label: Any, task: Task) -> bool:
    if isinstance(label, bool) or not isinstance(label, int | float):
        return False
    if task == "classification":
        return isinstance(label, int) and abs(label) <= _EXACT
    return abs(label) <= float(np.finfo(np.float32).max)  # false for NaN


def _is_id(name: Any) -> bool:
    if name is None:
        return True
    if isinstance(name, str):
        return 0 < len(name) <= _LONGEST_ID
    return isinstance(name, int) and not isinstance(name, bool) and abs(name) <= _EXACT
