"""The rounds: what is trained on, what is aggregated, what is recorded, and that it can all be repeated."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dufl.data.datasets import Dataset, load_dataset
from dufl.data.samples import Samples
from dufl.errors import InputError, PluginError
from dufl.game.plan import equilibrium
from dufl.game.utility import server_cost
from dufl.learning.algorithm import Update, Vector
from dufl.learning.engine import CompiledEngine, Engine, Score, Which
from dufl.learning.federation import Federation
from dufl.learning.policies import Planned
from dufl.learning.task import Task
from federations import buffers_of, facts, federation_of, small


def play(*changes: str, rounds: int | None = None) -> tuple[Federation, list[dict[str, Any]]]:
    federation, engine = federation_of(small(*changes))
    records: list[dict[str, Any]] = []
    while not federation.done and len(records) != rounds:
        records.append(facts(federation.play()))
    engine.close()
    return federation, records


def test_one_client_and_fedavg_is_plain_sgd() -> None:
    changes = (
        "clients.count=1",
        "policy=static",
        "data.noise_scale=0",
        "training.local_epochs=3",
        "game.num_rounds=4",
    )
    federation, _ = play(*changes)
    dataset, federated = load_dataset("digits"), small(*changes)
    buffer = buffers_of(federation_of(federated)[0])[0].snapshot()
    indices = buffer.samples.indices
    x = dataset.train.to_float().reshape(len(dataset.train), -1)[indices].astype(np.float64)
    y = np.eye(10)[buffer.samples.labels]
    w, b = np.zeros((10, 64)), np.zeros(10)
    for t in range(4):
        task = Task(0, t, indices, buffer.samples.labels, buffer.ages, buffer.ids, None)  # type: ignore[arg-type]
        for order in task.shuffles(federated.training):
            for start in range(0, len(order), 64):
                batch = order[start : start + 64]
                logits = x[batch] @ w.T + b
                p = np.exp(logits - logits.max(1, keepdims=True))
                error = (p / p.sum(1, keepdims=True) - y[batch]) / len(batch)
                w -= 0.01 * error.T @ x[batch]
                b -= 0.01 * error.sum(0)
    np.testing.assert_allclose(federation.weights, np.concatenate([w.ravel(), b]), atol=2e-6)


def test_without_time_sensitivity_dufl_is_static_bit_for_bit() -> None:
    changes = (
        "game.time_sensitivity=0",
        "clients.count=15",
        "clients.initial_volume=1000",
        "game.num_rounds=100",
    )
    one, first = play(*changes, "policy=dufl", rounds=10)
    two, second = play(*changes, "policy=static", rounds=10)
    np.testing.assert_array_equal(one.weights, two.weights)
    assert first == second
    assert first[-1]["payment"] == 0


def test_fedprox_without_weight_is_fedavg_bit_for_bit() -> None:
    one, first = play("training.algorithm=fedprox", "proximal_mu=0")
    two, second = play("training.algorithm=fedavg")
    np.testing.assert_array_equal(one.weights, two.weights)
    assert first == second


def test_algorithms_differ() -> None:
    found = [
        play(f"training.algorithm={name}", "proximal_mu=1", rounds=3)[0].weights
        for name in ("fedavg", "fedprox", "feddyn")
    ]
    assert all((found[a] != found[b]).any() for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn"])
def test_the_number_of_workers_changes_nothing(algorithm: str) -> None:
    found = [play(f"training.algorithm={algorithm}", f"workers={n}", "client_dropout=0.2") for n in (1, 2, 3)]
    for federation, records in found[1:]:
        np.testing.assert_array_equal(federation.weights, found[0][0].weights)
        assert records == found[0][1]


KEPT = "game.conservation_range=[0.6, 0.6]"


@pytest.mark.parametrize(
    "changes",
    [
        ("training.algorithm=fedavg",),
        ("training.algorithm=feddyn",),
        ("client_selection=age", "client_dropout=0.3", "clients.initial_volume=[50, 100, 200, 70]"),
        (KEPT, "data.discard=reservoir", "age_weighting=linear", "training.algorithm=feddyn"),
        (KEPT, "data.discard=class-balanced", "age_weighting=exponential", "client_selection=age"),
    ],
)
@pytest.mark.parametrize("stop", [0, 1, 5, 8])
def test_state_goes_on(changes: tuple[str, ...], stop: int) -> None:
    changes = (*changes, "fraction_train=0.5", "training.momentum=0.5")
    whole, records = play(*changes)
    before, _ = play(*changes, rounds=stop)
    after, engine = federation_of(small(*changes))
    after.restore({name: np.array(value) for name, value in before.state().items()})
    rest = []
    while not after.done:
        rest.append(facts(after.play()))
    engine.close()
    np.testing.assert_array_equal(after.weights, whole.weights)
    assert rest == records[stop:]


def test_buffers_follow_the_plan() -> None:
    config = small("game.num_rounds=20", "game.time_sensitivity=1.25", "clients.initial_volume=1000")
    federation, engine = federation_of(config)
    plan = config.solve()
    records = [federation.play() for _ in range(20)]
    engine.close()
    assert plan.payment > 0
    for t, record in enumerate(records):
        np.testing.assert_allclose(record.volumes, plan.volume[t], atol=0.5)
        assert record.total_volume == sum(record.volumes)
        assert record.mean_age == pytest.approx(plan.mean_staleness[t], abs=0.1)
        assert record.planned_staleness == pytest.approx(plan.mean_staleness[t])
        assert record.payment == plan.payment
    assert records[0].classes == 6
    assert records[-1].classes == 10
    planned = plan.server_cost
    assert records[-1].server_cost == pytest.approx(planned, rel=0.02)
    terms = [records[-1].cost_of_payment, records[-1].cost_of_volume, records[-1].cost_of_staleness]
    assert sum(terms) == pytest.approx(records[-1].server_cost)


def test_static_buffers_only_get_old() -> None:
    _, records = play("policy=static", "clients.initial_staleness=2.5")
    assert [r["mean_age"] for r in records] == [2.5 + t for t in range(8)]
    assert [r["planned_staleness"] for r in records] == [2.5 + t for t in range(8)]
    assert {r["total_volume"] for r in records} == {480}
    assert {r["classes"] for r in records} == {8}
    config = small("clients.initial_staleness=2.5")
    cost = server_cost(config.game, 0.0, 1.0, np.full(8, 480.0))
    assert records[-1]["server_cost"] == pytest.approx(cost.total)


def test_data_update_helps() -> None:
    changes = ("game.time_sensitivity=1.25", "game.num_rounds=30", "training.local_epochs=20")
    _, static = play(*changes, "policy=static")
    _, fresh = play(*changes, "policy=dufl")
    assert static[-1]["accuracy"] < 0.62
    assert fresh[-1]["accuracy"] > static[-1]["accuracy"] + 0.1


def test_participation_and_dropout() -> None:
    _, records = play("clients.count=10", "fraction_train=0.5", "client_dropout=0.3", "game.num_rounds=20")
    assert all(r["participants"] + len(r["dropped"]) == 5 for r in records)
    assert 10 < sum(len(r["dropped"]) for r in records) < 50
    _, again = play("clients.count=10", "fraction_train=0.5", "client_dropout=0.3", "game.num_rounds=20")
    assert again == records
    _, others = play(
        "clients.count=10", "fraction_train=0.5", "client_dropout=0.3", "training.seed=1", rounds=5
    )
    assert [r["dropped"] for r in others] != [r["dropped"] for r in records[:5]]


def test_small_and_empty_buffers() -> None:
    federation, records = play("clients.initial_volume=[3,0.2,200,70]", "policy=static", rounds=2)
    assert records[0]["volumes"] == [3, 0, 200, 70]
    assert records[0]["participants"] == 3
    assert np.isfinite(federation.weights).all()


def test_all_buffers_empty() -> None:
    config = small("policy=static")
    policy = Planned(equilibrium(config.game, payment=0.0, conservation_rate=0.0), 0)
    federation, engine = federation_of(config, policy=policy)
    records = [federation.play() for _ in range(3)]
    engine.close()
    assert [r.total_volume for r in records] == [480, 0, 0]
    assert [r.participants for r in records] == [4, 0, 0]
    assert records[1].accuracy == records[0].accuracy
    assert records[1].server_cost == np.inf


class Faulty:
    """An engine some of whose clients send nonsense."""

    def __init__(self, engine: Engine, wrong: dict[int, Vector]) -> None:
        self._engine, self._wrong = engine, wrong
        self.start, self.named, self.close = engine.start, engine.named, engine.close

    def train(self, weights: Vector, model_buffers: Vector, tasks: Iterable[Task]) -> Iterator[Update]:
        for update in self._engine.train(weights, model_buffers, tasks):
            yield replace(update, weights=self._wrong.get(update.client, update.weights))

    def evaluate(self, weights: Vector, model_buffers: Vector, which: Which | None = None) -> Score:
        return self._engine.evaluate(weights, model_buffers, which)


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn"])
def test_nonsense_is_refused_and_recorded(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(f"training.algorithm={algorithm}")
    _, engine = federation_of(config)
    bad = np.full(650, np.nan, np.float32)
    wrong = {0: bad, 2: np.where(np.arange(650) == 3, np.inf, 0).astype(np.float32), 3: bad[:7]}
    federation, _ = federation_of(config, engine=Faulty(engine, wrong))
    record = federation.play()
    assert record.participants == 1
    assert record.refused == {
        "0": "weights that are not a number",
        "2": "infinite weights",
        "3": "weights of shape (7,), not (650,)",
    }
    alone, _ = federation_of(config, engine=Faulty(engine, {}))
    with monkeypatch.context() as patched:
        patched.setattr("dufl.learning.federation.participants", lambda *_: ([1], []))
        alone.play()
    np.testing.assert_array_equal(federation.weights, alone.weights)
    assert np.isfinite(federation.play().loss)
    engine.close()


def test_everyone_diverges() -> None:
    federation, records = play("training.learning_rate=3e38", rounds=2)
    assert len(records[0]["refused"]) == 4
    assert (federation.weights == 0).all()
    assert records[0]["payment"] == 0


class Refresh:
    """A policy of a user's own: everything anew every other round."""

    def __init__(self, game: Any, seed: int) -> None:
        self.game = game

    def payment(self, round: int) -> float:
        return 10.0 * round

    def size(self, client: int) -> int:
        return 50

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        return (size, 0) if round % 2 else (0, 50 + client)

    def planned_staleness(self, round: int) -> float:
        return float("nan")


class Broken(Refresh):
    """One that asks for less than nothing."""

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        return size, -1


def test_a_policy_by_import_path() -> None:
    _, records = play("policy=test_federation:Refresh")
    assert records[1]["volumes"] == [50, 51, 52, 53]
    assert [r["mean_age"] for r in records[:5]] == [1, 1, 2, 1, 2]
    assert records[3]["payment"] == 30
    assert records[3]["planned_staleness"] is None
    with pytest.raises(InputError, match=r"step of client 0 in round 0 must be integers in .*, got -1"):
        play("policy=test_federation:Broken")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.to_be:Found", r"policy must be importable, got 'nowhere.to_be:Found': ModuleNotFoundError"),
        ("test_federation:Missing", r"policy must be a class or function in test_federation"),
        ("test_federation:small", r"the policy 'test_federation:small' raised AttributeError"),
        ("test_federation:facts", r"the policy 'test_federation:facts' raised TypeError"),
    ],
)
def test_bad_policies(path: str, message: str) -> None:
    with pytest.raises((InputError, PluginError), match=message):
        play(f"policy={path}")


def test_nothing_is_copied_for_a_thousand_clients() -> None:
    config = small("clients.count=1000", "clients.initial_volume=200", "policy=static")
    federation, engine = federation_of(config)
    held = sum(buffer._content.nbytes for buffer in buffers_of(federation))
    engine.close()
    assert held == 1000 * 200 * 8


def test_more_classes_than_digits() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(600) % 100
    images = generator.integers(0, 256, (100, 3, 4, 4), dtype=np.uint8)[labels]
    own = Dataset(
        "own", Samples(images, labels), Samples(images[:200], labels[:200]), tuple(map(str, range(100)))
    )
    federation, engine = federation_of(small("training.learning_rate=1"), own)
    assert isinstance(engine, CompiledEngine)
    assert federation.play().accuracy > 0.1
    engine.close()
