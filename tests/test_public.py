"""What the project promises its users and keeps for itself: names, rooms, imports, documents."""

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dufl

ROOT = Path(__file__).parent.parent
PAPER_MAP = ROOT / "docs" / "paper-map.md"

PUBLIC = [
    "Action",
    "AgePrice",
    "Algorithm1Options",
    "Calibration",
    "Callback",
    "CapacityError",
    "Cell",
    "Certificate",
    "CertificateError",
    "Clients",
    "Comparison",
    "Data",
    "Dataset",
    "DuflError",
    "EarlyStopping",
    "Experiment",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "Game",
    "InputError",
    "Leader",
    "LocalPenalty",
    "LogNormal",
    "NegativeUtilityWarning",
    "Offer",
    "Period",
    "Periodic",
    "Plan",
    "Planned",
    "PluginError",
    "PowerLaw",
    "RandomStrategy",
    "Record",
    "Recording",
    "Run",
    "Samples",
    "StationaryPlan",
    "TensorBoard",
    "Training",
    "Uniform",
    "Update",
    "Window",
    "ZeroStrategy",
    "best_response",
    "calibrate",
    "certify",
    "certify_profile",
    "compare",
    "convergence_weights",
    "equilibrium",
    "grid",
    "load_recording",
    "solve",
    "solve_endless",
    "sweep",
    "train",
]


def test_public_names() -> None:
    assert sorted(dufl.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(dufl, name).__doc__
    assert set(PUBLIC) <= set(dir(dufl))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dufl.nonsense  # noqa: B018


def loaded_by(statement: str) -> set[str]:
    code = (
        f"{statement}\nimport sys, json\nprint(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_what_is_loaded_when() -> None:
    """`import dufl` and `--help` load nothing heavy; the mathematics needs no torch, no plots."""
    heavy = {"numpy", "numba", "scipy", "sklearn", "pydantic", "matplotlib", "torch", "flwr", "streamlit"}
    assert not heavy & loaded_by("import dufl")
    assert not heavy & loaded_by("import dufl.cli")
    assert not {"sklearn", "matplotlib", "torch", "flwr", "streamlit"} & loaded_by("import dufl.game.plan")


def test_the_paper_map_is_true() -> None:
    """Every function and every test that the map names exists."""
    text = PAPER_MAP.read_text(encoding="utf-8")
    functions = set(re.findall(r"`(dufl\.[\w.]+)`", text))
    tests = set(re.findall(r"`tests/([\w/]*test_\w+)\.py::(\w+)`", text))
    assert len(functions) >= 12
    assert len(tests) >= 12
    for name in functions:
        home, _, last = name.rpartition(".")
        try:
            module: object = importlib.import_module(home)
        except ModuleNotFoundError:  # a method: module.Class.method
            outer, _, owner = home.rpartition(".")
            module = getattr(importlib.import_module(outer), owner)
        assert hasattr(module, last), name
    for file, name in tests:
        source = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(source) if isinstance(node, ast.FunctionDef)}, name


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_name_in_the_documents_exists(page: Path) -> None:
    """`dufl.solve`, `dufl.learning.policies.Planned.step` and the like, also in sentences."""
    text = page.read_text(encoding="utf-8")
    for name in set(re.findall(r"(?<![\w./-])dufl(?:\.[A-Za-z_]\w*)+", text)) - {"dufl.toml"}:
        assert _exists(name), name


def _exists(name: str) -> bool:
    thing: object = dufl
    path = "dufl"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(thing, part) and importlib.util.find_spec(path) is not None:
            importlib.import_module(path)
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
        if not isinstance(thing, ModuleType):
            path = "none"
    return True


def test_the_page_on_python_has_the_public_names() -> None:
    """All of them, in its table; and no function goes by the name that it has at its home only."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = text.partition("| name |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(PUBLIC)
    for name, home in dufl._HOMES.items():
        inside = home.partition(":")[2]
        if inside and inside != name:
            assert f"`{inside}`" not in text
            assert f"`{inside}(" not in text


def test_the_constraints_pin_every_dependency() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in text.splitlines() if "==" in line}
    assert "torch==2.13.0" in text.splitlines()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.findall(r'^\s+"([A-Za-z0-9_.-]+)[\[<>=]', project, re.MULTILINE)
    wanted += re.findall(r'"(torch|safetensors|flwr|streamlit|plotly)[\[<>=]', project)
    assert len(wanted) > 15
    assert {name.lower().replace("_", "-") for name in wanted} <= pinned


def test_kernels_are_kept_somewhere_even_where_nothing_can_be_written() -> None:
    program = "import os; os.access = lambda *_: False; import dufl; print(os.environ['NUMBA_CACHE_DIR'])"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert said.stdout.strip().endswith(f"dufl-{os.getuid()}"), said.stderr
