"""Clients that cheat with their data, in runs with real apps and messages: what they are paid, and when."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from dufl.errors import InputError
from dufl.experiment.metrics import read_metrics
from dufl.flower import app, messages
from dufl.flower.app import make_audit
from dufl.flower.attacks import ATTACKS
from dufl.flower.audit import Audit
from dufl.flower.in_process import Answer, Meddle, is_training
from dufl.flower.ledger import Entry
from dufl.flower.run_recorder import RunRecorder
from dufl.flower.strategy import DataUpdateStrategy
from dufl.game.parameters import Game
from dufl.learning.task import Task
from dufl.report.training_report import write_report
from flower_grid import Run

CHEAT = 3
EIGHT = (
    *("clients.count=8", "clients.initial_volume=100", "game.num_rounds=12", "training.local_epochs=10"),
    *("game.payment_range=[20, 20]",),
)


class Cheating:
    """Makes the training tasks of DUFL's client app; the cheat trains on something else than it claims."""

    def __init__(self, attack: str) -> None:
        self.attack = attack
        self.first: dict[int, Task] = {}

    def __call__(self, *values: Any) -> Task:
        task = Task(*values)
        if task.client != CHEAT:
            return task
        first = self.first.setdefault(CHEAT, task)
        return ATTACKS[self.attack](task, first, np.random.default_rng(task.round))


def echo(client: int, message: Message, answer: Answer) -> Message | None:
    reply = answer()
    if client == CHEAT and is_training(message):
        reply.content["arrays"] = message.content["arrays"]
    return reply


def run_of(folder: Path, *changes: str, attack: str = "none", meddle: Meddle | None = None) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "Task", Cheating(attack))  # copied with the client app
        run = Run(folder, *EIGHT, *changes, meddle=echo if attack == "echo" else meddle)
    run.start()
    return run


def held(entries: list[Entry]) -> dict[int, int]:
    """The first round in which anything was held back, by client."""
    first: dict[int, int] = {}
    for entry in entries:
        if entry.held:
            first.setdefault(entry.client, entry.round)
    return first


AUDITED = "service.payment_rule='audited'"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("honest"), AUDITED)


def test_honest_clients_are_paid_as_without_an_audit(honest: Run, tmp_path: Path) -> None:
    plain = run_of(tmp_path, "service.audit_share=0")
    unscored = [replace(entry, score=None, low=None, high=None) for entry in honest.entries()]
    assert unscored == plain.entries()
    assert all(entry.score is not None for entry in honest.entries())
    ours, theirs = (run.strategy._model["weights"] for run in (honest, plain))
    assert np.array_equal(ours, theirs)  # an audit does not change what is trained


@pytest.mark.parametrize(
    ("attack", "within"), [("shuffled labels", 11), ("duplicates", 6), ("echo", 0)], ids=str
)
def test_a_cheat_is_not_paid_while_it_brings_nothing(
    tmp_path: Path, honest: Run, attack: str, within: int
) -> None:
    run = run_of(tmp_path, AUDITED, attack=attack)
    entries = run.entries()
    first = held(entries)
    assert set(first) == {CHEAT}
    assert first[CHEAT] <= within
    for entry in entries:
        if entry.client == CHEAT and entry.round >= first[CHEAT]:
            assert (entry.owed, bool(entry.held), bool(entry.reason)) == (0, True, True)
    for t in range(12):
        paid = sum(entry.owed + entry.held for entry in entries if entry.round == t)
        assert paid == 2000
    others = [(e.round, e.client, e.owed) for e in entries if e.client != CHEAT]
    assert others == [(e.round, e.client, e.owed) for e in honest.entries() if e.client != CHEAT]


def test_what_was_held_back_is_released_when_the_client_recovers(tmp_path: Path, honest: Run) -> None:
    def once(client: int, message: Message, answer: Answer) -> Message | None:
        return echo(client, message, answer) if messages_round(message) in (0, 1) else answer()

    run = run_of(tmp_path, AUDITED, meddle=once)
    entries = [entry for entry in run.entries() if entry.client == CHEAT]
    assert [bool(entry.held) for entry in entries[:3]] == [True, True, False]
    assert entries[2].released == entries[0].held + entries[1].held
    paid = sum(entry.owed + entry.released for entry in entries)
    assert paid == sum(entry.owed for entry in honest.entries() if entry.client == CHEAT)


def messages_round(message: Message) -> int:
    return messages.round_of(message.content) if is_training(message) else -1


def recorded(run: Run, folder: Path) -> Path:
    """The run directory of a run."""
    recorder = RunRecorder(run.config, run.runtime.dataset, run.runtime.data, folder)
    recorder.begin()
    for round in run.rounds:
        recorder.add(round)
    engine = run.runtime.engine
    recorder.finish(engine.named(*engine.start))
    return folder


def test_the_report_shows_scores_and_what_was_held_back(tmp_path: Path) -> None:
    folder = recorded(run_of(tmp_path, AUDITED, attack="echo"), tmp_path / "recorded")
    page = write_report([folder]).path.read_text()
    assert "Audit: what updates bring" in page
    assert f"Payments of 1 client were held back: {CHEAT}." in page
    assert "it returned the model without training it" in page


def test_by_volume_cheats_are_paid_and_the_audit_is_on_record(tmp_path: Path) -> None:
    run = run_of(tmp_path, attack="duplicates")
    recorded(run, tmp_path / "recorded")
    entries = [entry for entry in run.entries() if entry.client == CHEAT]
    assert all(entry.owed and not entry.held for entry in entries)
    last = read_metrics(tmp_path / "recorded")[-1]
    assert last.held is None
    assert last.scores is not None
    assert last.scores[str(CHEAT)] == [entries[-1].score, entries[-1].low, entries[-1].high]
    assert min(last.scores, key=lambda client: last.scores[client][0]) == str(CHEAT)  # type: ignore[index]


def test_by_contribution_who_brings_more_is_paid_more(tmp_path: Path) -> None:
    run = run_of(tmp_path, "service.payment_rule='contribution'", attack="duplicates")
    last = [entry for entry in run.entries() if entry.round == 11]
    assert sum(entry.owed for entry in last) == 2000
    (cheat,) = [entry for entry in last if entry.client == CHEAT]
    assert cheat.owed == 0
    assert cheat.reason
    quality = {entry.client: entry.owed / entry.claimed for entry in last if entry.client != CHEAT}
    scores = {entry.client: entry.score or 0.0 for entry in last}
    assert sorted(quality, key=quality.__getitem__) == sorted(quality, key=scores.__getitem__)


def test_a_restart_changes_neither_scores_nor_payments(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    whole = run_of(tmp_path / "whole", AUDITED, attack="duplicates")

    def killed(client: int, message: Message, answer: Answer) -> Message | None:
        if messages_round(message) == 7:
            raise KilledError
        return answer()

    with pytest.raises(KilledError):
        run_of(tmp_path / "resumed", AUDITED, attack="duplicates", meddle=killed)
    resumed = run_of(tmp_path / "resumed", AUDITED, attack="duplicates")
    assert resumed.entries() == whole.entries()
    assert held(resumed.entries())


def test_rules_that_need_an_audit_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        DataUpdateStrategy(FedAvg(), Game(), tmp_path, payment_rule="audited")
    assert raised.value.field == "payment_rule"
    with pytest.raises(InputError) as raised:
        DataUpdateStrategy(FedAvg(), Game(), tmp_path, payment_rule="contribution", audit=Audit())
    assert raised.value.field == "audit"


def test_the_audit_uses_samples_of_classes_that_have_arrived(honest: Run) -> None:
    data = honest.runtime.data
    known = {int(label) for label in data.test.labels[data.recent_test(0, 50)]}
    assert known == set(data.arrival.classes(0).tolist())  # type: ignore[attr-defined]
    assert len(data.recent_test(0, 50)) == 50
    assert len(known) < len({*data.test.labels.tolist()})
    assert make_audit(honest.runtime).measures_influence
