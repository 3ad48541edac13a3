"""Results of a stranger: reading them runs no code, waits for nothing, and shows nothing but what is theirs.

Every file here has right checksums, as whoever makes such a result would give it.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import SMALL, assert_sentence, files, write_dataset
from dufl.errors import InputError
from dufl.experiment import metrics
from dufl.experiment.files import to_json, write_text
from dufl.experiment.output import PLAN, writing
from dufl.experiment.run_directory import RunDirectory
from dufl.flower.ledger import Claim, Ledger
from dufl.learning.federation import Record
from dufl.web.request import Request, initial_values
from dufl.web.source import open_source, upload_source
from loading import load
from reports import make_run, report
from results import change_lines, reseal

EVIL = """
from pathlib import Path
Path("marker").write_text("code was run")
def __getattr__(name):
    Path("marker").write_text("code was run")
    return print
"""
KEYS = {
    "data.dataset": "load",
    "policy": "Policy",
    "data.discard": "rule",
    "data.stream": "Stream",
    "training.loss": "loss",
    "training.algorithm": "Own",
    "training.model": "Net",
}


def told_otherwise(folder: Path, **changes: str) -> None:
    """Change keys in a config.toml that is read, with its checksum."""
    path = folder / "config.toml"
    lines = path.read_text().splitlines()
    for key, value in changes.items():
        places = [number for number, line in enumerate(lines) if line.startswith(f"{key} = ")]
        if places:
            lines[places[0]] = f"{key} = {value}"
        else:  # a key of [data] that is left out
            lines.insert(lines.index("[data]") + 1, f"{key} = {value}")
    path.write_text("\n".join(lines) + "\n")
    reseal(folder)


def write_a_plan(folder: Path, *changes: str, **arrays: Any) -> Path:
    """A plan as `dufl plan --out` writes it, but for some arrays; without figures."""
    config = load(None, [*SMALL, "clients.count=2", *changes])
    plan = config.solve()
    with writing(folder, PLAN) as staging:
        held = {"volume": plan.volume, "collection": plan.collection} | arrays
        np.savez(staging / "plan.npz", **held)
        write_text(staging / "plan.json", to_json(plan.summary()))
        write_text(staging / "config.toml", config.to_toml())
    return folder


def as_process(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """`dufl ARGUMENTS` as a process of its own in a folder; one that waits for something is a failure."""
    command = [str(Path(sys.executable).with_name("dufl")), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


# ---- code


@pytest.mark.parametrize("key", KEYS)
def test_a_report_imports_nothing_that_a_run_names(run: Path, tmp_path: Path, key: str) -> None:
    """As a process, whose path has the current folder in it, and the module is there."""
    (tmp_path / "evilmod.py").write_text(EVIL)
    told_otherwise(run, **{key.rpartition(".")[2]: f'"evilmod:{KEYS[key]}"'})
    code, out, err = as_process(tmp_path, "report", "run")
    assert not (tmp_path / "marker").exists()
    assert (code, out, err) == (0, "report: run/report.html\n", "")


def test_the_marker_would_be_seen(tmp_path: Path) -> None:
    """The module does leave its mark when it is imported."""
    (tmp_path / "evilmod.py").write_text(EVIL)
    subprocess.run([sys.executable, "-c", "import evilmod"], cwd=tmp_path, check=True)
    assert (tmp_path / "marker").exists()


def test_the_report_says_what_it_does_not_show(run: Path, tmp_path: Path) -> None:
    told_otherwise(run, dataset='"evilmod:load"')
    page = report(run, out=tmp_path / "r.html")
    said = (
        "The samples cannot be shown: the dataset evilmod:load is made by code, which a report does not run."
    )
    assert said in page.text
    assert not page.images


@pytest.mark.parametrize("key", KEYS)
def test_certify_and_the_explorer_import_nothing(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    (tmp_path / "evilmod.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = write_a_plan(tmp_path / "plan", f"{key}=evilmod:{KEYS[key]}")
    assert f"evilmod:{KEYS[key]}" in (plan / "config.toml").read_text()
    assert dufl_command("certify", "plan")[0] == 0
    source = open_source(plan / "config.toml")
    Request(source, initial_values(source)).experiment()
    upload_source((plan / "config.toml").read_bytes(), "config.toml", None).experiment()
    assert not (tmp_path / "marker").exists()
    assert "evilmod" not in sys.modules


# ---- files elsewhere


@pytest.mark.parametrize("file", ["/dev/zero", "/etc/passwd", "../secret.csv", "pipe", "clients.csv"])
def test_clients_are_read_from_the_result_itself(
    dufl_command: Any, tmp_path: Path, run: Path, file: str
) -> None:
    (tmp_path / "secret.csv").write_text("my own secret\n1\n")
    os.mkfifo(run / "pipe")
    os.mkfifo(run / "clients.csv")
    text = (run / "config.toml").read_text()
    start, end = text.index("[clients]"), text.index("[leader]")
    (run / "config.toml").write_text(f'{text[:start]}[clients]\nfile = "{file}"\n\n{text[end:]}')
    reseal(run)
    plan = write_a_plan(tmp_path / "plan")
    shutil.copy(run / "config.toml", plan / "config.toml")
    reseal(plan)
    for command, place in (("report", run), ("certify", plan)):
        code, out, err = dufl_command(command, str(place))
        assert (code, out) == (2, "")
        assert_sentence(err)
        assert "secret," not in err
        assert "root:" not in err


@pytest.mark.parametrize("file", ["/dev/zero", "pipe"])
def test_the_explorer_waits_for_no_file(tmp_path: Path, file: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "f.toml").write_text(f'[clients]\nfile = "{file}"\n')
    with pytest.raises(InputError, match="must be a regular file, got a"):
        open_source(tmp_path / "f.toml")


def test_the_explorer_begins_with_a_file_of_clients(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("initial_volume,collection_cost,training_cost\n50,1e-3,1e-5\n")
    (tmp_path / "f.toml").write_text('[clients]\nfile = "c.csv"\n')
    assert open_source(tmp_path / "f.toml").experiment().game.clients.size == 1
    (tmp_path / "c.csv").unlink()
    with pytest.raises(InputError, match=r"c.csv must be a readable CSV file"):
        open_source(tmp_path / "f.toml")


def test_samples_of_the_reader_s_own_are_not_shown(run: Path, tmp_path: Path) -> None:
    """A stranger's configuration names a file of mine: it has not the checksum of what was trained on."""
    write_dataset(tmp_path / "mine.npz")
    told_otherwise(run, dataset=f'"{tmp_path / "mine.npz"}"', initial_classes="2")
    page = report(run, out=tmp_path / "r.html")
    assert not page.images
    assert "mine.npz on this machine differ from those that were trained on" in page.text


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "folder"])
def test_a_dataset_that_is_no_file_is_not_waited_for(run: Path, tmp_path: Path, target: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.npz").symlink_to(target)
    told_otherwise(run, dataset=f'"{tmp_path / "data.npz"}"')
    page = report(run, out=tmp_path / "r.html")
    assert "The samples cannot be shown: " in page.text
    assert "must be a regular file" in page.text


@pytest.mark.parametrize(
    "name", ["manifest.json", "config.toml", "environment.json", "plan.npz", "metrics.jsonl", "summary.json"]
)
@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "folder", "secret"])
def test_no_file_of_a_run_is_a_way_out(run: Path, tmp_path: Path, name: str, target: str) -> None:
    """A link to a device, a pipe or a file of the reader's."""
    os.mkfifo(run / "pipe")
    (run / "folder").mkdir()
    (tmp_path / "secret").write_text('{"password": "open sesame"}')
    (run / name).unlink()
    (run / name).symlink_to(tmp_path / "secret" if target == "secret" else target)
    before = files(tmp_path)
    with pytest.raises(InputError) as refused:
        report(run, out=tmp_path / "r.html")
    assert name in str(refused.value)
    assert "sesame" not in str(refused.value)
    assert files(tmp_path) == before


# ---- nonsense in metrics


def test_every_field_has_a_rule() -> None:
    assert list(metrics._RULES) == [field.name for field in fields(Record)]


HUGE = 10**400
STRANGE: list[Any] = ["text", [[]], {"a": {}}, True, HUGE]
NONSENSE: list[tuple[str, Any]] = [
    *((name, value) for name in ("round", "total_volume", "classes", "participants") for value in (-1, 1.5)),
    *((field.name, value) for field in fields(Record) for value in STRANGE),
    *((name, -1.0) for name in ("accuracy", "mean_age", "payment", "server_cost", "seconds")),
    *((name, None) for name in ("round", "total_volume", "mean_age", "payment", "volumes", "refused")),
    ("accuracy", 1.5),
    ("mean_age", float("inf")),
    ("payment", 1e308),
    ("payment", float("nan")),
    ("round", 2),
    ("total_volume", 1),
    ("volumes", []),
    ("volumes", [1.5, 2, 3, 4]),
    ("volumes", ["1", "2", "3", "4"]),
    ("volumes", [-1, 2, 3, 4]),
    ("volumes", [HUGE]),
    ("dropped", [None]),
    ("refused", {"one": "why"}),
    ("refused", {"1": 2}),
]


@pytest.mark.parametrize(("name", "value"), NONSENSE)
def test_nonsense_in_metrics_names_file_and_line(run: Path, name: str, value: Any) -> None:
    change_lines(run, lambda lines: lines[3].update({name: value}))
    if name == "volumes" and value == []:
        change_lines(run, lambda lines: lines[3].update(total_volume=0))
    with pytest.raises(InputError, match=r"metrics.jsonl must be .*") as refused:
        RunDirectory(run).records() if value != [] else report(run, out=run / "r.html")
    if value != []:
        assert f"{run}/metrics.jsonl must be the metrics of a run: line 4: {name} must be" in str(
            refused.value
        )
    assert len(str(refused.value)) < 600


def test_lines_that_are_no_rounds(run: Path) -> None:
    changes: list[Any] = [
        lambda lines: lines[2].pop("loss"),
        lambda lines: lines[2].update(more=1),
        lambda lines: lines.pop(2),
        lambda lines: lines.insert(2, lines[1]),
        lambda lines: lines.reverse(),
    ]
    whole = (run / "metrics.jsonl").read_text()
    for change in changes:
        (run / "metrics.jsonl").write_text(whole)
        change_lines(run, change)
        with pytest.raises(InputError, match=r"metrics.jsonl must be the metrics of a run: line [123]: "):
            RunDirectory(run).records()
    for line in ("[1, 2]", "7", "{" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "{}"):
        (run / "metrics.jsonl").write_text(metrics.seal(line) + whole)
        with pytest.raises(InputError, match=r"metrics.jsonl must be the metrics of a run: line 1: "):
            RunDirectory(run).records()
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n" + whole.encode())
    with pytest.raises(InputError, match=r"metrics.jsonl must be the metrics of a run: line 1: "):
        RunDirectory(run).records()
    (run / "metrics.jsonl").write_text(whole)
    change_lines(run, lambda lines: lines.append(lines[-1] | {"round": len(lines)}))
    with pytest.raises(InputError, match="of at most 6 rounds, got 7"):
        report(run, out=run / "r.html")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("server_cost", "cost_of_volume") for value in (None, 1e308, 0)),
        *((name, value) for name in ("accuracy", "loss") for value in (None, 0)),
        ("loss", 1e308),
        ("mean_age", 1e99),
        ("payment", 1e99),
        ("seconds", 1e99),
        ("refused", {"999999999999999": "\u2028<script>"}),
        ("dropped", [2**52]),
        ("classes", 2**52),
    ],
)
def test_strange_but_possible_metrics_are_reported(run: Path, name: str, value: Any) -> None:
    change_lines(run, lambda lines: lines[3].update({name: value}))
    assert report(run, out=run / "r.html").tables


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("environment.json", "[" * 9999),
        ("environment.json", "7"),
        ("summary.json", "[1]"),
        ("deal.json", '{"payment": -1, "conservation_rate": 0, "first_round": 0, "phases": 1}'),
        ("deal.json", '{"payment": NaN, "conservation_rate": 0, "first_round": 0, "phases": 1}'),
        ("deal.json", '{"payment": 1, "conservation_rate": 7, "first_round": 0, "phases": 1}'),
        ("deal.json", '{"payment": 1, "conservation_rate": 0, "first_round": 1e999, "phases": 1}'),
        ("deal.json", '{"payment": [1], "conservation_rate": 0, "first_round": 0, "phases": 1}'),
        ("deal.json", "[" * 9999),
    ],
)
def test_nonsense_in_other_files(dufl_command: Any, run: Path, name: str, content: str) -> None:
    (run / name).write_text(content)
    reseal(run)
    code, out, err = dufl_command("report", str(run))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert name in err


# ---- nonsense in plans

SHAPE = (5, 2)
ARRAYS: list[Any] = [
    np.ones(SHAPE, int),
    np.ones(SHAPE, np.float32),
    np.ones(SHAPE, complex),
    np.full(SHAPE, "text"),
    np.full(SHAPE, None),
    np.ones(SHAPE, bool),
    np.ones((2, 5)),
    np.ones(10),
    np.float64(1),
    np.full(SHAPE, np.nan),
    np.full(SHAPE, np.inf),
    -np.ones(SHAPE),
    np.zeros((0, 2)),
]


@pytest.mark.parametrize("values", ARRAYS, ids=lambda values: f"{values.dtype}{values.shape}")
@pytest.mark.parametrize("name", ["volume", "collection"])
def test_nonsense_in_a_plan(dufl_command: Any, tmp_path: Path, name: str, values: Any) -> None:
    write_a_plan(tmp_path / "plan", **{name: values})
    code, out, err = dufl_command("certify", str(tmp_path / "plan"), "--json")
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert f"{name} in {tmp_path / 'plan/plan.npz'} must be" in err or "cannot be read" in err


@pytest.mark.parametrize("values", [np.ones(3), np.array(1), np.array(1j), np.array("1"), np.array(np.nan)])
def test_nonsense_in_the_plan_of_a_run(dufl_command: Any, run: Path, values: Any) -> None:
    np.savez(run / "plan.npz", payment=values, conservation_rate=0.5)
    reseal(run)
    code, out, err = dufl_command("report", str(run))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert "plan.npz" in err


@pytest.mark.parametrize("value", ["text", None, -1, [1], {"a": 1}, True, float("nan"), HUGE])
@pytest.mark.parametrize("name", ["payment", "conservation_rate"])
def test_nonsense_in_the_summary_of_a_plan(dufl_command: Any, tmp_path: Path, name: str, value: Any) -> None:
    plan = write_a_plan(tmp_path / "plan")
    found = json.loads((plan / "plan.json").read_text())
    (plan / "plan.json").write_text(json.dumps(found | {name: value}))
    reseal(plan)
    code, out, err = dufl_command("certify", str(plan), "--json")
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert f"{plan / 'plan.json'}: {name} must be" in err


def test_a_sound_plan_is_certified(dufl_command: Any, tmp_path: Path) -> None:
    code, out, _ = dufl_command("certify", str(write_a_plan(tmp_path / "plan")), "--json")
    assert (code, json.loads(out)["holds"]) == (0, True)


# ---- ledgers


def test_ledgers_that_are_none(dufl_command: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        code, out, err = dufl_command("ledger", "show", str(path))
        assert (code, out) == (2, "")
        assert_sentence(err)
        assert "must be a regular file" in err


ENDLESS = """WITH RECURSIVE c(
round, client, committed, claimed, owed, held, released, reason, score, low, high)
AS (SELECT 0, 0, 0, 0, 0, 0, 0, '', 0, 0, 0 UNION ALL SELECT * FROM c) SELECT * FROM c"""


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE entries SET owed = 'a lot'",
        "UPDATE entries SET reason = x'00'",
        "UPDATE entries SET claimed = 1.5",
        f"DROP TABLE entries; CREATE VIEW entries AS {ENDLESS}",
    ],
)
def test_ledgers_that_were_changed(dufl_command: Any, tmp_path: Path, harm: str) -> None:
    with Ledger(tmp_path / "l.sqlite") as book:
        book.pay(0, 1.0, [Claim(0, 5, 5, 1.0, 1)])
    with sqlite3.connect(tmp_path / "l.sqlite") as connection:
        connection.executescript(harm)
    connection.close()
    code, out, err = dufl_command("ledger", "show", str(tmp_path / "l.sqlite"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert "l.sqlite" in err
