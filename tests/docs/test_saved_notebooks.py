"""Notebooks are saved with their outputs in small files: the documentation has them as pages."""

import ast
import pathlib
import re

import nbformat
import pytest
from PIL import Image

from tests.docs.test_language import BANNED, MOST_COLUMNS, NOT_FIRST

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = ROOT / "docs" / "images" / "notebooks"
MOST_BYTES = 200_000
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks():
    assert NOTEBOOKS


@every_notebook
def test_a_notebook_opens_with_a_picture_what_one_learns_audience_and_time(path):
    title, image, learn, audience, *_ = nbformat.read(path, as_version=4).cells[0].source.split("\n\n")
    assert title.startswith("# ") and re.fullmatch(
        rf"!\[.{{20,}}\]\(\.\./docs/images/notebooks/{path.stem}\.png\)", image
    )
    assert learn.startswith("**You learn to** ") and audience.startswith("**For** ")
    assert re.search(
        r"\*\*Time:\*\* (less than )?\d+ minutes? to run on two cores, \d+ minutes to read\.",
        " ".join(audience.split()),
    )
    assert (PICTURES / f"{path.stem}.png").stat().st_size < MOST_BYTES


@every_notebook
def test_a_notebook_holds_the_outputs_of_its_cells(path):
    assert path.stat().st_size < MOST_BYTES, "nox -s notebooks"
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "nox -s notebooks"
    assert not any("stderr" in str(cell.outputs) or "Traceback" in str(cell.outputs) for cell in code)
    assert all(cell.outputs for cell in code if prints(cell.source))


@every_notebook
def test_a_notebook_uses_the_fields_terms(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    text = re.sub(r"\]\([^)]*\)", "]", "\n\n".join(cell.source for cell in cells))
    assert [word for word in BANNED if re.search(word, text)] == []
    assert [line for line in text.splitlines() if len(line) > MOST_COLUMNS] == []
    heads = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    assert [head for head in heads if head.split()[0] in NOT_FIRST - {"Why"}] == []


def prints(source):
    """Whether a cell prints or ends in a name, outside of functions and loops."""
    lines = [line for line in source.splitlines() if not line.startswith(("%", "!"))]
    expressions = [node.value for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.Expr)]
    return any(isinstance(x, ast.Name) or ast.unparse(x).startswith("print(") for x in expressions)


@every_notebook
def test_the_gallery_has_a_thumbnail_a_title_and_a_line(path):
    gallery = (ROOT / "docs" / "gallery.md").read_text().splitlines()
    (row,) = [line for line in gallery if f"(../notebooks/{path.name})" in line]
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].removeprefix("# ")
    picture, text = row.strip("| ").split(" | ")
    assert f"(images/notebooks/thumbnails/{path.stem}.png)" in picture
    assert text.startswith(f"[{title}](../notebooks/{path.name}): ") and text.endswith(".")
    with Image.open(PICTURES / "thumbnails" / f"{path.stem}.png") as image:
        assert 300 <= image.width <= 400 and image.height >= 100
