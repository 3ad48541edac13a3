"""What a client has and knows, in a file of its own: samples, plan, key. It outlives processes and runs.

A round is entered, never left: the message of round t makes the buffer what it has to be in round t, if it
is not that already. So a message that comes twice changes nothing twice, and a server that begins a round
again finds the clients as they were. What was collected for the next round waits in a file beside.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from flwr.app import Context

from dufl.data.buffer import Discard, Snapshot
from dufl.data.durable import DurableBuffer
from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.data.samples import samples_of
from dufl.data.simulation import initial_ages
from dufl.data.streams import BEFORE, Stream
from dufl.errors import InputError
from dufl.flower.masking import new_key, public_key
from dufl.flower.messages import commitment
from dufl.flower.private import private_directory, replacing_private
from dufl.game.client import best_response
from dufl.game.dynamics import Array
from dufl.game.negotiation import Question


@dataclass(frozen=True, eq=False)
class ClientProfile:
    """What only the client itself knows.

    Attributes:
        client: its number in the federation.
        file: where its buffer is kept.
        stream: where its fresh samples come from.
        initial_volume: how many samples it holds at the start.
        collection_cost: α_k.
        training_cost: β_k.
        initial_staleness: the mean age of the first samples.
        capacity: the most samples it can hold.
        discard: which samples it gives up first.
        seed: of rounding and discarding.
    """

    client: int
    file: Path
    stream: Stream[Any]
    initial_volume: int
    collection_cost: float
    training_cost: float
    initial_staleness: float = 1.0
    capacity: float = math.inf
    discard: Discard = "uniform"
    seed: int = 0

    @classmethod
    def from_context(
        cls,
        context: Context,
        stream: Callable[[int], Stream[Any]],
        initial_volume: int,
        collection_cost: float = 5e-4,
        training_cost: float = 2.5e-5,
        **others: Any,
    ) -> "ClientProfile":
        """The client at a node of Flower, by its `partition-id`.

        Its file goes into the `folder` of the node's configuration, or else of the run's.
        """
        client, folder = context.node_config.get("partition-id"), context.node_config.get("folder")
        if not isinstance(client, int) or client < 0:
            raise InputError.of("partition-id of the node", "the number of its client", repr(client))
        where = folder or context.run_config.get("folder")
        if not isinstance(where, str):
            raise InputError.of("folder of the node or run", "a path", repr(where))
        file = Path(where) / f"client-{client}.sqlite"
        costs = collection_cost, training_cost
        return cls(client, file, stream(client), initial_volume, *costs, **others)


class ClientStore:
    """A client's file, open."""

    def __init__(self, person: ClientProfile) -> None:
        self.person = person
        if not person.file.exists():
            private_directory(person.file.parent)
            _create(person)
        self._buffer: DurableBuffer[Any] = DurableBuffer.open(person.file, person.discard)
        if self._buffer.recall("key") is None:
            self._buffer.remember(key=new_key().hex())

    def __enter__(self) -> "ClientStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._buffer.close()

    @property
    def key(self) -> bytes:
        """The private key; it never leaves the client."""
        return bytes.fromhex(self._fact("key"))

    @property
    def public(self) -> bytes:
        """What the others may know of it."""
        return public_key(self.key)

    def answer(self, question: Question) -> Array:
        """D_k(t), the best response from the client's own costs and what it holds now."""
        person = self.person
        price = question.payment / question.announced_volume
        volume, _ = best_response(
            price,
            float(len(self._buffer)),
            person.collection_cost,
            person.training_cost,
            question.conservation_rate,
        )
        return np.asarray(volume[:, 0])

    def commit(self, deal: Question, first_round: int) -> tuple[bytes, ...]:
        """Plan for a deal and keep the plan; a hash of the volume of every round."""
        volume = self.answer(deal)
        if volume.max() > self.person.capacity:
            raise InputError.of("the plan", f"within the capacity {self.person.capacity:g}", volume.max())
        seed, client = self.person.seed, self.person.client
        plan = integer_plan(volume, deal.conservation_rate, seed, client)
        facts = {
            "first_round": first_round,
            "size": plan.size.tolist(),
            "keep": plan.keep.tolist(),
            "joined": first_round - self._buffer.round,
        }
        known = self._buffer.recall("plan")
        if known is None or json.loads(known) != facts:
            self._forget_collected()
            self._buffer.remember(plan=json.dumps(facts))
        return tuple(commitment(int(size), self._nonce(first_round + t)) for t, size in enumerate(plan.size))

    def come_to(self, round: int) -> None:
        """Enter a round of the plan there is, if any: what is held then is what a new plan begins with."""
        if self._buffer.recall("plan") is not None and self._buffer.round + self._plan()[2] < round:
            self.enter(round)

    def opening(self, round: int) -> tuple[int, bytes]:
        """The volume that the client committed itself to in a round, and what opens the commitment."""
        plan, first, _ = self._plan()
        return int(plan.size[round - first]), self._nonce(round)

    def enter(self, round: int) -> Snapshot[Any]:
        """What the client holds in a round; the buffer comes from the round before if it is still there.

        Rounds that were missed are gone through with nothing collected in them but the last.
        """
        plan, first, joined = self._plan()
        if not first <= round < first + len(plan.size):
            raise InputError.of("the round", f"of the plan, {first} to {first + len(plan.size) - 1}", round)
        there = self._buffer.round + joined
        if there > round:
            raise InputError.of("the round", f"{there} or later: the data of earlier ones is gone", round)
        for t in range(there, round):
            keep, asked = plan.step(t - first, len(self._buffer))
            last = t + 1 == round
            fresh = self._collected(t, asked) if last else self._nothing()
            self._buffer.advance(keep, fresh)
            if last:
                self._waiting(t).unlink(missing_ok=True)
        return self._buffer.snapshot()

    def wanted(self, round: int) -> int:
        """How many samples to collect in a round, to join in the next; none after the last."""
        plan, first, _ = self._plan()
        if round - first + 1 >= len(plan.size):
            return 0
        return plan.step(round - first, len(self._buffer))[1]

    def put_aside(self, round: int, fresh: Any) -> None:
        """Keep what was collected in a round until the next one begins."""
        with replacing_private(self._waiting(round)) as temporary, temporary.open("wb") as stream:
            np.savez(stream, content=fresh.content, labels=fresh.labels)

    def _collected(self, round: int, asked: int) -> Any:
        path = self._waiting(round)
        if path.exists():
            with np.load(path) as kept:
                return samples_of(kept["content"], kept["labels"]).take(slice(0, asked))
        return self.person.stream.collect(asked, round) if asked else self._nothing()

    def _nothing(self) -> Any:
        return self._buffer.snapshot().samples.take(slice(0, 0))

    def _forget_collected(self) -> None:
        """What was put aside for rounds of another plan, and never fetched, is not fresh in this one."""
        file = self.person.file
        for path in file.parent.iterdir():
            if path.name.startswith(f"{file.name}.collected-"):
                path.unlink(missing_ok=True)

    def _waiting(self, round: int) -> Path:
        return self.person.file.with_name(f"{self.person.file.name}.collected-{round}.npz")

    def _plan(self) -> tuple[IntegerPlan, int, int]:
        """The plan, its first round, and by how much rounds of the run are ahead of the buffer's."""
        facts = json.loads(self._fact("plan"))
        size, keep = (np.array(facts[name], np.int64) for name in ("size", "keep"))
        return IntegerPlan(size, keep, size[1:] - keep), facts["first_round"], facts["joined"]

    def _nonce(self, round: int) -> bytes:
        """Known to the client alone until it opens the commitment of a round."""
        return commitment(round, b"nonce" + self.key)

    def _fact(self, name: str) -> str:
        fact = self._buffer.recall(name)
        if fact is None:
            raise InputError(f"{self.person.file} must have a {name}: has this client agreed to a deal?")
        return fact


def _create(person: ClientProfile) -> None:
    first = person.stream.collect(person.initial_volume, BEFORE)
    DurableBuffer.create(
        person.file,
        first,
        initial_ages(len(first), person.initial_staleness),
        capacity=person.capacity,
        discard=person.discard,
        seed=person.seed,
        client=person.client,
    ).close()
