"""Updates of any size: none moves the model much farther than the others do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedMedian, FedProx, FedTrimmedAvg, MultiKrum

from dufl.errors import InputError
from dufl.experiment.metrics import read_metrics
from dufl.flower import messages
from dufl.flower.bounds import bound_updates, update_size
from dufl.flower.in_process import Answer, is_training
from dufl.flower.run_recorder import RunRecorder
from dufl.flower.strategy import DataUpdateStrategy
from dufl.game.parameters import Game
from flower_grid import Run


def with_weights(reply: Message, change: Any) -> Message:
    arrays = messages.from_arrays(reply.content["arrays"])
    arrays["weights"] = change(arrays["weights"])
    reply.content["arrays"] = messages.to_arrays(arrays)
    return reply


def attack(client: int, change: Any) -> Any:
    """One client whose weights are changed before they are sent."""

    def meddle(k: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        return with_weights(reply, change) if k == client and is_training(message) else reply

    return meddle


def accuracy(run: Run) -> float:
    return float(run.rounds[-1].metrics["accuracy"])


@pytest.mark.parametrize("weight", [3e37, -3e37, 1e6])
def test_huge_weights_of_one_client_do_not_ruin_the_model(tmp_path: Path, weight: float) -> None:
    """The observed attack: finite weights of 3e37 made the model useless and honest clients look invalid."""
    honest = Run(tmp_path / "honest")
    honest.start()
    run = Run(tmp_path / "attacked", meddle=attack(1, lambda w: np.full_like(w, weight)))
    result = run.start()
    assert np.isfinite(messages.from_arrays(result.arrays)["weights"]).all()
    assert accuracy(run) > accuracy(honest) - 0.3
    assert accuracy(run) > 0.3
    for round in run.rounds:
        assert not round.refused
        assert set(round.bounded) == {1}
        assert round.bounded[1] > 10
        assert len(round.claims) == 4


def test_honest_updates_are_not_changed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start()
    assert all(round.bounded == {} for round in run.rounds)


def test_what_is_too_large_for_a_number_is_refused_and_not_paid(tmp_path: Path) -> None:
    """Double precision: the difference of two finite weights overflows."""
    model = {"w": np.full(3, -1.7e308)}
    message = Message(messages.Hello(0, b"").to_records(), dst_node_id=1, message_type="train")
    message.content["arrays"] = messages.to_arrays({"w": np.full(3, 1.7e308)})
    assert update_size(message, model) == np.inf

    def meddle(k: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if k == 2 and is_training(message):
            arrays = messages.from_arrays(reply.content["arrays"])
            huge = np.full(arrays["weights"].shape, 1e300)
            reply.content["arrays"] = messages.to_arrays(arrays | {"weights": huge})
        return reply

    run = Run(tmp_path, meddle=meddle)
    run.start()
    assert all(round.refused == {2: "weights that are too large"} for round in run.rounds)
    assert all(entry.owed == 0 for entry in run.entries() if entry.client == 2)


def test_the_median_of_two_is_the_smaller_one_and_idle_clients_do_not_count() -> None:
    def update(value: float) -> Message:
        message = Message(messages.Hello(0, b"").to_records(), dst_node_id=1, message_type="train")
        message.content["arrays"] = messages.to_arrays(
            {"w": np.full(4, value), "seen": np.array(7 + int(value))}
        )
        return message

    model = {"w": np.zeros(4), "seen": np.array(7)}
    updates = {0: update(0.0), 1: update(0.0), 2: update(1.0), 3: update(100.0)}
    sizes = {client: update_size(reply, model) for client, reply in updates.items()}
    assert sizes[0] == 0
    large = bound_updates(updates, sizes, model, 10.0)
    assert set(large) == {3}
    assert large[3] == pytest.approx(100.0)
    scaled = messages.from_arrays(updates[3].content["arrays"])
    assert update_size(updates[3], model) == pytest.approx(10 * sizes[2], rel=0.1)
    assert scaled["seen"].dtype == model["seen"].dtype
    assert bound_updates({0: update(0.0)}, {0: 0.0}, model, 10.0) == {}


def test_bounded_updates_are_in_the_metrics(tmp_path: Path) -> None:
    run = Run(tmp_path, meddle=attack(3, lambda w: np.full_like(w, 1e9)))
    folder = tmp_path / "recorded"
    runtime = run.runtime
    recorder = RunRecorder(run.config, runtime.dataset, runtime.data, folder)
    recorder.begin()
    run.start()
    for round in run.rounds:
        recorder.add(round)
    records = read_metrics(folder)
    assert all(set(record.bounded or {}) == {"3"} for record in records)


ROBUST: dict[str, Any] = {
    "median": FedMedian,
    "trimmed mean": lambda **options: FedTrimmedAvg(beta=0.25, **options),
    "multi-krum": lambda **options: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2, **options),
}


@pytest.mark.parametrize("name", ROBUST)
def test_robust_strategies_of_flower_train_with_the_clients_of_dufl(tmp_path: Path, name: str) -> None:
    """Flower's own strategies send no penalty; what is within the bound can still mislead a mean."""
    honest = Run(tmp_path / "honest")
    honest.start()
    run = Run(tmp_path / "attacked", meddle=attack(0, lambda w: -9 * w))
    run.strategy.strategy = ROBUST[name](fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    run.start()
    assert accuracy(run) > accuracy(honest) - 0.15


def test_the_proximal_term_of_flower_reaches_the_clients(tmp_path: Path) -> None:
    plain, proximal = Run(tmp_path / "plain"), Run(tmp_path / "proximal", "training.algorithm='fedprox'")
    options: Any = {"fraction_evaluate": 0.0, "min_train_nodes": 2, "min_available_nodes": 2}
    plain.strategy.strategy = FedProx(proximal_mu=proximal.config.training.proximal_mu, **options)
    ours, theirs = (messages.from_arrays(run.start().arrays)["weights"] for run in (proximal, plain))
    assert np.abs(ours - theirs).max() < 1e-5


@pytest.mark.parametrize("bad", [0.0, 0.5, float("nan"), float("inf")])
def test_a_multiple_below_one_is_rejected(tmp_path: Path, bad: float) -> None:
    with pytest.raises(InputError) as raised:
        DataUpdateStrategy(FedMedian(), Game(), tmp_path, max_update=bad)
    assert raised.value.field == "max_update"
