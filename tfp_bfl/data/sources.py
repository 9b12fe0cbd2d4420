"""Labelled datasets as arrays in memory."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfp_bfl.data.checks import checked_features, checked_labels, checked_targets
from tfp_bfl.data.clients import ClientExamples, Clients, rows_by_client
from tfp_bfl.data.encoding import Feature
from tfp_bfl.data.names import as_text, canonical, natural
from tfp_bfl.data.partitions import Partition, generator
from tfp_bfl.data.statistics import Column, column_of
from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.faces import tf

TEST_SHARE = 0.2
# Of the numbers that are regressed on, by which partitions tell examples apart.
STRATA = 10


class Learnt:
    """The target of learning, wherever the examples lie: attributes as of `Source`."""

    name: str
    class_names: tuple[str, ...]
    target: Column | None
    element_shape: Any
    is_image: Any

    @property
    def num_classes(self) -> int:
        """C; 0 where numbers are regressed on."""
        return len(self.class_names)

    @property
    def num_outputs(self) -> int:
        """The outputs of a model for an example: C logits, or the mean and the log variance of a number."""
        return self.num_classes if self.target is None else 2

    @property
    def element_spec(self) -> ClientExamples:
        """The type of the elements of their clients' datasets, each one client; n is None: the same for all."""
        number = tf.TensorSpec((None,), tf.int32)
        features = tf.TensorSpec((None, *self.element_shape), tf.uint8 if self.is_image else tf.float32)
        labels = number if self.target is None else tf.TensorSpec((None,), tf.float32)
        return ClientExamples(client=number, features=features, labels=labels)


@dataclasses.dataclass(frozen=True, eq=False)
class Source(Learnt):
    """One split of a labelled dataset, in memory.

    What it is given is cast where that loses nothing, and checked (`tfp_bfl.data.checks`): float64 to float32, bytes
    without a channel axis, labels that are text or do not begin at 0.

    Attributes:
      name: such as "cifar10".
      split: such as "train".
      features: [N, ...]; uint8 [N, height, width, channels] for images, float32 for images of floats from 0 to 1, for
        tables [N, columns] and for sequences.
      labels: int32 [N], from 0 to C - 1.
      class_names: C names; if not given, the labels' own, in order.
      columns: how a table was standardised, if it was; () otherwise.
      target: of what is regressed on: labels are then float32 [N], numbers less its mean and over its standard
        deviation, and class_names is (). None for classes.
      encoding: how the columns of a table became those of `columns`, where they are not all numbers; () otherwise.
      owners: the name of each example's client [N]; None where the data name none.
      image_shape: [height, width, channels] of the images that features of a backbone were computed of; else ().
    """

    name: str
    split: str
    features: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    target: Column | None = None
    encoding: tuple[Feature, ...] = ()
    owners: np.ndarray | None = None
    image_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        features = checked_features(self.features)
        class_names: tuple[str, ...] = ()
        if self.target is not None:
            labels = checked_targets(self.labels, len(features)).astype(np.float32)
        else:
            labels, class_names = checked_labels(self.labels, len(features), self.class_names)
        owners = self.owners
        if owners is not None and np.shape(owners) != (len(labels),):
            must = f"but must name the client of each of the {len(labels)} examples"
            raise InvalidArgument(f"owners have the shape {list(np.shape(owners))}, {must}.")
        if owners is not None and any(isinstance(x, str) and canonical(x) != x for x in {*np.asarray(owners).tolist()}):
            owners = as_text(np.asarray(owners).tolist())
        columns = tuple(column._replace(name=canonical(column.name)) for column in self.columns)
        checked = {"features": features, "labels": labels, "class_names": class_names}
        for name, value in {**checked, "columns": columns, "owners": owners}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        labels = f"{self.num_classes} classes" if self.target is None else f"target {self.target.name}"
        sizes = f"{self.num_examples} examples {list(self.element_shape)}, {labels}"
        return f"<Source {self.name}/{self.split}: {sizes}>"

    @property
    def num_examples(self) -> int:
        """N."""
        return len(self.labels)

    @property
    def strata(self) -> np.ndarray:
        """The groups that partitions distinguish: the labels, or the tenths of a numeric target."""
        if self.target is None:
            return self.labels
        bounds = np.quantile(self.labels, np.arange(1, STRATA) / STRATA)
        return np.searchsorted(bounds, self.labels, side="right").astype(np.int32)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """The shape of one example's features."""
        return tuple(self.features.shape[1:])

    @property
    def is_image(self) -> bool:
        """Whether the features are bytes."""
        return self.features.dtype == np.uint8 and len(self.features.shape) > 2

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients that the data name, in order; () where they name none."""
        return () if self.owners is None else tuple(sorted(set(self.owners.tolist()), key=natural))

    @property
    def clients(self) -> Clients | None:
        """The clients that the data name, in the order of `client_names`; None where they name none."""
        if self.owners is None:
            return None
        return Clients(self, self.rows_of(self.client_names))

    def rows_of(self, names: Sequence[str]) -> list[np.ndarray]:
        """Return the rows of each client that data with `owners` name, int64 [n_k] each."""
        numbers = {name: k for k, name in enumerate(names)}
        owners = [] if self.owners is None else self.owners.tolist()
        return rows_by_client(np.array([numbers.get(name, -1) for name in owners], np.int64), len(names))

    def partition(self, partition: Partition, seed: int) -> Clients:
        """Split the examples over clients.

        Example:
          >>> train = bfl.data.load("digits")
          >>> clients = train.partition(bfl.data.dirichlet(num_clients=3, alpha=0.5), seed=0)
          >>> clients.num_clients, clients.sizes
          (3, array([439, 386, 613]))
        """
        if not callable(partition):
            one = "one of tfp_bfl.data, such as dirichlet(num_clients=10, alpha=0.5)"
            raise InvalidArgument(f"partition is {shown(partition)}, but must be {one}.")
        return Clients(self, partition(self.strata, seed))

    def subset(self, num_examples: int, seed: int) -> Source:
        """Return `num_examples` of the examples, drawn uniformly without replacement, in their old order.

        Example:
          >>> train = bfl.data.load("digits")
          >>> train.subset(100, seed=0)
          <Source digits/train: 100 examples [8, 8, 1], 10 classes>
        """
        num_examples = check_count(num_examples, "num_examples")
        if num_examples > self.num_examples:
            most = f"the {self.num_examples} of {self.name}/{self.split}"
            raise InvalidArgument(f"num_examples is {num_examples}, but must be at most {most}.")
        keep = generator(seed, "subset").choice(self.num_examples, num_examples, replace=False)
        return self.select(np.sort(keep))

    def select(self, rows: np.ndarray, split: str | None = None) -> Source:
        """Return examples by their places [M] or a mask [N], as a split of another name if one is given."""
        owners = None if self.owners is None else self.owners[rows]
        examples = {"features": self.features[rows], "labels": self.labels[rows], "owners": owners}
        return dataclasses.replace(self, split=split or self.split, **examples)

    def sha256(self) -> str:
        """Return the SHA-256 sum of features and labels, their types and shapes.

        Features that are made when they are asked for, and are no array, count by type and shape alone.
        """
        total = hashlib.sha256()
        for array in (self.features, self.labels):
            total.update(f"{array.dtype.str} {list(array.shape)}\n".encode())
            if isinstance(array, np.ndarray):
                total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()

    def as_dataset(self) -> tf.data.Dataset:
        """Return a dataset of (features [...], label []), an example an element, in order."""
        return tf.data.Dataset.from_tensor_slices((self.features, self.labels))


def standardised_target(name: str, train: np.ndarray, numbers: np.ndarray) -> tuple[Column, np.ndarray]:
    """Standardise numbers [M] of a target by the statistics of those of the training set [N], which come first."""
    target = column_of(name, train)
    return target, (np.asarray(numbers, np.float64) - target.mean) / target.scale
