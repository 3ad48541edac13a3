"""Rules of payment: whoever is paid, the shares add up; escrow and budget neither make nor lose anything."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufl.errors import InputError
from dufl.experiment.service import PaymentRule, Unit
from dufl.flower.ledger import Claim, Entry, Ledger, Score, shares
from dufl.flower.payment import NO_CONTRIBUTION, SPENT

RULES: tuple[PaymentRule, ...] = get_args(PaymentRule)
weights = st.floats(0, 1e300, allow_subnormal=True)
scored = st.builds(
    Score,
    st.floats(-1, 1),
    st.floats(-2, -1),
    st.floats(1, 2),
    st.sampled_from(["", "makes the model worse"]),
    weights,
)
volumes = st.lists(st.integers(0, 10**6), min_size=1, max_size=12)


def claim(client: int, volume: int, committed: int | None = None) -> Claim:
    return Claim(client, volume, volume if committed is None else committed, mean_age=1.0, classes=1)


def score(weight: float = 1.0, suspicion: str = "", mean: float = 0.1) -> Score:
    return Score(mean, mean - 0.05, mean + 0.05, suspicion, weight)


def claims_of(held: list[int]) -> list[Claim]:
    return [claim(client, volume) for client, volume in enumerate(held)]


@given(volumes, st.integers(0, 10**12), st.dictionaries(st.integers(0, 11), scored), st.sampled_from(RULES))
def test_the_shares_add_up_under_every_rule(
    held: list[int], units: int, scores: dict[int, Score], rule: PaymentRule
) -> None:
    entries = shares(0, units, claims_of(held), rule=rule, scores=scores)
    paid = sum(entry.owed + entry.held for entry in entries)
    willing = [k for k, volume in enumerate(held) if volume]
    if rule == "contribution":
        willing = [k for k in willing if k not in scores or scores[k].weight]
    assert paid == (units if willing else 0)
    for entry in entries:
        assert min(entry.owed, entry.held, entry.released) >= 0
        assert not (entry.owed and entry.held)
        assert not (entry.owed and entry.reason)
        assert entry.client in willing or not entry.owed + entry.held
        assert rule == "audited" or not entry.held


@given(volumes, st.integers(0, 10**9), st.dictionaries(st.integers(0, 11), scored))
def test_suspicion_changes_when_a_share_is_paid_but_not_its_amount(
    held: list[int], units: int, scores: dict[int, Score]
) -> None:
    plain = shares(0, units, claims_of(held))
    audited = shares(0, units, claims_of(held), rule="audited", scores=scores)
    assert [entry.owed for entry in plain] == [entry.owed + entry.held for entry in audited]
    for entry, volume in zip(audited, held, strict=True):
        suspicion = scores[entry.client].suspicion if entry.client in scores else ""
        assert entry.held == 0 or suspicion
        assert entry.owed == 0 or not suspicion
        assert entry.reason == (suspicion if volume else "no samples")


def test_contribution_is_paid_for() -> None:
    scores = {0: score(3.0), 1: score(1.0), 2: score(0.0)}
    entries = shares(0, 100, claims_of([10, 1000, 500]), rule="contribution", scores=scores)
    assert [(entry.owed, entry.reason) for entry in entries] == [(75, ""), (25, ""), (0, NO_CONTRIBUTION)]
    assert (entries[0].score, entries[0].low, entries[0].high) == (0.1, 0.1 - 0.05, 0.1 + 0.05)


def test_who_has_no_score_gets_its_share_by_volume() -> None:
    claims = claims_of([100, 100, 200])
    nobody = shares(0, 1000, claims, rule="contribution")
    assert [entry.owed for entry in nobody] == [250, 250, 500]
    some = shares(0, 1000, claims, rule="contribution", scores={0: score(1.0), 1: score(4.0)})
    assert [entry.owed for entry in some] == [100, 400, 500]


def test_nobody_is_paid_if_nobody_contributes() -> None:
    scores = {0: score(0.0), 1: score(0.0)}
    entries = shares(0, 1000, claims_of([100, 100]), rule="contribution", scores=scores)
    assert [(entry.owed, entry.reason) for entry in entries] == [(0, NO_CONTRIBUTION)] * 2
    entries = shares(0, 1000, claims_of([100, 100, 1]), rule="contribution", scores=scores)
    assert [entry.owed for entry in entries] == [0, 0, 1000]  # a newcomer is the only one that may contribute


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_are_numbers(value: float) -> None:
    for name in ("mean", "low", "high", "weight"):
        with pytest.raises(InputError) as caught:
            Score(**{"mean": 0.0, "low": 0.0, "high": 0.0, "weight": 0.0, name: value})  # type: ignore[arg-type]
        assert caught.value.field == f"{name} of a score"
    with pytest.raises(InputError):
        Score(0.0, 0.0, 0.0, weight=-1e-9)


def test_a_claim_may_be_any_number_and_a_reason_any_text(tmp_path: Path) -> None:
    """What a client sends must not stop the server."""
    claims = [claim(0, 2**80, 5), claim(1, -(2**80), 5), claim(2, 5)]
    with Ledger(tmp_path / "l.sqlite") as ledger:
        entries = ledger.pay(0, 1.0, claims, {3: "sent \ud800 and \0" + "x" * 10**5})
        ledger.check()
    assert [entry.owed for entry in entries] == [0, 0, 100, 0]
    assert entries[0].claimed == 2**63 - 1
    assert entries[3].reason.startswith("sent ? and �x")
    assert len(entries[3].reason) == 500


# ---- escrow


def test_what_is_held_back_is_released_once_the_client_is_cleared(tmp_path: Path) -> None:
    bad, good = {0: score(suspicion="worse"), 1: score()}, {0: score(), 1: score()}
    claims = claims_of([100, 100])
    with Ledger(tmp_path / "l.sqlite") as ledger:
        for round in range(2):
            first, second = ledger.pay(round, 1.0, claims, rule="audited", scores=bad)
            assert (first.owed, first.held, first.reason) == (0, 50, "worse")
            assert (second.owed, second.held, second.released) == (50, 0, 0)
        assert ledger.escrow() == {0: 100}
        first, _ = ledger.pay(2, 1.0, claims, rule="audited")  # no news
        assert (first.owed, first.released) == (50, 0)
        first, _ = ledger.pay(3, 1.0, [], {0: "no reply", 1: "no reply"}, rule="audited", scores=good)
        assert (first.owed, first.released, first.reason) == (0, 100, "no reply")
        first, _ = ledger.pay(4, 1.0, claims, rule="audited", scores=good)
        assert (first.owed, first.released) == (50, 0)
        assert ledger.escrow() == {}
        assert ledger.total() == 400
        ledger.check()


events = st.lists(
    st.tuples(
        st.sampled_from(RULES),
        st.floats(0, 50),
        st.dictionaries(st.integers(0, 3), scored),
        st.sampled_from(["", "release", "forfeit"]),
        st.lists(st.integers(0, 100), min_size=4, max_size=4),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(events, st.none() | st.floats(0, 100))
def test_no_unit_is_made_or_lost(tmp_path_factory: Any, rounds: Any, budget: float | None) -> None:
    """Everything that was ever promised is owed, in escrow, or forfeited; never more than the budget."""
    path = tmp_path_factory.mktemp("ledger") / "l.sqlite"
    forfeited = 0
    for round, (rule, payment, scores, decision, held) in enumerate(rounds):
        with Ledger(path) as ledger:
            ledger.pay(round, payment, claims_of(held), rule=rule, scores=scores, budget=budget)
            if decision and ledger.escrow():
                client, amount = next(iter(ledger.escrow().items()))
                assert ledger.settle(client, decision, "looked at it").units == amount
                forfeited += amount if decision == "forfeit" else 0
            entries, settled = ledger.entries(), ledger.settlements()
            promised = sum(entry.owed + entry.held for entry in entries)
            due = sum(entry.owed + entry.released for entry in entries)
            due += sum(each.units for each in settled if each.decision == "release")
            assert promised == due + sum(ledger.escrow().values()) + forfeited
            assert ledger.total() == promised - forfeited
            assert min(ledger.escrow().values(), default=1) > 0
            if budget is not None:
                assert ledger.total() <= budget * 100 + 1e-9
            ledger.check()


# ---- budget


def test_a_budget_is_never_exceeded(tmp_path: Path) -> None:
    paid: list[list[Entry]] = []
    for round in range(4):
        with Ledger(tmp_path / "l.sqlite") as ledger:  # a restart before every round
            paid.append(ledger.pay(round, 1.0, claims_of([10, 20]), {2: "no reply"}, budget=2.509))
    assert [[entry.owed for entry in entries] for entries in paid] == [
        *[[33, 67, 0]] * 2,
        [17, 33, 0],
        [0, 0, 0],
    ]
    assert [entry.reason for entry in paid[2]] == ["", "", "no reply"]
    assert [entry.reason for entry in paid[3]] == [SPENT, SPENT, "no reply"]
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.total() == 250
        assert ledger.pay(3, 1.0, claims_of([10]), budget=100.0) == paid[3]  # written once
        ledger.check()


def test_a_round_that_costs_nothing_does_not_blame_the_budget(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.pay(0, 1.0, claims_of([10]), budget=1.0)
        (entry,) = ledger.pay(1, 0.0, claims_of([10]), budget=1.0)
    assert (entry.owed, entry.reason) == (0, "")


def test_what_is_forfeited_can_be_paid_again(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        worse = {0: score(suspicion="worse")}
        ledger.pay(0, 1.0, claims_of([10]), rule="audited", scores=worse, budget=1.0)
        (entry,) = ledger.pay(1, 1.0, claims_of([10]), budget=1.0)
        assert (entry.owed, entry.reason) == (0, SPENT)
        ledger.settle(0, "forfeit", "sent noise")
        (entry,) = ledger.pay(2, 1.0, [claim(1, 10)], budget=1.0)
        assert (entry.client, entry.owed) == (1, 100)
        assert ledger.escrow() == {}
        assert ledger.total() == 100
        ledger.check()


@pytest.mark.parametrize(("payment", "budget"), [(-1.0, None), (math.nan, None), (math.inf, None)])
def test_payments_are_amounts(tmp_path: Path, payment: float, budget: float | None) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        with pytest.raises(InputError) as caught:
            ledger.pay(0, payment, claims_of([1]))
        assert (caught.value.field, ledger.rounds()) == ("payment", {})
        with pytest.raises(InputError) as caught:
            ledger.pay(0, 1.0, claims_of([1]), budget=payment)
        assert (caught.value.field, ledger.rounds()) == ("budget", {})


def test_amounts_that_a_database_cannot_hold(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.pay(0, 9e16, claims_of([1, 2]))
        with pytest.raises(InputError) as caught:  # the sum is too large
            ledger.pay(1, 9e16, claims_of([1, 2]))
        assert caught.value.field == "payment"
        assert ledger.rounds() == {0: 9 * 10**18}
        for payment in (1e40, 1e300):
            with pytest.raises(InputError) as caught:
                ledger.pay(1, payment, claims_of([1]))
            assert caught.value.field == "payment"
        (entry,) = ledger.pay(1, 1e300, claims_of([1]), budget=9.000000000000128e16)
        assert entry.owed == 128000
        ledger.check()


# ---- units


def test_the_unit_is_fixed(tmp_path: Path) -> None:
    yen, cent = Unit.parse("1 JPY"), Unit.parse("0.01 EUR")
    with Ledger(tmp_path / "l.sqlite", yen) as ledger:
        assert sum(entry.owed for entry in ledger.pay(0, 63.5, claims_of([1, 2]))) == 64
    with pytest.raises(InputError) as caught:
        Ledger(tmp_path / "l.sqlite", cent)
    assert caught.value.field == "unit"
    assert "1 JPY" in str(caught.value)
    assert "0.01 EUR" in str(caught.value)
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.unit == yen
