"""Answers of clients on Flower that make no sense: left out, refused or named, and the run goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from dufl.flower import messages
from dufl.flower.in_process import Answer, is_training
from flower_grid import Run

Spoil = Callable[[Message], None]


def without_record(reply: Message) -> None:
    del reply.content[messages.RECORD]


def other_number(reply: Message) -> None:
    said: Any = reply.content[messages.RECORD]
    said["client"] = 3


def without_arrays(reply: Message) -> None:
    del reply.content["arrays"]


def one_round_only(reply: Message) -> None:
    reply.content["arrays"] = messages.to_arrays({"volumes": np.zeros((1, 1), np.uint64)})


def unreadable(reply: Message) -> None:
    arrays: Any = reply.content["arrays"]
    for array in arrays.values():
        array.data = b"not an array"


def one_volume_only(reply: Message) -> None:
    said: Any = reply.content[messages.RECORD]
    said["volumes"] = said["volumes"][:1]


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (messages.BEST_RESPONSE, without_record),
        (messages.BEST_RESPONSE, without_arrays),
        (messages.BEST_RESPONSE, one_round_only),
        (messages.BEST_RESPONSE, unreadable),
        (messages.BEST_RESPONSE, other_number),
        (messages.COMMIT, without_record),
        (messages.COMMIT, one_volume_only),
        (messages.COMMIT, other_number),
    ],
)
def test_who_answers_nonsense_is_left_out(tmp_path: Path, kind: str, spoil: Spoil) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == 1 and message.metadata.message_type == kind:
            spoil(reply)
        return reply

    run = Run(tmp_path, negotiate=True, meddle=meddle)
    run.start()
    assert run.strategy.deal is not None
    assert sorted(run.strategy.deal.commitments) == [0, 2, 3]
    assert {entry.client for entry in run.entries()} == {0, 2, 3}
    assert all(len(round.claims) == 3 for round in run.rounds)


def other_shape(reply: Message) -> None:
    arrays = messages.from_arrays(reply.content["arrays"])
    reply.content["arrays"] = messages.to_arrays(arrays | {"weights": arrays["weights"][1:]})


def said_to_be_of_that_shape(reply: Message) -> None:
    right: Any = reply.content["arrays"]
    shape = right["weights"].shape
    other_shape(reply)
    wrong: Any = reply.content["arrays"]
    wrong["weights"].shape = shape


def infinite(reply: Message) -> None:
    arrays = messages.from_arrays(reply.content["arrays"])
    reply.content["arrays"] = messages.to_arrays(arrays | {"weights": arrays["weights"] + np.inf})


def words(reply: Message) -> None:
    arrays = messages.from_arrays(reply.content["arrays"])
    text = np.full(arrays["weights"].shape, "a")
    reply.content["arrays"] = messages.to_arrays(arrays | {"weights": text})


def nothing_at_all(reply: Message) -> None:
    for name in list(reply.content):
        del reply.content[name]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (other_shape, "weights of the wrong shape"),
        (said_to_be_of_that_shape, "weights of the wrong shape"),
        (unreadable, "unreadable weights"),
        (infinite, "infinite weights"),
        (words, "weights that are not numeric"),
        (without_arrays, "weights of the wrong shape"),
        (without_record, "no valid claim: message must be one with a record 'dufl'"),
        (other_number, "claims to be client 3"),
        (nothing_at_all, "no valid claim: message must be one with a record 'dufl'"),
    ],
)
def test_a_bad_update_is_refused(tmp_path: Path, spoil: Spoil, reason: str) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == 1 and is_training(message):
            spoil(reply)
        return reply

    run = Run(tmp_path, "game.num_rounds=2", meddle=meddle)
    result = run.start()
    assert [sorted(round.refused) for round in run.rounds] == [[1], [1]]
    assert all(round.refused[1].startswith(reason) for round in run.rounds)
    assert sum(entry.owed for entry in run.entries() if entry.client == 1) == 0
    assert np.isfinite(messages.from_arrays(result.arrays)["weights"]).all()


@pytest.mark.parametrize("masked", [True, False])
def test_volumes_that_cannot_be(tmp_path: Path, masked: bool) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == 1 and message.metadata.message_type == messages.BEST_RESPONSE:
            volumes = messages.from_arrays(reply.content["arrays"])["volumes"]
            wrong = volumes + np.uint64(2**63) if masked else -volumes
            reply.content["arrays"] = messages.to_arrays({"volumes": wrong})
        return reply

    run = Run(tmp_path, negotiate=True, masked=masked, meddle=meddle)
    run.start()
    assert {entry.client for entry in run.entries()} == {0, 2, 3}


def test_a_hello_that_makes_no_sense(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if message.metadata.message_type == messages.HELLO and message.metadata.dst_node_id == 5555:
            reply.content[messages.RECORD] = ConfigRecord({"client": "me"})
        if is_training(message) and messages.round_of(message.content) == 1:
            run.grid.move(2, 5555, keep=True)
        return reply

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert all(not round.missing and not round.refused for round in run.rounds)
    assert 5555 not in run.strategy.clients
