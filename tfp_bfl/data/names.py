"""Names of classes and clients: their order, and spellings of one name that differ in case only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Optional, Union

import numpy as np

from tfp_bfl.errors import InvalidArgument, shown

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?\s*", re.ASCII)

# Of the clients with several spellings, that notes list.
_MOST_CLIENTS = 3
# Words for an empty cell of every kind, beside "": the reader of files has the same list.
_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "null", "NULL")
EMPTY = (*_WORDS, "<NA>", "#NA", "#N/A", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")
# What is white space in Python, of ASCII and beyond.
_SPACE = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
# The rules by which text becomes a category, in order: a regular expression of Python and of RE2, and what replaces it.
# White space around text is removed, and a plain number is written in one way: 0 for "0.0", "+0", "-0" and "0.", 0.5
# for ".50". Codes with leading zeros and numbers with an exponent stay as they are. These are also the rules for names
# of clients and classes; the category TRUE is True, as in a column that the reader of files takes for truth values.
_NAME_RULES = (
    (f"^{_SPACE}+", ""),
    (f"{_SPACE}+$", ""),
    (r"^\+?(\.[0-9]+)$", r"0\1"),
    (r"^-(\.[0-9]+)$", r"-0\1"),
    (r"^\+?(-?(?:0|[1-9][0-9]*))(?:\.0*)?$", r"\1"),
    (r"^\+?(-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9])0*$", r"\1"),
    (r"^-0$", "0"),
)
CATEGORY_RULES = (*_NAME_RULES, (r"^(?i:true)$", "True"), (r"^(?i:false)$", "False"))


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


def as_category(text: str) -> str:
    """Return the category that text names, by `CATEGORY_RULES`.

    Readers of files and of tables in memory, and the graphs of exports, use these rules.

    Example:
      >>> from tfp_bfl.data.names import as_category
      >>> [as_category(x) for x in (" Male", "0.0", "007", "1.50")]
      ['Male', '0', '007', '1.5']
    """
    return _by_rules(text, CATEGORY_RULES)


def _by_rules(text: str, rules: Sequence[tuple[str, str]] = _NAME_RULES) -> str:
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def as_names(names: Union[str, Iterable[str]]) -> tuple[str, ...]:
    """Return names as a tuple; text is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def client_names(values: Sequence[Any], column: str) -> tuple[np.ndarray, list[str]]:
    """Return the names of clients, and sentences on them: files, tables in memory and predictions have the same names.

    Blanks around a name are removed, and a plain number is written in one way: 1, 1.0, "1" and "1.0 "
    name the client "1". "NA" is a name like any other.

    Args:
      values: N numbers, texts, bytes or other objects; None, NaN and blanks where there is no client.
      column: the column or array with the names, for the sentences.

    Returns:
      Names, object [N], "" where there is no client; and sentences on spellings of one client.

    Raises:
      InvalidArgument: as of `as_text`.
    """
    written = as_text(values)
    names = {text: _by_rules(text) for text in dict.fromkeys(written.tolist())}
    spellings: dict[str, list[str]] = {}
    for text, name in names.items():
        spellings.setdefault(name, []).append(text)
    spellings.pop("", None)
    notes = [
        f"{shown(column)} writes the client {shown(name)} in {len(found)} ways, such as "
        f"{' and '.join(map(shown, found[:2]))}: they are one client."
        for name, found in spellings.items()
        if len(found) > 1
    ]
    if len(notes) > _MOST_CLIENTS:
        notes = [*notes[:_MOST_CLIENTS], f"{len(notes) - _MOST_CLIENTS} further clients have several spellings."]
    notes += [
        f"{shown(column)} names a client {shown(word)}: empty these cells if it stands for a missing name."
        for word in EMPTY
        if word in spellings
    ]
    return np.fromiter((names[text] for text in written.tolist()), object, len(written)), notes


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


def check_distinct(names: Iterable[str], where: str) -> None:
    """Check that no two class names are one name but for blanks and the way in which a number is written.

    Args:
      names: of classes.
      where: of the labels, as an error says it.

    Raises:
      InvalidArgument: two distinct names are alike, such as 1 and 1.0.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        first = found.setdefault(_by_rules(name), name)
        if first != name:
            raise InvalidArgument(
                f"{where} hold {shown(first)} and {shown(name)}, which differ in blanks or in the way to write a "
                "number: write them alike."
            )


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


def note_spellings(values: Iterable[str], column: str, shortest: int = 1) -> list[str]:
    """Return a sentence on the first two values of a column that differ in case only; [] if none do.

    Args:
      values: of the column.
      column: its name.
      shortest: letters of a value that is compared; 2 where "a" and "A" may be two letters.
    """
    first: dict[str, str] = {}
    for x in sorted(set(values)):
        other = first.setdefault(x.casefold(), x)
        if other != x and len(x) >= shortest:
            return [f"In {shown(column)} {shown(other)} and {shown(x)} differ in case only: they are two values."]
    return []
