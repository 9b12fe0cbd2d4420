"""Partitions by name, as the command line and configurations spell them."""

from __future__ import annotations

from tfp_bfl import named
from tfp_bfl.data import partitions
from tfp_bfl.data.equal_partitions import lda, pachinko
from tfp_bfl.data.partitions import Partition
from tfp_bfl.named import WithArgument

# Who holds what is in the data themselves.
GIVEN = "given"

# A new partition is one more line here.
PARTITIONS: named.Table = {
    "given": partitions.given,
    "iid": partitions.iid,
    "label_skew": WithArgument(partitions.label_skew, "classes_per_client", int),
    "dirichlet": WithArgument(partitions.dirichlet, "alpha"),
    "lda": WithArgument(lda, "alpha"),
    "pachinko": WithArgument(pachinko, "alpha"),
    "noniid_datasets": WithArgument(partitions.noniid_datasets, "other_interest"),
}


def parse(text: str, num_clients: int) -> Partition:
    """Return the partition that text names, such as "iid" or "dirichlet:0.5": see `partition_forms`.

    Example:
      >>> train = bfl.data.load("digits")
      >>> train.partition(bfl.data.parse_partition("dirichlet:0.5", num_clients=3), seed=0).sizes
      array([439, 386, 613])
    """
    return named.parse(PARTITIONS, text, "partition")(num_clients)


def partition_forms() -> list[str]:
    """Return the form of each partition's name, such as "dirichlet:ALPHA"."""
    return named.forms(PARTITIONS)
