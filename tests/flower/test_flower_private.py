"""What only its owner may know is written for its owner alone, and is in no bundle that is sent to others."""

import os
import shutil
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from dufl import Clients
from dufl.flower.in_process import Answer
from flower_grid import Run
from flower_processes import BIN, EXAMPLES, flower_home, run, script


@pytest.fixture(params=[0o022, 0o000], ids=oct)
def umask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Files may be as open as this allows, and nobody narrows them afterwards."""
    chmod = os.chmod

    def narrowed(path: Any, mode: int, **how: Any) -> None:
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0 or mode & 0o077, f"{path} was open at first"
        chmod(path, mode, **how)

    monkeypatch.setattr(os, "chmod", narrowed)
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(*paths: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_files_of_a_client(tmp_path: Path, umask: int) -> None:
    seen: dict[str, int] = {}

    def look(_: int, __: Message, answer: Answer) -> Message:
        reply = answer()
        seen.update(modes(tmp_path / "clients", *(tmp_path / "clients").iterdir()))
        return reply

    Run(tmp_path, "clients.count=2", "game.num_rounds=3", negotiate=True, meddle=look).start()
    assert seen.pop("clients") == 0o700
    assert {"client-0.sqlite", "client-1.sqlite", "client-0.sqlite.collected-0.npz"} <= seen.keys()
    assert set(seen.values()) == {0o600}


def test_costs_in_an_app_directory(tmp_path: Path, umask: int, dufl_command: Any) -> None:
    csv = tmp_path / "clients.csv"
    csv.write_text(Clients.draw(2).to_csv())
    given = ("--set", f"clients.file={csv}", "--data", str(tmp_path / "data"))
    code, _, err = dufl_command("flower", "new", str(tmp_path / "app"), *given)
    assert (code, err) == (0, "")
    written = modes(*(tmp_path / "data").iterdir())
    assert written == dict.fromkeys(("client.toml", "server.toml", "clients.csv"), 0o600)


def test_keys_of_a_deployment(tmp_path: Path, umask: int) -> None:
    deploy = script()
    with deploy.Deployment(tmp_path / "made", 1):
        pass
    for key in ("node-0", "server.key"):
        assert "PRIVATE KEY" in (tmp_path / "made" / key).read_text()
    assert set(modes(tmp_path / "made" / "node-0", tmp_path / "made" / "server.key").values()) == {0o600}
    assert modes(tmp_path / "made") == {"made": 0o700}


def bundled(app: Path, folder: Path) -> dict[str, bytes]:
    """What `flwr build` puts into the bundle of an app directory."""
    folder.mkdir()
    with flower_home(folder / "home") as environment:
        done = run(["flwr", "build", "--app", str(app)], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    (bundle,) = folder.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def litter(app: Path) -> None:
    """Fill an app directory with what runs, users and tools leave there."""
    for name in (
        *("run/config.toml", "run/summary.json", "run/metrics.jsonl", "run-2/deal.json", "run/report.md"),
        *("clients/client-0.json", "clients/client-0.sqlite", "node-0", "server.key", "secrets.yaml"),
        *(".venv/lib/x.py", "notes.md", "client-1.toml", ".lock", "model.pt", "tests/conftest.py"),
    ):
        path = app / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("collection_cost = 'SECRET'\n")


@pytest.mark.parametrize("example", [None, "stock", "fresh"])
def test_a_bundle_holds_the_app_alone(tmp_path: Path, example: str | None) -> None:
    app = tmp_path / "mine"
    if example is None:
        done = run([str(BIN / "dufl"), "flower", "new", str(app), "--data", str(app)])
        assert done.returncode == 0, done.stderr
    else:
        shutil.copytree(EXAMPLES / "flower-pytorch" / example, app)
    own = {str(path.relative_to(app)) for path in (app / "app").glob("*.*")}
    litter(app)
    found = bundled(app, tmp_path / "built")
    assert found.keys() == own | {"pyproject.toml", "LICENSE", "README.md", ".info/CONTENT"}
    assert len(own) >= 3
    assert not any(b"collection_cost" in content for content in found.values())
    if example == "fresh":  # its costs are stated by nodes or on the command line
        config = tomllib.loads(found["pyproject.toml"].decode())["tool"]["flwr"]["app"]["config"]
        assert (config["collection-cost"], config["training-cost"]) == ("", "")
