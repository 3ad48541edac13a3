"""Test settings: the same examples on every run, the order of the files, and the commands as typed."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from dufl.cli import main

settings.register_profile("dufl", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dufl")

# Files that take long start first, so that no worker is left alone with one at the end.
LONG = (
    "flower/test_flower_deployment.py",
    "flower/test_flower_simulation.py",
    "learning/test_torch_engine.py",
    "test_packaging.py",
    "reproduce/test_reproduce.py",
    "web/test_explore_page.py",
    "cli/test_fuzz.py",
    "cli/test_cli.py",
    "report/test_recorded_runs.py",
    "cli/test_cli_plugins.py",
    "learning/test_real_training.py",
    "docs/test_notebooks.py",
    "experiment/test_files.py",
    "experiment/test_untrusted_runs.py",
    "game/test_leader.py",
    "data/test_durable.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files: the long ones first, the others as they are."""
    order = {str(Path(__file__).parent / name): number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(str(item.path), len(order)))


@pytest.fixture
def dufl_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `dufl ARGUMENTS`: exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dufl", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))  # --import-from changes both
        monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run
