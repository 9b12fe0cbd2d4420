"""The errors that the library raises itself: one sentence that says what is wrong and what would be right."""

import difflib
from collections.abc import Mapping
from typing import Any


class Error(Exception):
    """Base of every error that the library raises on purpose."""


class InvalidArgument(Error, ValueError):
    """A value from the caller that can't be used; raised before any work starts."""


class MissingDependency(Error, ImportError):
    """A package that this call needs is absent or does not fit this Python."""


class WorkerError(Error, RuntimeError):
    """A worker process did not start, did not answer or died."""


def lookup(table: Mapping[str, Any], name: str, what: str) -> Any:
    """Returns `table[name]`.

    Raises:
      InvalidArgument: there is no such name; the message gives the near ones, or all of them if none is near.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, n=3, cutoff=0.5)
    if near:
        advice = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        advice = "choose one of " + ", ".join(repr(n) for n in sorted(table)) + "."
    raise InvalidArgument(f"There is no {what} {name!r}: {advice}")
