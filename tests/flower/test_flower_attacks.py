"""Dishonest clients and curious servers: who cheats is named, left out and unpaid, and costs stay private."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from dufl.errors import DuflError, InputError
from dufl.flower import messages, nodes
from dufl.flower.in_process import Answer, Meddle, is_training
from dufl.flower.ledger import Entry
from dufl.flower.messages import OpenQueries, Query
from dufl.flower.verification import impossible_commitments
from dufl.game.client import best_response
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Offer
from dufl.game.population import Clients
from flower_grid import Run

CHEAT = 1
FIVE = ("clients.count=5", "game.num_rounds=4", "training.local_epochs=1")
Change = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    monkeypatch.setattr(nodes, "POLL", 0.05)


def record(reply: Message) -> Any:
    return reply.content[messages.RECORD]


def of_the_cheat(kind: str, spoil: Callable[[Message], None]) -> Meddle:
    """Spoil the cheat's replies to messages of a kind."""

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == CHEAT and message.metadata.message_type == kind and reply.has_content():
            spoil(reply)
        return reply

    return meddle


def silent(client: int, message: Message, answer: Answer) -> Message | None:
    return None if client == CHEAT and message.metadata.message_type == messages.BEST_RESPONSE else answer()


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """What the others are paid if the cheat takes no part."""
    run = Run(tmp_path_factory.mktemp("without"), *FIVE, negotiate=True, meddle=silent)
    run.start()
    entries = run.entries()
    assert {entry.client for entry in entries if entry.owed} == {0, 2, 3, 4}
    return entries


def committing(change: Callable[[list[int]], list[int]]) -> Meddle:
    def spoil(reply: Message) -> None:
        record(reply)["volumes"] = change(list(record(reply)["volumes"]))

    return of_the_cheat(messages.COMMIT, spoil)


@pytest.mark.parametrize(
    "change",
    [
        lambda volumes: [1_000_000] * len(volumes),
        lambda volumes: [2**63 - 1] * len(volumes),
        lambda volumes: [volumes[0], *(volume + 5 for volume in volumes[1:])],
        lambda volumes: [*volumes[:-1], 0],
        lambda volumes: [2 * volume for volume in volumes],
    ],
    ids=["million", "largest", "more", "nothing at last", "double"],
)
def test_a_false_commitment(
    tmp_path: Path, without: list[Entry], caplog: pytest.LogCaptureFixture, change: Any
) -> None:
    run = Run(tmp_path, *FIVE, negotiate=True, meddle=committing(change))
    run.start()
    assert run.entries() == without
    assert run.strategy.deal is not None
    assert set(run.strategy.deal.left_out) == {CHEAT}
    assert f"client {CHEAT} at node" in caplog.text


def test_a_false_commitment_to_a_known_plan(tmp_path: Path) -> None:
    meddle = committing(lambda volumes: [1_000_000] * len(volumes))
    run = Run(tmp_path, *FIVE, meddle=meddle)
    run.start()
    assert {entry.client for entry in run.entries()} == {0, 2, 3, 4}
    assert run.strategy.deal is not None
    assert set(run.strategy.deal.left_out) == {CHEAT}


def test_who_was_left_out_stays_out_after_a_restart(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    false = committing(lambda volumes: [1_000_000] * len(volumes))

    def killed(client: int, message: Message, answer: Answer) -> Message | None:
        if is_training(message) and messages.round_of(message.content) == 2:
            raise KilledError
        return false(client, message, answer)

    with pytest.raises(KilledError):
        Run(tmp_path, *FIVE, negotiate=True, meddle=killed).start()
    run = Run(tmp_path, *FIVE, negotiate=True)  # it behaves well from now on
    run.start()
    assert {entry.client for entry in run.entries()} == {0, 2, 3, 4}
    assert {entry.round for entry in run.entries()} == set(range(4))


WIDE = ((1e-9, 1e3), (1e-10, 1e2))


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("num_rounds", [2, 3, 12, 40])
def test_the_commitment_of_any_costs_is_possible(num_rounds: int, trim: bool) -> None:
    chance = np.random.default_rng(num_rounds)
    announced = 300 * np.exp(0.2 * chance.standard_normal(num_rounds))
    for rate in (0.0, 0.4, 1.0):
        announcement = Announcement(Offer(payment=9.0, conservation_rate=rate), announced, trim)
        clients = Clients(80.0, 10 ** chance.uniform(-5, -2, 4), [0.0, *10 ** chance.uniform(-6, -3, 3)])
        price = 9.0 / announced
        volumes, _ = best_response(
            price, 80.0, clients.collection_cost, clients.training_cost, rate, trim_start=trim
        )
        committed = {k: np.floor(volumes[:, k] + 0.5).astype(int).tolist() for k in range(4)}
        assert not impossible_commitments(announcement, committed, WIDE, capacity=np.inf)
        most = max(map(max, committed.values()))
        above = {k for k, each in committed.items() if max(each) == most}
        assert impossible_commitments(announcement, committed, WIDE, capacity=most - 1).keys() == above
        false = {0: [*committed[0][:-1], committed[0][-1] + 40 * most]}
        if num_rounds > 3:
            assert impossible_commitments(announcement, false, WIDE, capacity=np.inf).keys() == {0}


def samples(number: float) -> np.uint64:
    return np.int64(number * 2**20).astype(np.uint64)


def one_round(volumes: np.ndarray) -> np.ndarray:
    changed = volumes.copy()
    changed[0, 2] -= samples(50)
    return changed


@pytest.mark.parametrize(
    "change",
    [
        lambda volumes: volumes + samples(1e9),
        lambda volumes: volumes + samples(300),
        lambda volumes: volumes - samples(50),
        lambda volumes: volumes - samples(1e6),
        one_round,
        lambda volumes: np.concatenate([volumes[:1], volumes[1:] + samples(1e9)]),
    ],
    ids=["huge", "more", "less", "negative", "one round", "other offers"],
)
def test_a_false_masked_answer(tmp_path: Path, without: list[Entry], change: Change) -> None:
    def spoil(reply: Message) -> None:
        volumes = messages.from_arrays(reply.content["arrays"])["volumes"]
        reply.content["arrays"] = messages.to_arrays({"volumes": change(volumes)})

    run = Run(tmp_path, *FIVE, negotiate=True, meddle=of_the_cheat(messages.BEST_RESPONSE, spoil))
    run.start()
    assert run.entries() == without


def test_a_replayed_masked_answer(tmp_path: Path, without: list[Entry]) -> None:
    first: list[RecordDict] = []

    def spoil(reply: Message) -> None:
        first.append(reply.content)
        reply.content["arrays"] = first[0]["arrays"]

    run = Run(tmp_path, *FIVE, negotiate=True, meddle=of_the_cheat(messages.BEST_RESPONSE, spoil))
    run.start()
    assert run.entries() == without


@pytest.mark.parametrize("which", ["all", "one", "none", "short"])
def test_false_keys_of_masks(tmp_path: Path, without: list[Entry], which: str) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply, kind = answer(), message.metadata.message_type
        if client == CHEAT and kind == messages.BEST_RESPONSE:
            volumes = messages.from_arrays(reply.content["arrays"])["volumes"]
            reply.content["arrays"] = messages.to_arrays({"volumes": volumes + samples(300)})
        if client == CHEAT and kind == messages.OPEN:
            keys = list(record(reply)["keys"])
            false = {
                "all": [bytes(32)] * len(keys),
                "one": [bytes(32), *keys[1:]],
                "none": [],
                "short": keys[1:],
            }
            record(reply)["keys"] = false[which]
        return reply

    run = Run(tmp_path, *FIVE, negotiate=True, meddle=meddle)
    run.start()
    assert run.entries() == without


def test_masks_that_nobody_shares(
    tmp_path: Path, without: list[Entry], caplog: pytest.LogCaptureFixture
) -> None:
    """The cheat's answers fit the keys that it reveals, but all others disagree with these keys."""
    others: dict[str, str] = {}

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        kind = message.metadata.message_type
        if client == CHEAT and kind == messages.BEST_RESPONSE:
            true = Query.read(message.content).mask_id
            record(message)["id"] = "another"
            others[true] = Query.read(message.content).mask_id
        if client == CHEAT and kind == messages.OPEN:
            record(message)["mask_ids"] = [others[each] for each in record(message)["mask_ids"]]
        return answer()

    run = Run(tmp_path, *FIVE, negotiate=True, meddle=meddle)
    run.start()
    assert run.entries() == without
    assert "4 other clients have other keys" in caplog.text


@pytest.mark.parametrize("seed", range(3))
def test_a_liar_that_is_honest_at_times(tmp_path: Path, seed: int) -> None:
    chance = np.random.default_rng(seed)

    def spoil(reply: Message) -> None:
        volumes = messages.from_arrays(reply.content["arrays"])["volumes"]
        lie = samples(chance.choice([0, 200, 2000, -20]))
        reply.content["arrays"] = messages.to_arrays({"volumes": volumes + lie})

    run = Run(tmp_path, *FIVE, negotiate=True, meddle=of_the_cheat(messages.BEST_RESPONSE, spoil))
    run.start()
    assert all({0, 2, 3, 4} <= {claim.client for claim in round.claims} for round in run.rounds)
    assert len(run.rounds) == 4


def test_the_deal_stays_if_too_few_are_left_to_negotiate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        late = is_training(message) and messages.round_of(message.content) >= 2
        return None if client == CHEAT and (late or run.strategy.round >= 2) else answer()

    run = Run(tmp_path, *FIVE, "game.num_rounds=9", negotiate=True, min_others=4, meddle=meddle)
    run.start()
    assert [len(round.claims) for round in run.rounds] == [5, 5] + [4] * 7
    assert run.strategy.deal is not None
    assert run.strategy.deal.first_round == 0
    assert all(round.units > 0 and not round.refused for round in run.rounds)
    assert caplog.text.count("the deal stays as it was") == 1


@pytest.mark.parametrize("key", [bytes(32), bytes(5), b"\x01" + bytes(31)], ids=["zero", "short", "one"])
@pytest.mark.parametrize("negotiate", [True, False])
def test_a_bad_key(tmp_path: Path, key: bytes, negotiate: bool) -> None:
    def spoil(reply: Message) -> None:
        record(reply)["key"] = key

    meddle = of_the_cheat(messages.HELLO, spoil)
    run = Run(tmp_path, *FIVE, negotiate=negotiate, meddle=meddle, arrival_timeout=0.2)
    run.start()
    paid = {entry.client for entry in run.entries() if entry.owed}
    assert paid == {0, 2, 3, 4}
    assert len(run.rounds) == 4


@pytest.mark.parametrize("age", [0.0, 0.5, 1e300, 1.7e308, 1e6, 12.0])
def test_an_impossible_age(tmp_path: Path, age: float) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == CHEAT and is_training(message):
            record(reply)["mean_age"] = age
        return reply

    run = Run(tmp_path, *FIVE, meddle=meddle)
    run.start()
    assert all("age" in round.refused[CHEAT] for round in run.rounds)
    assert all(sorted(round.refused) == [CHEAT] for round in run.rounds)
    assert not any(entry.owed for entry in run.entries() if entry.client == CHEAT)


def test_an_age_that_rises_too_fast(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == CHEAT and is_training(message) and messages.round_of(message.content) == 2:
            record(reply)["mean_age"] = 4.5
        return reply

    run = Run(tmp_path, *FIVE, meddle=meddle)
    run.start()
    assert [sorted(round.refused) for round in run.rounds] == [[], [], [CHEAT], []]


def test_two_nodes_with_one_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The number belongs to the first key, and the error names both nodes."""

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == CHEAT and message.metadata.message_type == messages.HELLO:
            record(reply)["client"] = 2
        return reply

    run = Run(tmp_path, *FIVE, meddle=meddle, arrival_timeout=0.2)
    homes = {client: node for node, client in run.grid.nodes.items()}
    with pytest.raises(InputError) as caught:
        run.start()
    assert (caught.value.field, caught.value.value) == ("the number of clients", 4)
    for text in (str(caught.value), caplog.text):
        assert str(homes[CHEAT]) in text
        assert str(homes[2]) in text


def test_a_number_that_is_not_expected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def spoil(reply: Message) -> None:
        record(reply)["client"] = 7

    run = Run(tmp_path, *FIVE, meddle=of_the_cheat(messages.HELLO, spoil), arrival_timeout=0.2)
    with pytest.raises(InputError, match=r"client 7 is not expected .* 0 … 4"):
        run.start()
    assert "client 7 is not expected" in caplog.text


ANNOUNCED = Announcement(Offer(payment=5.0, conservation_rate=0.5), np.full(4, 300.0))


class Curious:
    """A server that asks one client whatever it likes."""

    def __init__(self, folder: Path, **privacy: Any) -> None:
        self.run = Run(folder, *FIVE, negotiate=True)
        self.run.grid._run_config.update({"min-others": 3, "allow-unmasked": False} | privacy)
        self.node = next(node for node, client in self.run.grid.nodes.items() if client == 0)
        found = {k: self.ask(n, messages.HELLO, RecordDict()) for n, k in self.run.grid.nodes.items()}
        self.keys = {k: messages.Hello.read(reply.content).key for k, reply in sorted(found.items())}

    def ask(self, node: int, kind: str, records: RecordDict) -> Message:
        outgoing = Message(records, dst_node_id=node, message_type=kind)
        (reply,) = self.run.grid.send_and_receive([outgoing])
        return reply

    def query(self, clients: Any, *announcements: Announcement, id: str = "1") -> Message:
        roster = {client: self.keys[client] for client in clients}
        query = Query(id, 0, roster, announcements or [ANNOUNCED])
        return self.ask(self.node, messages.BEST_RESPONSE, query.to_records())


def scaled(factor: float) -> Announcement:
    return Announcement(ANNOUNCED.offer, factor * ANNOUNCED.announced_volume)


@pytest.mark.parametrize("clients", [[], [0], [0, 1], [0, 1, 2]])
def test_a_sum_over_too_few_clients(tmp_path: Path, clients: list[int]) -> None:
    reply = Curious(tmp_path).query(clients)
    assert reply.has_error()
    assert (reply.error.reason or "").startswith("client 0 refuses to answer")


@pytest.mark.parametrize(
    ("privacy", "clients"),
    [({}, [0, 1, 2, 3]), ({"min-others": 1}, [0, 1]), ({"allow-unmasked": True}, [])],
)
def test_a_sum_over_enough_clients(tmp_path: Path, privacy: dict[str, Any], clients: list[int]) -> None:
    assert Curious(tmp_path, **privacy).query(clients).has_content()


@pytest.mark.parametrize("factor", [1.0, 1 + 1e-9])
def test_one_announcement_under_two_rosters(tmp_path: Path, factor: float) -> None:
    curious = Curious(tmp_path)
    assert curious.query(range(5)).has_content()
    assert curious.query(range(5), id="2").has_content()  # a server that was restarted
    reply = curious.query(range(4), scaled(factor))
    assert "another roster" in (reply.error.reason or "")
    assert curious.query(range(4), scaled(1.2)).has_content()  # a client has left


def test_one_id_for_two_queries_has_two_masks(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    replies = curious.query(range(5)), curious.query(range(5), scaled(1.2))
    one, two = (messages.from_arrays(reply.content["arrays"])["volumes"] for reply in replies)
    assert (np.abs((one - two).view(np.int64)) > 2**44).any()  # more than any difference of two answers


def test_too_many_questions(tmp_path: Path) -> None:
    curious = Curious(tmp_path, **{"max-questions": 7})
    many = [scaled(1 + 0.1 * k) for k in range(9)]
    assert curious.query(range(5), *many[:5]).has_content()
    assert curious.query(range(5), *many[:5], id="2").has_content()  # nothing new
    assert "at most 7" in (curious.query(range(5), *many[5:8]).error.reason or "")
    assert curious.query(range(5), *many[5:7]).has_content()
    assert curious.query(range(5), many[8]).has_error()


def test_masks_are_opened_for_a_commitment_alone(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    query = Query("1", 0, curious.keys, [ANNOUNCED])
    asked = curious.ask(curious.node, messages.BEST_RESPONSE, query.to_records())
    assert asked.has_content()
    request = OpenQueries((query.mask_id,), curious.keys).to_records()
    assert curious.ask(curious.node, messages.OPEN, request).has_error()
    plan = Query("2", 0, {}, [ANNOUNCED]).to_records()
    assert curious.ask(curious.node, messages.COMMIT, plan).has_content()
    assert curious.ask(curious.node, messages.OPEN, request).has_content()
    for other in (
        OpenQueries(("another",), curious.keys),
        OpenQueries((query.mask_id,), {0: curious.keys[0]}),
    ):
        assert curious.ask(curious.node, messages.OPEN, other.to_records()).has_error()


def test_why_clients_refuse_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, *FIVE, negotiate=True, min_others=5)
    with pytest.raises(DuflError, match=r"no reply from clients .* at least 5 other clients"):
        run.start()
    assert (
        "refuses to answer: a query must be about a sum with at least 5 other clients, got 4" in caplog.text
    )
