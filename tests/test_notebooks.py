"""Every notebook runs from top to bottom."""

import pathlib

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.deep(after="tests/docs/test_examples.py")

# Minutes of chains.
LONG = (
    "01_flipout_in_keras",
    "02_partition_and_look",
    "04_six_rules",
    "05_uncertainty",
    "07_calibrate_hospitals",
    "08_a_chain_across_hospitals",
    "09_one_hospital_one_model",
)
DRAWING = ("bfl.plots.", "plt.subplots(")
NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def shows(cell):
    return "image/png" in str(cell.get("outputs"))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.long] if path.stem in LONG else [], id=path.stem) for path in NOTEBOOKS],
)
def test_notebook_runs_and_shows_its_pictures(path):
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=1500, kernel_name="python3").execute()
    pictures = [cell for cell in notebook.cells if shows(cell)]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert pictures == [cell for cell in code if any(call in cell.source for call in DRAWING)]
    assert any("bfl.plots." in cell.source for cell in code)
