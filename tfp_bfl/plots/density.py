"""The clients' values of a single weight and their kernel density, as a picture."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfp_bfl.errors import InvalidArgument, check_number, lookup, shown
from tfp_bfl.plots import style

KERNELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "epanechnikov": lambda u: 0.75 * np.maximum(1 - u**2, 0),
    "gaussian": lambda u: np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi),
}
# A Gaussian kernel is this many bandwidths wide on either side.
_REACH = {"epanechnikov": 1.0, "gaussian": 3.0}
_POINTS = 2000
_MARKS = ((style.INK, ":"), (style.ORANGE, "-"), (style.GREEN, "--"), (style.PURPLE, "-."))
_CURVES = (style.BLUE, style.AMBER, style.SKY, style.PURPLE, style.GREEN, style.ORANGE)


def kernel_density(
    values: object,
    curves: Mapping[str, tuple[str, float]],
    marks: Mapping[str, float] | None = None,
    title: str = "",
    label: str = "value of the weight",
    axes: Axes | None = None,
) -> Figure:
    """Draw S clients' values of one weight as a rug beneath their kernel densities, a line for each curve.

        p(x) = 1 / (S h) sum_i K((x - w_i) / h)

    The grey area is the Gaussian of the clients' mean and standard deviation (ddof 1). Marks are places on the axis,
    such as the clients' mean and the modes that `tfp_bfl.algorithms.kernel.kernel_mode` finds, drawn as vertical lines.
    Curves are name -> (kernel, h), "epanechnikov" or "gaussian" and a bandwidth in units of the values [S]. On existing
    `axes`, such as one of many panels, there is no legend (`density_legend`).
    """
    marks, values = marks or {}, np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.all(np.isfinite(values)):
        raise InvalidArgument(f"The values must be finite numbers of shape [S], not {values.dtype} {values.shape}.")
    if not len(values) or values.min() == values.max():
        raise InvalidArgument("The values must be of at least two clients who differ: others have no density.")
    if not curves:
        raise InvalidArgument("kernel_density needs at least one curve, as a mapping of name to (kernel, bandwidth).")
    for kernel, h in curves.values():
        lookup(KERNELS, kernel, "kernel")
        check_number(h, "A bandwidth", within=(0.0, np.inf))
    if not np.all(np.isfinite([*marks.values()])):
        raise InvalidArgument(f"Marks are at {shown(marks)}, but must be finite numbers.")
    values = values.astype(np.float64)
    is_whole = axes is None
    axes = style.one_panel(4.4)[1] if axes is None else axes
    low, high = values.min(), values.max()
    reach = max(_REACH[kernel] * h for kernel, h in curves.values())
    pad = min(reach, 0.6 * (high - low)) + 0.04 * (high - low)
    x = np.sort(np.concatenate([np.linspace(low - pad, high + pad, _POINTS), values]))
    stddev = values.std(ddof=1)
    normal = KERNELS["gaussian"]((x - values.mean()) / stddev) / stddev
    axes.fill_between(x, normal, color=style.GRID, linewidth=0, label="Gaussian of mean and sd")
    top = normal.max()
    for i, (name, (kernel, h)) in enumerate(curves.items()):
        density = KERNELS[kernel]((x[:, np.newaxis] - values) / h).mean(1) / h
        look: dict[str, Any] = {"color": _CURVES[i % len(_CURVES)], "linestyle": style.DASHES[i % len(style.DASHES)]}
        axes.plot(x, density, **look, linewidth=1.8, label=style.plain(name, 40))
        top = max(top, density.max())
    for i, (name, place) in enumerate(marks.items()):
        color, dashes = _MARKS[i % len(_MARKS)]
        axes.axvline(place, color=color, linestyle=dashes, linewidth=1.6, label=style.plain(name, 40))
    # The rug has a strip of its own below zero.
    axes.vlines(values, -0.09 * top, -0.02 * top, color=style.MUTED, linewidth=0.8, label="clients")
    axes.set_ylim(-0.1 * top, 1.06 * top)
    axes.set_xlim(x[0], x[-1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, prune="lower"))
    axes.ticklabel_format(scilimits=(-2, 3), useMathText=True)
    style.tidy(axes, style.plain(title), x=label, y="density", grid=None)
    figure: Any = axes.figure
    if is_whole:
        density_legend(figure, axes)
    return figure


def density_legend(figure: Figure, axes: Axes) -> None:
    """Draw one legend beneath all panels, with the entries of one of them."""
    handles, names = axes.get_legend_handles_labels()
    columns = 3 if figure.get_figwidth() < 8 else 4
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=style.SIZE - 1)
