"""A client that cheats in its messages: what it is paid, and what the server does.

One client changes what DUFL's own app sends, in a run with real apps and messages in one process.
"""

import copy
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Message

from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.experiment.files import write_text
from dufl.flower import messages, nodes
from dufl.flower.app import Runtime, client_app, evaluation, make_strategy
from dufl.flower.in_process import Answer, InProcessGrid, Meddle, is_training
from dufl.flower.ledger import Ledger
from dufl.flower.server_store import Round

if TYPE_CHECKING:
    from rich.table import Table

CHEAT = 1
WAIT = 2.0  # seconds for clients to register
Spoil = Callable[[Message], None]


def _record(reply: Message) -> Any:
    return reply.content[messages.RECORD]


def _spoiling(kind: str, spoil: Spoil) -> Meddle:
    """Spoil the replies of the cheat to messages of a kind."""

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == CHEAT and message.metadata.message_type.startswith(kind) and reply.has_content():
            spoil(reply)
        return reply

    return meddle


def _committing(change: Callable[[int], int]) -> Meddle:
    def spoil(reply: Message) -> None:
        _record(reply)["volumes"] = [change(volume) for volume in _record(reply)["volumes"]]

    return _spoiling(messages.COMMIT, spoil)


def _answering(samples: float) -> Meddle:
    def spoil(reply: Message) -> None:
        volumes = messages.from_arrays(reply.content["arrays"])["volumes"]
        more = np.int64(samples * 2**20).astype(np.uint64)
        reply.content["arrays"] = messages.to_arrays({"volumes": volumes + more})

    return _spoiling(messages.BEST_RESPONSE, spoil)


def _claiming(**values: Any) -> Meddle:
    def spoil(reply: Message) -> None:
        for name, value in values.items():
            _record(reply)[name] = value(_record(reply)[name]) if callable(value) else value

    return _spoiling("train", spoil)


def _weighing(change: Callable[[Any], Any]) -> Meddle:
    def spoil(reply: Message) -> None:
        arrays = messages.from_arrays(reply.content["arrays"])
        reply.content["arrays"] = messages.to_arrays(arrays | {"weights": change(arrays["weights"])})

    return _spoiling("train", spoil)


def _with_key(key: bytes) -> Meddle:
    def spoil(reply: Message) -> None:
        _record(reply)["key"] = key

    return _spoiling(messages.HELLO, spoil)


class _Replay:
    """The reply of the first round, again in every round."""

    def __init__(self) -> None:
        self._first: Message | None = None

    def __call__(self, client: int, message: Message, answer: Answer) -> Message | None:
        if client != CHEAT or not is_training(message):
            return answer()
        if self._first is None:
            self._first = copy.deepcopy(answer())
        return Message(copy.deepcopy(self._first.content), reply_to=message)


PROTOCOL_ATTACKS: Mapping[str, Callable[[], Meddle | None]] = {
    "none": lambda: None,
    "commits to a million samples": lambda: _committing(lambda _: 1_000_000),
    "commits to twice its plan": lambda: _committing(lambda volume: 2 * volume),
    "key of 32 zero bytes": lambda: _with_key(bytes(32)),
    "key of 5 bytes": lambda: _with_key(b"12345"),
    "answers 1e9 samples too many": lambda: _answering(1e9),
    "answers 300 samples too many": lambda: _answering(300),
    "answers 100 samples too few": lambda: _answering(-100),
    "claims 10 times its volume": lambda: _claiming(volume=lambda volume: 10 * volume),
    "claims a mean age of 0": lambda: _claiming(mean_age=0.0),
    "claims a mean age of 1e6": lambda: _claiming(mean_age=1e6),
    "sends its first reply again": _Replay,
    "sends weights of 3e37": lambda: _weighing(lambda weights: np.full_like(weights, 3e37)),
    "sends weights that are NaN": lambda: _weighing(lambda weights: weights * np.nan),
}


@dataclass(frozen=True)
class ProtocolOutcome:
    """A run in which a client cheats in its messages.

    Attributes:
        attack: its name.
        accuracy: of the model after the last round.
        paid: what the cheat is owed, as a share of all payments.
        rounds: the number of rounds that were run.
        response: what the server recorded about the cheat.
    """

    attack: str
    accuracy: float
    paid: float
    rounds: int
    response: str


def run_protocol_attack(config: Experiment, attack: str) -> ProtocolOutcome:
    """Run a federation in which a client cheats in its messages.

    Args:
        config: the federation; its plan is negotiated.
        attack: one of `PROTOCOL_ATTACKS`.
    """
    if attack not in PROTOCOL_ATTACKS:
        raise InputError.of("attack", f"one of {', '.join(PROTOCOL_ATTACKS)}", attack)
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "config.toml"
        write_text(path, config.to_toml())
        runtime, clients = Runtime(config), folder / "clients"
        meddle = PROTOCOL_ATTACKS[attack]()
        app = client_app(lambda _: (path, clients))
        grid = InProcessGrid(app, config.game.clients.size, meddle, {"min-others": 3})
        strategy, arrays = make_strategy(
            runtime, folder / "run", negotiate=True, on_round_end=rounds.append, arrival_timeout=WAIT
        )
        with _quiet():
            strategy.start(grid, arrays, num_rounds=config.game.num_rounds, evaluate_fn=evaluation(runtime))
        with Ledger(folder / "run" / "ledger.sqlite") as ledger:
            entries, total = ledger.entries(), ledger.total()
    owed = sum(entry.owed + entry.released for entry in entries if entry.client == CHEAT)
    accuracy = float(rounds[-1].metrics["accuracy"])
    return ProtocolOutcome(attack, accuracy, owed / total if total else 0.0, len(rounds), _response(rounds))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Flower's log, and without long waits for clients that do not register."""
    logger = logging.getLogger("flwr")
    level, poll = logger.level, nodes.POLL
    logger.setLevel(logging.CRITICAL)
    nodes.POLL = 0.1
    try:
        yield
    finally:
        logger.setLevel(level)
        nodes.POLL = poll


def _response(rounds: Sequence[Round]) -> str:
    """What the server recorded about the cheat, most important first."""
    last = rounds[-1]
    if CHEAT in last.deal.left_out:
        return f"left out: {last.deal.left_out[CHEAT]}"
    refused = [round.refused[CHEAT] for round in rounds if CHEAT in round.refused]
    if refused:
        return f"refused in {len(refused)} of {len(rounds)} rounds: {refused[-1]}"
    if CHEAT in last.bounded:
        return f"scaled down: {last.bounded[CHEAT]:.2g} times the median size"
    held = [entry for round in rounds for entry in round.entries if entry.client == CHEAT and entry.held]
    if held:
        return f"held back in {len(held)} of {len(rounds)} rounds: {held[-1].reason}"
    return "" if CHEAT in last.deal.commitments else "not registered"


def protocol_table(outcomes: Sequence[ProtocolOutcome]) -> "Table":
    """The table that `dufl flower attack-protocol` prints."""
    from rich.table import Table

    table = Table(title="What a client is paid that cheats in its messages", title_justify="left")
    for column, justify in (("attack", "left"), ("accuracy", "right"), ("paid", "right"), ("server", "left")):
        table.add_column(column, justify=justify, no_wrap=column != "server")  # type: ignore[arg-type]
    for each in outcomes:
        table.add_row(each.attack, f"{100 * each.accuracy:.1f} %", f"{100 * each.paid:.1f} %", each.response)
    return table
