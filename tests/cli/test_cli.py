"""The commands as a user types them: results, files, errors, exit codes."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from command_line import figures
from results import reseal


def test_plan_as_json_is_the_plan_in_python(dufl_command: Any) -> None:
    code, out, _ = dufl_command("plan", "--json")
    found = json.loads(out)
    plan = dufl.solve()
    certificate = dufl.certify(plan)
    assert code == 0
    assert found["payment"] == plan.payment
    assert found["conservation_rate"] == plan.conservation_rate
    assert found["server_cost"] == plan.server_cost
    assert found["total_payment"] == plan.payment * 100
    assert found["total_volume"] == plan.total_volume.tolist()
    assert found["mean_staleness"] == plan.mean_staleness.tolist()
    assert found["no_update_cost"] > found["algorithm1_cost"] > found["server_cost"]
    assert found["deviation_gain"] == certificate.deviation_gain <= 1e-8
    assert found["influence_gain"] == certificate.influence
    assert found["residual"] <= 1e-9
    assert found["passes"] <= 15
    assert found["converged"] is True
    assert (found["method"], found["competition"]) == ("stackelberg", "mean-field")


def test_plan_for_people(dufl_command: Any) -> None:
    code, out, err = dufl_command("plan")
    assert code == 0
    assert err == ""
    for words in (
        "Pay ",
        "conservation rate θ",
        "cost without update",
        "cost of Algorithm 1",
        "clients with negative utility",
    ):
        assert words in out
    assert "certificate (independent)" in out
    assert "█" in out


def test_out_writes_everything_and_certify_reads_it(dufl_command: Any, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    code, _, _ = dufl_command("plan", "--set", "num_rounds=20", "--out", str(folder))
    assert code == 0
    names = {path.name for path in folder.iterdir()}
    drawn = figures("trajectories", "cost_surface", "utilities")
    assert names == {"plan.json", "plan.npz", "config.toml", "manifest.json"} | drawn
    summary = json.loads((folder / "plan.json").read_text())
    with np.load(folder / "plan.npz") as arrays:
        for name in ("volume", "collection", "staleness"):
            assert arrays[name].shape == (20, 15)
        np.testing.assert_allclose(arrays["volume"].sum(axis=1), arrays["total_volume"], rtol=1e-12)
        assert arrays["total_volume"].tolist() == summary["total_volume"]
        assert (arrays["payment"], arrays["conservation_rate"]) == (
            summary["payment"],
            summary["conservation_rate"],
        )
    code, out, _ = dufl_command("plan", str(folder / "config.toml"), "--json")
    assert json.loads(out)["payment"] == summary["payment"]
    code, out, _ = dufl_command("certify", str(folder), "--json")
    assert code == 0
    assert json.loads(out)["holds"] is True


def test_certify_refuses_a_doctored_plan(dufl_command: Any, tmp_path: Path) -> None:
    dufl_command("plan", "--set", "num_rounds=10", "--out", str(tmp_path))
    with np.load(tmp_path / "plan.npz") as arrays:
        changed = dict(arrays)
    changed["collection"][3, 4] *= 1.1
    np.savez(tmp_path / "plan.npz", **changed)
    code, _, err = dufl_command("certify", str(tmp_path))
    assert code == 2
    assert "plan.npz must be unchanged" in err
    reseal(tmp_path)
    code, out, _ = dufl_command("certify", str(tmp_path))
    assert code == 1
    assert "false" in out
    (tmp_path / "plan.npz").write_bytes(b"not a zip")
    reseal(tmp_path)
    code, _, err = dufl_command("certify", str(tmp_path))
    assert code == 2
    assert "plan.npz cannot be read" in err
    code, _, err = dufl_command("certify", str(tmp_path / "nothing"))
    assert code == 2
    assert "must be a directory that `dufl plan --out` wrote" in err


def test_a_given_offer_and_a_pinned_half(dufl_command: Any, tmp_path: Path) -> None:
    _, out, _ = dufl_command("plan", "--payment", "60", "--conservation-rate", "0.4", "--json")
    given = json.loads(out)
    assert (given["payment"], given["conservation_rate"], given["method"]) == (60, 0.4, "given")
    _, out, _ = dufl_command("plan", "--payment", "60", "--json")
    pinned = json.loads(out)
    assert pinned["payment"] == 60
    dufl_command("plan", "--payment", "60", "--set", "num_rounds=20", "--out", str(tmp_path))
    _, out, _ = dufl_command("plan", str(tmp_path / "config.toml"), "--json")
    assert json.loads(out)["payment"] == 60
    assert pinned["server_cost"] < given["server_cost"]
    _, out, _ = dufl_command("plan", "--conservation-rate", "0.4", "--json")
    assert json.loads(out)["conservation_rate"] == 0.4


@pytest.mark.parametrize(("rate", "least"), [("0.5", 1e20), ("0.0005", 1e300), ("0", np.inf)])
def test_data_that_dies_out_is_reported(dufl_command: Any, rate: str, least: float) -> None:
    code, out, _ = dufl_command("plan", "--payment", "0", "--conservation-rate", rate, "--json")
    assert code == 0
    found = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert "1e999" not in out
    if found["server_cost"] is None:
        assert (found["server_cost"], found["server_cost_infinite"]) == (None, True)
        by_term = found["server_cost_by_term"]
        assert (by_term["volume"], by_term["volume_infinite"]) == (None, True)
    else:
        assert np.isfinite(least)
        assert found["server_cost"] >= least
        assert "server_cost_infinite" not in found
    code, out, _ = dufl_command("plan", "--payment", "0", "--conservation-rate", rate)
    assert code == 0


def test_algorithm_1_keeps_its_trace(dufl_command: Any, tmp_path: Path) -> None:
    changes = ["method=algorithm1", "search=direct", "max_iterations=5", "num_rounds=40"]
    arguments = [part for change in changes for part in ("--set", change)]
    code, out, _ = dufl_command("plan", *arguments, "--out", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["method"] == "algorithm1"
    with np.load(tmp_path / "plan.npz") as arrays:
        assert arrays["trace_payment"].shape == (5,)
        assert arrays["trace_total_volume"].shape == (6, 40)


def test_exact_competition(dufl_command: Any) -> None:
    _, out, _ = dufl_command("plan", "--set", "competition=nash", "--set", "num_rounds=20", "--json")
    found = json.loads(out)
    assert found["competition"] == "nash"
    assert found["deviation_gain"] == found["influence_gain"] <= 1e-8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--payment", "-1"], "payment must be >= 0, got -1.0"),
        (["--payment", "nan"], "payment must be a finite number, got nan"),
        (["--conservation-rate", "1.3"], "conservation_rate must be in [0, 1], got 1.3"),
        (["--set", "num_rounds=1"], "num_rounds must be >= 2, got 1"),
        (["--set", "game.sigma=1"], "unknown key 'sigma' in [game]"),
        (
            ["--set", "capacity=500"],
            "initial_volume must be <= capacity = 500 of client 0, got 1000.0",
        ),
        (["nowhere.toml"], "nowhere.toml must be a readable TOML file"),
        (["--set", "count=1", "--set", "competition=nash"], "must be 'mean-field' with a single client"),
    ],
)
def test_bad_input_ends_with_2_and_writes_nothing(
    dufl_command: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    folder = tmp_path / "out"
    code, out, err = dufl_command("plan", *arguments, "--out", str(folder))
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not folder.exists()


def test_a_client_with_a_small_buffer_fills_it(dufl_command: Any) -> None:
    capacity = "clients.capacity=[1500,1500,120,1500]"
    volumes = "clients.initial_volume=[1000,1000,10,1000]"
    told = ("--set", "clients.count=4", "--set", capacity, "--set", volumes, "--json")
    code, out, _ = dufl_command("plan", *told)
    facts = json.loads(out)
    assert code == 0
    assert [rounds > 0 for rounds in facts["full_rounds"]] == [False, False, True, False]
    assert [price > 0 for price in facts["shadow_price"]] == [False, False, True, False]
    assert facts["full_clients"] == 1


def test_algorithm_1_keeps_to_capacities_too(dufl_command: Any) -> None:
    tight = ("--set", "initial_volume=100", "--set", "capacity=120", "--set", "num_rounds=20")
    code, out, _ = dufl_command("plan", *tight, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["full_clients"] > 0
    assert facts["algorithm1_cost"] >= facts["server_cost"]
    code, out, _ = dufl_command("sweep", "time_sensitivity=0.75,0.8", *tight)
    assert code == 0
    assert "–" not in out


def test_out_that_cannot_be_a_directory(dufl_command: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = dufl_command("plan", "--out", str(tmp_path / "file"))
    assert code == 2
    assert "--out must be a directory that can be written to" in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_init_writes_an_example_once(dufl_command: Any, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    code, out, _ = dufl_command("init", str(path))
    assert code == 0
    assert f"dufl plan {path}" in out
    path.write_text("[game]\nnum_rounds = 3")
    code, _, err = dufl_command("init", str(path))
    assert code == 2
    assert "must not exist yet" in err
    assert path.read_text() == "[game]\nnum_rounds = 3"
    assert dufl_command("init", str(path), "--force")[0] == 0
    assert dufl_command("init", str(tmp_path / "no" / "x.toml"))[0] == 2


def test_sweep(dufl_command: Any, tmp_path: Path) -> None:
    axis = "game.time_sensitivity=0.4,0.8,1.2"
    code, out, _ = dufl_command("sweep", axis, "--set", "num_rounds=20", "--seeds", "2", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert len(rows) == 6
    payments = [row["payment"] for row in rows if row["seed"] == 0]
    assert payments == sorted(payments)
    code, out, _ = dufl_command("sweep", axis, "--set", "num_rounds=20", "--out", str(tmp_path))
    assert "U saved" in out
    assert {path.name for path in tmp_path.iterdir()} == figures("sweep") | {"sweep.csv", "manifest.json"}
    assert dufl_command("sweep", "time_sensitivity")[0] == 2
    assert dufl_command("sweep", "clients.seed=0,1", "--seeds", "2")[0] == 2
    code, out, _ = dufl_command("sweep", "payment_range=[0,100],[0,500]", "--set", "num_rounds=9", "--json")
    assert [row["game.payment_range"] for row in json.loads(out)["rows"]] == [[0, 100], [0, 500]]


def test_a_sweep_over_two_keys_has_all_combinations(dufl_command: Any, tmp_path: Path) -> None:
    axes = ("time_sensitivity=0.5,1.5", "num_rounds=5,9,12")
    (tmp_path / "f.toml").write_text("[clients]\ncount = 3\n")
    out = str(tmp_path / "out")
    code, text, _ = dufl_command("sweep", *axes, str(tmp_path / "f.toml"), "--json", "--out", out)
    found = json.loads(text)
    assert (code, found["keys"]) == (0, ["game.time_sensitivity", "game.num_rounds"])
    rows = [(row["game.time_sensitivity"], row["game.num_rounds"]) for row in found["rows"]]
    assert rows == [(s, t) for s in (0.5, 1.5) for t in (5, 9, 12)]
    plan = dufl.solve(dufl.Game(clients=dufl.Clients.draw(3), time_sensitivity=1.5, num_rounds=12))
    assert found["rows"][-1]["payment"] == plan.payment
    code, text, _ = dufl_command("sweep", *axes, str(tmp_path / "f.toml"))
    assert "time_sensitivity" in text
    assert "num_rounds" in text


def test_values_of_a_sweep_are_values(dufl_command: Any, tmp_path: Path) -> None:
    few = ("--set", "num_rounds=5")
    for axis, values in {
        "time_sensitivity=0.5,1e0": [0.5, 1.0],
        "clients.count=2,3": [2, 3],
        "competition=nash,mean-field": ["nash", "mean-field"],
        "collection_cost={low=1e-4, high=1e-3},1e-3": [{"low": 1e-4, "high": 1e-3}, 1e-3],
    }.items():
        code, out, err = dufl_command("sweep", axis, *few, "--json", "--out", str(tmp_path))
        assert code == 0, err
        found = json.loads(out)
        assert [row[found["keys"][0]] for row in found["rows"]] == values
        with (tmp_path / "sweep.csv").open() as stream:
            rows = list(csv.reader(stream))
        assert rows[0][0].partition(".")[2] == axis.partition("=")[0].rpartition(".")[2]
        assert [row[0] for row in rows[1:]] == [v if isinstance(v, str) else json.dumps(v) for v in values]


def test_a_sweep_with_a_pinned_offer(dufl_command: Any) -> None:
    arguments = ["sweep", "time_sensitivity=0.5,1", "--set", "num_rounds=9", "--payment", "40", "--json"]
    rows = json.loads(dufl_command(*arguments)[1])["rows"]
    assert [row["payment"] for row in rows] == [40, 40]
    _, out, _ = dufl_command("plan", "--set", "num_rounds=9", "--set", "time_sensitivity=1.0", *arguments[4:])
    assert json.loads(out)["conservation_rate"] == rows[1]["conservation_rate"]
    code, out, _ = dufl_command(*arguments[:-3], "--payment", "0", "--conservation-rate", "0")
    assert code == 0
    assert "nan" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a=1,2", "b=3,4"], "unknown key 'a'"),
        (
            ["num_rounds=4,5", "num_rounds=6"],
            "KEY=V1,V2,… must be given once per key, got game.num_round",
        ),
        (["num_rounds=4,5", "a.toml", "b.toml"], "FILE must be one TOML file, got a.toml, b.toml"),
        (["sigma=1,2"], "unknown key 'sigma': did you mean 'game.time_sensitivity' (σ)?"),
        (["seed=1,2"], "the axis must be one of clients.seed, leader.seed, training.seed, got seed"),
        (["num_rounds"], "the axis must be KEY=V1,V2,…, got 'num_rounds'"),
        (
            ["num_rounds=4", "--set", "seed=1"],
            "--set must be one of clients.seed, leader.seed, training.seed",
        ),
        (["num_rounds=4", "--set", "seed"], "--set must be section.key=value, got 'seed'"),
        (["payment_range=[0,1]", "--payment", "3"], "--payment must be left out when game.payment_range var"),
    ],
)
def test_what_a_sweep_refuses(dufl_command: Any, arguments: list[str], message: str) -> None:
    code, out, err = dufl_command("sweep", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "train", "compare"])
def test_a_change_without_its_option(
    dufl_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    code, out, err = dufl_command(command, "num_rounds=4")
    assert (code, out) == (2, "")
    text = "FILE must be a TOML file that exists, got num_rounds=4: to change a value, use --set num_rounds=4"
    assert err == f"error: {text}\n"
    monkeypatch.chdir(tmp_path)
    Path("a=b.toml").write_text("[game]\nnum_rounds = 1")
    assert dufl_command(command, "a=b.toml")[2] == "error: a=b.toml: game.num_rounds must be >= 2, got 1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pln"], "No such command 'pln'. Did you mean 'plan'?"),
        (["data", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["plan", "--payement", "3"], "No such option '--payement'. Did you mean '--payment'?"),
        (["train", "--nonsense"], "No such option '--nonsense'."),
        (["plan", "--payment", "ten"], "Invalid value for '--payment': 'ten' is not a valid float."),
        (["compare", "--seeds", "0"], "Invalid value for '--seeds': 0 is not in the range 1<=x<=100000."),
        (["sweep"], "Missing argument 'KEY=V1,V2,… [FILE]'."),
    ],
)
def test_usage_errors_are_plain(dufl_command: Any, arguments: list[str], message: str) -> None:
    code, out, err = dufl_command(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith("Usage: dufl")
    assert err.splitlines()[-1] == f"Error: {message}"


STRANGE = (
    *("game.time_sensitivity=" + "9" * 5000, "game.num_rounds=" + "[" * 3000 + "]" * 3000),
    *("clients.count=1" + "0" * 400, "data_dir=\udcff", 'clients.file="\\u0000"', "x" * 5000, "=", "σ=1"),
    "game.learning_rate=0x" + "f" * 5000,
)


@pytest.mark.parametrize("change", STRANGE, ids=range(len(STRANGE)))
def test_strange_changes_as_a_process(change: str) -> None:
    command = Path(sys.executable).with_name("dufl")
    done = subprocess.run(
        [command, "plan", "--set", change.encode(errors="surrogateescape")], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1
    assert len(done.stderr) < 300


def test_clients_from_csv_travel_with_the_plan(dufl_command: Any, tmp_path: Path) -> None:
    lines = ["initial_volume,collection_cost,training_cost", *["100,1e-3,1e-5"] * 3]
    (tmp_path / "c.csv").write_text("\n".join(lines))
    (tmp_path / "f.toml").write_text("[clients]\nfile = 'c.csv'\n[game]\nnum_rounds = 9\n")
    code, out, _ = dufl_command("plan", str(tmp_path / "f.toml"), "--out", str(tmp_path / "o"), "--json")
    assert code == 0
    assert json.loads(out)["num_clients"] == 3
    assert dufl_command("certify", str(tmp_path / "o"))[0] == 0


def test_trajectories_can_be_left_out(dufl_command: Any, tmp_path: Path) -> None:
    dufl_command("plan", "--set", "num_rounds=9", "--out", str(tmp_path), "--no-trajectories")
    with np.load(tmp_path / "plan.npz") as arrays:
        assert "volume" not in arrays
        assert "total_volume" in arrays
    code, _, err = dufl_command("certify", str(tmp_path))
    assert code == 2
    assert "plan again with --trajectories" in err


def test_figures_have_the_same_bytes_every_time(dufl_command: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        dufl_command("plan", "--set", "num_rounds=9", "--out", str(tmp_path / name))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_help_and_version(dufl_command: Any) -> None:
    code, out, _ = dufl_command("--help")
    assert code == 0
    assert "plan" in out
    assert dufl_command("--version")[1] == f"dufl {dufl.__version__}\n"


def test_as_a_process() -> None:
    """The installed command itself, quiet on stderr when it is no terminal."""
    command = Path(sys.executable).with_name("dufl")
    done = subprocess.run(
        [command, "plan", "--set", "num_rounds=1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "error: game.num_rounds must be >= 2, got 1\n"
    done = subprocess.run(
        [command, "plan", "--set", "num_rounds=5", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["num_rounds"] == 5
