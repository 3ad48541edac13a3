"""`dufl compare` as a user types it."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import RUN, SMALL, assert_sentence, figures, files, told


def test_compare_for_people(dufl_command: Any) -> None:
    code, out, err = dufl_command("compare", *told(*SMALL), "--algorithms", "fedavg, feddyn")
    assert (code, err) == (0, "")
    rows = [line.split()[:2] for line in out.splitlines()]
    assert rows == [
        ["algorithm", "policy"],
        ["fedavg", "static"],
        ["fedavg", "dufl"],
        ["feddyn", "static"],
        ["feddyn", "dufl"],
    ]


def test_compare_writes_a_run_a_cell(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "all"
    arguments = [*told(*SMALL, "training.seed=3"), "--seeds", "2", "--policies", "dufl,static"]
    code, shown, err = dufl_command("compare", *arguments, "--out", str(out))
    assert (code, err) == (0, "")
    assert f"written: {out / 'comparison.csv'}" in shown
    assert "± std" in shown
    table = shown
    runs = {f"fedavg-{policy}-{seed}" for policy in ("dufl", "static") for seed in (3, 4)}
    tables = {"comparison.csv", "statistics.csv", "statistics.tex", "report.html", "manifest.json"}
    assert {path.name for path in out.iterdir()} == runs | figures("comparison") | tables
    for name in runs:
        assert {path.name for path in (out / name).iterdir()} >= RUN
    with (out / "comparison.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4 * 5
    before = files(out)
    code, shown, err = dufl_command("compare", *arguments, "--out", str(out), "--resume", "--json")
    assert (code, err) == (0, "")
    after = files(out)
    assert after.keys() == before.keys()
    for name, content in before.items():
        if not name.endswith((".png", ".svg", ".pdf")):
            assert after[name] == content, name
    cells = json.loads(shown)["cells"]
    assert [(cell["algorithm"], cell["policy"], cell["seeds"]) for cell in cells] == [
        ("fedavg", "dufl", [3, 4]),
        ("fedavg", "static", [3, 4]),
    ]
    for cell in cells:
        finals = []
        for seed in cell["seeds"]:
            folder = out / f"fedavg-{cell['policy']}-{seed}"
            finals.append(json.loads((folder / "summary.json").read_text())["final_accuracy"])
        assert cell["accuracies"] == finals
        assert cell["final_accuracy"] == pytest.approx(np.mean(finals))
        assert cell["accuracy_std"] == pytest.approx(np.std(finals, ddof=1))
        row = next(line for line in table.splitlines() if line.split()[:2] == ["fedavg", cell["policy"]])
        assert row.split()[2:4] == [f"{100 * np.mean(finals):.2f}", f"{100 * np.std(finals, ddof=1):.2f}"]
    code, _, err = dufl_command("compare", *arguments, "--out", str(out))
    assert code == 2
    assert "holds a run already: add --resume" in err
    assert files(out) == after


def test_compare_takes_the_algorithm_of_the_file(dufl_command: Any, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('[training]\nalgorithm = "fedprox"\nlocal_epochs = 1\n')
    arguments = [str(tmp_path / "f.toml"), *told(*SMALL), "--policies", "static", "--json"]
    code, out, _ = dufl_command("compare", *arguments)
    assert code == 0
    assert [cell["algorithm"] for cell in json.loads(out)["cells"]] == ["fedprox"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "fedavg,fedprx"], "unknown algorithm 'fedprx': did you mean 'fedprox'?"),
        (["--policies", "static,dulf"], "unknown policy 'dulf': did you mean 'dufl'?"),
        (["--algorithms", "fedavg,fedavg"], "--algorithms must be distinct names, got 'fedavg,fedavg'"),
        (["--policies", "dufl,dufl"], "--policies must be distinct names, got 'dufl,dufl'"),
        (["--policies", ","], "--policies must be at least one name, got ','"),
        (["--algorithms", ""], "--algorithms must be at least one name, got ''"),
        (["--algorithms", "fedavg,nowhere.at.all:Own"], "algorithm must be importable, got 'nowhere.at.all:"),
        (["--policies", "static,nowhere.at.all:Own"], "policy must be importable, got 'nowhere.at.all:Own'"),
        (
            told("model=nowhere.at.all:Own", "device=cpu", "workers=1"),
            "model must be importable, got 'nowhere.at.all:Own'",
        ),
        (told("dataset=digit"), "unknown dataset 'digit': did you mean 'digits'?"),
    ],
)
def test_compare_checks_everything_before_it_runs(
    dufl_command: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = dufl_command("compare", *told(*SMALL), *arguments, "--out", str(tmp_path / "all"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert message in err
    assert not (tmp_path / "all").exists()


def test_compare_finds_a_run_in_the_way_before_it_runs(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "all"
    dufl_command("compare", *told(*SMALL), "--policies", "static", "--out", str(out))
    before = files(out)
    code, _, err = dufl_command("compare", *told(*SMALL), "--policies", "dufl,static", "--out", str(out))
    assert code == 2
    assert "holds a run already: add --resume" in err
    assert files(out) == before


def test_compare_to_resume_needs_out(dufl_command: Any) -> None:
    code, _, err = dufl_command("compare", "--resume")
    assert (code, err) == (2, "error: --out must be given with --resume\n")
    assert dufl_command("compare", "--seeds", "0")[0] == 2


def test_one_seed_has_no_standard_deviation(dufl_command: Any) -> None:
    arguments = [*told(*SMALL), "--policies", "static"]
    code, out, _ = dufl_command("compare", *arguments, "--json")
    assert code == 0
    (cell,) = json.loads(out)["cells"]
    assert cell["accuracy_std"] is None
    assert "±" not in dufl_command("compare", *arguments)[1]


def test_compare_over_datasets_and_rules(dufl_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "all"
    arguments = [
        *told(*SMALL),
        "--datasets",
        "digits,weather",
        "--discards",
        "uniform,oldest",
        "--policies",
        "dufl",
    ]
    options = ["--seeds", "2", "--baseline", "oldest", "--out", str(out)]
    code, shown, err = dufl_command("compare", *arguments, *options)
    assert (code, err) == (0, "")
    names = {f"{data}-fedavg-dufl-{rule}-{n}" for data in ("digits", "weather")
             for rule in ("uniform", "oldest") for n in (0, 1)}  # fmt: skip
    assert names <= {path.name for path in out.iterdir()}
    assert {"ranks.png", "ranks.svg", "ranks.pdf", "statistics.tex"} <= {path.name for path in out.iterdir()}
    assert "mean ranks on 2 problems" in shown
    code, text, _ = dufl_command("compare", *arguments, *options, "--resume", "--json")
    found = json.loads(text)["statistics"]
    assert [(row["problem"], row["baseline"]) for row in found["rows"]] == [
        *(("digits", "digits/fedavg-dufl-oldest"), ("digits", None)),
        *(("weather", "weather/fedavg-dufl-oldest"), ("weather", None)),
    ]
    assert set(found["ranks"]["methods"]) == {"fedavg-dufl-uniform", "fedavg-dufl-oldest"}
    frame = read_rows(out / "statistics.csv")
    assert [row["name"] for row in frame] == [row["name"] for row in found["rows"]]


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_compare_several_files(dufl_command: Any, tmp_path: Path) -> None:
    """Every file is a problem, with the same methods."""
    for name, rounds in (("one", 3), ("two", 4)):
        (tmp_path / f"{name}.toml").write_text(
            f"[game]\nnum_rounds = {rounds}\n[training]\nlocal_epochs = 1\n"
        )
    files = [str(tmp_path / name) for name in ("one.toml", "two.toml")]
    code, text, err = dufl_command("compare", *files, *told("clients.count=3"), "--json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    assert [cell["name"] for cell in found["cells"]] == [
        *("one/fedavg-static", "one/fedavg-dufl", "two/fedavg-static", "two/fedavg-dufl")
    ]
    assert found["statistics"]["ranks"]["problems"] == ["one", "two"]
    (tmp_path / "again").mkdir()
    (tmp_path / "again/one.toml").write_text("[game]\nnum_rounds = 3\n")
    for other in (str(tmp_path / "again/one.toml"), files[0]):
        code, _, err = dufl_command("compare", files[0], other)
        assert code == 2
        assert "FILE must be files of different names" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline", "fedsgd"], "--baseline must be one of fedavg-static, fedavg-dufl, fedavg, static,"),
        (["--discards", "oldst"], "unknown discard 'oldst': did you mean 'oldest'?"),
        (["--datasets", "digits,digits"], "--datasets must be distinct names, got 'digits,digits'"),
        (["num_rounds=5"], "to change a value, use --set num_rounds=5"),
    ],
)
def test_compare_refuses_what_it_cannot_compare(
    dufl_command: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = dufl_command("compare", *told(*SMALL), *arguments, "--out", str(tmp_path / "all"))
    assert (code, out) == (2, "")
    assert_sentence(err)
    assert message in err
    assert not (tmp_path / "all").exists()
    assert dufl_command("compare", "--jobs", "0")[0] == 2
