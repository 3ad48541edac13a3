"""A real deployment on loopback: SuperLink with TLS and node keys, SuperNodes, a run, kills."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dufl.data.durable import DurableBuffer
from dufl.experiment.run_directory import read_metrics
from dufl.experiment.train import train
from dufl.flower.ledger import Entry, Ledger
from flower_processes import DEPLOY, run, script, with_home
from loading import load
from reports import report

SMALL = ("game.num_rounds=3", "clients.initial_volume=60", "training.local_epochs=2")


deploy = script()


@contextmanager
def deployed(folder: Path, clients: int, changes: Sequence[str]) -> Iterator[Any]:
    with deploy.Deployment(folder, clients, changes) as made:
        made.start_superlink()
        for client in range(clients):
            made.register(client)
            made.start_node(client)
        yield made


@pytest.fixture
def deployment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with deployed(tmp_path, 3, getattr(request, "param", SMALL)) as made:
        yield made


def set_timeout(deployment: Any, seconds: float) -> None:
    project = deployment.app / "pyproject.toml"
    project.write_text(project.read_text().replace("timeout = 600.0", f"timeout = {seconds}"))


def whole(run: Path, rounds: int) -> list[Entry]:
    """The entries of a run that went through: its model, its metrics and a ledger with every round once."""
    assert (run / "model.safetensors").exists()
    assert json.loads((run / "summary.json").read_text())["rounds"] == rounds
    assert [record.round for record in read_metrics(run)] == list(range(rounds))
    with Ledger(run / "ledger.sqlite") as ledger:
        ledger.check()
        assert list(ledger.rounds()) == list(range(rounds))
        return ledger.entries()


def assert_whole(deployment: Any, rounds: int) -> list[Entry]:
    return whole(deployment.app / "run", rounds)


def assert_refused(deployment: Any, why: str, **how: Any) -> None:
    """Start a node that must not get in: it ends, and says why."""
    deployment.stop("node-2")
    (deployment.folder / "node-2.log").unlink()
    deployment.start_node(2, **how)
    assert deployment.processes["node-2"].wait(120) != 0
    assert why in deployment.log("node-2")


def assert_paid(run: Path, rounds: int, clients: int, out: str) -> None:
    """An update was planned and paid for, and the ledger that was printed says so."""
    entries, deal = whole(run, rounds), json.loads((run / "deal.json").read_text())
    assert deal["phases"] <= 12
    assert deal["residual"] <= 1e-3
    volumes = [record.total_volume for record in read_metrics(run)]
    assert volumes[-1] > volumes[0] > 0  # fresh data were collected
    assert len(entries) == rounds * clients
    assert all(entry.owed > 0 and not entry.reason for entry in entries)
    owed = rounds * round(100 * deal["payment"])
    assert sum(entry.owed for entry in entries) == owed
    assert f"Owed for {rounds} of {rounds} rounds: {owed // 100}.{owed % 100:02d}" in out
    for client in range(clients):
        assert f"│ {client:6} │ {rounds:11} │" in out


def test_the_example_runs_and_runs_again(tmp_path: Path) -> None:
    """As its README says, but smaller; then again: the same keys, nothing lost, nothing left behind."""
    folder = tmp_path / "deployment"
    command = [sys.executable, str(DEPLOY), str(folder)]
    first = run([*command, "--clients", "2", "--set", "game.num_rounds=2"])
    assert first.returncode == 0, first.stderr
    assert_paid(folder / "app" / "run", 2, 2, first.stdout)
    deal = json.loads((folder / "app" / "run" / "deal.json").read_text())
    page = report(folder / "app" / "run", out=tmp_path / "report.html")
    assert f"R = {deal['payment']:,.2f} per round" in page.text
    assert "found by querying the clients" in page.text
    assert page.csv("volume")["round"] == [0, 1]
    keys = {path.name: path.read_bytes() for path in folder.glob("node-?")}
    other = run([*command, "--clients", "3"])
    assert (other.returncode, other.stdout, other.stderr.count("\n")) == (1, "", 1)
    assert f"error: {folder} was created with --clients 2" in other.stderr
    again = run(command)
    assert (again.returncode, again.stderr) == (0, "")
    assert_paid(folder / "app" / "run-2", 2, 2, again.stdout)
    whole(folder / "app" / "run", 2)
    assert keys == {path.name: path.read_bytes() for path in folder.glob("node-?")}
    assert not with_home(folder / "home")


@pytest.mark.slow
def test_the_example_interrupted_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    command = [sys.executable, str(DEPLOY), str(folder)]
    options = ["--clients", "2", "--set", "game.num_rounds=6"]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as begun:
        metrics = folder / "app" / "run" / "metrics.jsonl"
        while not metrics.exists() or not metrics.read_text().count("\n"):
            assert begun.poll() is None
            time.sleep(0.2)
        meanwhile = run(command)
        assert (meanwhile.returncode, meanwhile.stderr.count("\n")) == (1, 1)
        assert "error: DIR must not be in use" in meanwhile.stderr
        os.kill(begun.pid, signal.SIGTERM)
        assert begun.wait(60) == 143
    assert not with_home(folder / "home")
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert_paid(folder / "app" / "run", 6, 2, done.stdout)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("mine")
    done = run([sys.executable, str(DEPLOY), str(tmp_path)])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: DIR must be new, empty or the directory of a deployment, got {tmp_path}\n"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_tls_and_node_keys(deployment: Any) -> None:
    deploy.write_node_key(deployment.folder, 99)
    assert_refused(deployment, "Failed to activate SuperNode", key="node-99")
    assert_refused(deployment, "All SuperNodes must be registered", key="")
    assert_refused(deployment, "requires a secure TLS connection", plaintext=True)
    deployment.start_node(2, key="", plaintext=True)
    time.sleep(15)  # it tries again and again to speak in the clear, and is not answered
    before = deployment.flwr("supernode", "list", "here", "--format", "json", quiet=True)
    assert len(json.loads(before[before.index("{") :])["nodes"]) == 3


MEDDLING = """
import time
import numpy as np
from dufl.flower import messages
from dufl.flower.app import deployed_client
from dufl.flower.client_store import client_number

def meddle(message, context, answer):
    client, training = client_number(context), message.metadata.message_type.startswith("train")
    if client == 2 and training:
        time.sleep(3600)
    reply = answer(message, context)
    if client == 0 and training:
        reply.content[messages.RECORD]["volume"] += 1
    if client == 1 and training:
        arrays = messages.from_arrays(reply.content["arrays"])
        arrays["weights"] = np.full_like(arrays["weights"], np.nan)
        reply.content["arrays"] = messages.to_arrays(arrays)
    return reply

app = deployed_client([meddle])
"""


@pytest.mark.slow
def test_a_liar_a_nan_and_a_silent_one(tmp_path: Path) -> None:
    with deployed(tmp_path, 4, ("game.num_rounds=2", *SMALL[1:])) as deployment:
        (deployment.app / "app" / "client.py").write_text(MEDDLING)
        set_timeout(deployment, 60.0)
        run = deployment.run()
        assert deployment.wait(run) == "finished:completed", deployment.log("superlink")
        entries = assert_whole(deployment, 2)
    reasons = {(entry.client, entry.reason) for entry in entries}
    assert {(1, "weights that are not a number"), (2, "no reply"), (3, "")} < reasons
    assert [reason[:7] for client, reason in reasons if client == 0] == ["claimed"] * (len(reasons) - 3)
    assert {entry.client for entry in entries if entry.owed} == {3}
    payment = json.loads((deployment.app / "run" / "deal.json").read_text())["payment"]
    assert sum(entry.owed for entry in entries) == 2 * round(100 * payment)
    records = read_metrics(deployment.app / "run")
    assert [(record.participants, record.dropped) for record in records] == [(1, [2])] * 2
    assert [sorted(record.refused) for record in records] == [["0", "1"]] * 2


def test_an_app_directory_in_simulation(tmp_path: Path) -> None:
    changes = ("clients.count=3", *SMALL)
    with deploy.Deployment(tmp_path, 3, SMALL) as made:
        made.connect("insecure = true")
        made.start(
            *("superlink", "flower-superlink", "--insecure", "--simulation"),
            *("--host", "127.0.0.1", "--port", str(made.port), "--disable-runtime-dependency-installation"),
        )
        made.wait_for_port("superlink", made.port)
        size = "num-supernodes=3 client-resources-num-cpus=1"
        run = made.run("--federation-config", size, "--run-config", "negotiate=false")
        assert made.wait(run) == "finished:completed", made.log("superlink")
        assert_whole(made, 3)
    found = json.loads((made.app / "run" / "summary.json").read_text())
    assert found["fingerprint"] == train(load(None, changes)).summary()["fingerprint"]


def wait_for_rounds(deployment: Any, number: int, seconds: float = 300) -> None:
    began, path = time.monotonic(), deployment.app / "run" / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < number:
        assert time.monotonic() - began < seconds, deployment.log("superlink")
        time.sleep(0.2)


LONG = ("game.num_rounds=6", *SMALL[1:])


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [("game.num_rounds=12", *SMALL[1:])], indirect=True)
def test_a_supernode_killed_and_restarted(deployment: Any) -> None:
    set_timeout(deployment, 45.0)
    run = deployment.run()
    wait_for_rounds(deployment, 2)
    deployment.stop("node-1")
    deployment.restart_node(1)
    assert deployment.wait(run) == "finished:completed", deployment.log("superlink")
    entries = assert_whole(deployment, 12)
    mine = [entry for entry in entries if entry.client == 1]
    assert mine[-1].round == 11
    assert not mine[-1].reason
    assert {entry.reason for entry in entries} <= {"", "no reply"}
    volumes = [record.volumes[1] for record in read_metrics(deployment.app / "run")]
    with DurableBuffer.open(deployment.folder / "clients" / "client-1.sqlite") as buffer:
        assert buffer.round == 11
        assert len(buffer) == volumes[-1] > 0  # it holds what it planned, nothing was lost


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [LONG], indirect=True)
def test_a_server_killed_and_resumed(deployment: Any) -> None:
    deployment.run()
    wait_for_rounds(deployment, 3)
    deployment.stop("superlink")
    kept = (deployment.app / "run" / "metrics.jsonl").read_text().splitlines()
    deployment.start_superlink()
    run = deployment.run()
    assert deployment.wait(run) == "finished:completed", deployment.log("superlink")
    entries = assert_whole(deployment, 6)
    assert all(not entry.reason for entry in entries)
    after = (deployment.app / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["accuracy"] for line in after[:3]] == [
        json.loads(line)["accuracy"] for line in kept[:3]
    ]
