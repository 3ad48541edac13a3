"""Recorded data: periods, dealing, normalization, and what a client can collect when."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufl import InputError
from dufl.data.recording import Recording, make_recording
from dufl.data.replay import Replay, Timeline, divide, free_scores, normalized
from dufl.data.streams import BEFORE
from recordings import hyperplane


def replay(recording: Recording, clients: int = 4, rounds: int = 10, **options: Any) -> Replay:
    """A recording in ten rounds for four clients."""
    return Replay(recording, divide(recording, rounds), clients, **options)


def all_collectable(data: Replay, clients: int) -> list[Any]:
    return [data.collectable(k, t) for k in range(clients) for t in range(BEFORE, data.timeline.num_rounds)]


times = st.lists(st.integers(0, 40), min_size=30, max_size=120).map(lambda t: np.sort(np.array(t, float)))


@settings(deadline=None)
@given(times, st.integers(2, 9), st.floats(0.05, 0.9), st.sampled_from(["time", "count"]))
def test_periods_are_consecutive_and_never_split_a_time(
    t: Any, rounds: int, warm_up: float, periods: Any
) -> None:
    if t[0] == t[-1]:
        return
    x = np.zeros((len(t), 1), np.float32)
    recording = make_recording("r", x, np.arange(len(t)) % 2, t)
    try:
        timeline = divide(recording, rounds, warm_up, periods)
    except InputError:  # an empty warm-up, or fewer times than rounds
        return
    edges = timeline.edges
    assert edges[0] > 0
    assert (np.diff(edges) >= 0).all()
    assert edges[-1] == len(t)
    inner = edges[:-1][edges[:-1] < len(t)]
    assert (t[inner] > t[inner - 1]).all()  # a later time on the other side of every edge


def test_periods_of_equal_time_and_of_equal_count_differ_when_samples_come_in_bursts() -> None:
    t = np.concatenate([np.linspace(0, 1, 900), np.linspace(1.01, 10, 100)])
    recording = make_recording("r", np.zeros((1000, 1), np.float32), np.arange(1000) % 2, t)
    by_time, by_count = (np.diff(divide(recording, 5, 0.1, how).edges) for how in ("time", "count"))
    assert by_count.tolist() == [180] * 5
    assert by_time.max() < 30  # the burst is in the warm-up


@pytest.mark.parametrize("options", [{}, {"deal": "blocks"}, {"dirichlet_alpha": 0.3}])
def test_every_sample_can_be_collected_once_by_one_client(options: dict[str, Any]) -> None:
    data = replay(hyperplane(1000), **options)
    found = np.sort(np.concatenate(all_collectable(data, 4)))
    assert found.tolist() == list(range(1000))


def test_even_dealing_is_even_also_when_classes_alternate() -> None:
    """Ten consecutive records of rialto are one picture with one of each class."""
    y = np.arange(1000) % 4
    data = replay(make_recording("r", np.zeros((1000, 1), np.float32), y, np.arange(1000)))
    for client in range(4):
        own = np.concatenate([data.collectable(client, t) for t in range(BEFORE, 10)])
        assert abs(len(own) - 250) <= 1
        assert np.bincount(y[own]).min() > 40


def test_dirichlet_dealing_skews_the_classes() -> None:
    y = np.arange(2000) % 4
    recording = make_recording("r", np.zeros((2000, 1), np.float32), y, np.arange(2000))
    skewed = replay(recording, dirichlet_alpha=0.1)
    shares = []
    for client in range(4):
        own = np.concatenate([skewed.collectable(client, t) for t in range(BEFORE, 10)])
        shares.append(np.bincount(y[own], minlength=4).max() / max(len(own), 1))
    assert max(shares) > 0.6


def test_blocks_are_consecutive_in_every_period() -> None:
    data = replay(hyperplane(1000), deal="blocks")
    for t in range(BEFORE, 10):
        for client in range(4):
            assert (np.diff(data.collectable(client, t)) == 1).all()


def test_natural_clients_collect_their_own() -> None:
    x, who = np.zeros((400, 1), np.float32), np.array(["a", "b", "b", "c"] * 100)
    recording = make_recording("r", x, np.arange(400) % 2, np.arange(400), who)
    data = replay(recording, clients=3)
    for client, name in enumerate("abc"):
        own = np.concatenate([data.collectable(client, t) for t in range(BEFORE, 10)])
        assert set(who[own]) == {name}
    with pytest.raises(InputError) as caught:
        replay(recording, clients=5)
    assert caught.value.field == "clients.count"


def test_a_client_without_data_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        replay(hyperplane(30), clients=50, rounds=3)
    assert caught.value.field == "clients.count"


def test_a_round_collects_from_its_own_period_newest_first() -> None:
    data = replay(hyperplane(1000))
    stream = data.stream(2)
    there = data.collectable(2, 4)
    period = data.timeline.period(4)
    assert period.start <= there.min() <= there.max() < period.stop
    assert stream.collect(5, 4).indices.tolist() == there[-5:].tolist()
    assert stream.collect(10**6, 4).indices.tolist() == there.tolist()  # a shortfall, not an error


def test_collecting_at_random_depends_on_seed_client_and_round_alone() -> None:
    recording = hyperplane(2000)
    one, same, other = (replay(recording, order="random", seed=seed) for seed in (1, 1, 2))
    first = one.stream(0).collect(10, 3).indices
    one.stream(0).collect(10, 4)
    assert first.tolist() == same.stream(0).collect(10, 3).indices.tolist()
    assert set(first.tolist()) <= set(one.collectable(0, 3).tolist())
    assert len(set(first.tolist())) == 10
    assert first.tolist() != other.stream(0).collect(10, 3).indices.tolist()


def test_an_own_stream_cannot_look_ahead() -> None:
    class Ahead:
        def __init__(self, samples: Any, client: int, seed: int) -> None:
            self.size = len(samples)

        def collect(self, count: int, round: int) -> Any:
            return np.array([self.size - 1])

    stream = replay(hyperplane(1000), make_stream=Ahead).stream(0)
    with pytest.raises(InputError, match="recorded so far"):
        stream.collect(1, 3)
    assert stream.collect(1, 9).indices.tolist() == [999]


@pytest.mark.parametrize("how", ["first", "running"])
def test_normalization_does_not_use_later_periods(how: Any) -> None:
    recording = hyperplane(1000)
    timeline = divide(recording, 10)
    before = normalized(recording.samples, timeline, how).features
    for t in range(10):
        edge = timeline.edges[t + 1]
        x = recording.samples.features.copy()
        x[edge:] = 1e6
        changed = make_recording("r", x, recording.samples.labels, recording.times)
        after = normalized(changed.samples, timeline, how).features
        assert np.array_equal(before[:edge], after[:edge])


def test_running_statistics_are_those_of_everything_before() -> None:
    generator = np.random.default_rng(0)
    x = (generator.standard_normal((500, 3)) * [1, 50, 1e-3] + [0, 1e4, 5]).astype(np.float32)
    recording = make_recording("r", x, np.arange(500) % 2, np.arange(500))
    timeline = divide(recording, 5)
    result = normalized(recording.samples, timeline, "running").features
    for t in range(5):
        period = timeline.period(t)
        seen = x[: period.start].astype(np.float64)
        wanted = (x[period] - seen.mean(axis=0)) / seen.std(axis=0)
        assert np.allclose(result[period], wanted, rtol=1e-4, atol=1e-4)


def test_a_feature_that_is_constant_so_far_is_not_scaled() -> None:
    x = np.full((100, 1), 0.1, np.float32)
    x[60:] = 3.1
    recording = make_recording("r", x, np.arange(100) % 2, np.arange(100))
    result = normalized(recording.samples, divide(recording, 5), "first").features
    assert np.allclose(result[:60], 0)
    assert np.allclose(result[60:], 3.0)


def test_free_scores_by_hand() -> None:
    y = np.array([0, 0, 0, 1, 1, 0, 1, 1])
    no_change, majority = free_scores(y, slice(4, 8), regression=False)
    assert no_change == pytest.approx(2 / 4)  # 1 after 1, 0 after 1, 1 after 0, 1 after 1
    assert majority == pytest.approx(1 / 4)
    numbers = np.array([1, 1, 2, 4], np.float32)
    no_change, mean = free_scores(numbers, slice(2, 4), regression=True)
    assert no_change == pytest.approx(np.sqrt((1 + 4) / 2))
    assert mean == pytest.approx(np.sqrt((1 + 9) / 2))
    assert all(np.isnan(score) for score in free_scores(y, slice(4, 4), regression=False))


def test_the_warm_up_must_hold_a_sample() -> None:
    recording = hyperplane(100)
    with pytest.raises(InputError) as caught:
        divide(recording, 5, 0.0)
    assert caught.value.field == "warm_up"
    with pytest.raises(InputError) as caught:
        divide(recording, 95, 0.5, "count")
    assert caught.value.field == "num_rounds"


def test_a_timeline_covers_all_samples() -> None:
    timeline: Timeline = divide(hyperplane(777), 7)
    parts = [timeline.period(t) for t in range(BEFORE, 7)]
    assert parts[0].start == 0
    assert parts[-1].stop == 777
    assert all(a.stop == b.start for a, b in pairwise(parts))
