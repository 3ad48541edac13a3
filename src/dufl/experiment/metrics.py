"""`metrics.jsonl`: one JSON object per round, each with a checksum.

The last entry of a line, `checksum`, is a prefix of the SHA-256 of the text before it. It detects lines that
were damaged or edited, and distinguishes them from a line that was truncated when the process was killed.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dufl.data.client_data import Period
from dufl.errors import InputError
from dufl.experiment.files import from_json, read_bytes, to_json
from dufl.experiment.output import reading
from dufl.game.loss import PARAMETERS
from dufl.learning.federation import Record, Replan

FILE = "metrics.jsonl"
_LINE = re.compile(r'(\{.*), "checksum": "([0-9a-f]{16})"\}')
_LARGEST = 2**53  # larger integers are not exact as floats
_MOST = 1e100  # maximum of values that are summed and squared, to prevent overflow


def to_line(record: Record) -> str:
    """A record as a line of the file."""
    values = asdict(record)
    kept = {name: value for name, value in values.items() if value is not None or name not in _OPTIONAL}
    return seal(to_json(kept, indent=None))


def seal(text: str) -> str:
    r"""A JSON object on one line, with the checksum as its last entry.

    >>> seal('{"round": 0}')
    '{"round": 0, "checksum": "ae3a1247d238efa0"}\n'
    """
    body = text.rstrip()[:-1]
    return f'{body}, "checksum": "{_checksum(body)}"}}\n'


def read_metrics(folder: Path) -> list[Record]:
    """The completed rounds of a run. A truncated last line is ignored."""
    path = folder / FILE
    with reading(path):
        content = read_bytes(path)
    *lines, last = content.split(b"\n")
    if last and not _is_truncated(last):
        lines.append(last)
    return [_read_line(path, number, line) for number, line in enumerate(lines)]


def _is_truncated(line: bytes) -> bool:
    """Whether a last line is incomplete, as opposed to complete with a wrong line ending."""
    return not any(_LINE.fullmatch(part.decode("utf-8", "replace")) for part in (line, line[:-1]))


def _read_line(path: Path, number: int, line: bytes) -> Record:
    try:
        return _record(_unsealed(line), number)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        reason = f"{error}" or type(error).__name__
        raise InputError(f"{path} must be the metrics of a run: line {number + 1}: {reason}") from None


def _unsealed(line: bytes) -> Any:
    """The content of a line, if its checksum is correct."""
    parts = _LINE.fullmatch(line.decode("utf-8"))
    if parts is None:
        raise ValueError("it must be a JSON object that ends with its checksum")
    if _checksum(parts[1]) != parts[2]:
        raise ValueError("its checksum is wrong: it was damaged or edited")
    return from_json(parts[1] + "}")


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _record(values: Any, round: int) -> Record:
    """Validate all values of a round and return its record."""
    missing = [name for name in _RULES if name not in values and name not in _OPTIONAL]
    unknown = [name for name in values if name not in _RULES]
    if missing or unknown:
        raise ValueError(f"it must have {', '.join(_RULES)}, got {', '.join(map(repr, values))}")
    for name, (rule, holds) in _RULES.items():
        if name in values and not holds(values[name]):
            raise InputError.of(name, rule, f"{values[name]!r:.80}")
    if values["round"] != round:
        raise InputError.of("round", f"{round}, one more than the previous round", values["round"])
    if sum(values["volumes"]) != values["total_volume"]:
        raise InputError.of("total_volume", "the sum of volumes", values["total_volume"])
    known = {name: value for name, value in values.items() if value is not None}
    known["metrics"] = {n: math.nan if v is None else float(v) for n, v in values["metrics"].items()}
    known["period"] = None if values["period"] is None else _period(values["period"])
    if "replan" in known:
        known["replan"] = _replan(known["replan"])
    return Record(**{**_UNKNOWN, **known})


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_number(value: object) -> bool:
    return (type(value) is int and abs(value) < _LARGEST) or type(value) is float


def _is_amount(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= _MOST


def _is_cost(value: Any) -> bool:
    return value is None or (_is_number(value) and value >= 0)


def _is_share(value: Any) -> bool:
    return value is None or (_is_number(value) and 0 <= value <= 1)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_reasons(value: object) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,15}", client) and isinstance(reason, str) for client, reason in value.items()
    )


def _are_sizes(value: object) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,15}", client) and _is_amount(size) for client, size in value.items()
    )


def _are_scores(value: object) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,15}", client)
        and isinstance(score, list)
        and len(score) == 3
        and all(map(_is_number, score))
        for client, score in value.items()
    )


def _are_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(item is None or _is_number(item) for item in value.values())


def _is_period(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {field.name for field in fields(Period)}:
        return False
    numbers = [value[name] for name in ("begin", "end")]
    scores = [value[name] for name in ("no_change", "majority")]
    return (
        all(_is_number(number) and abs(number) <= _MOST for number in numbers)
        and all(score is None or _is_amount(score) for score in scores)
        and isinstance(value["dated"], bool)
        and _is_count(value["samples"])
    )


def _period(values: Mapping[str, Any]) -> Period:
    known: dict[str, Any] = {name: math.nan if value is None else value for name, value in values.items()}
    return Period(**known)


def _is_replan(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {field.name for field in fields(Replan)}:
        return False
    law = value["law"]
    return (
        all(_is_amount(value[name]) for name in ("payment", "old_payment"))
        and all(_is_rate(value[name]) for name in ("conservation_rate", "old_conservation_rate"))
        and all(_is_cost(value[name]) for name in ("cost", "old_cost"))
        and all(_is_count(value[name]) for name in ("observations", "losing_clients"))
        and isinstance(value["drift"], bool)
        and isinstance(law, dict)
        and set(law) == set(PARAMETERS)
        and all(map(_is_number, law.values()))
    )


def _is_rate(value: Any) -> bool:
    return value is not None and _is_share(value)


def _replan(values: Mapping[str, Any]) -> Replan:
    costs = {name: math.inf for name in ("cost", "old_cost") if values[name] is None}
    return Replan(**{**values, **costs})


_COUNT = "an integer >= 0", _is_count
_COUNTS = "a list of integers >= 0", _are_counts
_AMOUNT = f"in [0, {_MOST:g}]", _is_amount
_COST = "a number >= 0, or null", _is_cost
_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "round": _COUNT,
    "accuracy": ("in [0, 1], or null", _is_share),
    "loss": ("a number, or null", lambda value: value is None or _is_number(value)),
    "total_volume": _COUNT,
    "mean_age": _AMOUNT,
    "planned_staleness": _COST,
    "payment": _AMOUNT,
    "server_cost": _COST,
    "cost_of_payment": _COST,
    "cost_of_volume": _COST,
    "cost_of_staleness": _COST,
    "classes": _COUNT,
    "volumes": _COUNTS,
    "participants": _COUNT,
    "dropped": _COUNTS,
    "refused": ("an object of strings by client number", _are_reasons),
    "seconds": _AMOUNT,
    "metrics": ("an object of numbers", _are_metrics),
    "shortfall": _COUNT,
    "period": ("the period of a recording, or null", lambda value: value is None or _is_period(value)),
    "replan": ("a new plan", _is_replan),
    "bounded": ("an object of numbers >= 0 by client number", _are_sizes),
    "scores": ("an object of [mean, low, high] by client number", _are_scores),
    "held": ("an object of strings by client number", _are_reasons),
}
_OPTIONAL = ("replan", "bounded", "scores", "held")  # only in the rounds that have one
_UNKNOWN: Mapping[str, Any] = {  # the meaning of null: JSON has neither infinity nor NaN
    "accuracy": math.nan,
    "loss": math.nan,
    "planned_staleness": None,
    "server_cost": math.inf,
    "cost_of_payment": math.inf,
    "cost_of_volume": math.inf,
    "cost_of_staleness": math.inf,
}
