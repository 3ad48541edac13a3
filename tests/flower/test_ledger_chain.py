"""The hash chain of a ledger: whatever is done to the file, it is found; and old files become new ones."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.flower import ledger_file
from dufl.flower.ledger import Claim, Entry, Head, Ledger, Score
from dufl.flower.ledger_chain import RoundRecord, round_hash

BAD = {1: Score(-0.1, -0.2, -0.05, "makes the model worse"), 0: Score(0.1, 0.05, 0.2)}


def claims(*volumes: int) -> list[Claim]:
    return [Claim(client, volume, volume, 1.0, 1) for client, volume in enumerate(volumes)]


def make(path: Path, rounds: int = 6) -> Path:
    """A ledger in which everything happens that can; the settlement is its record 5."""
    with Ledger(path, Unit.parse("0.01 EUR")) as ledger:
        for round in range(rounds):
            ledger.pay(round, 10.0, claims(10, 20), {2: "no reply"}, rule="audited", scores=BAD)
            if round == 3:
                ledger.settle(1, "release", "it was the weather")
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(written, tmp_path / "ledger.sqlite"))


def change(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def test_a_ledger_is_as_it_was_written(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger.check() == ledger.head()
        assert ledger.check(ledger.head().hash).rounds == 6
        assert len(ledger.head().hash) == 64


def test_the_hashes_depend_on_everything_before(tmp_path: Path) -> None:
    heads = set()
    for unit in ("0.01", "0.01 EUR"):
        with Ledger(tmp_path / f"{unit}.sqlite", Unit.parse(unit)) as ledger:
            heads.add(ledger.head())
            for round in range(3):
                ledger.pay(round, 1.0, claims(10))
                heads.add(ledger.head())
    assert len(heads) == 8


HARM = {
    "UPDATE entries SET owed = owed + 1 WHERE round = 3 AND client = 0": "round 3",
    "UPDATE entries SET owed = owed + 1 WHERE round = 3; UPDATE rounds SET units = units + 3, "
    "payment = payment + 3 WHERE round = 3": "round 3",
    "UPDATE entries SET owed = -333 WHERE round = 2 AND client = 0": "round 2",
    "UPDATE entries SET owed = '333' || '' WHERE round = 2 AND client = 0": "",  # stored as the same integer
    "UPDATE entries SET owed = 'much' WHERE round = 2 AND client = 0": "round 2",
    "UPDATE entries SET reason = '' WHERE round = 1 AND client = 2": "round 1",
    "UPDATE entries SET reason = x'00' WHERE round = 1 AND client = 2": "round 1",
    "UPDATE entries SET score = 0.7 WHERE round = 5 AND client = 0": "round 5",
    "UPDATE entries SET score = 9e999 WHERE round = 5 AND client = 0": "round 5",
    "UPDATE entries SET score = NULL WHERE round = 5 AND client = 0": "round 5",
    "UPDATE entries SET client = 7 WHERE round = 4 AND client = 2": "round 4",
    "DELETE FROM entries WHERE round = 4 AND client = 2": "round 4",
    "DELETE FROM entries WHERE round = 4; DELETE FROM rounds WHERE round = 4": "record 6",
    "DELETE FROM rounds WHERE round = 4": "round 4",
    "INSERT INTO entries SELECT 4, 9, 0, 0, 0, 0, 0, '', NULL, NULL, NULL": "round 4",
    "INSERT INTO entries SELECT 44, 9, 0, 0, 5, 0, 0, '', NULL, NULL, NULL": "round 44",
    "INSERT INTO rounds SELECT 99, 99, time, rule, payment, 0, hash FROM rounds WHERE round = 0": "record 8",
    "INSERT INTO rounds SELECT 8, 8, time, rule, payment, 0, hash FROM rounds WHERE round = 0": "round 8",
    "UPDATE rounds SET round = -1 WHERE round = 2; UPDATE rounds SET round = 2 WHERE round = 3; "
    "UPDATE rounds SET round = 3 WHERE round = -1": "round 3",
    "UPDATE rounds SET hash = '' WHERE round = 5": "round 5",
    "UPDATE rounds SET time = '' WHERE round = 0": "round 0",
    "UPDATE rounds SET rule = 'volume' WHERE round = 0": "round 0",
    "UPDATE rounds SET position = -position": "record 1",
    "UPDATE about SET value = '1 EUR' WHERE key = 'unit'": "round 0",
    "UPDATE about SET value = 'lots' WHERE key = 'unit'": "unit",
    "DELETE FROM about": "unit",
    "UPDATE settlements SET decision = 'forfeit'": "settlement 5",
    "UPDATE settlements SET units = units - 1": "settlement 5",
    "UPDATE settlements SET client = x'00'": "settlement 5",
    "DELETE FROM settlements": "record 5",
    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN UPDATE entries SET owed = 0; END": "other tables",
}


@pytest.mark.parametrize(("harm", "found"), HARM.items())
def test_the_first_wrong_line_is_named(path: Path, harm: str, found: str) -> None:
    change(path, harm)
    if not found:
        with Ledger(path) as ledger:
            ledger.check()
        return
    with pytest.raises(InputError) as caught, Ledger(path) as ledger:
        ledger.check()
    assert found in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_cut_off_is_found_by_its_head(path: Path) -> None:
    with Ledger(path) as ledger:
        head = ledger.head()
    change(path, "DELETE FROM entries WHERE round = 5; DELETE FROM rounds WHERE round = 5")
    with Ledger(path) as ledger:
        shorter = ledger.check()
        assert shorter.rounds == 5
        with pytest.raises(InputError) as caught:
            ledger.check(head.hash)
        assert (caught.value.field, caught.value.value) == ("head", head.hash)
        ledger.pay(5, 10.0, claims(20, 10))
        assert ledger.check(shorter.hash).rounds == 6
        with pytest.raises(InputError):
            ledger.check(head.hash)


def bits(path: Path, number: int) -> Iterator[int]:
    chance = random.Random(5)
    for _ in range(number):
        yield chance.randrange(8 * path.stat().st_size)


def test_flipped_bits_change_nothing_unnoticed(written: Path, tmp_path: Path) -> None:
    """A flipped bit is found, or is where it does not matter: no number or text differs."""
    with Ledger(written) as ledger:
        entries, rounds, settled = ledger.entries(), ledger.rounds(), ledger.settlements()
    content, noticed = written.read_bytes(), 0
    for bit in bits(written, 300):
        path = tmp_path / "flipped.sqlite"
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            with Ledger(path) as ledger:
                ledger.check()
                assert (ledger.entries(), ledger.rounds(), ledger.settlements()) == (entries, rounds, settled)
        except InputError:
            noticed += 1
    assert noticed > 30


@pytest.mark.parametrize("size", [0, 50, 99, 100, 4096, 10_000])
def test_a_file_that_was_cut_off(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError) as caught, Ledger(path) as ledger:
        ledger.check()
    assert str(path) in str(caught.value)


def test_the_escrow_cannot_be_forged(tmp_path: Path) -> None:
    """Whoever computes new hashes can write anything, but not amounts that contradict each other."""
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.pay(0, 1.0, claims(10))
    record = RoundRecord(2, 1, "", "audited", 100, 100, [Entry(1, 0, 10, 10, 100, 0, 77)])
    with Ledger(tmp_path / "l.sqlite") as ledger:
        before = ledger.head().hash
    with closing(sqlite3.connect(tmp_path / "l.sqlite", isolation_level=None)) as connection:
        ledger_file.insert_round(connection, record, round_hash(before, record))
    with Ledger(tmp_path / "l.sqlite") as ledger, pytest.raises(InputError, match="released from escrow"):
        ledger.check()


# ---- versions


def first_version(path: Path, rounds: int = 4) -> Path:
    """A ledger as version 1 wrote it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for statement in (
            "CREATE TABLE rounds (round INTEGER PRIMARY KEY, cents INTEGER NOT NULL)",
            "CREATE TABLE entries (round INTEGER NOT NULL REFERENCES rounds, client INTEGER NOT NULL, "
            "committed INTEGER NOT NULL, claimed INTEGER NOT NULL, cents INTEGER NOT NULL, "
            "reason TEXT NOT NULL, PRIMARY KEY (round, client)) WITHOUT ROWID",
            "PRAGMA application_id=1146439245",
            "PRAGMA user_version=1",
        ):
            connection.execute(statement)
        for round in range(rounds):
            connection.execute("INSERT INTO rounds VALUES (?, 6318)", (round,))
            connection.execute("INSERT INTO entries VALUES (?, 0, 10, 10, 2106, '')", (round,))
            connection.execute("INSERT INTO entries VALUES (?, 1, 20, 20, 4212, '')", (round,))
            connection.execute("INSERT INTO entries VALUES (?, 2, 20, 0, 0, 'no reply')", (round,))
    return path


def test_an_old_ledger_is_read_as_it_is(tmp_path: Path) -> None:
    path = first_version(tmp_path / "ledger.sqlite")
    before = path.read_bytes()
    with Ledger(path) as ledger:
        assert ledger.check() == Head(4, "")
        assert ledger.rounds() == dict.fromkeys(range(4), 6318)
        assert [entry.owed for entry in ledger.entries(2)] == [2106, 4212, 0]
        assert (ledger.total(), ledger.escrow(), ledger.settlements()) == (4 * 6318, {}, [])
        assert ledger.head() == Head(4, "")
        with pytest.raises(InputError):
            ledger.check("0" * 64)
        with pytest.raises(InputError):
            ledger.settle(0, "release", "nothing is held back")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_an_old_ledger_becomes_a_new_one_when_it_is_written(tmp_path: Path) -> None:
    path = first_version(tmp_path / "ledger.sqlite")
    with Ledger(path) as reader, Ledger(path) as ledger:
        old = reader.entries()
        ledger.pay(4, 63.18, claims(10, 20))
        assert reader.entries()[: len(old)] == old  # also by who opened it before
        assert reader.check() == ledger.check()
        assert ledger.check().rounds == 5
    copy = path.with_name("ledger.sqlite.v1")
    with Ledger(copy) as kept:
        assert (kept.check(), kept.entries()) == (Head(4, ""), old)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, copy.name}
    change(path, "UPDATE entries SET owed = 2107 WHERE round = 2 AND client = 0")
    with Ledger(path) as ledger, pytest.raises(InputError, match="round 2"):
        ledger.check()


def test_a_migration_that_fails_leaves_the_old_ledger(tmp_path: Path) -> None:
    path = first_version(tmp_path / "ledger.sqlite")
    with Ledger(path) as ledger, pytest.raises(InputError):
        ledger.pay(4, 1e300, claims(10))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    with Ledger(path) as ledger:  # the copy of the first attempt is there already
        ledger.pay(4, 1.0, claims(10))
        assert ledger.check().rounds == 5


def test_a_copy_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    path = first_version(tmp_path / "ledger.sqlite")
    other = first_version(tmp_path / "ledger.sqlite.v1", rounds=2)
    before = path.read_bytes(), other.read_bytes()
    with Ledger(path) as ledger, pytest.raises(InputError, match=r"ledger\.sqlite\.v1 must be a copy of"):
        ledger.pay(4, 1.0, claims(10))
    assert (path.read_bytes(), other.read_bytes()) == before


def test_a_damaged_old_ledger_is_not_given_a_chain(tmp_path: Path) -> None:
    path = first_version(tmp_path / "ledger.sqlite")
    change(path, "UPDATE entries SET cents = 1 WHERE round = 2 AND client = 0")
    before = path.read_bytes()
    with Ledger(path) as ledger:
        with pytest.raises(InputError, match="round 2"):
            ledger.check()
        with pytest.raises(InputError, match="round 2"):
            ledger.pay(4, 1.0, claims(10))
    assert path.read_bytes() == before


def test_an_old_ledger_has_no_currency(tmp_path: Path) -> None:
    path = first_version(tmp_path / "ledger.sqlite")
    with pytest.raises(InputError) as caught:
        Ledger(path, Unit.parse("0.01 EUR"))
    assert caught.value.field == "unit"
    Ledger(path, Unit()).__exit__(None, None, None)


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ("UPDATE about SET value = 'dufl 7.1 or newer' WHERE key = 'needs'", "it needs dufl 7.1 or newer"),
        ("DROP TABLE about", "it needs a newer version of DUFL"),
        (
            "DROP TABLE about; CREATE VIEW about AS WITH RECURSIVE c(key, value) AS "
            "(SELECT 'a', 'b' UNION ALL SELECT * FROM c) SELECT * FROM c",
            "it needs a newer version of DUFL",
        ),
    ],
)
def test_a_newer_ledger_says_what_it_needs(path: Path, needs: str, said: str) -> None:
    change(path, f"{needs}; PRAGMA user_version=3")
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"must be of version 1 to 2, got 3: {said}"):
        Ledger(path)
    assert path.read_bytes() == before
