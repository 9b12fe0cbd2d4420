"""Choices by name, such as "median" or "trimmed:0.2": a table of functions, and how text picks one of them.

A table maps each name to its function or, if text gives it an argument, to a `WithArgument`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfp_bfl.errors import InvalidArgument, lookup, shown


class WithArgument(NamedTuple):
    """A function that text gives an argument.

    Fields:
      make: the function.
      argument: its argument's name.
      kind: int or float.
      check: of the number, which may raise `InvalidArgument`.
    """

    make: Callable[..., Any]
    argument: str
    kind: type = float
    check: Callable[[Any], Any] = lambda number: number


Table = Mapping[str, Callable[..., Any] | WithArgument]


def forms(table: Table) -> list[str]:
    """Return the form of each choice, such as "median" and "trimmed:SHARE"."""
    return [_form(name, entry) for name, entry in table.items()]


def parse(table: Table, text: str, what: str) -> Callable[..., Any]:
    """Return the function that text names, with its argument if it has one.

    Raises:
      InvalidArgument: there is no such choice, or its argument is missing, superfluous or not a number.
    """
    name, colon, value = str(text).partition(":")
    entry = lookup(table, name, what)
    if not isinstance(entry, WithArgument):
        if colon:
            raise InvalidArgument(f"The {what} {shown(text)} has an argument, but {name} takes none.")
        return entry
    form = _form(name, entry)
    if not value:
        raise InvalidArgument(f"The {what} {shown(text)} lacks its {entry.argument}: write {form}.")
    try:
        number = entry.kind(value)
    except ValueError:
        kind = "a whole number" if entry.kind is int else "a number"
        raise InvalidArgument(
            f"The {what} {shown(text)} has the {entry.argument} {shown(value)}, but must be {form} with {kind}."
        ) from None
    return functools.partial(entry.make, **{entry.argument: entry.check(number)})


def _form(name: str, entry: object) -> str:
    return f"{name}:{entry.argument.upper()}" if isinstance(entry, WithArgument) else name
