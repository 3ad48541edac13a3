"""The file of a ledger: used by many at once, backed up while it is written, and never half-written."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.flower.ledger import Claim, Ledger, Score

WORSE = {1: Score(-0.1, -0.2, -0.05, "makes the model worse"), 0: Score(0.25, 0.125, 0.5)}


def claims(*volumes: int) -> list[Claim]:
    return [Claim(client, volume, volume, 1.0, 1) for client, volume in enumerate(volumes)]


def audited(path: Path, unit: str = "0.01 EUR") -> Path:
    with Ledger(path, Unit.parse(unit)) as ledger:
        for round in range(2):
            ledger.pay(round, 9.0, claims(10, 20), rule="audited", scores=WORSE)
    return path


PAYING = """
import sys
from dufl.flower.ledger import Claim, Ledger
for round in range(int(sys.argv[2])):
    with Ledger(sys.argv[1]) as ledger:
        ledger.pay(round, 1.0, [Claim(k, 10, 10, 1.0, 1) for k in range(4)], budget=float(sys.argv[3]))
        print(round, flush=True)
"""


def paying(path: Path, rounds: int, budget: float = 1e6) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PAYING, str(path), str(rounds), str(budget)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_servers_that_pay_at_once_pay_once(tmp_path: Path) -> None:
    """Also if none of them finds a ledger, and within one budget."""
    path = tmp_path / "ledger.sqlite"
    servers = [paying(path, 40, budget=30.5) for _ in range(3)]
    for server in servers:
        _, err = server.communicate(timeout=120)
        assert (server.returncode, err) == (0, "")
    with Ledger(path) as ledger:
        assert ledger.check().rounds == 40
        assert ledger.total() == 3050
        assert list(ledger.rounds().values()) == [100] * 30 + [50] + [0] * 9
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_killed_while_it_is_made_it_can_be_made_again(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        child = os.fork()
        if child == 0:  # pragma: no cover - dies by signal
            try:
                Ledger(folder / "ledger.sqlite")
            finally:
                os._exit(1)
        time.sleep(number * 0.0005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        made = (folder / "ledger.sqlite").exists()
        own = {"ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"} if made else set()
        abandoned = {file.name for file in folder.iterdir()} - own
        with Ledger(folder / "ledger.sqlite") as ledger:
            ledger.pay(0, 1.0, claims(10))
            assert ledger.check().rounds == 1
        left = {file.name for file in folder.iterdir()} - {"ledger.sqlite"}
        assert left == (abandoned if made else set())


def test_a_backup_while_a_server_pays(tmp_path: Path, dufl_command: Any) -> None:
    path, seen = tmp_path / "ledger.sqlite", []
    with paying(path, 10**6) as server:
        assert server.stdout is not None
        for _ in range(3):
            server.stdout.readline()
        for number in range(6):
            copy = tmp_path / f"copy-{number}.sqlite"
            code, out, err = dufl_command("ledger", "backup", str(path), str(copy))
            assert (code, err) == (0, "")
            with Ledger(copy) as ledger:
                head = ledger.check()
                seen.append(head)
                assert f"written: {copy} ({head})" in out
                assert list(ledger.rounds()) == list(range(head.rounds))
            server.stdout.readline()
        server.kill()
    assert seen == sorted(seen, key=lambda head: head.rounds)
    assert 3 <= seen[0].rounds < seen[-1].rounds
    with Ledger(path) as ledger:
        for head in seen:
            ledger.check(head.hash)


def test_a_backup_replaces_nothing_without_force(tmp_path: Path, dufl_command: Any) -> None:
    path, copy = audited(tmp_path / "ledger.sqlite"), tmp_path / "copy.sqlite"
    copy.write_text("mine")
    for destination in (copy, path, tmp_path, Path("/dev/null"), tmp_path / "no" / "copy.sqlite"):
        code, out, err = dufl_command("ledger", "backup", str(path), str(destination))
        assert (code, out, err.startswith("error: DEST")) == (2, "", True), err
    assert copy.read_text() == "mine"
    code, _, err = dufl_command("ledger", "backup", str(path), str(path), "--force")
    assert (code, err.strip()) == (2, f"error: DEST must be a file other than the ledger, got {path}")
    assert dufl_command("ledger", "backup", str(path), str(copy), "--force")[0] == 0
    with Ledger(path) as ledger, Ledger(copy) as other:
        assert ledger.check() == other.check()
    assert {file.name for file in tmp_path.iterdir()} == {"ledger.sqlite", "copy.sqlite"}


def test_a_damaged_ledger_is_not_backed_up(tmp_path: Path, dufl_command: Any) -> None:
    path = audited(tmp_path / "ledger.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET owed = 5 WHERE round = 1 AND client = 0")
    code, out, err = dufl_command("ledger", "backup", str(path), str(tmp_path / "copy.sqlite"))
    assert (code, out) == (2, "")
    assert "round 1" in err
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_full_disk_leaves_whole_rounds(tmp_path: Path) -> None:
    """A limit on the pages of the file stands in for a disk that is full."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.pay(0, 1.0, claims(10))
        pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(InputError, match="full"):
            ledger.pay(1, 1.0, claims(*[10] * 500))
        assert ledger.check().rounds == 1
        ledger._connection.execute("PRAGMA max_page_count=1000000")
        ledger.pay(1, 1.0, claims(*[10] * 500))
        assert ledger.check().rounds == 2


LIMITED = """
import resource, sys
from dufl.errors import InputError
from dufl.flower.ledger import Claim, Ledger
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with Ledger(sys.argv[1]) as ledger:
    try:
        for round in range(10_000):
            ledger.pay(round, 1.0, [Claim(k, 10, 10, 1.0, 1) for k in range(20)])
    except InputError as error:
        print(round, error)
"""


def test_a_write_that_fails_leaves_whole_rounds(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    failed, _, message = done.stdout.partition(" ")
    assert f"{path} must be a usable ledger" in message
    with Ledger(path) as ledger:
        assert ledger.check().rounds == int(failed) > 5
        ledger.pay(int(failed), 1.0, claims(10))


READING = """
import sys
from dufl.flower.ledger import Ledger
try:
    Ledger(sys.argv[1] + ".new")
except ValueError as error:
    print(error)
with Ledger(sys.argv[1]) as ledger:
    print(ledger.check())
    try:
        ledger.pay(9, 1.0, [])
    except ValueError as error:
        print(error)
"""


ROOT = os.geteuid() == 0  # may write everywhere, unless it drops the capability to do so
DROP = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", "--clear-groups"]


@pytest.mark.skipif(ROOT and shutil.which("setpriv") is None, reason="root needs setpriv")
def test_a_ledger_in_a_folder_without_write_access(tmp_path: Path) -> None:
    path = audited(tmp_path / "archive.sqlite")
    tmp_path.chmod(0o555)
    path.chmod(0o444)
    command = [*(DROP if ROOT else []), sys.executable, "-c", READING, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        tmp_path.chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    created, read, paid = done.stdout.splitlines()
    assert created == f"{path}.new must be a file that can be created, got Permission denied"
    assert read.startswith("2 rounds, head ")
    assert "readonly" in paid


@pytest.mark.parametrize("kind", ["pipe", "directory", "empty", "other", "loop"])
def test_what_is_no_ledger(tmp_path: Path, dufl_command: Any, kind: str) -> None:
    path = tmp_path / "ledger.sqlite"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE mine (value)")
    before = path.read_bytes() if path.is_file() else b""
    if kind != "loop":
        with pytest.raises(InputError, match=str(path)):
            Ledger(path)
    for command in (["show"], ["verify"], ["backup", str(tmp_path / "copy.sqlite")]):
        code, out, err = dufl_command("ledger", command[0], str(path), *command[1:])
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert str(path) in err
    assert before == (path.read_bytes() if path.is_file() else b"")
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_link_to_a_ledger_is_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(audited(tmp_path / "ledger.sqlite"))
    with Ledger(tmp_path / "link.sqlite") as linked, Ledger(tmp_path / "ledger.sqlite") as ledger:
        linked.pay(2, 1.0, claims(10))
        assert ledger.check().rounds == 3


# ---- commands


def test_verify_prints_the_head(tmp_path: Path, dufl_command: Any) -> None:
    path = audited(tmp_path / "ledger.sqlite")
    with Ledger(path) as ledger:
        head = ledger.head()
    code, out, err = dufl_command("ledger", "verify", str(path))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "every line is as it was written: 18.00 EUR owed, 12.00 EUR of it in escrow",
        f"2 rounds, head {head.hash}",
    ]
    assert dufl_command("ledger", "verify", str(path), "--head", head.hash.upper())[0] == 0
    found = json.loads(dufl_command("ledger", "verify", str(path), "--json")[1])
    expected = {"rounds": 2, "head": head.hash, "unit": "0.01 EUR", "total": 1800, "escrow": 1200}
    assert found == expected
    code, out, err = dufl_command("ledger", "verify", str(path), "--head", "f" * 64)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --head must be a hash in the chain of {path}, got ffff")


def test_show_has_escrow_scores_and_currency(tmp_path: Path, dufl_command: Any) -> None:
    path = audited(tmp_path / "ledger.sqlite")
    code, out, err = dufl_command("ledger", "show", str(path), "--csv", str(tmp_path / "entries.csv"))
    assert (code, err) == (0, "")
    assert "Owed for 2 of 2 rounds: 6.00 EUR" in out
    assert "in escrow" in out
    assert "12.00 EUR" in out
    assert "0.25 [0.125, 0.5]" in out
    assert "makes the model worse" in out
    lines = (tmp_path / "entries.csv").read_text().splitlines()
    assert lines[1] == "0,0,10,10,3.00,0.00,0.00,,0.25,0.125,0.5"
    assert lines[2] == "0,1,20,20,0.00,6.00,0.00,makes the model worse,-0.1,-0.2,-0.05"
    found = json.loads(dufl_command("ledger", "show", str(path), "--json")[1])
    assert (found["unit"], found["units"], found["escrow"]) == ("0.01 EUR", 600, 1200)
    assert found["clients"][1]["escrow"] == 1200


@pytest.mark.parametrize("decision", ["release", "forfeit"])
def test_settle_decides_about_escrow(tmp_path: Path, dufl_command: Any, decision: str) -> None:
    path = audited(tmp_path / "ledger.sqlite")
    command = ["ledger", "settle", str(path), "--client", "1", "--reason", "checked by hand"]
    code, out, err = dufl_command(*command, f"--{decision}")
    assert (code, err) == (0, "")
    what = "released to" if decision == "release" else "forfeited by"
    assert out.startswith(f"12.00 EUR {what} client 1\n2 rounds, head ")
    with Ledger(path) as ledger:
        assert ledger.check().hash in out
        assert (ledger.escrow(), ledger.total()) == ({}, 1800 if decision == "release" else 600)
    out = dufl_command("ledger", "show", str(path))[1]
    assert f"Owed for 2 of 2 rounds: {'18.00' if decision == 'release' else '6.00'} EUR" in out
    assert "checked by hand" in out
    code, out, err = dufl_command(*command, f"--{decision}")  # nothing is left
    assert (code, out) == (2, "")
    assert err == "error: --client must be a client with an amount in escrow, got 1\n"


def test_settle_refuses_nonsense(tmp_path: Path, dufl_command: Any) -> None:
    path = audited(tmp_path / "ledger.sqlite")
    base, before = ["ledger", "settle", str(path), "--client", "1"], path.read_bytes()
    for options in (
        ["--reason", "x"],
        ["--reason", "x", "--release", "--forfeit"],
        ["--reason", " ", "--release"],
        ["--release"],
        ["--client", "0", "--reason", "x", "--release"],
        ["--client", "one", "--reason", "x", "--release"],
    ):
        code, out, err = dufl_command(*base, *options)
        assert (code, out) == (2, ""), options
        assert "--" in err
    assert path.read_bytes() == before
