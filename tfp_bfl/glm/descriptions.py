"""Checks of the descriptions of tables that sites of a linear model send."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tfp_bfl.data.cells import MOST_LEVELS
from tfp_bfl.data.messages import Level, Name
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.agreement import CATEGORY, KINDS, SIGNED

# Columns of a table, with one for each level of text.
MOST_COLUMNS = 2000


class DesignDescription(BaseModel):
    """Description of a site's table, as JSON (`agreement.describe`)."""

    model_config = ConfigDict(strict=True)

    columns: list[Annotated[tuple[Name, str, list[Level]], Field(strict=False)]]
    events: Annotated[list[Level], Field(max_length=MOST_LEVELS)]


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
        read = DesignDescription.model_validate(summary)
    except ValidationError:
        raise wrong from None
    columns, names = read.columns, [name for name, _, _ in read.columns]
    for _, kind, levels in columns:
        sign = kind.partition(SIGNED)[2]
        is_signed = kind == SIGNED + sign and len(sign) == 1 and sign.isprintable()
        if not (kind in KINDS or is_signed) or bool(levels) != (kind == CATEGORY):
            raise wrong
    if any(len({*own}) < len(own) for own in (names, read.events, *(levels for _, _, levels in columns))):
        raise wrong
    if not {*left_out}.isdisjoint(names) or (only and not {*names} <= {*only}):
        raise wrong
    size = sum(max(1, len(levels)) for _, _, levels in columns)
    if size > MOST_COLUMNS:
        raise InvalidArgument(
            f"{site}'s table has {size:,} columns, with one for each level of text, but at most {MOST_COLUMNS:,} are "
            "possible: leave columns out with --drop."
        )
