"""A client that wants no deal to be made: the run goes on, and it takes nobody with it."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from test_flower_attacks import CHEAT, FIVE, committing, of_the_cheat, record

from dufl.errors import DuflError
from dufl.flower import messages
from dufl.flower.deal import Deal
from dufl.flower.in_process import Answer, Meddle
from dufl.flower.masking import mask_keys
from dufl.flower.messages import Query
from dufl.flower.verification import distrusted
from dufl.game.plan import solve
from flower_grid import Run, in_cents

OTHERS = {0, 2, 3, 4}


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)


def deal_of(run: Run) -> Deal:
    assert run.strategy.deal is not None
    return run.strategy.deal


def assert_goes_on(run: Run, clients: set[int]) -> None:
    """Every round is trained and paid in full, by these clients, on what they committed to."""
    assert all({claim.client for claim in round.claims} == clients for round in run.rounds)
    assert all(
        not round.refused and round.units == in_cents(round.deal.offer.payment) for round in run.rounds
    )
    assert len(run.rounds) == run.config.game.num_rounds
    deal = deal_of(run)
    total = np.sum([deal.commitments[client] for client in clients], axis=0)
    assert np.abs(total / deal.announcement.announced_volume - 1).max() < 0.01


def test_noise_of_less_than_a_sample_is_attributed(tmp_path: Path) -> None:
    """In a small federation it is enough to prevent that the negotiation converges."""
    chance = np.random.default_rng(0)

    def spoil(reply: Message) -> None:
        volumes = messages.from_arrays(reply.content["arrays"])["volumes"]
        lies = (0.2 * chance.choice([-1, 1], volumes.shape) * 2**20).astype(np.int64).view(np.uint64)
        reply.content["arrays"] = messages.to_arrays({"volumes": volumes + lies})

    small = (*FIVE, "clients.initial_volume=8", "game.payment_range=[0,3]")
    run = Run(tmp_path, *small, negotiate=True, meddle=of_the_cheat(messages.BEST_RESPONSE, spoil))
    run.start()
    assert set(deal_of(run).left_out) == {CHEAT}
    assert all({claim.client for claim in round.claims} == OTHERS for round in run.rounds)


def quarreling(run: list[Run], partners: set[int], from_round: int = 0) -> Meddle:
    """The cheat uses, and reveals, other keys of the masks that it shares with some others."""

    def other(key: bytes) -> bytes:
        return bytes(255 - byte for byte in key)

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        from dufl.flower.masking import _noise

        reply, kind = answer(), message.metadata.message_type
        if client != CHEAT or not reply.has_content() or run[0].strategy.round < from_round:
            return reply
        if kind == messages.BEST_RESPONSE:
            query = Query.read(message.content)
            profile = run[0].folder / "clients" / f"client-{CHEAT}.sqlite"
            keys = mask_keys(CHEAT, private_key(profile), query.roster, query.mask_id)
            false = {k: other(key) if k in partners else key for k, key in keys.items()}
            volumes = messages.from_arrays(reply.content["arrays"])["volumes"]
            volumes = volumes - _noise(CHEAT, keys, volumes.shape) + _noise(CHEAT, false, volumes.shape)
            reply.content["arrays"] = messages.to_arrays({"volumes": volumes})
        if kind == messages.OPEN:
            roster = sorted(set(record(message)["clients"]) - {CHEAT})
            keys_sent = record(reply)["keys"]
            owners = [roster[n % len(roster)] for n in range(len(keys_sent))]
            record(reply)["keys"] = [
                other(key) if owner in partners else key for key, owner in zip(keys_sent, owners, strict=True)
            ]
        return reply

    return meddle


def private_key(path: Path) -> bytes:
    from dufl.data.durable import DurableBuffer

    buffer = DurableBuffer.open(path, "uniform")
    try:
        return bytes.fromhex(str(buffer.recall("key")))
    finally:
        buffer.close()


@pytest.mark.parametrize("partners", [{2}, {2, 4}])
def test_a_quarrel_takes_nobody_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, partners: set[int]
) -> None:
    """Nobody can tell who lies, so nobody is left out, and the deal is made from open commitments."""
    place: list[Run] = []
    run = Run(tmp_path, *FIVE, negotiate=True, meddle=quarreling(place, partners))
    place.append(run)
    run.start()
    assert_goes_on(run, OTHERS | {CHEAT})
    assert not deal_of(run).left_out
    assert set(deal_of(run).disputes) == {(CHEAT, k) for k in partners}
    assert set(Deal.from_json(deal_of(run).to_json()).disputes) == set(deal_of(run).disputes)
    assert "the deal is made from open commitments" in caplog.text
    known = solve(run.config.game)
    assert deal_of(run).offer.payment == pytest.approx(known.payment, rel=0.05)


def test_who_quarrels_with_most_is_left_out(tmp_path: Path) -> None:
    place: list[Run] = []
    run = Run(tmp_path, *FIVE, negotiate=True, meddle=quarreling(place, {0, 2, 3}))
    place.append(run)
    run.start()
    assert set(deal_of(run).left_out) == {CHEAT}
    assert_goes_on(run, OTHERS)


def test_quarrels_are_counted_over_deals() -> None:
    everyone = range(5)
    assert not distrusted([(1, 2)], [1, 2])
    assert not distrusted([(1, 2), (0, 1)], everyone)
    assert distrusted([(1, 2), (0, 1), (1, 4)], everyone).keys() == {1}
    assert not distrusted([(1, 2), (0, 1), (1, 4)], [0, 2, 3, 4])
    assert not distrusted([(0, 3), (0, 4), (1, 3), (1, 4)], everyone)  # two against two: who knows


@pytest.mark.parametrize("negotiate", [True, False])
def test_too_few_are_left_for_a_sum_without_the_cheat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, negotiate: bool
) -> None:
    meddle = committing(lambda volumes: [1_000_000] * len(volumes))
    run = Run(tmp_path, *FIVE, negotiate=negotiate, min_others=4, meddle=meddle)
    run.strategy.game = run.strategy.game.replace(
        clients=Run(tmp_path / "other", *FIVE, "clients.seed=77").config.game.clients
    )
    run.start()
    assert_goes_on(run, OTHERS)
    assert set(deal_of(run).left_out) == {CHEAT}
    assert "a sum with at least 4 other clients" in caplog.text


def test_too_few_are_left_during_the_run(tmp_path: Path) -> None:
    """Clients that have committed to a new plan are not measured by the old one."""
    false = committing(lambda volumes: [1_000_000] * len(volumes))

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        if client == 4 and run.strategy.round >= 1:
            return None
        return false(client, message, answer) if run.strategy.round >= 1 else answer()

    rounds = (*FIVE, "game.num_rounds=8")
    run = Run(tmp_path, *rounds, negotiate=True, min_others=3, max_missed_rounds=2, meddle=meddle)
    run.start()
    assert [len(round.claims) for round in run.rounds] == [5, 4, 4, 3, 3, 3, 3, 3]
    assert all(not round.refused for round in run.rounds)
    assert set(deal_of(run).left_out) == {CHEAT}
    assert deal_of(run).first_round == 3


@pytest.mark.parametrize(
    "how",
    [
        lambda volumes, _: [*volumes[:-1], 10**6],
        lambda volumes, times: [2 * volume for volume in volumes] if times == 2 else volumes,
    ],
    ids=["impossible", "inconsistent"],
)
def test_a_second_cheat_among_the_few_that_are_left(tmp_path: Path, how: Any) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if message.metadata.message_type == messages.COMMIT and client in (1, 3):
            commits.append(client)
            if client == 1:
                record(reply)["volumes"] = [9, 9, 9, 10**6]
            elif commits.count(3) > 1:
                record(reply)["volumes"] = how(record(reply)["volumes"], commits.count(3))
        return reply

    commits: list[int] = []
    run = Run(tmp_path, *FIVE, negotiate=True, min_others=4, meddle=meddle)
    run.start()
    assert set(deal_of(run).left_out) == {1, 3}
    assert_goes_on(run, {0, 2, 4})


@pytest.mark.parametrize("how", ["silent", "nonsense"])
def test_no_commitment_to_a_known_plan(tmp_path: Path, how: str) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == CHEAT and message.metadata.message_type == messages.COMMIT:
            record(reply)["volumes"] = [1]
            return reply if how == "nonsense" else None
        return reply

    run = Run(tmp_path, *FIVE, meddle=meddle)
    run.start()
    assert_goes_on(run, OTHERS)


def test_what_was_tried_is_said(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply, kind = answer(), message.metadata.message_type
        if kind == messages.COMMIT:
            if client != CHEAT:
                return None if deal_left_out() else reply
            record(reply)["volumes"] = [9, 9, 9, 10**6]
        return reply

    def deal_left_out() -> bool:
        return CHEAT in run.strategy.nodes.left_out

    run = Run(tmp_path, *FIVE, negotiate=True, min_others=4, meddle=meddle)
    with pytest.raises(DuflError) as caught:
        run.start()
    for part in ("left out clients [1]", "open commitments", "at least 4 other clients"):
        assert part in str(caught.value)
