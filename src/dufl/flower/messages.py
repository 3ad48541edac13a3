"""What goes over the wire: questions, answers, deals and claims as Flower's records, and nothing else.

A client's costs are in none of them, and single volumes are behind masks or hashes until they are claimed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dufl.errors import InputError
from dufl.game.dynamics import Array as Volumes
from dufl.game.negotiation import Question

HELLO = "query.hello"
BEST_RESPONSE = "query.best_response"
COMMIT = "query.commit"
RECORD = "dufl"  # the name of our record in a message

Anything = npt.NDArray[Any]


@dataclass(frozen=True)
class Hello:
    """Who a client is: its number and its public key."""

    client: int
    key: bytes

    def to_records(self) -> RecordDict:
        """As it is sent."""
        return RecordDict({RECORD: ConfigRecord({"client": self.client, "key": self.key})})

    @classmethod
    def read(cls, records: RecordDict) -> "Hello":
        """As it was sent."""
        config = _config(records)
        return cls(_whole(config, "client"), _bytes(config, "key"))


@dataclass(frozen=True, eq=False)
class Questions:
    """What all clients are asked at once.

    Attributes:
        name: no other questions to these clients have it.
        first_round: of the plan that is asked for.
        roster: the public key of every client that is asked; none of them masks its answer if it is empty.
        questions: some offers.
    """

    name: str
    first_round: int
    roster: Mapping[int, bytes]
    questions: Sequence[Question]

    def to_records(self) -> RecordDict:
        """As they are sent."""
        arrays = {
            "payment": np.array([q.payment for q in self.questions]),
            "conservation_rate": np.array([q.conservation_rate for q in self.questions]),
            "announced_volume": np.array([q.announced_volume for q in self.questions]),
        }
        config = ConfigRecord(
            {
                "name": self.name,
                "first_round": self.first_round,
                "clients": list(self.roster),
                "keys": list(self.roster.values()),
            }
        )
        return RecordDict({RECORD: config, "arrays": to_arrays(arrays)})

    @classmethod
    def read(cls, records: RecordDict) -> "Questions":
        """As they were sent."""
        config, arrays = _config(records), from_arrays(records["arrays"])
        rows = zip(arrays["payment"], arrays["conservation_rate"], arrays["announced_volume"], strict=True)
        return cls(
            str(config["name"]),
            _whole(config, "first_round"),
            dict(zip(_list(config, "clients"), _list(config, "keys"), strict=True)),
            [Question(float(payment), float(rate), volume) for payment, rate, volume in rows],
        )


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client answers: its volumes for every question, behind masks or in the open."""

    client: int
    volumes: Anything

    def to_records(self) -> RecordDict:
        """As it is sent."""
        config = ConfigRecord({"client": self.client})
        return RecordDict({RECORD: config, "arrays": to_arrays({"volumes": self.volumes})})

    @classmethod
    def read(cls, records: RecordDict, shape: tuple[int, int], masked: bool) -> "Answer":
        """As it was sent, to so many questions on so many rounds."""
        volumes = from_arrays(records.get("arrays")).get("volumes", np.zeros(()))
        if volumes.shape != shape or volumes.dtype != (np.uint64 if masked else np.float64):
            raise InputError.of("an answer", f"{shape} volumes", f"{volumes.dtype} of {volumes.shape}")
        if not masked and not are_volumes(volumes):
            raise InputError.of("an answer", "volumes, all >= 0", volumes.min())
        return cls(_whole(_config(records), "client"), volumes)


@dataclass(frozen=True)
class Commitment:
    """What a client binds itself to: a hash of its volume in every round of the plan."""

    client: int
    hashes: tuple[bytes, ...]

    def to_records(self) -> RecordDict:
        """As it is sent."""
        return RecordDict({RECORD: ConfigRecord({"client": self.client, "hashes": list(self.hashes)})})

    @classmethod
    def read(cls, records: RecordDict, rounds: int) -> "Commitment":
        """As it was sent, for so many rounds."""
        config = _config(records)
        hashes = tuple(_list(config, "hashes"))
        if len(hashes) != rounds or not all(isinstance(each, bytes) for each in hashes):
            raise InputError.of("hashes", f"one for each of {rounds} rounds", f"{len(hashes)} of them")
        return cls(_whole(config, "client"), hashes)


@dataclass(frozen=True)
class Claim:
    """What a client says of a round that it trained in.

    Attributes:
        client: who.
        volume: how many samples it trained on.
        committed: how many it committed itself to.
        nonce: which opens the commitment.
        mean_age: of the samples.
        classes: how many there are among them.
    """

    client: int
    volume: int
    committed: int
    nonce: bytes
    mean_age: float
    classes: int

    def to_record(self) -> ConfigRecord:
        """As it is sent, beside what the app sends."""
        return ConfigRecord(vars(self))

    @classmethod
    def read(cls, records: RecordDict) -> "Claim":
        """As it was sent."""
        config = _config(records)
        age = config.get("mean_age")
        if not isinstance(age, float) or not 0 <= age < np.inf:
            raise InputError.of("mean_age", "a number >= 0", repr(age))
        numbers = {name: _whole(config, name) for name in ("client", "volume", "committed", "classes")}
        return cls(nonce=_bytes(config, "nonce"), mean_age=age, **numbers)


def round_of(records: RecordDict) -> int:
    """The round that a message to train is of, from 0."""
    return _whole(_config(records), "round")


def commitment(volume: int, nonce: bytes) -> bytes:
    """A hash that binds to a volume and says nothing of it."""
    return hashlib.sha256(nonce + volume.to_bytes(8, "big")).digest()


def to_arrays(arrays: Mapping[str, Anything]) -> ArrayRecord:
    """Arrays by name."""
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def from_arrays(record: Any) -> dict[str, Anything]:
    """The arrays of a record."""
    if not isinstance(record, ArrayRecord):
        raise InputError.of("a message", "one with a record of arrays", type(record).__name__)
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, EOFError, OSError) as fault:
        raise InputError(f"arrays must be readable: {fault}") from None


def _config(records: RecordDict) -> ConfigRecord:
    record = records.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise InputError.of("a message", f"one with a record {RECORD!r}", list(records))
    return record


def _whole(config: ConfigRecord, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError.of(name, "a whole number >= 0", repr(value))
    return value


def _bytes(config: ConfigRecord, name: str) -> bytes:
    value = config.get(name)
    if not isinstance(value, bytes):
        raise InputError.of(name, "bytes", repr(value))
    return value


def _list(config: ConfigRecord, name: str) -> list[Any]:
    value = config.get(name)
    if not isinstance(value, list):
        raise InputError.of(name, "a list", repr(value))
    return value


def are_volumes(values: Volumes) -> bool:
    """Whether these can be volumes."""
    return bool(np.isfinite(values).all() and (values >= 0).all())
