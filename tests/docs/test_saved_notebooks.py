"""Notebooks are saved with what they show, and that is small: the documentation has them as pages."""

import ast
import pathlib

import nbformat
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 200_000


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_a_picture_and_holds_what_its_cells_show(path):
    notebook = nbformat.read(path, as_version=4)
    title, image, *_ = notebook.cells[0].source.split("\n\n")
    assert title.startswith("# ") and image == f"![What comes of it](../docs/images/notebooks/{path.stem}.png)"
    assert (ROOT / "docs" / "images" / "notebooks" / f"{path.stem}.png").stat().st_size < MOST_BYTES
    assert path.stat().st_size < MOST_BYTES, "make notebooks"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "make notebooks"
    assert not any("stderr" in str(cell.outputs) or "Traceback" in str(cell.outputs) for cell in code)
    assert all(cell.outputs for cell in code if prints(cell.source))


def prints(source):
    """Whether a cell prints or ends in a name, outside of functions and loops."""
    lines = [line for line in source.splitlines() if not line.startswith(("%", "!"))]
    expressions = [node.value for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.Expr)]
    return any(isinstance(x, ast.Name) or ast.unparse(x).startswith("print(") for x in expressions)


def test_the_gallery_shows_all():
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    assert all(f"(../notebooks/{path.name})" in gallery for path in NOTEBOOKS)
