"""Plans: what they carry, that they repeat, and a population too large to look at one by one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl import (
    Algorithm1Options,
    CapacityError,
    CertificateError,
    Clients,
    Game,
    InputError,
    NegativeUtilityWarning,
    certify,
    equilibrium,
    solve,
)
from dufl.experiment.files import from_json, replacing, to_json
from dufl.game.threads import CHUNK
from dufl.game.utility import client_utility


def test_the_plan_is_consistent() -> None:
    plan = solve()
    game = plan.game
    np.testing.assert_allclose(plan.volume.sum(axis=1), plan.total_volume, rtol=1e-12)
    weighted = (plan.volume * plan.staleness).sum(axis=1) / plan.total_volume
    np.testing.assert_allclose(weighted, plan.mean_staleness, rtol=1e-9)
    outcome = plan.outcomes
    utility = client_utility(game.clients, plan.payment, plan.volume, plan.collection, plan.total_volume)
    np.testing.assert_allclose(outcome.utility, utility)
    assert outcome.payment.sum() == pytest.approx(plan.total_payment)
    assert plan.cost_by_term.payment.sum() == pytest.approx(game.payment_weight * plan.total_payment)


@pytest.mark.parametrize("count", [5, 15, 45])
def test_the_optimal_strategy_beats_random_and_zero(count: int) -> None:
    plan = solve(Game(clients=Clients.draw(count, 0)))
    outcome = plan.outcomes
    assert (outcome.utility > outcome.random_utility).all()
    assert (outcome.utility > outcome.zero_utility).all()


def test_same_input_same_bits() -> None:
    one, two = solve(), solve()
    assert (one.payment, one.conservation_rate) == (two.payment, two.conservation_rate)
    np.testing.assert_array_equal(one.volume, two.volume)
    options = Algorithm1Options(max_iterations=2, seed=4)
    paper = [solve(method="algorithm1", algorithm1=options).payment for _ in range(2)]
    assert paper[0] == paper[1]


def test_planning_again_in_mid_course() -> None:
    """From any round on, the rest of a plan is the plan of the rest, given its volumes and ages."""
    game = Game(num_rounds=40)
    whole = equilibrium(game, payment=60.0, conservation_rate=0.6)
    clients = game.clients
    rest = Game(
        num_rounds=25,
        clients=Clients(
            whole.volume[15],
            clients.collection_cost,
            clients.training_cost,
            initial_staleness=whole.staleness[15],
        ),
    )
    later = equilibrium(rest, payment=60.0, conservation_rate=0.6)
    np.testing.assert_allclose(later.volume, whole.volume[15:], rtol=1e-7)
    np.testing.assert_allclose(later.staleness, whole.staleness[15:], rtol=1e-7)
    np.testing.assert_allclose(later.mean_staleness, whole.mean_staleness[15:], rtol=1e-7)


def test_capacity_is_kept() -> None:
    tight = Game(clients=Clients([5.0, 9.0], 1e-3, 1e-5, capacity=[20.0, 10.0]), num_rounds=4)
    assert (equilibrium(tight, payment=50.0, conservation_rate=0.9).volume <= [20.0, 10.0]).all()
    with pytest.raises(CapacityError) as caught:
        equilibrium(
            Game(clients=Clients([5.0, 10.0], 1e-3, 1e-5, capacity=[20.0, 9.0]), num_rounds=4),
            payment=0.0,
            conservation_rate=0.5,
        )
    assert (caught.value.field, caught.value.value) == ("initial_volume", 10.0)
    roomy = Game(clients=Clients.draw(15, 0, capacity=1000.0))
    assert solve(roomy).volume.max() <= 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "oracle"}, "method must be one of 'stackelberg' or 'algorithm1', got 'oracle'"),
        ({"competition": "none"}, "competition must be one of 'mean-field' or 'nash', got 'none'"),
    ],
)
def test_bad_methods(change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        solve(**change)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_bad_offers() -> None:
    with pytest.raises(InputError, match=r"conservation_rate must be in \[0, 1\], got 1.3"):
        equilibrium(payment=1.0, conservation_rate=1.3)
    with pytest.raises(InputError, match="payment must be >= 0, got -2"):
        equilibrium(payment=-2.0, conservation_rate=0.3)


def test_numpy_numbers_are_numbers() -> None:
    numbers: dict[str, Any] = {"num_rounds": np.int64(7), "time_sensitivity": np.float32(0.5)}
    game = Game(**numbers)
    assert (game.num_rounds, game.time_sensitivity) == (7, 0.5)
    plan = equilibrium(game, payment=np.float64(3), conservation_rate=np.float64(0.5))
    assert plan.volume.shape == (7, 15)


def large_game(count: int) -> Game:
    """The paper's game for many clients, scaled so that the optimum stays where it is."""
    return Game(
        clients=Clients.draw(count, 0),
        payment_weight=1e-4 * 15 / count,
        payment_range=(0.0, 500.0 * count / 15),
    )


def test_many_clients_are_solved_and_certified_without_keeping_trajectories() -> None:
    count = 3 * CHUNK + 100
    plan = solve(large_game(count))
    assert "_trajectories" not in plan.__dict__
    assert plan.equilibrium.residual <= 1e-9
    assert plan.equilibrium.passes <= 6
    certificate = certify(plan)
    assert certificate.holds(1e-8)
    assert certificate.fixed_gain.shape == (count,)
    assert certificate.influence < 1e-6
    assert plan.outcomes.utility.shape == (count,)
    assert "_trajectories" not in plan.__dict__
    assert 50 < plan.payment * 15 / count < 55


DIGEST = """
import hashlib, os
import numpy as np
os.cpu_count = lambda: {threads}
from dufl import Clients, Game, Uniform, certify, solve
volumes, ages = Uniform(low=10, high=2000), Uniform(low=1, high=3)
clients = Clients.draw(30_000, initial_volume=volumes, initial_staleness=ages)
plan = solve(Game(clients=clients, num_rounds=40, payment_weight=5e-8, payment_range=(0, 1e6)))
proof = certify(plan)
parts = [plan.payment, plan.conservation_rate, clients.initial_total, clients.initial_mean_staleness]
parts += [plan.total_volume, plan.mean_staleness, plan.outcomes.utility, plan.outcomes.random_utility]
parts += [proof.kkt_residual, proof.fixed_gain, proof.influence_gain, proof.turnover]
parts += [proof.equilibrium_residual]
print(hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts)).hexdigest())
"""


def test_plan_and_certificate_have_the_same_bits_on_any_number_of_cores() -> None:
    """Threads of our own and of the linear algebra library: one, two, or three."""
    digests = set()
    for threads in (1, 2, 3):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        done = subprocess.run(
            [sys.executable, "-c", DIGEST.format(threads=threads)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | dict.fromkeys(names, str(threads)),
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


THREADS = """
from threadpoolctl import threadpool_info
from dufl.game.search import FINE, Choice, Square, minimize

def cost(payment, rate, tolerance):
    if tolerance == FINE:
        used.append({pool["filepath"]: pool["num_threads"] for pool in threadpool_info()})
    return (payment - 3) ** 2 + (rate - 0.5) ** 2 + payment

used = []
minimize(cost, Square((0, 10), (0, 1)), Choice(1, 1, cost(1, 1, 0), 1), 1.0)
print(len(used), min(map(len, used)), max(max(pools.values()) for pools in used))
"""


def test_the_search_runs_linear_algebra_on_one_thread() -> None:
    """Also that of SciPy, which has a library of its own: on systems this small, threads only wait."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2"),
    )
    evaluations, libraries, threads = map(int, done.stdout.split())
    assert evaluations > 10
    assert libraries >= 1
    assert threads == 1


@pytest.mark.slow
def test_a_million_clients() -> None:
    plan = solve(large_game(1_000_000))
    assert plan.equilibrium.residual <= 1e-6
    certificate = certify(plan)
    assert certificate.holds(1e-6)
    assert certificate.deviation_gain <= 1e-8


def interrupted_write(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        interrupted_write(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]


def test_json_without_infinity() -> None:
    inf, nan = float("inf"), float("nan")
    value = {"a": [inf, -inf, 1.5], "b": {"c": inf, "d": -inf, "e": nan}, "f": [{"g": inf}], "h": [[inf]]}
    written = json.loads(to_json(value), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert written == {
        "a": [None, None, 1.5],
        "a_infinite": [0],
        "a_minus_infinite": [1],
        "b": {"c": None, "c_infinite": True, "d": None, "d_minus_infinite": True, "e": None},
        "f": [{"g": None, "g_infinite": True}],
        "h": [[None]],
    }
    back = from_json(to_json(value))
    assert back == value | {"b": {"c": inf, "d": -inf, "e": None}, "h": [[None]]}
    assert "1e999" not in to_json(value)


REFUSED: dict[str, Any] = {"collection_cost": [1e-12, 1e12, 1e12], "training_cost": [1e-13, 1e11, 1e11]}
ROUNDS = 600  # too many for Newton's equations: where the equilibrium is this hard to find, it is not found


def test_an_equilibrium_that_the_certificate_refuses_is_an_error() -> None:
    game = Game(clients=Clients(1000.0, **REFUSED), num_rounds=ROUNDS)
    with pytest.raises(CertificateError, match="refuses the equilibrium for payment 50"):
        equilibrium(game, payment=50.0, conservation_rate=0.0, competition="nash")
    with pytest.raises(CertificateError):
        solve(
            game.replace(payment_range=(50.0, 50.0), conservation_range=(0.0, 0.0)),
            competition="nash",
        )


def test_a_refused_equilibrium_has_an_exit_code_of_its_own(
    dufl_command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    changes = [f"clients.{name}={values}" for name, values in REFUSED.items()]
    changes += ["clients.count=3", f"num_rounds={ROUNDS}", "competition=nash"]
    told = [part for change in changes for part in ("--set", change)]
    offer = ("--payment", "50", "--conservation-rate", "0")
    code, out, err = dufl_command("plan", *told, *offer, "--out", str(tmp_path / "plan"))
    assert code == 3
    assert out == ""
    assert err.startswith("error: the certificate refuses the equilibrium")
    assert not (tmp_path / "plan").exists()


def test_clients_that_would_rather_stay_away_are_announced(
    dufl_command: Callable[..., tuple[int, str, str]],
) -> None:
    """Holding large first buffers costs more than a small share of the payment brings."""
    clients = Clients([10.0, 5000.0, 5000.0], 5e-4, 2e-5)
    with pytest.warns(NegativeUtilityWarning, match="2 of 3 clients have negative utility"):
        plan = solve(Game(clients=clients, num_rounds=20, payment_range=(1.0, 5.0)))
    assert (plan.outcomes.utility < 0).tolist() == [False, True, True]
    np.testing.assert_allclose(plan.certificate.utility, plan.outcomes.utility, rtol=1e-9)
    changes = ["clients.count=3", "initial_volume=[10,5000,5000]", "collection_cost=5e-4"]
    changes += ["training_cost=2e-5", "num_rounds=20", "payment_range=[1,5]"]
    told = [part for change in changes for part in ("--set", change)]
    code, out, err = dufl_command("plan", "--json", *told)
    assert code == 0
    assert json.loads(out)["losing_clients"] == 2
    assert err == ""


def test_nobody_loses_at_the_paper_s_defaults(recwarn: pytest.WarningsRecorder) -> None:
    assert solve().certificate.losing_clients == 0
    assert not [one for one in recwarn if issubclass(one.category, NegativeUtilityWarning)]


def test_a_plan_shows_itself_in_a_line() -> None:
    plan = solve(Game(num_rounds=20))
    assert repr(plan) == str(plan)
    assert repr(plan).startswith(f"Plan(payment={plan.payment:.6g}, conservation_rate=")
    assert "array" not in repr(plan)
    assert len(repr(plan)) < 250


HUGE = 10**400


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_noise": 1e308},
        {"time_sensitivity": 1e308},
        {"num_rounds": 2**63},
        {"num_rounds": HUGE},
        {"sampling_noise": HUGE},
        {"payment_range": (0.0, 1e308)},
        {"payment_range": (0, HUGE)},
        {"decay": 1e-300},
    ],
    ids=lambda change: f"{change!s:.40}",
)
def test_numbers_whose_squares_would_overflow_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(change))}"):
        Game(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 2**63},
        {"count": 10**10},
        {"initial_volume": 1e308},
        {"initial_volume": HUGE},
        {"collection_cost": 1e-300},
        {"initial_staleness": 1e10},
        {"training_cost": [1e300] * 15},
    ],
    ids=lambda change: f"{change!s:.40}",
)
def test_clients_whose_costs_would_overflow_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(change))}"):
        Clients.draw(**change)


LIMITS: list[dict[str, Any]] = [
    {"sampling_noise": 1e50, "time_sensitivity": 1e50},
    {"clients": Clients(1e50, 1e50, 1e50, count=3)},
    {"clients": Clients(1e-50, 1e-50, 0.0, count=3)},
    {"clients": Clients(1.0, 1e-50, 1e-50, count=3), "payment_range": (1e50, 1e50)},
]


@pytest.mark.parametrize("change", LIMITS, ids=str)
def test_the_largest_numbers_are_planned_with_or_refused(change: dict[str, Any]) -> None:
    """No overflow on the way, and no cost that is not a number."""
    try:
        plan = solve(Game(num_rounds=6, **change))
    except CertificateError:
        return
    assert np.isfinite(plan.server_cost)
    assert plan.certificate.holds()


@pytest.mark.parametrize("volume", [5e-324, 1e-308, 1e-101])
def test_a_volume_whose_inverse_could_overflow_counts_as_nothing(volume: float) -> None:
    assert Clients([1.0, volume], 1e-3, 1e-5).initial_volume.tolist() == [1.0, 0.0]
    with pytest.raises(InputError) as caught:  # with no data at all there is nothing to train on
        Clients.draw(3, initial_volume=volume)
    assert caught.value.field == "initial_volume"


def test_the_smallest_volume_can_be_planned_for() -> None:
    clients = Clients.draw(3, initial_volume=1e-100)
    assert solve(Game(clients=clients, num_rounds=3)).converged
