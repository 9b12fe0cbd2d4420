"""Figures and images as a page holds them: inside the page, light or dark as the reader's."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from tfp_bfl.plots import style
from tfp_bfl.plots.examples import extremes
from tfp_bfl.plots.results import RunResults

# Inches: narrow, since a telephone shows the whole figure, letters and all, at some 340 pixels.
_PAGE_WIDTH = 4.8


class Picture(NamedTuple):
    """A figure: its caption (the run's name or nothing), the address of the picture, what to read aloud, and its height
    over its width."""

    caption: str
    source: str
    alt: str
    ratio: float = 0.75


class Example(NamedTuple):
    """One image of the test set with its prediction."""

    source: str
    alt: str
    guess: str
    confidence: str
    truth: str
    is_right: bool
    entropy: str


def picture(figure: Figure, caption: str = "") -> Picture:
    """Draw a figure for the page, whose size it then has, laid out for good: to save it once more costs little."""
    if figure.get_layout_engine() is not None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(_PAGE_WIDTH, height * (1 + _PAGE_WIDTH / width) / 2)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
    data = io.BytesIO()
    # The fixed salt and the missing date make the same run give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "tfp_bfl", "svg.fonttype": "path"}):
        figure.savefig(data, format="svg", metadata={"Date": None})
    text = data.getvalue().decode("utf-8").replace("</style>", f"{_dark_style()}</style>", 1)
    ratio = figure.get_figheight() / figure.get_figwidth()
    return Picture(caption, _uri("image/svg+xml", text.encode("utf-8")), _description(figure), ratio)


def _dark_style() -> str:
    """Return rules that give an SVG of matplotlib the dark colours where its page is dark."""
    rules = ["svg{color-scheme:light dark}"]
    for light, dark in style.DARK.items():
        for role in ("fill", "stroke"):
            rules.append(f'[style*="{role}: {light.lower()}"]{{{role}:{dark.lower()} !important}}')
    return f"\n@media (prefers-color-scheme: dark){{{''.join(rules)}}}"


def _description(figure: Figure) -> str:
    """Return the titles of the figure's panels and the names of its lines."""
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    names = [name for axes in figure.axes for name in axes.get_legend_handles_labels()[1]]
    parts = ["; ".join(filter(None, titles)), ", ".join(dict.fromkeys(names))]
    return ". ".join(filter(None, parts)).replace("\\$", "$")


def galleries(run: RunResults, count: int = 8) -> list[tuple[str, list[Example]]]:
    """Return the test images with the lowest and the highest uncertainty, each group under its heading."""
    entropy = np.asarray(run.uncertainties["entropy"])
    return [(title, [_example(run, i) for i in chosen]) for title, chosen in extremes(entropy, count)]


def _example(run: RunResults, number: int) -> Example:
    p, truth = run.probabilities[number], int(run.labels[number])
    guess = int(p.argmax())
    confidence = f"{100 * float(p[guess]):.0f}\u00a0%"
    names: Sequence[str] = run.class_names
    return Example(
        source=_png(run.features[number]),  # type: ignore[index]
        alt=f"Test image {number} of the class {names[truth]}",
        guess=str(names[guess]),
        confidence=confidence,
        truth=str(names[truth]),
        is_right=guess == truth,
        entropy=f"{float(run.uncertainties['entropy'][number]):.3f}",
    )


def _png(image: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(data, format="png", optimize=True)
    return _uri("image/png", data.getvalue())


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
