"""Runs the notebooks and saves them with what they show, kept small: `make notebooks`, or with names of some."""

from __future__ import annotations

import base64
import io
import pathlib
import sys
import time

import nbclient
import nbformat
from PIL import Image

NOTEBOOKS = pathlib.Path(__file__).resolve().parent.parent / "notebooks"
# Of a picture: what a page shows, in few colours.
MOST_PIXELS = 720
COLOURS = 96
SECONDS = 1800
COVERS = pathlib.Path(__file__).resolve().parent / "images" / "notebooks"
# Which of a notebook's pictures it begins with.
COVER = {"01": 2, "02": 3, "03": 3, "04": 0, "05": 0, "06": 0, "07": 2, "08": 1, "09": 1}


def main(*names: str) -> None:
    paths = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if not names or path.stem in names]
    for path in paths:
        started = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3").execute()
        for cell in notebook.cells:
            cell.metadata = {}
            if cell.cell_type == "code":
                shown = (small(output) for output in cell.outputs if output.get("name") != "stderr")
                cell.outputs = [output for output in shown if output.get("text") != ""]
        notebook.metadata.pop("widgets", None)
        cover(path.stem, notebook)
        nbformat.write(notebook, path)
        print(f"{path.stem}: {path.stat().st_size / 1000:.0f} kB, {time.perf_counter() - started:.0f} s", flush=True)


def cover(name: str, notebook: nbformat.NotebookNode) -> None:
    """Saves the picture with which a notebook begins, and begins it with that."""
    found = [
        output.data["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    COVERS.mkdir(parents=True, exist_ok=True)
    (COVERS / f"{name}.png").write_bytes(base64.b64decode(found[COVER.get(name[:2], 0)]))
    title, *rest = notebook.cells[0].source.split("\n\n")
    image = f"![What comes of it](../docs/images/notebooks/{name}.png)"
    notebook.cells[0].source = "\n\n".join([title, image, *(part for part in rest if not part.startswith("!["))])


def small(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An output whose pictures have few pixels and colours, without what says when it was made."""
    if "metadata" in output:  # A stream has none.
        output.metadata = {}
    if "text" in output:  # What TensorFlow says of folders of this machine is of no use to a reader.
        lines = output.text.splitlines(keepends=True)
        output.text = "".join(line for line in lines if not line.startswith("INFO:tensorflow:"))
    data = output.get("data", {})
    if "image/png" in data:
        image = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB")
        if image.width > MOST_PIXELS:
            image = image.resize(
                (MOST_PIXELS, round(image.height * MOST_PIXELS / image.width)), Image.Resampling.LANCZOS
            )
        file = io.BytesIO()
        image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            file, "png", optimize=True
        )
        output.data = {
            "image/png": base64.b64encode(file.getvalue()).decode(),
            "text/plain": data.get("text/plain", ""),
        }
    return output


if __name__ == "__main__":
    main(*sys.argv[1:])
