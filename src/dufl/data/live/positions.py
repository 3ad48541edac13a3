"""Positions: what a stream needs to continue after a restart without losing or repeating a sample.

A position is a short text. It is stored with the samples that it belongs to, in the same transaction. After a
restart, the stream continues after the stored position: what was collected but not stored is collected again,
and what was stored is not.

    stream.seek(position)              at the start, with the stored position
    samples = stream.collect(100, 0)
    position = stream.position()       store it with the samples, then
    stream.confirm(position)           the source may forget them
"""

import json
from typing import Any, Protocol, runtime_checkable

from dufl.errors import InputError

POSITION = "position"  # the name under which a durable buffer stores it
START = ""  # the position before the first sample


@runtime_checkable
class Positioned(Protocol):
    """The methods that a stream with positions has besides `collect` and `resume`.

    `position` is called while `collect` may be running in another thread, and must not wait for it.
    """

    @property
    def collected(self) -> int:
        """The number of samples collected so far, in total; `seek` sets it to that of the position."""
        ...

    def position(self, collected: int | None = None) -> str:
        """The position after the first `collected` samples in total; None is all collected so far."""
        ...

    def seek(self, position: str) -> None:
        """Continue after a position; `START` is the beginning."""
        ...

    def confirm(self, position: str) -> None:
        """The samples up to this position are stored: the source may forget them."""
        ...


def position_facts(position: str | None) -> dict[str, str]:
    """The facts for `DurableBuffer.advance`; none for a stream without positions.

    >>> position_facts("7"), position_facts(None)
    ({'position': '7'}, {})
    """
    return {} if position is None else {POSITION: position}


def position_of(stream: Any) -> str | None:
    """Where a stream is; None if it has no positions."""
    return stream.position() if isinstance(stream, Positioned) else None


def seek(stream: Any, position: str | None) -> None:
    """Let a stream continue after a position, if there is one and the stream has positions."""
    if position is not None and isinstance(stream, Positioned):
        stream.seek(position)


def confirm(stream: Any, position: str | None) -> None:
    """Tell a stream that the samples up to a position are stored, if it has positions."""
    if position is not None and isinstance(stream, Positioned):
        stream.confirm(position)


def parse_position(text: str, *keys: str) -> dict[str, Any]:
    """The JSON object of a position, which must have these keys."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not set(keys) <= set(found):
        raise InputError.of("position", "one that the same kind of stream returned", text)
    return found
