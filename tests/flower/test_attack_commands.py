"""The commands that let clients cheat, as a user runs them."""

import json
from typing import Any

import pytest

from dufl.experiment.config import Experiment
from dufl.flower.attacks import ATTACKS, run_attack
from real_data import real

DIGITS = [
    item
    for change in ("clients.count=8", "clients.initial_volume=100", "game.num_rounds=12")
    for item in ("--set", change)
]
TINY = [
    item
    for change in ("clients.count=5", "clients.initial_volume=60", "game.num_rounds=3")
    for item in ("--set", change)
]


def test_cheats_are_caught_and_honest_clients_are_not(dufl_command: Any) -> None:
    code, out, err = dufl_command("flower", "attack", *DIGITS, "--runs", "2", "--json")
    assert code == 0, err
    rows = {row["attack"]: row for row in json.loads(out)}
    assert list(rows) == list(ATTACKS)
    assert not any(row["accused"] for row in rows.values())
    for name in ("shuffled labels", "duplicates", "echo"):
        row = rows[name]
        assert row["caught"]["20"] == 2
        assert row["paid"]["audited"] < 0.5 * row["paid"]["volume"], name
        assert row["paid"]["contribution"] < 0.5 * row["paid"]["volume"], name
    assert rows["echo"]["caught_after"] == 1
    assert rows["none"]["paid"]["audited"] == rows["none"]["paid"]["volume"]


def test_the_table_names_attacks_rules_and_rounds(dufl_command: Any) -> None:
    code, out, _ = dufl_command("flower", "attack", *TINY, "--attacks", "none, echo", "--runs", "1")
    assert code == 0
    for word in ("echo", "volume", "audited", "contribution", "median", "accused"):
        assert word in out
    assert "duplicates" not in out


def test_a_cheat_in_messages_is_not_paid_and_the_reason_is_printed(dufl_command: Any) -> None:
    names = "none,claims 10 times its volume,sends its first reply again,commits to a million samples"
    code, out, err = dufl_command("flower", "attack-protocol", *TINY, "--attacks", names, "--json")
    assert code == 0, err
    honest, more, again, million = json.loads(out)
    assert honest["response"] == ""
    assert honest["paid"] > 0.1
    assert more["paid"] == million["paid"] == 0
    assert "committed to" in more["response"]
    assert million["response"].startswith("left out")
    assert 0 < again["paid"] < 0.5 * honest["paid"]  # the first reply is true
    assert {row["rounds"] for row in (honest, more, again, million)} == {3}  # nobody ends the run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attack", "--attacks", "none,magic"), "--attacks must be some of none, shuffled labels"),
        (("attack", "--cheats", "5"), "--cheats must be < 5, the number of clients, got 5"),
        (("attack", "--runs", "0"), "--runs"),
        (("attack-protocol", "--attacks", ""), "--attacks must be some of none, commits to a million"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[str, ...], message: str, dufl_command: Any) -> None:
    code, out, err = dufl_command("flower", *arguments, *TINY)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


@pytest.mark.slow
def test_figures_of_the_audit_on_fashion_mnist() -> None:
    """The figures of docs/payments.md, in fewer runs."""
    changes = {
        "data_dir": str(real("fmnist")),
        "dataset": "fmnist",
        "clients.count": 10,
        "initial_volume": 200,
        "training.workers": 1,
    }
    config = Experiment.from_toml(None, changes)
    dataset = config.data.load()
    for attack, least, within in (("shuffled labels", 19, 10), ("duplicates", 18, 10), ("echo", 20, 1)):
        runs = [run_attack(config.with_seed(40 + i), dataset, attack, [0], 20) for i in range(20)]
        assert sum(run.caught is not None and run.caught <= within for run in runs) >= least, attack
        assert sum(run.accused for run in runs) <= 1
    honest = [run_attack(config.with_seed(80 + i), dataset, "none", [0]) for i in range(10)]
    assert sum(run.accused for run in honest) <= 1
