"""The statistics of a comparison as tables: for the terminal, the report and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dufl.experiment.findings import Row, Statistics
from dufl.experiment.ranks import Ranks
from dufl.experiment.statistics import LEAST
from dufl.formatting import count
from dufl.report.measure import UNKNOWN

HEADS = ("± std", "95 % interval", "difference", "95 % interval", "p (Holm)")


def statistics_table(results: Statistics) -> RenderableType:
    """Means, intervals, differences to the baseline and corrected p-values for the terminal."""
    several = len(results.problems) > 1
    baselines = {row.baseline for row in results.rows}
    table = Table(box=None, padding=(0, 1))
    for name in (*["problem"] * several, "method"):
        table.add_column(name, overflow="fold")
    for name in ("seeds", score_head(results.rows), *HEADS, ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in results.rows:
        names = [row.problem, row.method] if several else [row.method]
        last = "baseline" if row.name in baselines else verdict(row)
        table.add_row(*names, f"{len(row.seeds)}", *cells(row), last)
    lines = [Text(f" {line}") for line in explanations(results)]
    ranks = [Text(f" {line}") for line in rank_lines(results.ranks)] if results.ranks else []
    return Group(table, *lines, *ranks)


def score_head(rows: Sequence[Row]) -> str:
    """What the scores are, with their unit."""
    names = {"final_accuracy": "accuracy %", "mean_accuracy": "mean accuracy %", "mean_rmse": "mean RMSE"}
    heads = list(dict.fromkeys(names[row.metric] for row in rows))
    return heads[0] if len(heads) == 1 else "score"


def cells(row: Row) -> list[str]:
    """The cells of a row: mean, standard deviation, interval, difference, its interval, corrected p."""
    return [
        score(row, row.mean),
        score(row, row.std),
        interval(row, row.low, row.high),
        score(row, row.difference, "+"),
        interval(row, row.difference_low, row.difference_high, "+"),
        p_text(row.p_holm),
    ]


def score(row: Row, value: float | None, sign: str = "") -> str:
    """A score or a difference: accuracies in percent, errors with four digits; a dash if it is unknown."""
    if value is None:
        return UNKNOWN
    text = f"{value:{sign}.4g}" if row.lower_is_better else f"{100 * value:{sign}.2f}"
    return text.replace("-", "−")


def interval(row: Row, low: float | None, high: float | None, sign: str = "") -> str:
    """An interval, or a dash."""
    if low is None or high is None:
        return UNKNOWN
    return f"{score(row, low, sign)} to {score(row, high, sign)}"


def p_text(p: float | None) -> str:
    """A p-value with three digits after the point; small ones with one digit."""
    if p is None:
        return UNKNOWN
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def verdict(row: Row) -> str:
    """Whether a method is better or worse than the baseline, in one word; empty if that is not known."""
    if not row.significant or row.difference is None:
        return ""
    return "better" if (row.difference < 0) is row.lower_is_better else "worse"


def explanations(results: Statistics) -> list[str]:
    """What the columns are, and why some are empty."""
    least = min((len(row.seeds) for row in results.rows), default=0)
    if least < 2:
        return ["one seed: no intervals and no tests; use more seeds (--seeds 10)"]
    lines = []
    against = list(dict.fromkeys(row.baseline for row in results.rows if row.baseline))
    if against:
        names = " or ".join(against) if len(against) < 4 else "the baseline"
        lines.append(f"difference: to {names}; runs with the same seed are pairs")
    if results.tests:
        lines.append(f"p: sign-flip test of the pairs, corrected for {count(results.tests, 'test')} (Holm)")
    if least < LEAST:
        lines.append(f"95 % intervals need at least {LEAST} seeds")
    return lines


def rank_lines(ranks: Ranks) -> list[str]:
    """The mean ranks over problems, and whether they differ, in words."""
    pairs = zip(ranks.methods, ranks.mean_ranks, strict=True)
    listed, difference = ", ".join(f"{m} {r:.2f}" for m, r in pairs), f"{ranks.critical_difference:.2f}"
    lines = [
        f"mean ranks on {count(len(ranks.problems), 'problem')}: {listed}",
        f"Friedman test: p = {p_text(ranks.p)}; critical difference of ranks (Nemenyi, 5 %): {difference}",
    ]
    if ranks.left_out:
        lines.append(f"not ranked, as runs are missing: {', '.join(ranks.left_out)}")
    return lines


def statistics_csv(results: Statistics) -> str:
    """One line per method and problem, with the fields of `Row`; a cell is empty where a value is unknown."""
    names = [field.name for field in fields(Row)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "significant"])
    for row in results.rows:
        values = row.flat()
        writer.writerow([*(values[name] for name in names), row.significant])
    return text.getvalue()
