"""The profile of a client, and the file that holds its samples, plan and key.

The file outlives processes and runs. Its buffer changes when a round is entered: the message of round t
brings it to the state of round t, unless it is in that state already. A message that arrives twice therefore
has no further effect, and a server that repeats a round finds the clients as they were. Samples collected for
the next round wait in a second file, with the position of the stream after them. Both join in one
transaction, so a client that is killed at any moment collects no sample twice and loses none.
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

from dufl.data.buffer import Snapshot
from dufl.data.client_data import initial_ages
from dufl.data.collector import Collector
from dufl.data.discard.discarding import Discard
from dufl.data.durable import DurableBuffer
from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.data.live.positions import POSITION, START, confirm, position_facts, position_of, seek
from dufl.data.samples import samples_of
from dufl.data.streams import BEFORE, Stream
from dufl.errors import InputError
from dufl.experiment.files import replacing
from dufl.flower.disclosure import Disclosed, after_commitment, after_query, check_opening, on_grid
from dufl.flower.masking import mask_keys, new_key, public_key
from dufl.flower.messages import OpenQueries, Query
from dufl.game.client import best_response
from dufl.game.dynamics import Array
from dufl.game.negotiation import Announcement


@dataclass(frozen=True, eq=False)
class ClientProfile:
    """What only the client itself knows.

    Attributes:
        client: its number in the federation.
        file: the path of its buffer file.
        stream: the source of its fresh samples.
        initial_volume: the number of samples that it holds at the start.
        collection_cost: α_k.
        training_cost: β_k.
        initial_staleness: the mean age of the first samples.
        capacity: C_k, the largest number of samples that it can hold; a limit of its plans.
        discard: which samples it discards first.
        seed: of rounding and discarding.
        min_others: the number of other clients that must be in a sum before it answers.
        max_questions: the number of announcements that it answers per deal.
        allow_unmasked: whether it answers queries without masks.
        commitment_grid: the volumes that it commits to are multiples of this number; None for the number that
            the server announces.
        collection_price: a_k, money per sample collected, beside α_k.
        training_price: b_k, money per sample held in a round, beside β_k.
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
    min_others: int = 3
    max_questions: int = 200
    allow_unmasked: bool = False
    commitment_grid: int | None = None
    collection_price: float = 0.0
    training_price: float = 0.0

    @classmethod
    def from_context(
        cls,
        context: Context,
        stream: Callable[[int], Stream[Any]],
        initial_volume: int,
        collection_cost: float | None = None,
        training_cost: float | None = None,
        **others: Any,
    ) -> "ClientProfile":
        """The profile of the client at a Flower node, whose number is the node's `partition-id`.

        A value that the node configuration does not have is read from the run configuration.

        Args:
            context: of the node. Its configuration has `folder`, the directory of the client's file.
            stream: returns the stream of a client.
            initial_volume: the number of samples that the client holds at the start.
            collection_cost: α_k; if omitted, `collection-cost` in the configuration.
            training_cost: β_k; if omitted, `training-cost` in the configuration.
            others: other attributes of the profile. The configuration may have `collection-price`,
                `training-price`, `min-others`, `max-questions`, `allow-unmasked` and `commitment-grid`.

        Raises:
            InputError: if a cost is missing or an empty text. There are no default costs: every client states
                its own.
        """
        client = client_number(context)
        config = context.run_config | context.node_config
        folder = config.get("folder")
        if not isinstance(folder, str):
            raise InputError.of("folder", "a path in the node or run configuration", repr(folder))
        return cls(
            client,
            Path(folder).expanduser() / f"client-{client}.sqlite",
            stream(client),
            initial_volume,
            _cost("collection_cost", collection_cost, config),
            _cost("training_cost", training_cost, config),
            **_prices(config) | privacy_options(context) | others,
        )


def client_number(context: Context) -> int:
    """The number of the client at a node: its `partition-id`."""
    number = context.node_config.get("partition-id")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InputError.of("partition-id", "the client's number in the node configuration", repr(number))
    return number


def privacy_options(context: Context) -> dict[str, Any]:
    """The attributes of a profile that protect a client, if the node or run configuration has them."""
    config = context.run_config | context.node_config
    options: dict[str, Any] = {}
    for key, kind, least in (
        ("min-others", int, 0),
        ("max-questions", int, 0),
        ("allow-unmasked", bool, 0),
        ("commitment-grid", int, 1),
    ):
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not kind or value < least:
            rule = f"an integer >= {least}" if kind is int else "true or false"
            raise InputError.of(key, rule, repr(value))
        options[key.replace("-", "_")] = value
    return options


def _cost(field: str, given: float | None, config: dict[str, Any]) -> float:
    key = field.replace("_", "-")
    cost = config.get(key) if given is None else given
    if cost is None or cost == "":  # the default of a key in pyproject.toml, which has no null
        rule = f"given, as an argument or as {key} in the node or run configuration"
        raise InputError.of(field, rule, None, text="nothing")
    return _amount(field, cost)


def _prices(config: dict[str, Any]) -> dict[str, float]:
    """The prices per sample that the node or run configuration has; they are 0 by default."""
    fields = {field: config.get(field.replace("_", "-")) for field in ("collection_price", "training_price")}
    return {field: _amount(field, price) for field, price in fields.items() if price not in (None, "")}


def _amount(field: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise InputError.of(field, "a number >= 0", repr(value))
    return float(value)


class ClientStore:
    """A client's file, open."""

    def __init__(self, profile: ClientProfile) -> None:
        self.profile = profile
        if not profile.file.exists():
            profile.file.parent.parent.mkdir(parents=True, exist_ok=True)
            profile.file.parent.mkdir(mode=0o700, exist_ok=True)  # for the owner alone
            _create(profile)
        self._buffer: DurableBuffer[Any] = DurableBuffer.open(profile.file, profile.discard)
        seek(profile.stream, self._buffer.recall(POSITION))
        if self._buffer.recall("key") is None:
            self._buffer.remember(key=new_key().hex())

    def __enter__(self) -> "ClientStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._buffer.close()

    @property
    def key(self) -> bytes:
        """The private key; it never leaves the client."""
        return bytes.fromhex(self._fact("key"))

    @property
    def public_key(self) -> bytes:
        """The public key."""
        return public_key(self.key)

    def best_response(self, announcement: Announcement) -> Array:
        """D_k(t), from the client's own costs and the samples that it holds now."""
        profile = self.profile
        volume, _ = best_response(
            announcement.price,
            float(len(self._buffer)),
            profile.collection_cost,
            profile.training_cost,
            announcement.offer.conservation_rate,
            announcement.trim_start,
            capacity=profile.capacity,
            collection_price=profile.collection_price,
            training_price=profile.training_price,
        )
        return np.asarray(volume[:, 0])

    def disclose(self, query: Query) -> None:
        """Remember a query that is going to be answered.

        Raises:
            InputError: if the client refuses to answer it.
        """
        self._buffer.remember(disclosed=after_query(self.profile, self._disclosed, query).to_json())

    def open(self, request: OpenQueries) -> tuple[dict[int, bytes], ...]:
        """The keys of the masks of queries, after a commitment.

        Raises:
            InputError: if the client refuses to open them.
        """
        check_opening(self.profile, self._disclosed, request)
        client = self.profile.client
        return tuple(mask_keys(client, self.key, request.roster, each) for each in request.mask_ids)

    @property
    def _disclosed(self) -> Disclosed:
        return Disclosed.from_json(self._buffer.recall("disclosed"), self._buffer.round)

    def grid(self, announced: int) -> int:
        """The number that committed volumes are multiples of: the client's own or the server's."""
        return self.profile.commitment_grid or announced

    def commit(
        self, announcement: Announcement, first_round: int, run: str = "", grid: int = 1
    ) -> tuple[int, ...]:
        """Make a plan for a run, store it, and return the volume of every round.

        Raises:
            InputError: if the client refuses to commit to yet another plan.
        """
        volume, held = self.best_response(announcement), len(self._buffer)
        disclosed = after_commitment(self.profile, self._disclosed, announcement, self.grid(grid))
        rate, profile = announcement.offer.conservation_rate, self.profile
        volume = on_grid(volume, self.grid(grid), held, profile.capacity)
        plan = integer_plan(volume, rate, profile.seed, profile.client, first_round, profile.capacity)
        facts = {
            "first_round": first_round,
            "size": plan.size.tolist(),
            "keep": plan.keep.tolist(),
            "joined": first_round - self._buffer.round,
            "run": run,
        }
        known = self._buffer.recall("plan")
        if known is None or json.loads(known) != facts:
            self._delete_collected()
            self._buffer.remember(plan=json.dumps(facts))
        self._buffer.remember(disclosed=disclosed.to_json())
        return tuple(plan.size.tolist())

    def catch_up(self, round: int, run: str = "") -> None:
        """Bring the buffer to the state of a round, if there is a plan of this run: a new one starts there.

        The round may be later than the plan: a client that was away while others negotiated again holds what
        it planned for its last round.
        """
        if self._buffer.recall("plan") is None or not self._is_of(run):
            return
        if self._buffer.round + self._plan()[2] < round:
            self._bring_to(round)

    def check_run(self, run: str) -> None:
        """Raise `InputError` if the plan is of another run."""
        if not self._is_of(run):
            raise InputError.of("run", "the one that the client committed to a deal of", run)

    def _is_of(self, run: str) -> bool:
        """Whether the plan is of this run; a run without an id may be any."""
        return run in ("", json.loads(self._fact("plan")).get("run", ""))

    def committed(self, round: int) -> int:
        """The volume that the client committed to in a round."""
        plan, first, _ = self._plan()
        return int(plan.size[round - first])

    def enter(self, round: int) -> Snapshot[Any]:
        """Bring the buffer to the state of a round, and return what it holds.

        In rounds that the client missed, nothing was collected, except for the last of them.
        """
        plan, first, joined = self._plan()
        if not first <= round < first + len(plan.size):
            raise InputError.of("round", f"in {first} … {first + len(plan.size) - 1}, as planned", round)
        current = self._buffer.round + joined
        if current > round:
            raise InputError.of("round", f">= {current}, because earlier data is discarded", round)
        self._bring_to(round)
        return self._buffer.snapshot()

    def _bring_to(self, round: int) -> None:
        plan, first, joined = self._plan()
        current, last = self._buffer.round + joined, first + len(plan.size) - 1
        if current == first and len(self._buffer) > plan.size[0]:
            self._trim(int(plan.size[0]))
        for t in range(current, min(round, last)):
            keep, wanted = plan.step(t - first, len(self._buffer))
            if t + 1 < round:
                self._buffer.advance(keep, self._no_samples())
            else:
                self._step(t, keep, wanted)
        current = self._buffer.round + joined
        if current < round:  # after the last planned round, nothing is discarded
            self._buffer.age(round - 1 - current)
            held = len(self._buffer)
            self._step(round - 1, held, max(int(plan.size[-1]) - held, 0))

    def _step(self, round: int, keep: int, wanted: int) -> None:
        """Leave a round with what was collected in it."""
        fresh, position = self._collected(round, wanted)
        self._buffer.advance(keep, fresh, **position_facts(position))
        self._waiting(round).unlink(missing_ok=True)
        confirm(self.profile.stream, position)
        seek(self.profile.stream, position)

    def _trim(self, size: int) -> None:
        """Discard what the plan does not begin with.

        A simulated client begins with what it would have collected if it had wanted no more, as in `dufl
        train`. Samples of a stream that cannot be repeated are discarded by the rule of the buffer.
        """
        stream = self.profile.stream
        if self._buffer.round == 0 and getattr(stream, "repeatable", False):
            first = stream.collect(size, BEFORE)
            self._buffer.restart(first, initial_ages(len(first), self.profile.initial_staleness))
        else:
            self._buffer.trim(size)

    def collection(self, round: int) -> int:
        """How many samples to collect in a round for the next one; none in the last round."""
        plan, first, _ = self._plan()
        if round - first + 1 >= len(plan.size):
            return 0
        return plan.step(round - first, len(self._buffer))[1]

    def put_aside(self, round: int, fresh: Any, position: str | None = None) -> None:
        """Store what was collected in a round, and the position after it, until the next one begins."""
        path = self._waiting(round)
        arrays = {"content": fresh.content, "labels": fresh.labels}
        if position is not None:
            arrays[POSITION] = np.frombuffer(position.encode(), np.uint8)
        with replacing(path, private=True) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)

    def _collected(self, round: int, wanted: int) -> tuple[Any, str | None]:
        """The samples put aside in a round and their position, or what the stream has now."""
        path = self._waiting(round)
        if path.exists():
            with np.load(path) as arrays:
                position = arrays[POSITION].tobytes().decode() if POSITION in arrays else None
                return samples_of(arrays["content"], arrays["labels"]).take(slice(0, wanted)), position
        collector = Collector(self.profile.stream, self._no_samples())
        collector.start(wanted, round)
        found = collector.finish()
        return found.samples, found.position

    def _no_samples(self) -> Any:
        return self._buffer.snapshot().samples.take(slice(0, 0))

    def _delete_collected(self) -> None:
        """Delete samples that were collected for rounds of an earlier plan: they are not fresh any more."""
        file = self.profile.file
        for path in file.parent.iterdir():
            if path.name.startswith(f"{file.name}.collected-"):
                path.unlink(missing_ok=True)

    def _waiting(self, round: int) -> Path:
        return self.profile.file.with_name(f"{self.profile.file.name}.collected-{round}.npz")

    def _plan(self) -> tuple[IntegerPlan, int, int]:
        """The plan, its first round, and the offset of the run's rounds from the buffer's."""
        facts = json.loads(self._fact("plan"))
        size, keep = (np.array(facts[name], np.int64) for name in ("size", "keep"))
        return IntegerPlan(size, keep, size[1:] - keep), facts["first_round"], facts["joined"]

    def _fact(self, name: str) -> str:
        fact = self._buffer.recall(name)
        if fact is None:
            file = self.profile.file
            raise InputError(f"{file} has no {name}: the client has not committed to a deal", field=name)
        return fact


def _create(profile: ClientProfile) -> None:
    seek(profile.stream, START)
    first = profile.stream.collect(profile.initial_volume, BEFORE)
    if profile.initial_volume and not len(first):
        raise InputError.of("stream", "able to deliver the first samples", "none")
    position = position_of(profile.stream)
    DurableBuffer.create(
        profile.file,
        first,
        initial_ages(len(first), profile.initial_staleness),
        capacity=profile.capacity,
        discard=profile.discard,
        seed=profile.seed,
        client=profile.client,
        facts=position_facts(position),
    ).close()
    confirm(profile.stream, position)
