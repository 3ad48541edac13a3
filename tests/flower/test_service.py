"""A service on Flower without a last round: windows, clients that come and go, the budget, restarts."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message, MetricRecord

from dufl.data.durable import DurableBuffer
from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.flower import messages, nodes, strategy
from dufl.flower.in_process import Answer, is_training
from dufl.flower.messages import from_arrays
from dufl.flower.server_store import Round, ServerStore
from dufl.flower.service import Budget, Schedule
from flower_service import ServiceRun, make_app, service_game


class KilledError(Exception):
    """The server is gone."""


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "POLL", 0.01)


def deals(run: ServiceRun) -> list[int]:
    """The first rounds of the deals, in their order."""
    return list(dict.fromkeys(round.deal.first_round for round in run.rounds))


def test_windows_follow_each_other_and_rounds_are_never_counted_anew(tmp_path: Path) -> None:
    evaluated: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(server_round)
        return MetricRecord({"sum": float(from_arrays(arrays)["w"].sum())})

    run = ServiceRun(tmp_path, service_game(window=6), max_rounds=8)
    result = run.strategy.start(run.grid, run.arrays, evaluate_fn=evaluate)
    assert [round.round for round in run.rounds] == list(range(8))
    assert deals(run) == [0, 3, 6]  # half a window
    assert all(len(round.deal.announcement.announced_volume) == 6 for round in run.rounds)
    assert evaluated == list(result.evaluate_metrics_serverapp) == list(range(9))
    assert list(result.train_metrics_clientapp) == list(range(1, 9))
    assert from_arrays(result.arrays)["w"][0] == pytest.approx(8 * 1.5, rel=0.1)
    assert not any(round.refused or round.missing for round in run.rounds)
    with pytest.raises(InputError, match="is finished"):
        ServiceRun(tmp_path, service_game(window=6), grid=run.grid, max_rounds=8).start()
    more = ServiceRun(tmp_path, service_game(window=6), grid=run.grid, max_rounds=10)
    more.start()
    assert [round.round for round in more.rounds] == [8, 9]


def test_the_plan_of_a_window_starts_from_what_clients_hold(tmp_path: Path) -> None:
    run = ServiceRun(tmp_path, service_game(window=8), max_rounds=9, replan_every=4)
    run.start()
    for round in run.rounds:
        held = {claim.client: claim.volume for claim in round.claims}
        at = round.round - round.deal.first_round
        assert held == {client: volumes[at] for client, volumes in round.deal.commitments.items()}
    last, first = run.rounds[3], run.rounds[4]
    assert last.deal is not first.deal
    planned = {client: volumes[4] for client, volumes in last.deal.commitments.items()}
    assert {claim.client: claim.volume for claim in first.claims} == planned


def test_clients_join_and_a_number_belongs_to_one_key(tmp_path: Path) -> None:
    copied: list[bytes] = []

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if message.metadata.message_type == messages.HELLO:
            hello: Any = reply.content[messages.RECORD]
            if client == 0:
                copied.append(hello["key"])
            if client == 9:  # the same client again, under another number
                hello["key"] = copied[0]
            if client == 11:
                hello["client"] = nodes.MOST_CLIENTS
        return reply

    def on_round_end(round: Round) -> None:
        if round.round == 0:
            for client in (7, 9, 11):
                run.grid.move(client, 5000 + client)

    run = ServiceRun(tmp_path, service_game(window=4), meddle=meddle, on_round_end=on_round_end, max_rounds=5)
    run.start()
    assert [sorted(round.deal.commitments) for round in run.rounds] == [[0, 1, 2, 3]] * 2 + [
        [0, 1, 2, 3, 7]
    ] * 3
    assert all(not round.missing and not round.refused for round in run.rounds)
    assert {entry.client for entry in run.entries() if entry.owed} == {0, 1, 2, 3, 7}


def test_who_leaves_and_returns_after_its_plan_is_over(tmp_path: Path) -> None:
    def on_round_end(round: Round) -> None:
        if round.round == 1:
            run.grid.leave(2)
        if round.round == 14:
            run.grid.move(2, 7777)

    run = ServiceRun(tmp_path, service_game(window=6), on_round_end=on_round_end, max_rounds=20)
    run.start()
    here = [2 in round.deal.commitments for round in run.rounds]
    assert here[0]
    assert here[15:].index(True) <= 3  # at most until the next window
    assert not any(here[6:15])
    missing = [round.round for round in run.rounds if round.missing]
    assert missing == [2]  # it is silent in the negotiation of round 3
    assert not any(round.refused for round in run.rounds)
    back = next(round for round in run.rounds[15:] if 2 in round.deal.commitments)
    claim = next(claim for claim in back.claims if claim.client == 2)
    assert claim.volume == back.deal.commitments[2][0] > 0
    assert claim.mean_age <= back.round + 1


def test_a_lie_about_the_age_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    lies: list[int] = []

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if is_training(message) and client == 1 and messages.round_of(message.content) in lies:
            claim: Any = reply.content[messages.RECORD]
            claim["mean_age"] = 8.0
        return reply

    first = ServiceRun(tmp_path, service_game(), meddle=meddle, max_rounds=2)
    first.start()
    lies += [2, 3]
    second = ServiceRun(tmp_path, service_game(), grid=first.grid, max_rounds=5)
    second.start()
    assert [sorted(round.refused) for round in second.rounds] == [[1], [1], []]
    assert "mean age" in second.rounds[0].refused[1]


def test_the_first_claim_of_a_client_that_joins_is_bounded_too(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if is_training(message) and client == 4:
            claim: Any = reply.content[messages.RECORD]
            claim["mean_age"] = 1.0 + 4 + 3  # the initial age, a window, and the rounds since it joined
        return reply

    def on_round_end(round: Round) -> None:
        if round.round == 0:
            run.grid.move(4, 5555)

    run = ServiceRun(tmp_path, service_game(window=4), meddle=meddle, on_round_end=on_round_end, max_rounds=6)
    run.start()
    assert [4 in round.refused for round in run.rounds] == [False, False, True, True, True, False]


def test_a_server_killed_after_clients_committed_does_not_go_on_with_the_old_deal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KilledError

    run = ServiceRun(tmp_path, service_game(), max_rounds=3)
    run.start()
    with monkeypatch.context() as patch:
        patch.setattr(ServerStore, "save_deal", killed)
        with pytest.raises(KilledError):
            ServiceRun(tmp_path, service_game(), grid=run.grid, max_rounds=9).start()
    again = ServiceRun(tmp_path, service_game(), grid=run.grid, max_rounds=9)
    again.start()
    assert deals(again) == [3, 6]
    assert not any(round.refused or round.missing for round in again.rounds)


def test_questions_do_not_run_out(tmp_path: Path) -> None:
    app = make_app(max_questions=40)
    run = ServiceRun(tmp_path, service_game(window=4), app=app, max_rounds=12)
    run.start()
    assert deals(run) == [0, 2, 4, 6, 8, 10]
    assert not any(round.refused or round.missing for round in run.rounds)


def test_the_budget_is_never_exceeded_also_across_restarts(tmp_path: Path) -> None:
    budget, grid = 33.33, None
    rounds: list[Round] = []
    for stop in (2, 5, 100):
        run = ServiceRun(
            tmp_path, service_game(), grid=grid, max_rounds=stop, total_budget=budget, unit=Unit()
        )
        run.start()
        grid, rounds = run.grid, [*rounds, *run.rounds]
    entries = run.entries()
    assert sum(entry.owed for entry in entries) in range(3300, 3334)
    assert [round.round for round in rounds] == list(range(len(rounds)))
    promised = [Unit().count(round.deal.offer.payment) for round in rounds]
    assert promised == [round.units for round in rounds]  # the ledger had to cut nothing
    assert promised[0] == 500 > promised[-1]  # the last rounds are paid less
    assert max(promised) * 6 < 3333 < 500 * len(rounds)
    again = ServiceRun(tmp_path, service_game(), grid=grid, max_rounds=200, total_budget=budget)
    again.start()
    assert not again.rounds
    more = ServiceRun(tmp_path, service_game(), grid=grid, max_rounds=len(rounds) + 1, total_budget=50.0)
    more.start()
    assert [round.round for round in more.rounds] == [len(rounds)]


def test_a_service_that_must_pay_ends_when_it_cannot(tmp_path: Path) -> None:
    game = service_game(window=4, payment_range=(4.0, 5.0))
    run = ServiceRun(tmp_path, game, total_budget=14.5)
    run.start()
    assert [round.units for round in run.rounds] == [500, 500, 450]
    nothing = ServiceRun(tmp_path / "nothing", game, total_budget=3.99)
    assert from_arrays(nothing.start().arrays)["w"].tolist() == [0.0, 0.0, 0.0]
    assert not nothing.rounds


def test_the_budget_of_a_run_with_a_last_round(tmp_path: Path) -> None:
    game = service_game(window=5).replace(horizon="finite")
    run = ServiceRun(tmp_path, game, total_budget=9.0)
    run.start(5)
    assert [round.units for round in run.rounds] == [180] * 5
    low = game.replace(payment_range=(2.0, 5.0))
    with pytest.raises(InputError, match=r"total_budget must be enough for 5 rounds of at least 2, got 9"):
        ServiceRun(tmp_path / "low", low, total_budget=9.0).start(5)


def test_a_run_with_a_last_round_is_planned_again(tmp_path: Path) -> None:
    game = service_game(window=8).replace(horizon="finite")
    run = ServiceRun(tmp_path, game, replan_every=3)
    run.start(8)
    assert deals(run) == [0, 3, 6]
    assert [round.deal.num_rounds for round in run.rounds] == [8] * 8
    assert not any(round.refused for round in run.rounds)


def test_nothing_on_disk_or_in_memory_grows_but_what_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "KEPT_RESULTS", 4)
    sizes: dict[str, list[int]] = {}

    def on_round_end(round: Round) -> None:
        for path in (tmp_path / "server").iterdir():
            sizes.setdefault(path.name, []).append(path.stat().st_size)

    run = ServiceRun(tmp_path, service_game(window=4), on_round_end=on_round_end, max_rounds=12)
    result = run.start()
    assert set(sizes) - {"ledger.sqlite-wal", "ledger.sqlite-shm"} == {
        ".lock",
        "deal.json",
        "run.json",
        "results.jsonl",
        "ledger.sqlite",
        "server.npz",
    }
    assert max(sizes["server.npz"]) == min(sizes["server.npz"])
    assert max(sizes["deal.json"]) < 1.2 * sizes["deal.json"][0]
    assert list(result.train_metrics_clientapp) == [9, 10, 11, 12]
    lines = (tmp_path / "server" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 13))
    assert len(list((tmp_path / "clients").iterdir())) <= 4 * 2  # a buffer, and what is collected for a round
    with DurableBuffer[Any].open(tmp_path / "clients" / "client-0.sqlite") as buffer:
        assert buffer.round == 11


def test_a_service_without_clients_waits_and_then_ends_with_an_error(tmp_path: Path) -> None:
    silent = False

    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        return None if silent else answer()

    def on_round_end(round: Round) -> None:
        nonlocal silent
        silent = round.round >= 1

    options: Any = {"on_round_end": on_round_end, "max_missed_rounds": 1}
    run = ServiceRun(tmp_path, service_game(window=8), meddle=meddle, arrival_timeout=2.0, **options)
    with pytest.raises(InputError, match="the number of clients must be 1 within 2 s, got 0"):
        run.start()
    assert run.rounds[2].missing == [0, 1, 2, 3]
    silent = False
    again = ServiceRun(tmp_path, service_game(window=8), grid=run.grid, max_rounds=4)
    again.start()
    assert [round.round for round in run.rounds + again.rounds] == list(range(4))


def test_what_makes_no_schedule() -> None:
    game = service_game(window=6)
    assert Schedule.of(game).every == 3
    assert Schedule.of(game.replace(num_rounds=2)).every == 1
    for value in (0, 6, "drift", True, 2.0):
        with pytest.raises(InputError, match=r"leader.replan_every must be an integer from 1 to 5"):
            Schedule.of(game, value)
    finite = game.replace(horizon="finite")
    with pytest.raises(InputError, match=r"leader.replan_every must be an integer from 1 to 4"):
        Schedule.of(finite, 5)
    with pytest.raises(InputError, match="max_rounds must be left out unless horizon = 'endless', got 3"):
        Schedule.of(finite, None, 3)


@pytest.mark.parametrize("unit", ["0.01", "1", "10"])
@pytest.mark.parametrize("total", [0.0, 0.5, 9.999, 100.0, 12345.678])
@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_a_budget_pays_for_what_it_allows(unit: str, total: float, rounds: int) -> None:
    coin, budget = Unit.parse(unit), Budget(total)
    for low, spent in ((0.0, 0), (0.0, 50), (1.5, 0), (20.0, 3)):
        for fewer in (False, True):
            allowed = budget.payment_range((low, 500.0), rounds, spent, coin, fewer)
            units = budget.units(coin)
            assert units is not None
            assert coin.value(units) <= total < coin.value(units + 1)
            if allowed is None:
                least = max(low, 0.0 if not fewer else float(coin.size)) * (1 if fewer else rounds)
                assert float(coin.value(max(units - spent, 0))) < least + float(coin.size) * rounds
                continue
            assert low == allowed[0] <= allowed[1] <= 500.0
            payable = budget.payable(allowed[1], spent, coin)
            assert payable is None or payable >= (1 if fewer else rounds)
