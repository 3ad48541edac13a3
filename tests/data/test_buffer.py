"""Buffers, in memory and durable: the same laws for both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dufl.data.ageing import Ageing
from dufl.data.buffer import Buffer, MemoryBuffer
from dufl.data.durable import DurableBuffer
from dufl.data.integer_plan import integer_plan
from dufl.data.samples import Samples
from dufl.errors import BufferFileError, CapacityError, InputError
from dufl.game.dynamics import staleness
from dufl.game.dynamics import volume as volume_law

Make = Callable[..., Buffer[Any]]


@pytest.fixture(params=["memory", "durable"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A maker of buffers of one kind."""
    made: list[DurableBuffer[Any]] = []

    def durable(*arguments: Any, **options: Any) -> Buffer[Any]:
        made.append(DurableBuffer.create(tmp_path / f"{len(made)}.db", *arguments, **options))
        return made[-1]

    yield MemoryBuffer if request.param == "memory" else durable
    for buffer in made:
        buffer.close()


def numbered(first: int, count: int) -> Samples:
    """Distinguishable samples: each has its number as its feature and its label."""
    numbers = np.arange(first, first + count)
    return Samples(numbers.astype(np.float32)[:, None], numbers)


def test_a_step_conserves_discards_merges_and_ages(make: Make) -> None:
    buffer = make(numbered(0, 10))
    buffer.advance(4, numbered(100, 3))
    snapshot = buffer.snapshot()
    assert (len(buffer), buffer.round) == (7, 1)
    assert snapshot.ages.tolist() == [2] * 4 + [1] * 3
    assert snapshot.samples.labels[4:].tolist() == [100, 101, 102]
    assert snapshot.ids[4:].tolist() == [10, 11, 12]
    assert buffer.mean_age == pytest.approx(11 / 7)
    assert set(snapshot.samples.labels[:4]) <= set(range(10))


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12)), min_size=1, max_size=12),
    discard=st.sampled_from(["uniform", "oldest"]),
    start=st.integers(0, 9),
)
def test_nothing_is_duplicated_or_lost_and_both_kinds_agree(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, int]], discard: Any, start: int
) -> None:
    path = tmp_path_factory.mktemp("b") / "b.db"
    memory = MemoryBuffer(numbered(0, start), discard=discard, seed=5, client=2)
    collected, alive = start, set(range(start))
    with DurableBuffer.create(path, numbered(0, start), discard=discard, seed=5, client=2) as durable:
        for share, fresh in steps:
            keep = int(share * len(memory))
            before = memory.snapshot()
            for buffer in (memory, durable):
                buffer.advance(keep, numbered(collected, fresh))
            after = memory.snapshot()
            kept = set(after.ids[after.ages > 1].tolist())
            alive = kept | set(range(collected, collected + fresh))
            collected += fresh
            assert kept <= set(before.ids.tolist())
            assert len(kept) == keep
            assert set(after.ids.tolist()) == alive
            np.testing.assert_array_equal(after.samples.labels, after.ids)
            np.testing.assert_array_equal(after.samples.features[:, 0], after.ids)
            if discard == "oldest" and len(before.ids) > keep > 0:
                assert sorted(before.ages)[:keep] == sorted(after.ages[after.ages > 1] - 1)
            twin = durable.snapshot()
            np.testing.assert_array_equal(twin.ids, after.ids)
            np.testing.assert_array_equal(twin.ages, after.ages)
            np.testing.assert_array_equal(twin.samples.features, after.samples.features)
            assert durable.mean_age == pytest.approx(memory.mean_age)
            assert len(durable) == len(memory)


@settings(max_examples=200)
@given(
    theta=st.floats(0, 1),
    initial=st.floats(0, 300),
    collected=st.lists(st.floats(0, 60), min_size=1, max_size=20),
    seed=st.integers(0, 99),
)
def test_the_size_follows_the_plan_to_half_a_sample(
    theta: float, initial: float, collected: list[float], seed: int
) -> None:
    planned = volume_law(initial, np.array([*collected, 0.0]), theta)
    plan = integer_plan(planned, theta, seed)
    size = int(plan.size[0])
    assert np.abs(plan.size - planned).max() <= 0.5 + 1e-9
    for t in range(len(collected)):
        keep, fresh = plan.step(t, size)
        assert 0 <= keep <= size
        assert fresh >= 0
        size = keep + fresh
        assert size == plan.size[t + 1]
    assert plan.step(0, 0) == (0, plan.size[1])  # a stream that fell short is made up for


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.8, 0.95])
@pytest.mark.parametrize("supply", [1, 2, 7])
def test_samples_grow_no_older_than_planned_if_a_stream_falls_short(theta: float, supply: int) -> None:
    """A plan for 200 samples and a stream with a few per round: what exists is conserved at the rate θ."""
    rounds = 400
    plan = integer_plan(np.full(rounds, 200.0), theta)
    held, ages, volumes = 0, 0.0, []
    for t in range(rounds - 1):
        keep, wanted = plan.step(t, held)
        assert keep <= held
        assert wanted == 200 - keep
        total = ages * keep / held + keep if held else 0.0
        held = keep + min(wanted, supply)
        ages = total + min(wanted, supply)
        volumes.append((held, ages))
    late = np.array(volumes[100:])
    assert late[:, 0].mean() == pytest.approx(supply / (1 - theta), rel=0.1)
    assert late[:, 1].sum() / late[:, 0].sum() == pytest.approx(1 / (1 - theta), rel=0.1)


def test_a_plan_that_keeps_everything_does_so_if_a_stream_falls_short() -> None:
    plan = integer_plan([10.0, 20.0, 30.0], 1.0)
    assert plan.step(1, 13) == (13, 17)


SCHEDULES = {
    "steady": np.full(15, 23.4),
    "bursts": np.tile([0.0, 0.0, 70.2], 5),
    "fading": np.linspace(60, 0, 15),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("theta", [0.0, 0.3, 0.7, 0.95, 1.0])
def test_mean_age_is_the_planned_staleness_in_expectation(theta: float, schedule: str) -> None:
    collected = SCHEDULES[schedule]
    planned = volume_law(80.0, collected, theta)
    expected = staleness(planned, theta, 2.0)
    measured: list[list[float]] = []
    younger: list[list[float]] = []
    for seed in range(300):
        for discard, record in (("uniform", measured), ("oldest", younger)):
            buffer = MemoryBuffer(numbered(0, 80), 2, discard=discard, seed=seed)  # type: ignore[arg-type]
            course = [buffer.mean_age]
            plan = integer_plan(planned, theta, seed)
            for t in range(len(collected) - 1):
                keep, fresh = plan.step(t, len(buffer))
                buffer.advance(keep, numbered(0, fresh))
                course.append(buffer.mean_age)
            record.append(course)
    mean, error = np.mean(measured, axis=0), np.std(measured, axis=0) / np.sqrt(len(measured))
    half = 0.5 * expected / np.maximum(planned, 1)  # the weight of half a sample
    slack: Any = half if theta > 0.9 else 1e-9  # nearly all is kept: little to round at random
    if theta == 1:  # nothing is discarded; each round's size is up to half a sample off
        slack = 0.5 * (np.arange(len(planned)) + expected) / planned
    assert (np.abs(mean - expected) <= 4.5 * error + slack).all()
    assert (np.mean(younger, axis=0) <= expected + 4.5 * error + np.maximum(half, slack)).all()
    if 0 < theta < 1:
        assert np.mean(younger, axis=0)[-1] < mean[-1]


def test_capacity_is_enforced(make: Make) -> None:
    buffer = make(numbered(0, 5), capacity=6)
    with pytest.raises(CapacityError) as refused:
        buffer.advance(5, numbered(5, 2))
    assert (refused.value.rule, refused.value.value) == ("<= the capacity 6 of the buffer", 7)
    assert (len(buffer), buffer.round) == (5, 0)
    buffer.advance(4, numbered(5, 2))
    assert len(buffer) == 6
    with pytest.raises(CapacityError):
        make(numbered(0, 7), capacity=6)


def test_a_bad_step_changes_nothing(make: Make) -> None:
    buffer = make(numbered(0, 5))
    bad = [(6, numbered(9, 1)), (-1, numbered(9, 1)), (2, Samples(np.zeros((1, 3), np.float32), [0]))]
    bad.append((2, Samples(np.zeros((1, 1), np.uint8), [0])))
    for keep, fresh in bad:
        with pytest.raises(InputError):
            buffer.advance(keep, fresh)
    assert buffer.round == 0
    assert buffer.snapshot().ids.tolist() == [0, 1, 2, 3, 4]


def test_an_empty_buffer_lives_on(make: Make) -> None:
    buffer = make(numbered(0, 3))
    buffer.advance(0, numbered(0, 0))
    assert (len(buffer), buffer.mean_age) == (0, 1.0)
    assert len(buffer.snapshot().ids) == 0
    buffer.advance(0, numbered(5, 2))
    assert buffer.snapshot().samples.labels.tolist() == [5, 6]


def test_samples_may_be_old_at_the_start(make: Make) -> None:
    buffer = make(numbered(0, 4), [1, 2, 3, 6])
    assert buffer.mean_age == 3.0
    buffer.advance(4, numbered(4, 0))
    assert buffer.snapshot().ages.tolist() == [2, 3, 4, 7]
    for wrong in (0, 1.5, [1, 2]):
        with pytest.raises(InputError) as refused:
            make(numbered(0, 4), wrong)
        assert refused.value.field == "initial_age"


def test_unknown_rule(make: Make) -> None:
    for unknown in ("newest", 3, None):
        with pytest.raises(InputError) as refused:
            make(numbered(0, 4), discard=unknown)
        rule = "'uniform', 'oldest', 'reservoir', 'class-balanced' or a callable"
        assert (refused.value.field, refused.value.rule) == ("discard", rule)


class Newest:
    """Discards the samples that joined last, of equal birth those at random."""

    def __call__(self, born: Any, count: int, generator: np.random.Generator) -> Any:
        """The positions."""
        return np.lexsort((generator.random(len(born)), -born))[:count]


@pytest.mark.parametrize("rule", [Newest, Newest()])
def test_a_rule_of_one_s_own(make: Make, rule: Any) -> None:
    """Given as a class or an object; its randomness is that of seed, client and round."""
    buffer = make(numbered(0, 6), [3, 1, 2, 1, 1, 4], discard=rule, seed=7, client=2)
    buffer.advance(3, numbered(6, 2))
    assert buffer.snapshot().ids.tolist() == [0, 2, 5, 6, 7]
    buffer.advance(4, numbered(8, 0))
    kept = buffer.snapshot().ids.tolist()
    again = MemoryBuffer(numbered(0, 6), [3, 1, 2, 1, 1, 4], discard=rule, seed=7, client=2)
    again.advance(3, numbered(6, 2))
    again.advance(4, numbered(8, 0))
    assert kept == again.snapshot().ids.tolist()
    assert kept[:3] == [0, 2, 5]


@pytest.mark.parametrize(
    "answer",
    [[0], [0, 0], [0, 1, 2], [0, 4], [-1, 0], [0.0, 1.0], [[0, 1]], None, "ab", [True, False]],
)
def test_what_a_rule_returns_is_checked(make: Make, answer: Any) -> None:
    """`count` different positions, or the step does not happen and the error names the rule."""

    class Odd:
        def __call__(self, born: Any, count: int, generator: Any) -> Any:
            return answer

    buffer = make(numbered(0, 4), discard=Odd)
    with pytest.raises(InputError) as refused:
        buffer.advance(2, numbered(4, 1))
    assert refused.value.rule == "2 different integers from 0 to 3"
    assert "Odd" in refused.value.field
    assert (buffer.round, len(buffer)) == (0, 4)
    buffer.advance(4, numbered(4, 1))  # nothing to discard: the rule is not called
    assert len(buffer) == 5


def test_a_class_whose_instances_are_no_rules() -> None:
    with pytest.raises(InputError) as refused:
        MemoryBuffer(numbered(0, 4), discard=dict)
    assert refused.value.field == "discard"


def test_a_durable_buffer_is_opened_with_the_rule_it_was_created_with(tmp_path: Path) -> None:
    """A file names the rule, but nothing is ever imported because a file names it."""
    path = tmp_path / "b.db"
    DurableBuffer.create(path, numbered(0, 4), discard=Newest).close()
    for wrong in (None, "oldest", dict):
        with pytest.raises(BufferFileError) as refused:
            DurableBuffer.open(path, wrong)
        assert refused.value.field == "discard"
    with DurableBuffer.open(path, Newest) as buffer:
        buffer.advance(2, numbered(4, 0))
        assert len(buffer) == 2


def test_features_age(make: Make) -> None:
    ageing = Ageing(time_sensitivity=1.0, num_rounds=10, noise_scale=1.0)
    pixels = Samples(np.full((50, 1, 9, 9), 128, np.uint8), np.zeros(50, int))
    buffer = make(pixels)
    np.testing.assert_allclose(buffer.snapshot().to_float(ageing), 128 / 255, rtol=1e-6)
    for _ in range(5):
        buffer.advance(50, pixels.take(slice(0, 0)))
    noise = buffer.snapshot().to_float(ageing, seed=1, client=2) - 128 / 255
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    np.testing.assert_array_equal(
        buffer.snapshot().to_float(ageing, 1, 2), buffer.snapshot().to_float(ageing, 1, 2)
    )
    assert (buffer.snapshot().samples.features == 128).all()


def test_discards_depend_on_seed_client_and_round(make: Make) -> None:
    kept = []
    for seed, client in ((0, 0), (0, 0), (0, 1), (1, 0)):
        buffer = make(numbered(0, 40), seed=seed, client=client)
        buffer.advance(10, numbered(40, 0))
        kept.append(tuple(buffer.snapshot().ids.tolist()))
    assert kept[0] == kept[1]
    assert len(set(kept)) == 3


def test_memory_is_used_again() -> None:
    buffer = MemoryBuffer(numbered(0, 1000))
    before = buffer._content
    for t in range(20):
        buffer.advance(300, numbered(t, 700))
    assert buffer._content is before
