"""Your own data: tables, arrays and folders of images, from files or from memory, with the clients that they name."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import zipfile
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tfp_bfl import files
from tfp_bfl.data._random import generator
from tfp_bfl.data.checks import checked_targets
from tfp_bfl.data.clients import Clients
from tfp_bfl.data.images import CHANNELS, FORMATS, read_images
from tfp_bfl.data.in_memory import check_alike, examples_in, kind_of, part_of, split_clients
from tfp_bfl.data.sources import TEST_SHARE, Column, Source, standardised_target
from tfp_bfl.data.tables import Examples, examples_of, numbers, read_table
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files.arrays import read_arrays

TABLES = (".csv", ".parquet")
SUFFIXES = (*TABLES, ".npz")
MOST_BYTES = 2**34
TASKS = {"classification": "labels are classes", "regression": "labels are numbers, regressed on"}
_SPLITS = ("train", "test")
# Of tables and arrays in memory, which have no name of their own.
NAME = "data"

Path = Union[str, "os.PathLike[str]"]


class OwnData(NamedTuple):
    """What files hold.

    Fields:
      train, test: examples to train on and to evaluate with.
      clients: of `train`, as the files say; None where they say nothing of clients.
      client_names: of each of those, in order.
    """

    train: Source
    test: Source
    clients: Optional[Clients] = None
    client_names: tuple[str, ...] = ()


def is_own(name: str) -> bool:
    """Whether a dataset is called by a path: one with a suffix of `SUFFIXES`, or a folder that is there."""
    return pathlib.PurePath(name).suffix.lower() in SUFFIXES or os.path.isdir(name)


def names_clients(path: Path) -> bool:
    """Whether data that are no table say whose each example is, as far as names of folders and arrays tell."""
    try:
        if os.path.isdir(path):
            first = next((p for p in pathlib.Path(path).rglob("*") if p.suffix.lower() in FORMATS), None)
            parts = first.relative_to(path).parts if first else ()
            return len(parts) - (parts[0] in _SPLITS if parts else 0) == 3
        if pathlib.Path(path).suffix.lower() == ".npz":
            with zipfile.ZipFile(path) as archive:
                return "clients.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError):
        pass  # Reading it will say what is wrong.
    return False


def read_own(
    path: Union[Path, Any],
    label: str = "label",
    client: Optional[str] = None,
    test: Union[Path, Any, None] = None,
    task: str = "classification",
) -> OwnData:
    """Read your own dataset, from files or from memory.

    - A table, .csv or .parquet: a row an example, the columns numbers, besides that of the labels and that of the
      clients. Each column is taken less its mean and over its standard deviation, both of the training rows
      (`Source.columns`); an exported model does the same to the rows that it is asked about.
    - An archive, .npz: arrays features and labels; also clients, class_names, test_features and test_labels.
    - A folder: images of one size in CLASS/ or CLIENT/CLASS/, and the same in train/ and test/ where these exist.
    - A table in memory, such as a pandas DataFrame: as a table in a file.
    - Arrays in memory, (features, labels) or (features, labels, clients): features [N, columns] are standardised as
      those of a table, images [N, height, width, channels] stay as they are.
    - A `Source`, or `Clients` over one, whose numbers stay as they are.

    Where no test set is given, `TEST_SHARE` of each client's and each class's examples are it, always the same.

    Args:
      path: of the file or folder; or data in memory.
      label: the column with the labels.
      client: the column, or the array of an archive, that says whose an example is; None where there is none, and
        "clients" of an archive that has such an array.
      test: a file, folder or data in memory of the same form with the test set.
      task: "classification", or "regression" on labels that are numbers, which are taken less their mean and over
        their standard deviation (`Source.target`).

    Raises:
      InvalidArgument: there is no such file, column or array, a cell is empty or no number, images differ in size, or
        training and test data have two forms.
    """
    lookup(TASKS, task, "task")
    if isinstance(path, (Source, Clients)):
        return _of_source(path, client, test, task)
    kind = kind_of(path)
    if test is not None and (kind is None) != (kind_of(test) is None):
        raise InvalidArgument("One of dataset and test_data is in memory, the other a path: give both in one form.")
    train, given = _read(path, label, client)
    if test is not None:
        given, _ = _read(test, label, None, ignored=client, where="test_data")
    name, has_names = NAME if kind else pathlib.Path(path).stem, bool(train.class_names)
    regresses = task == "regression"
    if regresses:
        train = train._replace(labels=checked_targets(train.labels, len(train.features)))
    else:
        whole = Source(name, "train", train.features, train.labels, train.class_names)
        train = train._replace(features=whole.features, labels=whole.labels, class_names=whole.class_names)
    if given is None:
        held = _held_out(np.zeros(len(train.labels)) if regresses else train.labels, train.owners)
        parts = [_part(train, ~held), _part(train, held)]
    else:
        if given.columns != train.columns:
            other = next(iter(set(given.columns) ^ set(train.columns)), "their order")
            raise InvalidArgument(f"The test set has other columns than the training set: {shown(other)} differs.")
        labels = given.labels if has_names or regresses else _as_text(given.labels)
        parts = [train, given._replace(labels=labels, class_names=train.class_names)]
    target = None
    if regresses:
        checked = [checked_targets(part.labels, len(part.features)) for part in parts]
        target, _ = standardised_target(label, checked[0], checked[0])
        parts = [p._replace(labels=standardised_target(label, checked[0], y)[1]) for p, y in zip(parts, checked)]
    first, second = _standardised(name, *parts, target=target)
    owners = parts[0].owners
    if owners is None:
        return OwnData(first, second)
    names = sorted(set(owners.tolist()), key=natural)
    return OwnData(first, second, Clients(first, [np.flatnonzero(owners == x) for x in names]), tuple(names))


def read_rows(path: Path, columns: Sequence[str]) -> np.ndarray:
    """The columns of a table that a model asks for, by name, in its order: float32 [N, D]; others are not looked at.

    Raises:
      InvalidArgument: it can't be read, lacks a column, or a cell is empty or no number.
    """
    path = pathlib.Path(path)
    return numbers(read_table(path), list(columns), files.name(path))


def digest(data: OwnData) -> str:
    """Return the SHA-256 sum of training and test data, their classes and scales, and of who holds what."""
    scales = [[c.mean, c.stddev] for c in (*data.train.columns, *([data.train.target] if data.train.target else []))]
    owners = [part.tolist() for part in data.clients.indices] if data.clients else None
    parts = [data.train.sha256(), data.test.sha256(), data.train.class_names, scales, owners]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _of_source(given: Union[Source, Clients], client: Optional[str], test: Any, task: str) -> OwnData:
    """Return the parts of a source or of clients in memory."""
    source, clients = (given, None) if isinstance(given, Source) else (given.source, given)
    if client is not None:
        raise InvalidArgument(f"client_column is of tables, and dataset is a {type(given).__name__}: leave it out.")
    if (source.target is None) != (task == "classification"):
        labels = "classes" if source.target is None else "numbers"
        raise InvalidArgument(f"task is {task}, but the labels of dataset are {labels}: give the other task.")
    names = tuple(map(str, range(clients.num_clients))) if clients else ()
    if test is not None:
        check_alike(source, test)
        return OwnData(source, test, clients, names)
    train, owners = split_clients(clients) if clients else (source, None)
    held = _held_out(train.labels if train.target is None else np.zeros(train.num_examples), owners)
    rest, test = part_of(train, ~held, "train"), part_of(train, held, "test")
    if owners is None or clients is None:
        return OwnData(rest, test)
    places = [np.flatnonzero(owners[~held] == k) for k in range(clients.num_clients)]
    return OwnData(rest, test, Clients(rest, places), names)


def _read(
    data: Any, label: str, client: Optional[str], ignored: Optional[str] = None, where: str = "dataset"
) -> tuple[Examples, Optional[Examples]]:
    """The examples of a path or in memory, and the test set that lies beside them, if there is one."""
    if not isinstance(data, (str, os.PathLike)):
        return examples_in(data, where, label, client, ignored), None
    path = pathlib.Path(data)
    suffix = path.suffix.lower()
    if os.path.isdir(path):
        return _read_folder(path)
    if suffix in TABLES:
        return examples_of(read_table(path), files.name(path), label, client, ignored), None
    if suffix == ".npz":
        return _read_archive(path, client)
    raise InvalidArgument(
        f"The dataset {files.name(path)} must be a folder of images, or end in {', '.join(SUFFIXES)}."
    )


def _read_archive(path: pathlib.Path, client: Optional[str]) -> tuple[Examples, Optional[Examples]]:
    arrays = read_arrays(path, "archive", MOST_BYTES, compressed=True)
    for name in ("features", "labels", *([client] if client else [])):
        if name not in arrays:
            lookup(arrays, name, f"array in {files.name(path)}")
    owners = arrays.get(client or "clients")
    if owners is not None:
        if owners.shape != (len(arrays["features"]),):
            raise InvalidArgument(
                f"The array {client or 'clients'} of {files.name(path)} has the shape {list(owners.shape)}, but must "
                f"say of each of the {len(arrays['features'])} examples whose it is."
            )
        owners = np.array([str(x) for x in owners.tolist()])
    names = tuple(map(str, arrays["class_names"].tolist())) if "class_names" in arrays else ()
    columns = tuple(f"column_{i}" for i in range(arrays["features"].shape[-1])) if arrays["features"].ndim == 2 else ()
    train = Examples(arrays["features"], arrays["labels"], owners, columns, names)
    if ("test_features" in arrays) != ("test_labels" in arrays):
        raise InvalidArgument(
            f"{files.name(path)} has one of test_features and test_labels, but must have both or none."
        )
    if "test_features" not in arrays:
        return train, None
    return train, Examples(arrays["test_features"], arrays["test_labels"], None, columns, names)


def _read_folder(path: pathlib.Path) -> tuple[Examples, Optional[Examples]]:
    inside = {p.name for p in path.iterdir() if p.is_dir()}
    if not set(_SPLITS) <= inside:
        return _read_images(path), None
    train, test = (_read_images(path / split) for split in _SPLITS)
    return train, test._replace(owners=None)


def _read_images(path: pathlib.Path) -> Examples:
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in FORMATS)
    depths = {len(p.relative_to(path).parts) for p in found}
    if depths not in ({2}, {3}):
        raise InvalidArgument(
            f"The folder {files.name(path)} must hold images in CLASS/, or all of them in CLIENT/CLASS/"
            + (f", and has {len(found)} elsewhere or in both." if found else ", and has none.")
        )
    images = read_images(found, _size_of(found[0]))
    if images.failures:
        name, reason = images.failures[0]
        raise InvalidArgument(f"The image {name} {reason}: all must be readable and of the size of the first.")
    owners = np.array([p.parent.parent.name for p in found]) if depths == {3} else None
    return Examples(images.pixels, np.array([p.parent.name for p in found]), owners)


def _size_of(path: pathlib.Path) -> tuple[int, int, int]:
    from PIL import Image

    try:
        with (
            files.open_regular(path, "image") as file,
            Image.open(file, formats=[FORMATS[path.suffix.lower()]]) as image,
        ):
            return image.height, image.width, CHANNELS.get(image.mode, 3)
    except InvalidArgument:
        raise
    except Exception:  # Decoders raise errors of many types.
        raise InvalidArgument(f"The image {files.name(path)} can't be read.") from None


def _held_out(labels: np.ndarray, owners: Optional[np.ndarray]) -> np.ndarray:
    """Whether each example is in the test set: `TEST_SHARE` of each client's and class's, but not all of a client's."""
    whose = np.zeros(len(labels), np.int64) if owners is None else np.unique(owners, return_inverse=True)[1]
    rng = generator(0, "held out")
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        members = members[np.argsort(whose[members], kind="stable")]
        # Every fifth, from a random one on: so much of the class, and of each client about as much.
        steps = np.floor(np.arange(len(members) + 1) * TEST_SHARE + rng.random())
        held[members[np.diff(steps) > 0]] = True
    for k in np.unique(whose):
        if held[whose == k].all():
            held[np.flatnonzero(whose == k)[0]] = False
    if not held.any():
        raise InvalidArgument(f"There are too few examples, {len(labels)}, to hold a test set out: give one.")
    return held


def _part(examples: Examples, keep: np.ndarray) -> Examples:
    owners = None if examples.owners is None else examples.owners[keep]
    return examples._replace(features=examples.features[keep], labels=examples.labels[keep], owners=owners)


def _standardised(name: str, *parts: Examples, target: Optional[Column]) -> list[Source]:
    """The sources of both; tables by the columns' means and standard deviations in the first."""
    columns: tuple[Column, ...] = ()
    train = parts[0]
    features = [np.asarray(part.features) for part in parts]
    if train.columns and features[0].dtype.kind in "biuf":
        exact = features[0].astype(np.float64)
        means, stddevs = exact.mean(0), exact.std(0)
        stddevs = np.where(stddevs > 0, stddevs, 1.0)
        columns = tuple(Column(c, float(m), float(s)) for c, m, s in zip(train.columns, means, stddevs))
        features = [((x - means) / stddevs).astype(np.float32) for x in features]
    return [
        Source(name, split, x, part.labels, () if target else part.class_names, columns, target)
        for split, x, part in zip(_SPLITS, features, parts)
    ]


def _as_text(labels: np.ndarray) -> np.ndarray:
    """As `checked_labels` names them, so that they are found among names that are given."""
    array = np.asarray(labels)
    whole = array.dtype.kind == "f" and np.isfinite(array).all() and np.array_equal(array, np.rint(array))
    return np.array([str(x) for x in (array.astype(np.int64) if whole else array).tolist()])


def natural(text: str) -> tuple[Any, ...]:
    """Numbers in names by size."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)
