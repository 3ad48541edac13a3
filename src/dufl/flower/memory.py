"""What the server knows about its clients after a round, besides the deal: it is part of the checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dufl.errors import InputError
from dufl.flower.ledger import Claim
from dufl.flower.messages import AnyArray
from dufl.flower.planning import Held

KEY = 32  # bytes


@dataclass(frozen=True)
class Memory:
    """What the server knows about its clients. Its size depends on their number, not on that of rounds.

    Attributes:
        keys: the public key of every client that was ever registered.
        joined: the round of the first deal of every client.
        accepted: the round and the claim of the last accepted update of every client.
        held: what the clients hold together.
    """

    keys: Mapping[int, bytes] = field(default_factory=dict)
    joined: Mapping[int, int] = field(default_factory=dict)
    accepted: Mapping[int, tuple[int, Claim]] = field(default_factory=dict)
    held: Held | None = None

    def to_arrays(self) -> dict[str, AnyArray]:
        """As arrays for a checkpoint."""
        held = self.held or Held()
        claims = [(c, round, claim.volume) for c, (round, claim) in self.accepted.items()]
        return {
            "clients": np.array(list(self.keys), np.int64),
            "keys": np.frombuffer(b"".join(self.keys.values()), np.uint8).reshape(-1, KEY),
            "joined": np.array(list(self.joined.items()), np.int64).reshape(-1, 2),
            "accepted": np.array(claims, np.int64).reshape(-1, 3),
            "ages": np.array([claim.mean_age for _, claim in self.accepted.values()], np.float64),
            "held": np.array([held.volume, held.staleness]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> "Memory":
        """From the arrays of a checkpoint; nothing is known if there are none."""
        if not arrays:
            return cls()
        try:
            keys = zip(arrays["clients"].tolist(), arrays["keys"], strict=True)
            claims = zip(arrays["accepted"].tolist(), arrays["ages"].tolist(), strict=True)
            return cls(
                {client: bytes(key.tobytes()) for client, key in keys},
                dict(arrays["joined"].tolist()),
                {c: (round, Claim(c, volume, volume, age, 0)) for (c, round, volume), age in claims},
                Held(*arrays["held"].tolist()),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"the checkpoint must have what is known of clients: {error!r}") from None
