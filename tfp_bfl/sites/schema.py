"""Descriptions of the data of sites, their common schema, and the options by which sites read their tables.

A site sends for each column of a table the message that a client of a simulation gives (`data.messages`), and the
server merges these messages as a simulation does (`data.agreement`). What is not valid raises `InvalidArgument`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tfp_bfl.data.agreement import NO_OPTIONS, TableOptions, agree_columns
from tfp_bfl.data.cells import DATE_UNITS, NUMBERING
from tfp_bfl.data.encoding import Feature
from tfp_bfl.data.messages import MOST_CATEGORIES, ColumnMessage, Name, Number, Size, describe_column
from tfp_bfl.data.names import as_names, check_distinct, check_spelling, natural
from tfp_bfl.data.numerals import doubts
from tfp_bfl.data.parts import Part, Schema
from tfp_bfl.data.sources import Source
from tfp_bfl.data.statistics import Column, pooled_column
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Bounds for one federation: classes, numbers of an example, columns of a table, and their categories together.
MOST_CLASSES, MOST_NUMBERS, _MOST_COLUMNS, _MOST_TOGETHER = 10_000, 2**26, 10_000, 100_000
# Key of the description of a table's columns.
TABLE = "table"
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
    described = {
        "num_examples": source.num_examples,
        "element_shape": [],
        "is_image": False,
        "class_names": list(source.class_names),
        "columns": [],
        "target": list(source.target) if source.target else None,
    }
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
    doubtful = (doubts(np.array(x.levels, object), x.name) for x in schema.encoding if x.is_text)
    counting = dict.fromkeys(x["name"] for own in tables.values() for x in own if x["kind"] in NUMBERING)
    left_out = [
        f"The column {shown(name)} numbers the rows and is left out: name it with --only to use it."
        for name in counting
        if name not in used
    ]
    return [*left_out, *(note for each in doubtful for note in each)]
