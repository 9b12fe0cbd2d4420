"""The style of every figure: one palette and one set of sizes."""

import itertools
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import IO, Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from tfp_bfl.files import FIGURES

# Okabe and Ito's palette, which stays distinct under the common kinds of colour blindness.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
AMBER = "#E69F00"
SKY = "#56B4E9"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY)
DASHES = ("-", "--", "-.", ":")
INK = "#222222"
MUTED = "#6B6B6B"
GRID = "#E2E2E2"
# On areas of a colour that stays the same in a dark page.
ON_BLUE = "#FEFEFE"

# What a dark page shows instead, at the same contrast.
DARK = {
    **{"#FFFFFF": "#1F2429", INK: "#E8EAED", MUTED: "#A3ABB5", GRID: "#3B434C", BLUE: "#4DA3E8", ORANGE: "#F58A3C"},
    **{GREEN: "#2FC79A", PURPLE: "#DE9CC4", AMBER: "#F0B429", SKY: "#9AD6FF"},
}

# Lines that others are compared with: of chance, and of the ideal.
DOTTED: dict[str, Any] = {"color": MUTED, "linewidth": 1.5, "linestyle": (0, (1, 1.5))}
DASHED: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": "--"}
WIDTH = 6.4
SIZE = 11
_PIXELS = 960  # Width of a figure.


def plain(text: object, length: int = 1000) -> str:
    """Return a caller's text as one line; its dollars start no formula, and it does not hide.

    Of more than `length` letters the middle is left out: names of a sweep differ at their ends.
    """
    # What is not printable has no place in an SVG; a label that begins with _ has none in a legend.
    text = "".join(letter if letter.isprintable() else "\ufffd" for letter in str(text))
    short = text if len(text) <= length else text[: length // 2] + "\u2026" + text[len(text) - (length - 1) // 2 :]
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def line(number: int) -> dict[str, Any]:
    """Return the colour and the dashes of one line of many: no two alike among the first 24."""
    turn = number // len(PALETTE)
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": DASHES[(number + turn) % len(DASHES)]}


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty white figure, in inches, outside pyplot's list of open figures."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.07), facecolor="white")


def save(figure: Figure, file: pathlib.Path | IO[bytes], form: str, text: str = "none") -> None:
    """Write a figure in a format of `FIGURES`; texts are texts in it, or in an SVG with `text` "path" paths."""
    if figure.get_layout_engine() is not None:  # Once: at the pixels of another format it would be another.
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
    with matplotlib.rc_context({"svg.hashsalt": "tfp_bfl", "svg.fonttype": text, "pdf.fonttype": 42}):
        figure.savefig(file, format=form, dpi=_PIXELS / figure.get_figwidth(), metadata=FIGURES[form])


def save_all(figures: Mapping[str, Figure], folder: pathlib.Path, forms: Iterable[str]) -> None:
    """Write figures by name into a folder, which is made, in several formats."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, form in itertools.product(figures, forms):
        save(figures[name], folder / f"{name}.{form}", form)


def one_panel(height: float) -> tuple[Figure, Axes]:
    """Return a new figure of one panel, and the panel."""
    figure = new_figure(height)
    return figure, figure.subplots()


def tidy(axes: Axes, title: str = "", x: str = "", y: str = "", grid: Literal["x", "y", "both"] | None = "y") -> None:
    """Give `axes` the common look: title on the left, axis labels, and a light grid along `grid`."""
    axes.set_facecolor("white")
    if title:
        axes.set_title(title, loc="left", fontsize=SIZE + 1, color=INK, fontweight="bold")
    axes.set_xlabel(x, fontsize=SIZE, color=INK)
    axes.set_ylabel(y, fontsize=SIZE, color=INK)
    axes.tick_params(which="both", labelsize=SIZE - 1, colors=MUTED, labelcolor=INK)
    axes.tick_params(length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)


def logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with as many numbers on it as have room; not one without positive values."""
    if not math.isfinite(axes.dataLim.minposy):
        return
    # What is exactly zero has no place there: it is left out.
    axes.set_yscale("log", nonpositive="mask")
    low, high = axes.get_ylim()
    if high > 4 * low:
        steps = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=8))
    else:  # Too narrow for round numbers of a logarithm.
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend(axes: Axes, **options: Any) -> None:
    """Add a legend without a frame, if there are two entries or more."""
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, fontsize=SIZE - 1, labelcolor=INK, **options)


def figure_legend(figure: Figure, axes: Axes) -> None:
    """Add the legend of `axes` below the whole figure, if there are two entries or more."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1:
        # Long names stand below each other: side by side they would make the figure's axes narrow.
        columns = 2 if max(map(len, names)) <= 18 else 1
        options = {"frameon": False, "fontsize": SIZE - 1, "labelcolor": INK}
        figure.legend(handles, names, loc="outside lower center", ncols=columns, **options)
