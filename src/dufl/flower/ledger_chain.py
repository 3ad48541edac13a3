"""The hash chain of a ledger: whether any line was changed, inserted or removed after it was written.

The rounds and settlements of a ledger are numbered in the order in which they were written. Each has the
SHA-256 of the hash before it and of all its own values, including its entries. The first hash is that of the
version and the unit. The last one is the head: it stands for the whole ledger up to there. A chain that was
cut off is a valid chain; whoever knows its head finds out.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dufl.experiment.service import Unit
from dufl.flower.payment import Entry
from dufl.formatting import count

Decision = Literal["release", "forfeit"]


@dataclass(frozen=True)
class Head:
    """The end of a ledger.

    Attributes:
        rounds: the number of rounds in it.
        hash: the last hash of the chain; empty for a ledger of version 1, which has none.
    """

    rounds: int = 0
    hash: str = ""

    def __str__(self) -> str:
        return f"{count(self.rounds, 'round')}, head {self.hash or 'none (version 1)'}"


@dataclass(frozen=True)
class RoundRecord:
    """A round in a ledger; amounts are in units.

    Attributes:
        position: its number in the chain, from 1.
        round: t, from 0.
        time: when it was written, in UTC; empty if a ledger of version 1 had it.
        rule: how the payment was shared.
        payment: R.
        units: what was owed or held; less than R if nobody was paid, or if the budget was spent.
        entries: by client.
    """

    position: int
    round: int
    time: str
    rule: str
    payment: int
    units: int
    entries: Sequence[Entry]


@dataclass(frozen=True)
class Settlement:
    """An operator's decision about what is held back from a client.

    Attributes:
        position: its number in the chain, from 1.
        time: when it was written, in UTC.
        client: the number of the client.
        units: the amount.
        decision: whether it is released to the client, or forfeited.
        reason: the operator's.
    """

    position: int
    time: str
    client: int
    units: int
    decision: Decision
    reason: str


def first_hash(unit: Unit) -> str:
    """The hash of a ledger without any round."""
    return _hash("", ["ledger", 2, str(unit)])


def round_hash(before: str, record: RoundRecord) -> str:
    """The hash of a round that follows a hash.

    Raises:
        TypeError: a value is of a type that no ledger has.
    """
    values = (record.position, record.round, record.time, record.rule, record.payment, record.units)
    return _hash(before, ["round", *values, [list(vars(entry).values()) for entry in record.entries]])


def settlement_hash(before: str, settlement: Settlement) -> str:
    """The hash of a settlement that follows a hash.

    Raises:
        TypeError: a value is of a type that no ledger has.
    """
    return _hash(before, ["settlement", *vars(settlement).values()])


def _hash(before: str, values: list[Any]) -> str:
    """The SHA-256 of a hash and of values in canonical form: JSON in ASCII without white space."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=True, allow_nan=True)
    return hashlib.sha256(f"{before}\n{text}".encode("ascii")).hexdigest()
