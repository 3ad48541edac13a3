"""`dufl flower new` and the examples: what Flower Hub asks of an app, judged by Flower's own functions."""

import importlib
import os
import re
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import collect_files, validate_project_name
from flwr.common.config import get_fab_config
from flwr.supercore.constant import APP_ID_PATTERN
from hypothesis import given
from hypothesis import strategies as st

from dufl.errors import InputError
from dufl.experiment.run_directory import read_metrics
from dufl.experiment.train import train
from dufl.flower.app import deployed_client
from dufl.flower.ledger import Ledger
from dufl.flower.scaffold import FLOWER, FLOWER_TARGET, checked_name, free_data, new_app
from dufl.learning.federation import Record
from flower_processes import BIN, EXAMPLES, flower_home, run
from loading import load

publish = importlib.import_module("flwr.cli.app_cmd.publish")  # the package has a function of this name
# Flower calls pathspec by a name that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
ROOT = Path(__file__).parents[2]
SMALL = ("clients.count=2", "game.num_rounds=2", "training.local_epochs=1")
OWN = (*SMALL, "clients.initial_volume=60", "clients.seed=3")
APP = {"app/__init__.py", "app/client.py", "app/server.py"}
REST = {".gitignore", "LICENSE", "README.md", "pyproject.toml"}


def published(app: Path) -> dict[str, bytes]:
    """What `flwr app publish` uploads, after the checks that it makes before."""
    config, warnings = load_and_validate(app / "pyproject.toml", check_module=False)
    assert not warnings
    publish._validate_app_name(app.name, "directory")
    publish._validate_app_name(config["project"]["name"], "name")
    publish._validate_description(config["project"]["description"])
    assert re.match(APP_ID_PATTERN, f"@{config['tool']['flwr']['app']['publisher']}/{app.name}")
    paths = publish._collect_file_paths(app)
    publish._validate_files(paths)
    return {path.relative_to(app.resolve()).as_posix(): path.read_bytes() for path in paths}


def assert_portable(files: dict[str, bytes], *private: str) -> None:
    """No file names a place on this machine, or anything else that is private."""
    for name, content in files.items():
        text = content.decode()
        assert not re.search(r"""["'=\s](/(home|root|tmp|Users|work)\b|file:)""", text), name
        assert not [word for word in (*private, str(Path.home())) if word in text], name


def litter(app: Path) -> None:
    for name in ("client-1.toml", "secrets.yaml", "notes.md", "run/deal.json", "clients/client-0.json"):
        (app / name).parent.mkdir(exist_ok=True)
        (app / name).write_text("collection_cost: SECRET\n")


@pytest.mark.parametrize("requires_dufl", [False, True])
def test_a_new_app_can_be_published(tmp_path: Path, requires_dufl: bool) -> None:
    app, config = tmp_path / "fresh-data", load(None, (*OWN, "game.payment_range=[0,77.5]"))
    new_app(app, config, publisher="me_2.x", data=tmp_path / "data", requires_dufl=requires_dufl)
    litter(app)
    files = published(app)
    assert files.keys() == APP | REST | {"app/config.toml"}
    assert_portable(files, str(tmp_path), "collection_cost", "initial_volume", "77.5", "SECRET")
    fab, metadata = build_fab_from_files(collect_files(app))
    assert (metadata.fab_format_version, metadata.flwr_version_target) == (1, FLOWER_TARGET)
    dependencies = get_fab_config(fab)["project"]["dependencies"]
    assert [name.partition("[")[0] for name in dependencies] == ["flwr", *["dufl"] * requires_dufl]
    public = load(app / "app" / "config.toml")
    assert (public.game.num_rounds, public.game.clients.size) == (2, 2)
    assert public.training == config.training


@pytest.mark.parametrize("value", ["{}/own.npz", "mqtt://me:SECRET@broker/readings"])
def test_places_and_addresses_are_not_published(tmp_path: Path, value: str) -> None:
    """Such a configuration is only in the directory of configurations."""
    config = load(None, SMALL).model_copy()
    data = config.data.model_copy(update={"dataset": value.format(tmp_path)})
    config = config.model_copy(update={"data": data})
    new_app(tmp_path / "app", config, data=tmp_path / "data")
    files = published(tmp_path / "app")
    assert files.keys() == APP | REST
    assert_portable(files, str(tmp_path), "SECRET")
    build_fab_from_files(collect_files(tmp_path / "app"))
    assert value.format(tmp_path) in (tmp_path / "data" / "client.toml").read_text()


@pytest.mark.parametrize("example", ["stock", "fresh"])
def test_the_examples_can_be_published(tmp_path: Path, example: str) -> None:
    app = tmp_path / example
    shutil.copytree(EXAMPLES / "flower-pytorch" / example, app)
    litter(app)
    files = published(app)
    assert files.keys() == REST | {f"app/{n}.py" for n in ("__init__", "client_app", "server_app", "task")}
    assert_portable(files, "SECRET")
    build_fab_from_files(collect_files(app))


@given(st.text("aZ09-_ é", min_size=1, max_size=40))
def test_a_name_that_is_accepted_is_one_for_flower(name: str) -> None:
    accepted = ""
    with suppress(InputError):
        accepted = checked_name(Path("/x") / name)
    if accepted:
        validate_project_name(accepted, "")
    assert bool(accepted) == (name[0] in "aZ" and len(name) <= 32 and not set(name) & set("_ é"))


def test_names_that_are_refused(tmp_path: Path, dufl_command: Any) -> None:
    for arguments in (["my_app"], ["0app"], ["a" * 33], ["app", "--publisher", "my account"]):
        code, _, err = dufl_command("flower", "new", str(tmp_path / arguments[0]), *arguments[1:])
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"error: {'--publisher' if len(arguments) > 1 else 'DIR'} must be ")
    assert not list(tmp_path.iterdir())


def test_the_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"flwr[simulation]{FLOWER}" in project["optional-dependencies"]["flower"]
    assert f"flwr=={FLOWER_TARGET}" in (ROOT / "constraints.txt").read_text().splitlines()
    for example in ("stock", "fresh"):
        other = tomllib.loads((EXAMPLES / "flower-pytorch" / example / "pyproject.toml").read_text())
        assert other["project"]["dependencies"] == [f"flwr[simulation]{FLOWER}"]
        assert other["tool"]["flwr"]["app"]["flwr-version-target"] == FLOWER_TARGET


def test_every_app_has_its_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert free_data("app").as_posix() == "~/dufl/app"
    for number, name in enumerate(("app", "app-2")):
        made = new_app(tmp_path / str(number) / "app", load(None, SMALL))
        assert made.data == tmp_path / "dufl" / name
        assert f'data = "~/dufl/{name}"' in (made.folder / "pyproject.toml").read_text()


def locate(default: Path, run: dict[str, Any], node: dict[str, Any]) -> Any:
    """The profile of a client whose app has a default configuration."""
    app = deployed_client(default=default)
    context = Context(1, 1, {"partition-id": 0} | node, RecordDict(), run)
    return app._mods[0]._profile(context)  # type: ignore[attr-defined]


def test_a_node_of_a_deployment_needs_its_own_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration in the bundle is for simulations; paths begin at `/`, `~` or `data`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    default, own = tmp_path / "config.toml", tmp_path / "own" / "client.toml"
    own.parent.mkdir()
    default.write_text(load(None, SMALL).to_toml())
    own.write_text(load(None, (*SMALL, "clients.collection_cost=0.5")).to_toml())
    paths = {"data": "~/dufl/app", "client-config": "client.toml", "client-folder": "clients"}
    simulated = locate(default, paths, {"num-partitions": 2})
    assert simulated.file == tmp_path / "dufl" / "app" / "clients" / "client-0.sqlite"
    with pytest.raises(InputError, match=r"dufl/app/client\.toml"):
        locate(default, paths, {})
    for node in ({"data": "~/own"}, {"config": "~/own/client.toml"}, {"config": str(own)}):
        assert locate(default, paths, node).collection_cost == 0.5
    with pytest.raises(InputError) as refused:
        locate(default, paths | {"data": ""}, {})
    assert refused.value.field == "client-config"


def flwr_run(app: Path, home: Path) -> list[Record]:
    """`flwr run` as `dufl flower new` prints it, in a home directory of its own; the records of the run."""
    size = "num-supernodes=2 client-resources-num-cpus=1"
    with flower_home(home / ".flwr") as environment:
        command = ["flwr", "run", str(app), "--stream", "--federation-config", size]
        done = run(command, cwd=app.parent, env=environment | {"HOME": str(home)})
    assert done.returncode == 0, done.stderr
    folder = home / "dufl" / "fresh-data" / "run"
    assert (folder / "summary.json").exists(), done.stdout
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger.check()
        assert len(ledger.entries()) == 4
    return read_metrics(folder)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """An app directory as `dufl flower new` writes it, in a home directory of its own."""
    app = tmp_path / "mine" / "fresh-data"
    options = [part for change in OWN for part in ("--set", change)]
    command = [str(BIN / "dufl"), "flower", "new", str(app), *options]
    made = run(command, env=os.environ | {"HOME": str(app.parent)})
    assert made.returncode == 0, made.stderr
    assert f"flwr run {app} --stream --federation-config 'num-supernodes=2 " in made.stdout
    return app


def test_it_runs_at_once(mine: Path) -> None:
    records = flwr_run(mine, mine.parent)
    assert records[0].volumes == [60, 60] == train(load(None, OWN)).records[0].volumes


@pytest.mark.slow
def test_what_others_download_runs_at_once(mine: Path, tmp_path: Path) -> None:
    """They have no configurations: the public one in the bundle is used."""
    theirs = tmp_path / "theirs" / "fresh-data"
    for name, content in published(mine).items():
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_bytes(content)
    records = flwr_run(theirs, theirs.parent)
    assert records[0].volumes == [1000, 1000]  # the default
    assert not list(theirs.parent.glob("dufl/*/*.toml"))
