"""A page in a single file that opens from disk: sections of pictures, images and tables."""

import base64
import io
import itertools
import math
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from tfp_bfl.files.writing import write_bytes
from tfp_bfl.plots import style

# Inches: narrow, since a telephone shows the whole figure, letters and all, at some 340 pixels.
_PAGE_WIDTH = 4.8
# Of a section in a column, in parts of its width: heading and words, a row of a table.
_WORDS, _ROW = 0.2, 0.07
# Rem: of a letter, and of the padding of a cell. Letters: of a row's name in one line, and of a part of a long word.
_LETTER, _PADDING, _COMFORT, _LONGEST = 0.57, 1.05, 22, 16
# A name may continue in the next line after these marks.
_BREAKS = re.compile(r"(?<=[_/:.=,])(?=[^\W\d])")


class Cell(NamedTuple):
    """A cell of a table: its text, whether it is better than the others of its row by more than seeds vary, and whether
    it is words, which may wrap; a number with its unit or interval stays in one line.
    """

    text: str
    is_best: bool = False
    is_words: bool = False


class Table(NamedTuple):
    """A table: what it is of, its column heads (none for one run), and rows of a head and cells."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[Cell]]]

    @property
    def width(self) -> int:
        """The width in rem, a multiple of 4, below which each row becomes a block of named values; 0 without heads."""
        if not self.head:
            return 0
        columns = zip(*(cells for _, cells in self.rows))
        heads = [max(map(len, _pieces(name)), default=0) for name in self.head]
        names = [min(_COMFORT, max((len(name) for name, _ in self.rows), default=0))]
        # Letters of a cell that stay in one line.
        least = lambda cell: max(map(len, _pieces(cell.text)), default=0) if cell.is_words else len(cell.text)
        widths = [*names, *(max(map(least, column)) for column in columns)]
        letters = sum(map(max, zip(heads, widths)))
        return 4 * math.ceil((_LETTER * letters + _PADDING * len(heads)) / 4)


def table(title: str, head: Sequence[str], rows: Iterable[tuple[str, Iterable[str | Cell]]]) -> Table:
    """Return a table of cells, of which plain ones are given by their text."""
    cells = lambda values: [Cell(value) if isinstance(value, str) else value for value in values]
    return Table(title, [*head], [(name, cells(values)) for name, values in rows])


class Headline(NamedTuple):
    """A result in large letters."""

    name: str
    value: str
    hint: str


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


class Gallery(NamedTuple):
    caption: str
    groups: list[tuple[str, list[Example]]]


class Section(NamedTuple):
    """A heading, a line on how to read what is below it, and that: pictures, images, tables.

    A wide section takes the page's whole width; a folded one is opened by a click.
    """

    heading: str
    how: str
    pictures: Sequence[Picture] = ()
    galleries: Sequence[Gallery] = ()
    tables: Sequence[Table] = ()
    is_wide: bool = False
    is_folded: bool = False

    @property
    def height(self) -> float:
        """The approximate height in a column of width 1."""
        rows = sum(1 + len(table.rows) for table in self.tables)
        return _WORDS + sum(picture.ratio for picture in self.pictures) + _ROW * rows


def picture(figure: Figure, caption: str = "") -> Picture:
    """Draw a figure for the page at its final size and with its final layout: to save it once more costs little."""
    if figure.get_layout_engine() is not None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(_PAGE_WIDTH, height * (1 + _PAGE_WIDTH / width) / 2)
    data = io.BytesIO()
    style.save(figure, data, "svg", text="path")
    # The dark colours where the page is dark.
    rules = ["svg{color-scheme:light dark}"]
    for light, dark in style.DARK.items():
        for role in ("fill", "stroke"):
            rules.append(f'[style*="{role}: {light.lower()}"]{{{role}:{dark.lower()} !important}}')
    dark_style = f"\n@media (prefers-color-scheme: dark){{{''.join(rules)}}}"
    text = data.getvalue().decode("utf-8").replace("</style>", f"{dark_style}</style>", 1)
    ratio = figure.get_figheight() / figure.get_figwidth()
    return Picture(caption, uri("image/svg+xml", text.encode("utf-8")), _description(figure), ratio)


def _description(figure: Figure) -> str:
    """Return the titles of the figure's panels and the names of its lines."""
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    names = [name for axes in figure.axes for name in axes.get_legend_handles_labels()[1]]
    parts = ["; ".join(filter(None, titles)), ", ".join(dict.fromkeys(names))]
    return ". ".join(filter(None, parts)).replace("\\$", "$")


def uri(kind: str, content: bytes) -> str:
    """Return the address of a picture that is inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def page_text(
    title: str,
    statements: Sequence[str],
    warnings: Sequence[str],
    headlines: Sequence[Headline],
    content: Sequence[Section],
) -> str:
    """Return a self-contained HTML page: title, statements, warnings in a box, headlines, and the sections."""
    templates = environment("tfp_bfl.plots")
    # A text may continue in the next line after a mark, and inside a long word such as a checksum.
    pieces = lambda text: (Markup("<wbr>").join(map(escape, _parts(word))) for word in text.split(" "))
    templates.filters["breakable"] = lambda text: Markup(" ").join(pieces(text))
    return templates.get_template("report.html.jinja").render(
        title=title,
        statements=statements,
        warnings=warnings,
        headlines=headlines,
        blocks=_blocks(content),
        widths=sorted({table.width for section in content for table in section.tables} - {0}),
    )


def write_page(path: pathlib.Path, *content: Any) -> pathlib.Path:
    """Write the page of `page_text`; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name may hold what no encoding has.
    write_bytes(path, page_text(*content).encode("utf-8", errors="replace"))
    return path


def _blocks(sections: Sequence[Section]) -> list[list[list[Section]]]:
    """Return columns of sections: wide ones alone, those between them in two columns of about the same height."""
    blocks: list[list[list[Section]]] = []
    for is_alone, group in itertools.groupby(sections, lambda section: section.is_wide or section.is_folded):
        own = list(group)
        blocks += [[[section]] for section in own] if is_alone else [_columns(own)]
    return blocks


def _columns(group: list[Section]) -> list[list[Section]]:
    """Return two columns, each in order, of which the longer one is as short as can be; the first section begins."""
    heights = np.array([section.height for section in group])
    ways = np.array([*itertools.product([0.0, 1.0], repeat=len(group) - 1)])
    second = np.concatenate([np.zeros([len(ways), 1]), ways], 1)
    best = second[np.argmin(np.maximum(second @ heights, (1 - second) @ heights))]
    columns = [[section for section, where in zip(group, best) if where == i] for i in (0, 1)]
    return [column for column in columns if column]


def environment(package: str) -> jinja2.Environment:
    """Return an environment for a package's templates: text is escaped, and an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _parts(word: str) -> list[str]:
    """Return a word's parts, of which each stays in one line."""
    parts = _BREAKS.split(word)
    return [part[i : i + _LONGEST] for part in parts for i in range(0, max(len(part), 1), _LONGEST)]


def _pieces(text: str) -> list[str]:
    return [part for word in text.split() for part in _parts(word)]
