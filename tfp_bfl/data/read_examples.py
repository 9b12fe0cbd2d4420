"""Examples of tables and arrays as they were read, from files or from memory, and the options of reading them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.agreement import check_kinds, counts, rows_of_clients
from tfp_bfl.data.cells import BLANK, blank, check_full, read_columns
from tfp_bfl.data.checks import exact_features
from tfp_bfl.data.columns import Columns, Troubles
from tfp_bfl.data.encoding import Feature, Raw
from tfp_bfl.data.names import as_text, client_names, is_nothing, note_spellings, ordered
from tfp_bfl.data.series import SeriesColumns, find_series
from tfp_bfl.data.sizes import Size
from tfp_bfl.data.statistics import within_bounds
from tfp_bfl.data.tables import as_table, is_table
from tfp_bfl.data.texts import NO_TEXTS, TextColumns
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Of the columns of a table that errors list.
_MOST_NAMES = 10
_FORMS = "a Source, Clients, arrays (features, labels) or (features, labels, clients), or a table such as a DataFrame"
_PARTS = ("features", "labels", "clients")


class Examples(NamedTuple):
    """Hold examples as they were read."""

    features: np.ndarray | Raw  # [N, ...]; the cells of a table that are not all numbers.
    labels: np.ndarray  # [N].
    owners: np.ndarray | None = None  # The name of each example's client [N]; None where the data name none.
    columns: tuple[str, ...] = ()  # Names of a table's columns; () otherwise.
    class_names: tuple[str, ...] = ()  # C names; () for the names of the labels.
    notes: tuple[str, ...] = ()  # Sentences on what was left out.

    def select(self, keep: np.ndarray) -> "Examples":
        """Return the examples of a mask [N]."""
        owners = None if self.owners is None else self.owners[keep]
        return self._replace(features=self.features[keep], labels=self.labels[keep], owners=owners)


class Reading(NamedTuple):
    """The options of reading examples: drop, separator, only, categorical and date_unit as of `data.read_own`."""

    label: str = "label"  # The column with the labels.
    client: str | None = None  # The column, or array, with the names of the clients; None for none.
    regresses: bool = False  # Labels are numbers.
    drop: tuple[str, ...] = ()
    separator: str | None = None
    only: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    date_unit: str | None = None
    text_features: TextColumns | None = None  # Columns that become features of texts.
    image_size: Size | None = None  # To which the images of a folder are resized.
    series: SeriesColumns | None = None  # Of a long table, in which an example has several rows.
    # The features of a test set, in order and in the form of the training set; () for a training set.
    columns: tuple[Feature, ...] = ()
    is_full: bool = False  # `columns` are numbers of which none is empty.
    left_out: tuple[str, ...] = ()  # Columns that are left out where the table has them.
    plain_labels: bool = False  # Labels that are numbers have no sign beside them, as other data may have another.
    # The data are one site's, as its file describes them: other sites have the columns, categories and values that are
    # missing here.
    is_part: bool = False

    def of_test(self, train: Examples) -> "Reading":
        """Return how the test set is read: the columns of the training set, in the same form."""
        of_train = train.features.columns if isinstance(train.features, Raw) else ()
        columns = [Feature(x.name, x.kind, unit=x.sign or None) for x in of_train]
        columns = columns or [Feature(name, "number") for name in train.columns]
        if not columns:
            return self
        how = self._replace(drop=(), only=(), categorical=(), columns=tuple(columns))
        if self.series:
            values = of_train[0].values if of_train else np.asarray(train.features)
            how = how._replace(series=self.series._replace(steps=values.shape[1]))
        return how._replace(is_full=not of_train)

    @property
    def text(self) -> tuple[str, ...]:
        """The columns that are read as text."""
        series = self.series and self.series.series
        named = (None if self.regresses else self.label, self.client, series, *self.categorical)
        return (*(x for x in named if x is not None), *(x.name for x in self.columns if x.is_text))

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that are read although they are a row index."""
        times = (self.series.time,) if self.series else ()
        return (*self.text, self.label, *times, *(x.name for x in self.columns), *self.only)


def examples_of(table: Columns, where: str, reading: Reading) -> Examples:
    """Return the examples of a table, a row or a series each. Those without a label or a client are left out."""
    label, client, is_test = reading.label, reading.client, bool(reading.columns)
    if is_test and client not in table.column_names:
        client = None  # A test set need not name the clients.
    columns = _chosen(table, where, reading, client)
    series = find_series(table, reading.series, where) if reading.series else None
    numeric = "encode text as numbers, fill in empty cells or remove their rows, or leave columns out with --drop"
    troubles = Troubles(where, numeric if reading.is_full else "leave columns out with --drop")
    raw = _raw(table, columns, reading, troubles)
    owners: np.ndarray | None = None
    notes: list[str] = []
    if client is not None:
        distinct, notes = client_names(table[client].distinct[1], client)
        owners = table[client].spread(distinct)
        if is_test and (owners == "").any():
            gaps = f"{np.sum(owners == '')} empty cells, the first in row {int(np.argmax(owners == '')) + 1}"
            advice = "name the client of each test row, or leave the column out"
            raise InvalidArgument(f"The column {shown(client)} of {where} has {gaps}: {advice}.")
    if reading.regresses:
        signs = {label: ""} if reading.plain_labels else {}
        of_label = read_columns(table, [label], troubles, kinds={label: "number"}, signs=signs, among=columns)
        labels = of_label[0].values
        filled = ~np.isnan(labels)
    else:
        labels = table[label].spread(as_text(table[label].distinct[1]))
        filled = labels != ""
    for name in (*columns, label) if reading.is_full else ():
        check_full(~filled if name == label and not reading.regresses else table[name].empty, name, troubles)
    troubles.check()
    notes += troubles.notes
    clients = [] if is_test or reading.is_part else rows_of_clients(owners)
    if series:
        labels, filled = series.common(labels, label), filled[series.rows[:, 0]]
        owners = None if owners is None or client is None else series.common(owners, client)
        notes.append(f"{table.num_rows:,} rows are {len(labels):,} series of {series.rows.shape[1]} time steps.")
    if reading.regresses and not is_test:
        labels, of_labels = within_bounds(labels, label)
        notes += of_labels
    elif not reading.regresses:
        # Words that elsewhere stand for an empty cell: labels are no categories of a column.
        advice = "a class like any other: empty these cells if it stands for a missing label."
        words = sorted(filter(is_nothing, {*labels.tolist()}))
        notes += [f"{np.sum(labels == x):,} rows have {shown(x)} in {shown(label)}, {advice}" for x in words]
        notes += note_spellings(labels, label, shortest=2)
    check_kinds(table, raw.columns, clients, reading.categorical)
    limited = [x.within_bounds(limit=not is_test) for x in raw.columns]
    notes += [note for _, own in limited for note in own]
    cells = [x for x, _ in limited]
    may_count = [] if is_test or reading.is_part else [x for x in cells if x.name not in reading.only]
    counting = [x.name for x in may_count if counts(x, clients)]
    if len(counting) < len(cells):
        cells = [x for x in cells if x.name not in counting]
        advice = "numbers the rows and is left out: name it with --only to use it."
        notes += [f"The column {shown(x)} {advice}" for x in counting]
    if series:
        cells = [x._replace(values=x.values[series.rows]) for x in cells]
    features: Any = Raw(cells, raw.unit)
    is_plain = lambda x: x.kind in ("number", "truth") and not (x.sign or x.empty.any())
    if reading.is_full or (not (is_test or reading.is_part) and all(map(is_plain, cells))):
        features = np.stack([x.values for x in cells], -1)
    filled &= True if owners is None else owners != ""
    found = Examples(features, labels, owners, tuple(x.name for x in cells))
    if not filled.all():
        rows = "series" if series else "row" if np.sum(~filled) == 1 else "rows"
        notes.append(f"{np.sum(~filled):,} {rows} without a label or a client left out.")
        if not filled.any():
            raise InvalidArgument(f"No row of {where} has a label and a client: name other columns.")
        found = found.select(filled)
    return found._replace(class_names=() if reading.regresses else ordered(found.labels), notes=tuple(notes))


def _chosen(table: Columns, where: str, reading: Reading, client: str | None) -> list[str]:
    """Return the names of the features, after a check of all that options name."""
    label, prefix, there = reading.label, "" if reading.is_part else "--", dict.fromkeys(table.column_names)
    if label == Reading().label and label not in there and not reading.columns:
        advice = f"name the column with the labels by {prefix}label; its columns are {_names(table)}"
        raise InvalidArgument(f"The table {where} has no column 'label': {advice}.")
    of_sites = {} if reading.is_part else {"only": reading.only, "categorical": reading.categorical}
    of_sites |= {"text-features": reading.text_features.names} if reading.text_features else {}
    given = {"label": [label], "client-column": [] if client is None else [client], **of_sites}
    for option, name in ((option, name) for option, names in given.items() for name in names):
        lookup(there, name, "column", f"in {where} for {prefix}{option}")
    by = [reading.series.series, reading.series.time] if reading.series else []
    used = {"client-column": client, **dict(zip(("series-column", "time-column"), by))}
    if twice := next((option for option, name in used.items() if name == label), None):
        raise InvalidArgument(f"The column {shown(label)} is label and {twice}: name two columns.")
    if by and by[1] in (by[0], client):
        raise InvalidArgument(f"The column {shown(by[1])} has the times, and names clients or series: name two.")
    if reading.columns:
        check_columns(table, [x.name for x in reading.columns], where)
        return [x.name for x in reading.columns]
    rest = [name for name in reading.only or there if name not in (label, client, *by, *reading.left_out)]
    if not (rest := [name for name in rest if name in there]):
        raise InvalidArgument(f"The table {where} has no columns besides {label!r}: there is nothing to learn.")
    return rest


def _raw(table: Columns, columns: Sequence[str], reading: Reading, troubles: Troubles) -> Raw:
    """Return the cells of columns; what can't be used is recorded in `troubles`.

    Other sites may fill columns that are empty at one site, in its training set or in its test set.
    """
    filled = [name for name in columns if not (reading.is_part and table[name].empty.all())]
    fixed = [x for x in reading.columns if x.kind != BLANK]
    kinds, signs = {x.name: x.kind for x in fixed}, {x.name: x.sign for x in fixed}
    unit = reading.date_unit
    how = reading.categorical, unit, reading.client, kinds, signs, ()
    read = read_columns(table, filled, troubles, *how, reading.text_features or (None if reading.is_part else NO_TEXTS))
    if not reading.is_part:
        return Raw(read, unit)
    found = {name: blank(name, table.num_rows) for name in columns}
    return Raw([*(found | {x.name: x._replace(numbering=x.numbered()) for x in read}).values()], unit)


def check_columns(table: Columns, columns: Sequence[str], where: str) -> None:
    """Raise InvalidArgument unless a table of the name `where` has the columns."""
    for name in columns:
        if name not in table.column_names:
            what = f"has no column {shown(name)}, which the model requires"
            raise InvalidArgument(f"The table {where} {what}: its columns are {_names(table)}.")


def _names(table: Columns) -> str:
    return ", ".join(map(shown, table.column_names[:_MOST_NAMES]))


def check_no_table(reading: Reading, where: str) -> None:
    """Raise InvalidArgument if options of tables are given for other data, of the name `where`."""
    for name in ("drop", "separator", "only", "categorical", "date_unit", "text_features", "series"):
        if getattr(reading, name):
            name = "time_column" if name == "series" else name
            raise InvalidArgument(f"{name} belongs to tables, and {where} is none: leave it out.")


def examples_in(value: object, where: str, reading: Reading) -> Examples:
    """Return the examples of a table or of arrays in memory."""
    if is_table(value):
        return examples_of(as_table(value, where, reading.drop, reading.named), where, reading)
    check_no_table(reading, where)
    if not isinstance(value, (tuple, list, Mapping)):
        raise InvalidArgument(f"{where} has the type {type(value).__name__}, but must be {_FORMS}.")
    arrays = dict(value) if isinstance(value, Mapping) else dict(zip(_PARTS, value))
    for name in arrays:
        lookup(dict.fromkeys(_PARTS), name, "array", f"in {where}")
    if len(arrays) != len(value) or not {"features", "labels"} <= arrays.keys():
        raise InvalidArgument(f"{where} has {len(value)} parts, but must be {_FORMS}.")
    features = exact_features(arrays["features"], np.ndim(arrays["features"]) == 2)
    return of_named_arrays({**arrays, "features": features}, "clients", where)


def of_named_arrays(arrays: Mapping[str, Any], client: str, where: str) -> Examples:
    """Return the examples of arrays by name: features, labels and, if they are there, clients and class_names."""
    features, owners, notes = arrays["features"], arrays.get(client), list[str]()
    if owners is not None:
        owners = np.asarray(owners)
        if owners.shape != (len(features),):
            must = f"must name the client of each of the {len(features)} examples"
            raise InvalidArgument(f"The array {client} of {where} has the shape {list(owners.shape)}, but {must}.")
        names_of(owners, client, where)
        owners, notes = client_names(owners.tolist(), client)
    columns = tuple(f"column_{i}" for i in range(features.shape[-1])) if features.ndim == 2 else ()
    names = tuple(as_text(arrays["class_names"].tolist())) if "class_names" in arrays else ()
    return Examples(features, np.asarray(arrays["labels"]), owners, columns, names, tuple(notes))


def names_of(array: object, name: str, where: str) -> np.ndarray:
    """Return an array of names [N] as of `names.as_text`, object [N]."""
    names = as_text(np.asarray(array).tolist())
    empty = [i for i, x in enumerate(names) if not x]
    if empty:
        what = f"has {len(empty)} empty names, the first in example {empty[0]}"
        raise InvalidArgument(f"The array {name} of {where} {what}: fill them in, or leave those examples out.")
    return names


def of_arrays(examples: Examples, regresses: bool) -> Examples:
    """Limit the columns and numeric labels of arrays, as those of a table (`within_bounds`)."""
    features, labels, notes = examples.features, examples.labels, list(examples.notes)
    if examples.columns and isinstance(features, np.ndarray) and features.dtype.kind in "iuf":
        for j, name in enumerate(examples.columns):
            values, found = within_bounds(features[:, j].astype(np.float64), name)
            if found:
                features = features.copy()
                features[:, j] = values
                notes += found
    if regresses and labels.ndim == 1 and labels.dtype.kind in "iuf":
        labels, found = within_bounds(labels.astype(np.float64), "labels")
        notes += found
    return examples._replace(features=features, labels=labels, notes=tuple(notes))
