"""Runs, comparisons, sweeps and claims as tables: for the terminal, and in HTML for notebooks."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dufl.experiment.comparison import Cell
from dufl.experiment.train import Run
from dufl.formatting import count, duration, money, number, percent
from dufl.report.measure import ACCURACY, RMSE, UNKNOWN, Measure, measure_of, recorded_rows
from dufl.report.plan_charts import rows_by_values, value_text
from dufl.report.plan_table import Rows, chart, html_table, term_rows
from dufl.report.predictions import (
    cost_label,
    outcome_rows,
    outcome_sentence,
)
from dufl.report.tracking import parted_sentence, replan_rows

SweepRow = dict[str, Any]


def run_table(run: Run) -> RenderableType:
    """A run for the terminal."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    for row in _run_rows(run):
        table.add_row(*row)
    measure = measure_of([run]) or ACCURACY
    lines = "\n".join(f"  {line}" for line in chart([measure.of(record) for record in run.records]))
    title = f"test {measure.name} per round"
    warning = [Text(f"  {missed}", style="bold") for missed in _missed(run)]
    return Group(Text(_run_headline(run), style="bold"), table, *warning, Text(f"\n  {title}\n{lines}"))


def run_html(run: Run) -> str:
    """A run as a compact HTML table, for notebooks."""
    missed = "".join(f"<p>{escape(sentence)}</p>" for sentence in _missed(run))
    return html_table(_run_headline(run), _run_rows(run)) + missed


def _missed(run: Run) -> list[str]:
    """Where measurements are not as predicted, in words."""
    return [text for text in (outcome_sentence(run.outcome), parted_sentence(run.tracking)) if text]


def _run_headline(run: Run) -> str:
    summary = run.summary()
    what = ", ".join(summary[name] for name in ("dataset", "model", "algorithm", "policy"))
    rounds, measure = count(summary["rounds"], "round"), measure_of([run])
    if measure is None:
        return f"{what}: test accuracy {percent(summary['final_accuracy'])} after {rounds}"
    mean, last = (measure.text(summary[name]) for name in (measure.mean, measure.final))
    return f"{what}: mean test {measure.name} {mean} over {rounds}, {last} in the last"


def _run_rows(run: Run) -> Rows:
    summary, last = run.summary(), run.records[-1]
    planned = f" (planned {last.planned_staleness:.2f})" if last.planned_staleness is not None else ""
    measure = measure_of([run])
    rows = [
        *(_score_rows(summary) if measure is None else _recorded_rows(run, measure, summary)),
        *outcome_rows(run.outcome),
        *replan_rows(run.records),
        ("samples held, mean over rounds", f"{summary['mean_volume']:,.0f}"),
        ("mean age in the last round", f"{last.mean_age:.2f}{planned}"),
        *([("classes in the buffers", f"{last.classes}")] if not run.regression else []),
        ("payment over all rounds", money(summary["total_payment"])),
        (f"server {cost_label(run.plan) if run.plan else 'cost U'}", number(summary["server_cost"])),
        *term_rows(summary[f"cost_of_{term}"] for term in ("payment", "volume", "staleness")),
        ("time", duration(summary["seconds"])),
    ]
    if "staying_away" in summary:
        rows.append(("clients that stay away", f"{summary['staying_away']:,}"))
    if summary["dropped"]:
        rows.append(("updates missing", f"{summary['dropped']:,}"))
    if summary["refused"]:
        rows.append(("updates refused", f"{summary['refused']:,}"))
    return rows


def _score_rows(summary: dict[str, Any]) -> Rows:
    return [
        ("best accuracy", f"{percent(summary['best_accuracy'])} in round {summary['best_round']}"),
        ("loss", f"{summary['final_loss']:.4f}"),
    ]


def _recorded_rows(run: Run, measure: Measure, summary: dict[str, Any]) -> Rows:
    """Scores over the recorded time; those of the last round are in the headline."""
    best = run.records[summary["best_round"]]
    rows = [(f"best {measure.name}", f"{measure.text(measure.of(best))} in round {best.round}")]
    if run.regression:
        rows.append(("R², mean over rounds", _known(summary["mean_r2"], ".3f")))
        rows.append(("R² in the last round", _known(summary["final_r2"], ".3f")))
    else:
        rows.append(("loss, mean over rounds", _known(summary["mean_loss"], ".4f")))
    return [*rows, *recorded_rows(run, measure, summary)]


def _known(value: float, form: str) -> str:
    return UNKNOWN if math.isnan(value) else f"{value:{form}}".replace("-", "−")


def comparison_table(cells: Sequence[Cell]) -> Table:
    """The cells of a comparison on one problem for the terminal; it fits a narrow terminal.

    With several seeds, ± std is the standard deviation of the accuracy over them, in percentage points. On
    recorded data the accuracy is the mean over the rounds, and two lines show what needs no model.
    """
    several = len(cells[0].seeds) > 1
    measure = measure_of([run for cell in cells for run in cell.runs])
    discards = len({cell.discard for cell in cells}) > 1
    table = Table(box=None, padding=(0, 1))
    for name in ("algorithm", "policy", *["discard"] * discards):
        table.add_column(name, no_wrap=True)
    scores = ["accuracy %", *["± std"] * several, "loss"]
    if measure is not None:
        squared = ["R²"] if measure is RMSE else []
        scores = [f"mean {_head(measure)}", *["± std"] * several, "last", *squared, "missing"]
    for name in (*scores, "mean age", "payment", "cost", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        names = (cell.algorithm, cell.label, *[cell.discard] * discards)
        if not cell.finished:
            table.add_row(*names, *[""] * (len(scores) + 3), f"{len(cell.runs)} of {len(cell.seeds)} runs")
            continue
        summary = cell.summary()
        shown = _recorded_cell(summary, several, measure) if measure else _cell(summary, several)
        table.add_row(*names, *shown, *_costs(summary))
    for label, value in _free_lines(cells, measure):
        table.add_row("no model", label, *[""] * discards, value)
    return table


def _head(measure: Measure) -> str:
    return "accuracy %" if measure is ACCURACY else measure.name


def _free_lines(cells: Sequence[Cell], measure: Measure | None) -> Rows:
    """What needs no model, if it is the same for all finished cells."""
    summaries = [cell.summary() for cell in cells if cell.finished]
    if measure is None or not summaries:
        return []
    lines = []
    for label, key, _ in measure.free:
        values = {measure.cell(summary[key]) for summary in summaries}
        lines.append((label, values.pop() if len(values) == 1 else UNKNOWN))
    return lines


def _recorded_cell(summary: dict[str, Any], several: bool, measure: Measure) -> list[str]:
    return [
        measure.cell(summary[measure.mean]),
        *([measure.cell(summary[measure.std])] if several else []),
        measure.cell(summary[measure.final]),
        *([_known(summary["mean_r2"], ".3f")] if measure is RMSE else []),
        f"{summary['shortfall']:,.0f}",
    ]


def _cell(summary: dict[str, Any], several: bool) -> list[str]:
    return [
        f"{100 * summary['final_accuracy']:.2f}",
        *([f"{100 * summary['accuracy_std']:.2f}"] if several else []),
        f"{summary['final_loss']:.3f}",
    ]


def _costs(summary: dict[str, Any]) -> list[str]:
    return [
        f"{summary['mean_age']:.1f}",
        f"{summary['total_payment']:,.0f}",
        f"{summary['server_cost']:.3g}",
        duration(summary["seconds"]),
    ]


def sweep_table(keys: list[str], rows: list[SweepRow]) -> Table:
    """A sweep for the terminal: one line per combination; several draws give the range."""
    table = Table(title=f"Plans over {', '.join(keys)}", title_justify="left")
    for key in keys:
        table.add_column(key.rpartition(".")[2], justify="right")
    for name, _ in _SWEEP_COLUMNS:
        table.add_column(name, justify="right")
    for values, group in rows_by_values(keys, rows).items():
        table.add_row(*values, *(_range([get(row) for row in group], name) for name, get in _SWEEP_COLUMNS))
    return table


def sweep_csv(keys: list[str], rows: list[SweepRow]) -> str:
    """Every row of a sweep as CSV."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows((row | {key: value_text(row[key]) for key in keys}).values() for row in rows)
    return stream.getvalue()


def _saving(ours: str, theirs: str) -> Callable[[SweepRow], float | None]:
    """How much less ours is, in percent; None where theirs is zero, missing or without bound."""
    return lambda row: (
        100 * (1 - row[ours] / row[theirs]) if row[theirs] and math.isfinite(row[theirs]) else None
    )


_SWEEP_COLUMNS: tuple[tuple[str, Callable[[SweepRow], float | None]], ...] = (
    ("R", lambda row: row["payment"]),
    ("θ", lambda row: row["conservation_rate"]),
    ("U", lambda row: row["server_cost"]),
    ("Alg. 1 R", lambda row: row["algorithm1_payment"]),
    ("Alg. 1 θ", lambda row: row["algorithm1_conservation_rate"]),
    ("Alg. 1 U", lambda row: row["algorithm1_cost"]),
    ("no update U", lambda row: row["no_update_cost"]),
    ("U saved %", _saving("server_cost", "algorithm1_cost")),
    ("R saved %", _saving("payment", "algorithm1_payment")),
    ("influence gain", lambda row: row["influence_gain"]),
)


def _range(column: Sequence[float | None], name: str) -> str:
    values = [value for value in column if value is not None]
    if not values:
        return "–"
    form = ".1e" if name == "influence gain" else ".1f" if name.endswith(("R", "%")) else ".3f"
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low}–{high}"


def claims_table(items: dict[str, dict[str, Any]]) -> Table:
    """The claims of a reproduction for the terminal: which hold, and by how much."""
    table = Table(box=None, padding=(0, 1))
    for name, wraps in (("item", False), ("claim", True), ("result", False), ("measured", True)):
        table.add_column(name, no_wrap=not wraps)
    for name, item in items.items():
        for place, claim in enumerate(item["claims"]):
            holds = "holds" if claim["holds"] else Text("does not hold", style="bold")
            table.add_row(name if place == 0 else "", claim["statement"], holds, claim["measured"])
        if not item["claims"]:
            table.add_row(name, "none can be checked with these cells alone", "", "")
    return table


def accuracy_table(rows: list[dict[str, Any]]) -> Table:
    """The trained cells of the paper's table: accuracy in percent, beside the value in the paper.

    ± std is the standard deviation over the seeds, in percentage points.
    """
    several = any(row["std"] is not None for row in rows)
    table = Table(box=None, padding=(0, 1))
    for name in ("dataset", "σ", "algorithm", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("accuracy %", *["± std"] * several, "paper %", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown = [
            _optional(row["accuracy"]),
            *[_optional(row["std"])] * several,
            _optional(row["paper"], ".1f"),
        ]
        cell = [row["dataset"], f"{row['time_sensitivity']:g}", row["algorithm"], row["policy"]]
        table.add_row(*cell, *shown, _optional(row["difference"], "+.1f"))
    return table


def _optional(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else f"{value:{form}}"


def calibration_table(calibration: Any) -> Group:
    """The result of `dufl calibrate`: the trainings, the candidates and the verdict."""
    unit = calibration.law.unit
    scale, sign = (100, " %") if unit == "error" else (1, "")
    pilots = Table(title=f"Trainings: {unit} measured and fitted", title_justify="left")
    for head in ("R", "θ", "samples per client", "mean age", "measured", "fitted"):
        pilots.add_column(head, justify="right")
    for m in calibration.measurements:
        fitted = calibration.fitted(m)
        pilots.add_row(
            f"{m.payment:.3g}",
            f"{m.conservation_rate:.3g}",
            f"{1 / m.scarcity:,.0f}",
            f"{m.staleness:.1f}",
            f"{scale * m.value:.2f}{sign}",
            f"{scale * fitted:.2f}{sign}",
        )
    forms = Table(title="Candidate laws", title_justify="left")
    for head in ("law", "R²", "held-out R²", "held-out error", ""):
        forms.add_column(head, justify="left" if head in ("law", "") else "right")
    for fit in calibration.candidates:
        chosen = "chosen" if fit.form == calibration.fit.form else ""
        error = f"{scale * fit.heldout_rmse:.2f}{sign}"
        forms.add_row(fit.form.name, f"{fit.r2:.3f}", f"{fit.heldout_r2:.3f}", error, chosen)
    return Group(calibration.verdict, pilots, forms)
