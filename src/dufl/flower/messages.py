"""The messages between server and clients, as Flower's records.

No message carries a client's costs. The volumes of a single client are masked or hashed until the client
claims them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dufl.errors import InputError
from dufl.flower.ledger import Claim
from dufl.game.dynamics import Array as Volumes
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Offer

HELLO = "query.hello"
BEST_RESPONSE = "query.best_response"
COMMIT = "query.commit"
RECORD = "dufl"  # the name of DUFL's record in a message

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Hello:
    """The number and the public key of a client."""

    client: int
    key: bytes

    def to_records(self) -> RecordDict:
        """The content of a message."""
        return RecordDict({RECORD: ConfigRecord({"client": self.client, "key": self.key})})

    @classmethod
    def read(cls, records: RecordDict) -> "Hello":
        """From the content of a message."""
        config = _config(records)
        return cls(_integer(config, "client"), _bytes(config, "key"))


@dataclass(frozen=True, eq=False)
class Query:
    """Announcements that all clients respond to.

    Attributes:
        id: unique among the queries to these clients.
        first_round: of the plan.
        roster: the public keys of all clients that receive the query; if empty, answers are not masked.
        announcements: of one or more offers, all with or all without `trim_start`.
    """

    id: str
    first_round: int
    roster: Mapping[int, bytes]
    announcements: Sequence[Announcement]

    def to_records(self) -> RecordDict:
        """The content of a message."""
        offers = [announcement.offer for announcement in self.announcements]
        arrays = {
            "payment": np.array([offer.payment for offer in offers]),
            "conservation_rate": np.array([offer.conservation_rate for offer in offers]),
            "announced_volume": np.array([each.announced_volume for each in self.announcements]),
        }
        config = ConfigRecord(
            {
                "id": self.id,
                "first_round": self.first_round,
                "clients": list(self.roster),
                "keys": list(self.roster.values()),
                "trim_start": self.announcements[0].trim_start,
            }
        )
        return RecordDict({RECORD: config, "arrays": to_arrays(arrays)})

    @classmethod
    def read(cls, records: RecordDict) -> "Query":
        """From the content of a message."""
        config, arrays = _config(records), from_arrays(records["arrays"])
        rows = zip(arrays["payment"], arrays["conservation_rate"], arrays["announced_volume"], strict=True)
        trim = config.get("trim_start") is True
        return cls(
            str(config["id"]),
            _integer(config, "first_round"),
            dict(zip(_list(config, "clients"), _list(config, "keys"), strict=True)),
            [
                Announcement(Offer(payment=float(payment), conservation_rate=float(rate)), volume, trim)
                for payment, rate, volume in rows
            ],
        )


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's volumes for every announcement, masked or not."""

    client: int
    volumes: AnyArray

    def to_records(self) -> RecordDict:
        """The content of a message."""
        config = ConfigRecord({"client": self.client})
        return RecordDict({RECORD: config, "arrays": to_arrays({"volumes": self.volumes})})

    @classmethod
    def read(cls, records: RecordDict, shape: tuple[int, int], masked: bool) -> "Answer":
        """From the content of a message; `shape` is (announcements, rounds)."""
        volumes = from_arrays(records.get("arrays")).get("volumes", np.zeros(()))
        if volumes.shape != shape or volumes.dtype != (np.uint64 if masked else np.float64):
            raise InputError.of("volumes", f"of shape {shape}", f"{volumes.dtype} of shape {volumes.shape}")
        if not masked and not are_volumes(volumes):
            raise InputError.of("volumes", "finite and >= 0", volumes.min())
        return cls(_integer(_config(records), "client"), volumes)


@dataclass(frozen=True)
class Commitment:
    """A client's commitment to its plan: one hash per round."""

    client: int
    hashes: tuple[bytes, ...]

    def to_records(self) -> RecordDict:
        """The content of a message."""
        return RecordDict({RECORD: ConfigRecord({"client": self.client, "hashes": list(self.hashes)})})

    @classmethod
    def read(cls, records: RecordDict, rounds: int) -> "Commitment":
        """From the content of a message."""
        config = _config(records)
        hashes = tuple(_list(config, "hashes"))
        if len(hashes) != rounds or not all(isinstance(each, bytes) for each in hashes):
            raise InputError.of("hashes", f"one for each of {rounds} rounds", f"{len(hashes)} hashes")
        return cls(_integer(config, "client"), hashes)


def claim_record(claim: Claim) -> ConfigRecord:
    """A claim, to be added to the reply of the client's app."""
    return ConfigRecord(vars(claim))


def read_claim(records: RecordDict) -> Claim:
    """The claim in the content of a reply."""
    config = _config(records)
    age = config.get("mean_age")
    if not isinstance(age, float) or not 0 <= age < np.inf:
        raise InputError.of("mean_age", "a number >= 0", repr(age))
    numbers = {name: _integer(config, name) for name in ("client", "volume", "committed", "classes")}
    return Claim(nonce=_bytes(config, "nonce"), mean_age=age, **numbers)


def round_of(records: RecordDict) -> int:
    """The round of a train message, from 0."""
    return _integer(_config(records), "round")


def commitment_hash(volume: int, nonce: bytes) -> bytes:
    """A hash that binds to a volume and hides it."""
    return hashlib.sha256(nonce + volume.to_bytes(8, "big")).digest()


def to_arrays(arrays: Mapping[str, AnyArray]) -> ArrayRecord:
    """Arrays by name, as a record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def from_arrays(record: Any) -> dict[str, AnyArray]:
    """The arrays of a record, by name."""
    if not isinstance(record, ArrayRecord):
        raise InputError.of("arrays", "a record of arrays", type(record).__name__)
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, EOFError, OSError) as error:
        raise InputError(f"arrays must be readable: {error}", field="arrays") from None


def _config(records: RecordDict) -> ConfigRecord:
    record = records.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise InputError.of("message", f"one with a record {RECORD!r}", list(records))
    return record


def _integer(config: ConfigRecord, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError.of(name, "an integer >= 0", repr(value))
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
    """Whether all values are finite and >= 0."""
    return bool(np.isfinite(values).all() and (values >= 0).all())
