"""Partitions by name, as the command line and configurations spell them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tfp_bfl.data import partitions
from tfp_bfl.data.hierarchical import pachinko
from tfp_bfl.data.partitions import Partition
from tfp_bfl.errors import InvalidArgument, lookup, shown


class _Entry(NamedTuple):
    make: Callable[..., Partition]
    argument: str | None = None
    kind: Callable[[str], Any] = str


# A new partition is one more line here.
PARTITIONS: dict[str, _Entry] = {
    "iid": _Entry(partitions.iid),
    "label_skew": _Entry(partitions.label_skew, "classes_per_client", int),
    "dirichlet": _Entry(partitions.dirichlet, "alpha", float),
    "lda": _Entry(partitions.lda, "alpha", float),
    "pachinko": _Entry(pachinko, "alpha", float),
    "noniid_datasets": _Entry(partitions.noniid_datasets, "other_interest", float),
}


def parse(text: str, num_clients: int) -> Partition:
    """Reads a partition from text, such as "iid" or "dirichlet:0.5": see `partition_forms`.

    Raises:
      InvalidArgument: there is no such partition, or its argument is missing, superfluous or not a number.
    """
    name, colon, value = str(text).partition(":")
    entry = lookup(PARTITIONS, name, "partition")
    if entry.argument is None:
        if colon:
            raise InvalidArgument(f"The partition {shown(text)} has an argument, but {name} takes none.")
        return entry.make(num_clients)
    form = f"{name}:{entry.argument.upper()}"
    if not value:
        raise InvalidArgument(f"The partition {shown(text)} lacks its {entry.argument}: write {form}.")
    try:
        argument = entry.kind(value)
    except ValueError:
        number = "a whole number" if entry.kind is int else "a number"
        raise InvalidArgument(
            f"The partition {shown(text)} has the {entry.argument} {shown(value)}, but must be {form} with {number}."
        ) from None
    return entry.make(num_clients, **{entry.argument: argument})


def partition_forms() -> list[str]:
    """How each is written, such as "dirichlet:ALPHA"."""
    return [
        name if entry.argument is None else f"{name}:{entry.argument.upper()}" for name, entry in PARTITIONS.items()
    ]
