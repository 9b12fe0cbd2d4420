"""Data that a program has already: tables, arrays, sources and clients, as a training set, a test set and clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfp_bfl.data.checks import exact_features, of_one_form
from tfp_bfl.data.clients import Clients
from tfp_bfl.data.encoding import Raw
from tfp_bfl.data.examples import Examples, Reading, check_no_table, examples_of, of_named_arrays
from tfp_bfl.data.sources import Source
from tfp_bfl.data.tables import as_table, is_table
from tfp_bfl.errors import InvalidArgument, lookup, shown

ARRAYS = "arrays"
_FORMS = (
    "a Source, Clients, arrays (features, labels) or (features, labels, clients), or a table such as a pandas DataFrame"
)
_PARTS = ("features", "labels", "clients")


def kind_of(value: object) -> str | None:
    """Return what data in memory are: "Source", "Clients", "arrays", or the type of a table, such as "DataFrame".

    Returns None for anything else, such as a path.
    """
    if isinstance(value, (Source, Clients)):
        return type(value).__name__
    if is_table(value):
        return type(value).__name__
    return ARRAYS if isinstance(value, (tuple, list, Mapping)) else None


def examples_in(value: object, where: str, reading: Reading) -> Examples:
    """Return the examples of a table or of arrays in memory.

    Args:
      value: a table, a sequence (features, labels) or (features, labels, clients), or a mapping of these names.
      where: what errors call the data.
      reading: of a table, names its columns.

    Raises:
      InvalidArgument: it is none of these forms, or a part does not fit.
    """
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
    return of_named_arrays({**arrays, "features": exact_features(arrays["features"])}, "clients", where)


def in_one_form(train: Examples, test: Examples | None) -> tuple[Examples, Examples | None]:
    """Return training and test examples with checked features, of one shape and type.

    A table that is to be encoded stays as it is.

    Raises:
      InvalidArgument: one is such a table and the other is not, or as `checks.of_one_form`.
    """
    if isinstance(train.features, Raw) or (test is not None and isinstance(test.features, Raw)):
        if test is not None and isinstance(train.features, Raw) != isinstance(test.features, Raw):
            raise InvalidArgument("One of training and test data is a table, the other is none: give both in one form.")
        return train, test
    features = exact_features(train.features)
    if test is None or isinstance(test.features, Raw):
        return train._replace(features=features), None
    first, second = of_one_form(features, exact_features(test.features))
    return train._replace(features=first), test._replace(features=second)


def split_clients(clients: Clients) -> tuple[Source, np.ndarray]:
    """Return the examples that clients hold, in the order of the source, and the number of each example's client [N].

    Raises:
      InvalidArgument: two clients hold the same example.
    """
    rows = np.concatenate(clients.indices)
    if len(np.unique(rows)) < len(rows):
        raise InvalidArgument(
            "The clients of dataset share examples, of which no test set can be held out: give test_data, a Source."
        )
    owners = np.repeat(np.arange(clients.num_clients), clients.sizes)
    order = np.argsort(rows)
    return clients.source.select(rows[order]), owners[order]


def check_alike(train: Source, given: object) -> Source:
    """Return a test set, a source or the rows of clients.

    Raises:
      InvalidArgument: it is neither, or its form or its classes differ from those of the training set.
    """
    test = split_clients(given)[0] if isinstance(given, Clients) else given
    if not isinstance(test, Source):
        raise InvalidArgument(
            f"test_data has the type {type(test).__name__}, but must be a Source or Clients, as the training data are."
        )
    for name in ("element_shape", "is_image", "class_names", "target", "columns", "encoding"):
        ours, theirs = getattr(train, name), getattr(test, name)
        if ours != theirs:
            raise InvalidArgument(
                f"The {name} of test_data is {shown(theirs)}, but of the training data {shown(ours)}: both must agree."
            )
    return test
