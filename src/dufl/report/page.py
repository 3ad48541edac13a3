"""One HTML page that needs nothing but itself: sections of text, tables and charts.

Plotly and the data of the charts are inside, compressed; the page unpacks them when it is opened. Every text
that comes from data goes through `escape`, and the page forbids itself to ask any host for anything.
"""

import base64
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from dufl.experiment.files import to_json
from dufl.report.interactive import Chart

Cell = str | tuple[str, float]  # a text, or a number: as it is shown, and as it is sorted by
Block = str | Sequence[Chart]  # HTML, or charts side by side

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
_ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E%3Cpath fill='%230072B2' d='M0 8V5h2v3zm3 0V3h2v5zm3 0V0h2v8z'/%3E%3C/svg%3E"  # noqa: E501

_THEME = (  # before anything is seen
    'try { const theme = localStorage.getItem("dufl-theme"); '
    "if (theme) document.documentElement.dataset.theme = theme } catch {}"
)


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        name: what links to it say.
        title: its heading.
        blocks: what is in it.
    """

    name: str
    title: str
    blocks: Sequence[Block]


def make_page(title: str, top: str, sections: Sequence[Section]) -> str:
    """The whole page.

    Args:
        title: its heading.
        top: what stands below the heading, in HTML.
        sections: the rest.
    """
    charts = [chart for part in sections for block in part.blocks for chart in _charts(block)]
    drawn = {chart.name: {**chart.figure, "csv": chart.to_csv()} for chart in charts}
    links = "".join(f'<li><a href="#{_id(part.name)}">{escape(part.name)}</a></li>' for part in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} – DUFL</title>
<link rel="icon" href="{_ICON}">
<script>{_THEME}</script>
<style>
{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header class="bar">
<p class="brand">DUFL</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<button type="button" id="theme" hidden></button>
</header>
<main id="content" tabindex="-1">
<h1>{escape(title)}</h1>
{top}
<noscript><p class="trouble">The charts and their CSV files need JavaScript. All tables are complete without it.</p></noscript>
<p class="trouble" id="trouble" role="alert" hidden></p>
{"".join(map(_section, sections))}
</main>
<script type="text/plain" id="charts">{_packed(to_json(drawn, indent=None).encode())}</script>
<script type="text/plain" id="plotly">{_packed(_plotly())}</script>
<script>
{_asset("page.js")}</script>
</body>
</html>
"""  # noqa: E501


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `text` is escaped."""
    return f"<p{_class(kind)}>{escape(text)}</p>\n"


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, sorts: bool = True) -> str:
    """A table whose first column names the rows; columns of numbers are aligned to the right.

    Args:
        caption: what it shows.
        heads: the names of the columns.
        rows: the cells.
        sorts: whether the reader may sort it.
    """
    numeric = [all(isinstance(row[i], tuple) for row in rows) for i in range(len(heads))]
    head = "".join(
        f'<th scope="col"{_class("number" if number else "")}>{escape(name)}</th>'
        for name, number in zip(heads, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>\n" for row in rows)
    name = f"table-{_id(caption)}"
    kind = _class("sorts" if sorts and len(rows) > 1 else "")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}">'
        f'<table{kind}><caption id="{name}"><span>{escape(caption)}</span></caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def details(summary: str, html: str) -> str:
    """Something that is shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>\n"


def code(text: str, label: str) -> str:
    """Some lines of a file or of commands."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(label)}"><code>{escape(text)}</code></pre>\n'


def _cells(row: Sequence[Cell]) -> Iterator[str]:
    for place, cell in enumerate(row):
        tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
        if isinstance(cell, str):
            yield f"<{tag}{scope}>{escape(cell)}</{tag}>"
        else:
            text, value = escape(cell[0].replace("-", "−")), float(cell[1])
            yield f'<{tag}{scope} class="number" data-value="{value!r}">{text}</{tag}>'


def _section(part: Section) -> str:
    name = _id(part.name)
    blocks = "".join(block if isinstance(block, str) else _grid(block) for block in part.blocks)
    heading = f'<h2 id="{name}-title">{escape(part.title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">\n{heading}\n{blocks}</section>\n'


def _grid(charts: Sequence[Chart]) -> str:
    return f'<div class="grid">{"".join(map(_figure, charts))}</div>\n'


def _figure(chart: Chart) -> str:
    title, note = escape(chart.title), escape(chart.note)
    return (
        f'<figure class="chart"><figcaption><h3>{title}</h3>'
        f'<a class="csv" data-chart="{escape(chart.name)}" download="{escape(chart.name)}.csv" hidden '
        f'aria-label="CSV: {title}">CSV</a></figcaption>'
        f'<div class="plot" id="chart-{escape(chart.name)}" data-chart="{escape(chart.name)}" role="img" '
        f'aria-label="{title}. {note}"></div>'
        f"{paragraph(chart.note, 'note') if chart.note else ''}</figure>\n"
    )


def _charts(block: Block) -> Sequence[Chart]:
    return [] if isinstance(block, str) else block


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _id(text: str) -> str:
    """A name that addresses can have."""
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in text.lower()).split())


def _packed(content: bytes) -> str:
    """Compressed, as text; the same for the same content."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _plotly() -> bytes:
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


def _asset(name: str) -> str:
    return (files("dufl.report") / "assets" / name).read_text(encoding="utf-8")
