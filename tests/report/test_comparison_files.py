"""The files of a comparison: LaTeX that can be compiled, CSV, and the critical-difference diagram."""

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from command_line import SMALL, figures
from dufl.experiment.compare import compare, grid
from dufl.experiment.comparison import Comparison
from dufl.experiment.findings import Scored, Statistics, statistics_of
from dufl.experiment.ranks import rank, rank_methods
from dufl.experiment.statistics import mean_band
from dufl.report.comparison_files import comparison_csv, write_comparison
from dufl.report.figures import COLUMN, plot_comparison
from dufl.report.latex import escape, statistics_latex
from dufl.report.rank_diagram import plot_ranks
from dufl.report.statistics_table import statistics_csv, statistics_table
from loading import load

NASTY = r"my_rule & 50% #1 {x} $y$ ~a^b\c <d> |e|"
SHORT = load(None, SMALL)


def results(
    seeds: int = 8, problems: tuple[str, ...] = ("digits",), metric: str = "final_accuracy"
) -> Statistics:
    generator = np.random.default_rng(1)
    every = []
    for problem in problems:
        for shift, method in enumerate(("a-static", "a-dufl", NASTY)):
            scores = {seed: float(0.5 + 0.1 * shift + generator.normal(0, 0.01)) for seed in range(seeds)}
            parts = ("a", method.partition("-")[2] or method, "uniform")
            every.append(Scored(f"{problem}/{method}", problem, method, parts, scores, metric))
    return statistics_of(every)


VARIANTS = {
    "one problem": results(),
    "one seed": results(1),
    "three seeds": results(3),
    "three problems": results(8, ("digits", "x_y", "50 %")),
    "errors": results(metric="mean_rmse"),
    "nothing": statistics_of([]),
}


def environments(text: str) -> list[str]:
    """The environments that are open at the end; fails if they are not nested."""
    open_: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            open_.append(name)
        else:
            assert open_.pop() == name
    return open_


def depth(text: str) -> int:
    """How many braces are open at the end; fails if there was one too many."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace("\\\\", "")):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    return depth


@pytest.mark.parametrize("name", VARIANTS)
def test_the_latex_can_be_parsed(name: str) -> None:
    text = statistics_latex(VARIANTS[name])
    assert environments(text) == []
    assert depth(text) == 0
    assert text.isascii()
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert columns is not None
    for line in filter(None, map(str.strip, body.splitlines())):
        assert line.endswith(r"\\")
        assert len(re.findall(r"(?<!\\)&", line)) == len(columns[1]) - 1
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0
    assert not re.search(r"(?<!\\)[#_~]", body)
    assert "nan" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("name", VARIANTS)
def test_the_latex_compiles(name: str, tmp_path: Path) -> None:
    text = statistics_latex(VARIANTS[name])
    whole = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + text + "\\end{document}\n"
    (tmp_path / "a.tex").write_text(whole)
    subprocess.run(["pdflatex", "-halt-on-error", "a.tex"], cwd=tmp_path, check=True, capture_output=True)


@given(st.text(max_size=30))
def test_any_name_is_one_line_of_balanced_latex(name: str) -> None:
    text = escape(name)
    assert depth(text) == 0
    assert "\n" not in text
    assert not re.search(r"(?<!\\)[&%$#_]", text)


def test_the_best_is_bold_and_differences_are_marked() -> None:
    found = results()
    text = statistics_latex(found)
    best = next(row for row in found.rows if row.best)
    assert text.count(r"\textbf") == 1
    (line,) = [line for line in text.splitlines() if r"\textbf" in line]
    assert line.strip().startswith(escape(best.method))
    assert f"{100 * (best.mean or 0):.2f}" in line
    marked = [line for line in text.splitlines() if "$^{*}$" in line or "$^{**}$" in line]
    assert len(marked) == sum(row.significant for row in found.rows) == 2
    several = statistics_latex(VARIANTS["three problems"])
    assert several.count(r"\textbf") == 3 + 1  # the best of every problem, and the best rank


def test_the_csv_has_every_number() -> None:
    found = VARIANTS["three problems"]
    rows = list(csv.DictReader(io.StringIO(statistics_csv(found))))
    for row, line in zip(found.rows, rows, strict=True):
        for name, value in row.flat().items():
            assert line[name] == ("" if value is None else str(value))
        assert line["significant"] == str(row.significant)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_table_fits_and_says_why_cells_are_empty(name: str) -> None:
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(statistics_table(VARIANTS[name]) if VARIANTS[name].rows else "")
    text = console.export_text()
    assert "nan" not in text.replace("Nemenyi", "")
    assert ("one seed: no intervals and no tests" in text) is (name == "one seed")
    assert ("intervals need at least 6 seeds" in text) is (name == "three seeds")
    assert ("mean ranks on 3 problems" in text) is (name == "three problems")
    if name == "errors":
        assert text.count("worse") == 2
    if name == "one problem":
        assert text.count("better") == 2


def texts_of(figure: Any) -> list[Any]:
    (axes,) = figure.axes
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer) for text in axes.texts if text.get_text()]


@pytest.mark.parametrize("width", ["page", "column"])
@pytest.mark.parametrize("methods", [2, 3, 8, 15])
def test_labels_of_the_diagram_do_not_overlap(methods: int, width: Any) -> None:
    generator = np.random.default_rng(methods)
    scores = generator.random((9, methods)) + generator.permutation(methods) / 5
    names = [f"algorithm-{n}-a-policy-with-a-name"[: 9 + 2 * n] for n in range(methods)]
    found = rank_methods([f"{n}" for n in range(9)], names, rank(scores, [False] * 9))
    figure = plot_ranks(found, width)
    boxes = texts_of(figure)
    for place, one in enumerate(boxes):
        for other in boxes[place + 1 :]:
            assert not one.overlaps(other)
        assert figure.bbox.x0 <= one.x0 <= one.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= one.y0 <= one.y1 <= figure.bbox.y1
    assert float(figure.get_size_inches()[0]) >= (COLUMN if width == "column" else 7.0)


def test_the_diagram_is_to_scale() -> None:
    ranks = np.array([[1.0, 2.0, 3.0, 4.0]] * 12)
    found = rank_methods([f"{n}" for n in range(12)], ["a", "b", "c", "d"], ranks)
    (axes,) = plot_ranks(found).axes
    points = [np.asarray(line.get_xdata(), float)[0] for line in axes.get_lines() if line.get_marker() == "o"]
    unit = np.diff(np.array(points))
    assert unit == pytest.approx([unit[0]] * 3)
    thick = [np.asarray(line.get_xdata(), float) for line in axes.get_lines() if line.get_linewidth() > 3]
    assert len(thick) == len(found.groups)
    for ends, (first, last) in zip(thick, found.groups, strict=True):
        assert ends[0] < points[first] <= points[last] < ends[1]
    black = [line for line in axes.get_lines() if line.get_linewidth() == 1.4]
    longest = max(np.ptp(np.asarray(line.get_xdata(), float)) for line in black)
    assert longest / unit[0] == pytest.approx(found.critical_difference)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    experiments = grid(SHORT, discards=["uniform", "oldest"], datasets=["digits", "weather"])
    return compare(experiments, seeds=6, jobs=1)


def test_several_problems_and_rules_are_written(comparison: Comparison, tmp_path: Path) -> None:
    paths = write_comparison(comparison, tmp_path)
    tables = {"comparison.csv", "statistics.csv", "statistics.tex"}
    assert {path.name for path in paths} == tables | figures("comparison", "ranks")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert len(rows) == 8 * 6 * 5
    assert {(row["problem"], row["discard"]) for row in rows} == {
        (problem, rule) for problem in ("digits", "weather") for rule in ("uniform", "oldest")
    }
    found = comparison.results()
    assert found.problems == ["digits", "weather"]
    assert {row.metric for row in found.rows} == {"final_accuracy", "mean_accuracy"}
    assert found.ranks is not None
    assert len(found.ranks.methods) == 4


def test_bands_are_intervals_over_the_seeds(comparison: Comparison) -> None:
    figure = plot_comparison(comparison.cells[:1])
    (axes,) = figure.axes
    (band,) = axes.collections
    (line,) = axes.get_lines()
    curves = 100 * comparison.cells[0].curve("accuracy")
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), curves.mean(axis=0))
    low, high = mean_band(curves)
    drawn = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (drawn.min(), drawn.max()) == pytest.approx((low.min(), high.max()))
    assert not np.allclose((low, high), (curves.min(axis=0), curves.max(axis=0)))


def test_the_csv_of_algorithms_and_policies_has_the_columns_of_before() -> None:
    text = comparison_csv(compare(grid(SHORT, ["fedavg", "fedprox"]), jobs=1).cells)
    head = "algorithm,policy,seed,round,accuracy,loss,total_volume,mean_age,payment,server_cost"
    assert text.splitlines()[0] == head
