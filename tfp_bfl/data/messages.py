"""Describe: the message of a client, or of a site, about a column of its table."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tfp_bfl.data.cells import BLANK, NUMBERING, NUMERIC, TEXT_KINDS, Cells
from tfp_bfl.data.names import EMPTY, canonical
from tfp_bfl.data.statistics import column_of

# Bounds on a message: categories of a column, characters of a name, rows, and the size of a number: features are
# float32, and squares must be finite.
MOST_CATEGORIES, MOST_CHARACTERS, MOST_ROWS, MOST_MAGNITUDE = 10_000, 1000, 2**31 - 1, 1e30


def _is_name(x: str) -> str:
    if not (x.isprintable() and x == canonical(x)):
        raise ValueError(x)
    return x


def _is_level(x: str) -> str:
    """Check that this is a category as tables have: `canonical` text in UTF-8 without NUL, and no empty cell."""
    if "\0" in x or x != canonical(x) or x in EMPTY or x != x.encode(errors="ignore").decode():
        raise ValueError(x)
    return x


Name = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_is_name)]
Level = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS), AfterValidator(_is_level)]
Number = Annotated[float, Field(ge=-MOST_MAGNITUDE, le=MOST_MAGNITUDE)]
Size = Annotated[int, Field(gt=0, le=MOST_ROWS)]
# The sum of as many whole numbers of 64 bits.
_Total = Annotated[int, Field(ge=-(2**95), le=2**95)]


class ColumnMessage(BaseModel):
    """The message of a site about a column of its table; the kind as of `Cells`, or one of `NUMBERING`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[Name, Field(min_length=1)]
    kind: Literal["number", "truth", "row number", "later row number", "rising number", "date", "category", "ordinal",
                  "empty"]  # fmt: skip
    order: Annotated[list[Level], Field(max_length=MOST_CATEGORIES)] = []  # Declared levels of an ordinal column.
    sign: Annotated[str, Field(max_length=1)] = ""  # Beside its numbers.
    rows: Size
    filled: Annotated[int, Field(ge=0)]  # Number of filled cells.
    mean: Number = 0.0  # Mean and standard deviation are 0 of text.
    stddev: Annotated[Number, Field(ge=0)] = 0.0
    levels: Annotated[dict[Level, Size], Field(max_length=MOST_CATEGORIES)] = {}  # Level -> rows; {} of numbers.
    # Number and sum of the whole numbers of a column that counts or rises, of all rows that the site has.
    numbering: Annotated[tuple[Size, _Total], Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> "ColumnMessage":
        well = (
            self.filled <= self.rows
            and bool(self.order) == (self.kind == "ordinal")
            and len({*self.order}) == len(self.order)
            and (not self.sign or (self.kind in NUMERIC and self.sign.isprintable()))
            and sum(self.levels.values()) == (self.filled if self.kind in TEXT_KINDS else 0)
            and not (self.kind == BLANK and self.filled)
            and (self.numbering is None) == (self.kind not in NUMBERING)
        )
        if not well:
            raise ValueError(self.name)
        return self


def describe_column(cells: Cells, is_chosen: bool = False) -> ColumnMessage:
    """Describe a column; `is_chosen` if it is used even though it numbers the rows."""
    filled = cells.values[~cells.empty]
    message: dict[str, Any] = {"rows": cells.empty.size, "filled": len(filled), "levels": {}, "numbering": None}
    message |= {"name": cells.name, "kind": cells.kind, "order": list(cells.levels), "sign": cells.sign}
    if cells.numbering and not is_chosen:
        message |= {"kind": cells.numbering.kind, "numbering": cells.numbering[1:]}
    if cells.kind in TEXT_KINDS:
        levels, numbers = np.unique(filled.astype(str), return_counts=True)
        message["levels"] = dict(zip(levels.tolist(), numbers.tolist()))
    elif len(filled):
        own = column_of(cells.name, filled)
        message |= {"mean": own.mean, "stddev": own.stddev}
    return ColumnMessage.model_construct(**message)
