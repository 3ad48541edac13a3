"""What is published: declared imports, wheel and sdist, the README's commands in an installed wheel."""

import ast
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dufl

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "dufl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The extras whose libraries a room may import. Every room may import the dependencies of all users.
EXTRAS = {
    "data": ("tables", "mqtt"),
    "experiment": ("train", "tensorboard", "frames"),
    "flower": ("flower", "train"),
    "learning": ("train",),
    "web": ("web",),
}
DISTRIBUTIONS = packages_distributions()  # of every module that can be imported here
SMALL = ("game.num_rounds=4", "clients.count=3", "clients.initial_volume=60", "training.local_epochs=1")


def declared(*extras: str) -> set[str]:
    """The distributions that the project declares, for all users and in these extras."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imported(source: str) -> set[str]:
    """The top-level modules of other projects that a source file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"dufl"}


def undeclared(source: str, room: str) -> set[str]:
    """The modules that a file of a room imports without a declaration."""
    allowed = declared(*EXTRAS.get(room, ()))
    return {
        module
        for module in imported(source)
        if not allowed & {canonicalize_name(name) for name in DISTRIBUTIONS.get(module, [module])}
    }


def test_every_import_is_declared() -> None:
    missing = {
        (str(path.relative_to(SOURCE)), module)
        for path in SOURCE.rglob("*.py")
        for module in undeclared(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).parts[0])
    }
    assert not missing


def test_an_undeclared_import_is_found() -> None:
    assert undeclared("def later():\n    from pytest.mark import slow", "game") == {"pytest"}
    assert undeclared("import torch.nn, PIL", "game") == {"torch"}
    assert not undeclared("import torch.nn, PIL", "learning")


def test_every_declared_library_is_used() -> None:
    """Its name, or that of a module it provides, is somewhere in the sources."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    modules: dict[str, set[str]] = {}
    for module, distributions in DISTRIBUTIONS.items():
        for name in distributions:
            modules.setdefault(canonicalize_name(name), set()).add(module)
    for name in declared("train", "tensorboard", "flower", "web", "tables", "mqtt"):
        assert re.search(rf"\b({'|'.join({name, *modules.get(name, ())})})\b", text), name


def test_without_posix_the_import_fails_with_one_sentence() -> None:
    program = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; import dufl"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: DUFL needs a POSIX system")
    assert "During handling" not in done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "dufl", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dufl {dufl.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [("dufl pl", {"plan"}), ("dufl compare --se", {"--set", "--seeds"}), ("dufl data f", {"fetch"})],
)
def test_shell_completion(words: str, expected: set[str]) -> None:
    environment = os.environ | {
        "_DUFL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "dufl"], capture_output=True, text=True, env=environment, check=True
    )
    assert set(done.stdout.split()) == expected


def test_the_citation_has_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {dufl.__version__}\n" in citation


class Built(NamedTuple):
    """The files that a release uploads."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def test_wheel_and_sdist_hold_every_file_of_the_package(built: Built) -> None:
    ours = {
        str(path.relative_to(ROOT / "src"))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = set(wheel.namelist())
    assert {name for name in inside if name.startswith("dufl/")} == ours
    assert {"dufl/py.typed", "dufl/__main__.py"} <= ours
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in ours} <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "tests/test_packaging.py"} <= names
    assert not {name for name in names if name.startswith((".venv", "runs/", "site/"))}


def readme_commands() -> list[list[str]]:
    """The README's calls of `dufl` that plan and train, in its order, without pipes and comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^(?:\$ )?(?:\.venv/bin/)?dufl ([^|#\n]+)", "\n".join(blocks), re.MULTILINE)
    commands = [line.split() for line in dict.fromkeys(line.strip() for line in lines)]
    return [
        command for command in commands if command[0] in {"init", "calibrate", "plan", "train", "compare"}
    ]


def run_readme_commands(python: Path, folder: Path) -> None:
    """Run the README's commands with an installed `dufl`, made small, from an empty folder."""
    commands = readme_commands()
    assert {"init", "calibrate", "plan", "compare"} <= {command[0] for command in commands}
    assert ["plan", "dufl.toml"] in commands
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    where = run(str(python), "-c", "import dufl; print(dufl.__file__)")
    assert Path(where.strip()).is_relative_to(python.parent.parent)
    settings = [part for change in SMALL for part in ("--set", change)]
    shrunk = [[*command, *(settings if command[0] != "init" else ())] for command in commands]
    for command in [*shrunk, ["compare", "--out", "result", *settings]]:
        assert run(str(python.parent / "dufl"), *command)
    page = (folder / "result" / "report.html").read_text(encoding="utf-8")
    assert (SOURCE / "report" / "assets" / "page.css").read_text(encoding="utf-8").strip()[:200] in page


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The interpreter of a new virtual environment, without pip."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *arguments: str) -> None:
    """Install with this interpreter's pip into another environment."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", *arguments], check=True)


def reuse_kernels(installed: Path) -> None:
    """Give the installed package what Numba compiled for the same source files here.

    Numba accepts it for files with the same time and size. What is missing is compiled again.
    """
    for kernel in SOURCE.rglob("*.nb[ic]"):
        folder = installed / kernel.parent.relative_to(SOURCE)
        folder.mkdir(exist_ok=True)
        shutil.copy2(kernel, folder)
    for module in {path.parent.parent for path in SOURCE.rglob("*.nbi")}:
        for path in module.glob("*.py"):
            shutil.copystat(path, installed / path.relative_to(SOURCE))


def test_the_readme_works_with_the_wheel(built: Built, environment: Path, tmp_path: Path) -> None:
    """The wheel is installed; its dependencies are those of this interpreter, found by their folders.

    A `.pth` file adds the folders. The `.pth` files inside them are not read, so an editable install of
    dufl is not found there.
    """
    install(environment, "--no-index", "--no-deps", str(built.wheel))
    (packages,) = environment.parent.parent.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    reuse_kernels(packages / "dufl")
    (tmp_path / "empty").mkdir()
    run_readme_commands(environment, tmp_path / "empty")


@pytest.mark.slow
def test_the_readme_works_in_a_clean_environment(built: Built, environment: Path, tmp_path: Path) -> None:
    """The wheel is installed with its own dependencies and nothing else."""
    install(environment, "--constraint", str(ROOT / "constraints.txt"), str(built.wheel))
    pip = [sys.executable, "-m", "pip", "--python", str(environment)]
    subprocess.run([*pip, "check"], check=True)
    (tmp_path / "empty").mkdir()
    run_readme_commands(environment, tmp_path / "empty")
