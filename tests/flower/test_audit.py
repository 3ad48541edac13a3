"""What updates bring, measured against known losses, and when a client is suspected."""

import time
from typing import Any

import numpy as np
import pytest

from dufl.errors import InputError
from dufl.flower import audit as audit_module
from dufl.flower.audit import Audit, Running, lower_outliers
from dufl.flower.contribution import Updates

BEST = np.array([1.0, -2.0, 0.5, 3.0])


def quadratic(_: int, arrays: Any) -> float:
    """L(w) = ½·‖w − BEST‖²: the central difference of the influence is exact."""
    return float(0.5 * np.sum((arrays["w"] - BEST) ** 2))


def updates_of(
    changes: np.ndarray, volumes: list[int] | None = None, model: np.ndarray | None = None
) -> Updates:
    start = np.zeros(changes.shape[1]) if model is None else model
    returned = {k: {"w": start + change} for k, change in enumerate(changes)}
    sizes = volumes or [1] * len(changes)
    return Updates(0, {"w": start}, returned, dict(enumerate(sizes)))


def test_the_influence_is_the_slope_of_the_loss_along_the_update() -> None:
    changes = np.random.default_rng(0).normal(size=(5, 4))
    updates = updates_of(changes, [3, 1, 4, 1, 5])
    mean = np.average(changes, axis=0, weights=[3, 1, 4, 1, 5])
    gradient = mean - BEST
    for k, change in enumerate(changes):
        assert updates.influence(k, quadratic) == pytest.approx(-gradient @ change / np.linalg.norm(change))


def test_who_brings_the_model_nearer_to_its_best_counts_for_more_than_who_takes_it_away() -> None:
    toward, away, still = 0.1 * BEST, -0.1 * BEST, 0 * BEST
    updates = updates_of(np.array([toward, away, still, toward]))
    influences = [updates.influence(k, quadratic) for k in range(4)]
    assert influences[0] > 0
    assert influences[1] == pytest.approx(-influences[0])
    assert influences[2] == 0


def test_the_direction_is_the_cosine_with_all_others() -> None:
    changes, volumes = np.random.default_rng(1).normal(size=(6, 4)), [2, 7, 1, 8, 2, 8]
    found = updates_of(changes, volumes).directions()
    for k in range(6):
        others = sum(volumes[j] * changes[j] for j in range(6) if j != k)
        expected = changes[k] @ others / (np.linalg.norm(changes[k]) * np.linalg.norm(others))
        assert found[k] == pytest.approx(expected)
    assert updates_of(np.zeros((3, 4))).directions() == {0: 0.0, 1: 0.0, 2: 0.0}
    assert updates_of(changes[:1]).directions() == {0: 0.0}  # there are no others


def test_statistics_of_batches_and_counters_do_not_count() -> None:
    model = {
        "w": np.zeros(2),
        "norm.running_mean": np.zeros(3),
        "seen": np.array(4),
        "model_buffers": np.ones(2),
    }
    returned = {0: {**model, "w": np.ones(2), "norm.running_mean": np.full(3, 1e9), "seen": np.array(9)}}
    updates = Updates(0, model, returned, {0: 1})
    assert updates.sizes[0] == pytest.approx(np.sqrt(2))
    seen: list[Any] = []
    updates.influence(0, lambda _, arrays: seen.append(arrays) or 0.0)  # type: ignore[func-returns-value]
    assert all(arrays.keys() == model.keys() and arrays["seen"] == 4 for arrays in seen)
    assert [arrays["w"].dtype for arrays in seen] == [np.float64] * 2


def test_the_running_mean_is_a_weighted_mean() -> None:
    values = np.random.default_rng(2).normal(size=30)
    for memory in (0.8, 1.0):
        running = Running()
        for value in values:
            running = running.add(float(value), memory)
        weights = memory ** np.arange(29, -1, -1)
        assert running.mean == pytest.approx(np.average(values, weights=weights))
    assert running.error == pytest.approx(values.std(ddof=1) / np.sqrt(30))
    assert Running().add(1.0, 0.9).error == np.inf


def test_honest_clients_are_improbable_as_often_as_the_level_says() -> None:
    """The lowest of ten normal values: its p is below x in about 10·x of all cases, for the tested third."""
    generator = np.random.default_rng(3)
    found = [lower_outliers(generator.normal(size=(1, 10))).min() for _ in range(1500)]
    for level in (0.001, 0.01):
        assert np.mean(np.array(found) < level) < 20 * level
    assert np.mean(np.array(found) < 0.001) > 0.001  # it is a test, not a promise


@pytest.mark.parametrize("cheats", [1, 2, 3])
def test_outliers_do_not_hide_one_another(cheats: int) -> None:
    generator = np.random.default_rng(4)
    for _ in range(50):
        values = generator.normal(size=(2, 10))
        values[:, :cheats] -= 30
        probabilities = lower_outliers(values)
        assert (probabilities[:cheats] < 1e-4).all()
        assert (probabilities[cheats:] > 1e-6).all()


def test_clients_that_differ_as_much_as_the_cheat_protect_it() -> None:
    values = np.array([[0.0, 10, -9, 8, -7, 11, -12, 9, -10, -14]])
    assert (lower_outliers(values) > 0.01).all()


def test_three_clients_are_too_few_to_compare() -> None:
    assert (lower_outliers(np.array([[0.0, 0.0, -1e9]])) == 1).all()


def rounds(
    audit: Audit, count: int, cheat: Any = None, first: int = 0, clients: int = 8
) -> list[dict[int, Any]]:
    """Clients whose updates point to the best model, with noise, from a model that stays where it is."""
    scores = []
    for t in range(first, first + count):
        generator = np.random.default_rng([5, t])
        changes = 0.05 * BEST + 0.02 * generator.normal(size=(clients, 4))
        if cheat is not None:
            changes[2] = cheat(changes[2])
        returned = {k: {"w": change} for k, change in enumerate(changes)}
        scores.append(audit.assess(t, {"w": np.zeros(4)}, returned, dict.fromkeys(range(clients), 5)))
    return scores


def test_a_client_is_suspected_and_recovers() -> None:
    audit = Audit(quadratic)
    honest = rounds(audit, 5)
    assert not any(score.suspicion for scores in honest for score in scores.values())
    cheating = rounds(audit, 15, lambda change: -change, first=5)
    assert cheating[-1][2].suspicion
    assert cheating[-1][2].weight == 0
    assert not any(score.suspicion for scores in cheating for k, score in scores.items() if k != 2)
    reformed = rounds(audit, 80, first=20)
    assert not reformed[-1][2].suspicion
    assert reformed[-1][2].weight == pytest.approx(5 * reformed[-1][2].mean)
    ended = [not scores[2].suspicion for scores in reformed]
    assert ended == sorted(ended)  # it ends once


def test_the_score_of_a_typical_client_is_one_and_its_bounds_narrow() -> None:
    scores = rounds(Audit(quadratic), 30)
    assert all(0.8 < score.mean < 1.2 for score in scores[-1].values())
    widths = [np.mean([score.high - score.low for score in scores[t].values()]) for t in (0, 3, 29)]
    assert widths == sorted(widths, reverse=True)
    assert all(score.low < score.mean < score.high for score in scores[-1].values())


@pytest.mark.parametrize("memory", [None, 1e-5])
def test_who_returns_the_model_unchanged_is_suspected_at_once(memory: float | None) -> None:
    """Also if it adds too little to matter."""
    noise = 0.0 if memory is None else memory * BEST / 100
    scores = rounds(Audit(quadratic), 1, lambda change: 0 * change + noise)
    assert [k for k, score in scores[0].items() if score.suspicion] == [2]
    assert "without training" in scores[0][2].suspicion


def test_if_nobody_trains_nobody_is_suspected() -> None:
    audit = Audit(quadratic)
    for t in range(8):
        still = {k: {"w": np.zeros(4)} for k in range(6)}
        scores = audit.assess(t, {"w": np.zeros(4)}, still, dict.fromkeys(range(6), 5))
    assert not any(score.suspicion for score in scores.values())
    assert audit.assess(9, {"w": np.zeros(4)}, {}, {}) == {}
    assert audit.assess(9, {"w": np.zeros(4)}, {0: {"w": np.ones(4)}}, {0: 0}) == {}


def test_without_samples_of_its_own_the_server_compares_directions() -> None:
    audit = Audit()
    assert not audit.measures_influence
    scores = rounds(audit, 12, lambda change: np.array([-change[1], change[0], -change[3], change[2]]))
    assert [k for k, score in scores[-1].items() if score.suspicion] == [2]


def test_a_loss_that_is_not_a_number_is_not_counted() -> None:
    audit = Audit(lambda *_: float("nan"))
    scores = rounds(audit, 6)
    assert all(score.mean == 0 and not score.suspicion for score in scores[-1].values())


def test_a_restart_changes_nothing() -> None:
    whole, before, after = Audit(quadratic), Audit(quadratic), Audit(quadratic)
    expected = rounds(whole, 20, lambda change: -change)
    rounds(before, 11, lambda change: -change)
    after.restore(before.state())
    assert rounds(after, 9, lambda change: -change, first=11) == expected[11:]


def test_a_slow_loss_lets_clients_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "ALLOWANCE", 0.0)
    measured: list[int] = []

    def slow(t: int, arrays: Any) -> float:
        time.sleep(0.005)
        return quadratic(t, arrays)

    audit = Audit(slow, share=0.5)
    for t in range(10):
        changes = 0.05 * BEST + 0.02 * np.random.default_rng([5, t]).normal(size=(8, 4))
        returned = {k: {"w": change} for k, change in enumerate(changes)}
        before = audit.state()
        audit.assess(t, {"w": np.zeros(4)}, returned, dict.fromkeys(range(8), 5), seconds=0.05)
        counts = audit.state()["known"][:, 4] - (before["known"][:, 4] if len(before["known"]) else 0)
        measured.append(int(counts.sum()))
    assert all(1 <= number <= 4 for number in measured)  # 0.025 s are enough for two or three clients
    total = audit.state()["known"][:, 4]
    assert total.max() - total.min() <= 1  # nobody is left out


@pytest.mark.parametrize(
    ("field", "value"), [("share", 0.0), ("share", 1.5), ("memory", 0.0), ("level", 0.2), ("warm_up", 1)]
)
def test_bad_options_are_rejected(field: str, value: float) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(InputError) as raised:
        Audit(quadratic, **options)
    assert raised.value.field == field
