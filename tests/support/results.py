"""Changes results on disk and updates their checksums."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dufl.experiment.metrics import seal
from dufl.experiment.output import Manifest


def reseal(folder: Path) -> None:
    """Update the manifest to the current files; removed files are dropped from it."""
    manifest = Manifest.read(folder)
    assert manifest
    there = [name for name in manifest.files if (folder / name).exists()]
    Manifest(folder, manifest.kind).adding(*there).write()


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write metrics, each line with its checksum."""
    (folder / "metrics.jsonl").write_text("".join(seal(json.dumps(line)) for line in lines))
    reseal(folder)


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics without their checksums."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "checksum"} for line in lines]


def change_lines(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the metrics in place."""
    lines = read_lines(folder)
    change(lines)
    write_lines(folder, lines)
