"""The ledger: no money is made or lost, nobody is paid twice or too much, and a kill leaves whole rounds."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.flower.ledger import Claim, Ledger, shares
from dufl.flower.ledger_tables import ledger_summary

volumes = st.lists(st.integers(0, 10**6), min_size=1, max_size=40)


def claim(client: int, committed: int, volume: int) -> Claim:
    return Claim(client, volume, committed, mean_age=1.0, classes=1)


@given(volumes, st.integers(0, 10**8))
def test_shares_add_up_to_the_unit(held: list[int], units: int) -> None:
    entries = shares(3, units, [claim(k, volume, volume) for k, volume in enumerate(held)])
    paid = sum(entry.owed for entry in entries)
    assert paid == (units if any(held) else 0)
    for entry, volume in zip(entries, held, strict=True):
        fair = units * volume / max(sum(held), 1)
        assert fair - 1 < entry.owed < fair + 1


def test_who_claims_more_than_agreed_gets_nothing() -> None:
    claims = [
        claim(0, 100, 100),
        claim(1, 100, 101),
        claim(2, 100, 50),
        claim(3, 100, 100),
    ]
    entries = shares(0, 3000, claims, {3: "infinite weights", 4: "no reply"})
    assert [entry.owed for entry in entries] == [2000, 0, 1000, 0, 0]
    assert [entry.claimed for entry in entries] == [100, 101, 50, 100, 0]
    assert [entry.reason for entry in entries] == [
        "",
        "claimed 101 samples, committed to 100",
        "",
        "infinite weights",
        "no reply",
    ]


def test_nobody_to_pay() -> None:
    assert [entry.owed for entry in shares(0, 3000, [claim(0, 10, 11)])] == [0]
    assert shares(0, 3000, []) == []


def test_a_round_is_paid_once(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        first = ledger.pay(0, 63.18, [claim(0, 10, 10), claim(1, 20, 20)])
        assert ledger.pay(0, 500.0, [claim(0, 10, 10)]) == first
        ledger.pay(1, 63.18, [claim(0, 10, 10)])
    with Ledger(tmp_path / "ledger.sqlite") as again:
        assert again.rounds() == {0: 6318, 1: 6318}
        assert [entry.owed for entry in again.entries()] == [2106, 4212, 6318]
        again.check()


def test_a_client_is_there_once() -> None:
    with pytest.raises(InputError) as caught:
        shares(0, 100, [claim(0, 1, 1), claim(0, 1, 1)])
    assert (caught.value.field, caught.value.value) == ("claims", [0, 0])


KILLED = """
import sys
from dufl.flower.ledger import Claim, Ledger
ledger = Ledger(sys.argv[1])
print("open", flush=True)
for round in range(10**6):
    ledger.pay(round, 63.18, [Claim(k, 10, 10, 1.0, 1) for k in range(15)])
    print(round, flush=True)
"""


def test_a_kill_leaves_whole_rounds(tmp_path: Path) -> None:
    path, done = tmp_path / "ledger.sqlite", 0
    for more in (3, 5, 9):  # each program writes on where the last was killed
        command = [sys.executable, "-c", KILLED, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip().isdigit() and int(line) >= done + more:
                    break
            process.kill()
        with Ledger(path) as ledger:
            rounds = ledger.rounds()
            assert list(rounds) == list(range(len(rounds)))
            assert len(rounds) > done + more
            assert set(rounds.values()) == {6318}
            ledger.check()
            done = len(rounds)


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as writer, Ledger(tmp_path / "ledger.sqlite") as reader:
        writer.pay(0, 1.0, [claim(0, 1, 1)])
        assert reader.rounds() == {0: 100}


def test_shares_that_were_tampered_with_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.pay(0, 1.0, [claim(0, 1, 1)])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entries SET owed = 200")
    with Ledger(path) as ledger, pytest.raises(InputError, match="round 0 must be as it was written"):
        ledger.check()


@pytest.mark.parametrize("content", [b"", b"round,client\n", b"SQLite format 3\0" + b"\0" * 200])
def test_other_files_are_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match="must be a ledger"):
        Ledger(path)
    assert path.read_bytes() == content


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be in a folder that exists"):
        Ledger(tmp_path / "nowhere" / "ledger.sqlite")


def test_the_command_shows_who_is_owed_what(tmp_path: Path, dufl_command: Any) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.pay(0, 63.18, [claim(0, 10, 10), claim(1, 20, 20)])
        ledger.pay(1, 63.18, [claim(0, 10, 10), claim(1, 20, 21)])
    code, out, err = dufl_command("ledger", "show", str(path), "--csv", str(tmp_path / "entries.csv"))
    assert (code, err) == (0, "")
    assert "Owed for 2 of 2 rounds: 126.36" in out
    assert "84.24" in out
    assert "claimed 21 samples, committed to 20" in out
    lines = (tmp_path / "entries.csv").read_text().splitlines()
    assert lines[0] == "round,client,committed,claimed,owed,held,released,reason,score,low,high"
    assert lines[2] == "0,1,20,20,42.12,0.00,0.00,,,,"
    assert lines[4] == '1,1,20,21,0.00,0.00,0.00,"claimed 21 samples, committed to 20",,,'
    code, out, _ = dufl_command("ledger", "show", str(path), "--json")
    found = json.loads(out)
    assert [row["units"] for row in found["clients"]] == [8424, 4212]
    assert found["refused"] == [
        {"round": 1, "client": 1, "held": 0, "reason": "claimed 21 samples, committed to 20"}
    ]


@given(st.lists(st.tuples(st.floats(0, 0.1), volumes), min_size=1, max_size=6))
def test_totals_agree_with_each_other(rounds: list[tuple[float, list[int]]]) -> None:
    """A round is paid if something is owed for it, for a client as for all; also if R is 0 or a share is."""
    entries = [
        entry
        for t, (payment, held) in enumerate(rounds)
        for entry in shares(
            t, Unit().count(payment), [claim(k, volume, volume) for k, volume in enumerate(held)]
        )
    ]
    summary = ledger_summary(entries)
    paid = [row["rounds_paid"] for row in summary["clients"]]
    assert max(paid) <= summary["rounds_paid"] <= min(sum(paid), summary["rounds_recorded"])
    assert summary["rounds_recorded"] == len(rounds)
    for row in summary["clients"]:
        assert (row["units"] > 0) == (row["rounds_paid"] > 0) == (row["samples_paid"] > 0)
        assert row["units"] >= row["rounds_paid"]
    assert sum(row["units"] for row in summary["clients"]) == summary["units"]


def test_rounds_without_payment_are_not_paid(tmp_path: Path, dufl_command: Any) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        for t, payment in enumerate([0.0, 1.0, 0.0]):
            ledger.pay(t, payment, [claim(0, 10, 10), claim(1, 30, 30)])
    code, out, err = dufl_command("ledger", "show", str(path))
    assert (code, err) == (0, "")
    assert "Owed for 1 of 3 rounds: 1.00" in out
    assert [line.split("│")[1:4] for line in out.splitlines() if line.startswith("│")] == [
        ["      0 ", "           1 ", "           10 "],
        ["      1 ", "           1 ", "           30 "],
    ]
    found = json.loads(dufl_command("ledger", "show", str(path), "--json")[1])
    assert (found["rounds_paid"], found["rounds_recorded"], found["units"]) == (1, 3, 100)
    assert [row["rounds_paid"] for row in found["clients"]] == [1, 1]


def test_the_command_refuses_what_is_no_ledger(tmp_path: Path, dufl_command: Any) -> None:
    code, _, err = dufl_command("ledger", "show", str(tmp_path / "nothing.sqlite"))
    assert (code, err.splitlines()) == (
        2,
        [f"error: FILE must be a ledger that exists, got {tmp_path / 'nothing.sqlite'}"],
    )
    assert not list(tmp_path.iterdir())
