"""How every figure looks: one palette, one set of sizes, no more ink than the data need."""

from typing import Any, Literal, Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# Okabe and Ito's palette, which stays distinct under the common kinds of colour blindness.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
AMBER = "#E69F00"
SKY = "#56B4E9"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY)
INK = "#222222"
MUTED = "#6B6B6B"
GRID = "#E2E2E2"

WIDTH = 6.4
SIZE = 11


def plain(text: Any, length: int = 1000) -> str:
    """Returns a caller's text, cut to `length`, with its dollars kept from starting a formula."""
    text = str(text)
    short = text if len(text) <= length else text[: length - 1] + "\u2026"
    return short.replace("$", r"\$")


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Returns an empty white figure, in inches, outside pyplot's list of open figures."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.07), facecolor="white")


def tidy(
    axes: Axes, title: str = "", x: str = "", y: str = "", grid: Optional[Literal["x", "y", "both"]] = "y"
) -> None:
    """Gives `axes` the common look: title on the left, axis labels, and a light grid along `grid`."""
    axes.set_facecolor("white")
    if title:
        axes.set_title(title, loc="left", fontsize=SIZE + 1, color=INK, fontweight="bold")
    axes.set_xlabel(x, fontsize=SIZE, color=INK)
    axes.set_ylabel(y, fontsize=SIZE, color=INK)
    axes.tick_params(labelsize=SIZE - 1, colors=MUTED, labelcolor=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)


def legend(axes: Axes, **options: Any) -> None:
    """Adds a legend without a frame, if there is more than one thing to tell apart."""
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, fontsize=SIZE - 1, labelcolor=INK, **options)
