"""Examples of tables and archives as they were read, and the options of reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.by_client import Rows, check_kinds, counts, rows_of_clients
from tfp_bfl.data.cells import BLANK, TEXT_KINDS, blank, numbers, read_columns
from tfp_bfl.data.columns import Columns, Troubles, check_full
from tfp_bfl.data.encoding import Raw
from tfp_bfl.data.names import EMPTY, as_text, client_names, note_spellings, ordered
from tfp_bfl.data.outliers import table_within_bounds, within_bounds
from tfp_bfl.data.signs import is_nothing
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Of the columns of a table that errors list.
_MOST_NAMES = 10


class Examples(NamedTuple):
    """Hold examples as they were read.

    Fields:
      features: [N, ...]; the cells of a table that are not all numbers.
      labels: [N].
      owners: the name of each example's client [N]; None where the data name none.
      columns: names of a table's columns; () otherwise.
      class_names: C names; () for the names of the labels.
      notes: sentences on what was left out.
    """

    features: np.ndarray | Raw
    labels: np.ndarray
    owners: np.ndarray | None = None
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Reading(NamedTuple):
    """The options of reading examples.

    Fields:
      label: the column with the labels.
      client: the column, or array, with the names of the clients; None for none.
      regresses: labels are numbers.
      drop: columns that are left out.
      separator: between the columns of a file; None for that of its header.
      only: the features; () for all other columns.
      categorical: columns that are categories, whatever they hold.
      date_unit: in which dates become numbers, one of `DATE_UNITS`; None where dates are refused.
      columns: the features of a test set, in order; () for a training set.
      kinds, signs: of the cells of `columns`; () where all must be numbers.
      left_out: columns that are left out where the table has them.
      plain_labels: labels that are numbers have no sign beside them, as those of other data may have another.
      is_part: the data are one site's, as its file describes them: other sites have the columns, categories and values
        that are missing here.
    """

    label: str = "label"
    client: str | None = None
    regresses: bool = False
    drop: tuple[str, ...] = ()
    separator: str | None = None
    only: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    date_unit: str | None = None
    columns: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    plain_labels: bool = False
    is_part: bool = False

    @property
    def option_prefix(self) -> str:
        """The characters before the name of an option of these in errors."""
        return "" if self.is_part else "--"

    @property
    def text(self) -> tuple[str, ...]:
        """The columns that are read as text."""
        of_kinds = [name for name, kind in zip(self.columns, self.kinds) if kind in TEXT_KINDS]
        named = (None if self.regresses else self.label, self.client, *self.categorical, *of_kinds)
        return tuple(x for x in named if x is not None)

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that are read although they are a row index."""
        return (*self.text, self.label, *self.columns, *self.only)


def examples_of(table: Columns, where: str, reading: Reading) -> Examples:
    """Return the examples of a table, a row each. Rows without a label or a client are left out.

    Args:
      table: of `read_table`.
      where: the table's name in errors.
      reading: names its columns.

    Raises:
      InvalidArgument: there is no such column, or a column can't be used.
    """
    label, client = reading.label, reading.client
    if reading.columns and client not in table.column_names:
        client = None  # A test set need not name the clients.
    if label == Reading().label and label not in table.column_names and not reading.columns:
        some = ", ".join(map(shown, table.column_names[:_MOST_NAMES]))
        raise InvalidArgument(
            f"The table {where} has no column 'label': name the column with the labels by "
            f"{reading.option_prefix}label; its columns are {some}."
        )
    for option, given in (
        ("label", [label]),
        ("client-column", [client] if client is not None else []),
        ("only", reading.only),
        ("categorical", reading.categorical),
    ):
        for name in given:
            if name not in table.column_names and not (reading.is_part and option in ("only", "categorical")):
                lookup(
                    dict.fromkeys(table.column_names), name, "column", f"in {where} for {reading.option_prefix}{option}"
                )
    if client == label:
        raise InvalidArgument(f"The column {shown(label)} is label and client-column: name two columns.")
    check_columns(table, reading.columns, where)
    rest = [name for name in reading.only or table.column_names if name not in (label, client, *reading.left_out)]
    if reading.is_part:
        rest = [name for name in rest if name in table.column_names]
    columns = reading.columns or tuple(rest)
    if not columns:
        raise InvalidArgument(f"The table {where} has no columns besides {label!r}: there is nothing to learn.")
    strict = bool(reading.columns and not reading.kinds)
    numeric = "encode text as numbers, fill in empty cells or remove their rows, or leave columns out with --drop"
    troubles = Troubles(where, numeric if strict else "leave columns out with --drop")
    features: Any = numbers(table, columns, troubles) if strict else _raw(table, columns, reading, troubles)
    owners: np.ndarray | None = None
    of_clients: list[str] = []
    if client is not None:
        distinct, of_clients = client_names(table[client].distinct[1], client)
        owners = table[client].spread(distinct)
        if reading.columns and (owners == "").any():
            raise InvalidArgument(
                f"The column {shown(client)} of {where} has {np.sum(owners == '')} empty cells, the first in row "
                f"{int(np.argmax(owners == '')) + 1}: name the client of each test row, or leave the column out."
            )
    if reading.regresses:
        sign = "" if reading.plain_labels else None
        labels = numbers(table, [label], troubles, strict, among=columns, sign=sign)[:, 0]
        filled = ~np.isnan(labels)
    else:
        labels = table[label].spread(as_text(table[label].distinct[1]))
        filled = labels != ""
        if strict:
            check_full(~filled, label, troubles)
    troubles.check()
    notes = [*of_clients, *troubles.notes]
    if reading.regresses and not reading.columns:
        labels, of_labels = within_bounds(labels, label)
        notes += of_labels
    elif not reading.regresses:
        notes += [*_words_among(labels, label), *note_spellings(labels, label, shortest=2)]
    if not strict:
        clients = [] if reading.columns or reading.is_part else rows_of_clients(owners)
        check_kinds(table, features.columns, clients, reading.categorical)
        features, columns, of_features = _features(features, reading, clients)
        notes += of_features
        filled &= True if owners is None else owners != ""
        if not filled.all():
            rest_are = f"{np.sum(~filled):,} row{'s' if np.sum(~filled) > 1 else ''}"
            notes.append(f"{rest_are} without a label or a client left out.")
            if not filled.any():
                raise InvalidArgument(f"No row of {where} has a label and a client: name other columns.")
            features, labels = features[filled], labels[filled]
            owners = None if owners is None else owners[filled]
    names = () if reading.regresses else ordered(labels)
    return Examples(features, labels, owners, columns, names, tuple(notes))


def of_arrays(examples: Examples, regresses: bool) -> Examples:
    """Return examples of arrays with the columns and numeric labels of a table limited (`outliers.within_bounds`).

    Args:
      examples: as given.
      regresses: labels are numbers.
    """
    features, notes = examples.features, list(examples.notes)
    if isinstance(features, np.ndarray):
        features, found = table_within_bounds(features, examples.columns)
        notes += found
    labels = examples.labels
    if regresses and labels.ndim == 1 and labels.dtype.kind in "iuf":
        labels, found = within_bounds(labels.astype(np.float64), "labels")
        notes += found
    return examples._replace(features=features, labels=labels, notes=tuple(notes))


def _words_among(labels: np.ndarray, label: str) -> list[str]:
    """Return a note for each label that elsewhere stands for an empty cell; labels are no categories of a column."""
    return [
        f"{np.sum(labels == word):,} rows have {shown(word)} in {shown(label)}, a class like any other: empty these "
        "cells if it stands for a missing label."
        for word in (*EMPTY, *sorted(filter(is_nothing, {*labels.tolist()})))
        if np.any(labels == word)
    ]


def _raw(table: Columns, columns: Sequence[str], reading: Reading, troubles: Troubles) -> Raw:
    """Return the cells of columns; what can't be used is recorded in `troubles`.

    Other sites may fill columns that are empty at one site, in its training set or in its test set.
    """
    filled = [name for name in columns if not (reading.is_part and table[name].empty.all())]
    fixed = {name: x for name, *x in zip(columns, reading.kinds, reading.signs) if x[0] != BLANK}
    kinds, signs = ({name: x[i] for name, x in fixed.items()} for i in (0, 1))
    unit = reading.date_unit
    read = read_columns(table, filled, troubles, reading.categorical, unit, reading.client, kinds, signs)
    if not reading.is_part:
        return Raw(read, unit)
    found = {name: blank(name, table.num_rows) for name in columns}
    return Raw([*(found | {x.name: x._replace(numbering=x.numbered()) for x in read}).values()], unit)


def _features(raw: Raw, reading: Reading, clients: Rows) -> tuple[np.ndarray | Raw, tuple[str, ...], list[str]]:
    """Return the features, their names, and sentences on columns that count the rows and on doubtful values."""
    limited = [x.within_bounds(limit=not reading.columns) for x in raw.columns]
    raw, notes = Raw([x for x, _ in limited], raw.unit), [note for _, own in limited for note in own]
    if reading.is_part:
        return raw, tuple(x.name for x in raw.columns), notes
    counting = [x.name for x in raw.columns if x.name not in reading.only and counts(x, clients)]
    if reading.columns or len(counting) == len(raw.columns):
        counting = []
    raw = Raw([x for x in raw.columns if x.name not in counting], raw.unit)
    notes += [
        f"The column {shown(x)} numbers the rows and is left out: name it with --only to use it." for x in counting
    ]
    names = tuple(x.name for x in raw.columns)
    if raw.is_plain and not reading.kinds:
        return np.stack([x.values for x in raw.columns], -1), names, notes
    return raw, names, notes


def check_columns(table: Columns, columns: Sequence[str], where: str) -> None:
    """Raise InvalidArgument unless a table has the columns.

    Args:
      table: of `read_table`.
      columns: names.
      where: the table's name in errors.
    """
    for name in columns:
        if name not in table.column_names:
            raise InvalidArgument(
                f"The table {where} has no column {shown(name)}, which the model requires: its columns are "
                f"{', '.join(map(shown, table.column_names[:_MOST_NAMES]))}."
            )


def check_no_table(reading: Reading, where: str) -> None:
    """Raise InvalidArgument if options of tables are given for other data.

    Args:
      reading: of the data.
      where: the name of the data in errors.
    """
    for name in ("drop", "separator", "only", "categorical", "date_unit"):
        if getattr(reading, name):
            raise InvalidArgument(f"{name} belongs to tables, and {where} is none: leave it out.")


def of_named_arrays(arrays: Mapping[str, Any], client: str, where: str) -> Examples:
    """Return the examples of arrays by name: features, labels and, if they are there, clients and class_names.

    Args:
      arrays: in memory or of an archive.
      client: the name of the array with the client of each example.
      where: the name of the data in errors.

    Raises:
      InvalidArgument: the clients are not one an example, or a name is empty.
    """
    features, owners, notes = arrays["features"], arrays.get(client), list[str]()
    if owners is not None:
        owners = np.asarray(owners)
        if owners.shape != (len(features),):
            raise InvalidArgument(
                f"The array {client} of {where} has the shape {list(owners.shape)}, but must name the client of each "
                f"of the {len(features)} examples."
            )
        names_of(owners, client, where)
        owners, notes = client_names(owners.tolist(), client)
    columns = tuple(f"column_{i}" for i in range(features.shape[-1])) if features.ndim == 2 else ()
    names = tuple(as_text(arrays["class_names"].tolist())) if "class_names" in arrays else ()
    return Examples(features, np.asarray(arrays["labels"]), owners, columns, names, tuple(notes))


def names_of(array: object, name: str, where: str) -> np.ndarray:
    """Return an array of names as of `names.as_text`, object [N].

    Args:
      array: [N].
      name: of the array in errors.
      where: the name of the data in errors.

    Raises:
      InvalidArgument: a name is empty.
    """
    names = as_text(np.asarray(array).tolist())
    empty = [i for i, x in enumerate(names) if not x]
    if empty:
        raise InvalidArgument(
            f"The array {name} of {where} has {len(empty)} empty names, the first in example {empty[0]}: fill them in, "
            "or leave those examples out."
        )
    return names
