"""Scatter plots as inline SVG: each point is a link to the details of its cell."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

# In units of the view box.
_WIDTH, _HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 350, 10, 208
_RATIO = 20.0  # Of values, above which an axis is logarithmic.
# Place of zeros on a logarithmic axis, and of its smallest other value, as fractions of the axis.
_ZERO, _FIRST = 0.03, 0.12
# Of markers, in units of their size: a circle, a square, two triangles and a diamond.
_CORNERS: Sequence[Sequence[tuple[float, float]]] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.15), (1.1, 0.9), (-1.1, 0.9)),
    ((0, -1.3), (1.2, 0), (0, 1.3), (-1.2, 0)),
    ((0, 1.15), (1.1, -0.9), (-1.1, -0.9)),
)
COLOURS, SHAPES = 6, len(_CORNERS)


class Point(NamedTuple):
    """Hold one point of a scatter plot: its setting (colour and shape), its row, which `href` and the script's filter
    refer to, and a label that is shown on hover and focus and read aloud.
    """

    x: float
    y: float
    series: int
    row: int
    label: str


class Axis(NamedTuple):
    """Hold an axis: its ends, whether it is logarithmic, labelled ticks, and whether zeros stand at its beginning."""

    low: float
    high: float
    is_log: bool
    ticks: Sequence[float]
    zero: bool

    def place(self, value: float) -> float:
        """Return the place of a value on the axis, from 0 to 1."""
        if not self.is_log:
            return (value - self.low) / (self.high - self.low)
        first = _FIRST if self.zero else 0.0
        if value <= 0:
            return _ZERO
        return first + (1 - first) * math.log(value / self.low) / math.log(self.high / self.low)


def axis(values: Sequence[float]) -> Axis:
    """Choose ends, ticks and kind of an axis: logarithmic where positive values differ by a factor of 20 or more."""
    positive = [value for value in values if value > 0]
    if positive and min(values) >= 0 and max(positive) >= _RATIO * min(positive):
        low, high = min(positive) / 1.2, max(positive) * 1.2
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1,) if len(decades) > 4 else (1, 3)
        every = 1 + len(decades) // 7
        ticks = [step * 10.0**n for n in decades[::every] for step in steps if low <= step * 10.0**n <= high]
        zero = min(values) == 0
        return Axis(low, high, True, [0.0, *ticks] if zero else ticks, zero)
    margin = 0.06 * (max(values) - min(values)) or 0.05 * abs(values[0]) or 1.0
    low, high = min(values) - margin, max(values) + margin
    low = max(low, 0.0) if min(values) > 0 else low
    # Steps are the nearest of 1, 2 and 5 times a power of ten that is no smaller than a fifth.
    fifth = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(fifth))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= fifth * (1 - 1e-9))
    ticks = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Axis(low, high, False, ticks, False)


def figure(points: Sequence[Point], x: str, y: str, title: str) -> Markup:
    """Draw a scatter plot of one point at least, with labels of the axes and a title that is read aloud."""
    across, up = axis([point.x for point in points]), axis([point.y for point in points])
    column = lambda value: _LEFT + (_RIGHT - _LEFT) * across.place(value)
    row = lambda value: _BOTTOM - (_BOTTOM - _TOP) * up.place(value)
    parts = [f'<svg class="scatter" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="group" aria-label="{escape(title)}">']
    for value in across.ticks:
        place = f"{column(value):.1f}"
        parts.append(f'<line class="grid" x1="{place}" x2="{place}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(f'<text class="muted" text-anchor="middle" x="{place}" y="{_BOTTOM + 15}">{value:g}</text>')
    for value in up.ticks:
        place, tick = f"{row(value):.1f}", f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0e}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{place}" y2="{place}"/>')
        at = f'x="{_LEFT - 5}" y="{float(place) + 4:.1f}"'
        parts.append(f'<text class="muted" text-anchor="end" {at}>{tick}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>')
    middle, centre = (_LEFT + _RIGHT) / 2, (_TOP + _BOTTOM) / 2
    parts.append(f'<text text-anchor="middle" x="{middle}" y="{_HEIGHT - 8}">{escape(x)}</text>')
    parts.append(f'<text text-anchor="middle" transform="translate(11 {centre}) rotate(-90)">{escape(y)}</text>')
    for point in points:
        label = escape(point.label)
        parts.append(
            f'<a href="#cell-{point.row}" class="point s{point.series % COLOURS}" data-row="{point.row}" '
            f'data-label="{label}" aria-label="{label}"><title>{label}</title>'
            f"{marker(point.series, column(point.x), row(point.y))}</a>"
        )
    return Markup("\n".join([*parts, "</svg>"]))


def marker(series: int, x: float, y: float) -> Markup:
    """Draw the marker of a setting: no two alike among the first 30."""
    size, corners = 5.0, _CORNERS[series % SHAPES]
    if not corners:
        return Markup(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>')
    return Markup(f'<polygon points="{" ".join(f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in corners)}"/>')
