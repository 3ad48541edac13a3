"""The messages between server and clients, as Flower's records.

No message carries a client's costs. A client's answers to offers are masked. When it commits to a deal, it
states the volumes of its plan.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dufl.errors import InputError
from dufl.flower.ledger import Claim
from dufl.flower.masking import check_public_key
from dufl.game.dynamics import Array as Volumes
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Offer

HELLO = "query.hello"
BEST_RESPONSE = "query.best_response"
COMMIT = "query.commit"
OPEN = "query.open"
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
        return cls(_integer(config, "client"), check_public_key(_bytes(config, "key")))


@dataclass(frozen=True, eq=False)
class Query:
    """Announcements that all clients respond to.

    Attributes:
        id: unique among the queries to these clients.
        first_round: of the plan.
        roster: the public keys of all clients that receive the query; if empty, answers are not masked.
        announcements: of one or more offers, all with or all without `trim_start`.
        run: the id of the server's run; empty if it is not known.
        grid: commitments are multiples of this number, unless a client has a grid of its own.
    """

    id: str
    first_round: int
    roster: Mapping[int, bytes]
    announcements: Sequence[Announcement]
    run: str = ""
    grid: int = 1

    @property
    def mask_id(self) -> str:
        """What masks are derived from: the id and the content. Two queries never have the same masks."""
        content = hashlib.sha256(repr((self.first_round, sorted(self.roster.items()))).encode())
        for announcement in self.announcements:
            content.update(announcement_digest(announcement))
        return f"{self.id} {content.hexdigest()}"

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
                "run": self.run,
                "grid": self.grid,
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
            str(config.get("run", "")),
            _grid(config),
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
    """A client's commitment to its plan.

    Attributes:
        client: the number of the client.
        volumes: its volume in every round.
        grid: the number that the volumes are multiples of, from the second round on.
    """

    client: int
    volumes: tuple[int, ...]
    grid: int = 1

    def to_records(self) -> RecordDict:
        """The content of a message."""
        config = ConfigRecord({"client": self.client, "volumes": list(self.volumes), "grid": self.grid})
        return RecordDict({RECORD: config})

    @classmethod
    def read(cls, records: RecordDict, rounds: int) -> "Commitment":
        """From the content of a message."""
        config = _config(records)
        volumes = tuple(_list(config, "volumes"))
        if len(volumes) != rounds or not all(type(volume) is int and volume >= 0 for volume in volumes):
            raise InputError.of("volumes", f"an integer >= 0 for each of {rounds} rounds", f"{volumes!r:.80}")
        grid = _grid(config)
        if any(volume % grid for volume in volumes[1:]):
            raise InputError.of("volumes", f"multiples of the grid, {grid}", f"{volumes!r:.80}")
        return cls(_integer(config, "client"), volumes, grid)


@dataclass(frozen=True)
class OpenQueries:
    """Asks for the keys of the masks of some queries.

    Attributes:
        mask_ids: of the queries.
        roster: of the queries.
    """

    mask_ids: tuple[str, ...]
    roster: Mapping[int, bytes]

    def to_records(self) -> RecordDict:
        """The content of a message."""
        clients, keys = list(self.roster), list(self.roster.values())
        config = ConfigRecord({"mask_ids": list(self.mask_ids), "clients": clients, "keys": keys})
        return RecordDict({RECORD: config})

    @classmethod
    def read(cls, records: RecordDict) -> "OpenQueries":
        """From the content of a message."""
        config = _config(records)
        roster = dict(zip(_list(config, "clients"), _list(config, "keys"), strict=True))
        return cls(tuple(map(str, _list(config, "mask_ids"))), roster)


@dataclass(frozen=True)
class MaskKeys:
    """The keys of the masks that a client shares with every other client, for some queries.

    Attributes:
        client: the number of the client.
        keys: for every query, the key by the number of the other client.
    """

    client: int
    keys: tuple[Mapping[int, bytes], ...]

    def to_records(self) -> RecordDict:
        """The content of a message."""
        keys = [key for shared in self.keys for _, key in sorted(shared.items())]
        return RecordDict({RECORD: ConfigRecord({"client": self.client, "keys": keys})})

    @classmethod
    def read(cls, records: RecordDict, queries: int, clients: Iterable[int]) -> "MaskKeys":
        """From the content of a message; `clients` are those of the roster."""
        config = _config(records)
        client, keys = _integer(config, "client"), _list(config, "keys")
        others = sorted(set(clients) - {client})
        if len(keys) != queries * len(others) or not all(isinstance(k, bytes) and len(k) == 32 for k in keys):
            rule = f"{queries * len(others)} keys of 32 bytes"
            raise InputError.of("keys", rule, f"{len(keys)} values")
        rows = (keys[start : start + len(others)] for start in range(0, len(keys), len(others) or 1))
        return cls(client, tuple(dict(zip(others, row, strict=True)) for row in rows))


def claim_record(claim: Claim) -> ConfigRecord:
    """A claim, to be added to the reply of the client's app."""
    return ConfigRecord(vars(claim))


def read_claim(records: RecordDict) -> Claim:
    """The claim in the content of a reply."""
    config = _config(records)
    age = config.get("mean_age")
    if not isinstance(age, float) or not 1 <= age < np.inf:
        raise InputError.of("mean_age", "a number >= 1", repr(age))
    numbers = {name: _integer(config, name) for name in ("client", "volume", "committed", "classes")}
    return Claim(mean_age=age, **numbers)


def train_record(round: int, run: str) -> ConfigRecord:
    """The round that clients must enter, from 0, and the id of the run."""
    return ConfigRecord({"round": round, "run": run})


def round_of(records: RecordDict) -> int:
    """The round of a train message, from 0."""
    return _integer(_config(records), "round")


def run_of(records: RecordDict) -> str:
    """The id of the run of a train message; empty if it is not known."""
    return str(_config(records).get("run", ""))


def announcement_digest(announcement: Announcement) -> bytes:
    """A hash of an announcement."""
    offer = announcement.offer
    numbers = offer.payment, offer.conservation_rate, announcement.trim_start
    volume = np.ascontiguousarray(announcement.announced_volume, np.float64).tobytes()
    return hashlib.sha256(repr(numbers).encode() + volume).digest()


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


def _grid(config: ConfigRecord) -> int:
    grid = _integer(config, "grid") if "grid" in config else 1
    if not grid:
        raise InputError.of("grid", "an integer >= 1", grid)
    return grid


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
