"""The tutorials run from top to bottom, and are stored without outputs."""

from pathlib import Path

import nbformat
import pytest
from hooks import execute, markdown
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a folder of its own, so that it needs no file beside it; and without warnings."""
    notebook = execute(nbformat.read(path, as_version=4), tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_a_cell_that_fails_is_noticed(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    with pytest.raises(CellExecutionError):
        execute(notebook, tmp_path)


def test_a_page_has_text_code_and_every_kind_of_output() -> None:
    outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="printed\n"),
        nbformat.v4.new_output("execute_result", {"text/plain": "42"}),
        nbformat.v4.new_output("display_data", {"text/plain": "<Figure>", "image/png": "iVBO"}),
        nbformat.v4.new_output("display_data", {"text/plain": "Frame", "text/html": "<table></table>"}),
    ]
    cell = nbformat.v4.new_code_cell("answer()", outputs=outputs)
    page = markdown(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title"), cell]))
    assert page.startswith("# Title\n\n```python\nanswer()\n```")
    for shown in ("\nprinted\n", "\n42\n", "data:image/png;base64,iVBO", "<table></table>"):
        assert shown in page
    for hidden in ("<Figure>", "Frame"):
        assert hidden not in page
