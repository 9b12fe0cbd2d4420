"""Names of classes, clients and columns: their one form, their order, and spellings that differ in case only."""

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from tfp_bfl.errors import InvalidArgument, shown, shown_apart
from tfp_bfl.faces import compute, pyarrow

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?", re.ASCII)

# Of the clients with several spellings, that notes list.
_MOST_CLIENTS = 3
# Words for an empty cell of every kind, beside "": the reader of files has the same list.
_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "null", "NULL")
EMPTY = (*_WORDS, "<NA>", "#NA", "#N/A", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")
# Error codes of spreadsheets in any language, the dots of SAS and of statistical offices, and question marks.
MARK = re.compile(
    r"#[\xa1\xbf]?[^\W\d_][\w/]*[!?]|#N(?:/[A-Z]|V)|#GETTING_DATA|#{2,}|Err:[0-9]{3}|\.[A-Za-z_]?|\.{2,3}|\?{1,3}"
)
# What is white space in Python, of ASCII and beyond.
_SPACE = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
# Characters that no reader sees, Unicode's default-ignorable code points: soft hyphens, zero-width spaces and joiners,
# byte order marks, directional marks, variation selectors and tags.
_HIDDEN = (
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# `canonical` without NFC, for which TensorFlow has no operation (`compositions`).
_FORM_RULES = ((_HIDDEN, ""), (f"^{_SPACE}+", ""), (f"{_SPACE}+$", ""), (f"{_SPACE}+", " "))
# A plain number is written in one way: 0 for "0.0", "+0", "-0" and "0.", 0.5 for ".50". Codes with leading zeros and
# numbers with an exponent stay as they are.
_NUMBER_RULES = (
    (r"^\+?(\.[0-9]+)$", r"0\1"),
    (r"^-(\.[0-9]+)$", r"-0\1"),
    (r"^\+?(-?(?:0|[1-9][0-9]*))(?:\.0*)?$", r"\1"),
    (r"^\+?(-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9])0*$", r"\1"),
    (r"^-0$", "0"),
)
_TRUTH_RULES = ((r"^(?i:true)$", "True"), (r"^(?i:false)$", "False"))
# The rules by which text becomes a category, in order: a regular expression of Python and of RE2, and what replaces it.
# All but the last two are also the rules for names of clients; the category TRUE is True, as in a column that the
# reader of files takes for truth values.
CATEGORY_RULES = (*_FORM_RULES, *_NUMBER_RULES, *_TRUTH_RULES)
_NEEDS_RULES = re.compile("[^!-~ ]|^ | $|  ")


def canonical(name: str) -> str:
    """Return the one form of a name of a class, category, client, column or folder, however it is typed or stored.

    Characters that no reader sees are removed, letters and their marks are composed (NFC), blanks of every kind
    become single spaces, and outer blanks are removed. Upper and lower case stay.

    Example:
      >>> from tfp_bfl.data.names import canonical
      >>> canonical(" Ko\u0308ln\u200b  (West)") == "K\xf6ln (West)"
      True
    """
    if not isinstance(name, str) or _NEEDS_RULES.search(name) is None:  # What is no text, others refuse.
        return name
    return " ".join(unicodedata.normalize("NFC", re.sub(_HIDDEN, "", name)).split())


def canonical_cells(column: Any) -> Any:
    """Return a column of text of a pyarrow Table with `canonical` cells."""
    column = compute.utf8_trim_whitespace(column)  # Of a column that is a slice `if_else` would return other text.
    if not compute.any(compute.match_substring_regex(column, _NEEDS_RULES.pattern)).as_py():
        return column
    encoded = column.combine_chunks().dictionary_encode()
    forms = pyarrow.array([canonical(x) for x in encoded.dictionary.to_pylist()], pyarrow.string())
    return pyarrow.chunked_array([compute.take(forms, encoded.indices)])


def compositions(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return rules, as of `CATEGORY_RULES`, that compose the letters of canonical names as NFC does."""
    text = "\n".join(names)
    rules = [(re.escape(letter), form) for letter, form in _without_nfc().items() if form in text]
    for letter in sorted(set(text)):
        others = {unicodedata.normalize("NFD", letter), *_parts(letter)} - {letter}
        rules += [("|".join(sorted(map(re.escape, others))), letter)] if others else []
    return rules


@functools.lru_cache(maxsize=1)
def _without_nfc() -> dict[str, str]:
    """Return the characters that NFC replaces by others, such as the Angstrom sign by a letter, and their forms."""
    letters = map(chr, (*range(0x300, 0xD800), *range(0xE000, 0x30000)))
    forms = ((x, unicodedata.normalize("NFC", x)) for x in letters)
    return {x: form for x, form in forms if x != form}


def _parts(letter: str) -> set[str]:
    """Return a letter, and the letters with marks that NFC composes to it, such as e and two marks."""
    codes = unicodedata.decomposition(letter).split()
    if not codes or codes[0].startswith("<"):
        return {letter}
    base, *marks = (chr(int(code, 16)) for code in codes)
    return {letter, *("".join([x, *marks]) for x in _parts(base))}


def value(name: str) -> Decimal | None:
    """Return the number that a name states, exactly; None for other text."""
    name = canonical(name)
    return Decimal(name) if _NUMBER.fullmatch(name) else None


def as_text(values: Sequence[Any], form: Callable[[str], str] = canonical) -> np.ndarray:
    """Return values as names in one form, object [N].

    Values are numbers, texts, bytes or other objects. Bytes are UTF-8, whole numbers have no fraction, None and NaN
    become "".

    Raises:
      InvalidArgument: bytes are not UTF-8, or a name contains the character NUL, which NumPy drops from its end.
    """
    texts = [x if type(x) is str else _text(x) for x in values]
    forms = {text: form(text) for text in dict.fromkeys(texts)}
    with_nul = next((text for text in forms if "\0" in text), None)
    if with_nul is not None:
        raise InvalidArgument(f"The name {shown(with_nul)} contains the character NUL: remove it.")
    return np.fromiter((forms[text] for text in texts), object, len(texts))


def _text(x: object) -> str:
    if isinstance(x, bytes):
        try:
            return x.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument(f"The name {shown(x)} is not UTF-8 text: save names as text.") from None
    if x is None or (isinstance(x, float) and x != x):
        return ""
    return str(int(x)) if isinstance(x, float) and x.is_integer() else str(x)


def as_category(text: str, rules: Sequence[tuple[str, str]] = (*_NUMBER_RULES, *_TRUTH_RULES)) -> str:
    """Return the category that text names, by `CATEGORY_RULES`.

    Readers of files and of tables in memory, and the graphs of exports, use these rules, after those of `canonical`.

    Example:
      >>> from tfp_bfl.data.names import as_category
      >>> [as_category(x) for x in (" Male", "0.0", "007", "1.50")]
      ['Male', '0', '007', '1.5']
    """
    text = canonical(text)
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


_as_client = functools.partial(as_category, rules=_NUMBER_RULES)


def is_nothing(text: str) -> bool:
    """Return whether text stands for an empty cell, or is an error code, dots or question marks: no word anywhere."""
    return text in EMPTY or MARK.fullmatch(text) is not None


def as_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names that an option states in `canonical` form; text is one name."""
    return tuple(map(canonical, (names,) if isinstance(names, str) else names))


def client_names(values: Sequence[Any], column: str) -> tuple[np.ndarray, list[str]]:
    """Return the names of clients, and sentences on them: files, tables in memory and predictions have the same names.

    Names are `canonical`, and a plain number is written in one way: 1, 1.0, "1" and "1.0 " name the client "1". "NA"
    is a name like any other. Values are N numbers, texts, bytes or other objects; of None, NaN and blanks the name, of
    object [N], is "". Sentences on spellings of one client name the `column` or array.
    """
    written = as_text(values, str)
    spellings: dict[str, list[str]] = {}
    for text in dict.fromkeys(written.tolist()):
        spellings.setdefault(_as_client(text), []).append(text)
    spellings.pop("", None)
    notes = []
    for name, found in spellings.items():
        if len(found) > 1:
            ways = f"{len(found)} ways, such as {' and '.join(shown_apart(*found[:2]))}"
            notes.append(f"{shown(column)} writes the client {shown(name)} in {ways}: they are one client.")
    if len(notes) > _MOST_CLIENTS:
        notes = [*notes[:_MOST_CLIENTS], f"{len(notes) - _MOST_CLIENTS} further clients have several spellings."]
    advice = "empty these cells if it stands for a missing name."
    notes += [f"{shown(column)} names a client {shown(x)}: {advice}" for x in sorted(filter(is_nothing, spellings))]
    return as_text(written.tolist(), _as_client), notes


def natural(name: str) -> tuple[Any, ...]:
    """Return a sort key: numbers first, by value; then text, with the numbers in it by value."""
    number = value(name)
    if number is not None:
        return 0, number, (), name
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return 1, 0, tuple((0, Decimal(x), "") if x.isdecimal() else (1, 0, x) for x in parts), name


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct class names in order: by value if all are numbers, else as text."""
    distinct = set(names)
    return tuple(sorted(distinct, key=natural if all(value(x) is not None for x in distinct) else None))


def check_distinct(names: Iterable[str], where: str) -> None:
    """Raise InvalidArgument if two names of labels (`where`) are one number in two ways, such as 1 and 1.0."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        first = found.setdefault(_as_client(name), name)
        if first != name:
            what = f"{where} hold {shown(first)} and {shown(name)}, which differ in the way to write a number"
            raise InvalidArgument(f"{what}: write them alike.")


def check_spelling(names_of: Mapping[str, Sequence[str]], what: str = "class") -> None:
    """Raise InvalidArgument if a class or column has one spelling at one client and another, by case, at others.

    Names of one letter are left alone: "a" and "A" are classes of letters.

    `names_of` has the names of each client, and `what` they are of, as an error says it.
    """
    spellings: dict[str, dict[str, set[str]]] = {}
    for client, names in names_of.items():
        for name in names:
            spellings.setdefault(canonical(name.casefold()), {}).setdefault(name, set()).add(client)
    for found in spellings.values():
        (first, at), *others = sorted(found.items())
        if others and len(first) > 1 and all(at.isdisjoint(clients) for _, clients in others):
            second, where = others[0]
            both = f"{shown(first)} of {shown(min(at))} and the {what} {shown(second)} of {shown(min(where))}"
            raise InvalidArgument(f"The {what} {both} differ in case only: write them alike.")


def note_spellings(values: Iterable[str], column: str, shortest: int = 1) -> list[str]:
    """Return a sentence on the first two values of a column that differ in case only; [] if none do.

    `shortest` is the length of values that are compared: 2 where "a" and "A" may be two letters.
    """
    first: dict[str, str] = {}
    for x in sorted(set(values)):
        other = first.setdefault(canonical(x.casefold()), x)
        if other != x and len(x) >= shortest:
            return [f"In {shown(column)} {shown(other)} and {shown(x)} differ in case only: they are two values."]
    return []
