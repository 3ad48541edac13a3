"""Helpers for the tests of reports: runs to report on, and a parser for the page."""

import base64
import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from command_line import SMALL
from dufl.experiment.train import train
from dufl.game.dynamics import Array
from dufl.report.training_report import write_report
from loading import load, pausing

ROUNDS = ("game.num_rounds=6", "data.initial_classes=8")

Columns = dict[str, list[float]]


def make_run(folder: Path, *changes: str, stop: Callable[[int], bool] = lambda _: False) -> Path:
    """A small run that pauses when `stop`, called with the number of finished rounds, returns True."""
    seen: list[Any] = []
    config = load(None, [*SMALL, *ROUNDS, *changes])
    train(config, out=folder, callbacks=[pausing(lambda: stop(len(seen) + 1)), seen.append])
    return folder


def make_runs(folder: Path) -> Path:
    """The run directories that `dufl compare --seeds 2` writes."""
    for policy in ("dufl", "static"):
        for seed in (0, 1):
            make_run(folder / f"fedavg-{policy}-{seed}", f"policy={policy}", f"training.seed={seed}")
    return folder


def metrics(folder: Path, name: str) -> Array:
    """A field of the records, read independently of the library."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return np.array([json.loads(line)[name] for line in lines], float)


@dataclass
class Table:
    """A table of the page: its caption, its heads, its rows as displayed, and its values for sorting."""

    caption: str = ""
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    values: list[list[float | None]] = field(default_factory=list)


class Page(HTMLParser):
    """The parsed page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self.text = ""
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self._open: list[str] = []
        self.feed(text)
        packed = re.search(r'<script type="text/plain" id="charts">([^<]*)</script>', text)
        assert packed
        self.charts: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record tags, addresses, images and table cells."""
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [given[name] or "" for name in ("href", "src") if name in given]
        if tag == "img":
            self.images.append(given)
        if tag in ("meta", "link", "img", "br"):
            return
        self._open.append(tag)
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr" and "tbody" in self._open:
            self.tables[-1].rows.append([])
            self.tables[-1].values.append([])
        elif tag in ("th", "td") and "tbody" in self._open:
            value = given.get("data-value")
            self.tables[-1].rows[-1].append("")
            self.tables[-1].values[-1].append(None if value is None else float(value))
        elif tag == "th":
            self.tables[-1].heads.append("")

    def handle_endtag(self, tag: str) -> None:
        """Check that elements are closed in order."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Record texts, captions and cells."""
        if "script" in self._open or "style" in self._open:
            return
        self.text += data
        if "caption" in self._open:
            self.tables[-1].caption += data
        elif "tbody" in self._open and self._open[-1] in ("th", "td"):
            self.tables[-1].rows[-1][-1] += data
        elif "thead" in self._open and self._open[-1] == "th":
            self.tables[-1].heads[-1] += data

    def table(self, caption: str) -> Table:
        """The only table whose caption contains a text."""
        (match,) = [table for table in self.tables if caption in table.caption]
        return match

    def csv(self, name: str) -> Columns:
        """The CSV file of a chart, by column."""
        heads, *rows = csv.reader(io.StringIO(self.charts[name]["csv"]))
        assert all(len(row) == len(heads) for row in rows)
        first = 1 if heads[0] == "plan" else 0  # the only column of names
        return {head: [float(row[i]) for row in rows] for i, head in enumerate(heads) if i >= first}


def report(*places: Path, out: Path) -> Page:
    """The parsed report on some runs."""
    return Page(write_report(places, out).path.read_text(encoding="utf-8"))
