"""A page in a single file that opens from disk: sections of pictures, images and tables."""

import base64
import datetime
import hashlib
import io
import itertools
import math
import pathlib
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from tfp_bfl.files.writing import write_bytes
from tfp_bfl.plots import style

# Inches: narrow, since a telephone shows the whole figure, letters and all, at some 340 pixels.
_PAGE_WIDTH = 4.8
# Rem: of a letter, and of the padding of a cell. Letters: of a row's name in one line, and of a part of a long word.
_LETTER, _PADDING, _COMFORT, _LONGEST = 0.57, 1.05, 22, 16
# Rem: of the tables into which a wider one is divided, which fit a window of 1024 pixels.
_WIDEST = 56
# A name may continue in the next line after these marks.
_BREAKS = re.compile(r"(?<=[_/:.=,])(?=[^\W\d])")


class Cell(NamedTuple):
    """A cell of a table: its text, whether it is better than the others of its column by more than seeds vary, whether
    it is words, which may wrap (a number with its unit or standard deviation stays in one line), and by what a script
    sorts it.
    """

    text: str
    is_best: bool = False
    is_words: bool = False
    sort: str = ""

    @property
    def least(self) -> int:
        """The number of letters that stay in one line."""
        return max(map(len, _pieces(self.text) if self.is_words else self.text.split(" [")), default=0)


class Table(NamedTuple):
    """A table: its title, its column heads (none for pairs of name and value), and rows of a head and cells."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[Cell]]]

    @property
    def words(self) -> list[bool]:
        """Return whether each column, that of the names first, has words; one of numbers is aligned on the right."""
        return [True, *(any(cell.is_words for cell in column) for column in zip(*(cells for _, cells in self.rows)))]

    @property
    def widths(self) -> list[float]:
        """The least width of each column in rem."""
        heads = [max(map(len, _pieces(name)), default=0) for name in self.head]
        names = [min(_COMFORT, max((len(name) for name, _ in self.rows), default=0))]
        columns = zip(*(cells for _, cells in self.rows))
        cells = [*names, *(max(cell.least for cell in column) for column in columns)]
        return [_LETTER * max(pair) + _PADDING for pair in zip(heads, cells)]

    @property
    def width(self) -> int:
        """The width in rem, a multiple of 2, below which each row becomes a block of named values; 0 without heads."""
        return 2 * math.ceil(sum(self.widths) / 2) if self.head else 0

    @property
    def parts(self) -> list["Table"]:
        """The table, or several with some of its columns each where it is wider than a page."""
        if self.width <= _WIDEST:
            return [self]
        first, *others = self.widths
        ends, total = [0], first
        for number, width in enumerate(others):
            if (total := total + width) > _WIDEST and number > ends[-1]:
                ends.append(number)
                total = first + width
        cut = lambda a, b: Table(self.title, [self.head[0], *self.head[1:][a:b]], [(n, c[a:b]) for n, c in self.rows])
        return [cut(a, b) for a, b in itertools.pairwise([*ends, len(others)])]


def table(title: str, head: Sequence[str], rows: Iterable[tuple[str, Iterable[str | Cell]]]) -> Table:
    """Return a table of cells, of which plain ones are given by their text."""
    cells = lambda values: [Cell(value) if isinstance(value, str) else value for value in values]
    return Table(title, [*head], [(name, cells(values)) for name, values in rows])


def by_row(title: str, names: Sequence[str], columns: Iterable[tuple[str, Iterable[str | Cell]]]) -> Table:
    """Return a table of columns, a head and a cell for each name: of runs or methods, which are its rows."""
    columns = [*columns]
    return table(title, ["", *(head for head, _ in columns)], zip(names, zip(*(cells for _, cells in columns))))


class About(NamedTuple):
    """The lines of a page's title block: the data and their sizes, the outcome, the date and the version of the library
    of the numbers, and the command that repeats them. Empty ones are left out; an empty date is that of today, an empty
    version that of the library here.
    """

    data: str = ""
    outcome: str = ""
    version: str = ""
    command: str = ""
    date: str = ""

    def facts(self) -> dict[str, str]:
        """Return the lines of the title block by their names."""
        date = self.date or datetime.date.today().isoformat()
        facts = {"Data": self.data, "Outcome": self.outcome, "Date": date}
        return {**facts, "Version": f"tfp_bfl {self.version or metadata.version('tfp_bfl')}", "Command": self.command}


class Headline(NamedTuple):
    """A result in large letters."""

    name: str
    value: str
    hint: str


class Picture(NamedTuple):
    """A figure: its caption (the run's name or nothing), the address of the picture, and what to read aloud. An SVG
    takes the place of the address; it is read aloud itself, and `alt` stands below it."""

    caption: str
    source: str
    alt: str
    svg: Markup = Markup()


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
    """A heading, lines on how to read what is below it, and that: markup, pictures, images, tables.

    A wide section takes the page's whole width; a folded one is opened by a click. One with an anchor can be linked.
    """

    heading: str
    how: str
    pictures: Sequence[Picture] = ()
    galleries: Sequence[Gallery] = ()
    tables: Sequence[Table] = ()
    is_wide: bool = False
    is_folded: bool = False
    anchor: str = ""
    markup: Markup = Markup()


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
    return Picture(caption, uri("image/svg+xml", text.encode("utf-8")), _description(figure))


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
    about: About,
    content: Sequence[Section],
    *,
    statements: Sequence[str] = (),
    warnings: Sequence[str] = (),
    headlines: Sequence[Headline] = (),
    style: str = "",
    script: str = "",
) -> str:
    """Return a self-contained HTML page: title block, statements, warnings in a box, headlines, and the sections.

    A page with a script has a dialog for it.
    """
    templates = environment()
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return templates.get_template("page.html.jinja").render(
        title=title,
        facts=about.facts(),
        statements=statements,
        warnings=warnings,
        headlines=headlines,
        links=[section for section in content if section.anchor and not section.is_folded],
        blocks=[(wide, [*own]) for wide, own in itertools.groupby(content, lambda x: x.is_wide or x.is_folded)],
        widths=sorted({part.width for section in content for table in section.tables for part in table.parts} - {0}),
        style=Markup(pathlib.Path(__file__).with_name("page.css").read_text(encoding="utf-8") + style),
        script=Markup(script),
        policy=Markup(f"; script-src 'sha256-{digest}'") if script else "",
    )


def write_page(path: pathlib.Path, page: str) -> pathlib.Path:
    """Write the text of a page; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name may hold what no encoding has.
    write_bytes(path, page.encode("utf-8", errors="replace"))
    return path


def environment(*packages: str) -> jinja2.Environment:
    """Return an environment for the templates of pages and of packages: text is escaped, an undefined name is an error.

    The filters `breakable` and `soft` let text continue in the next line after a mark, and inside a long word such as a
    checksum: by a tag, and in an attribute by a character.
    """
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, ".") for name in ("tfp_bfl.plots", *packages)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with_mark = lambda mark: lambda text: Markup(" ").join(mark.join(map(escape, _parts(w))) for w in text.split(" "))
    templates.filters |= {"breakable": with_mark(Markup("<wbr>")), "soft": with_mark(Markup("\u200b"))}
    return templates


def _parts(word: str) -> list[str]:
    """Return a word's parts, of which each stays in one line."""
    parts = _BREAKS.split(word)
    return [part[i : i + _LONGEST] for part in parts for i in range(0, max(len(part), 1), _LONGEST)]


def _pieces(text: str) -> list[str]:
    return [part for word in text.split() for part in _parts(word)]
