"""The files of a comparison: every round as CSV, the statistics as CSV and LaTeX, and figures."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dufl.experiment.comparison import Cell, Comparison
from dufl.experiment.files import write_text
from dufl.experiment.output import COMPARISON, writing
from dufl.experiment.recorded import plain_time
from dufl.learning.federation import Record
from dufl.report.figures import plot_comparison, save
from dufl.report.latex import statistics_latex
from dufl.report.rank_diagram import plot_ranks
from dufl.report.run_charts import moving_mean
from dufl.report.statistics_table import statistics_csv

RECORDED_COLUMNS = (  # of comparison.csv; means are over the rounds so far
    *("mean_accuracy", "rmse", "mean_rmse", "r2", "mean_r2", "shortfall"),
    *("time_begin", "time_end", "tested", "no_change", "majority"),
)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.csv, .png, .svg and .pdf, statistics.csv and .tex; with several problems, ranks.*."""
    cells, results = comparison.cells, comparison.results()
    with writing(folder, COMPARISON) as staging:
        texts = {
            "comparison.csv": comparison_csv(cells),
            "statistics.csv": statistics_csv(results),
            "statistics.tex": statistics_latex(results),
        }
        for name, text in texts.items():
            write_text(staging / name, text)
        written = [*map(Path, texts), *save(plot_comparison(cells), staging, "comparison")]
        if results.ranks is not None:
            written += save(plot_ranks(results.ranks), staging, "ranks")
    return [folder / path.name for path in written]


def comparison_csv(cells: Sequence[Cell]) -> str:
    """One line per run and round.

    Recorded data has the columns `RECORDED_COLUMNS` too. A cell is empty where a value is unknown. If
    algorithm and policy do not tell all cells apart, the columns `problem` and `discard` follow.
    """
    fields = ("accuracy", "loss", "total_volume", "mean_age", "payment", "server_cost")
    more = RECORDED_COLUMNS if any(cell.recorded for cell in cells) else ()
    apart = len({(cell.algorithm, cell.policy) for cell in cells}) == len(cells)
    last = () if apart else ("problem", "discard")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("algorithm", "policy", "seed", "round", *fields, *more, *last))
    for cell in cells:
        for run in cell.runs:
            seed = run.experiment.training.seed
            extra = _over_time(run.records) if more else [()] * len(run.records)
            for record, added in zip(run.records, extra, strict=True):
                numbers = [repr(getattr(record, name)) for name in fields]
                if more:
                    numbers = ["" if text == "nan" else text for text in (*numbers, *map(str, added))]
                names = [getattr(cell, name) for name in last]
                writer.writerow((cell.algorithm, cell.policy, seed, record.round, *numbers, *names))
    return text.getvalue()


def _over_time(records: Sequence[Record]) -> Iterator[tuple[float | str, ...]]:
    """The values of `RECORDED_COLUMNS`, round by round."""
    accuracy = [record.accuracy for record in records]
    rmse, r2 = ([record.metrics.get(name, np.nan) for record in records] for name in ("rmse", "r2"))
    means = [moving_mean(np.array(values), len(records)).tolist() for values in (accuracy, rmse, r2)]
    for t, record in enumerate(records):
        scores = (means[0][t], rmse[t], means[1][t], r2[t], means[2][t], record.shortfall)
        period = record.period
        if period is None:
            yield (*scores, *[""] * 5)
        else:
            times = (plain_time(period, edge) for edge in ("begin", "end"))
            yield (*scores, *times, period.samples, period.no_change, period.majority)
