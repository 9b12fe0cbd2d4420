"""Read examples in any accepted form, from files or from memory, with the test set that lies beside them."""

import os
import pathlib
from typing import Any

import numpy as np

from tfp_bfl import files
from tfp_bfl.data import huggingface
from tfp_bfl.data.encoding import Feature
from tfp_bfl.data.folders import read_folder
from tfp_bfl.data.names import as_text, canonical
from tfp_bfl.data.read_examples import (
    Examples,
    Reading,
    check_no_table,
    examples_in,
    examples_of,
    names_of,
    of_named_arrays,
)
from tfp_bfl.data.tables import TABLES, as_table, read_table
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.faces import pyarrow
from tfp_bfl.files.arrays import read_arrays

SUFFIXES = (*TABLES, ".npz")
MOST_BYTES = 2**34


def read(data: object, reading: Reading, is_test: bool = False) -> tuple[Examples, Examples | None]:
    """Return the examples of a path or in memory, and the test set that lies beside them, if there is one."""
    if huggingface.is_dataset(data):
        return _of_dataset(data, "test_data" if is_test else "dataset", reading, is_test)
    if not isinstance(data, (str, os.PathLike)):
        return examples_in(data, "test_data" if is_test else "dataset", reading), None
    path = pathlib.Path(data)
    suffix, where = path.suffix.lower(), files.name(path)
    if huggingface.is_saved(path):
        return _of_dataset(huggingface.load(path), where, reading, is_test)
    if suffix in TABLES and not os.path.isdir(path):
        table = read_table(path, reading.separator, reading.text, reading.drop, reading.named)
        return examples_of(table, where, reading), None
    check_no_table(reading, where)
    if os.path.isdir(path):
        return read_folder(path, reading.image_size)
    if suffix != ".npz":
        raise InvalidArgument(f"The dataset {where} must be a folder of images, or end in {', '.join(SUFFIXES)}.")
    arrays = {canonical(name): x for name, x in read_arrays(path, "archive", MOST_BYTES, compressed=True).items()}
    for name in ("features", "labels", *([reading.client] if reading.client and not is_test else [])):
        lookup(arrays, name, "array", f"in {where}")
    for name in ("labels", "test_labels"):
        if name in arrays and arrays[name].dtype.kind in "US":
            arrays[name] = names_of(arrays[name], name, where)
    owners = reading.client or "clients"
    train = of_named_arrays(arrays, owners, where)
    if ("test_features" in arrays) != ("test_labels" in arrays):
        raise InvalidArgument(f"{where} has one of test_features and test_labels, but must have both or none.")
    if "test_features" not in arrays:
        return train, None
    of_test = {**arrays, "features": arrays["test_features"], "labels": arrays["test_labels"]}
    return train, of_named_arrays(of_test, f"test_{owners}", where)


def _of_dataset(dataset: Any, where: str, reading: Reading, is_test: bool) -> tuple[Examples, Examples | None]:
    """Return the examples of a dataset of Hugging Face, and of the test set among its splits."""
    if is_test:
        return _of_split(dataset, where, reading, is_test), None
    train, test = huggingface.splits(dataset, where)
    examples = _of_split(train, where, reading)
    return examples, None if test is None else _of_split(test, where, reading.of_test(examples), is_test=True)


def _of_split(dataset: Any, where: str, reading: Reading, is_test: bool = False) -> Examples:
    """Return the examples of a Dataset: rows of a table, or the images or arrays of its one column of these."""
    table, label, client = huggingface.as_arrow(dataset, where), reading.label, reading.client
    names = {canonical(x): x for x in dataset.column_names}
    chosen = reading.only or [x for x in names if x not in (label, client, *reading.drop)]
    found = [x for x in map(canonical, huggingface.array_names(dataset.features.to_dict())) if x in chosen]
    if len(found) > 1:
        both = f"the columns {shown(found[0])} and {shown(found[1])} of images or arrays"
        raise InvalidArgument(f"{where} has {both}: choose one of them with --only.")
    if not found:
        check_no_table(Reading(separator=reading.separator), where)
        examples = examples_of(as_table(table, where, reading.drop, reading.named), where, reading)
    else:
        check_no_table(reading._replace(drop=(), only=()), where)
        # Numbers of the rows in the place of arrays: rows without a label or a client are left out alike.
        place = table.column_names.index(names[found[0]])
        table = table.set_column(place, found[0], pyarrow.array(np.arange(len(dataset))))
        columns = (Feature(found[0], "number"),) if is_test else ()
        how = reading._replace(only=tuple(found), columns=columns, is_full=is_test, is_part=False)
        examples = examples_of(as_table(table, where, keep=how.named), where, how)
        rows = np.asarray(examples.features)[:, 0].astype(np.int64)
        images = huggingface.arrays(dataset, names[found[0]], reading.image_size, where)
        notes = list(examples.notes)
        if others := ", ".join(shown(x) for x in chosen if x not in found):
            notes.append(f"The features are the arrays in {shown(found[0])}: {others} left out.")
        examples = examples._replace(features=images[rows], columns=(), notes=tuple(notes))
    class_names = getattr(dataset.features.get(names.get(label)), "names", None)
    if class_names and not reading.regresses:
        return examples._replace(class_names=tuple(as_text(class_names)))
    return examples
