"""What a value of an option must be, in words."""

from __future__ import annotations

from typing import Any

# Of pydantic's types of errors: what a value of that option must be.
_MUST_BE = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "finite_number": "a finite number",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
}


def must_be(error: Any) -> str:
    """Return in words what a value must be.

    Args:
      error: entry of `pydantic.ValidationError.errors()`; its type is such as "int_parsing".
    """
    form = _MUST_BE.get(error["type"]) or _MUST_BE.get(error["type"].partition("_")[0], "of another form")
    return form.format(**error.get("ctx", {}))
