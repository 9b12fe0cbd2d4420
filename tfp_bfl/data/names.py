"""Names of classes and clients: their order, and spellings of one name that differ in case only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Optional

import numpy as np

from tfp_bfl.errors import InvalidArgument, shown

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?\s*", re.ASCII)


def value(name: str) -> Optional[Decimal]:
    """Return the number that a name states, exactly; None for other text.

    Args:
      name: of a class or a client, or a cell of a table.
    """
    return Decimal(name.strip()) if _NUMBER.fullmatch(name) else None


def as_text(values: Sequence[Any]) -> np.ndarray:
    """Return values as text, object [N]: bytes as UTF-8, whole numbers without a fraction, None and NaN as "".

    Args:
      values: N numbers, texts, bytes or other objects.

    Raises:
      InvalidArgument: bytes are not UTF-8, or a name contains the character NUL, which NumPy drops from its end.
    """
    names = np.fromiter(map(_text, values), object, len(values))
    with_nul = next((name for name in names if "\0" in name), None)
    if with_nul is not None:
        raise InvalidArgument(f"The name {shown(with_nul)} contains the character NUL: remove it.")
    return names


def _text(x: Any) -> str:
    if isinstance(x, bytes):
        try:
            return x.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument(f"The name {shown(x)} is not UTF-8 text: save names as text.") from None
    if x is None or (isinstance(x, float) and x != x):
        return ""
    return str(int(x)) if isinstance(x, float) and x.is_integer() else str(x)


def natural(name: str) -> tuple[Any, ...]:
    """Return a sort key: numbers first, by value; then text, with the numbers in it by value.

    Args:
      name: of a class or a client.
    """
    number = value(name)
    if number is not None:
        return 0, number, (), name
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return 1, 0, tuple((0, Decimal(x), "") if x.isdecimal() else (1, 0, x) for x in parts), name


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct class names in order: by value if all are numbers, else as text.

    Args:
      names: of classes, repeated or not.
    """
    distinct = set(names)
    return tuple(sorted(distinct, key=natural if all(value(x) is not None for x in distinct) else None))


def check_spelling(names_of: Mapping[str, Sequence[str]], what: str = "class") -> None:
    """Check that no class or column has one spelling at one client and another, which differs in case, at others.

    Names of one letter are left alone: "a" and "A" are classes of letters.

    Args:
      names_of: client -> its names.
      what: a name is of, as an error says it.

    Raises:
      InvalidArgument: two names differ in case only, and no client has both.
    """
    spellings: dict[str, dict[str, set[str]]] = {}
    for client, names in names_of.items():
        for name in names:
            spellings.setdefault(name.casefold(), {}).setdefault(name, set()).add(client)
    for found in spellings.values():
        (first, at), *others = sorted(found.items())
        if others and len(first) > 1 and all(at.isdisjoint(clients) for _, clients in others):
            second, where = others[0]
            raise InvalidArgument(
                f"The {what} {shown(first)} of {shown(min(at))} and the {what} {shown(second)} of {shown(min(where))} "
                "differ in case only: write them alike."
            )
