"""Checks of the descriptions of tables that sites of a linear model send."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tfp_bfl.data.cells import MOST_LEVELS
from tfp_bfl.data.names import as_names
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.agreement import CATEGORY, KINDS, SIGNED

# Of the description of a table: columns, with one for each level of text, and characters of a name or level.
MOST_COLUMNS, _MOST_CHARACTERS = 2000, 10_000


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
    if not isinstance(summary, Mapping) or not isinstance(summary.get("columns"), list):
        raise wrong
    columns = summary["columns"]
    if (
        not _are_texts(summary.get("events"))
        or len(summary["events"]) > MOST_LEVELS
        or not all(map(_is_column, columns))
    ):
        raise wrong
    names = [name for name, _, _ in columns]
    if len({*names}) < len(names) or not {*left_out}.isdisjoint(names) or (only and not {*names} <= {*only}):
        raise wrong
    size = sum(max(1, len(levels)) for _, _, levels in columns)
    if size > MOST_COLUMNS:
        raise InvalidArgument(
            f"{site}'s table has {size:,} columns, with one for each level of text, but at most {MOST_COLUMNS:,} are "
            "possible: leave columns out with --drop."
        )


def _are_texts(x: object) -> bool:
    """Return whether this is a list of different texts, as a table can hold."""
    is_text = lambda y: isinstance(y, str) and len(y) <= _MOST_CHARACTERS and y == y.encode(errors="ignore").decode()
    return isinstance(x, list) and len(x) <= MOST_COLUMNS and all(map(is_text, x)) and len({*as_names(x)}) == len(x)


def _is_column(x: object) -> bool:
    if not isinstance(x, list) or len(x) != 3 or not isinstance(x[1], str):
        return False
    sign = x[1].partition(SIGNED)[2]
    if x[1] not in KINDS and not (x[1] == SIGNED + sign and len(sign) == 1 and sign.isprintable()):
        return False
    return _are_texts(x[:1]) and _are_texts(x[2]) and bool(x[2]) == (x[1] == CATEGORY)
