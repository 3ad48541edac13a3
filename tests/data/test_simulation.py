"""Streams, whole plans and buffers together: same seed, same data, in any order and after any stop."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dufl.data.ageing import Ageing
from dufl.data.arrival import Arrival
from dufl.data.buffer import Buffer, MemoryBuffer
from dufl.data.collector import Collector
from dufl.data.durable import DurableBuffer
from dufl.data.integer_plan import IntegerPlan, integer_plan
from dufl.data.samples import Samples
from dufl.data.streams import BEFORE, SimulatedStream
from dufl.game.plan import equilibrium

ROUNDS, CLIENTS, SEED = 12, 6, 3
AGEING = Ageing(time_sensitivity=1.25, num_rounds=ROUNDS)
PLAN = equilibrium(payment=60.0, conservation_rate=0.6)


def stream_of(client: int) -> SimulatedStream:
    generator = np.random.default_rng(0)
    pool = Samples(generator.integers(0, 256, (900, 1, 6, 6), dtype=np.uint8), np.arange(900) % 10)
    arrival = Arrival(num_classes=10, time_sensitivity=1.25, num_rounds=ROUNDS)
    return SimulatedStream(pool=pool, client=client, seed=SEED, arrival=arrival, dirichlet_alpha=1.0)


def whole_plan_of(client: int) -> IntegerPlan:
    return integer_plan(PLAN.volume[:ROUNDS, client] / 10, 0.6, SEED, client)


def run(client: int, buffer: Buffer[Samples], until: int) -> str:
    """Advance to a round, collecting in the background; a digest of what training would see."""
    stream, plan = stream_of(client), whole_plan_of(client)
    collector = Collector(stream, stream.pool)
    while buffer.round < until:
        keep, count = plan.step(buffer.round, len(buffer))
        collector.start(count, buffer.round)
        buffer.advance(keep, collector.finish().samples)
    snapshot = buffer.snapshot()
    features = snapshot.to_float(AGEING, SEED, client)
    return hashlib.sha256(features.tobytes() + snapshot.samples.labels.tobytes()).hexdigest()


def fresh_buffer(client: int) -> MemoryBuffer[Samples]:
    first = stream_of(client).collect(int(whole_plan_of(client).size[0]), BEFORE)
    return MemoryBuffer(first, seed=SEED, client=client)


def test_one_worker_or_two() -> None:
    def work(client: int) -> str:
        return run(client, fresh_buffer(client), ROUNDS - 1)

    alone = [work(client) for client in range(CLIENTS)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(work, reversed(range(CLIENTS))))[::-1]
    assert alone == together
    assert len(set(alone)) == CLIENTS


@pytest.mark.parametrize("stop", [1, 5, 10])
def test_stopped_and_resumed(tmp_path: Path, stop: int) -> None:
    whole = run(0, fresh_buffer(0), ROUNDS - 1)
    first = stream_of(0).collect(int(whole_plan_of(0).size[0]), BEFORE)
    with DurableBuffer.create(tmp_path / "b.db", first, seed=SEED) as buffer:
        run(0, buffer, stop)
    with DurableBuffer.open(tmp_path / "b.db") as buffer:
        assert buffer.round == stop
        assert run(0, buffer, ROUNDS - 1) == whole


def test_sizes_and_classes_follow_the_plan() -> None:
    plan, buffer = whole_plan_of(2), fresh_buffer(2)
    seen = []
    for t in range(ROUNDS):
        run(2, buffer, t)
        assert len(buffer) == plan.size[t]
        seen.append(set(buffer.snapshot().samples.labels.tolist()))
    assert seen[0] <= set(range(6))
    assert max(seen[-1]) > 5
