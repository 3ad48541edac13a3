"""One HTML page in one file: sections of text, tables and charts.

Plotly and the data of the charts are inside, compressed; the page unpacks them when it is opened. The
template escapes every text, and the page's security policy forbids requests to any host.
"""

import base64
import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from dufl.experiment.files import to_json
from dufl.report.chart_spec import Chart
from dufl.report.plotly_charts import plotly_figure

Cell = str | tuple[str, float]  # a text; or a number, as it is shown and as it is sorted by


@dataclass(frozen=True)
class Paragraph:
    """Some text; `style` is a class of the style sheet."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Values with their names, shown large."""

    values: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; columns of numbers are aligned to the right.

    Attributes:
        caption: what it shows.
        heads: the names of the columns.
        rows: the cells.
        sortable: whether the reader may sort it.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = True

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold nothing but numbers."""
        return [all(isinstance(row[i], tuple) for row in self.rows) for i in range(len(self.heads))]


@dataclass(frozen=True)
class Code:
    """Lines of a file or of commands."""

    text: str
    label: str


@dataclass(frozen=True)
class Details:
    """A block that the reader may unfold."""

    summary: str
    block: "Block"


@dataclass(frozen=True)
class Samples:
    """Rows of images: the label of each row, a remark, the address of the image and its description."""

    caption: str
    rows: Sequence[tuple[str, str, str, str]]


@dataclass(frozen=True, eq=False)
class Charts:
    """Charts side by side."""

    charts: Sequence[Chart]


Block = Paragraph | Heading | Facts | Table | Code | Details | Samples | Charts


@dataclass(frozen=True, eq=False)
class Section:
    """A part of the page.

    Attributes:
        name: the text of links to it.
        title: its heading.
        blocks: its content.
    """

    name: str
    title: str
    blocks: Sequence[Block]


def make_page(title: str, top: Sequence[Block], sections: Sequence[Section]) -> str:
    """The whole page.

    Args:
        title: its heading.
        top: the blocks below the heading.
        sections: the rest.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    blocks = [block for section in sections for block in section.blocks]
    charts = [chart for block in blocks if isinstance(block, Charts) for chart in block.charts]
    drawn = {chart.name: {**plotly_figure(chart), "csv": chart.to_csv()} for chart in charts}
    environment = Environment(
        loader=PackageLoader("dufl.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"slug": _slug, "kind": lambda block: type(block).__name__}
    return environment.get_template("page.html").render(
        title=title,
        top=top,
        sections=sections,
        css=_asset("page.css"),
        script=_asset("page.js"),
        charts=_packed(to_json(drawn, indent=None).encode()),
        plotly=_packed((files("plotly") / "package_data" / "plotly.min.js").read_bytes()),
    )


def _slug(text: str) -> str:
    """A text as the name of an anchor."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def _packed(content: bytes) -> str:
    """Compressed, as text; the same for the same content."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _asset(name: str) -> str:
    return (files("dufl.report") / "assets" / name).read_text(encoding="utf-8")
