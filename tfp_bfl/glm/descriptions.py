"""Checks of the descriptions of tables that sites of a linear model send."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tfp_bfl.data.cells import MOST_LEVELS
from tfp_bfl.data.names import as_names
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.agreement import CATEGORY, KINDS, SIGNED

# Of the description of a table: columns, with one for each level of text, and characters of a name or level.
MOST_COLUMNS, _MOST_CHARACTERS = 2000, 10_000


def _is_utf8(x: str) -> str:
    return x.encode().decode()  # UnicodeEncodeError is a ValueError.


def _differ(texts: list[str]) -> list[str]:
    if len({*as_names(texts)}) < len(texts):
        raise ValueError(texts)
    return texts


def _fits(column: tuple[str, str, list[str]]) -> tuple[str, str, list[str]]:
    _, kind, levels = column
    sign = kind.partition(SIGNED)[2]
    is_signed = kind == SIGNED + sign and len(sign) == 1 and sign.isprintable()
    if not (kind in KINDS or is_signed) or bool(levels) != (kind == CATEGORY):
        raise ValueError(column)
    return column


_Text = Annotated[str, Field(max_length=_MOST_CHARACTERS), AfterValidator(_is_utf8)]
_Texts = Annotated[list[_Text], Field(max_length=MOST_COLUMNS), AfterValidator(_differ)]
_Column = Annotated[tuple[_Text, str, _Texts], Field(strict=False), AfterValidator(_fits)]


class Description(BaseModel):
    """Description of a site's table, as JSON (`agreement.describe`)."""

    model_config = ConfigDict(strict=True)

    columns: list[_Column]
    events: Annotated[_Texts, Field(max_length=MOST_LEVELS)]


def check_description(site: str, summary: object, left_out: Collection[str] = (), only: Collection[str] = ()) -> None:
    """Check the form of a description that a site sent, before it is sent on.

    Args:
      site: name of the site.
      summary: what it sent.
      left_out: names of columns that no description may have.
      only: the names that it may have; () for all others.

    Raises:
      InvalidArgument: it is not of the form that `describe` gives, or too large.
    """
    wrong = InvalidArgument(f"The description of {site}'s table does not have the required form.")
    try:
        columns = Description.model_validate(summary).columns
    except ValidationError:
        raise wrong from None
    names = [name for name, _, _ in columns]
    if len({*names}) < len(names) or not {*left_out}.isdisjoint(names) or (only and not {*names} <= {*only}):
        raise wrong
    size = sum(max(1, len(levels)) for _, _, levels in columns)
    if size > MOST_COLUMNS:
        raise InvalidArgument(
            f"{site}'s table has {size:,} columns, with one for each level of text, but at most {MOST_COLUMNS:,} are "
            "possible: leave columns out with --drop."
        )
