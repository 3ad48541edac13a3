"""Commitments on a grid: less is known about a client's costs, and everything else still holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from test_flower_attacks import FIVE, WIDE, Curious, committing, scaled

from dufl.data.integer_plan import integer_plan
from dufl.errors import InputError
from dufl.flower import messages
from dufl.flower.client_store import privacy_options
from dufl.flower.disclosure import MAX_PLANS, on_grid
from dufl.flower.in_process import Answer, is_training
from dufl.flower.messages import Commitment, Query
from dufl.flower.verification import coarse_grids, impossible_commitments
from dufl.game.client import best_response
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Offer
from flower_grid import Run

MANY = (*FIVE, "clients.initial_volume=300", "game.payment_range=[0,200]", "game.num_rounds=6")
TRIMMED = ("game.trim_start=true", "game.payment_range=[0,2]")


@pytest.mark.parametrize("changes", [(), TRIMMED, ("game.conservation_range=[1,1]",)])
@pytest.mark.parametrize("negotiate", [True, False])
def test_a_run_on_a_grid(tmp_path: Path, negotiate: bool, changes: tuple[str, ...]) -> None:
    run = Run(tmp_path, *MANY, *changes, "service.commitment_grid=10", negotiate=negotiate)
    run.start()
    assert run.strategy.deal is not None
    deal = run.strategy.deal
    assert not deal.left_out
    assert len(deal.commitments) == 5
    for client, volumes in deal.commitments.items():
        assert all(volume % 10 == 0 for volume in volumes[1:])
        assert [claim.volume for r in run.rounds for claim in r.claims if claim.client == client] == [
            *volumes
        ]
    assert not any(round.refused or round.missing for round in run.rounds)
    total = np.sum(list(deal.commitments.values()), axis=0)
    assert (np.abs(total - deal.announcement.announced_volume) <= 5 * 5 + 5).all()


def test_the_client_s_own_grid_has_precedence(tmp_path: Path) -> None:
    run = Run(tmp_path, *MANY, "service.commitment_grid=10", negotiate=True)
    node = next(node for node, client in run.grid.nodes.items() if client == 2)
    run.grid._contexts[node].node_config["commitment-grid"] = 25
    run.grid._run_config["commitment-grid"] = 4
    run.start()
    found = [m for m in run.grid.received if m.metadata.message_type == messages.COMMIT]
    stated = {c.client: c.grid for c in (Commitment.read(m.content, 6) for m in found)}
    assert stated == {0: 4, 1: 4, 2: 25, 3: 4, 4: 4}
    assert run.strategy.deal is not None
    assert all(v % 25 == 0 for v in run.strategy.deal.commitments[2][1:])
    assert len(run.rounds[-1].claims) == 5


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "10"])
def test_a_grid_that_is_none(value: Any) -> None:
    context = Context(1, 1, {"partition-id": 0, "commitment-grid": value}, RecordDict(), {})
    with pytest.raises(InputError) as caught:
        privacy_options(context)
    assert (caught.value.field, caught.value.rule) == ("commitment-grid", "an integer >= 1")


def test_a_grid_that_is_too_coarse(tmp_path: Path) -> None:
    run = Run(tmp_path, *MANY, negotiate=True)
    node = next(node for node, client in run.grid.nodes.items() if client == 2)
    run.grid._contexts[node].node_config["commitment-grid"] = 2000
    run.start()
    assert run.strategy.deal is not None
    assert "its grid of 2000 samples is coarser than" in run.strategy.deal.left_out[2]
    assert len(run.rounds[-1].claims) == 4
    announcement = Announcement(Offer(payment=1.0, conservation_rate=0.5), np.full(4, 400.0))
    assert coarse_grids(announcement, {0: 50, 1: 51, 2: 1, 3: 1}, announced=1).keys() == {1}
    assert not coarse_grids(announcement, {0: 80, 1: 51, 2: 1, 3: 1}, announced=80)


@pytest.mark.parametrize("more", [3, 60])
def test_a_false_commitment_on_a_grid(tmp_path: Path, more: int) -> None:
    """One that is not on the grid is invalid, and one that is off by several steps is impossible."""
    meddle = committing(lambda volumes: [volumes[0], *(volume + more for volume in volumes[1:])])
    run = Run(tmp_path, *MANY, "service.commitment_grid=10", negotiate=True, meddle=meddle)
    run.start()
    assert {claim.client for round in run.rounds for claim in round.claims} == {0, 2, 3, 4}


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("grid", [2, 10, 50])
def test_honest_commitments_on_a_grid_are_possible_and_feasible(grid: int, trim: bool) -> None:
    chance = np.random.default_rng(grid)
    for rate in (0.0, 0.4, 1.0):
        for rounds in (2, 3, 12):
            announced = 3000 * np.exp(0.2 * chance.standard_normal(rounds))
            announcement = Announcement(Offer(payment=90.0, conservation_rate=rate), announced, trim)
            held, alpha, beta = 483, 10 ** chance.uniform(-5, -2, 3), 10 ** chance.uniform(-6, -4, 3)
            volumes, _ = best_response(90 / announced, float(held), alpha, beta, rate, trim_start=trim)
            committed = {}
            for k in range(3):
                plan = integer_plan(on_grid(volumes[:, k], grid, held), rate, client=k)
                assert (plan.keep >= 0).all()
                assert (plan.fresh >= 0).all()
                assert (plan.keep <= plan.size[:-1]).all()
                assert (np.abs(plan.size - volumes[:, k]) <= grid / 2 + 1e-9).all()
                assert plan.size[0] <= held
                committed[k] = plan.size.tolist()
            grids = dict.fromkeys(committed, grid)
            assert not impossible_commitments(announcement, committed, WIDE, np.inf, grids)


def test_a_capacity_is_kept_on_a_grid() -> None:
    assert on_grid(np.array([90.0, 96.0, 97.9]), 10, 90, capacity=98.0).tolist() == [90.0, 90.0, 90.0]


def test_without_a_grid_nothing_is_rounded() -> None:
    volume = np.array([64.2, 71.7])
    assert on_grid(volume, 1, 65) is volume


def test_a_client_on_a_grid_does_not_commit_to_many_plans(tmp_path: Path) -> None:
    """The errors of rounding would average out."""
    curious = Curious(tmp_path, **{"commitment-grid": 10})

    def commit(factor: float) -> Message:
        query = Query("1", 0, {}, [scaled(factor)])
        return curious.ask(curious.node, messages.COMMIT, query.to_records())

    for n in range(MAX_PLANS):
        assert commit(1 + n / 10).has_content()
        assert commit(1.0).has_content()
    assert "at most 10 plans" in (commit(9.0).error.reason or "")


def test_who_misses_a_round_on_a_grid_comes_back(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, answer: Answer) -> Message | None:
        late = is_training(message) and messages.round_of(message.content) == 2
        return None if client == 1 and late else answer()

    run = Run(tmp_path, *MANY, "service.commitment_grid=10", meddle=meddle)
    run.start()
    assert [round.missing for round in run.rounds] == [[], [], [1], [], [], []]
    assert not any(round.refused for round in run.rounds)
