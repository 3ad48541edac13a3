r"""The statistics of a comparison as a table in LaTeX, for `\usepackage{booktabs}`.

On one problem, a row has the mean ± the standard deviation, the 95 % interval, the difference to the baseline
and the corrected p-value. On several problems, a row is a method and a column is a problem.
"""

from collections.abc import Sequence

from dufl.experiment.findings import Row, Statistics
from dufl.experiment.statistics import LEAST
from dufl.report.measure import UNKNOWN
from dufl.report.statistics_table import p_text, score, score_head

_ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def escape(text: str) -> str:
    r"""A text with LaTeX's special characters escaped, on one line.

    >>> escape("my_rule & 50 %")
    'my\\_rule \\& 50 \\%'
    """
    plain = "".join(c if c.isprintable() else " " for c in text)
    return "".join(_ESCAPED.get(character, character) for character in plain)


def statistics_latex(results: Statistics) -> str:
    """A table, in an environment `table`."""
    columns, head, rows = _one_problem(results) if len(results.problems) == 1 else _several(results)
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_caption(results)}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {_line(head)}",
        r"    \midrule",
        *(f"    {_line(row)}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _one_problem(results: Statistics) -> tuple[str, list[str], list[list[str]]]:
    head = ["Method", _head(results), r"95\,\% interval", "Difference", r"95\,\% interval", "$p$"]
    rows = [
        [
            escape(row.method),
            _score(row),
            _interval(row, row.low, row.high),
            _number(row, row.difference, "+") + _mark(row),
            _interval(row, row.difference_low, row.difference_high, "+"),
            _p(row.p_holm),
        ]
        for row in results.rows
    ]
    return "lrrrrr", head, rows


def _several(results: Statistics) -> tuple[str, list[str], list[list[str]]]:
    by_name = {(row.problem, row.method): row for row in results.rows}
    ranks = results.ranks
    known = dict(zip(ranks.methods, ranks.mean_ranks, strict=True)) if ranks else {}
    best = min(known.values(), default=None)
    rows = []
    for method in dict.fromkeys(row.method for row in results.rows):
        found = [by_name.get((problem, method)) for problem in results.problems]
        cells = [UNKNOWN if row is None else _score(row) + _mark(row) for row in found]
        if ranks:
            mean = known.get(method)
            cells.append(UNKNOWN if mean is None else _bold(f"${mean:.2f}$", mean == best))
        rows.append([escape(method), *(_dash(cell) for cell in cells)])
    head = ["Method", *map(escape, results.problems), *["Mean rank"] * (ranks is not None)]
    return "l" + "r" * (len(head) - 1), head, rows


def _head(results: Statistics) -> str:
    return escape(score_head(results.rows).capitalize().replace("rmse", "RMSE"))


def _score(row: Row) -> str:
    """Mean ± standard deviation; the best in bold."""
    mean = _number(row, row.mean)
    around = "" if row.std is None else rf"\,$\pm$\,{_number(row, row.std)}"
    return _bold(mean, row.best) + around


def _number(row: Row, value: float | None, sign: str = "") -> str:
    text = score(row, value, sign).replace("−", "-")
    if text == UNKNOWN:
        return "--"
    digits, _, power = text.partition("e")
    return f"${digits}$" if not power else rf"${digits} \cdot 10^{{{int(power)}}}$"


def _interval(row: Row, low: float | None, high: float | None, sign: str = "") -> str:
    return "--" if low is None or high is None else f"[{_number(row, low, sign)}, {_number(row, high, sign)}]"


def _bold(text: str, best: bool) -> str:
    return rf"\textbf{{\boldmath {text}}}" if best else text


def _mark(row: Row) -> str:
    """One star for p ≤ 5 %, two for p ≤ 1 %; corrected."""
    if not row.significant or row.p_holm is None:
        return ""
    return r"$^{**}$" if row.p_holm <= 0.01 else r"$^{*}$"


def _p(p: float | None) -> str:
    text = p_text(p)
    digits, _, power = text.partition("e")
    return _dash(text) if not power else rf"${digits} \cdot 10^{{{int(power)}}}$"


def _dash(text: str) -> str:
    return "--" if text == UNKNOWN else text


def _caption(results: Statistics) -> str:
    runs = sorted({len(row.seeds) for row in results.rows})
    seeds = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}" if runs else "0"
    what = "Mean and sample standard deviation" if runs and runs[-1] > 1 else "Score"
    text = f"{what} over {seeds} seed{'' if seeds == '1' else 's'}; best in bold."
    if len(results.problems) > 1:
        named: dict[str, list[str]] = {}
        for row in results.rows:
            named.setdefault(score_head([row]).capitalize(), []).append(row.problem)
        for head, problems in named.items():
            text += f" {head.replace('rmse', 'RMSE')}: {', '.join(dict.fromkeys(problems))}."
    if results.tests:
        text += " Stars mark differences to the baseline (paired sign-flip test, corrected by Holm's method):"
        text += " * p <= 0.05, ** p <= 0.01."
    if len(results.problems) == 1 and runs[-1] >= LEAST:
        text += " Intervals are 95 % bootstrap intervals of the mean."
    return escape(text).replace(r"\textless{}=", r"$\leq$")
