"""Client selection by age: the index by its definition, and the laws of the selection."""

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufl.errors import InputError
from dufl.experiment.train import train
from dufl.learning.selection import Candidates, participants, whittle_index
from dufl.learning.settings import Training
from federations import facts, federation_of, small
from loading import pausing

ROUNDS = 400


def average_cost(threshold: int, price: float, weight: float, success: float) -> float:
    """Of selecting a client from an age on, by the stationary distribution of its age."""
    ages = np.arange(1, threshold + int(60 / success))
    stay = np.where(ages >= threshold, 1 - success, 1.0)  # the probability that the age grows
    reach = np.cumprod(np.append(1.0, stay[:-1]))
    chance = reach / reach.sum()
    return float(chance @ (weight * ages + price * (ages >= threshold)))


@pytest.mark.parametrize("success", [1.0, 0.7, 0.2])
@pytest.mark.parametrize("age", [1, 2, 7, 30])
def test_the_index_is_the_price_at_which_selecting_now_or_later_cost_the_same(
    age: int, success: float
) -> None:
    price = float(whittle_index(np.array([3.0]), np.array([age]), success)[0])
    now, later = (average_cost(h, price, 3.0, success) for h in (age, age + 1))
    assert now == pytest.approx(later, rel=1e-9)
    others = [average_cost(h, price, 3.0, success) for h in range(1, age + 20)]
    assert min(others) == pytest.approx(now, rel=1e-9)  # and no other threshold costs less
    dearer = [average_cost(h, 1.1 * price, 3.0, success) for h in (age, age + 1)]
    assert dearer[1] < dearer[0]


def play(
    volumes: Any, fraction: float, rounds: int = ROUNDS, selection: Any = "age", **options: Any
) -> tuple[Any, Any]:
    """Who was selected and replied, (rounds, clients), and the ages before every round."""
    number, volumes = len(volumes), np.asarray(volumes, float)
    training = Training(fraction_train=fraction, client_selection=selection, **options)
    replied, chosen, ages = np.full(number, -1), np.zeros((rounds, number), bool), []
    for t in range(rounds):
        ages.append(t - replied)
        replying, dropped = participants(
            training, number, t, Candidates(np.arange(number), volumes, ages[-1])
        )
        assert not set(replying) & set(dropped)
        assert len(replying) + len(dropped) == max(1, round(fraction * number))
        chosen[t, replying] = True
        replied[replying] = t
    return chosen, np.array(ages)


@settings(max_examples=60)
@given(number=st.integers(1, 40), data=st.data(), volume=st.floats(0.5, 1e6))
def test_equal_clients_are_selected_in_turn(number: int, data: st.DataObject, volume: float) -> None:
    count = data.draw(st.integers(1, number))
    chosen, _ = play([volume] * number, count / number, rounds=200)
    within = ceil(number / count)
    for begin in range(200 - within + 1):
        assert chosen[begin : begin + within].any(axis=0).all()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("volumes", [[100] * 20, np.linspace(50, 200, 20)])
def test_nobody_waits_as_long_as_under_random_selection(volumes: Any, dropout: float) -> None:
    """The largest age and the mean age, weighted by volume; for every seed."""
    for seed in range(5):
        found = {}
        for selection in ("age", "random"):
            _, ages = play(volumes, 0.2, selection=selection, client_dropout=dropout, seed=seed)
            found[selection] = ages.max(), float(np.average(ages.mean(axis=0), weights=volumes))
        assert found["age"][0] < 0.6 * found["random"][0]
        assert found["age"][1] < 0.8 * found["random"][1]


def test_with_dropout_waiting_is_nearly_as_short_as_in_turn() -> None:
    """A client that did not reply is selected again, until it does."""
    chosen, ages = play([10] * 10, 0.5, client_dropout=0.4)
    assert chosen.mean() == pytest.approx(0.3, abs=0.02)
    assert ages.max() < 15
    gaps = [np.diff(np.flatnonzero(each)) for each in chosen.T]
    assert np.concatenate(gaps).mean() == pytest.approx(1 / 0.3, rel=0.05)


def test_larger_clients_are_selected_more_often() -> None:
    """About in proportion to the square root of the volume."""
    volumes = np.repeat([100.0, 400.0, 900.0], 20)
    chosen, _ = play(volumes, 0.2, rounds=2000)
    often = chosen.mean(axis=0).reshape(3, 20).mean(axis=1)
    assert often[0] < often[1] < often[2]
    assert often / often[0] == pytest.approx([1, 2, 3], rel=0.1)
    assert chosen.any(axis=0).all()


def test_the_weighted_age_is_lower_than_in_turn() -> None:
    """What the index is for: Σ α·h, against selection at random and selection in turn."""
    volumes = np.repeat([10.0, 1000.0], [15, 5])
    _, by_index = play(volumes, 0.2)
    _, in_turn = play(np.ones(20), 0.2)
    _, random = play(volumes, 0.2, selection="random")
    costs = [float((ages @ volumes).mean()) for ages in (by_index, in_turn, random)]
    assert costs[0] < 0.8 * costs[1] < costs[2]


def test_ties_go_to_the_lower_number_and_empty_clients_come_last() -> None:
    training = Training(fraction_train=0.5, client_selection="age")

    def select(volumes: Any, ages: Any) -> list[int]:
        candidates = Candidates(np.arange(4), np.array(volumes, float), np.array(ages))
        return participants(training, 4, 3, candidates)[0]

    assert select([5, 5, 5, 5], [1, 1, 1, 1]) == [0, 1]
    assert select([5, 5, 5, 5], [1, 1, 2, 1]) == [0, 2]
    assert select([0, 0, 1, 0], [9, 9, 1, 9]) == [0, 2]
    few = Candidates(np.array([3]), np.array([1.0]), np.array([2]))
    assert participants(training, 4, 3, few) == ([3], [])
    nobody = Candidates(np.array([], np.int64), np.array([]), np.array([], np.int64))
    assert participants(training.replace(client_dropout=0.5), 4, 3, nobody) == ([], [])


def test_all_clients_are_all_clients_however_they_are_selected() -> None:
    one, two = (federation(f"client_selection={how}") for how in ("random", "age"))
    assert one[1] == two[1]
    assert one[0].tobytes() == two[0].tobytes()


def federation(*changes: str) -> tuple[Any, list[Any]]:
    played, engine = federation_of(small(*changes))
    records = []
    while not played.done:
        records.append(facts(played.play()))
    engine.close()
    return played.weights, records


def test_a_federation_selects_by_its_own_volumes() -> None:
    """Volumes stay as they are: the clients that train are those of the rule, round by round."""
    changes = ("clients.initial_volume=[40, 200, 80, 120]", "policy=static", "fraction_train=0.5")
    chosen, _ = play([40, 200, 80, 120], 0.5, rounds=8)
    trained: list[list[int]] = []
    played, engine = federation_of(small(*changes, "client_selection=age"))
    original: Callable[..., Any] = engine.train

    def watched(weights: Any, buffers: Any, tasks: Any) -> Any:
        listed = list(tasks)
        trained.append([task.client for task in listed])
        return original(weights, buffers, listed)

    engine.train = watched  # type: ignore[method-assign, assignment]
    while not played.done:
        played.play()
    engine.close()
    assert trained == [np.flatnonzero(row).tolist() for row in chosen]
    assert trained[0] == [1, 3]


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    changes = (
        *("fraction_train=0.5", "client_selection=age", "client_dropout=0.2", "checkpoint_every=2"),
        *("game.num_rounds=9", "clients.count=6", "data.discard=reservoir", "age_weighting=exponential"),
    )
    whole = train(small(*changes), out=tmp_path / "whole")
    seen: list[Any] = []
    for stop in (3, 7):
        train(
            small(*changes),
            out=tmp_path / "part",
            resume=stop > 3,
            callbacks=[seen.append, pausing(lambda stop=stop: len(seen) >= stop)],  # type: ignore[misc]
        )
    rest = train(small(*changes), out=tmp_path / "part", resume=True)
    assert rest.summary()["fingerprint"] == whole.summary()["fingerprint"]
    assert [facts(r) for r in rest.records] == [facts(r) for r in whole.records]
    other = train(small(*changes, "client_selection=random"))
    assert other.summary()["fingerprint"] != whole.summary()["fingerprint"]


def test_an_unknown_selection() -> None:
    unknown: Any = "oldest"
    with pytest.raises(InputError) as refused:
        Training(client_selection=unknown)
    assert refused.value.field == "client_selection"
