"""Each policy does what its definition says, on real buffers, and can be repeated."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dufl
from dufl import Clients, Game, InputError
from dufl.experiment.config import Experiment
from dufl.game.client import total_response
from dufl.game.parameters import Competition
from dufl.learning.policies import POLICIES, Periodic, RandomStrategy, Window, parse_name
from dufl.learning.policies.periodic import first_volume, held
from dufl.learning.policies.window import rounded, schedule
from federations import facts, federation_of, small
from loading import load
from recordings import hyperplane, recorded

ALL = (*POLICIES, "window-2", "periodic-3", "periodic-1", "algorithm1-12.5")
ROUNDS = 14


def contents(experiment: Experiment, rounds: int = ROUNDS) -> list[list[dict[int, int]]]:
    """The age of every sample by its id, of every client in every round."""
    policy = experiment.make_policy()
    dataset = experiment.data.load()
    data = experiment.data.client_data(dataset, experiment.game, experiment.training.seed)
    data = data.discarding(getattr(policy, "discard", None))
    buffers = [data.buffer(k, policy.size(k)) for k in range(experiment.game.clients.size)]
    seen = []
    for t in range(rounds):
        snapshots = [buffer.snapshot() for buffer in buffers]
        seen.append([dict(zip(s.ids.tolist(), s.ages.tolist(), strict=True)) for s in snapshots])
        if t + 1 < rounds:
            for k, buffer in enumerate(buffers):
                keep, fresh = policy.step(k, t, len(buffer))
                buffer.advance(keep, data.stream(k).collect(fresh, t))
    return seen


def of(policy: str, *changes: str) -> Experiment:
    settings = (f"game.num_rounds={ROUNDS}", "game.conservation_range=[0.6, 0.6]", *changes)
    return small(*settings, f"policy={policy}", "leader.search=direct")  # a Bayesian search takes seconds


@pytest.mark.parametrize("length", [1, 2, 3, 5, 50])
def test_a_window_holds_exactly_the_samples_of_the_last_rounds(length: int) -> None:
    experiment = of(f"window-{length}")
    for clients in zip(*contents(experiment), strict=True):
        for t, now in enumerate(clients):
            assert set(now.values()) <= set(range(1, length + 1))
            if t + 1 < len(clients):
                stay = {number for number, age in now.items() if age < length}
                assert stay == {number for number, age in clients[t + 1].items() if age > 1}


@pytest.mark.parametrize("length", [2, 5])
def test_a_window_collects_what_the_equilibrium_of_its_length_collects(length: int) -> None:
    experiment = of(f"window-{length}", "baseline_payment=30")
    plan = dufl.equilibrium(experiment.game, payment=30.0, conservation_rate=1 - 1 / length)
    for k, client in enumerate(zip(*contents(experiment), strict=True)):
        joined = [Counter(now.values())[1] for now in client[1:]]
        assert np.abs(np.cumsum(joined) - np.cumsum(plan.collection[:-1, k])).max() < 1


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_a_periodic_buffer_is_replaced_every_so_many_rounds(length: int) -> None:
    for client in zip(*contents(of(f"periodic-{length}")), strict=True):
        for t, now in enumerate(client):
            assert set(now.values()) == {1 + t % length}
        for before, after in pairwise(client):
            refreshed = set(after.values()) == {1}
            assert set(before) == set(after) if not refreshed else not set(before) & set(after)


def test_keep_all_discards_nothing_and_fresh_only_keeps_nothing() -> None:
    for client in zip(*contents(of("keep-all")), strict=True):
        assert all(set(before) <= set(after) for before, after in pairwise(client))
        assert len(client[-1]) > len(client[0])
    for client in zip(*contents(of("fresh-only")), strict=True):
        assert all(set(now.values()) == {1} for now in client)


def test_zero_collects_nothing_and_keeps_the_share_of_the_offer() -> None:
    for client in zip(*contents(of("zero", "clients.initial_volume=1000")), strict=True):
        assert all(set(after) < set(before) for before, after in pairwise(client))
        assert [len(now) for now in client] == pytest.approx([1000 * 0.6**t for t in range(ROUNDS)], abs=0.51)


def test_random_collects_the_planned_total_in_expectation_and_not_at_the_planned_time() -> None:
    """Over seeds, for every client: a sum of T − 1 uniform draws on [0, 2·m] has the variance (T−1)·m²/3."""
    game, seeds = of("random").game, 400
    plan = dufl.solve(game)
    planned = plan.collection.sum(axis=0)
    totals, first = [], []
    for seed in range(seeds):
        policy = RandomStrategy(plan, seed)
        volume = policy._volume()
        joined = volume[1:] - plan.conservation_rate * volume[:-1]
        assert (joined >= 0).all()
        assert (joined <= 2 * planned / (ROUNDS - 1) + 1e-9).all()
        totals.append(joined.sum(axis=0))
        first.append(joined[0])
    deviation = planned / math.sqrt(3 * (ROUNDS - 1) * seeds)
    assert (np.abs(np.mean(totals, axis=0) - planned) < 4 * deviation).all()
    assert np.std(first, axis=0) == pytest.approx(planned / (ROUNDS - 1) / math.sqrt(3), rel=0.15)
    assert np.abs(np.corrcoef(np.array(first).T)[np.triu_indices(4, 1)]).max() < 0.25  # independent


def test_random_draws_do_not_repeat_those_of_the_clients_costs() -> None:
    """Both have seed 0: costs must not tell who collects in the first round."""
    experiment = small("clients.count=200", "game.conservation_range=[0.5, 0.5]")
    plan = experiment.solve()
    volume = RandomStrategy(plan, 0)._volume()
    share = (volume[1] - plan.conservation_rate * volume[0]) / plan.collection.sum(axis=0)
    assert abs(np.corrcoef(share, experiment.game.clients.collection_cost)[0, 1]) < 0.25


@pytest.mark.parametrize("policy", ALL)
def test_no_buffer_exceeds_its_capacity(policy: str) -> None:
    """Capacities with fractions of a sample, near what the policy would hold without them."""
    most = [125.6, 130.2, 300.5, 140.7]
    experiment = of(policy, "clients.initial_volume=[120, 120, 120, 120]", f"clients.capacity={most}")
    payment = {"window": 1.0, "periodic": 200.0}.get(parse_name(policy).kind, 2.0)  # type: ignore[union-attr]
    game = experiment.game.replace(payment_range=(2.0, 2.0), trim_start=None)
    experiment = experiment.replace(game=game, baseline_payment=payment)
    seen = contents(experiment)
    sizes = np.array([[len(client) for client in now] for now in seen])
    assert (sizes <= np.array(most)).all()
    if policy in ("window-5", "periodic-3"):
        assert (sizes[:, 0] == 125).any()  # the capacity binds


def test_a_random_client_whose_buffer_is_full_collects_less() -> None:
    game = of("random").game
    most = dufl.solve(game).volume.max(axis=0) + 0.4
    clients = Clients(120.0, game.clients.collection_cost, game.clients.training_cost, capacity=most)
    policy = RandomStrategy(dufl.solve(game.replace(clients=clients)))
    sizes = np.array([policy._integer(k).size for k in range(4)])
    assert sizes.max(axis=1).tolist() == np.floor(most).tolist()


@pytest.mark.parametrize("policy", ALL)
def test_volumes_and_ages_are_as_planned(policy: str) -> None:
    """The mean age in the buffers is the planned staleness, as far as integers allow."""
    experiment = of(policy, "clients.initial_volume=1000", "baseline_payment=40")
    planned = experiment.make_policy()
    for t, now in enumerate(contents(experiment)):
        ages = np.concatenate([list(client.values()) for client in now])
        if len(ages):
            assert ages.mean() == pytest.approx(planned.planned_staleness(t), abs=0.2)


@pytest.mark.parametrize("policy", ALL)
def test_a_killed_run_resumes_bit_for_bit(policy: str, tmp_path: Path) -> None:
    experiment = of(policy, "training.checkpoint_every=3")
    whole = dufl.train(experiment)

    def stop(record: dufl.Record) -> None:
        if record.round == 7:
            raise KeyboardInterrupt  # nothing is written any more, as if the process was killed

    with pytest.raises(KeyboardInterrupt):
        dufl.train(experiment, out=tmp_path / "run", callbacks=[stop])
    again = dufl.train(dufl.Run.load(tmp_path / "run").experiment, out=tmp_path / "run", resume=True)
    assert [facts(r) for r in again.records] == [facts(r) for r in whole.records]
    assert again.summary()["fingerprint"] == whole.summary()["fingerprint"]
    stored = dufl.Run.load(tmp_path / "run")
    assert stored.experiment.policy == policy
    assert [facts(r) for r in stored.records] == [facts(r) for r in whole.records]


@pytest.mark.parametrize("policy", ["keep-all", "fresh-only", "window-3", "periodic-3"])
def test_on_recorded_data_a_policy_that_buys_collects_at_most_what_is_there(policy: str) -> None:
    experiment = recorded(hyperplane(600), policy=policy, rounds=12)
    free = dufl.train(experiment)
    assert free.summary()["total_payment"] == 0
    bought = dufl.train(experiment, baseline_payment=1.0)
    much = dufl.train(experiment, baseline_payment=1e4)
    assert bought.summary()["total_payment"] == pytest.approx(12.0)
    assert [r.shortfall for r in free.records] == [0] * 12
    assert sum(r.shortfall for r in bought.records) < sum(r.shortfall for r in much.records)
    for one, two in zip(much.records, free.records, strict=True):  # who buys too much gets everything
        assert one.volumes == two.volumes if policy != "keep-all" else sum(one.volumes) <= sum(two.volumes)


def test_a_free_refresh_takes_what_the_period_has() -> None:
    run = dufl.train(recorded(hyperplane(1100), policy="periodic-4", rounds=10, warm_up=1 / 11))
    assert [record.mean_age for record in run.records] == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert run.records[4].total_volume == run.records[0].total_volume == 100


# What a periodic client holds.


def markets(seed: int, limits: bool) -> Clients:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 12))
    columns: dict[str, Any] = {}
    if limits:
        columns["capacity"] = np.where(
            generator.random(count) < 0.5, generator.uniform(1, 400, count), np.inf
        )
        columns["collection_price"] = generator.uniform(0, 0.2, count)
        columns["training_price"] = generator.uniform(0, 0.05, count)
    return Clients(
        generator.uniform(1, 400, count),
        np.exp(generator.uniform(-10, -4, count)),
        np.exp(generator.uniform(-12, -6, count)),
        **columns,
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 30),
    payment=st.floats(1e-3, 1e4),
    competition=st.sampled_from(["mean-field", "nash"]),
    limits=st.booleans(),
)
def test_no_client_gains_by_holding_another_volume(
    seed: int, length: int, payment: float, competition: Competition, limits: bool
) -> None:
    clients = markets(seed, limits)
    volume = held(clients, length, payment, competition)
    total = volume.sum()
    assert (volume <= clients.capacity).all()
    assert (volume >= 0).all()

    def utility(k: int, own: Any) -> Any:
        everybody = total - volume[k] + own if competition == "nash" else total
        paid = length * payment * own / everybody
        fresh = clients.collection_price[k] * own + clients.collection_cost[k] * own**2
        return paid - fresh - length * (clients.training_price[k] * own + clients.training_cost[k] * own**2)

    for k in range(clients.size):
        grid = np.unique(
            np.concatenate([volume[k] * np.linspace(0, 3, 61), volume[k] + total * np.linspace(-1, 1, 41)])
        )
        grid = grid[(grid >= 0) & (grid <= clients.capacity[k]) & (total - volume[k] + grid > 0)]
        assert utility(k, grid).max() <= utility(k, volume[k]) + 1e-9 * (length * payment)


def test_without_limits_the_volume_is_the_closed_form() -> None:
    clients = Clients.draw(15)
    for length in (1, 4, 25):
        cost = clients.collection_cost / length + clients.training_cost
        total = math.sqrt(53 / 2 * (1 / cost).sum())
        np.testing.assert_allclose(held(clients, length, 53.0), 53 / total / (2 * cost), rtol=1e-12)
    assert held(clients, 3, 0.0).tolist() == [0.0] * 15


def test_first_buffers_are_trimmed_only_if_the_game_says_so() -> None:
    game = Game(clients=Clients.draw(4, initial_volume=1000.0), num_rounds=9)
    assert Periodic(game, 3, 1.0).size(0) == 1000
    trimmed = Periodic(game.replace(trim_start=True), 3, 1.0)
    assert [trimmed.size(k) for k in range(4)] == [int(v + 0.5) for v in first_volume(game.clients, 1.0)]
    assert trimmed.size(0) < 1000
    # With θ = 0 and no collection the game's own trimming solves the same problem in round 0.
    total = float(first_volume(game.clients, 1.0).sum())
    price = np.array([1.0 / total, 0.0])
    responded = total_response(game.clients, price, np.zeros(2), 0.0, trim_start=True)[0]
    assert responded == pytest.approx(total, rel=1e-9)


# Names and objects.


@pytest.mark.parametrize(
    "name",
    [
        *(
            "periodic-0",
            "periodic--1",
            "periodic",
            "periodic-1.5",
            "window-x",
            "window-0",
            "window-",
            "window-1e3",
        ),
        *(
            "fixed-1",
            "fixed--1-0.5",
            "fixed-1-2",
            "fixed-1-0.5-3",
            "fixed-nan-0.5",
            "fixed-1e999-0.5",
            "fixed-",
        ),
        *("algorithm1-x", "algorithm1--3", "windows-3", "age-prize", "Random"),
    ],
)
def test_names_that_are_wrong_are_refused_with_a_suggestion(name: str, dufl_command: Any) -> None:
    assert parse_name(name) is None
    with pytest.raises(InputError) as caught:
        Experiment(policy=name)
    assert caught.value.field == "policy"
    code, out, err = dufl_command("train", "--set", f"policy={name}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "such as '" in err or "did you mean '" in err


@pytest.mark.parametrize("name", [*ALL, "fixed-0-1", "fixed-1e-05-0.25", "fixed-3.-1", "window-999999999"])
def test_names_are_kept_in_files(name: str) -> None:
    experiment = Experiment(policy=name, baseline_payment=2.5)
    again = load(None, [f"policy={name}", "baseline_payment=2.5"])
    assert again.to_toml() == experiment.to_toml()
    assert "baseline_payment" not in Experiment(policy=name).to_toml()


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "'much'", "true"])
def test_baseline_payments_that_are_no_money_are_refused(value: str, dufl_command: Any) -> None:
    code, _, err = dufl_command("train", "--set", f"baseline_payment={value}")
    assert code == 2
    assert err.startswith("error: baseline_payment must be ")


def test_an_object_is_the_same_as_its_name() -> None:
    experiment = of("window-3", "baseline_payment=30")
    named = dufl.train(experiment)
    made = dufl.train(experiment, policy=Window(experiment.game, 3, 30.0))
    assert [facts(r) for r in made.records] == [facts(r) for r in named.records]


class Aged:
    """A user's own policy that asks for a discard rule."""

    discard = "oldest"

    def __init__(self, game: Game, seed: int) -> None:
        self.game = game

    def payment(self, round: int) -> float:
        return 1.0

    def size(self, client: int) -> int:
        return 30

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        return 20, 10

    def planned_staleness(self, round: int) -> float:
        return math.nan


def test_the_discard_rule_of_a_users_own_policy_is_followed() -> None:
    run = dufl.train(of("static"), policy=Aged)
    assert [record.mean_age for record in run.records[3:]] == [2.0] * (ROUNDS - 3)


def test_plans_of_algorithm1_are_those_of_the_loop() -> None:
    game = of("dufl").game.replace(conservation_range=(0.0, 1.0))
    direct = dufl.Algorithm1Options(search="direct")
    experiment = Experiment(game=game, policy="algorithm1", leader=dufl.Leader(search="direct"))
    loop = dufl.solve(game, method="algorithm1", algorithm1=direct)
    assert experiment.make_policy().payment(0) == loop.payment
    given = dufl.train(experiment, policy="algorithm1-12.5", training=dufl.Training(local_epochs=1)).plan
    fixed = dufl.solve(game.replace(payment_range=(12.5, 12.5)), method="algorithm1", algorithm1=direct)
    assert given is not None
    assert (given.payment, given.conservation_rate) == (12.5, fixed.conservation_rate)


# The schedule of a window.


@given(
    first=st.integers(0, 50),
    wanted=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    length=st.one_of(st.integers(1, 8), st.just(math.inf)),
    capacity=st.integers(0, 60),
    data=st.data(),
)
def test_a_schedule_keeps_its_books(
    first: int, wanted: list[int], length: float, capacity: int, data: st.DataObject
) -> None:
    there = data.draw(st.lists(st.integers(0, 20), min_size=len(wanted), max_size=len(wanted)))
    first = min(first, capacity)
    plan = schedule(first, wanted, there, length, capacity)
    assert (plan.size <= capacity).all()
    assert (plan.keep <= plan.size[:-1]).all()
    assert (plan.keep + plan.fresh <= capacity).all()
    arrived = np.minimum(plan.fresh, there)
    np.testing.assert_array_equal(plan.size[1:], plan.keep + arrived)
    if math.isinf(length):
        np.testing.assert_array_equal(plan.keep, plan.size[:-1])
    if capacity == 60 and first + sum(wanted) <= 60:
        np.testing.assert_array_equal(plan.fresh, wanted)
        for t in range(len(wanted)):
            joined = [first, *arrived[: t + 1].tolist()]
            assert plan.size[t + 1] == sum(joined[-int(min(length, 99)) :])


def test_rounding_is_unbiased() -> None:
    exact = np.random.default_rng(0).uniform(0, 3, 40)
    made = np.array([rounded(exact, seed, 0) for seed in range(2000)])
    assert np.abs(np.cumsum(made, axis=1) - np.cumsum(exact)).max() < 1
    assert np.abs(made.mean(axis=0) - exact).max() < 5 * 0.5 / math.sqrt(2000) * 2


def test_first_rounds_are_those_of_the_federation() -> None:
    """The buffers of `contents` are those of a real run."""
    experiment = of("window-3")
    federation, engine = federation_of(experiment, policy=experiment.make_policy())
    seen = contents(experiment)
    for t in range(ROUNDS):
        assert federation.play().volumes == [len(client) for client in seen[t]]
    engine.close()
