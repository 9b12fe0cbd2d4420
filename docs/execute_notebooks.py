"""Execute the notebooks and save their outputs in small files: `nox -s notebooks`, or with names of notebooks."""

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
# Limits of a picture in a page.
MOST_PIXELS = 720
COLOURS = 96
SECONDS = 1800
_LOGGED = ("INFO:tensorflow:", "WARNING:tensorflow:")
PICTURES = pathlib.Path(__file__).resolve().parent / "images" / "notebooks"
THUMBNAIL = 400
# Number of the opening picture among a notebook's pictures, and its part in the thumbnail: left, top, right, bottom.
COVERS = {
    "01": (2, (0.51, 0.0, 1.0, 1.0)),
    "02": (3, (0.5, 0.0, 1.0, 0.47)),
    "03": (3, (0.0, 0.0, 1.0, 0.3)),
    "04": (0, (0.35, 0.0, 1.0, 0.44)),
    "05": (0, (0.44, 0.0, 1.0, 1.0)),
    "06": (0, (0.0, 0.5, 1.0, 1.0)),
    "07": (2, (0.0, 0.0, 1.0, 0.55)),
    "08": (1, (0.0, 0.0, 1.0, 0.8)),
    "09": (1, (0.0, 0.0, 0.69, 1.0)),
    "10": (0, (0.0, 0.46, 0.75, 1.0)),
}


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
        save_pictures(path.stem, notebook)
        nbformat.write(notebook, path)
        print(f"{path.stem}: {path.stat().st_size / 1000:.0f} kB, {time.perf_counter() - started:.0f} s", flush=True)


def save_pictures(name: str, notebook: nbformat.NotebookNode) -> None:
    """Save the opening picture of a notebook and its thumbnail in the gallery."""
    pictures = [
        output.data["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    number, box = COVERS[name[:2]]
    content = base64.b64decode(pictures[number])
    (PICTURES / "thumbnails").mkdir(parents=True, exist_ok=True)
    (PICTURES / f"{name}.png").write_bytes(content)
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image = image.crop([round(x * size) for x, size in zip(box, 2 * image.size)])
    (PICTURES / "thumbnails" / f"{name}.png").write_bytes(as_png(image, THUMBNAIL))


def small(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return an output with pictures of few pixels and colours, and without times."""
    if "metadata" in output:  # A stream has none.
        output.metadata = {}
    if "text" in output:  # TensorFlow logs folders of this machine, and advice to developers.
        lines = output.text.splitlines(keepends=True)
        output.text = "".join(line for line in lines if not line.startswith(_LOGGED))
    data = output.get("data", {})
    if "image/png" in data:
        image = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB")
        output.data = {
            "image/png": base64.b64encode(as_png(image, MOST_PIXELS)).decode(),
            "text/plain": data.get("text/plain", ""),
        }
    return output


def as_png(image: Image.Image, most_pixels: int) -> bytes:
    """Return an image as a PNG of few colours, at most so many pixels wide."""
    if image.width > most_pixels:
        image = image.resize((most_pixels, round(image.height * most_pixels / image.width)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    main(*sys.argv[1:])
