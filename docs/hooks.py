"""What the site needs beyond MkDocs and its plugins.

formulas    `$...$` and `$$...$$` become MathML when the site is built: no script, no font, no network
notebooks   docs/tutorials/*.ipynb are executed and become pages; the stored notebooks have no outputs
reference   doctests in docstrings become code blocks, fields become arguments of constructors

Set `DUFL_DOCS_EXECUTE=0` to build the notebooks without their outputs.
"""

import html
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import nbformat
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient

TIMEOUT = 300  # seconds for a cell, and for the kernel to start
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_DOCTEST = re.compile(r"^>>> .*?(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook. The notebook itself stays, as a download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        notebook = nbformat.read(Path(config.docs_dir) / file.src_uri, as_version=4)
        if os.environ.get("DUFL_DOCS_EXECUTE", "1") != "0":
            execute(notebook, Path(config.docs_dir).parent)
        name = Path(file.src_uri).name
        text = f"{markdown(notebook)}\n\n[Download this notebook]({name})\n"
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def on_page_content(text: str, page: Page, **_: Any) -> str:
    """Replace the formulas of a page by MathML."""

    def formula(found: re.Match[str]) -> str:
        try:
            return mathml(html.unescape(found[2]), block=found[1] == "div")
        except ValueError as error:
            raise PluginError(f"{page.file.src_uri}: {error}") from error

    return _FORMULA.sub(formula, text)


@cache
def mathml(latex: str, block: bool = False) -> str:
    """A LaTeX formula as a MathML element.

    Raises:
        ValueError: if the formula uses a command that cannot be converted.
    """
    source = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", latex.strip())
    result: str = convert(source, display="block" if block else "inline")
    unknown = re.search(r"\\[^<]*|(?<=<mi>)&(?=<)", result)
    if unknown:
        raise ValueError(f"cannot convert {unknown[0]!r} in the formula {latex.strip()!r}")
    result = re.sub(r"(<mi>log</mi>)(?=<m)", r'\1<mspace width="0.167em" />', result)
    return f'<div class="formula">{result}</div>' if block else result


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run all cells of a notebook in a new kernel, and keep their outputs in it."""
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=TIMEOUT, startup_timeout=TIMEOUT, kernel_name="python3", resources=resources
    )
    client.extra_arguments = ["--IPKernelApp.log_level=40"]  # the kernel's errors only
    client.execute()
    return notebook


def markdown(notebook: nbformat.NotebookNode) -> str:
    """A notebook as Markdown: its text, its code, and the outputs that it holds."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts += [f"```python\n{cell.source}\n```", *_outputs(cell)]
    return "\n\n".join(parts)


def _outputs(cell: nbformat.NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        if output.output_type == "stream":
            yield _printed(output.text)
            continue
        data = output.data
        if "image/png" in data:
            yield f'<img alt="" src="data:image/png;base64,{data["image/png"].strip()}">'
        elif "text/html" in data:
            yield f'<div class="output">{data["text/html"]}</div>'
        else:
            yield _printed(data["text/plain"])


def _printed(text: str) -> str:
    return f"``` {{ .text .output .no-copy }}\n{text.rstrip()}\n```"


class Reference(griffe.Extension):
    """What the API reference shows beyond what Griffe finds: doctests as code, fields as arguments."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put the doctests of a docstring into a code block."""
        if obj.docstring and "Examples:" not in obj.docstring.value:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Show the fields of a validated class as the arguments of its constructor."""
        if "Inputs" not in map(str, cls.bases):
            return
        fields = [
            griffe.Parameter(
                name,
                annotation=_type(field.annotation),
                kind=griffe.ParameterKind.keyword_only,
                default=None if field.value is None else str(field.value),
            )
            for name, field in cls.attributes.items()
            if "instance-attribute" in field.labels and not name.startswith(("_", "model_"))
        ]
        own = cls.members.get("__init__")
        named = list(own.parameters) if isinstance(own, griffe.Function) else []
        first = [
            p for p in named if p.kind is griffe.ParameterKind.positional_or_keyword and p.name != "self"
        ]
        if own is not None and not any(p.kind is griffe.ParameterKind.var_keyword for p in named):
            return
        this = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        rest = [field for field in fields if field.name not in {p.name for p in first}]
        parameters = griffe.Parameters(this, *first, *rest)
        cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))


def _type(annotation: Any) -> Any:
    """The type in an annotation, without the rules that check its values."""
    if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Annotated":
        return annotation.slice.elements[0] if isinstance(annotation.slice, griffe.ExprTuple) else annotation
    return annotation
