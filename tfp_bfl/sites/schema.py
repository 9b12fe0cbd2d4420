"""Descriptions of the data of sites, their common schema, and the options by which sites read their tables.

A site sends for each column of a table the message that a client of a simulation gives (`data.messages`), and the
server merges these messages as a simulation does (`data.agreement`), and warns of sites whose statistics stand out.
What is not valid raises `InvalidArgument`.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tfp_bfl.data.agreement import NO_OPTIONS, TableOptions, agree_columns
from tfp_bfl.data.cells import DATE_UNITS, NUMBERING, TEXT_KINDS
from tfp_bfl.data.encoding import Feature
from tfp_bfl.data.messages import MOST_CATEGORIES, ColumnMessage, Name, Number, Size, describe_column
from tfp_bfl.data.names import as_names, check_distinct, check_spelling, natural
from tfp_bfl.data.numerals import doubts as doubtful
from tfp_bfl.data.parts import Part, Schema
from tfp_bfl.data.sources import Source
from tfp_bfl.data.statistics import Column, pooled_column
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Bounds for one federation: classes, numbers of an example, columns of a table, and their categories together.
MOST_CLASSES, MOST_NUMBERS, _MOST_COLUMNS, _MOST_TOGETHER = 10_000, 2**26, 10_000, 100_000
# Key of the description of a table's columns.
TABLE = "table"
# A mean is an outlier beyond this number of the other sites' standard deviations outside the range of their means.
_FAR = 10.0
# A standard deviation is an outlier above this multiple of the others' largest, or below this fraction of their least.
_MANY_TIMES = 100.0
_OUTSTANDING = 10  # A number of examples is an outlier above this multiple of the others' median.
_FEW = 10  # A site is warned of classes with fewer training examples.
_MOST_NAMES, _PAIR = 3, 2
_Moments = Annotated[tuple[Name, Number, Annotated[Number, Field(ge=0)]], Field(strict=False)]


class SiteDescription(BaseModel):
    """A site's description of its data, as JSON (`describe`)."""

    model_config = ConfigDict(strict=True, frozen=True)

    num_examples: Size
    num_test: Size = 1
    element_shape: list[Size]
    is_image: bool
    class_names: list[Name]
    columns: list[_Moments]
    target: _Moments | None = None
    table: Annotated[list[ColumnMessage], Field(min_length=1, max_length=_MOST_COLUMNS)] | None = None

    def fits(self, bounded: bool) -> bool:
        """Return whether the parts fit each other; `bounded` as of `check_description`."""
        if math.prod(self.element_shape) > MOST_NUMBERS or self.table is None:
            return math.prod(self.element_shape) <= MOST_NUMBERS
        rows, names = {x.rows for x in self.table}, {x.name for x in self.table}
        one_count = len(rows) == 1 and (rows == {self.num_examples} or (bounded and min(rows) >= self.num_examples))
        return one_count and len(names) == len(self.table) and sum(len(x.levels) for x in self.table) <= _MOST_TOGETHER


def describe(
    source: Source | Part, options: TableOptions = NO_OPTIONS, most_categories: int = MOST_CATEGORIES
) -> dict[str, Any]:
    """Describe a site's data as JSON, without examples.

    The description has the number of examples, their shape and the names of the classes. For a table it has the number
    of filled cells of each column, and their mean and standard deviation, or the counts of its categories; for an
    array of numbers the means and standard deviations of the columns.

    The table was read by the `options`; more than `most_categories` categories of a column are refused.
    """
    described = {"num_examples": source.num_examples, "element_shape": [], "is_image": False}
    described |= {"class_names": list(source.class_names), "columns": []}
    described |= {"target": list(source.target) if source.target else None}
    if isinstance(source, Source):
        described |= {"element_shape": list(source.element_shape), "is_image": source.is_image}
        return {**described, "columns": [list(column) for column in source.columns]}
    table = [describe_column(cells, cells.name in options.only) for cells in source.features.columns]
    for message in table:
        if len(message.levels) > most_categories:
            raise InvalidArgument(
                f"The column {shown(message.name)} has {len(message.levels):,} categories, but at most "
                f"{most_categories:,} are described: leave it out with --drop, or let the site's file allow more "
                "(max_categories)."
            )
    return {**described, TABLE: [message.model_dump() for message in table]}


def agree(name: str, summaries: Mapping[str, Mapping[str, Any]], options: TableOptions = NO_OPTIONS) -> Schema:
    """Return the common schema of all sites: the union of their classes, and the pooled statistics of the columns.

    With n_k rows, means m_k and standard deviations s_k, the pooled mean and standard deviation of a column are

    m = sum_k n_k m_k / N,   s^2 = sum_k n_k (s_k^2 + (m_k - m)^2) / N

    The columns of tables, and how their cells become numbers, follow from the same messages as in a simulation
    (`data.agreement.agree_columns`). Data that differ in shape, columns or kind are refused.

    Args:
      name: name of the data.
      summaries: site -> the result of `describe`.
      options: by which the sites read their tables.
    """
    read = {site: check_description(site, summary, bounded=True) for site, summary in summaries.items()}
    (first, one), *others = read.items()
    for site, own in others:
        for key in ("element_shape", "is_image"):
            if (there := getattr(own, key)) != (here := getattr(one, key)):
                raise InvalidArgument(
                    f"The data of {site} and {first} differ: {key} is {there} and {here}. All sites must have the same."
                )
        pair = f"{site} and {first}"
        if (own.table is None) != (one.table is None):
            raise InvalidArgument(f"One of {pair} has a table, the other has not: use data of one form.")
        if [c[0] for c in own.columns] != [c[0] for c in one.columns]:
            raise InvalidArgument(f"The tables of {pair} have different columns: use the same names in the same order.")
        if (own.target is None) != (one.target is None):
            raise InvalidArgument(f"{pair} differ in their task: one has classes, the other numbers.")
    rows = {site: own.num_examples for site, own in read.items()}
    encoding: tuple[Feature, ...] = ()
    if one.table is not None:
        encoding, pooled = agree_columns({site: own.table or [] for site, own in read.items()}, rows, options)
    else:
        pooled = tuple(_pooled([*rows.values()], column) for column in zip(*(own.columns for own in read.values())))
    targets = [own.target for own in read.values() if own.target is not None]
    target = _pooled([*rows.values()], targets) if targets else None
    check_distinct([c for own in read.values() for c in own.class_names], "The labels of all sites")
    check_spelling({site: own.class_names for site, own in read.items()})
    if target is not None and not target.stddev:
        raise InvalidArgument(f"The labels of all sites are {target.mean:g}: there is nothing to predict.")
    classes = sorted({c for own in read.values() for c in own.class_names}, key=natural)
    if target is None and len(classes) < 2:
        raise InvalidArgument(f"All sites together have {len(classes)} class, but a model requires two or more.")
    _check_classes("All sites together have", len(classes))
    shape = tuple(one.element_shape) if one.table is None else (len(pooled),)
    return Schema(name, shape, one.is_image, () if target else tuple(classes), pooled, target, encoding)


def fitted(source: Source | Part, schema: Schema) -> Source:
    """Return a site's examples with the encoding, the standardisation and the class numbers of the common schema."""
    if isinstance(source, Part):
        return _labelled(source, source.encoded(schema.encoding, schema.columns), schema.encoding, schema)
    names = [column.name for column in source.columns]
    if source.element_shape != schema.element_shape or names != [column.name for column in schema.columns]:
        raise InvalidArgument(
            f"The data have examples {list(source.element_shape)} {names or ''}, but the federation's are "
            f"{list(schema.element_shape)} {[column.name for column in schema.columns] or ''}."
        )
    features = _moved(source.features, source.columns, schema.columns) if source.columns else source.features
    return _labelled(source, features, (), schema)


def _labelled(source: Source | Part, features: np.ndarray, encoding: Sequence[Feature], schema: Schema) -> Source:
    labels, unknown = source.labels, set(source.class_names) - set(schema.class_names)
    if unknown:
        raise InvalidArgument(f"The data have the class {shown(min(unknown))}, which the federation does not know.")
    if (source.target is None) != (schema.target is None):
        raise InvalidArgument("The data have classes where the federation learns a number, or a number for classes.")
    if source.target is None or schema.target is None:
        labels = np.array([schema.class_names.index(name) for name in source.class_names], np.int32)[labels]
    else:
        labels = _moved(labels[:, np.newaxis], [source.target], [schema.target])[:, 0]
    of_schema = schema.class_names, schema.columns, schema.target, tuple(encoding)
    return Source(source.name, source.split, features, labels, *of_schema)


def check_description(site: str, summary: object, bounded: bool = False) -> SiteDescription:
    """Parse the description of a site's data.

    With `bounded` the number of examples was reduced since, so that it can be below the number of rows of a table.
    """
    try:
        description = SiteDescription.model_validate(summary)
    except ValidationError:
        description = None
    if description is None or not description.fits(bounded):
        raise InvalidArgument(f"The description of {site}'s data does not have the form that sites.describe gives.")
    _check_classes(f"{site} reports", len(description.class_names))
    return description


def _check_classes(who: str, number: int) -> None:
    if number > MOST_CLASSES:
        raise InvalidArgument(
            f"{who} {number:,} classes, but a federation has at most {MOST_CLASSES:,}: are the labels numbers (task: "
            "regression) or identifiers?"
        )


def _pooled(sizes: Sequence[int], columns: Sequence[Any]) -> Column:
    names, means, stddevs = zip(*columns)
    return pooled_column(str(names[0]), sizes, means, stddevs)


def _moved(values: np.ndarray, old: Sequence[Column], new: Sequence[Column]) -> np.ndarray:
    """Return standardised numbers [N, D] with other means and standard deviations."""
    scale = np.array([a.scale / b.scale for a, b in zip(old, new)])
    shift = np.array([(a.mean - b.mean) / b.scale for a, b in zip(old, new)])
    return (values * scale + shift).astype(np.float32)


def parse_options(given: object) -> TableOptions:
    """Parse the options of a message."""
    try:
        if not isinstance(given, Mapping):
            raise ValueError(given)
        stated = {name: x for name, x in given.items() if x is not None}
        drop, only, categorical, unit = TypeAdapter(TableOptions).validate_python(stated)
    except ValueError:
        raise InvalidArgument("The options of the tables do not have the required form.") from None
    if unit is not None:
        lookup(DATE_UNITS, unit, "unit of dates")
    return TableOptions(as_names(drop), as_names(only), as_names(categorical), unit)


def pool_rare(described: Sequence[Mapping[str, Any]], encoding: Collection[Feature]) -> list[dict[str, Any]]:
    """Return the description of a table without the names of rare categories: "" has their number of rows together."""
    used = {feature.name: {*feature.levels} for feature in encoding}
    pooled = []
    for x in described:
        levels = {level: n for level, n in x["levels"].items() if level in used.get(x["name"], ())}
        rare = sum(x["levels"].values()) - sum(levels.values())
        pooled.append({**x, "levels": {**levels, **({"": rare} if rare else {})}})
    return pooled


def notes(tables: Mapping[str, Sequence[Mapping[str, Any]]], schema: Schema) -> list[str]:
    """Return a sentence on each column of the sites' `tables` that counts the rows, and on doubtful categories."""
    used = {x.name for x in schema.encoding or schema.columns}
    counting = dict.fromkeys(x["name"] for own in tables.values() for x in own if x["kind"] in NUMBERING)
    words = "numbers the rows and is left out: name it with --only to use it."
    found = [f"The column {shown(name)} {words}" for name in counting if name not in used]
    texts = (x for x in schema.encoding if x.is_text)
    return found + [note for x in texts for note in doubtful(np.array(x.levels, object), x.name)]


def outstanding(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return a warning for each client that states more examples than 10 times the median of the others.

    Example:
      >>> outstanding({"a": 10, "b": 12, "c": 200})
      {'c': 'c reports 200 examples, more than 10 times the median 11 of the others.'}
    """
    found = {}
    for name, size in sizes.items():
        others = [other for key, other in sizes.items() if key != name]
        if others and size > _OUTSTANDING * (median := statistics.median(others)):
            far = f"more than {_OUTSTANDING} times the median {median:,.0f} of the others"
            found[name] = f"{name} reports {size:,} examples, {far}."
    return found


def doubts(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a warning for each site with statistics far from those of all other sites.

    Each site is compared with the range and the largest standard deviation of the other sites, which exclude its own
    values: a site cannot shift the reference. The descriptions fit each other (`agree`).
    """
    sentences = []
    for site, summary in described.items():
        others = [other for name, other in described.items() if name != site]
        if not others:
            continue
        rest = [_numbers(other) for other in others]
        means, stddevs = [], []
        for key, (mean, stddev) in _numbers(summary).items():
            same, name = [own[key] for own in rest if key in own], key[0]
            if not same:
                continue
            (low, high), (least, most) = ((min(x), max(x)) for x in zip(*same))
            if max(low - mean, mean - high) > _FAR * (most or stddev):
                means.append(f"{shown(name)} ({mean:.4g}, the others' {_between(low, high)})")
            elif stddev > _MANY_TIMES * most > 0 or 0 < stddev * _MANY_TIMES < least:
                stddevs.append(f"{shown(name)} ({stddev:.4g}, the others' {_between(least, most)})")
        if means:
            sentences.append(
                f"{site} reports means far outside the other sites': {_some(means)}. Are these columns in other units? "
                "Their means affect the standardisation at every site; --without leaves a site out."
            )
        if stddevs:
            sentences.append(
                f"{site} reports standard deviations far from the other sites': {_some(stddevs)}. Are these columns in "
                "other units?"
            )
        theirs: dict[str, set[str]] = {}
        for name, levels in (item for other in others for item in _categories(other).items()):
            theirs.setdefault(name, set()).update(levels)
        categories = {name: own for name, own in _categories(summary).items() if own and theirs.get(name)}
        if strange := [shown(name) for name, own in categories.items() if own.isdisjoint(theirs[name])]:
            sentences.append(
                f"{site} has none of the other sites' categories in {_some(strange)}: do all sites spell them in the "
                "same way?"
            )
        columns = {x["name"] for other in others for x in other.get("table", ())}
        if own_columns := [shown(x["name"]) for x in summary.get("table", ()) if x["name"] not in columns]:
            what = "columns" if len(own_columns) > 1 else "the column"
            sentences.append(
                f"Only {site} has {what} {_some(own_columns)}, empty at the other sites: do all sites spell their "
                "columns in the same way? --drop leaves a column out."
            )
        known = {label for other in others for label in other["class_names"]}
        if alone := [shown(label) for label in summary["class_names"] if label not in known]:
            what = f"{'classes' if len(alone) > 1 else 'the class'} {_some(alone)}"
            sentences.append(f"Only {site} has {what}: do all sites spell their classes in the same way?")
    return sentences


def _numbers(summary: Mapping[str, Any]) -> dict[tuple[str, bool], tuple[float, float]]:
    """Return (name, is it the target) -> mean and standard deviation, of a description's columns of numbers."""
    columns = [(x[0], x[1], x[2], False) for x in summary["columns"]]
    columns += [(x[0], x[1], x[2], True) for x in [summary["target"]] if x]
    table = [x for x in summary.get("table", ()) if x["kind"] not in TEXT_KINDS and x["filled"]]
    columns += [(x["name"], x["mean"], x["stddev"], False) for x in table]
    return {(name, is_target): (mean, stddev) for name, mean, stddev, is_target in columns}


def _categories(summary: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the categories of a description, by column; those without a name are left out."""
    return {x["name"]: {*x["levels"]} - {""} for x in summary.get("table", ()) if x["kind"] in TEXT_KINDS}


def unseen(sites: Sequence[str], seen: Collection[str]) -> list[str]:
    """Return a warning in a list if some sites share no scores, by which `evaluation.client_warnings` finds faults."""
    without = _some([site for site in sites if site not in seen])
    if not without or len(sites) < _PAIR:
        return []
    where = "any site" if len(seen) < _PAIR else without
    return [f"Without scores of {without}, swapped labels or columns in other units at {where} cannot be detected."]


def rare_classes(source: Source | Part) -> str:
    """Return a line on a site's classes with fewer than `_FEW` examples, for that site alone; "" for no such class."""
    counts = {name: int((source.labels == k).sum()) for k, name in enumerate(source.class_names)}
    rare = [f"{shown(name)} ({number})" for name, number in counts.items() if number < _FEW]
    return f"Classes with fewer than {_FEW} examples, too few to learn much: {', '.join(rare)}.\n" if rare else ""


def _between(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _some(items: Sequence[str]) -> str:
    more = len(items) - _MOST_NAMES
    return ", ".join(items[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
