"""`make bench`: measures how fast the game is solved.

This is not a test: it prints measurements next to the project's targets.
"""

import os
import platform
import resource
import time
from collections.abc import Callable
from typing import Any

import clarabel
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy import sparse

import dufl
from dufl.game.client import total_response

Array = npt.NDArray[np.float64]
ROUNDS = 100


def best_of(work: Callable[[], Any], seconds: float = 1.5) -> float:
    """The shortest of many runs: the time that the work takes when nothing else runs."""
    work()
    times: list[float] = []
    while not times or (sum(times) < seconds and len(times) < 1000):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def game_of(count: int, num_rounds: int = ROUNDS) -> dufl.Game:
    """The paper's game for `count` clients, with γ and the range of R scaled to this number."""
    return dufl.Game(
        clients=dufl.Clients.draw(count),
        num_rounds=num_rounds,
        payment_weight=1e-4 * 15 / count,
        payment_range=(0.0, 500.0 * count / 15),
    )


def pass_of(clients: dufl.Clients, num_rounds: int = ROUNDS) -> Callable[[], Array]:
    """One best-response pass at the price of the paper's optimum."""
    price, nothing = np.full(num_rounds, 63.18 / (15 * 100)), np.zeros(num_rounds)
    return lambda: total_response(clients, price, nothing, 0.52)


def passes(console: Console) -> float:
    """Best-response passes by N and T; returns the seconds of one pass with 10⁶ clients."""
    table = Table("clients N", "rounds T", "ms per pass", "ns per client-round", title="A best-response pass")
    last = 0.0
    sizes = [(n, ROUNDS) for n in (15, 1_000, 100_000, 1_000_000)]
    for count, rounds in [*sizes, *((10_000, t) for t in (50, 100, 200, 400, 800))]:
        took = best_of(pass_of(dufl.Clients.draw(count), rounds), 4.0 if count == 1_000_000 else 1.5)
        last = took if count == 1_000_000 else last
        table.add_row(f"{count:,}", str(rounds), f"{1e3 * took:.3f}", f"{1e9 * took / count / rounds:.2f}")
    console.print(table)
    console.print(f"target: at most 8 ns per client-round at 10⁶ clients, got {1e9 * last / 1e8:.2f}\n")
    return last


def qp_solver(price: Array, alpha: float, beta: float, theta: float) -> Callable[[], Any]:
    """One client's problem for Clarabel, in its sparse form: volumes and collections as variables."""
    rounds = price.size
    cost = sparse.diags([2 * beta] * rounds + [2 * alpha] * rounds, format="csc")
    gain = np.concatenate([-price, np.zeros(rounds)])
    # D(0) = 1000 and D(t+1) − θ·D(t) − Δ(t) = 0, then −Δ <= 0
    law = sparse.eye(rounds) - theta * sparse.eye(rounds, k=-1)
    collect = -sparse.eye(rounds, k=-1)
    nothing = sparse.csc_matrix((rounds, rounds))
    rows = sparse.bmat([[law, collect], [nothing, -sparse.eye(rounds)]], format="csc")
    right = np.zeros(2 * rounds)
    right[0] = 1000.0
    cones = [clarabel.ZeroConeT(rounds), clarabel.NonnegativeConeT(rounds)]
    options = clarabel.DefaultSettings()
    options.verbose = False
    return lambda: clarabel.DefaultSolver(cost, gain, rows, right, cones, options).solve()


def literal_pass(clients: dufl.Clients, price: Array, theta: float) -> Array:
    """Algorithm 1's two loops as written, with D of the last iteration; one NumPy operation per round."""
    rounds = price.size
    held = np.zeros((rounds, clients.size))
    powers = theta ** np.arange(rounds)
    for k in range(clients.size):
        before = np.full(rounds, 1000.0) * powers
        for _ in range(30):  # the formula is implicit: iterate it
            volumes = np.empty(rounds)
            volumes[0] = 1000.0
            for t in range(rounds - 1):
                margin = price[t + 1 :] - 2 * clients.training_cost[k] * before[t + 1 :]
                worth = powers[: rounds - t - 1] @ margin
                volumes[t + 1] = theta * volumes[t] + max(worth / (2 * clients.collection_cost[k]), 0)
            if np.abs(volumes - before).max() <= 1e-6 * volumes.max():
                break
            before = volumes
        held[:, k] = volumes
    return held


def baselines(console: Console) -> None:
    """The time per client of DUFL and of other methods for the same problem."""
    clients, theta = dufl.Clients.draw(15), 0.52
    price = np.full(ROUNDS, 63.18 / (15 * 100))
    solvers = [
        qp_solver(price, float(a), float(b), theta)
        for a, b in zip(clients.collection_cost, clients.training_cost, strict=True)
    ]
    many = dufl.Clients.draw(100_000)
    ours = best_of(pass_of(many)) / many.size
    few = best_of(pass_of(clients)) / clients.size
    qp = best_of(lambda: [solve() for solve in solvers]) / clients.size
    literal = best_of(lambda: literal_pass(clients, price, theta)) / clients.size
    table = Table("method", "µs per client", "times DUFL", title=f"One client's best response, T = {ROUNDS}")
    for name, took in (
        ("DUFL, among 100,000 clients", ours),
        ("DUFL, among 15 clients", few),
        ("Clarabel (sparse QP)", qp),
        ("Algorithm 1 literally, in NumPy loops", literal),
    ):
        table.add_row(name, f"{1e6 * took:.2f}", f"{took / ours:,.0f}")
    console.print(table)
    console.print(f"target: at least 1,000 times faster than the QP solver, got {qp / ours:,.0f}\n")


def whole(console: Console, one_pass: float) -> None:
    """`solve` and `certify` for few and for many clients."""
    game = game_of(15)
    small = best_of(lambda: dufl.solve(game), 3.0)
    plan = dufl.solve(game)
    proof = best_of(lambda: dufl.certify(plan))
    console.print(f"solve at N = 15: {small:.3f} s (target: under 0.3), certify {1e3 * proof:.1f} ms")
    begin = time.perf_counter()
    large = game_of(1_000_000)
    drawn = time.perf_counter()
    plan = dufl.solve(large)
    solved = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(
        f"solve at N = 10⁶: {solved - drawn:.1f} s = {(solved - drawn) / one_pass:.1f} passes "
        f"(target: 40), {memory:.2f} GiB peak memory (target: 1.5), residual "
        f"{plan.equilibrium.residual:.1e} (target: 1e-6) after {plan.equilibrium.passes} passes over all; "
        f"drawing the clients took {drawn - begin:.1f} s"
    )
    certificate = dufl.certify(plan)
    console.print(
        f"certify at N = 10⁶: {time.perf_counter() - solved:.1f} s, largest gain "
        f"{certificate.deviation_gain:.1e}, with known influence {certificate.influence:.1e}, "
        f"holds: {certificate.holds()}"
    )


def main() -> None:
    """Print all measurements."""
    console = Console(width=110)
    console.print(f"dufl {dufl.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
    one_pass = passes(console)
    baselines(console)
    whole(console, one_pass)


if __name__ == "__main__":
    main()
