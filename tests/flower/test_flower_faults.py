"""Clients on Flower that lie, fail, go or come back: the run goes on, and nobody is overpaid."""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from dufl.errors import DuflError, InputError
from dufl.experiment.train import train
from dufl.flower import messages, nodes
from dufl.flower.in_process import Answer, is_training
from flower_grid import SMALL, Run, in_cents
from loading import load


def lie(reply: Message, **more: int) -> None:
    claim: Any = reply.content[messages.RECORD]
    for name, number in more.items():
        claim[name] += number


def test_a_liar_a_nan_and_a_silent_one(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        if not is_training(message) or client == 3:
            return answer()
        if client == 2:
            return None
        reply = answer()
        if client == 0:
            lie(reply, volume=1)
        else:
            arrays = messages.from_arrays(reply.content["arrays"])
            arrays["weights"][5] = np.nan
            reply.content["arrays"] = messages.to_arrays(arrays)
        return reply

    run = Run(tmp_path, meddle=meddle, max_missed_rounds=9)
    run.start()
    paid = run.rounds[0].units
    for round in run.rounds:
        assert [claim.client for claim in round.claims] == [3]
        assert sorted(round.refused) == [0, 1]
        assert "committed to" in round.refused[0]
        assert round.refused[1] == "weights that are not a number"
        assert round.missing == [2]
    entries = run.entries()
    assert len(entries) == 20
    assert {entry.client for entry in entries if entry.owed} == {3}
    assert sum(entry.owed for entry in entries) == 5 * paid


def test_why_clients_cannot_answer_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "clients").write_text("a file where the clients' folder should be")
    monkeypatch.setattr(nodes, "POLL", 0.05)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with pytest.raises(InputError, match=r"must be 4 within 0.3 s, got 0; [^;]*File exists: '[^;]*'$"):
        Run(tmp_path, arrival_timeout=0.3).start()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1
    assert re.fullmatch(r"node 10\d\d: .*File exists: .*", told[0])


def test_who_lies_about_its_commitment_is_refused(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if is_training(message) and client == 1:
            lie(reply, volume=10, committed=10)
        return reply

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert all("that it has not made" in round.refused[1] for round in run.rounds)
    assert sum(entry.owed for entry in run.entries() if entry.client == 1) == 0


def test_a_message_twice_changes_nothing_twice(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        answer()
        return answer()

    once, twice = Run(tmp_path / "once"), Run(tmp_path / "twice", meddle=meddle)
    one, two = once.start(), twice.start()
    ours, theirs = messages.from_arrays(one.arrays), messages.from_arrays(two.arrays)
    assert ours["weights"].tobytes() == theirs["weights"].tobytes()
    assert once.entries() == twice.entries()


@pytest.mark.parametrize("trim", [False, True])
def test_who_is_gone_for_good_is_planned_without(tmp_path: Path, trim: bool) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        training = is_training(message)
        late = training and messages.round_of(message.content) >= 2
        return None if client == 1 and (late or run.strategy.round >= 2) else answer()

    run = Run(tmp_path, "game.num_rounds=12", f"game.trim_start={str(trim).lower()}", meddle=meddle)
    run.start()
    assert run.strategy.deal is not None
    assert run.strategy.deal.announcement.trim_start == trim
    assert run.strategy.deal.first_round == 5  # missed 2, 3 and 4
    assert sorted(run.strategy.deal.commitments) == [0, 2, 3]
    assert run.strategy.deal.residual <= 1e-3
    assert [round.missing for round in run.rounds] == [[]] * 2 + [[1]] * 3 + [[]] * 7
    assert [len(round.claims) for round in run.rounds] == [4] * 2 + [3] * 10
    before, after = run.rounds[4], run.rounds[5]
    assert after.units == in_cents(run.strategy.deal.offer.payment)
    assert {claim.client for claim in after.claims} == {0, 2, 3}
    assert sum(claim.volume for claim in after.claims) > 0.5 * sum(claim.volume for claim in before.claims)
    paid = [entry.owed for entry in run.entries() if entry.client == 1]
    assert [cents > 0 for cents in paid] == [True] * 2 + [False] * 3


def test_who_misses_a_round_comes_back(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        training = is_training(message)
        return None if client == 1 and training and messages.round_of(message.content) == 2 else answer()

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert [round.missing for round in run.rounds] == [[], [], [1], [], []]
    planned = train(load(None, SMALL)).records
    assert [claim.volume for claim in run.rounds[4].claims] == planned[4].volumes  # made up for
    assert all(not round.refused for round in run.rounds)


def test_a_client_at_another_node(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        training = is_training(message)
        if training and client == 2 and messages.round_of(message.content) == 1:
            run.grid.move(2, 5555)  # its SuperNode was killed and starts again
            return None
        return answer()

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert [round.missing for round in run.rounds] == [[], [2], [], [], []]


def test_a_node_with_another_key_is_not_that_client(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if message.metadata.message_type == messages.HELLO and message.metadata.dst_node_id == 5555:
            hello: Any = reply.content[messages.RECORD]
            hello["key"] = b"x" * 32
        if is_training(message) and messages.round_of(message.content) == 1:
            run.grid.nodes[5555] = 2
            run.grid.move(2, 5555, keep=True)
        return reply

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert all(not round.missing and not round.refused for round in run.rounds)
    assert 5555 not in run.strategy.clients


def test_who_is_silent_in_the_negotiation_is_left_out(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        return None if client == 1 and message.metadata.message_type == messages.BEST_RESPONSE else answer()

    run = Run(tmp_path, negotiate=True, meddle=meddle)
    run.start()
    assert run.strategy.deal is not None
    assert sorted(run.strategy.deal.commitments) == [0, 2, 3]
    assert run.strategy.deal.residual <= 1e-3
    assert {entry.client for entry in run.entries()} == {0, 2, 3}
    assert all(len(round.claims) == 3 and not round.missing for round in run.rounds)


def test_nobody_answers(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        return None if message.metadata.message_type == messages.BEST_RESPONSE else answer()

    run = Run(tmp_path, negotiate=True, meddle=meddle)
    with pytest.raises(DuflError, match=r"no reply from clients \[0, 1, 2, 3\]"):
        run.start()
