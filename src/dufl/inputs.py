"""The base of validated inputs: frozen models without unknown fields.

Pydantic detects invalid values; this module reports them as ``field must be rule, got value``.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from dufl.errors import LONGEST, InputError, shown

_RULES = {
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "list_type": "a list",
    "string_type": "a string",
    "model_type": "a table",
    "dict_type": "a table",
    "literal_error": "one of {expected}",
    "missing": "given",
}


def must_be(rule: str, holds: Callable[[Any], bool]) -> AfterValidator:
    """A validator that raises ``must be <rule>`` if `holds` returns false."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError("rule", "{rule}", {"rule": rule})
        return value

    return AfterValidator(check)


def _plain(value: object) -> object:
    """A NumPy scalar as a Python number; any other value unchanged."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def _pair(value: object) -> object:
    """A list of two values as a tuple: TOML and JSON have no tuples."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise PydanticCustomError("rule", "a pair [low, high]")
    return tuple(value)


LARGEST = 1e50  # maximum magnitude of a number: squares and products stay finite
MOST = 10**9  # maximum of a count

Number = Annotated[
    float,
    BeforeValidator(_plain),
    must_be("a finite number", math.isfinite),
    must_be(f"a number of magnitude {LARGEST:g} at most", lambda v: abs(v) <= LARGEST),
]
NonNegative = Annotated[Number, must_be(">= 0", lambda v: v >= 0)]
Positive = Annotated[
    Number,
    must_be("> 0", lambda v: v > 0),
    must_be(f"{1 / LARGEST:g} at least", lambda v: v >= 1 / LARGEST),
]
Share = Annotated[Number, must_be("in [0, 1]", lambda v: 0 <= v <= 1)]
Whole = Annotated[int, BeforeValidator(_plain)]
Count = Annotated[Whole, must_be(">= 1", lambda v: v >= 1), must_be(f"{MOST:,} at most", lambda v: v <= MOST)]
Seed = Annotated[Whole, must_be(">= 0", lambda v: v >= 0), must_be("below 2^63", lambda v: v < 2**63)]
Interval = Annotated[tuple[Number, Number], BeforeValidator(_pair)]


class Inputs(BaseModel):
    """A frozen model of validated inputs. An invalid value raises `InputError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise input_error(error, type(self)) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed. All fields are validated again."""
        return type(self)(**({name: getattr(self, name) for name in type(self).model_fields} | changes))


def input_error(invalid: ValidationError, model: type[BaseModel]) -> InputError:
    """The first error of a validation as an `InputError` with field, rule and value."""
    errors = invalid.errors()
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    kind = error["type"]
    if kind == "extra_forbidden":
        key = str(error["loc"][-1])
        return InputError(unknown_key(key, model.model_fields), field=key)
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InputError):  # raised by one of DUFL's validators
        return cause if cause.field else InputError(str(cause), field=_field(error))
    value = None if kind == "missing" else error["input"]
    return InputError.of(_field(error), _rule(error), value, text=_shown(error))


def unknown_key(key: str, known: Mapping[str, object], where: str = "") -> str:
    """The message for an unknown key. It suggests the nearest known key."""
    advice = did_you_mean(key, known) or f"known are {', '.join(known)}"
    return f"unknown key {shown(key)}{where}: {advice}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion of the nearest known name; empty if no name is similar."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else ""


def nearest(key: str, known: Iterable[str], similarity: float = 0.5) -> str:
    """The known key that is most similar to `key`; empty if no key is similar."""
    return next(iter(difflib.get_close_matches(key[:LONGEST], list(known), n=1, cutoff=similarity)), "")


def _field(error: ErrorDetails) -> str:
    """The dotted name of the field, without the tags that Pydantic adds to the path."""
    parts = [str(p) for p in error["loc"] if isinstance(p, int) or p.isidentifier()]
    return ".".join(parts) or "input"


def _rule(error: ErrorDetails) -> str:
    if error["type"] == "rule":
        return error["msg"]
    return _RULES.get(error["type"], error["msg"]).format(**error.get("ctx", {}))


def _shown(error: ErrorDetails) -> str:
    return "nothing" if error["type"] == "missing" else shown(error["input"])
