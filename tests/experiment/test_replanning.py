"""Remaining games, and runs that plan again: never dearer, and the same after any stop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl import (
    Algorithm1Options,
    Clients,
    Experiment,
    Game,
    InputError,
    Leader,
    Offer,
    PowerLaw,
    Run,
    Training,
    equilibrium,
    solve,
    train,
)
from dufl.experiment.compare import grid
from dufl.experiment.config import law_table
from dufl.game.loss import PARAMETERS
from dufl.game.remaining import remaining_game, replan, response
from dufl.learning.replanning import Replanned, following, stages_of
from dufl.learning.tracking import compared_blocks, late_blocks, observations, updated_law
from federations import facts
from loading import pausing

ROUNDS = 12
KNOWN = {"floor": 0.01, "volume_weight": 0.1, "staleness_weight": 0.05}
LAW = PowerLaw(
    floor=0.05,
    volume_weight=0.5,
    volume_exponent=0.4,
    staleness_weight=0.05,
    staleness_exponent=1.5,
    noise=0.01,
    measured_from=0.2,
    covariance=tuple(map(tuple, np.diag([KNOWN.get(name, 0.0) ** 2 for name in PARAMETERS]).tolist())),
)
LOOP = Algorithm1Options(search="direct", max_iterations=1)
FEW = Clients.draw(4, initial_volume=60.0)


def experiment(every: Any = None, **game: Any) -> Experiment:
    """Four clients on the digits, twelve rounds, one epoch, with a law that is far off."""
    values: dict[str, Any] = {"clients": FEW, "num_rounds": ROUNDS, "loss": LAW} | game
    return Experiment(
        game=Game(**values), training=Training(local_epochs=1), leader=Leader(replan_every=every)
    )


def same(one: Run, two: Run) -> None:
    """Both have the same records and weights, bit for bit."""
    assert [facts(record) for record in one.records] == [facts(record) for record in two.records]
    assert one.weights.keys() == two.weights.keys()
    for name in one.weights:
        np.testing.assert_array_equal(one.weights[name], two.weights[name])


@pytest.fixture(scope="module")
def replanned() -> Run:
    """A run that plans again every third round."""
    return train(experiment(3))


@pytest.mark.parametrize("competition", ["mean-field", "nash"])
@pytest.mark.parametrize(("payment", "rate"), [(40.0, 0.6), (5.0, 0.95), (20.0, 0.0), (3.0, 1.0), (0.0, 0.8)])
def test_the_rest_of_an_equilibrium_is_the_equilibrium_of_the_rest(
    competition: Any, payment: float, rate: float
) -> None:
    """At the same offer, from what the clients hold on the way."""
    game, offer = experiment().game, Offer(payment=payment, conservation_rate=rate)
    whole = response(game, offer, competition)
    for over in (1, 5, ROUNDS - 2):
        rest = response(
            remaining_game(game, over, whole.volume[over], whole.staleness[over]), offer, competition
        )
        np.testing.assert_allclose(rest.volume, whole.volume[over:], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(rest.mean_staleness, whole.mean_staleness[over:], rtol=1e-6)
        np.testing.assert_allclose(
            rest.cost_by_term.per_round, whole.cost_by_term.per_round[over:], rtol=1e-6, atol=1e-12
        )


def test_forgetting_and_late_rounds_belong_to_the_whole_game() -> None:
    """A round has the same weight, and predictions are about the same rounds."""
    game = experiment(loss=LAW.replace(measured_from=0.6), decay=0.9).game
    whole = equilibrium(game, payment=20.0, conservation_rate=0.7)
    for over in (1, 4, 7, 8, ROUNDS - 2):
        left = remaining_game(game, over, whole.volume[over], whole.staleness[over])
        rest = equilibrium(left, payment=20.0, conservation_rate=0.7)
        np.testing.assert_allclose(
            rest.cost_by_term.per_round, whole.cost_by_term.per_round[over:], rtol=1e-6
        )
        first = int(left.loss.measured_from * left.num_rounds)
        assert over + first == max(over, 7)


def test_first_buffers_are_trimmed_once() -> None:
    """What is left of a game with trimmed buffers is the rest of its equilibrium too."""
    game = experiment(trim_start=True, clients=Clients.draw(4, initial_volume=900.0)).game
    whole = equilibrium(game, payment=5.0, conservation_rate=0.9)
    assert whole.volume[0].sum() < game.clients.initial_total
    left = remaining_game(game, 3, whole.volume[3], whole.staleness[3])
    rest = equilibrium(left, payment=5.0, conservation_rate=0.9)
    np.testing.assert_allclose(rest.volume, whole.volume[3:], rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "scale"),
    [("stackelberg", 0.2), ("stackelberg", 1.0), ("stackelberg", 5.0), ("algorithm1", 5.0)],
)
def test_a_new_plan_never_costs_more_than_the_old_offer(method: Any, scale: float) -> None:
    """As the new law sees the remaining game; nor do more clients lose, and its certificate holds."""
    game = experiment().game
    whole = solve(game)
    law = LAW.replace(staleness_weight=scale * LAW.staleness_weight, floor=0.3)
    for over in (3, 9):
        left = remaining_game(game, over, np.round(whole.volume[over]), 2.0, law)
        choice = replan(left, whole.offer, "mean-field", lambda g: solve(g, method=method, algorithm1=LOOP))
        assert choice is not None
        assert choice.plan.server_cost <= choice.old.server_cost
        assert choice.plan.certificate.losing_clients <= choice.old.certificate.losing_clients
        assert choice.plan.certificate.holds()
        assert choice.old.offer == whole.offer
        assert choice.plan.game is left


def test_a_new_floor_alone_changes_no_plan() -> None:
    """No offer can change the floor."""
    game, whole = experiment().game, solve(experiment().game)
    plans = [
        solve(remaining_game(game, 4, whole.volume[4], 2.0, LAW.replace(floor=floor)))
        for floor in (0.05, 0.4)
    ]
    assert plans[0].offer == plans[1].offer


def test_a_run_follows_the_offers_of_its_records(replanned: Run) -> None:
    """Payments, planned ages and volumes are those of the plan of each round."""
    events = {record.round: record.replan for record in replanned.records if record.replan}
    assert set(events) == {3, 6, 9}
    assert any(event.changed for event in events.values())
    assert replanned.plan is not None
    stages = stages_of(replanned.plan, replanned.records)
    offer = replanned.plan.offer
    for record in replanned.records:
        event = events.get(record.round)
        if event is not None:
            assert (event.old_payment, event.old_conservation_rate) == (
                offer.payment,
                offer.conservation_rate,
            )
            assert event.cost <= event.old_cost
            offer = Offer(payment=event.payment, conservation_rate=event.conservation_rate)
        stage = next(s for s in reversed(stages) if s.first_round <= record.round)
        at = record.round - stage.first_round
        assert stage.plan.offer == offer
        assert record.payment == offer.payment
        assert record.planned_staleness == stage.plan.mean_staleness[at]
        np.testing.assert_allclose(record.volumes, stage.plan.volume[at], atol=0.5 + 1e-9)
    summary = replanned.summary()
    assert [row["round"] for row in summary["replans"]] == [3, 6, 9]
    assert summary["replans"][1]["law"]["floor"] > LAW.floor


def test_what_clients_collected_follows_from_the_plans(replanned: Run) -> None:
    """The policy is rebuilt from records, with the same steps."""
    assert replanned.plan is not None
    policy = following(replanned.plan, replanned.records, replanned.experiment.training.seed)
    assert isinstance(policy, Replanned)
    for now, later in zip(replanned.records, replanned.records[1:], strict=False):
        steps = [policy.step(k, now.round, size) for k, size in enumerate(now.volumes)]
        assert [keep + fresh for keep, fresh in steps] == later.volumes


@pytest.mark.parametrize(
    ("every", "stops"),
    [
        (3, (7,)),
        ("drift", (5,)),
        pytest.param(3, range(1, ROUNDS - 1), marks=pytest.mark.slow),
        pytest.param("drift", range(1, ROUNDS - 1), marks=pytest.mark.slow),
    ],
)
def test_stopped_after_any_round_and_resumed(every: Any, stops: Sequence[int], tmp_path: Path) -> None:
    """All state is in the records: also if rounds after the last checkpoint were lost."""
    config = experiment(every)
    whole = train(config)
    assert any(record.replan for record in whole.records)
    for stop in stops:
        out, seen = tmp_path / f"{every}-{stop}", list[Any]()

        def enough(seen: list[Any] = seen, stop: int = stop) -> bool:
            return len(seen) > stop

        def crash(record: Any, stop: int = stop) -> None:
            if record.round == stop:
                raise KeyboardInterrupt

        later = config.replace(checkpoint_every=4)
        with pytest.raises(KeyboardInterrupt):
            train(later, out=out, callbacks=[crash])
        part = train(later, out=out, resume=True, callbacks=[seen.append, pausing(enough)])
        rest = train(later, out=out, resume=True)
        same(rest, whole)
        assert len(part.records) <= ROUNDS
        same(Run.load(out), whole)
        assert Run.load(out).summary() == whole.summary() | {"seconds": rest.summary()["seconds"]}


def test_off_is_as_before(tmp_path: Path) -> None:
    """Neither the files nor the numbers of a run know about replanning."""
    run = train(experiment(), out=tmp_path / "run")
    assert "replan" not in (tmp_path / "run/config.toml").read_text()
    assert "replan" not in (tmp_path / "run/metrics.jsonl").read_text()
    assert "replans" not in run.summary()
    late = train(experiment(ROUNDS - 2))
    assert [facts(r) for r in late.records[:-2]] == [facts(r) for r in run.records[:-2]]


def test_drift_is_a_block_outside_of_its_interval() -> None:
    """The law is far off, so the first complete block calls for a new plan; a law that says so does not."""
    run = train(experiment("drift"))
    first = late_blocks(LAW, ROUNDS)[0]
    rounds = [record.round for record in run.records if record.replan]
    assert rounds[0] == first.stop
    assert all(record.replan.drift for record in run.records if record.replan)
    calm = train(experiment("drift", loss=LAW.replace(noise=10.0)))
    assert not calm.replans
    tracking = run.tracking
    assert tracking is not None
    assert tracking.parted is not None
    assert tracking.parted.rounds == first
    assert run.summary()["left_prediction_in_round"] == first[-1]
    assert calm.summary()["left_prediction_in_round"] is None


def test_blocks_are_means_of_what_was_measured(replanned: Run) -> None:
    """Each is compared with the mean prediction of the plans of its rounds."""
    assert replanned.plan is not None
    tracking = replanned.tracking
    assert tracking is not None
    for block in compared_blocks(stages_of(replanned.plan, replanned.records), replanned.records):
        errors = [1 - replanned.records[t].accuracy for t in block.rounds]
        assert block.measured == pytest.approx(np.mean(errors))
        at = [t - tracking.rounds[0] for t in block.rounds]
        assert 1 - block.prediction.value == pytest.approx(np.mean(tracking.predicted[at]))
    assert len(observations(replanned.plan.game, replanned.records)) == len(tracking.blocks)


def test_a_run_that_is_not_planned_again_is_predicted_by_its_plan() -> None:
    """Round by round it is the prediction of the whole run."""
    run = train(experiment())
    assert run.outcome is not None
    assert run.tracking is not None
    assert run.plan is not None
    assert run.outcome.prediction is run.plan.prediction
    assert np.mean(run.tracking.predicted) == pytest.approx(run.outcome.prediction.accuracy)


def test_the_remaining_game_of_a_run(tmp_path: Path) -> None:
    """Present volumes and ages, the rounds that are left, and the updated law; from memory or a folder."""
    config, seen = experiment(), list[Any]()
    stops = [seen.append, pausing(lambda: len(seen) >= 6)]
    part = train(config, out=tmp_path / "run", callbacks=stops)
    over = len(part.records)
    for run in (part, Run.load(tmp_path / "run")):
        game = run.remaining_game()
        assert game.num_rounds == ROUNDS - over
        assert game.loss.parameters.tolist() == updated_law(config.game, part.records).parameters.tolist()  # type: ignore[union-attr]
        assert solve(game).certificate.holds()
    whole = train(config, out=tmp_path / "run", resume=True)
    assert game.clients.initial_volume.tolist() == whole.records[over].volumes
    assert game.clients.initial_mean_staleness == pytest.approx(whole.records[over].mean_age)
    with pytest.raises(InputError) as error:
        whole.remaining_game()
    assert error.value.field == "num_rounds"
    further = Run.load(tmp_path / "run").remaining_game(20)
    assert further.num_rounds == 20
    assert further.clients.initial_mean_staleness == pytest.approx(whole.records[-1].mean_age + 1)
    with pytest.raises(InputError):
        whole.remaining_game(1)
    with pytest.raises(InputError):
        Run(config, whole.records).remaining_game(5)


@pytest.mark.parametrize("value", [0, -3, 2.5, True, "often", [3]])
def test_replan_every_must_be_a_number_of_rounds_or_drift(value: Any) -> None:
    """Anything else is refused when it is read."""
    with pytest.raises(InputError) as error:
        Leader(replan_every=value)
    assert error.value.field == "replan_every"


@pytest.mark.parametrize(
    "config",
    [
        experiment(ROUNDS - 1),
        experiment(3).replace(policy="static"),
        experiment(3).replace(policy=equilibrium(experiment().game, payment=1.0, conservation_rate=0.5)),
        experiment(3, loss=None),
        experiment("drift", loss=lambda scarcity, staleness: scarcity),
    ],
)
def test_runs_that_cannot_be_planned_again_are_refused(config: Experiment, tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(InputError) as error:
        train(config, out=tmp_path / "run")
    assert error.value.field == "leader.replan_every"
    assert not (tmp_path / "run").exists()


def test_the_key_is_read_and_written() -> None:
    """And a comparison with other policies leaves it to the plan."""
    for every in (3, "drift"):
        config = experiment(every)
        text = config.to_toml()
        assert f"replan_every = {every!r}".replace("'", '"') in text
        assert Experiment.from_toml(changes={"leader.replan_every": every}).leader.replan_every == every
    plans = {name: one.leader.replan_every for name, one in grid(experiment(3)).items()}
    assert plans == {"fedavg-static": None, "fedavg-dufl": 3}


@pytest.mark.parametrize(
    "game",
    [
        {"clients": Clients.draw(1, initial_volume=60.0)},
        {"payment_range": (0.0, 0.0)},
        {"conservation_range": (1.0, 1.0)},
        {"conservation_range": (0.0, 0.0)},
        {"payment_range": (0.0, 0.0), "conservation_range": (0.0, 0.0)},
        {"payment_range": (5.0, 5.0), "conservation_range": (0.5, 0.5)},
        {"trim_start": True},
        {"payment_weight": 0.0, "payment_range": (0.0, 3.0), "trim_start": True},
        {
            "clients": Clients.draw(
                4, initial_volume=[50.3, 0.0, 3.0, 60.0], capacity=[60.2, 58.7, 56.7, 60.0]
            ),
            "payment_range": (0.0, 0.3),
        },
    ],
)
def test_unusual_games_are_planned_again(game: dict[str, Any]) -> None:
    """A run always goes on; offers stay in their ranges."""
    run = train(experiment(5, **game))
    assert run.finished
    low, high = run.experiment.game.payment_range
    assert all(low <= record.payment <= high or record.payment == 0 for record in run.records)


def test_nash_competition_is_kept() -> None:
    """A new plan is an equilibrium of the same kind."""
    config = experiment(5)
    run = train(config.replace(leader=Leader(replan_every=5, competition="nash")))
    assert run.plan is not None
    assert {stage.plan.competition for stage in stages_of(run.plan, run.records)} == {"nash"}


def test_the_course_of_trainings_is_no_drift() -> None:
    """If trainings are known to go on like this, blocks are where they are expected, and the law stays."""
    run = train(experiment())
    assert run.tracking is not None
    errors = [block.measured for block in run.tracking.blocks]
    mean = float(np.mean([1 - a for a in run.tracking.measured]))
    at = run.tracking.blocks[0].prediction.value
    course = tuple(error - mean for error in errors)
    law = LAW.replace(course=course, course_deviation=(0.01,) * 4, floor=LAW.floor + mean - at)
    known = experiment("drift", loss=law)
    calm = train(known)
    assert not calm.replans
    assert calm.tracking is not None
    for block in calm.tracking.blocks:
        assert block.inside
        assert block.prediction.deviation > LAW.noise
    new = updated_law(known.game, calm.records)
    assert new is not None
    assert new.floor == pytest.approx(law.floor, abs=0.01)
    assert Experiment.from_toml(changes={"game.loss": law_table(law)}).game.loss == law
    with pytest.raises(InputError) as error:
        law.replace(course=(0.1,))
    assert error.value.field == "course_deviation"
