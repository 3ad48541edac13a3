"""A service on Flower in which everything fails: in the end every cent is accounted for.

Clients join, leave, crash and move to other nodes; replies get lost; the server is killed at random messages
and at random moments between what it writes.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

import service_process
from dufl.data.durable import DurableBuffer
from dufl.experiment.service import Unit
from dufl.flower import nodes
from dufl.flower.in_process import Answer, is_training
from dufl.flower.ledger import Claim, Entry, Ledger
from dufl.flower.payment import NO_REPLY
from dufl.flower.server_store import Round, ServerStore
from flower_service import ServiceGrid, ServiceRun, make_app, service_game

PER_ROUND = 4.5  # what the budget has for a round; clients are offered 5 and spend it before the last round


class KilledError(Exception):
    """The server is gone."""


class Chaos:
    """What fails when, and what was announced and claimed when a round was paid."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.calm = True  # until the first round is over
        self.happened: Counter[str] = Counter()
        self.paid: dict[int, tuple[float, list[Claim], dict[int, str]]] = {}
        self.errors: list[str] = []
        self.next_node = 5000
        self.next_client = 5

    def fails(self, what: str, chance: float) -> bool:
        happens = not self.calm and self.random.random() < chance
        self.happened[what] += happens
        return happens

    def meddle(self, client: int, message: Message, answer: Answer) -> Message | None:
        if self.fails("server killed before a message", 0.004):
            raise KilledError
        if self.fails("message lost", 0.006):
            return None
        if is_training(message) and self.fails("client crashed", 0.01):
            raise_in_client(client, message)
        reply = answer()
        if reply.has_error():
            self.errors.append(reply.error.reason or "")
        if self.fails("server killed before a reply", 0.004):
            raise KilledError
        return None if self.fails("reply lost", 0.006) else reply

    def move_clients(self, grid: ServiceGrid, most: int) -> None:
        """After a round: some clients join, leave, return or move."""
        here = sorted(grid.nodes.values())
        self.next_node += 1
        if len(here) < most and self.fails("client joined", 0.06):
            grid.move(self.next_client, self.next_node)
            self.next_client += 1
        elif len(here) > 3 and self.fails("client left", 0.05):
            grid.leave(self.random.choice(here))
        elif (gone := sorted(set(range(self.next_client)) - set(here))) and self.fails("returned", 0.1):
            grid.move(self.random.choice(gone), self.next_node)
        elif self.fails("client moved", 0.05):
            grid.move(self.random.choice(here), self.next_node)

    def watch_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Kill the server between what it writes, and note what every round is paid for."""
        for name in ("begin_negotiation", "save_deal", "add_results", "save_checkpoint"):
            monkeypatch.setattr(ServerStore, name, self.killing(name, getattr(ServerStore, name)))
        pay = Ledger.pay

        def paying(
            ledger: Ledger, round: int, payment: float, claims: Any, refused: Any, **others: Any
        ) -> list[Entry]:
            claims = list(claims)
            entries = pay(ledger, round, payment, claims, refused, **others)
            self.paid.setdefault(round, (payment, claims, dict(refused)))
            return entries

        monkeypatch.setattr(Ledger, "pay", self.killing("pay", paying))

    def killing(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*arguments: Any, **others: Any) -> Any:
            if self.fails(f"server killed before {name}", 0.006):
                raise KilledError
            result = write(*arguments, **others)
            if self.fails(f"server killed after {name}", 0.006):
                raise KilledError
            return result

        return written


def raise_in_client(client: int, message: Message) -> None:
    """Marks a message so that the client fails while it trains."""
    message.content["crash"] = message.content["config"]


def soak(
    folder: Path, rounds: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[ServiceRun, Chaos, list[Round]]:
    monkeypatch.setattr(nodes, "POLL", 0.01)
    chaos, seen = Chaos(seed), []
    chaos.watch_files(monkeypatch)

    def on_round_end(round: Round) -> None:
        seen.append(round)
        chaos.calm = False
        chaos.move_clients(grid, most=7)

    config = {"folder": str(folder / "clients"), "min-others": 1}
    grid = ServiceGrid(make_app(), 5, chaos.meddle, config)
    while True:
        run = ServiceRun(
            folder,
            service_game(window=16, clients=5),
            grid=grid,
            on_round_end=on_round_end,
            max_rounds=rounds,
            total_budget=PER_ROUND * rounds,
            arrival_timeout=0.2,
            replan_every=8,
        )
        try:
            run.start()
        except KilledError:
            grid.forget()
            continue
        return run, chaos, seen


def check_accounts(run: ServiceRun, chaos: Chaos, budget: float) -> int:
    """Every round is paid once, what was announced, to those whose updates were accepted."""
    with Ledger(run.folder / "server" / "ledger.sqlite") as ledger:
        ledger.check()
        entries, unit, total = ledger.entries(), ledger.unit, ledger.total()
        amounts = ledger.rounds()
    assert list(amounts) == list(range(len(amounts))) == sorted(chaos.paid)
    assert total == sum(amounts.values()) == sum(entry.owed for entry in entries)
    assert 0.99 * unit.count(budget) <= total <= unit.count(budget)
    for round, (payment, claims, refused) in chaos.paid.items():
        here = {entry.client: entry for entry in entries if entry.round == round}
        accepted = {claim.client: claim.volume for claim in claims if claim.client not in refused}
        assert set(here) == set(accepted) | set(refused)
        assert amounts[round] == (unit.count(payment) if accepted else 0)
        for client, entry in here.items():
            share = unit.count(payment) * accepted.get(client, 0) / max(sum(accepted.values()), 1)
            assert abs(entry.owed - share) < 1
            assert client in accepted or entry.owed == 0
    return len(amounts)


def check_clients(run: ServiceRun, seen: list[Round]) -> None:
    """Honest clients are never refused, and hold what they committed to."""
    for round in seen:
        assert not round.refused
        for claim in round.claims:
            at = round.round - round.deal.first_round
            assert claim.volume == claim.committed == round.deal.commitments[claim.client][at]
    check_buffers(run.folder / "clients")


def check_buffers(folder: Path) -> None:
    """Every client holds what its own plan says for the round that it is in."""
    for path in sorted(folder.glob("client-*.sqlite")):
        with DurableBuffer[Any].open(path) as buffer:
            plan = json.loads(buffer.recall("plan") or "null")
            if plan is not None:
                at = buffer.round + plan["joined"] - plan["first_round"]
                assert len(buffer) == plan["size"][at]


def check_windows(seen: list[Round], spent: dict[int, int], budget: float) -> None:
    """Never is more promised than there is: R can be paid in every round that a deal is run for."""
    unit = Unit()
    for round in {round.deal.first_round: round for round in reversed(seen)}.values():
        first = round.deal.first_round
        before = sum(units for t, units in spent.items() if t < first)
        promised = unit.count(round.deal.offer.payment) * min(8, len(spent) - first)
        assert promised <= unit.count(budget) - before


def check_all(folder: Path, rounds: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> Chaos:
    run, chaos, seen = soak(folder, rounds, seed, monkeypatch)
    chaos.calm = True
    over = check_accounts(run, chaos, PER_ROUND * rounds)
    check_clients(run, seen)
    with Ledger(folder / "server" / "ledger.sqlite") as ledger:
        check_windows(seen, ledger.rounds(), PER_ROUND * rounds)
    assert sorted({round.round for round in seen}) == list(range(over))
    assert 0.85 * rounds <= over <= rounds
    assert set(chaos.errors) <= {"crashed", ""}
    return chaos


def test_every_cent_of_a_hundred_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chaos = check_all(tmp_path, 100, 1, monkeypatch)
    happened = chaos.happened
    assert sum(count for what, count in happened.items() if what.startswith("server killed")) >= 3
    assert min(happened[what] for what in ("client joined", "client left", "reply lost")) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_every_cent_of_hundreds_of_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chaos = check_all(tmp_path, 400, seed, monkeypatch)
    assert sum(count for what, count in chaos.happened.items() if what.startswith("server killed")) >= 12


def rounds_paid(folder: Path) -> int:
    """How many rounds are in a ledger that another process writes to."""
    path = folder / "server" / "ledger.sqlite"
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM rounds").fetchone()[0])


@pytest.mark.slow
def test_every_cent_after_kill_9(tmp_path: Path) -> None:
    """Server and clients are one process here, which is killed for real, again and again."""
    rounds, budget, moments, kills = 120, 570.0, random.Random(4), 0
    command = [sys.executable, service_process.__file__, str(tmp_path), str(rounds), str(budget)]
    paths = os.pathsep.join([str(Path(service_process.__file__).parent), *sys.path])
    while True:
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths})
        after = rounds_paid(tmp_path) + moments.randint(1, 15)
        while process.poll() is None and rounds_paid(tmp_path) < after:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 1))  # somewhere in a round or in a negotiation
        if process.poll() is not None:
            assert process.returncode == 0
            break
        process.kill()
        process.wait()
        kills += 1
    assert kills >= 5
    with Ledger(tmp_path / "server" / "ledger.sqlite") as ledger:
        ledger.check()
        amounts, entries, unit = ledger.rounds(), ledger.entries(), ledger.unit
    assert list(amounts) == list(range(len(amounts)))
    assert len(amounts) >= 0.9 * rounds
    assert sum(amounts.values()) == sum(entry.owed for entry in entries) <= unit.count(budget)
    assert all(not entry.owed for entry in entries if entry.reason)
    assert {entry.reason for entry in entries} <= {"", NO_REPLY}  # honest clients are never refused
    assert ServerStore(tmp_path / "server").rounds_done == len(amounts)
    check_buffers(tmp_path / "clients")
