"""Encode: the cells of a table as the columns of a model.

number, truth, date   the number; an empty cell becomes the mean m of the filled cells
category              0 or 1 for each level, and for all rare levels together; an empty cell becomes their shares
factor                0 or 1 for each level but the first, the reference (linear models)
ordinal               0 or 1 for each level but the first: is the cell at least that level?
text                  the features of texts (`texts`), 0 for an empty cell
missing               0 or 1 for a column with empty cells in training: is the cell empty?
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter

from tfp_bfl.data.cells import TEXT_KINDS, Cells, blank, read_columns
from tfp_bfl.data.columns import Columns, Troubles
from tfp_bfl.data.statistics import Column
from tfp_bfl.data.texts import TEXT, WIDTHS
from tfp_bfl.errors import shown

# Of a record, before anything is read from it.
_MOST_FEATURES = 100_000


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("not printable")
    return text


Printable = Annotated[str, Field(strict=True), AfterValidator(_printable)]
_Text = Annotated[str, Field(strict=True, pattern=r"^[^\x00]*$")]
_Kind = Annotated[str, Field(strict=True, pattern="^(number|truth|date|category|ordinal|text)$")]
_Flag = Annotated[bool, Field(strict=True)]


class Feature(NamedTuple):
    """A column of a table, and its form as columns of the model.

    Fields:
      name: of the column.
      kind: as of `Cells`.
      levels: of text, in order; rare ones are left out.
      has_rare: whether rare levels have a column.
      has_missing: whether empty cells have a column.
      unit: of dates, or `Cells.sign` of numbers and texts; None of other columns.
    """

    name: Printable
    kind: _Kind
    levels: tuple[_Text, ...] = ()
    has_rare: _Flag = False
    has_missing: _Flag = False
    unit: _Text | None = None

    @property
    def is_text(self) -> bool:
        """Whether the cells are text."""
        return self.kind in (*TEXT_KINDS, TEXT)

    @property
    def sign(self) -> str:
        """The sign beside numbers, or the backbone of texts; "" for none."""
        return self.unit or "" if self.kind in ("number", "truth", TEXT) else ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the model."""
        if self.kind == TEXT:
            names = [f"{self.name}[{self.unit} {j + 1}]" for j in range(WIDTHS[self.sign])]
        elif not self.is_text:
            names = [self.name]
        else:
            form = "{}[>={}]" if self.kind == "ordinal" else "{}[{}]"
            names = [form.format(self.name, level) for level in self.levels[self._first :]]
            names += [f"{self.name}[rare]"] if self.has_rare else []
        names += [f"{self.name}[missing]"] if self.has_missing else []
        return tuple(name if name.isprintable() else ascii(name)[1:-1] for name in names)

    @property
    def _first(self) -> int:
        """The first level with a column: of two levels one column says all."""
        return int(len(self.levels) > 1 and (self.kind != "category" or (len(self.levels) == 2 and not self.has_rare)))

    @property
    def codes(self) -> np.ndarray:
        """The columns of each level, float64 [L + 1, c], without that of empty cells; those of a rare level are last.

        An unknown level of a feature without rare ones has NaN.
        """
        size = len(self.levels)
        codes = np.tri(size) if self.kind == "ordinal" else np.eye(size)
        codes = codes[:, self._first :]
        if self.has_rare:
            return np.block([[codes, np.zeros((size, 1))], [np.zeros((1, codes.shape[1])), np.ones((1, 1))]])
        return np.concatenate([codes, np.full((1, codes.shape[1]), np.nan)])


_FEATURES = TypeAdapter(Annotated[tuple[Feature, ...], Field(max_length=_MOST_FEATURES)])


def parse_features(given: object) -> tuple[Feature, ...]:
    """Return the features of a record, a list of `Feature._asdict()`; ValueError if it is none."""
    features = _FEATURES.validate_python(given)
    if any(x.kind == TEXT and (x.unit not in WIDTHS or x.has_missing) for x in features):
        raise ValueError(given)
    return features


class Raw:
    """The columns of a table as they are, which can be indexed by rows, or by series with cells [S, T]."""

    def __init__(self, columns: Sequence[Cells], unit: str | None = None):
        self.columns, self.unit = tuple(columns), unit

    def __len__(self) -> int:
        return len(self.columns[0].values)

    def __getitem__(self, rows: Any) -> "Raw":
        return Raw([cells._replace(values=cells.values[rows]) for cells in self.columns], self.unit)


def read_features(
    table: Columns,
    features: Sequence[Feature],
    troubles: Troubles,
    unit: str | None = None,
    among: Collection[str] = (),
) -> Raw:
    """Read the columns of a table in the form that a model requires; a column that is not there is empty."""
    there = [x for x in features if x.name in table.column_names]
    kinds, signs = {x.name: x.kind for x in there}, {x.name: x.sign for x in there}
    read = read_columns(table, [*kinds], troubles, date_unit=unit, kinds=kinds, signs=signs, among=among)
    found = {x.name: x for x in read}
    return Raw([found.get(x.name) or blank(x.name, table.num_rows, x.kind) for x in features], unit)


def encode(raw: Raw, features: Sequence[Feature], columns: Sequence[Column]) -> np.ndarray:
    """Return the columns of a table as columns of the model, float64 [N, D], not scaled yet; [S, T, D] of series.

    Empty cells become the means of `columns`; an unknown level of a feature without rare ones is an empty cell.
    """
    blocks = []
    for cells, feature in zip(raw.columns, features):
        empty = cells.empty
        if feature.kind in TEXT_KINDS:
            places = {level: place for place, level in enumerate(feature.levels)}
            numbers = np.array([places.get(x, len(places)) for x in cells.values.ravel().tolist()], int)
            block = feature.codes[numbers := numbers.reshape(empty.shape)]
            block[empty] = np.nan
            empty = empty if feature.has_rare else numbers == len(places)
        else:
            block = cells.values if feature.kind == TEXT else cells.values[..., np.newaxis]
        blocks += [block, empty[..., np.newaxis]] if feature.has_missing else [block]
    whole = np.concatenate(blocks, -1).astype(np.float64)
    return np.where(np.isnan(whole), [column.mean for column in columns], whole)


def scaled(values: np.ndarray, columns: Sequence[Column]) -> np.ndarray:
    """Return numbers [..., D] less the means of the columns, over their scales, float32 [..., D]."""
    means, scales = np.array([(c.mean, c.scale) for c in columns]).T
    return ((values - means) / scales).astype(np.float32)


def unknown_levels(raw: Raw, features: Sequence[Feature]) -> list[str]:
    """Return a sentence for each column with levels, or empty cells, that the training (`features`) did not have."""
    sentences = []
    for cells, feature in zip(raw.columns, features):
        name, empty = shown(feature.name), int(cells.empty.sum())
        if feature.kind in TEXT_KINDS:
            known = {*feature.levels, ""}
            new = [x for x in cells.values.ravel().tolist() if x not in known]
            if new:
                levels = ", ".join(shown(x) for x in list(dict.fromkeys(new))[:3])
                what = "a rare category" if feature.has_rare else "an empty cell"
                rows = "1 row" if len(new) == 1 else f"{len(new):,} rows"
                sentences.append(f"{rows} with {levels} in {name}, new or rare in training: treated as {what}.")
        if empty and not feature.has_missing:
            cells_are = "1 cell is" if empty == 1 else f"{empty:,} cells are"
            sentences.append(f"{cells_are} empty in {name}, and in training none was: the mean is used.")
    return sentences
