"""Your own data: tables, arrays and folders of images, from files or from memory, with the clients that they name."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.data import huggingface
from tfp_bfl.data.agreement import fit_encoding
from tfp_bfl.data.checks import checked_labels, checked_targets, exact_features, labels_to_test, of_one_form
from tfp_bfl.data.clients import Clients, rows_by_client
from tfp_bfl.data.encoding import Feature, Raw, encode, scaled
from tfp_bfl.data.forms import SUFFIXES, read
from tfp_bfl.data.names import as_names, canonical, check_distinct, check_spelling, value
from tfp_bfl.data.partitions import generator
from tfp_bfl.data.parts import Part, PartData
from tfp_bfl.data.read_examples import Examples, Reading, of_arrays
from tfp_bfl.data.series import series_columns
from tfp_bfl.data.sizes import Size, at_size, parse_size
from tfp_bfl.data.sources import TEST_SHARE, Source, standardised_target
from tfp_bfl.data.statistics import Column, column_of
from tfp_bfl.data.tables import TABLES, is_table
from tfp_bfl.data.texts import parse_text_columns
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import Path

TASKS = {"classification": "labels are classes", "regression": "labels are numbers, regressed on"}
# Beyond so many classes, in more than half as many examples as there are, labels are no classes.
_MOST_CLASSES = 20
# Of tables and arrays in memory, which have no name of their own.
NAME = "data"
ARRAYS = "arrays"


class OwnData(NamedTuple):
    """The contents of user-supplied files.

    Fields:
      train, test: examples to train on and to evaluate with.
      clients: of `train`, as the files say; None where they say nothing of clients.
      client_names: of each of those, in order.
      notes: sentences on columns and rows that were left out.
    """

    train: Source
    test: Source
    clients: Clients | None = None
    client_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def at_size(self, size: Size | None) -> "OwnData":
        """Return the data with their images resized; the same for None."""
        if size is None:
            return self
        train, test = at_size(self.train, size), at_size(self.test, size)
        clients = dataclasses.replace(self.clients, source=train) if self.clients else None
        return self._replace(train=train, test=test, clients=clients)


def is_own(name: str) -> bool:
    """Return whether a dataset is named by a path: one with a suffix of `SUFFIXES`, or an existing folder."""
    return pathlib.PurePath(name).suffix.lower() in SUFFIXES or os.path.isdir(name)


def kind_of(value: object) -> str | None:
    """Return what data in memory are: "Source", "Clients", "arrays", or the type of a table; None for others."""
    if isinstance(value, (Source, Clients)) or is_table(value):
        return type(value).__name__
    return ARRAYS if isinstance(value, (tuple, list, Mapping)) else None


def read_own(
    path: Path | Any,
    label: str = "label",
    client: str | None = None,
    test: Path | Any | None = None,
    task: str = "classification",
    drop: Sequence[str] = (),
    separator: str | None = None,
    only: Sequence[str] = (),
    categorical: Sequence[str] = (),
    date_unit: str | None = None,
    image_size: str | Sequence[int] | None = None,
    text_features: str | None = None,
    series_column: str | None = None,
    time_column: str | None = None,
) -> OwnData:
    """Read your own dataset, from files or from memory.

    - A table, .csv, .tsv or .parquet: one row per example, columns of numbers, categories and truth values, and the
      columns of labels and clients, which are text. Categories and empty cells are encoded (`tfp_bfl.data.encoding`,
      `Source.encoding`), and each column is standardised by the training rows (`Source.columns`); an exported model
      does the same to the rows that it predicts. Row indices are left out: a first column without a name, the
      index that pandas wrote, and whole numbers that count the rows. So are rows without a label or a client.
    - An archive, .npz: arrays features and labels; optionally clients, class_names, test_features and test_labels.
    - A folder: images of one size, or of any with image_size, in CLASS/ or CLIENT/CLASS/, in all of the folder, or in
      train/ and test/ (or validation/). Names that begin with a dot are ignored.
    - A table in memory, such as a pandas DataFrame: as a table in a file.
    - Arrays in memory, (features, labels) or (features, labels, clients): features [N, columns] are standardised as
      those of a table, images [N, height, width, channels] stay as they are.
    - A dataset of Hugging Face, in memory or a folder of `save_to_disk`: see `from_huggingface`.
    - A `Source`, or `Clients` over one; its numbers stay as they are.

    Without a test set, `TEST_SHARE` of each client's and each class's examples are held out, always the same.

    Args:
      path: of the file or folder; or data in memory.
      label: the column with the labels.
      client: the column, or the array of an archive, that names the client of each example; None for no clients, and
        for "clients" of an archive that has such an array.
      test: a file, folder or data in memory of the same form with the test set; the columns of a table are found by
        name.
      task: "classification", or "regression" on labels that are numbers, which are standardised (`Source.target`).
      drop: columns of a table that are left out.
      separator: between the columns of a .csv or .tsv file, such as ";" or "tab"; None for that of the header.
      only: the features of a table; () for all other columns.
      categorical: columns of a table that are categories, whatever they hold.
      date_unit: "days", "weeks", "months" or "years", in which dates are counted; None where dates are refused.
      image_size: (height, width) or "224,224", to which images are resized bilinearly with antialiasing.
      text_features: "wordllama[:COLUMN,COLUMN]", for features of texts (`models.text_features`); None refuses texts.
      series_column, time_column: of a long table, the columns with the name of each row's series and with its time, a
        number or a date; an example is then a series [steps, columns], with one label and one client. None for both
        where a row is an example.

    Raises:
      InvalidArgument: there is no such file, column or array, a column can't be used (dates, mixed text and numbers,
        too many texts, no value), images differ in size, training and test data have two forms, all labels are the
        same, or series differ in length, in their steps in time, or within themselves in label or client.
    """
    lookup(TASKS, task, "task")
    size, texts = parse_size(image_size), parse_text_columns(text_features)
    series = series_columns(series_column, time_column)
    if huggingface.are_partitions(path):
        path, client = huggingface.joined(path, client)
    if isinstance(path, (Source, Clients)):
        return _of_source(path, client, test, task).at_size(size)
    kind = kind_of(path)
    if test is not None and (kind is None) != (kind_of(test) is None):
        raise InvalidArgument("One of dataset and test_data is in memory, the other a path: give both in one form.")
    drop, only, categorical = as_names(drop), as_names(only), as_names(categorical)
    label, client = canonical(label), None if client is None else canonical(client)
    reading = Reading(label, client, task == "regression", drop, separator, only, categorical, date_unit, texts, size)
    reading = reading._replace(series=series)
    parts, target = _split(path, reading, test)
    first, second = _standardised(NAME if kind else pathlib.Path(path).stem, *parts, target=target)
    notes = parts[0].notes
    if first.encoding:
        of_text, gaps = sum(x.is_text for x in first.encoding), sum(x.has_missing for x in first.encoding)
        before = f"{len(first.encoding)} columns of the table ({of_text} of text, {gaps} with empty cells)"
        notes = (*notes, f"{before} become {len(first.columns)} columns of numbers.")
    return OwnData(first, second, first.clients, first.client_names, notes).at_size(size)


def from_huggingface(
    dataset: Any,
    client_column: str | None = None,
    label: str = "label",
    test: Any | None = None,
    task: str = "classification",
    only: Sequence[str] = (),
    image_size: str | Sequence[int] | None = None,
    text_features: str | None = None,
) -> OwnData:
    """Read a dataset of Hugging Face, or partitions of flwr_datasets, as `read_own` reads tables and images.

    A column of images, or of arrays with two or more dimensions, is the features [N, ...]. Otherwise they are the
    columns of a table: numbers, lists of M numbers as M columns, categories, and texts with `text_features`. A label of
    the type ClassLabel has the names and the order of its classes. Nothing is downloaded.

    Args:
      dataset: a `datasets.Dataset`; a `DatasetDict`, of which "train" is the training set and "test" or "validation"
        the test set; the folder in which `save_to_disk` wrote one of these; or a list of Datasets, such as the
        partitions of a Flower `FederatedDataset`: each is a client, with its number as name.
      client_column: the column that names the client of each row; None for no clients.
      test: the test set, in the form of the training set; None for the split of a DatasetDict, or a fifth of the rows.
      label, task, only, image_size, text_features: as of `read_own`.

    Raises:
      MissingDependency: a folder is given, and the package datasets is not installed.
      InvalidArgument: `dataset` is nothing of that, or as of `read_own`.

    Example:
      >>> import datasets
      >>> rows = datasets.Dataset.from_dict({"x": [0.1, 0.9] * 20, "label": ["no", "yes"] * 20, "site": [1, 2] * 20})
      >>> data = bfl.data.from_huggingface(rows, client_column="site")
      >>> data.train, data.client_names
      (<Source data/train: 32 examples [1], 2 classes>, ('1', '2'))
    """
    is_folder = isinstance(dataset, (str, os.PathLike)) and huggingface.is_saved(dataset)
    if not (is_folder or huggingface.is_dataset(dataset) or huggingface.are_partitions(dataset)):
        must = "a Dataset or DatasetDict, a list of Datasets, or a folder of save_to_disk"
        raise InvalidArgument(f"dataset is {shown(dataset)}, but must be {must}.")
    how: dict[str, Any] = {"only": only, "image_size": image_size, "text_features": text_features}
    return read_own(dataset, label, client_column, test, task, **how)


def read_part(
    path: Path,
    label: str = "label",
    test: Path | None = None,
    task: str = "classification",
    drop: Sequence[str] = (),
    separator: str | None = None,
    left_out: Sequence[str] = (),
    only: Sequence[str] = (),
    categorical: Sequence[str] = (),
    date_unit: str | None = None,
) -> PartData:
    """Read the data of one site, as `read_own` reads data in one place; a table stays as it is (`Part`).

    Other sites have the columns, categories and values that are missing here. How columns become numbers follows from
    the descriptions of all sites (`agree`, `fitted`).

    Arguments are those of `read_own`; names of other sites' columns in `only` and `categorical` are ignored, and those
    of `left_out` are left out if there are such columns. All labels may be the same, and columns may be empty.
    """
    lookup(TASKS, task, "task")
    drop, only, categorical = as_names(drop), as_names(only), as_names(categorical)
    reading = Reading(canonical(label), None, task == "regression", drop, separator, only, categorical, date_unit)
    reading = reading._replace(left_out=as_names(left_out), is_part=True)
    parts, target = _split(path, reading, test)
    name, notes = pathlib.Path(path).stem, parts[0].notes
    if not isinstance(parts[0].features, Raw):
        train, held = _standardised(name, *parts, target=target)
        return PartData(train, held, notes)
    first, second = (
        Part(name, split, part.features, part.labels, () if target else part.class_names, target)
        for split, part in zip(("train", "test"), parts)
        if isinstance(part.features, Raw)
    )
    return PartData(first, second, notes)


def digest(data: OwnData) -> str:
    """Return the SHA-256 sum of training and test data, their classes and scales, and of who holds what."""
    scales = [[c.mean, c.stddev] for c in (*data.train.columns, *([data.train.target] if data.train.target else []))]
    owners = [part.tolist() for part in data.clients.indices] if data.clients else None
    parts = [data.train.sha256(), data.test.sha256(), data.train.class_names, scales, owners]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _split(path: object, reading: Reading, test: object) -> tuple[list[Examples], Column | None]:
    """Return the examples for training and test with checked labels, and the target of a regression."""
    regresses, is_part = reading.regresses, reading.is_part
    reading = reading._replace(plain_labels=is_part or test is not None)
    train, given = read(path, reading)
    where, suffix = "dataset", ""
    if isinstance(path, (str, os.PathLike)):
        where, suffix = files.name(pathlib.Path(path)), pathlib.Path(path).suffix.lower()
    of_column = f"the column {shown(reading.label)} of " if is_table(path) or suffix in TABLES else ""
    labels_are = f"The labels of {of_column}{where}"
    if kind_of(path) == ARRAYS or suffix == ".npz":
        train = of_arrays(train, regresses)
    if test is not None:
        given, _ = read(test, reading.of_test(train), is_test=True)
    has_names, target = bool(train.class_names), None
    is_raw = [isinstance(x.features, Raw) for x in (train, given) if x is not None]
    if len({*is_raw}) > 1:
        raise InvalidArgument("One of training and test data is a table, the other is none: give both in one form.")
    if not is_raw[0]:
        arrays = [exact_features(x.features, bool(x.columns)) for x in (train, given) if x is not None]
        if given is not None:
            arrays = list(of_one_form(*arrays))
            given = given._replace(features=arrays[1])
        train = train._replace(features=arrays[0])
    if regresses:
        train = train._replace(labels=checked_targets(train.labels, len(train.features)))
    else:
        labels, class_names = checked_labels(train.labels, len(train.features), train.class_names)
        train = train._replace(labels=labels, class_names=class_names)
        _check_classes(train, labels_are, is_part)
    if given is None:
        held = _held_out(np.zeros(len(train.labels)) if regresses else train.labels, train.owners)
        parts = [train.select(~held), train.select(held)]
    else:
        labels = given.labels if has_names or regresses else labels_to_test(given.labels, train.class_names)
        parts = [train, given._replace(labels=labels, class_names=train.class_names)]
    if regresses:
        checked = [checked_targets(part.labels, len(part.features)) for part in parts]
        target, _ = standardised_target(reading.label, checked[0], checked[0])
        if not target.stddev and not is_part:
            raise InvalidArgument(f"{labels_are} are {checked[0][0]:g} in all training rows: nothing is to predict.")
        scaled_to = (standardised_target(reading.label, checked[0], y)[1] for y in checked)
        parts = [part._replace(labels=labels) for part, labels in zip(parts, scaled_to)]
    return parts, target


def _check_classes(examples: Examples, what: str, is_part: bool) -> None:
    """Check that labels are two or more classes."""
    names, number = examples.class_names, len(examples.labels)
    check_distinct(names, what)
    if len(names) == 1 and not is_part:
        raise InvalidArgument(f"{what} are all {shown(names[0])}: a model requires two classes or more.")
    values = [x for x in map(value, names) if x is not None]
    are_numbers = len(values) == len(names)
    broken = next((n for n, x in zip(names, values) if x != x.to_integral_value()), None)
    if are_numbers and broken is not None:
        advice = "to regress on them give --task regression"
        raise InvalidArgument(f"{what} are numbers with fractions, such as {broken}, but must be classes: {advice}.")
    if len(names) > max(_MOST_CLASSES, number / 2):
        advice = "to regress on them give --task regression" if are_numbers else "choose a column that names classes"
        raise InvalidArgument(f"{what} have {len(names)} distinct values in {number} examples: {advice}.")
    if examples.owners is not None:
        labels = {x: np.unique(examples.labels[examples.owners == x]) for x in sorted(set(examples.owners))}
        check_spelling({client: [names[i] for i in found] for client, found in labels.items()})


def _held_out(labels: np.ndarray, owners: np.ndarray | None) -> np.ndarray:
    """Return a mask of test examples: `TEST_SHARE` of each client's and class's, but not all of a client's."""
    places = np.zeros(len(labels), np.int64) if owners is None else np.unique(owners, return_inverse=True)[1]
    rng = generator(0, "held out")
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        members = members[np.argsort(places[members], kind="stable")]
        # Every fifth, from a random one on: so much of the class, and of each client about as much.
        steps = np.floor(np.arange(len(members) + 1) * TEST_SHARE + rng.random())
        held[members[np.diff(steps) > 0]] = True
    first, count = np.unique(places, return_index=True, return_counts=True)[1:]
    held[first[np.bincount(places, held) == count]] = False
    if not held.any():
        raise InvalidArgument(f"There are too few examples, {len(labels)}, to hold a test set out: give one.")
    return held


def _standardised(name: str, *parts: Examples, target: Column | None) -> list[Source]:
    """Return the sources of both; tables by the columns' means and standard deviations in the first."""
    columns: tuple[Column, ...] = ()
    encoding: tuple[Feature, ...] = ()
    train = parts[0]
    if isinstance(train.features, Raw):
        encoding, columns = fit_encoding(train.features, train.owners)
        features = [encode(part.features, encoding, columns) for part in parts if isinstance(part.features, Raw)]
    else:
        features = [np.asarray(part.features) for part in parts]
        if train.columns and features[0].dtype.kind in "biuf":
            exact = features[0].astype(np.float64)
            columns = tuple(column_of(name, exact[..., i]) for i, name in enumerate(train.columns))
    if columns:
        features = [scaled(x, columns) for x in features]
    return [
        Source(name, split, x, part.labels, () if target else part.class_names, columns, target, encoding, part.owners)
        for split, x, part in zip(("train", "test"), features, parts)
    ]


def _of_source(given: Source | Clients, client: str | None, test: Any, task: str) -> OwnData:
    """Return the parts of a source or of clients in memory."""
    source, clients = (given, given.clients) if isinstance(given, Source) else (given.source, given)
    if client is not None:
        raise InvalidArgument(f"client_column is of tables, and dataset is a {type(given).__name__}: leave it out.")
    if (source.target is None) != (task == "classification"):
        labels = "classes" if source.target is None else "numbers"
        raise InvalidArgument(f"task is {task}, but the labels of dataset are {labels}: give the other task.")
    names = source.client_names if isinstance(given, Source) else given.client_names
    names = names or tuple(str(k) for k in range(clients.num_clients if clients else 0))
    if test is not None:
        return OwnData(source, _check_alike(source, test), clients, names)
    train, owners = _examples_of_clients(clients) if clients else (source, None)
    held = _held_out(train.labels if train.target is None else np.zeros(train.num_examples), owners)
    rest, test = train.select(~held, "train"), train.select(held, "test")
    if owners is None or clients is None:
        return OwnData(rest, test)
    return OwnData(rest, test, Clients(rest, rows_by_client(owners[~held], clients.num_clients)), names)


def _examples_of_clients(clients: Clients) -> tuple[Source, np.ndarray]:
    """Return the examples that clients hold, in the order of the source, and each example's client [N]."""
    rows = np.concatenate(clients.indices)
    if len(np.unique(rows)) < len(rows):
        raise InvalidArgument("The clients of dataset share examples: give test_data, a Source.")
    order = np.argsort(rows)
    return clients.source.select(rows[order]), np.repeat(np.arange(clients.num_clients), clients.sizes)[order]


def _check_alike(train: Source, given: object) -> Source:
    """Return a test set, a source or the rows of clients, of the form and the classes of the training set."""
    test = _examples_of_clients(given)[0] if isinstance(given, Clients) else given
    if not isinstance(test, Source):
        raise InvalidArgument(f"test_data has the type {type(test).__name__}, but must be a Source or Clients too.")
    for name in ("element_shape", "is_image", "class_names", "target", "columns", "encoding"):
        ours, theirs = getattr(train, name), getattr(test, name)
        if ours != theirs:
            training = f"of the training data {shown(ours)}"
            raise InvalidArgument(f"The {name} of test_data is {shown(theirs)}, but {training}: both must agree.")
    return test
