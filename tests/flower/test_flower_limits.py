"""Clients with capacities and prices per sample on Flower: what they commit to, what the server accepts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from dufl.data.integer_plan import integer_plan
from dufl.errors import InputError
from dufl.experiment.train import train
from dufl.flower import messages
from dufl.flower.cost_fit import Bounds, fit_costs, is_best_response
from dufl.flower.deal import mean_clients
from dufl.flower.in_process import Answer
from dufl.flower.verification import (
    add_up,
    false_answers,
    fitted_clients,
    impossible_commitments,
    inconsistent_commitments,
)
from dufl.game.client import best_response
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Offer
from dufl.game.population import Clients
from flower_grid import Run
from loading import load

BOUNDS: Bounds = ((5e-10, 5e2), (2.5e-11, 2.5e1))  # factors of 10^±6 around the paper's mean costs
LIMITED = (
    "clients.count=5",
    "clients.initial_volume=60",
    "clients.capacity={low=62,high=95}",
    "clients.collection_price={low=0,high=0.05}",
    "clients.training_price={low=0,high=0.02}",
    "training.local_epochs=1",
)


def announced(rounds: int, rate: float, trim: bool = False, seed: int = 0) -> Announcement:
    volume = 300 * np.exp(0.2 * np.random.default_rng(seed).standard_normal(rounds))
    return Announcement(Offer(payment=9.0, conservation_rate=rate), volume, trim)


def respond(announcement: Announcement, clients: Clients) -> np.ndarray:
    volume, _ = best_response(
        announcement.price,
        clients.initial_volume,
        clients.collection_cost,
        clients.training_cost,
        announcement.offer.conservation_rate,
        announcement.trim_start,
        capacity=clients.capacity,
        collection_price=clients.collection_price,
        training_price=clients.training_price,
    )
    return volume


def private(seed: int, count: int = 6) -> Clients:
    """Clients with all kinds of costs; most sell at a price of 0.03."""
    chance = np.random.default_rng(seed)
    return Clients(
        80.0,
        10 ** chance.uniform(-4.5, -2.5, count),
        np.where(chance.random(count) < 0.3, 0.0, 10 ** chance.uniform(-5.5, -3.5, count)),
        capacity=np.where(chance.random(count) < 0.4, np.inf, chance.uniform(80, 140, count)),
        collection_price=chance.uniform(0, 0.02, count),
        training_price=chance.uniform(0, 0.015, count),
    )


def committed(announcement: Announcement, clients: Clients) -> dict[int, tuple[int, ...]]:
    volume, rate = respond(announcement, clients), announcement.offer.conservation_rate
    return {
        k: tuple(integer_plan(volume[:, k], rate, capacity=float(clients.capacity[k])).size.tolist())
        for k in range(clients.size)
    }


@pytest.mark.parametrize("capacity", [10.0, 10.4, 10.9, np.inf])
@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_rounding_never_exceeds_the_capacity(capacity: float, rate: float) -> None:
    planned = np.minimum([3.2, 9.7, 10.6, 10.9, 10.9], capacity)
    plan = integer_plan(planned, rate, capacity=capacity)
    assert plan.size.max() <= capacity
    assert np.abs(plan.size - planned).max() < 1
    assert (plan.keep <= plan.size[:-1]).all()
    assert (plan.keep + plan.fresh == plan.size[1:]).all()
    free = integer_plan(planned, rate)
    assert (plan.size == np.minimum(free.size, np.floor(min(capacity, 1e9)))).all()


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.4, 0.8, 1.0])
def test_the_commitment_of_any_client_is_possible(rate: float, trim: bool) -> None:
    for rounds in (3, 12):
        announcement = announced(rounds, rate, trim, seed=rounds)
        commitments = committed(announcement, private(rounds))
        assert not impossible_commitments(announcement, commitments, BOUNDS, capacity=np.inf)


def cheating(volume: np.ndarray, how: str) -> np.ndarray:
    chance = np.random.default_rng(7)
    return {
        "million": np.full_like(volume, 1e6),
        "grown to a million": np.concatenate([volume[:1], np.full(len(volume) - 1, 1e6)]),
        "nothing at last": np.concatenate([volume[:-1], [0.0]]),
        "a leap at last": np.concatenate([volume[:-1], 40 * volume[-1:]]),
        "noise": np.concatenate([volume[:1], chance.uniform(40, 120, len(volume) - 1)]),
    }[how]


@pytest.mark.parametrize(
    "how", ["million", "grown to a million", "nothing at last", "a leap at last", "noise"]
)
@pytest.mark.parametrize("rate", [0.0, 0.4, 0.8])
def test_other_costs_do_not_excuse_everything(how: str, rate: float) -> None:
    """What was a best response for no α and β is one for no prices and capacity either, but for a plateau."""
    announcement = announced(12, rate)
    volume = respond(announcement, Clients(80.0, 5e-4, 2.5e-5))[:, 0]
    false = np.floor(cheating(volume, how) + 0.5).astype(int).tolist()
    assert impossible_commitments(announcement, {3: false}, BOUNDS, capacity=np.inf).keys() == {3}


def test_quadratic_costs_are_fitted_first() -> None:
    announcement = announced(12, 0.5)
    volume = np.floor(respond(announcement, Clients(80.0, 5e-4, 2.5e-5))[:, 0] + 0.5)
    fit = fit_costs([announcement], [volume], BOUNDS, slack=1.0)
    assert (fit.collection_price, fit.training_price, fit.capacity) == (0.0, 0.0, np.inf)


def test_answers_of_several_offers_are_of_one_client() -> None:
    offers = [announced(12, rate, seed=k) for k, rate in enumerate((0.2, 0.5, 0.8))]
    clients = Clients(80.0, 5e-5, 2e-6, capacity=110.0, collection_price=0.01, training_price=0.004)
    true = [respond(each, clients)[:, 0] for each in offers]
    assert sum(volume.max() == 110.0 for volume in true) >= 2
    assert is_best_response(offers, true, BOUNDS, slack=0.05)
    lie = [true[0], true[1] + 0.3 * np.sin(np.arange(12)), true[2]]
    assert not is_best_response(offers, lie, BOUNDS, slack=0.05)
    rounded = [{0: committed(each, clients)[0]} for each in offers]
    assert not inconsistent_commitments(offers, rounded, BOUNDS)
    other = clients.take(np.array([0]))
    changed = Clients(80.0, 5e-5, 2e-6, capacity=100.0, collection_price=0.01, training_price=0.004)
    rounded[1] = {0: committed(offers[1], changed)[0]}
    assert inconsistent_commitments(offers, rounded, BOUNDS).keys() == {0}
    fitted = fitted_clients(other, offers, [{0: committed(each, clients)[0]} for each in offers], BOUNDS)
    for each in offers:
        assert np.abs(respond(each, fitted)[:, 0] - respond(each, clients)[:, 0]).max() <= 1.5


def test_a_full_buffer_rounds_down_and_nothing_else_does() -> None:
    total = np.array([30.0, 32.7, 32.7])
    assert add_up({0: [10, 10, 10], 1: [10, 10, 10], 2: [10, 10, 10]}, total, 0.5)
    assert not add_up({0: [10, 12, 12], 1: [10, 12, 12], 2: [10, 12, 12]}, total, 0.5)
    announcement = announced(3, 0.5)
    query: Any = type("Query", (), {"announcements": [announcement]})()
    clients = Clients(80.0, 1e-4, 1e-6, capacity=95.8)
    answers = {0: [respond(announcement, clients).T]}
    full = committed(announcement, clients)
    assert max(full[0]) == 95
    assert not false_answers([query], answers, full, BOUNDS)
    assert false_answers([query], answers, {0: [volume + 1 for volume in full[0]]}, BOUNDS).keys() == {0}


@pytest.mark.parametrize("negotiate", [False, True])
def test_a_run_with_limited_clients(tmp_path: Path, negotiate: bool) -> None:
    run = Run(tmp_path, *LIMITED, negotiate=negotiate)
    run.start()
    deal, capacity = run.strategy.deal, run.config.game.clients.capacity
    assert deal is not None
    assert not deal.left_out
    for client, volumes in deal.commitments.items():
        assert max(volumes) <= capacity[client]
    assert any(max(v) == np.floor(capacity[k]) for k, v in deal.commitments.items())
    if not negotiate:
        alone = train(load(None, [*LIMITED, "game.num_rounds=5"]))
        assert [r.volumes for r in alone.records] == [
            [claim.volume for claim in sorted(each.claims, key=lambda c: c.client)] for each in run.rounds
        ]


def test_a_cheat_among_limited_clients_and_a_deal_from_open_commitments(tmp_path: Path) -> None:
    """Without the cheat too few are left for a masked sum. Honest clients pass every check on the way."""

    def doubling(client: int, message: Message, answer: Answer) -> Message | None:
        reply = answer()
        if client == 1 and message.metadata.message_type == messages.COMMIT:
            record: Any = reply.content[messages.RECORD]
            record["volumes"] = [2 * volume for volume in record["volumes"]]
        return reply

    run = Run(tmp_path, *LIMITED, negotiate=True, min_others=4, meddle=doubling)
    run.start()
    deal, capacity = run.strategy.deal, run.config.game.clients.capacity
    assert deal is not None
    assert set(deal.left_out) == {1}
    assert set(deal.commitments) == {0, 2, 3, 4}
    assert all(max(volumes) <= capacity[client] for client, volumes in deal.commitments.items())
    total = np.sum(list(deal.commitments.values()), axis=0)
    assert np.abs(total - deal.announcement.announced_volume).max() <= 4 * 1.5
    assert len(run.rounds) == run.config.game.num_rounds


def test_clients_cannot_stay_away(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        Run(tmp_path, "game.participation=voluntary")
    assert (refused.value.field, refused.value.rule) == ("participation", "'mandatory' on Flower")


def test_the_mean_client_has_all_columns() -> None:
    clients = Clients([50.0, 70.0], 1e-3, 1e-5, 1.0, [60.0, 80.0], [0.1, 0.3], [0.0, 0.02])
    mean = mean_clients(clients, 3)
    assert (mean.size, mean.capacity[0], mean.collection_price[0]) == (3, 70.0, pytest.approx(0.2))
    assert mean.training_price[0] == pytest.approx(0.01)
    assert mean_clients(clients, 3, volume=75.0).capacity[0] == 75.0  # it holds what it holds
