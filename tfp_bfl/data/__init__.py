"""Data: a source of labelled examples, its partition over clients, and the cohort of a round.

They follow each other:

    clients = load("cifar10").partition(dirichlet(num_clients=10, alpha=0.5), seed=0)
    clients.dataset(0)                                      # one element: all examples of client 0
    cohort(clients.num_clients, 5, round_number=0, seed=0)  # the clients of round 0

Tables pass four stages: read (`tables`, `columns`, `cells`), describe (`messages`), agree (`agreement`) and encode
(`encoding`). An argument outside its range, and data that do not fit, raise InvalidArgument with one sentence.
"""

from tfp_bfl.data.augmentation import AUGMENTATIONS, crop_and_flip, parse_augmentation
from tfp_bfl.data.client_files import ClientFiles, Reference, write_clients
from tfp_bfl.data.clients import ClientData, ClientExamples, ClientRows, Clients
from tfp_bfl.data.cohorts import answering, cohort
from tfp_bfl.data.encoding import Feature
from tfp_bfl.data.equal_partitions import lda, pachinko, parse_partition, partition_forms
from tfp_bfl.data.images import Images, read_images
from tfp_bfl.data.loading import EMBEDDED_TABLES, list_sources, load, names_clients, peek
from tfp_bfl.data.names import EMPTY
from tfp_bfl.data.own import OwnData, digest, from_huggingface, is_own, kind_of, read_own, read_part
from tfp_bfl.data.partitions import Partition, dirichlet, iid, label_skew, like, noniid_datasets
from tfp_bfl.data.parts import Part, PartData, Parties, Schema
from tfp_bfl.data.rows import read_encoded, read_rows
from tfp_bfl.data.sources import Source
from tfp_bfl.data.statistics import Column
from tfp_bfl.data.tables import TABLES

__all__ = [
    "AUGMENTATIONS",
    "EMBEDDED_TABLES",
    "EMPTY",
    "TABLES",
    "ClientData",
    "ClientExamples",
    "ClientFiles",
    "ClientRows",
    "Clients",
    "Column",
    "Feature",
    "Images",
    "OwnData",
    "Part",
    "PartData",
    "Parties",
    "Partition",
    "Reference",
    "Schema",
    "Source",
    "answering",
    "cohort",
    "crop_and_flip",
    "digest",
    "dirichlet",
    "from_huggingface",
    "iid",
    "is_own",
    "kind_of",
    "label_skew",
    "lda",
    "like",
    "list_sources",
    "load",
    "names_clients",
    "noniid_datasets",
    "pachinko",
    "parse_augmentation",
    "parse_partition",
    "partition_forms",
    "peek",
    "read_encoded",
    "read_images",
    "read_own",
    "read_part",
    "read_rows",
    "write_clients",
]
