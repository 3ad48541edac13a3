"""The containers: compose.yaml says what deploy.py does, and its commands work as processes."""

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import compose
from dufl.flower.ledger import Ledger
from flower_processes import run

NODES = ("supernode-0", "supernode-1", "supernode-2")
CHANGES = ("game.num_rounds=2", "training.local_epochs=1")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    folder = tmp_path / "deployment"
    changes = [part for change in CHANGES for part in ("--set", change)]
    done = run([sys.executable, str(compose.FOLDER / "prepare.py"), str(folder), *changes])
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_commands_are_those_of_the_example() -> None:
    secrets, services = Path("/run/secrets"), compose.read()["services"]
    superlink = compose.deploy.superlink_command("0.0.0.0", 8000, secrets, Path("/state"))
    assert services["superlink"]["command"] == superlink
    trust = ["--root-certificates", f"{secrets}/ca.crt", "--auth-supernode-private-key", f"{secrets}/node"]
    for client, name in enumerate(NODES):
        node = compose.deploy.node_config(client, secrets / "client.toml", Path("/data"))
        expected = compose.deploy.supernode_command("superlink:8000", "127.0.0.1", 9094, trust, node)
        assert services[name]["command"] == expected
    assert {name for name in services if name.startswith("supernode")} == set(NODES)


def test_the_file_follows_the_specification() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec", str(compose.FOLDER / "compose.yaml")]
    done = run([sys.executable, "-m", "check_jsonschema", *schema])
    assert done.returncode == 0, done.stdout


def test_a_container_sees_what_is_its_own_and_is_not_root(prepared: Path) -> None:
    variables = dict(line.split("=") for line in (prepared / ".env").read_text().splitlines())
    table = compose.read(variables)
    seen: dict[str, set[str]] = {}
    for name, service in table["services"].items():
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        places = {Path(place) for place in compose.mounts(table, service).values()}
        assert all(place.exists() and prepared in place.parents for place in places)
        files = {file for place in places for file in (place.rglob("*") if place.is_dir() else [place])}
        seen[name] = {str(file.relative_to(prepared)) for file in files if stat_private(file)}
    assert seen["superlink"] == {"server.key", "server/server.toml"}
    assert seen["run"] == seen["register"] == set()
    for client, name in enumerate(NODES):
        assert seen[name] == {f"node-{client}", f"client-{client}.toml"}
    assert stat.S_IMODE(prepared.stat().st_mode) == 0o700


def stat_private(path: Path) -> bool:
    return path.is_file() and not stat.S_IMODE(path.stat().st_mode) & 0o077


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments."""
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def test_the_image(tmp_path: Path) -> None:
    """It is built from files that exist and are sent, and its user is not root."""
    root = compose.FOLDER.parents[1]
    parts = instructions((compose.FOLDER / "Dockerfile").read_text())
    assert {word for word, _ in parts} <= {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER"}
    assert parts[-1] == ("USER", "1000:1000")
    copied = [rest.split()[:-1] for word, rest in parts if word == "COPY" and "--from" not in rest]
    ignored = (compose.FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert {name for names in copied for name in names} == sent
    assert all((root / name).exists() for name in sent)
    build = compose.read()["services"]["superlink"]["build"]
    assert (compose.FOLDER / build["context"]).resolve() == root
    assert (root / build["dockerfile"]) == compose.FOLDER / "Dockerfile"


def test_prepare_does_not_touch_what_is_there(tmp_path: Path) -> None:
    command = [sys.executable, str(compose.FOLDER / "prepare.py")]
    done = run([*command, str(tmp_path)])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    wrong = run([*command, str(tmp_path / "new"), "--set", "game.num_rounds=0"])
    assert wrong.returncode == 2
    assert "num_rounds must be" in wrong.stderr


def states(services: Any) -> dict[str, bool]:
    return {name: services.healthy(name) for name in ("superlink", *NODES)}


@pytest.mark.slow
def test_the_commands_work(prepared: Path) -> None:
    with compose.composed(prepared) as services:
        assert not any(states(services).values())
        services.up("run")
        assert all(states(services).values())
        assert services.running["run"].wait(300) == 0, services.log("run")
        with Ledger(prepared / "server" / "run" / "ledger.sqlite") as ledger:
            ledger.check()
            paid = [(entry.round, entry.client) for entry in ledger.entries() if entry.owed]
        assert paid == [(t, k) for t in range(2) for k in range(3)], services.log("run")
        for client in range(3):
            files = (prepared / f"client-{client}" / "samples").iterdir()
            assert f"client-{client}.sqlite" in {file.name for file in files}
        del services.running["register"]
        services.up("register")  # the keys are registered already
        services.wait_for("register", "service_completed_successfully")
        services.kill("supernode-1")
        assert states(services) == dict.fromkeys(("superlink", *NODES), True) | {"supernode-1": False}
        services.kill("superlink")
        assert not services.healthy("superlink")


def test_a_registration_that_fails_is_an_error(prepared: Path) -> None:
    with compose.composed(prepared) as services:
        done = services.start("register", services.services["register"]["command"])
        with pytest.raises(subprocess.TimeoutExpired):
            done.wait(0)
        assert done.wait(120) != 0  # there is no SuperLink
