"""Facts about a dataset by its name. NumPy is imported where they are looked up, so that `--help` does without."""

from __future__ import annotations

from typing import Any


def names_clients(dataset: object, client_column: object) -> bool:
    """Return whether user-supplied data assign their examples to clients."""
    from tfp_bfl import data

    given = recorded_data(dataset)
    if given:
        return given.names_clients
    return client_column is not None or (isinstance(dataset, str) and data.names_clients(dataset))


def is_table(dataset: object) -> bool:
    """Return whether the examples of a dataset are rows of numbers, by its name."""
    from tfp_bfl import data

    given = recorded_data(dataset)
    if given:
        return given.is_table
    return isinstance(dataset, str) and (dataset in data.EMBEDDED_TABLES or dataset.lower().endswith(data.TABLES))


def recorded_data(dataset: object) -> Any:
    """Return `given_data.recorded` of a dataset; its module needs NumPy."""
    from tfp_bfl.app.options.given_data import recorded

    return recorded(dataset)
