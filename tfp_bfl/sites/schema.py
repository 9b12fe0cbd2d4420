"""Descriptions of the data of sites, and their common schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.data.encoding import Feature
from tfp_bfl.data.names import canonical, check_distinct, check_spelling, natural
from tfp_bfl.data.parts import Part
from tfp_bfl.data.schema import Schema
from tfp_bfl.data.sources import Source
from tfp_bfl.data.statistics import Column, pooled_column
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.sites.tables import (
    MOST_CATEGORIES,
    NO_OPTIONS,
    TableOptions,
    agree_columns,
    check_table,
    describe_table,
)

_LARGEST = 2**31 - 1
# Bounds for one federation: classes, numbers of an example, and characters of a name.
MOST_CLASSES, MOST_NUMBERS, MOST_CHARACTERS = 10_000, 2**26, 1000
# Bound on means and standard deviations: features are float32, and squares must be finite.
MOST_MAGNITUDE = 1e30
# Key of the description of a table's columns.
TABLE = "table"


def describe(
    source: Source | Part, options: TableOptions = NO_OPTIONS, most_categories: int = MOST_CATEGORIES
) -> dict[str, Any]:
    """Describe a site's data as JSON, without examples.

    The description has the number of examples, their shape and the names of the classes. For a table it has the number
    of filled cells of each column, and their mean and standard deviation, or the counts of its categories; for an
    array of numbers the means and standard deviations of the columns.

    Args:
      source: the data.
      options: by which the table was read.
      most_categories: largest number of categories of a column.

    Raises:
      InvalidArgument: a column has more categories.
    """
    described = {
        "num_examples": source.num_examples,
        "element_shape": [],
        "is_image": False,
        "class_names": list(source.class_names),
        "columns": [],
        "target": list(source.target) if source.target else None,
    }
    if isinstance(source, Part):
        return {**described, TABLE: describe_table(source.features, options, most_categories)}
    described |= {"element_shape": list(source.element_shape), "is_image": source.is_image}
    return {**described, "columns": [list(column) for column in source.columns]}


def agree(name: str, summaries: Mapping[str, Mapping[str, Any]], options: TableOptions = NO_OPTIONS) -> Schema:
    """Return the common schema of all sites: the union of their classes, and the pooled statistics of the columns.

    With n_k rows, means m_k and standard deviations s_k, the pooled mean and standard deviation of a column are

    m = sum_k n_k m_k / N,   s^2 = sum_k n_k (s_k^2 + (m_k - m)^2) / N

    The columns of tables, and how their cells become numbers, follow from the same messages as in a simulation
    (`tables.agree_columns`).

    Args:
      name: name of the data.
      summaries: site -> the result of `describe`.
      options: by which the sites read their tables.

    Raises:
      InvalidArgument: a description is not valid, or data differ in shape, columns or kind.
    """
    for site, summary in summaries.items():
        check_description(site, summary, bounded=True)
    (first, one), *others = summaries.items()
    for site, summary in others:
        for key in ("element_shape", "is_image"):
            if summary[key] != one[key]:
                raise InvalidArgument(
                    f"The data of {site} and {first} differ: {key} is {summary[key]} and {one[key]}. All sites must "
                    "have the same."
                )
        if (TABLE in summary) != (TABLE in one):
            raise InvalidArgument(f"One of {site} and {first} has a table, the other has not: use data of one form.")
        if [c[0] for c in summary["columns"]] != [c[0] for c in one["columns"]]:
            raise InvalidArgument(
                f"The tables of {site} and {first} have different columns: use the same names in the same order."
            )
        if (summary["target"] is None) != (one["target"] is None):
            raise InvalidArgument(f"{site} and {first} differ in their task: one has classes, the other numbers.")
    sizes = [summary["num_examples"] for summary in summaries.values()]
    rows = dict(zip(summaries, sizes))
    encoding: tuple[Feature, ...] = ()
    if TABLE in one:
        encoding, pooled = agree_columns({site: x[TABLE] for site, x in summaries.items()}, rows, options)
    else:
        columns = zip(*(summary["columns"] for summary in summaries.values()))
        pooled = tuple(_pooled(sizes, column) for column in columns)
    target = None if one["target"] is None else _pooled(sizes, [summary["target"] for summary in summaries.values()])
    check_distinct([c for summary in summaries.values() for c in summary["class_names"]], "The labels of all sites")
    check_spelling({site: summary["class_names"] for site, summary in summaries.items()})
    if target is not None and not target.stddev:
        raise InvalidArgument(f"The labels of all sites are {target.mean:g}: there is nothing to predict.")
    classes = sorted({c for summary in summaries.values() for c in summary["class_names"]}, key=natural)
    if target is None and len(classes) < 2:
        raise InvalidArgument(f"All sites together have {len(classes)} class, but a model requires two or more.")
    _check_classes("All sites together have", len(classes))
    shape = (len(pooled),) if TABLE in one else tuple(one["element_shape"])
    return Schema(name, shape, one["is_image"], () if target else tuple(classes), pooled, target, encoding)


def fitted(source: Source | Part, schema: Schema) -> Source:
    """Return a site's examples with the encoding, the standardisation and the class numbers of the common schema.

    Raises:
      InvalidArgument: the examples do not fit the schema.
    """
    if isinstance(source, Part):
        features, encoding = source.encoded(schema.encoding, schema.columns), schema.encoding
        return _labelled(source, features, encoding, schema)
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


def check_description(site: str, summary: Any, bounded: bool = False) -> None:
    """Check the description of a site's data.

    Args:
      site: its name.
      summary: its message.
      bounded: whether `num_examples` was reduced since, so that it can be below the number of rows of a table.

    Raises:
      InvalidArgument: the description does not have the form of a result of `describe`.
    """
    whole = lambda x: isinstance(x, int) and not isinstance(x, bool) and 0 < x <= _LARGEST
    text = lambda x: isinstance(x, str) and x.isprintable() and len(x) <= MOST_CHARACTERS and x == canonical(x)
    fine = lambda c: (
        isinstance(c, (list, tuple))
        and len(c) == 3
        and text(c[0])
        and all(isinstance(x, (int, float)) and abs(x) <= MOST_MAGNITUDE for x in c[1:])
        and c[2] >= 0
    )
    well = (
        isinstance(summary, Mapping)
        and whole(summary.get("num_examples"))
        and whole(summary.get("num_test", 1))
        and isinstance(summary.get("element_shape"), list)
        and all(map(whole, summary["element_shape"]))
        and math.prod(summary["element_shape"]) <= MOST_NUMBERS
        and isinstance(summary.get("is_image"), bool)
        and isinstance(summary.get("class_names"), list)
        and all(map(text, summary["class_names"]))
        and isinstance(summary.get("columns"), list)
        and all(map(fine, summary["columns"]))
        and (summary.get("target") is None or fine(summary["target"]))
        and (TABLE not in summary or check_table(summary[TABLE], summary["num_examples"], MOST_MAGNITUDE, bounded))
    )
    if not well:
        raise InvalidArgument(f"The description of {site}'s data does not have the form that sites.describe gives.")
    _check_classes(f"{site} reports", len(summary["class_names"]))


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
