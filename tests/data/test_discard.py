"""Discard rules: what each does to ages and classes, against its formula, in memory and durable."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dufl.data.buffer import Buffer, MemoryBuffer
from dufl.data.discard.discarding import DISCARD_RULES, DiscardName
from dufl.data.durable import DurableBuffer
from dufl.data.samples import IndexedSamples, Samples
from dufl.errors import InputError

Make = Callable[..., Buffer[Any]]
SHARES = [0.7, 0.2, 0.07, 0.03]  # of the classes in a stream
STEPS = [(40, 25)] * 4 + [(30, 10), (10, 20), (20, 5), (0, 20)]  # keep, fresh: it shrinks, and never grows


@pytest.fixture(params=["memory", "durable"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """A maker of buffers of one kind."""
    made: list[DurableBuffer[Any]] = []

    def durable(*arguments: Any, **options: Any) -> Buffer[Any]:
        made.append(DurableBuffer.create(tmp_path / f"{len(made)}.db", *arguments, **options))
        return made[-1]

    yield MemoryBuffer if request.param == "memory" else durable
    for buffer in made:
        buffer.close()


def seeds(make: Make) -> range:
    """As many as there is time for: a durable step waits for the disk."""
    return range(400) if make is MemoryBuffer else range(40)


def samples(labels: Any, first: int = 0) -> IndexedSamples:
    """Samples with these labels, whose indices are their numbers."""
    return IndexedSamples(np.arange(first, first + len(labels)), labels)


def drawn(seed: int, sizes: list[int]) -> list[IndexedSamples]:
    """Batches of a stream with skewed classes."""
    generator, parts, first = np.random.default_rng([seed, 99]), [], 0
    for size in sizes:
        parts.append(samples(generator.choice(len(SHARES), size, p=SHARES), first))
        first += size
    return parts


def courses(make: Make, discard: Any, measure: Callable[[Any], Any], start: int = 65) -> Any:
    """What is measured of a buffer after each step, for many seeds: (seeds, steps, …)."""
    found = []
    for seed in seeds(make):
        first, *batches = drawn(seed, [start, *(fresh for _, fresh in STEPS)])
        buffer = make(first, discard=discard, seed=seed)
        course = []
        for (keep, _), batch in zip(STEPS, batches, strict=True):
            buffer.advance(keep, batch)
            course.append(measure(buffer))
        found.append(course)
    return np.array(found, float)


def assert_mean(found: Any, expected: Any) -> None:
    """The mean over the seeds is the expectation, within 4.5 standard errors."""
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - expected) <= 4.5 * error + 1e-9).all()


def test_every_rule_has_its_name() -> None:
    assert tuple(DISCARD_RULES) == get_args(DiscardName)


def test_uniform_has_the_mean_age_of_the_law_of_staleness(make: Make) -> None:
    size, age, expected = 65, 1.0, []
    for keep, fresh in STEPS:
        age = (keep * (age + 1) + fresh) / (keep + fresh)
        size = keep + fresh
        expected.append(age)
    assert size == 20
    assert_mean(courses(make, "uniform", lambda buffer: buffer.mean_age), expected)


def test_oldest_has_the_mean_age_of_the_last_samples(make: Make) -> None:
    born, expected = [0] * 65, []
    for t, (keep, fresh) in enumerate(STEPS):
        born = born[len(born) - keep :] + [t + 1] * fresh
        expected.append(t + 2 - np.mean(born))
    found = courses(make, "oldest", lambda buffer: buffer.mean_age)
    assert (np.abs(found - expected) < 1e-9).all()


def test_in_a_steady_state_oldest_has_half_of_the_mean_age_of_uniform() -> None:
    """(n/f + 1)/2 and n/f for n samples of which f are fresh in every round."""
    ages: dict[str, list[float]] = {"uniform": [], "oldest": []}
    for discard, found in ages.items():
        for seed in range(100):
            buffer = MemoryBuffer(samples([0] * 60), discard=discard, seed=seed)  # type: ignore[arg-type]
            for _ in range(40):
                buffer.advance(48, samples([0] * 12))
            found.append(buffer.mean_age)
    assert set(ages["oldest"]) == {3.0}
    expected = 5 - 4 * 0.8**40  # of 1 at first
    assert_mean(np.array(ages["uniform"]), expected)


def test_a_reservoir_has_the_mean_age_of_everything_ever_collected(make: Make) -> None:
    born, expected = [0] * 65, []
    for t, (_, fresh) in enumerate(STEPS):
        born += [t + 1] * fresh
        expected.append(t + 2 - np.mean(born))
    found = courses(make, "reservoir", lambda buffer: buffer.mean_age)
    assert_mean(found, expected)
    uniform = courses(MemoryBuffer, "uniform", lambda buffer: buffer.mean_age)
    assert (found.mean(axis=0)[3:] > uniform.mean(axis=0)[3:]).all()  # older than planned


@pytest.mark.parametrize("discard", ["uniform", "oldest", "reservoir"])
def test_rules_that_see_no_labels_keep_the_shares_of_the_stream(make: Make, discard: str) -> None:
    sizes = np.array([keep + fresh for keep, fresh in STEPS])
    assert_mean(courses(make, discard, counts), sizes[:, None] * SHARES)


def counts(buffer: Any) -> Any:
    """The number of samples of each class."""
    return np.bincount(buffer.snapshot().samples.labels, minlength=len(SHARES))


def filled(available: Any, size: int) -> Any:
    """Expected class counts: each min(m_c, L), and the rest shared by the classes that have more."""
    level = max(L for L in range(size + 1) if np.minimum(available, L).sum() <= size)
    rest = size - np.minimum(available, level).sum()
    more = available > level
    return np.minimum(available, level) + (rest * more / max(more.sum(), 1)), level


def test_class_balanced_has_the_expected_class_counts(make: Make) -> None:
    """Exactly, up to one sample of the classes that are cut; these draw lots for it."""
    extra = []
    for seed in seeds(make):
        first, *batches = drawn(seed, [65, *(fresh for _, fresh in STEPS)])
        buffer = make(first, discard="class-balanced", seed=seed)
        for (keep, _), batch in zip(STEPS, batches, strict=True):
            available = counts(buffer) + np.bincount(batch.labels, minlength=len(SHARES))
            buffer.advance(keep, batch)
            expected, level = filled(available, keep + len(batch))
            after = counts(buffer)
            assert after.sum() == keep + len(batch)
            assert ((after == np.minimum(available, level)) | (after == level + 1)).all()
            assert (after[available <= level] == available[available <= level]).all()
            assert ((after > 0) == (available > 0)).all()  # no class is lost
            extra.append(after - expected)
    assert_mean(np.array(extra), 0.0)


def test_class_balanced_has_the_mean_age_of_each_class(make: Make) -> None:
    """Within a class, stored and fresh samples are equally likely to leave."""
    off = []
    for seed in seeds(make):
        first, *batches = drawn(seed, [65, *(fresh for _, fresh in STEPS)])
        buffer = make(first, discard="class-balanced", seed=seed)
        for (keep, _), batch in zip(STEPS, batches, strict=True):
            before = buffer.snapshot()
            buffer.advance(keep, batch)
            after = buffer.snapshot()
            both = np.append(before.samples.labels, batch.labels)
            ages = np.append(before.ages + 1, np.ones(len(batch)))
            off.append(
                [after.ages[after.samples.labels == c].mean() - ages[both == c].mean() for c in (0, 1)]
            )
    assert_mean(np.array(off), 0.0)


def test_every_subset_is_equally_likely_to_be_a_reservoir() -> None:
    """The definition: 4 samples, then 3, then 3, of which 3 remain; all 120 subsets of three."""
    found: Counter[tuple[int, ...]] = Counter()
    trials = 6000
    for seed in range(trials):
        buffer = MemoryBuffer(samples([0] * 4), discard="reservoir", seed=seed)
        buffer.advance(1, samples([0] * 3))
        buffer.advance(0, samples([0] * 3))
        found[tuple(buffer.snapshot().ids.tolist())] += 1
    assert set(found) == set(combinations(range(10), 3))
    statistic = sum((count - trials / 120) ** 2 for count in found.values()) / (trials / 120)
    assert stats.chi2.sf(statistic, 119) > 1e-4


def test_a_reservoir_that_grows_before_anything_was_discarded_is_exact() -> None:
    found = np.zeros(60)
    for seed in range(1500):
        buffer = MemoryBuffer(samples([0] * 10), discard="reservoir", seed=seed)
        buffer.advance(10, samples([0] * 20))  # everything is kept
        buffer.advance(10, samples([0] * 30))  # the first that are discarded
        assert len(buffer) == 40
        found[buffer.snapshot().ids] += 1
    rate = 40 / 60
    assert np.abs(found / 1500 - rate).max() < 4.5 * np.sqrt(rate * (1 - rate) / 1500)


def test_a_reservoir_that_grows_later_is_as_near_as_possible() -> None:
    """Of 5 of 20 samples, 4 leave and 6 arrive: at least 2 of the 7 must be fresh."""
    trials, joined, ids = 4000, Counter[int](), np.zeros(26)
    for seed in range(trials):
        buffer = MemoryBuffer(samples([0] * 20), discard="reservoir", seed=seed)
        buffer.advance(5, samples([]))
        buffer.advance(1, samples([0] * 6))
        snapshot = buffer.snapshot()
        joined[int((snapshot.ages == 1).sum())] += 1
        ids[snapshot.ids] += 1
    chance = {n: comb(6, n) * comb(20, 7 - n) / comb(26, 7) for n in range(7)}
    chance = {2: chance[0] + chance[1] + chance[2]} | {n: chance[n] for n in range(3, 7)}
    assert set(joined) <= set(chance)
    for n, p in chance.items():
        assert abs(joined[n] / trials - p) < 4.5 * np.sqrt(p * (1 - p) / trials) + 1e-9
    for rates in (ids[:20] / trials, ids[20:] / trials):  # of the same round: equally likely
        assert np.abs(rates - rates.mean()).max() < 4.5 * np.sqrt(0.25 / trials)


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12)), min_size=1, max_size=12),
    discard=st.sampled_from(["reservoir", "class-balanced"]),
    start=st.integers(0, 9),
    classes=st.integers(1, 4),
)
def test_sizes_are_kept_nothing_comes_back_and_both_kinds_agree(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[float, int]],
    discard: Any,
    start: int,
    classes: int,
) -> None:
    """In memory, durable, and durable but opened anew before every step."""
    folder = tmp_path_factory.mktemp("b")
    options: Any = {"discard": discard, "seed": 5, "client": 2}
    first = samples(np.arange(start) % classes)
    memory = MemoryBuffer(first, **options)
    for name in ("open", "closed"):
        DurableBuffer.create(folder / name, first, **options).close()
    alive, collected = set(range(start)), start
    with DurableBuffer[IndexedSamples].open(folder / "open") as durable:
        for share, fresh in steps:
            keep, batch = int(share * len(memory)), samples(np.arange(fresh) % classes, collected)
            memory.advance(keep, batch)
            durable.advance(keep, batch)
            with DurableBuffer[IndexedSamples].open(folder / "closed") as closed:
                closed.advance(keep, batch)
                third = closed.snapshot()
            alive |= set(range(collected, collected + fresh))
            collected += fresh
            one, two = memory.snapshot(), durable.snapshot()
            assert len(memory) == len(durable) == keep + fresh
            assert set(one.ids.tolist()) <= alive
            alive = set(one.ids.tolist())
            np.testing.assert_array_equal(one.samples.indices, one.ids)
            for other in (two, third):
                np.testing.assert_array_equal(one.ids, other.ids)
                np.testing.assert_array_equal(one.ages, other.ages)
                np.testing.assert_array_equal(one.samples.labels, other.samples.labels)
            restored = MemoryBuffer.restore(one, memory.round, memory.next_id, **options)
            assert memory.next_id == collected
            memory = restored


def test_a_buffer_is_trimmed_by_its_rule(tmp_path: Path) -> None:
    labels = [0] * 30 + [1] * 6 + [2] * 4
    with DurableBuffer.create(tmp_path / "a.db", samples(labels), discard="class-balanced") as buffer:
        buffer.trim(14)
        assert sorted(np.bincount(buffer.snapshot().samples.labels)) == [4, 5, 5]
    found = np.zeros(40)
    for seed in range(60):
        path = tmp_path / f"{seed}.db"
        with DurableBuffer.create(path, samples(labels), discard="reservoir", seed=seed) as buffer:
            buffer.trim(20)
            found[buffer.snapshot().ids] += 1
    assert np.abs(found / 60 - 0.5).max() < 4.5 * np.sqrt(0.25 / 60)


def test_class_balanced_needs_classes(make: Make) -> None:
    numbers = Samples(np.zeros((4, 1), np.float32), np.array([0.5, 1, 2, 3], np.float32))

    def at_first() -> None:
        make(numbers, discard="class-balanced")

    def in_the_first_step_that_discards() -> None:
        buffer = make(numbers.take(slice(0, 0)), discard="class-balanced")
        buffer.advance(0, numbers)
        buffer.advance(2, numbers)

    for refusing in (at_first, in_the_first_step_that_discards):
        with pytest.raises(InputError) as refused:
            refusing()
        assert (refused.value.field, refused.value.value) == ("discard", "class-balanced")
        assert "labels are numbers" in (refused.value.rule or "")


@pytest.mark.parametrize("discard", ["uniform", "oldest", "reservoir"])
def test_other_rules_accept_numbers(make: Make, discard: str) -> None:
    numbers = Samples(np.zeros((4, 1), np.float32), np.array([0.5, 1, 2, 3], np.float32))
    buffer = make(numbers, discard=discard)
    buffer.advance(2, numbers)
    assert len(buffer) == 6


def rare(born: Any, count: int, generator: Any, labels: Any) -> Any:
    """A function that sees labels: the highest ones leave first."""
    return np.argsort(-labels, kind="stable")[:count]


class Picky:
    """A class that sees everything, and refuses fresh samples first."""

    among_fresh = True

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def __call__(self, born: Any, count: int, generator: Any, *, labels: Any, fresh: int, seen: int) -> Any:
        assert len(labels) == len(born)
        assert (born[len(born) - fresh :] > born[: len(born) - fresh].max()).all()
        self.seen.append((len(born), fresh, seen))
        return np.arange(len(born))[::-1][:count]


def test_a_rule_of_one_s_own_may_see_labels(make: Make) -> None:
    buffer = make(samples([3, 1, 2, 0]), discard=rare)
    buffer.advance(2, samples([9, 9], 4))
    assert buffer.snapshot().samples.labels.tolist() == [1, 0, 9, 9]


def test_a_rule_of_one_s_own_may_refuse_fresh_samples(make: Make) -> None:
    rule = Picky()
    buffer = make(samples([0, 0, 0, 0]), discard=rule)
    buffer.advance(3, samples([1, 1], 4))
    assert buffer.snapshot().ids.tolist() == [0, 1, 2, 3, 4]
    buffer.advance(5, samples([1], 6))  # nothing to discard: not called
    buffer.advance(2, samples([1, 1, 1], 7))
    assert buffer.snapshot().ids.tolist() == [0, 1, 2, 3, 4]
    assert rule.seen == [(6, 2, 6), (9, 3, 10)]
    assert buffer.snapshot().ages.tolist() == [4, 4, 4, 4, 3]


@pytest.mark.parametrize(
    "rule",
    [
        lambda born, count, generator: np.arange(count),
        lambda fresh, seen, labels: np.arange(seen),  # its own names for (born, count, generator)
        lambda born, count, generator, **others: np.arange(count + len(others)),
        lambda *arguments: np.arange(arguments[1] + len(arguments) - 3),
    ],
)
def test_rules_of_three_arguments_are_called_with_three(make: Make, rule: Any) -> None:
    buffer = make(samples([0, 1, 2, 3]), discard=rule)
    buffer.advance(1, samples([4], 4))
    assert buffer.snapshot().ids.tolist() == [3, 4]


@pytest.mark.parametrize("discard", DISCARD_RULES)
def test_huge_numbers_of_samples_ever_seen(discard: Any) -> None:
    """After years of service: ids beyond 2^40, in milliseconds."""
    first = MemoryBuffer(samples([0, 1, 2, 3] * 50)).snapshot()
    buffer = MemoryBuffer.restore(first, 10**9, 2**40, discard=discard, seed=0, client=0)
    for _ in range(3):
        buffer.advance(100, samples([1] * 100))
    assert len(buffer) == 200
    if discard == "reservoir":
        assert (buffer.snapshot().ids == first.ids).all()  # practically nothing joins
